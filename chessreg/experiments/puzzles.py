"""`puzzles`: chess puzzles that a model solves, by the first move and by the whole line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.errors import BadInputError
from chessreg.experiments.settings.choosing import ChoosingSpec
from chessreg.games.boards.boardframe import BoardFrame, Role
from chessreg.models.decoding.policies import ModelTurn, choose_moves, compute_distributions
from chessreg.noise import Stream
from chessreg.registry import tables
from chessreg.runs.cost import count_choosing_operations
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef, DatasetRef, ExecutionOptions
from chessreg.steering import interventions
from chessreg.steering.interventions import InterventionSettings, select_vector_rows

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.positions import Positions
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

COLUMNS = ["fen", "line", "rating"]


class PuzzlesSpec(ChoosingSpec):
    checkpoint: CheckpointRef = Field(description="the model, of positions")
    dataset: DatasetRef = Field(description="puzzles: positions with their solutions, or one part of them (NAME:PART)")
    puzzles: int = Field(10_000, ge=1, description="at most this many puzzles, the first in file order")
    policy: str = Field(
        "legal", description="how a move is chosen: legal, trie, retry:N, free (the greedy text) or value"
    )
    intervention: InterventionSettings = Field(
        default_factory=InterventionSettings, description="intervention on the model"
    )


class PuzzlesOptions(ExecutionOptions):
    batch_puzzles: int = Field(128, ge=1, description="puzzles in one forward pass")


class PuzzleRow(BaseModel):
    """Columns of a puzzle. The name is `line`, item its row in the dataset, value 1 if it is solved, else 0, and text
    the moves that the model chose. If the model cannot read the position, they are empty."""

    rating: int | None = Field(None, description="the puzzle's rating")
    first: bool | None = Field(None, description="whether the first move is the solution's, or mates")
    moves: int = Field(description="moves of the solver in the solution")
    right: int = Field(description="number of correct moves before the first wrong one")
    illegal: bool | None = Field(None, description="whether the last text was not a legal move")
    share: float | None = Field(None, description="probability of the solution's first move among the legal ones")
    mass: float | None = Field(None, description="exact probability of a legal move in the puzzle's position")
    intervention_id: str | None = Field(None, description="the intervention on the model, hex")


class Puzzles(Kind):
    """Puzzles solved by a model of positions: the first move, and the whole line, by rating.

    A move is correct if it is the solution's, or if it mates (Ruoss et al. 2024). After a correct move the opponent's
    reply in the solution is played. Models of games are refused, because puzzle files do not contain the games before
    the positions. One unit is one puzzle.
    """

    name = "puzzles"
    main_settings = (
        "puzzles",
        "policy",
        "temperatures",
        "intervention.vector",
        "intervention.layers",
        "intervention.scale",
        "intervention.control",
    )
    example = "--checkpoint fen --dataset puzzles --puzzles 8"
    tables = ("prediction",)
    spec = PuzzlesSpec
    options = PuzzlesOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": PuzzleRow}
    queries = ("puzzles by rating",)

    def units(self, spec: PuzzlesSpec, inputs: Inputs) -> int:
        return len(select_puzzles(spec, inputs)[1])

    def estimate(self, spec: PuzzlesSpec, inputs: Inputs) -> RunEstimate:
        puzzles = self.units(spec, inputs)
        operations = count_choosing_operations(
            spec.checkpoint, inputs, puzzles, 2 * puzzles
        )  # two moves of the solver each
        return RunEstimate({"prediction": puzzles}, operations=operations)

    def check(self, spec: PuzzlesSpec, inputs: Inputs) -> None:
        """Raise an error for a model of games, positions without solutions, and a vector of another model."""
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        encoding = inputs.encoding(spec.checkpoint)
        if encoding.content == "history":
            raise BadInputError(
                f"{encoding.name} writes games, but the games before these puzzles are unknown",
                "use a model of positions: --encoding fen-77, or prompts",
            )
        select_puzzles(spec, inputs)
        if spec.intervention.active:
            select_vector_rows(spec.intervention, checkpoint, inputs)

    def run(self, task: Task[PuzzlesSpec, PuzzlesOptions]) -> None:
        from chessreg.models.decoding.session import open_decoding_session

        spec, inputs = task.spec, task.inputs
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        model = task.model(spec.checkpoint)
        intervention = interventions.load_intervention(spec.intervention, checkpoint, inputs)
        if intervention is not None:
            task.record("intervention", **intervention.row)
        edits = intervention.build_edits(str(model.device)) if intervention else []
        positions, places = select_puzzles(spec, inputs)
        for start in range(0, len(task.units), task.options.batch_puzzles):
            units = task.units[start : start + task.options.batch_puzzles]
            puzzles = read_puzzles(positions, places[units])
            solve_puzzles(puzzles, model, open_decoding_session(model, len(puzzles), edits), spec)
            for unit, puzzle in zip(units, puzzles, strict=True):
                extra = puzzle.build_row(intervention.id if intervention else None)
                text = " ".join(puzzle.played_moves) or None
                task.emit("prediction", unit, extra, item=puzzle.place, name="line", text=text, value=puzzle.value)
            task.done(*units)
            task.progress(task.units_done / len(task.units), f"{task.units_done:,} puzzles")

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return a board for each move that the model chose, with its move and the solution's as arrows."""
        spec = PuzzlesSpec(**inputs.read_spec(row))
        [row_prediction] = inputs.read_unit_rows(tables.Prediction, row)
        [puzzle] = read_puzzles(inputs.positions(spec.dataset)[0], np.array([row_prediction.item]))
        return build_puzzle_frames(puzzle, (row_prediction.text or "").split(), row_prediction.detail or {})


