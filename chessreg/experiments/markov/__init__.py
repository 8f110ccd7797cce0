"""`markov`: test whether states after different move orders to one position are more alike than random states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import chess
import numpy as np
from pydantic import BaseModel, Field
from sqlalchemy import select as select_rows

from chessreg.errors import NotFoundError
from chessreg.experiments.cache import group_units, resolve_hook_points
from chessreg.experiments.markov.classes import Classes, find_classes
from chessreg.experiments.markov.spec import MarkovOptions, MarkovSpec
from chessreg.experiments.markov.states import PARTNER_NAMES, StoredStates, store_states
from chessreg.experiments.settings import overlap
from chessreg.games.boards.boardframe import BoardFrame
from chessreg.games.boards.moves import convert_packed_to_sans, unpack_moves
from chessreg.games.datasets.movetext import number_sans
from chessreg.models.hook_points import get_hook_layer
from chessreg.registry import tables
from chessreg.runs.cost import count_reading_operations
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate

if TYPE_CHECKING:
    from chessreg.experiments.markov.similarity import Population, SimilarityTest
    from chessreg.games.datasets.dataset import Games
    from chessreg.runs.task import Task


__all__ = ["Markov", "MarkovOptions", "MarkovSpec"]


CLASS = "class"  # the name of the rows that describe a class; the other rows of a class have the name of a hook point
COSINES = ("raw", "centred")


class MarkovClass(BaseModel):
    """Columns of a class. The row `class` has its move orders, and the row of a hook point has the cosines of its
    states there."""

    phase: str | None = Field(None, description="the phase of the last token")
    games: list[int] | None = Field(None, description="rows of the members' games in the dataset")
    plies: list[int] | None = Field(None, description="number of plies read of each of these games")
    layer: int | None = None
    excess: float | None = Field(None, description="mean cosine minus the population's")
    apart: float | None = Field(None, description="mean cosine of pairs whose last moves differ")
    same_last: float | None = Field(
        None, description="mean cosine with states on another board, with equal ply and last move"
    )
    nearest: float | None = Field(None, description="mean cosine with states whose board differs in one piece")
    centred: float | None = Field(None, description="mean cosine after the mean state of the phase is subtracted")
    centred_excess: float | None = None
    centred_apart: float | None = None
    centred_same_last: float | None = None
    centred_nearest: float | None = None


class MarkovTest(BaseModel):
    """The test at one hook point. The row's value is T; its p is (1 + at_least) / (1 + resamples)."""

    hook_point: str
    layer: int
    cosine: str = Field(description="raw, or centred: after the mean state of the phase is subtracted")
    classes: int
    reached: int = Field(description="positions that could have been chosen")
    within: float = Field(description="mean over classes of the mean cosine within a class")
    population: float = Field(description="mean cosine of random pairs of one phase, of the reference population")
    population_sd: float
    members_mean: float | None = Field(None, description="the same for pairs of the chosen move orders")
    members_sd: float | None = None
    null_mean: float = Field(description="mean of T over random sets of the classes' sizes")
    null_sd: float
    null_low: float = Field(description="its 2.5 % quantile")
    null_high: float = Field(description="its 97.5 % quantile")
    at_least: int = Field(description="random groupings with T at least as large")
    resamples: int
    d: float | None = Field(description="Cohen's d: (within - population) / population_sd")


