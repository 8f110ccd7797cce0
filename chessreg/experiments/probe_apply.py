"""`probe-apply`: fitted probes, trained by chessreg or imported, applied to other games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.experiments.probe.data import Labelling, ProbeData, RowSelection
from chessreg.experiments.probe.spec import ProbeScore, ReadRow, get_shared_settings
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import select_cached_items
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.games.boards.moves import HashSet
from chessreg.games.datasets.labels import get_label
from chessreg.models.hook_points import to_hook_pattern
from chessreg.registry import tables
from chessreg.runs.activations import CachedActivations, load_cache
from chessreg.runs.fitted import FittedProbe, load_probe, read_probe_rows, select_cached_layers
from chessreg.runs.inputs import Inputs, is_fitted_probe
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import ExecutionOptions, Layers, Ref, Spec

if TYPE_CHECKING:
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.task import Task


class ApplySpec(Spec):
    probe: Annotated[str, Ref("run:probe")] = Field(description="the fitted probes")
    cache: Annotated[str, Ref("run:cache")] = Field(description="activations of other games of the same model")
    layers: Layers = Field((), description="layers, 0-based. Left out: all that are fitted and cached")
    skip_sites: int | None = Field(
        None,
        ge=0,
        description="skip this many token positions at the start of each game. Left out: as the probe was fitted",
    )
    max_sites: int | None = Field(
        None, ge=1, description="keep only the first N token positions of each game. Left out: as the probe was fitted"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP


class ProbeApply(Kind):
    """Readings of fitted probes on other games: boards scored as on test games, skill classes counted without labels.

    Skill needs no true labels. The metrics `share_of_positions`, `share_of_games_by_vote` and `share_of_games_by_mean`
    have the share of each class (step: the class, 0 the lowest). Karvonen 2024, section 4.3, reports that 99.4 % of
    games from random openings are read as low skill, without naming the unit. One unit is one layer.
    """

    name = "probe-apply"
    example = "--probe reference-board --cache reference-test"
    tables = ("score", "prediction", "metric_point")
    spec = ApplySpec
    columns = {"score": ProbeScore, "prediction": ReadRow}  # noqa: RUF012

    def units(self, spec: ApplySpec, inputs: Inputs) -> int:
        return len(resolve_applied_layers(spec, inputs))

    def estimate(self, spec: ApplySpec, inputs: Inputs) -> RunEstimate:
        run, probe = (
            inputs.run(spec.cache, "cache"),
            load_probe(inputs, spec.probe, resolve_applied_layers(spec, inputs)[0]),
        )
        rows = self.units(spec, inputs) * run.units
        caches: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
        positions = self.units(spec, inputs) * sum(cache.rows for cache in caches)
        operations = 2.0 * positions * probe.weight.size
        return RunEstimate(
            {"score" if get_label(probe.label).source == "position" else "prediction": rows}, operations=operations
        )

    def check(self, spec: ApplySpec, inputs: Inputs) -> None:
        run = inputs.run(spec.cache, "cache")
        games, places = select_cached_items(inputs, spec.cache)
        overlap.refuse_overlap(inputs, run.spec["checkpoint"], games, places, spec.allow_overlap)
        overlap.refuse_overlap(inputs, spec.probe, games, places, spec.allow_overlap, "the probe")
        probe = load_probe(inputs, spec.probe, resolve_applied_layers(spec, inputs)[0])
        row: tables.ActivationCache = inputs.rows(tables.ActivationCache, run)[0]
        if probe.weight.shape[0] != row.d_model:
            raise BadInputError(f"the probe reads d_model {probe.weight.shape[0]}, but the cache holds {row.d_model}")
        fit_checkpoint = inputs.rows(tables.ProbeRecord, inputs.run(spec.probe))[0].checkpoint_id
        if fit_checkpoint not in (None, row.checkpoint_id):
            raise BadInputError("the probe was fitted on another checkpoint than that of the cache")
        is_centring_needed(probe, load_cache(inputs, spec.cache, pattern=to_hook_pattern(probe.hook_point)))

    def run(self, task: Task[ApplySpec, ExecutionOptions]) -> None:
        from chessreg.experiments.probe.reading import prepare_reading
        from chessreg.models.devices import prepare_device

        spec, inputs = task.spec, task.inputs
        device = prepare_device(task.options.device, task.options.threads)
        layers = resolve_applied_layers(spec, inputs)
        probe = load_probe(inputs, spec.probe, layers[0])
        data = load_applied_data(spec, inputs, probe)
        fitted_positions = load_fitted_positions(spec, inputs)
        fit_positions = None if fitted_positions is None else HashSet(fitted_positions)
        emit_applied_overlap(task, data)
        for unit in task.units:
            probe = load_probe(inputs, spec.probe, layers[unit])
            centre = is_centring_needed(probe, data.cache)
            probe, read_data = prepare_reading(inputs, spec.probe, probe, data)
            if get_label(probe.label).source == "position":
                emit_scores(task, unit, probe, read_data, fit_positions, centre, device)
            else:
                emit_reads(task, unit, probe, read_data, centre, device)
            task.done(unit)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.probe.board_views import build_reading_frames
        from chessreg.experiments.probe.reading import prepare_reading

        spec = ApplySpec(**inputs.read_spec(row))
        if row.get("item") is None:
            return []
        probe = load_probe(inputs, spec.probe, resolve_applied_layers(spec, inputs)[int(row["unit"])])
        data = load_applied_data(spec, inputs, probe, game=int(row["item"]))
        centre = is_centring_needed(probe, data.cache)
        return build_reading_frames(inputs, *prepare_reading(inputs, spec.probe, probe, data), int(row["item"]), centre)


def resolve_applied_layers(spec: ApplySpec, inputs: Inputs) -> tuple[int, ...]:
    """Return the layers to apply: those of the spec, or all that are both fitted and cached. Raises BadInputError."""
    return select_cached_layers(inputs, read_probe_rows(inputs, spec.probe), spec.cache, spec.layers)


def load_applied_data(spec: ApplySpec, inputs: Inputs, probe: FittedProbe, game: int | None = None) -> ProbeData:
    """Return the cache, with labels if the label is a function of the position."""
    fitted_rows = RowSelection.from_detail(probe.detail)
    selection = fitted_rows._replace(
        skip_sites=fitted_rows.skip_sites if spec.skip_sites is None else spec.skip_sites,
        max_sites=fitted_rows.max_sites if spec.max_sites is None else spec.max_sites,
        last_sites=fitted_rows.last_sites if spec.max_sites is None else None,
    )
    pattern = to_hook_pattern(probe.hook_point)
    return ProbeData.load(
        inputs,
        spec.cache,
        Labelling(probe.label, truth=False),
        "cache",
        selection=selection,
        game=game,
        pattern=pattern,
    )


def load_fitted_positions(spec: ApplySpec, inputs: Inputs) -> np.ndarray | None:
    """Return hashes of the positions that the probe was fitted on, uint64, or None if they are unknown."""
    run = inputs.run(spec.probe)
    if not is_fitted_probe(run.kind):
        return None
    fit = get_shared_settings(run.spec)
    data = ProbeData.load(
        inputs,
        fit.cache,
        Labelling(fit.label, truth=False),
        "fitted_on",
        selection=RowSelection.from_spec(fit),
        pattern=fit.hook_point,
    )
    return data.positions[data.rows & ~data.draw_held_out(fit.validation, fit.seed, fit.split)]


def is_centring_needed(probe: FittedProbe, cache: CachedActivations) -> bool:
    """Return whether the mean over d_model must be subtracted from the cache's residuals: the probe was fitted on
    centred residuals, as Karvonen's were, and the cache holds raw ones.

    Raises BadInputError for a probe of raw residuals on a cache of centred ones, which have lost their mean.
    """
    if cache.centred and not probe.centred:
        raise BadInputError("the probe was fitted on raw residuals, but the cache holds centred ones")
    return probe.centred and not cache.centred


def emit_applied_overlap(task: Task[ApplySpec, ExecutionOptions], data: ProbeData) -> None:
    """Emit the overlap of the games with those behind the model and the probe, as metrics of the first unit.

    Unknown counts have no metric.
    """
    if 0 not in task.units:
        return
    inputs, spec = task.inputs, task.spec
    evaluated_games = data.select_evaluated(data.rows)
    for name, reference in (("checkpoint", data.cache.checkpoint), ("probe", spec.probe)):
        measured_overlap = overlap.measure_overlap(inputs, reference, evaluated_games, task.progress)
        for item_name in ("games", "openings", "positions"):
            value = getattr(measured_overlap, item_name)
            if value is not None:
                task.emit("metric_point", 0, name=f"overlap_{name}_{item_name}", step=0, value=float(value))


def emit_scores(
    task: Task[ApplySpec, ExecutionOptions],
    unit: int,
    probe: FittedProbe,
    data: ProbeData,
    fit_positions: Any,
    centre: bool,
    device: str,
) -> None:
    """Emit a score row per game, as on the test games of a probe run."""
    from chessreg.experiments.probe.reading import build_score_columns, score_probe

    majority = np.array(probe.detail.get("majority", data.find_majority_classes(data.rows)), np.int8)
    for game_score in score_probe(probe.reader(device), data, data.rows, probe.layer, device, centre):
        columns = build_score_columns(game_score, data, probe.layer, probe.label, majority, fit_positions, None)
        task.emit(
            "score", unit, columns, split="test", item=game_score.game, layer=probe.layer,
            n=game_score.n, correct=game_score.correct, counts=game_score.counts,
        )  # fmt: skip


def emit_reads(
    task: Task[ApplySpec, ExecutionOptions], unit: int, probe: FittedProbe, data: ProbeData, centre: bool, device: str
) -> None:
    """Emit a prediction row per game, and the share of games and positions read as each class."""
    from chessreg.experiments.probe.reading import iterate_game_logits

    classes = probe.weight.shape[-1] if get_label(probe.label).source == "skill" else 0
    shares = np.zeros((3, classes))
    for logits in iterate_game_logits(probe.reader(device), data, data.rows, probe.layer, device, centre):
        columns: dict[str, Any] = {}
        if classes:
            read_counts = np.bincount(logits.logits[:, 0].argmax(-1), minlength=classes)
            vote, mean = int(read_counts.argmax()), int(logits.logits[:, 0].mean(0, dtype=np.float64).argmax())
            shares[0] += read_counts
            shares[1, vote] += 1
            shares[2, mean] += 1
            value = float(vote)
            columns = {
                "lowest": int(read_counts[0]),
                "highest": int(read_counts[-1]),
                "vote_class": vote,
                "mean_class": mean,
            }
        elif "std" in probe.detail:
            value = float(logits.logits.mean(dtype=np.float64)) * probe.detail["std"] + probe.detail["mean"]
        else:
            raise BadInputError("the probe's file does not contain the mean and standard deviation of its ratings")
        row = ReadRow(
            layer=probe.layer, hook_point=probe.hook_point, label=probe.label, positions=len(logits.rows), **columns
        )
        task.emit("prediction", unit, row, item=logits.game, name=f"{probe.label}:{probe.layer}", value=value)
    names = ("share_of_positions", "share_of_games_by_vote", "share_of_games_by_mean")
    for name, counts in zip(names, shares, strict=True):
        for k, count in enumerate(counts.tolist()):
            task.emit("metric_point", unit, name=name, step=k, value=count / counts.sum())