def select_puzzles(spec: PuzzlesSpec, inputs: Inputs) -> tuple[Positions, np.ndarray]:
    """Return the dataset, and the rows of the positions with a solution, int64 [n], in file order.

    Raises BadInputError if no position has a solution.
    """
    positions, part = inputs.positions(spec.dataset)
    places = positions.rows(part)
    has_line = positions.take(places, ["line"])["line"].is_valid().to_numpy()
    if not has_line.any():
        raise BadInputError("none of these positions has a solution", "chessreg dataset add lichess-puzzles.csv")
    inputs.note_shortage(spec, "puzzles", int(has_line.sum()))
    return positions, places[has_line][: spec.puzzles]


@dataclass
class Puzzle:
    """The state of a puzzle while it is solved.

    `line` is the solution, beginning with the solver's move. `board` is the current position. `played_moves` has the
    moves that the model chose, or its text without blanks if it was not a legal move.
    """

    place: int
    board: chess.Board
    line: tuple[chess.Move, ...]
    rating: int | None
    played_moves: list[str] = field(default_factory=list)
    right_moves: int = 0
    is_over: bool = False
    is_readable: bool = True
    illegal: bool = False
    share: float | None = None
    mass: float | None = None

    @property
    def solver_moves(self) -> int:
        """The number of the solver's moves."""
        return (len(self.line) + 1) // 2

    @property
    def value(self) -> float | None:
        """1.0 if all moves were right, else 0.0; None for an unreadable position."""
        return float(self.right_moves == self.solver_moves) if self.is_readable else None

    def take(self, move: chess.Move | None, text: str) -> None:
        """Apply a chosen move, and the opponent's reply."""
        self.played_moves.append("_".join(text.split()) if move is None else move.uci())
        expected_move = self.line[2 * self.right_moves]
        self.illegal = move is None
        if move is None:
            self.is_over = True
            return
        mates = is_mating_move(self.board, move)
        if move != expected_move and not mates:
            self.is_over = True
            return
        if move != expected_move:  # another mate than the solution's: the puzzle ends as solved
            self.right_moves, self.is_over = self.solver_moves, True
            return
        self.right_moves += 1
        self.is_over = self.right_moves == self.solver_moves
        if not self.is_over:
            self.board.push(move)
            self.board.push(self.line[2 * self.right_moves - 1])

    def build_row(self, intervention: UUID | None) -> PuzzleRow:
        """Return the columns of the puzzle's row."""
        return PuzzleRow(
            rating=self.rating,
            first=self.right_moves > 0 if self.is_readable else None,
            moves=self.solver_moves,
            right=self.right_moves,
            illegal=self.illegal if self.is_readable else None,
            share=self.share,
            mass=self.mass,
            intervention_id=intervention.hex if intervention else None,
        )


def is_mating_move(board: chess.Board, move: chess.Move) -> bool:
    """Return whether a legal move mates."""
    after = board.copy(stack=False)
    after.push(move)
    return after.is_checkmate()


