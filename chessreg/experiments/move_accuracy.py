"""`move-accuracy`: how often a model finds the best move of unseen positions, and how often it writes legal moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.encodings.fen77 import Fen77
from chessreg.errors import BadInputError
from chessreg.experiments.legality import format_choice
from chessreg.experiments.settings.decisions import Decisions, load_decisions
from chessreg.experiments.settings.returns import (
    ReturnMetrics,
    ScoredDecisions,
    ScoredStates,
    compute_move_metrics,
    compute_state_metrics,
    compute_value_metrics,
    load_scored_decisions,
    load_scored_states,
)
from chessreg.games.boards.boardframe import BoardFrame, Role
from chessreg.models.checkpoint import read_info
from chessreg.models.decoding.policies import ModelTurn, choose_moves, make_policy
from chessreg.noise import Stream
from chessreg.registry import tables
from chessreg.runs.cost import LEGAL_MOVE_TOKENS, count_reading_operations
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef, DatasetRef, ExecutionOptions, Ref, Spec
from chessreg.steering import interventions
from chessreg.steering.interventions import InterventionSettings, select_vector_rows

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.encodings.base import Ids
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

MOVE_ROW_NAME = "best move"  # the name of the rows
GREEDY = "free"


class MoveAccuracySpec(Spec):
    checkpoint: CheckpointRef = Field(description="the model, of positions or of games")
    dataset: DatasetRef = Field(
        description="positions with a best move, or with the win probability of every legal move or of the position "
        "(ChessBench's action and state values), or one part of them (NAME:PART)"
    )
    source_games: Annotated[str | None, Ref("dataset")] = Field(
        None,
        description="games of these positions, needed by a model of games; other positions are dropped. Left out: all "
        "positions",
    )
    unseen_of: Annotated[str | None, Ref("dataset")] = Field(
        None,
        description="games or positions to exclude: positions (pieces, side to move, castling, en passant) that are "
        "among these, or of these games. Left out: nothing is excluded",
    )
    positions: int = Field(50_000, ge=1, description="at most this many positions, the first in file order")
    intervention: InterventionSettings = Field(
        default_factory=InterventionSettings, description="intervention on the model"
    )


class MoveAccuracyOptions(ExecutionOptions):
    forward_positions: int = Field(128, ge=1, description="positions in one forward pass")


class MoveRow(BaseModel):
    """Columns of a position. The name is `best move`, item the position's row in the dataset, value the cross-entropy
    of the best move in nats, and text the model's answer. If the model cannot read the position, only `ply` is set."""

    ply: int | None = Field(None, description="plies before the position")
    best: bool | None = Field(None, description="whether the greedy answer, among all possible texts, is the best move")
    legal_best: bool | None = Field(None, description="whether the most probable legal move is the best move")
    valid: bool | None = Field(None, description="whether the greedy answer has the form of a move")
    legal: bool | None = Field(None, description="whether it is a legal move")
    mass: float | None = Field(None, description="exact probability of a legal move in canonical spelling")
    rank: int | None = Field(None, description="rank of the best move among the legal ones; 1: the most probable")
    legal_moves: int | None = Field(None, description="legal moves of the position")
    chosen: str | None = Field(None, description="the most probable legal move, UCI")
    tokens: int | None = Field(None, description="tokens of the best move")
    best_uci: str | None = Field(
        None, description="the best move by win probability, UCI, if the dataset has win probabilities"
    )
    top: bool | None = Field(None, description="whether the model's first legal move has the highest win probability")
    log_loss: float | None = Field(None, description="in bits, of the returns or of the best move (Ruoss et al. 2024)")
    entropy: float | None = Field(None, description="of the predicted distributions, in bits")
    tau: float | None = Field(None, description="Kendall's τ-b between the orders of the legal moves")
    tau_argsort: float | None = Field(None, description="the value that DeepMind's code reports as Kendall's τ")
    l2: float | None = Field(None, description="mean squared error of the moves' win probabilities")
    consistency: float | None = Field(
        None, description="squared difference between a state's predicted return and that of its best move"
    )
    intervention_id: str | None = Field(None, description="the intervention on the model, hex")


