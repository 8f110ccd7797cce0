"""`vector`: directions in the residual stream of every layer: contrasts, differences of probe weights, and controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from chessreg.experiments.settings import overlap
from chessreg.experiments.vector.contrast import gather_games
from chessreg.experiments.vector.makers import (
    MAKERS,
    VectorOrigin,
    check_board_probe,
    find_labelled_contrast,
    find_probe_readout,
)
from chessreg.experiments.vector.spec import (
    AUTHORS,
    BoardDirection,
    Cascade,
    Contrast,
    OfModel,
    ShuffledProbeVector,
    ShuffledVector,
    UncachedContrast,
    VectorOptions,
    VectorSettings,
    VectorSpec,
    resolve_vector_layers,
)
from chessreg.models.hook_points import format_hook_point
from chessreg.runs.cost import count_reading_operations
from chessreg.runs.fitted import Direction, load_direction, load_vector, read_vector_rows
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate

if TYPE_CHECKING:
    from chessreg.runs.task import Task


SECONDS_PER_LAYER = 0.1  # time to write a direction that needs no pass over games
__all__ = ["Vector", "VectorOptions", "VectorSpec", "load_direction", "load_vector", "read_vector_rows"]


class Vector(Kind):
    """Directions in the residual stream: the difference between games of strong and of weak players.

    Karvonen 2024, section 4: the mean residual of the strong games minus that of the weak ones, all layers in one
    pass. Averages are per position. The author's vectors are sums over eight positions, so his coefficient 0.1
    corresponds to a scale of 0.8 in chessreg. Controls (--source random, shuffled or shuffled-probe) are separate runs,
    with the norm of the real vector in each layer. One unit is one layer.
    """

    name = "vector"
    version = 2
    main_settings = (
        "layers",
        "first_ply",
        "last_ply",
        "reduction",
        "per_class",
        "skill.rating",
        "skill.bins",
        "cascade_scale",
        "direction_norm",
        "seed",
    )
    example = "--source contrastive --cache reference-fit --first-ply 4"
    tables = ("metric_point",)
    spec = VectorSpec
    options = VectorOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {**AUTHORS, "per_class": 2000},
        "author-2024": {**AUTHORS, "total": 2000},
    }

    def units(self, spec: VectorSettings, inputs: Inputs) -> int:
        return len(resolve_vector_layers(spec, inputs))

    def estimate(self, spec: VectorSettings, inputs: Inputs) -> RunEstimate:
        layers = resolve_vector_layers(spec, inputs)
        if not isinstance(spec, Contrast):
            seconds = len(layers) * SECONDS_PER_LAYER
            return RunEstimate({"metric_point": len(layers)}, len(layers) * 4096, cpu_seconds=seconds)
        games = gather_games(spec, inputs)
        is_uncached = isinstance(spec, UncachedContrast)
        sums = len(games.places) * games.checkpoint.d_model * 4 if is_uncached else 0
        passes = len(layers) if isinstance(spec, Cascade) else 1
        if isinstance(spec, OfModel):
            operations = passes * count_reading_operations(spec.model(inputs), inputs, len(games.places))
        else:
            operations = 2.0 * passes * len(layers) * int(games.positions.sum()) * games.checkpoint.d_model
        return RunEstimate(
            {"metric_point": 6 * len(layers)}, len(layers) * (sums + 8192), (str(games.report),), operations
        )

    def check(self, spec: VectorSettings, inputs: Inputs) -> None:
        if isinstance(spec, ShuffledVector):
            find_labelled_contrast(spec, inputs)
        elif isinstance(spec, ShuffledProbeVector):
            find_probe_readout(spec, inputs)
        elif isinstance(spec, BoardDirection):
            check_board_probe(spec, inputs)
        elif isinstance(spec, Contrast):
            games = gather_games(spec, inputs)
            overlap.refuse_overlap(inputs, spec.model(inputs), games.games, games.places, spec.allow_overlap)

    def run(self, task: Task[VectorSpec, VectorOptions]) -> None:
        every = resolve_vector_layers(task.spec, task.inputs)
        units = {every[unit]: unit for unit in task.units}
        origin, directions = MAKERS[task.spec.source](task, list(units))
        overlaps = measure_vector_overlap(task, origin)
        for layer, direction in directions:
            publish_vector(task, origin, units[layer], layer, direction, overlaps)
            measurements = {"norm": direction.norm, **direction.compute_side_norms()}
            if origin.games is not None:
                measurements |= {"positions": float(origin.games.positions.sum()), **origin.games.count_games()}
            if "norm_before_matching" in direction.detail:
                measurements["norm_before_matching"] = direction.detail["norm_before_matching"]
            for name, value in measurements.items():
                task.emit("metric_point", units[layer], name=name, step=0, value=float(value))
            task.done(units[layer])


def measure_vector_overlap(task: Task[VectorSpec, VectorOptions], origin: VectorOrigin) -> dict[str, Any]:
    """Return the overlap of the contrasted games with the model's training games, for the `detail` of the vectors."""
    if origin.games is None or not isinstance(task.spec, Contrast):
        return {}
    evaluated_games = overlap.EvaluatedGames.from_items(origin.games.games, origin.games.places)
    measured_overlap = overlap.measure_overlap(task.inputs, task.spec.model(task.inputs), evaluated_games)
    return {"overlap": {"checkpoint": measured_overlap.columns()}}


def publish_vector(
    task: Task[VectorSpec, VectorOptions],
    origin: VectorOrigin,
    unit: int,
    layer: int,
    direction: Direction,
    more: dict[str, Any],
) -> None:
    """Publish the vector of one layer as an artifact (safetensors and meta.json), and its row.

    `more` is added to meta.json.
    """
    from safetensors.numpy import save_file

    spec = task.spec
    meta = {
        "hook_point": format_hook_point(layer, origin.hook_point),
        "layer": layer,
        "source": origin.source,
        "seed": spec.seed,
        **origin.detail,
        **direction.compute_side_norms(),
        **direction.detail,
        **more,
    }
    if direction.sums is not None and task.options.keep_sums:
        assert origin.games is not None
        with task.output(f"sums-{layer}", unit, "sums") as folder:
            save_file({"sums": direction.sums, "places": origin.games.places}, folder / "sums.safetensors")
    task.publish_layer(
        "vector",
        unit,
        direction.tensors(),
        meta,
        checkpoint_id=origin.checkpoint_id,
        source=origin.source,
        positions=origin.sites,
        norm=direction.norm,
    )