def read_puzzles(positions: Positions, places: np.ndarray) -> list[Puzzle]:
    """Return the puzzles at these rows of a dataset."""
    rows = positions.take(places, COLUMNS).to_pylist()
    return [
        Puzzle(
            place,
            chess.Board(row["fen"]),
            tuple(chess.Move.from_uci(word) for word in str(row["line"]).split()),
            row["rating"],
        )
        for place, row in zip(np.asarray(places).tolist(), rows, strict=True)
    ]


def solve_puzzles(puzzles: Sequence[Puzzle], model: LanguageModel, session: DecodingSession, spec: PuzzlesSpec) -> None:
    """Play all puzzles together, move after move, and store the model's moves in `puzzles`. Row r of the session
    belongs to puzzle r. A puzzle ends with the first wrong move."""
    encoding, policy, depth = model.encoding, spec.make_chooser(), 0
    while any(not puzzle.is_over for puzzle in puzzles):
        prompts, turns = [list(tokens) for tokens in session.tokens], []
        for row, puzzle in enumerate(puzzles):
            if puzzle.is_over:
                continue
            tokens = build_puzzle_prompt(puzzle, encoding, model.block_size)
            if tokens is None:
                puzzle.is_readable, puzzle.is_over = False, True
                continue
            prompts[row] = list(tokens)
            turns.append(ModelTurn(row, puzzle.board, (Stream.PUZZLES, spec.seed, puzzle.place, depth)))
        session.sync(prompts)
        if not depth:
            for turn, distribution in zip(turns, compute_distributions(session, encoding, turns), strict=True):
                puzzle = puzzles[turn.row]
                puzzle.share = distribution.shares()[puzzle.line[0].uci()]
                puzzle.mass = min(distribution.legal_mass, 1.0)
        for turn, choice in zip(turns, choose_moves(policy, session, encoding, turns), strict=True):
            puzzles[turn.row].take(choice.move, choice.illegal[-1] if choice.illegal else "")
        depth += 1


def build_puzzle_prompt(puzzle: Puzzle, encoding: Encoding, block_size: int) -> tuple[int, ...] | None:
    """Return the prompt of a puzzle; None if it does not fit the model's context, or the encoding cannot write the
    position."""
    try:
        tokens = encoding.prompt(puzzle.board)
    except BadInputError:
        return None
    return tokens if len(tokens) + encoding.max_move_tokens - 1 <= block_size else None


def build_puzzle_frames(puzzle: Puzzle, moves: Sequence[str], detail: Mapping[str, Any]) -> list[BoardFrame]:
    """Return the boards of a puzzle's moves, from the solver's side."""
    rating = "" if puzzle.rating is None else f", rated {puzzle.rating}"
    title = f"puzzle {puzzle.place}{rating}"
    is_flipped = puzzle.board.turn == chess.BLACK
    if not moves:
        caption = ["the model cannot read this position"]
        return [BoardFrame.from_board(puzzle.board, title, caption=caption, flipped=is_flipped)]
    frames, last_move = [], None
    for number, word in enumerate(moves):
        expected_move = puzzle.line[2 * number]
        san = puzzle.board.san(expected_move)
        arrows: list[tuple[int, int, float, str, Role]] = []
        try:
            move = puzzle.board.parse_uci(word)
        except ValueError:
            caption = [f"the model writes {word!r}: illegal", f"solution {san}"]
        else:
            move_san = puzzle.board.san(move)
            role: Role = "best" if move == expected_move else "played"
            arrows.append((move.from_square, move.to_square, 1.0, f"{move_san} (model)", role))
            right = (
                "right"
                if move == expected_move
                else "mates"
                if is_mating_move(puzzle.board, move)
                else f"solution {san}"
            )
            caption = [f"the model plays {move_san}: {right}"]
            if move == expected_move:
                expected_move = move
        if not arrows or word != expected_move.uci():
            arrows.append((expected_move.from_square, expected_move.to_square, 0.4, f"{san} (solution)", "best"))
        if number == 0 and detail.get("share") is not None:
            caption.append(
                f"probability of {san} among legal moves {detail['share']:.3f}, legal mass {detail['mass']:.3f}"
            )
        frames.append(
            BoardFrame.from_board(
                puzzle.board, f"{title}, move {number + 1} of {puzzle.solver_moves}",
                last_move=last_move, arrows=arrows, caption=caption, flipped=is_flipped,
            )
        )  # fmt: skip
        if word == expected_move.uci() and 2 * number + 1 < len(puzzle.line):
            last_move = puzzle.line[2 * number + 1]
            puzzle.board.push(expected_move)
            puzzle.board.push(last_move)
    return frames