class Markov(Kind):
    """Test whether a model's state depends on the position alone: compare states after different move orders.

    Davis 2026, section 4.5. Equivalent prefixes lead to one position. The mean cosine within such classes, minus
    that of random pairs, is tested against random sets of equal sizes at every hook point. A small p shows that
    equivalent prefixes are alike; it does not show that only the board matters. The controls therefore compare with
    other boards after the same last move, and with boards that differ in one piece. One unit is one position.
    """

    name = "markov"
    version = 2
    main_settings = (
        "layers",
        "hook_points",
        "games",
        "first_ply",
        "last_ply",
        "classes",
        "min_members",
        "max_members",
        "partner_controls",
        "resamples",
    )
    example = "--checkpoint reference --dataset sample:test --last-ply 20 --classes 8 --resamples 99"
    tables = ("prediction", "statistic", "metric_point")
    spec = MarkovSpec
    options = MarkovOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": MarkovClass, "statistic": MarkovTest}
    queries = ("markov by layer",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"games": 200_000, "equal": "placement", "max_members": 1000, "classes": 200_000, "resamples": 1000,
                  "hook_points": ("blocks.*.hook_resid_post",)},
    }  # fmt: skip

    def units(self, spec: MarkovSpec, inputs: Inputs) -> int:
        resolve_hook_points(spec, inputs)
        return len(find_classes(spec, inputs)[1])

    def check(self, spec: MarkovSpec, inputs: Inputs) -> None:
        games, classes = find_classes(spec, inputs)
        overlap.refuse_overlap(inputs, spec.checkpoint, games, list_class_games(classes), spec.allow_overlap)

    def estimate(self, spec: MarkovSpec, inputs: Inputs) -> RunEstimate:
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        points, (_, classes) = resolve_hook_points(spec, inputs), find_classes(spec, inputs)
        prefix_count, members = len(classes.list_needed_prefixes(0, len(classes))), len(classes.member)
        rows = {
            "prediction": len(classes) * (1 + len(points)),
            "statistic": len(points) * len(COSINES),
            "metric_point": len(points) * len(COSINES) * spec.resamples,
        }
        candidates_text = (
            f"{classes.candidate_count:,} positions are reached by at least {spec.min_members} move orders, "
            f"{classes.orders:,} orders in all; the run takes {len(classes):,} of them with {members:,} orders"
        )
        states = f"{prefix_count:,} states at {len(points)} hook points, including the partners of the controls"
        operations = count_reading_operations(spec.checkpoint, inputs, prefix_count)
        return RunEstimate(
            rows, prefix_count * len(points) * checkpoint.d_model * 4, (candidates_text, states), operations
        )

    def run(self, task: Task[MarkovSpec, MarkovOptions]) -> None:

        games, classes = find_classes(task.spec, task.inputs)
        points = resolve_hook_points(task.spec, task.inputs)
        model = task.model(task.spec.checkpoint)
        for low, high in group_units(task.units, task.options.group_classes):
            store_states(task, model, points, games, classes, low, high)
            for unit in range(low, high):
                emit_class(task, model.encoding.phases, games, classes, unit)
            task.done(*range(low, high))

    def reduce(self, task: Task[MarkovSpec, MarkovOptions]) -> None:
        """Compare the stored activations of the classes with both cosines, at every hook point, and emit the tests."""
        from chessreg.models.devices import prepare_device

        prepare_device("cpu", task.options.threads)
        games, classes = find_classes(task.spec, task.inputs)
        emit_markov_overlap(task, games, classes)
        checkpoint, _ = task.inputs.checkpoint(task.spec.checkpoint)
        points = resolve_hook_points(task.spec, task.inputs)
        stored_states = StoredStates(task, classes)
        for number, point in enumerate(points):
            states, tests_by_name = stored_states.read_hook_point(point), {}
            for place, cosine in enumerate(COSINES):
                share = (number + place / len(COSINES)) / len(points)
                task.progress(share, f"{point}, {cosine} cosines")
                tests_by_name[cosine] = compare_hook_point(task.spec, classes, states, cosine == "centred")
            emit_tests(task, classes, point, get_hook_layer(point, checkpoint.layers), tests_by_name)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        return build_order_frames(row, inputs)


def list_class_games(classes: Classes) -> np.ndarray:
    """Return the rows of the games whose prefixes the classes contain, ascending, int64."""
    return np.unique(classes.prefixes.game[classes.member])


def emit_markov_overlap(task: Task[MarkovSpec, MarkovOptions], games: Games, classes: Classes) -> None:
    """Emit the overlap of the members' games and positions with the model's training games."""
    member_prefixes = classes.prefixes.take(classes.member)
    evaluated_games = overlap.EvaluatedGames.from_items(
        games, list_class_games(classes), member_prefixes.game, member_prefixes.ply
    )
    measured_overlap = overlap.measure_overlap(task.inputs, task.spec.checkpoint, evaluated_games)
    for name, value in measured_overlap.columns().items():
        if isinstance(value, int):
            task.emit(
                "metric_point", task.resolved.units - 1, name=f"overlap/checkpoint/{name}", step=0, value=float(value)
            )


def emit_class(
    task: Task[MarkovSpec, MarkovOptions], phases: tuple[str, ...], games: Games, classes: Classes, unit: int
) -> None:
    """Emit the row of one class: its position, the number of its move orders, and their games and plies."""
    class_prefixes = classes.prefixes.take(classes.member[classes.number == unit])
    board = chess.Board()
    for move in unpack_moves(games.moves(class_prefixes.game[:1])[0][: 2 * int(class_prefixes.ply[0])]):
        board.push(move)
    extra = MarkovClass(
        phase=phases[int(class_prefixes.phase[0])],
        games=class_prefixes.game.tolist(),
        plies=class_prefixes.ply.tolist(),
    )
    text = board.board_fen() if task.spec.equal == "placement" else board.epd(en_passant="xfen")
    task.emit("prediction", unit, extra, item=unit, name=CLASS, text=text, value=float(len(class_prefixes)))


