"""`vector-apply`: accuracy with which a vector's direction alone separates games of strong and weak players."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, Field

from chessreg.errors import BadInputError
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import select_cached_items
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.skill import SkillSettings, load_skill_classes
from chessreg.experiments.vector.sums import mask_cached_rows, sum_cached_activations
from chessreg.models.hook_points import to_hook_pattern
from chessreg.registry import tables
from chessreg.runs.activations import load_cache
from chessreg.runs.fitted import load_vector, read_vector_rows, select_cached_layers
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import ExecutionOptions, Layers, Plies, Ref, Spec

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

FOLD_COUNT = 2


class VectorApplySpec(Spec):
    vector: Annotated[str, Ref("run:vector")] = Field(description="the vectors, original ones or controls")
    cache: Annotated[str, Ref("run:cache")] = Field(description="activations of other games of the same model")
    layers: Layers = Field((), description="layers, 0-based. Left out: all that are cached and have a vector")
    first_ply: Plies = Field(50, ge=0, description="only sites from this ply on (Karvonen: dot 25)")
    last_ply: Plies | None = Field(
        None, ge=0, description="only token positions up to this ply. Left out: to the end of the game"
    )
    skill: SkillSettings = Field(SkillSettings(), description="the classes of games")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP


class Projection(BaseModel):
    """Columns of a score of this kind: one game along one direction."""

    game_class: int = Field(description="0 for a weak player, 1 for a strong one")
    projection: float = Field(description="mean residual of the game's sites along the direction, of unit norm")


class VectorApply(Kind):
    """Accuracy along a direction: strong and weak players' games separated by their projection on a vector.

    Karvonen 2024, section 4, adds such vectors but does not test how well they separate games. A probe uses all
    directions at once; this kind uses only the added one. A game counts as strong if the projection of its mean
    residual is above the midpoint between the classes' means. That midpoint comes from the other half of the classed
    games (those at even and odd places). An accuracy of one half or less means that the direction does not separate the
    classes, or separates them in the wrong direction. One unit is one layer.
    """

    name = "vector-apply"
    example = "--vector skill --cache reference-test --first-ply 4"
    tables = ("score",)
    spec = VectorApplySpec
    columns = {"score": Projection}  # noqa: RUF012
    queries = ("accuracy along vectors",)

    def units(self, spec: VectorApplySpec, inputs: Inputs) -> int:
        return len(resolve_projected_layers(spec, inputs))

    def estimate(self, spec: VectorApplySpec, inputs: Inputs) -> RunEstimate:
        layers, run = self.units(spec, inputs), inputs.run(spec.cache, "cache")
        caches: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
        operations = 2.0 * layers * sum(cache.rows * cache.d_model for cache in caches)
        return RunEstimate({"score": layers * run.units}, operations=operations)

    def check(self, spec: VectorApplySpec, inputs: Inputs) -> None:
        run = inputs.run(spec.cache, "cache")
        games, places = select_cached_items(inputs, spec.cache)
        overlap.refuse_overlap(inputs, run.spec["checkpoint"], games, places, spec.allow_overlap)
        overlap.refuse_overlap(inputs, spec.vector, games, places, spec.allow_overlap, "the vector")
        row: tables.ActivationCache = inputs.rows(tables.ActivationCache, run)[0]
        vector_row = next(iter(read_vector_rows(inputs, spec.vector).values()))
        if vector_row.checkpoint_id not in (None, row.checkpoint_id):
            raise BadInputError("the vector and the cache are of different checkpoints")

    def run(self, task: Task[VectorApplySpec, ExecutionOptions]) -> None:
        spec, inputs = task.spec, task.inputs
        layers = resolve_projected_layers(spec, inputs)
        pattern = to_hook_pattern(next(iter(read_vector_rows(inputs, spec.vector).values())).hook_point)
        cache = load_cache(inputs, spec.cache, pattern=pattern)
        rows = mask_cached_rows(cache, spec.first_ply, spec.last_ply)
        every, positions = np.unique(cache.array.game[rows], return_counts=True)
        if not len(every):
            raise BadInputError(f"no cached site has ply {spec.first_ply} or a later one", "lower --first-ply")
        skill = load_skill_classes(inputs, cache.dataset, every, spec.skill, spec.seed)
        highest = int(skill.classes.max())
        classified_rows = np.flatnonzero((skill.classes == 0) | (skill.classes == highest))
        places, is_strong = every[classified_rows], skill.classes[classified_rows] == highest
        fold = np.arange(len(places)) % FOLD_COUNT
        for number in range(FOLD_COUNT):
            if len(set(is_strong[fold == number].tolist())) < 2:
                raise BadInputError("all games of one half have the same class", "cache more games")
        for unit in task.units:
            layer = layers[unit]
            vector = load_vector(inputs, spec.vector, layer).astype(np.float64)
            if len(vector) != cache.array.d_model:
                raise BadInputError(
                    f"the vector has {len(vector)} numbers, but the cache has d_model {cache.array.d_model}"
                )
            if not np.linalg.norm(vector) > 0:
                raise BadInputError(f"the vector of layer {layer} is 0, so it has no direction")
            projection = (
                sum_cached_activations(cache, layer, places, rows)
                @ (vector / np.linalg.norm(vector))
                / positions[classified_rows]
            )
            right = (projection > compute_thresholds(projection, is_strong, fold)) == is_strong
            for game, truth, value, correct in zip(places, is_strong, projection, right, strict=True):
                task.emit(
                    "score",
                    unit,
                    Projection(game_class=int(truth), projection=float(value)),
                    split="test",
                    item=int(game),
                    layer=layer,
                    n=1,
                    correct=int(correct),
                )
            task.done(unit)


def compute_thresholds(projection: np.ndarray, is_strong: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return, for each game, the midpoint between the mean projections of the two classes in the other fold.

    projection float64 [games], is_strong bool [games], fold int [games]; returns float64 [games].
    """
    middle = [
        (projection[(fold != number) & is_strong].mean() + projection[(fold != number) & ~is_strong].mean()) / 2
        for number in range(FOLD_COUNT)
    ]
    return np.array(middle)[fold]


def resolve_projected_layers(spec: VectorApplySpec, inputs: Inputs) -> tuple[int, ...]:
    """Return the layers to evaluate: those of the spec, or all with a vector and a cache. Raises BadInputError."""
    return select_cached_layers(inputs, read_vector_rows(inputs, spec.vector), spec.cache, spec.layers)