class MoveAccuracy(Kind):
    """Best move, legality and cross-entropy on positions with a known best move, for a model of any encoding.

    The move is greedy over everything that the model can write, and again renormalized over the legal moves. *Valid*
    and *legal* are defined as in Junkin 2025. Cross-entropy is the sum over a move's tokens, in nats, which is
    comparable between encodings. Runs with the same dataset and number of positions use the same positions, so their
    differences are paired. One unit is one game.

    A dataset with the win probability of every legal move also gives the metrics of Ruoss et al. 2024: action accuracy,
    Kendall's τ, log loss in bits and, for a model of values, the L2 error of win probabilities. If a dataset has only
    the win probability of each position, a model of values is measured by log loss and L2 error.
    """

    name = "move-accuracy"
    main_settings = (
        "positions",
        "source_games",
        "unseen_of",
        "intervention.vector",
        "intervention.layers",
        "intervention.scale",
        "intervention.control",
    )
    example = "--checkpoint fen --dataset puzzles --positions 8"
    tables = ("prediction",)
    spec = MoveAccuracySpec
    options = MoveAccuracyOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": MoveRow}
    queries = ("move accuracy by model", "mask ablation", "value prediction by model")

    def units(self, spec: MoveAccuracySpec, inputs: Inputs) -> int:
        return int(select_decisions(spec, inputs).number_games().max()) + 1

    def estimate(self, spec: MoveAccuracySpec, inputs: Inputs) -> RunEstimate:
        positions = len(select_decisions(spec, inputs))
        operations = count_reading_operations(spec.checkpoint, inputs, positions, positions * LEGAL_MOVE_TOKENS)
        return RunEstimate({"prediction": positions}, operations=operations)

    def check(self, spec: MoveAccuracySpec, inputs: Inputs) -> None:
        """Raise an error for a model of games without the games of the positions, for a model of moves on positions
        without best moves, and for a vector of another model."""
        checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        if inputs.encoding(spec.checkpoint).content == "history" and spec.source_games is None:
            raise BadInputError(
                "a model of games reads the game before a position, and these games are unknown",
                "give --source-games DATASET, the games of the positions",
            )
        head = read_info(folder).head
        from chessreg.models.adapters.base import VALUE_HEADS

        if head not in VALUE_HEADS and isinstance(select_decisions(spec, inputs), ScoredStates):
            raise BadInputError(
                f"--dataset has win probabilities of positions and no best moves, and a model with the head {head} "
                "predicts no win probability",
                "give a model of values, or positions with a best move",
            )
        if spec.intervention.active:
            select_vector_rows(spec.intervention, checkpoint, inputs)

    def run(self, task: Task[MoveAccuracySpec, MoveAccuracyOptions]) -> None:
        spec, inputs = task.spec, task.inputs
        model, selection = task.model(spec.checkpoint), select_decisions(spec, inputs, has_check=True)
        intervention = interventions.load_intervention(spec.intervention, inputs.checkpoint(spec.checkpoint)[0], inputs)
        if intervention is not None:
            task.record("intervention", **intervention.row)
        edits = intervention.build_edits(str(model.device)) if intervention else ()
        intervention_id = intervention.id.hex if intervention else None
        group = selection.number_games()
        order = np.argsort(group, kind="stable")
        ends = np.append(0, np.cumsum(np.bincount(group)))
        plies = selection.read_columns("ply")["ply"]
        for units in group_games_by_positions(task.units, ends, 16 * task.options.forward_positions):
            task_order = np.concatenate([order[ends[unit] : ends[unit + 1]] for unit in units])
            part = selection.select(task_order)
            verdicts: dict[int, Verdict | StateVerdict] = (
                dict(judge_states(model, part, task.options.forward_positions, edits))
                if isinstance(part, ScoredStates)
                else dict(judge_decisions(model, part, task.options.forward_positions, edits))
            )
            for number, place in enumerate(task_order.tolist()):
                columns = {"item": int(selection.places[place]), "name": MOVE_ROW_NAME, "text": None, "value": None}
                extra = MoveRow(ply=int(plies[place]), intervention_id=intervention_id)
                if (verdict := verdicts.get(number)) is not None:
                    if isinstance(verdict, Verdict):
                        columns |= {"text": verdict.text[:32], "value": verdict.nats}
                    extra = MoveRow(ply=int(plies[place]), intervention_id=intervention_id, **verdict.columns)
                if isinstance(selection, ScoredDecisions):
                    extra.best_uci = selection.best[place]
                task.emit("prediction", int(group[place]), extra, **columns)
            task.done(*units)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return a board for each position of a game, with the model's move and the best move as arrows."""
        spec = MoveAccuracySpec(**inputs.read_spec(row))
        items, _ = inputs.items(spec.dataset)
        rows = inputs.read_unit_rows(tables.Prediction, row, tables.Prediction.item)
        positions = items.take([one.item for one in rows], ["fen", "best"]).to_pylist()
        return [build_accuracy_frame(one, position) for one, position in zip(rows, positions, strict=True)]