def compare_hook_point(
    spec: MarkovSpec, classes: Classes, states: Mapping[str, np.ndarray], centre: bool
) -> tuple[SimilarityTest, dict[str, np.ndarray], Population]:
    """Return the test of one hook point, the mean cosine of each class by control (float64 [classes], NaN without a
    partner), and the population of the members.

    `centre` subtracts the mean state of each phase first.
    """
    from chessreg.experiments.markov import similarity

    layout = similarity.Layout(classes.number, classes.prefixes.phase[classes.member])
    other_states = {name: other for name, other in states.items() if name != "member"}
    units, *other_units = similarity.normalize_states(states["member"], centre, layout, list(other_states.values()))
    units_of = dict(zip(other_states, other_units, strict=True))
    controls = {"apart": similarity.measure_differing_pairs(units, layout, classes.prefixes.move[classes.member])}
    for name in PARTNER_NAMES:
        controls[name] = similarity.measure_partners(units, units_of[name], layout)
    members = similarity.measure_population(units, layout)
    population = similarity.measure_population(units_of["reference"], layout) if "reference" in units_of else members
    test = similarity.run_similarity_test(units, layout, population, spec.resamples, spec.seed, spec.replacement)
    return test, controls, members


def emit_tests(
    task: Task[MarkovSpec, MarkovOptions],
    classes: Classes,
    point: str,
    layer: int,
    tests_by_name: Mapping[str, tuple[SimilarityTest, dict[str, np.ndarray], Population]],
) -> None:
    """Emit the rows of a hook point: one for each class, one for each test, and T of every random grouping."""
    unit = task.resolved.units - 1
    for cosine, (test, _, members) in tests_by_name.items():
        low, high = np.quantile(test.null, [0.025, 0.975])
        task.emit(
            "statistic",
            unit,
            MarkovTest(
                hook_point=point,
                layer=layer,
                cosine=cosine,
                classes=len(classes),
                reached=classes.candidate_count,
                within=float(test.class_similarities.mean()),
                population=test.population.mean,
                population_sd=test.population.deviation,
                members_mean=members.mean,
                members_sd=members.deviation,
                null_mean=float(test.null.mean()),
                null_sd=float(test.null.std(ddof=1)) if len(test.null) > 1 else 0.0,
                null_low=float(low),
                null_high=float(high),
                at_least=test.exceeding_count,
                resamples=len(test.null),
                d=test.d,
            ),
            name=f"{point} {cosine}",
            value=test.statistic,
            p=(1 + test.exceeding_count) / (1 + len(test.null)),
            n=len(classes.member),
        )
        for resample, value in enumerate(test.null.tolist()):
            task.emit("metric_point", unit, name=f"{point} {cosine}", step=resample, value=value)
    (raw, plain, _), (centred_test, centred_columns, _) = tests_by_name["raw"], tests_by_name["centred"]
    columns = {"excess": raw.class_similarities - raw.population.mean, **plain,
               "centred": centred_test.class_similarities,
               "centred_excess": centred_test.class_similarities - centred_test.population.mean,
               **{f"centred_{name}": values for name, values in centred_columns.items()}}  # fmt: skip
    for number in range(len(classes)):
        class_values = {name: float(values[number]) for name, values in columns.items() if np.isfinite(values[number])}
        extra = MarkovClass(layer=layer, **class_values)
        task.emit(
            "prediction", unit, extra, item=number, name=point, text=None, value=float(raw.class_similarities[number])
        )


def build_order_frames(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return one board for each move order to the position of a class. Raises NotFoundError for a unit that is not a
    class."""
    run_id, prediction = UUID(str(row["run_id"])), tables.Prediction
    with inputs.database.read() as session:
        statistics = session.scalars(
            select_rows(prediction).where(
                prediction.run_id == run_id, prediction.unit == int(row["unit"]), prediction.name == CLASS
            )
        ).one_or_none()
        spec = MarkovSpec(**session.get_one(tables.Run, run_id).spec)
        extra: dict[str, Any] = dict(statistics.detail or {}) if statistics else {}
    if not extra:
        raise NotFoundError(f"unit {row['unit']} is not a position", 'chessreg query "markov by layer" --rows 1')
    games, _ = inputs.dataset(spec.dataset)
    views = []
    orders = list(zip(extra["games"], extra["plies"], strict=True))
    for number, (game, ply) in enumerate(orders, 1):
        packed_moves = games.moves([game])[0][: 2 * ply]
        board = chess.Board()
        for move in unpack_moves(packed_moves):
            board.push(move)
        title = f"position {row['unit']}: move order {number} of {len(orders)}, game {game}"
        views.append(BoardFrame.from_board(board, title, caption=(number_sans(convert_packed_to_sans(packed_moves)),)))
    return views
