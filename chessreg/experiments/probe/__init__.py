"""`probe`: linear probes on cached activations, for all layers and squares in one pass over the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.experiments.probe.spec import DAVIS, FIT_STATES, PAPER, ProbeOptions, ProbeScore, ProbeSpec, RatingRow
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import select_cached_items
from chessreg.experiments.settings.skill import load_skill_classes
from chessreg.games.datasets.labels import get_label
from chessreg.registry import tables
from chessreg.runs.activations import list_cached_layers, load_cache
from chessreg.runs.cost import count_probe_operations
from chessreg.runs.fitted import Reader, make_linear_reader
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from chessreg.experiments.probe.training import ProbeTraining
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.task import Task


__all__ = ["Probe", "ProbeOptions", "ProbeScore", "ProbeSpec"]


class Probe(Kind):
    """Linear probes of the board or of skill, one per layer, with a score for every game.

    Karvonen 2024, section 3: softmax regression of each square's content on the residual stream, without bias, with the
    loss summed over the squares. Skill: one prediction per position, either the class of a player's rating or, by
    regression, the rating itself. One unit is one layer. All missing layers are fitted in one pass over the cache.

    Davis 2026, section 4: the board at the tokens of one --phase, read from one --hook-point; with --source also from
    the latents of SAEs, and by differences of means.
    """

    name = "probe"
    version = 2
    main_settings = (
        "label",
        "layers",
        "test_cache",
        "shuffled_label_control",
        "epochs",
        "learning_rate",
        "batch_positions",
        "skip_sites",
        "phase",
        "sae",
    )
    example = "--cache reference-fit --test-cache reference-test --epochs 2"
    tables = ("score", "metric_point", "prediction")
    spec = ProbeSpec
    options = ProbeOptions
    columns = {"score": ProbeScore, "prediction": RatingRow}  # noqa: RUF012
    queries = ("probe accuracy by layer",)
    states = (FIT_STATES,)
    presets = {  # noqa: RUF012
        "paper": PAPER,
        "paper-skill": {**PAPER, "label": "skill", "skip_sites": 25, "max_sites": 33, "skill": {"strata": "pooled"}},
        "paper-rating": {
            "label": "rating", "skip_sites": 25, "epochs": 1, "batch_games": 5, "learning_rate": 3e-4, "init": 1.0,
            "normalize_activations": False,
        },
        **DAVIS,
    }  # fmt: skip

    def units(self, spec: ProbeSpec, inputs: Inputs) -> int:
        return len(resolve_probe_layers(spec, inputs))

    def estimate(self, spec: ProbeSpec, inputs: Inputs) -> RunEstimate:
        label, layers = get_label(spec.label), resolve_probe_layers(spec, inputs)
        run = inputs.run(spec.cache, "cache")
        test_share, remarks = run.units * spec.validation, []
        if spec.test_cache:
            test_share += inputs.run(spec.test_cache, "cache").units
        if label.source != "position":
            remarks = describe_skill(spec, inputs)
        rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
        size = rows[0].d_model * label.squares * max(len(label.classes), 1) * 4
        table = "prediction" if label.source == "rating" else "score"
        positions = sum(row.rows for row in rows) * spec.epochs * len(layers)
        operations = count_probe_operations(positions, label.squares * max(len(label.classes), 1), rows[0].d_model)
        return RunEstimate({table: int(test_share * len(layers))}, size * len(layers), tuple(remarks), operations)

    def check(self, spec: ProbeSpec, inputs: Inputs) -> None:
        """Raise an error if evaluated games are training games of the model, or test games are among the fitted
        games."""
        fit_items, *test_items = [select_cached_items(inputs, cache) for cache in list_probe_caches(spec)]
        checkpoints = [
            inputs.rows(tables.ActivationCache, inputs.run(c, "cache"))[0].checkpoint_id
            for c in list_probe_caches(spec)
        ]
        if len(set(checkpoints)) > 1:
            raise BadInputError("--cache and --test-cache hold activations of different checkpoints")
        checkpoint = str(inputs.run(spec.cache, "cache").spec["checkpoint"])
        for games, places in (fit_items, *test_items):
            overlap.refuse_overlap(inputs, checkpoint, games, places, spec.allow_overlap)
        for games, places in test_items:
            overlap.refuse_game_overlap([fit_items], games.hashes[places], spec.allow_overlap, "the probe")
        if spec.source != "residual" or spec.sae is not None or spec.expansion is not None:
            from chessreg.experiments.sae.probes import check_source

            check_source(inputs, spec, checkpoints[0], resolve_probe_layers(spec, inputs))
        if not (spec.phase is spec.last_sites is spec.alignment is spec.min_positions is None):
            check_row_selection(spec, inputs)

    def run(self, task: Task[ProbeSpec, ProbeOptions]) -> None:
        from chessreg.experiments.probe.work import ProbeWork

        ProbeWork(task, resolve_probe_layers(task.spec, task.inputs)).run_units()

    def fit(self, training: ProbeTraining) -> list[dict[str, np.ndarray]]:
        """Fit the probes of `training.layers`. Return one dict of float32 tensors per layer.

        `weight` [d_model, squares, classes] holds the direction of each class, which `edit` and `vector` add; for a
        linear probe it is the probe itself. A user's kind of probe overrides this method and `reader`.
        """
        from chessreg.experiments.probe.work import fit_probes

        return [{"weight": weight} for weight in fit_probes(training)]

    def reader(self, tensors: Mapping[str, np.ndarray], device: str) -> Reader:
        """Return the function from residuals float32 [n, d_model] to logits float32 [n, squares, classes].

        `tensors` are the tensors that `fit` returned for one layer.
        """
        return make_linear_reader(tensors["weight"], device)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.probe.board_views import build_score_frames

        return build_score_frames(row, inputs)


def check_row_selection(spec: ProbeSpec, inputs: Inputs) -> None:
    """Raise an error for a phase that the encoding does not have, or with too few positions in one of the caches."""
    from chessreg.experiments.probe.data import RowSelection, build_empty_selection_error, select_rows
    from chessreg.experiments.probe.rows import check_position_count

    selection = RowSelection.from_spec(spec)
    for field, reference in zip(("cache", "test_cache"), list_probe_caches(spec), strict=False):
        cache = load_cache(inputs, reference, field, spec.hook_point)
        is_usable, _, _ = select_rows(inputs, cache, selection)
        if not is_usable.any():
            raise build_empty_selection_error(inputs, cache, field, selection)
        if field == "cache":
            positions, games = int(is_usable.sum()), inputs.run(reference, "cache").units
            share = 1 - spec.validation
            encoding = inputs.encoding(cache.checkpoint)
            check_position_count(encoding, selection.phase, cache, round(positions * share), games, spec.min_positions)


def list_probe_caches(spec: ProbeSpec) -> list[str]:
    """Return the caches that a spec reads: the fitting cache, and the test cache if there is one."""
    return [spec.cache, *([spec.test_cache] if spec.test_cache else [])]


def describe_skill(spec: ProbeSpec, inputs: Inputs) -> list[str]:
    """Return remarks on the number of games of each skill class in the caches."""
    remarks, skill_report = [], None
    for name, reference in zip(("fit", "test"), list_probe_caches(spec), strict=False):
        _, places = select_cached_items(inputs, reference)
        dataset = inputs.run(reference, "cache").spec["dataset"]
        game_classes = load_skill_classes(inputs, dataset, places, spec.skill, spec.seed, skill_report)
        skill_report = skill_report or game_classes.report
        remarks.append(f"{name}: {game_classes.report}")
    return remarks


def resolve_probe_layers(spec: ProbeSpec, inputs: Inputs) -> tuple[int, ...]:
    """Return the layers to fit. Raises BadInputError for a layer that was not cached."""
    get_label(spec.label)
    cached_layers = list_cached_layers(inputs, spec.cache, spec.hook_point)
    if missing_layers := set(spec.layers) - set(cached_layers):
        raise BadInputError(
            f"layer {min(missing_layers)} is not in the cache", f"its layers are {', '.join(map(str, cached_layers))}"
        )
    return spec.layers or cached_layers