def build_accuracy_frame(row: tables.Prediction, position: Mapping[str, str]) -> BoardFrame:
    """Return the board of one position, with the model's move and the best move as arrows.

    `position` is its row of the dataset: `fen`, and `best` in UCI.
    """
    board, extra = chess.Board(position["fen"]), row.detail or {}
    title, is_flipped = f"position {row.item}", board.turn == chess.BLACK
    best_uci = extra.get("best_uci") or position["best"]
    if best_uci is None:
        return build_value_frame(board, title, extra, is_flipped)
    best_move = chess.Move.from_uci(best_uci)
    arrows: list[tuple[int, int, float, str, Role]] = [
        (best_move.from_square, best_move.to_square, 0.4, f"{board.san(best_move)} (best)", "best")
    ]
    if extra.get("chosen") is None:
        caption = ["the model cannot read this position"]
        return BoardFrame.from_board(board, title, arrows=arrows, caption=caption, flipped=is_flipped)
    chosen_move = chess.Move.from_uci(extra["chosen"])
    if chosen_move != best_move:
        arrows.insert(
            0, (chosen_move.from_square, chosen_move.to_square, 1.0, f"{board.san(chosen_move)} (model)", "played")
        )
    legal = "legal" if extra["legal"] else "illegal"
    caption = [
        f"the model writes {row.text!r}: {legal}; its most probable legal move is {board.san(chosen_move)}",
        f"best {board.san(best_move)}: rank {extra['rank']} of {extra['legal_moves']}, {row.value:.2f} nats",
        f"legal mass {extra['mass']:.3f}",
    ]
    return BoardFrame.from_board(board, title, arrows=arrows, caption=caption, flipped=is_flipped)


def build_value_frame(board: chess.Board, title: str, extra: Mapping[str, Any], is_flipped: bool) -> BoardFrame:
    """Return the board of a position for which only the win probability is known, with the model's move."""
    chosen_move = chess.Move.from_uci(extra["chosen"])
    arrow: tuple[int, int, float, str, Role] = (
        chosen_move.from_square,
        chosen_move.to_square,
        1.0,
        f"{board.san(chosen_move)} (model)",
        "played",
    )
    caption = [f"log loss {extra['log_loss']:.2f} bits, squared error of the win probability {extra['l2']:.4f}"]
    return BoardFrame.from_board(board, title, arrows=[arrow], caption=caption, flipped=is_flipped)


def select_decisions(spec: MoveAccuracySpec, inputs: Inputs, has_check: bool = False) -> Decisions:
    """Return the positions of the run, in file order.

    Raises BadInputError if no position is left, and with `has_check` if a position differs from its game.
    """
    scored_decisions = None
    if not spec.source_games:
        scored_decisions = load_scored_decisions(inputs, spec.dataset, "dataset") or load_scored_states(
            inputs, spec.dataset, "dataset"
        )
    selection = scored_decisions or load_decisions(
        inputs, spec.dataset, spec.source_games, "dataset", "source_games", has_check
    )
    if spec.unseen_of is not None:
        position_hashes = selection.positions.position_hashes[selection.places]
        selection = selection.select(~np.isin(position_hashes, load_seen_hashes(spec, inputs)))
        if not len(selection):
            raise BadInputError("--unseen-of contains every position", "give another dataset")
    inputs.note_shortage(spec, "positions", len(selection))
    return selection.select(np.arange(min(spec.positions, len(selection))))


