"""`vector`: directions in the residual stream from cached activations, for every layer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.experiments.cache import CachedActivations, hook_point, load_cache
from chessreg.jobs.inputs import Inputs
from chessreg.jobs.kind import Estimate, Kind
from chessreg.jobs.spec import How, Ref, Spec
from chessreg.noise import generator
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.jobs.task import Task


class VectorSpec(Spec):
    cache: Annotated[str, Ref("run:cache")] = Field(description="activations to average")
    source: Literal["contrastive", "shuffled"] = Field(
        "contrastive", description="contrastive: high minus low; shuffled: the same with the labels permuted, a control"
    )
    label: Literal["white_elo", "black_elo"] = Field("white_elo", description="the rating that splits the games")
    quantile: float = Field(1 / 6, gt=0, le=0.5, description="share of the games in each class (Karvonen: sixths)")
    first_ply: int = Field(50, ge=0, description="only positions from this ply on (Karvonen: dot 25)")
    layers: tuple[int, ...] = Field((), description="layers, 0-based; none given: all that are cached")


class Vector(Kind):
    """Contrastive activation vectors: mean residual of games of strong players minus that of weak ones.

    Karvonen 2024, section 4. Means are per position, not the sums over eight positions that the paper's code stores: a
    coefficient of 0.1 there is a scale of 0.8 here. One unit is one layer.
    """

    name = "vector"
    example = "--cache reference-fit --first-ply 4"
    families = ("metric_point",)
    spec = VectorSpec

    def units(self, spec: VectorSpec, inputs: Inputs) -> int:
        return len(layers_of(spec, inputs))

    def estimate(self, spec: VectorSpec, inputs: Inputs) -> Estimate:
        layers = layers_of(spec, inputs)
        return Estimate({"metric_point": 4 * len(layers)}, len(layers) * 4096)

    def run(self, task: Task[VectorSpec, How]) -> None:
        spec = task.spec
        cache = load_cache(task.inputs, spec.cache)
        layers = layers_of(spec, task.inputs)
        high, low, edges = classes(spec, cache, task.inputs)
        for unit in task.units:
            values = cache.read(layers[unit])
            means = values[high].mean(0, dtype=np.float64), values[low].mean(0, dtype=np.float64)
            vector = (means[0] - means[1]).astype(np.float32)
            publish(task, cache, unit, layers[unit], vector, edges)
            measured = {
                "norm": float(np.linalg.norm(vector)),
                "norm_high": float(np.linalg.norm(means[0])),
                "norm_low": float(np.linalg.norm(means[1])),
                "positions": float(high.sum() + low.sum()),
            }
            for name, value in measured.items():
                task.emit("metric_point", unit, name=name, step=0, value=value)
            task.done(unit)


def layers_of(spec: VectorSpec, inputs: Inputs) -> tuple[int, ...]:
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(spec.cache, "cache"))
    cached = tuple(int(point.split(".")[1]) for point in rows[0].hook_points)
    if missing := set(spec.layers) - set(cached):
        raise BadInputError(f"layer {min(missing)} is not in the cache", f"it holds {', '.join(map(str, cached))}")
    return spec.layers or cached


def classes(
    spec: VectorSpec, cache: CachedActivations, inputs: Inputs
) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Which rows of the cache belong to the high and to the low class, bool [rows] each, and the classes' edges."""
    games, _ = inputs.dataset(cache.spec.dataset)
    item = cache.array.game
    rating = games.table([spec.label]).column(spec.label).to_numpy(zero_copy_only=False).astype(float)
    places = np.unique(item)
    known = places[np.isfinite(rating[places])]
    if len(known) < 10:
        raise BadInputError(f"only {len(known)} of the cached games have {spec.label}", "cache games with ratings")
    low, high = np.quantile(rating[known], [spec.quantile, 1 - spec.quantile])
    if low >= high:
        raise BadInputError(f"{spec.label} is {low:.0f} for nearly all games: there is no contrast")
    if spec.source == "shuffled":
        rating[known] = generator(spec.seed, "shuffled ratings").permutation(rating[known])
    late = cache.array.ply >= spec.first_ply
    chosen = late & (rating[item] >= high), late & (rating[item] <= low)
    if not (chosen[0].any() and chosen[1].any()):
        raise BadInputError(f"no cached position lies at or after ply {spec.first_ply}", "lower --first-ply")
    return *chosen, {"low": float(low), "high": float(high)}


def publish(
    task: Task[VectorSpec, How],
    cache: CachedActivations,
    unit: int,
    layer: int,
    vector: np.ndarray,
    edges: dict[str, float],
) -> None:
    from safetensors.numpy import save_file

    spec = task.spec
    meta = {"hook_point": hook_point(layer), "layer": layer, "label": spec.label, "positions": "averaged", **edges}
    with task.output(f"layer-{layer}", unit, "vector") as folder:
        save_file({"vector": vector}, folder / "vector.safetensors")
        (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True))
    task.record(
        "vector",
        run_id=task.run_id,
        unit=unit,
        artefact=task.last_output.digest,
        checkpoint_id=cache.checkpoint_id,
        hook_point=hook_point(layer),
        layer=layer,
        source=f"{spec.source}:{spec.label}",
        positions=cache.spec.positions,
        norm=float(np.linalg.norm(vector)),
        detail=meta,
    )


def load_vector(inputs: Inputs, recipe: str, layer: int) -> Any:
    """The vector of one layer of a vector run, float32 [d_model]."""
    from safetensors.numpy import load_file

    run = inputs.run(recipe, "vector")
    rows: list[tables.Vector] = inputs.rows(tables.Vector, run)
    row = next((r for r in rows if r.layer == layer), None)
    if row is None:
        raise BadInputError(f"that vector run has no layer {layer}", f"it has {', '.join(str(r.layer) for r in rows)}")
    found = inputs.located(f"vector layer {layer}", recipe, row.artefact, inputs.store.path(row.artefact), run.id)
    return load_file(found.path / "vector.safetensors")["vector"]
