"""`probe`: linear probes on cached activations, all layers and all squares in one pass over the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.experiments.cache.kind import CacheSpec
from chessreg.experiments.probe.rows import ProbeScore, RatingRow
from chessreg.experiments.probe.stored import FittedProbe, best_layer, load_probe
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import select
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import How, Ref, Spec

if TYPE_CHECKING:
    from chessreg.experiments.probe.work import ProbeWork
    from chessreg.games.boardframe import BoardFrame
    from chessreg.games.dataset import Games
    from chessreg.runs.task import Task

__all__ = ["FittedProbe", "Probe", "ProbeSpec", "best_layer", "load_probe"]

CacheRef = Annotated[str, Ref("run:cache")]

PAPER: Mapping[str, Any] = {  # Karvonen Table 4 and specification 3.4: two games of 33 positions in a step
    "learning_rate": 1e-3,
    "schedule": "constant",
    "batch_positions": 66,
    "init": 1.0,
    "normalise": False,
}


class ProbeSpec(Spec):
    cache: CacheRef = Field(description="activations to fit on")
    test_cache: Annotated[str | None, Ref("run:cache")] = Field(
        None, description="activations of other games to test on"
    )
    label: str = Field(
        "piece",
        description="what is read: piece, colour, threat, legal-move, pin, previous-move, random; skill or rating",
    )
    skill: SkillSettings = SkillSettings()
    first: int = Field(0, ge=0, description="leave out the first positions of each game (Karvonen: 25 for skill)")
    last: int | None = Field(None, ge=1, description="positions counted from the game's start (Karvonen: 33)")
    layers: tuple[int, ...] = Field((), description="layers, 0-based; none given: all that are cached")
    validation: float = Field(0.1, gt=0, lt=1, description="share of the games held out of fitting, by game")
    epochs: int = Field(5, ge=1, description="passes over the cache (Karvonen Table 4)")
    batch_positions: int = Field(256, ge=1, description="positions in one step")
    learning_rate: float = Field(1e-2, gt=0, description="AdamW's")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="linear: the rate falls to a tenth; constant: as Karvonen's"
    )
    weight_decay: float = Field(0.01, ge=0, description="AdamW's (Karvonen Table 4)")
    beta1: float = Field(0.9, description="AdamW's (Karvonen Table 4)")
    beta2: float = Field(0.99, description="AdamW's (Karvonen Table 4)")
    init: float = Field(0.1, ge=0, description="standard deviation of the first weights, times 1/sqrt(d_model)")
    normalise: bool = Field(True, description="divide each layer by its root mean square while it is fitted")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP


class ProbeHow(How):
    memory_mib: int = Field(
        4096, ge=0, description="memory for labels; beyond it they go to scratch files (activations always stream)"
    )


class Probe(Kind):
    """Linear probes of the board or of skill, one per layer, with a score for every game.

    Karvonen 2024, section 3: softmax regression of each square's content on the residual stream, without bias, the
    loss summed over the squares. Skill: one prediction a position, the class of a player's rating, or by regression
    the rating itself. One unit is one layer; all missing layers are fitted in one pass over the cache.
    """

    name = "probe"
    version = 2
    example = "--cache reference-fit --test-cache reference-test --epochs 2"
    families = ("score", "metric_point", "prediction")
    spec = ProbeSpec
    how = ProbeHow
    detail = {"score": ProbeScore, "prediction": RatingRow}  # noqa: RUF012
    queries = ("probe accuracy by layer",)
    presets = {  # noqa: RUF012
        "paper": PAPER,
        "paper-skill": {**PAPER, "label": "skill", "first": 25, "last": 33, "skill": {"strata": "pooled"}},
        "paper-rating": {
            "label": "rating", "first": 25, "epochs": 1, "learning_rate": 3e-4, "init": 1.0, "normalise": False,
        },
    }  # fmt: skip

    def units(self, spec: ProbeSpec, inputs: Inputs) -> int:
        return len(layers_of(spec, inputs))

    def estimate(self, spec: ProbeSpec, inputs: Inputs) -> Estimate:
        from chessreg.games.labels import label

        wanted, layers = label(spec.label), layers_of(spec, inputs)
        run = inputs.run(spec.cache, "cache")
        tested, remarks = run.units * spec.validation, []
        if spec.test_cache:
            tested += inputs.run(spec.test_cache, "cache").units
        if wanted.source != "position":
            remarks = skill_remarks(spec, inputs)
        rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
        size = rows[0].d_model * wanted.squares * max(len(wanted.classes), 1) * 4
        family = "prediction" if wanted.source == "rating" else "score"
        return Estimate({family: int(tested * len(layers))}, size * len(layers), tuple(remarks))

    def check(self, spec: ProbeSpec, inputs: Inputs) -> None:
        """Refuses what was trained on: games of the model among those evaluated, fitted games among the test games."""
        fitted, tested = cached_games(spec, inputs)
        checkpoints = [
            inputs.rows(tables.ActivationCache, inputs.run(c, "cache"))[0].checkpoint_id for c in caches(spec)
        ]
        if len(set(checkpoints)) > 1:
            raise BadInputError("--cache and --test-cache hold activations of different checkpoints")
        for games, places in (fitted, *tested):
            overlap.refuse(inputs, checkpoint_of(spec, inputs), games, places, spec.allow_overlap)
        for games, places in tested:
            overlap.refuse_games([fitted], games.hashes[places], spec.allow_overlap, "the probe")

    def run(self, task: Task[ProbeSpec, ProbeHow]) -> None:
        from chessreg.experiments.probe.work import ProbeWork

        work: ProbeWork = ProbeWork(task, layers_of(task.spec, task.inputs))
        work.do()

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.probe.frames import frames_of_score

        return frames_of_score(row, inputs)


def caches(spec: ProbeSpec) -> list[str]:
    return [spec.cache, *([spec.test_cache] if spec.test_cache else [])]


def checkpoint_of(spec: ProbeSpec, inputs: Inputs) -> str:
    """The recipe of the checkpoint that the activations are of."""
    return str(inputs.run(spec.cache, "cache").spec["checkpoint"])


def cached_games(spec: ProbeSpec, inputs: Inputs) -> tuple[tuple[Games, np.ndarray], list[tuple[Games, np.ndarray]]]:
    """Datasets and places in them of the games of the cache, and of the test cache if there is one."""
    found = [select(CacheSpec(**inputs.run(recipe, "cache").spec), inputs) for recipe in caches(spec)]
    return found[0], found[1:]


def skill_remarks(spec: ProbeSpec, inputs: Inputs) -> list[str]:
    """How many games of which skill the caches have."""
    from chessreg.experiments.settings.skill import classes_of

    said, fitted = [], None
    for name, recipe in zip(("fit", "test"), caches(spec), strict=False):
        cache = CacheSpec(**inputs.run(recipe, "cache").spec)
        found = classes_of(inputs, cache.dataset, select(cache, inputs)[1], spec.skill, spec.seed, fitted)
        fitted = fitted or found.report
        said.append(f"{name}: {found.report}")
    return said


def layers_of(spec: ProbeSpec, inputs: Inputs) -> tuple[int, ...]:
    """The layers to fit; raises BadInputError for one that was not cached."""
    from chessreg.games.labels import label

    label(spec.label)
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(spec.cache, "cache"))
    cached = tuple(int(point.split(".")[1]) for point in rows[0].hook_points)
    if missing := set(spec.layers) - set(cached):
        raise BadInputError(f"layer {min(missing)} is not in the cache", f"it holds {', '.join(map(str, cached))}")
    return spec.layers or cached