def load_seen_hashes(spec: MoveAccuracySpec, inputs: Inputs) -> np.ndarray:
    """Return the positions of `unseen_of`, uint64 [n], hashed as in `Positions.position_hashes`."""
    assert spec.unseen_of is not None
    items, part = inputs.items(spec.unseen_of, "unseen_of")
    if items.content == "positions":
        return items.position_hashes[items.rows(part)]
    dataset_reference = spec.dataset.partition("[")[
        0
    ]  # the whole dataset, because another part may have positions of those games
    other = load_decisions(inputs, dataset_reference, spec.unseen_of, "dataset", "unseen_of", has_check=False)
    return other.positions.position_hashes[other.places]


def group_games_by_positions(units: Sequence[int], ends: np.ndarray, most: int) -> Iterator[list[int]]:
    """Yield the units in order, grouped so that a group has at most `most` positions."""
    group_units: list[int] = []
    count = 0
    for unit in units:
        position_count = int(ends[unit + 1] - ends[unit])
        if group_units and count + position_count > most:
            yield group_units
            group_units, count = [], 0
        group_units.append(unit)
        count += position_count
    if group_units:
        yield group_units


# -- verdicts of a model
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The result of a model on one decision, with the fields of `MoveRow`. `nats` is the cross-entropy of the best
    move, and `text` the model's answer."""

    text: str
    nats: float
    tokens: int
    best: bool
    legal_best: bool
    valid: bool
    legal: bool
    mass: float
    rank: int
    legal_moves: int
    chosen: str
    metrics: ReturnMetrics | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of `MoveRow`."""
        fields = {name: value for name, value in vars(self).items() if name not in ("text", "nats", "metrics")}
        return fields | (self.metrics.columns if self.metrics else {})


@dataclass(frozen=True)
class StateVerdict:
    """The result for a position with a known win probability of its own, but of no move. The fields are columns of
    `MoveRow`."""

    legal_moves: int
    chosen: str
    metrics: ReturnMetrics

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of `MoveRow` that a verdict on a win probability fills."""
        return {"legal_moves": self.legal_moves, "chosen": self.chosen} | self.metrics.columns


def judge_states(
    model: LanguageModel, selection: ScoredStates, batch: int, edits: Sequence[ResidualEdit] = ()
) -> Iterator[tuple[int, StateVerdict]]:
    """Yield (index, verdict) of each position of `selection` that has a legal move, in order.

    `batch` positions are read per pass, with `edits`.
    """
    from chessreg.models.decoding.values import score_moves

    fens = selection.read_columns("fen")["fen"]
    for start in range(0, len(fens), batch):
        boards = [chess.Board(fen) for fen in fens[start : start + batch]]
        for number, values in enumerate(score_moves(model, boards, edits), start):
            if values.moves:
                best_uci = values.moves[int(values.returns.argmax())].uci()
                metrics = compute_state_metrics(values, float(selection.returns[number]))
                yield number, StateVerdict(len(values.moves), best_uci, metrics)


def judge_decisions(
    model: LanguageModel, selection: Decisions, batch: int = 128, edits: Sequence[ResidualEdit] = ()
) -> Iterator[tuple[int, Verdict]]:
    """Yield (index, verdict) of each decision of `selection`, in any order. Decisions that the model cannot read are
    left out.

    `batch` is the number of session rows. A model of games reads each game once: each row of a session is a game, and
    continues from decision to decision. `edits` apply to every pass.
    """
    from chessreg.models.decoding.session import open_decoding_session

    encoding = model.encoding
    room = model.block_size - encoding.max_move_tokens + 1
    prompts = [
        () if prompt is None or len(prompt) > room else prompt for prompt in selection.encode_prompts(encoding)
    ]  # left out: no prompt, or a prompt that is too long
    table = selection.read_columns("fen", "best")
    for rows in plan_rounds(selection, encoding, batch):
        session = open_decoding_session(model, max(map(len, rows)), edits)
        for row_group in rows:
            decision_of = {row: k for row, k in enumerate(row_group) if k >= 0 and prompts[k]}
            if not decision_of:
                continue
            session.sync(
                [prompts[decision_of[row]] if row in decision_of else old for row, old in enumerate(session.tokens)]
            )
            boards = [chess.Board(table["fen"][number]) for number in decision_of.values()]
            best_moves = [chess.Move.from_uci(table["best"][number]) for number in decision_of.values()]
            known_returns = selection.returns if isinstance(selection, ScoredDecisions) else None
            returns = [known_returns[number] if known_returns else None for number in decision_of.values()]
            verdicts = build_verdicts(session, encoding, list(decision_of), boards, best_moves, returns)
            yield from zip(decision_of.values(), verdicts, strict=True)


def plan_rounds(selection: Decisions, encoding: Encoding, batch: int) -> Iterator[list[list[int]]]:
    """Yield the decisions (indices) of one session, round after round.

    Positions need one round. Games have a row each, with its decisions in the order of their plies; -1 marks a row
    without further decisions.
    """
    if encoding.content == "position":
        for start in range(0, len(selection), batch):
            yield [list(range(start, min(start + batch, len(selection))))]
        return
    group, ply = selection.number_games(), selection.ply
    assert ply is not None
    order = np.lexsort((ply, group))
    games = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    games.sort(key=len, reverse=True)
    size = max(1, batch // 4)  # a row of a session holds a tree of answers
    for start in range(0, len(games), size):
        game_part = games[start : start + size]
        yield [[int(game[k]) if k < len(game) else -1 for game in game_part] for k in range(len(game_part[0]))]


def build_verdicts(
    session: Any,
    encoding: Encoding,
    rows: Sequence[int],
    boards: Sequence[chess.Board],
    best_moves: Sequence[chess.Move],
    returns: Sequence[np.ndarray | None],
) -> list[Verdict]:
    """Return the verdicts of the rows of a session that hold these boards. `returns` come from
    a `ScoredDecisions`."""
    from chessreg.models.decoding.legal import score_legal_moves, sum_legal_mass

    score_rows = score_legal_moves(session, boards, encoding, rows)
    policy = make_policy(GREEDY, (0.0,), resigns=False)
    turns = [ModelTurn(row, board, (Stream.BEST_MOVE, row)) for row, board in zip(rows, boards, strict=True)]
    verdicts = []
    choices = choose_moves(policy, session, encoding, turns)
    for row, board, move, logprobs, choice, known_return in zip(
        rows, boards, best_moves, score_rows, choices, returns, strict=True
    ):
        text = format_choice(choice, board)
        best_nats, most = logprobs[move.uci()], max(sorted(logprobs), key=lambda uci: logprobs[uci])
        verdicts.append(Verdict(
            text=text,
            nats=-best_nats,
            tokens=len(encoding.answer(board, move)),
            best=choice.move == move,
            legal_best=most == move.uci(),
            valid=choice.move is not None or has_form(encoding, choice.ids),
            legal=choice.move is not None,
            mass=min(sum_legal_mass(logprobs), 1.0),
            rank=1 + sum(value > best_nats for value in logprobs.values()),
            legal_moves=len(logprobs),
            chosen=most,
            metrics=None if known_return is None else compute_return_metrics(session, row, logprobs, known_return),
        ))  # fmt: skip
    return verdicts


def compute_return_metrics(session: Any, row: int, logprobs: Mapping[str, float], returns: np.ndarray) -> ReturnMetrics:
    """Return the metrics of row `row` of a session. `logprobs`: legal move (UCI) → log-probability.

    `returns` are the known win probabilities of the legal moves, in the order of their actions.
    """
    from chessreg.models.decoding.session import ValueSession

    if isinstance(session, ValueSession):
        return compute_value_metrics(session.values(row), returns)
    sorted_moves = sorted(logprobs, key=Fen77().action_ids.__getitem__)
    return compute_move_metrics(np.array([logprobs[move] for move in sorted_moves]), returns)


def has_form(encoding: Encoding, ids: Ids) -> bool:
    """Return whether tokens have the form of a move (`Encoding.forms`), with or without a token that ends a move."""
    has_stop = len(ids) > 0 and int(ids[-1]) in encoding.stop_ids | encoding.boundary_ids
    answer_ids = ids[:-1] if has_stop else ids
    return any(
        len(form) == len(answer_ids)
        and all(token in allowed_ids for token, allowed_ids in zip(answer_ids, form, strict=True))
        for form in encoding.forms
    )
