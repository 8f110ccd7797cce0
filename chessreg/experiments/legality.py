"""`legality`: how often the model's next move is legal, by ply, on games that it was not trained on.

`iterate_first_tries` returns the model's texts at the turns of given games. Other kinds use it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.experiments.settings.choosing import GREEDY, ChoosingSpec
from chessreg.experiments.settings.games import GameBatches, GameSelection, build_turn_prompts, select_games
from chessreg.games.boards.boardframe import BoardFrame, move_arrows
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.models.decoding.policies import ModelTurn, MoveChoice, Policy, choose_moves, make_policy
from chessreg.noise import Stream
from chessreg.registry import tables
from chessreg.runs.cost import count_choosing_operations
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef, Plies

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import Games
    from chessreg.models.decoding.legal import Mass
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.task import Task

STRIDE_PLIES = 2  # from one turn of a side to its next


class LegalitySpec(ChoosingSpec, GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    games: int = Field(500, ge=1, description="games, the first in file order")
    black: bool = Field(False, description="score Black's turns instead of White's")
    every: Plies = Field(1, ge=1, description="score every Nth of these turns")
    mass: bool = Field(False, description="also compute the exact probability of a legal move (canonical spelling)")
    valid: bool = Field(
        False,
        description="also compute the probability of a text in the form of a move, legal or illegal "
        "(in UCI: one of 1,968)",
    )


class TurnRow(BaseModel):
    """Columns of a turn."""

    valid_mass: float | None = Field(None, description="probability of a text in the form of a move, with --valid")
    valid_missed: float | None = Field(
        None, description="upper bound of the probability missing from it: texts of 1e-6 and less"
    )


class Legality(Kind):
    """First-try legal rate on given games: the greedy text at every turn, and the exact legal move mass.

    The legal-move rate of Karvonen 2024, section 2.2, on games of a dataset instead of games against an engine. Under
    another policy a turn is legal if the policy produced a move, and its text is that of the last try. One unit is one
    game. Its texts are written turn by turn with one key-value cache.
    """

    name = "legality"
    example = "--checkpoint reference --dataset sample:test --games 6 --every 4"
    tables = ("trial",)
    spec = LegalitySpec
    options = GameBatches
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"trial": TurnRow}
    queries = ("legal moves by ply",)

    def units(self, spec: LegalitySpec, inputs: Inputs) -> int:
        inputs.checkpoint(spec.checkpoint)
        return len(select_games(spec, inputs)[1])

    def estimate(self, spec: LegalitySpec, inputs: Inputs) -> RunEstimate:
        games, places = select_games(spec, inputs)
        plies = convert_column_to_numpy(games.table(["plies"]).column("plies"))[places].astype(np.int64)
        turns = int((plies // (STRIDE_PLIES * spec.every) + 1).sum())
        operations = count_choosing_operations(spec.checkpoint, inputs, len(places), turns)
        return RunEstimate({"trial": turns}, operations=operations)

    def run(self, task: Task[LegalitySpec, GameBatches]) -> None:
        spec = task.spec
        model = task.model(spec.checkpoint)
        games, places = select_games(spec, task.inputs)
        plies = convert_column_to_numpy(games.table(["plies"]).column("plies"))
        for start in range(0, len(task.units), task.options.batch_games):
            units = task.units[start : start + task.options.batch_games]
            tries = iterate_first_tries(
                model, games, places[units], black=spec.black, every=spec.every, mass=spec.mass, valid=spec.valid,
                policy=spec.make_chooser(), seed=spec.seed,
            )  # fmt: skip
            most = int(plies[places[units]].max(initial=1))
            for number, turns in enumerate(tries, 1):
                for turn in turns:
                    emit_turn(task, units[turn.game], int(places[units[turn.game]]), turn)
                share = (start + len(units) * min(number / most, 1.0)) / len(task.units)
                task.progress(share, f"ply {number:,} of {most:,} of {len(units)} games")
            for unit in units:
                task.done(unit)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        return build_turn_frames(row, inputs)


def emit_turn(task: Task[LegalitySpec, GameBatches], unit: int, place: int, turn: FirstTry) -> None:
    """Emit the row of one turn."""
    task.emit(
        "trial",
        unit,
        TurnRow(valid_mass=turn.valid.probability, valid_missed=turn.valid.unexplored) if turn.valid else None,
        condition="clean",
        sample=-turn.ply - 1,  # greedy texts count down, one for each ply
        item=place,
        ply=turn.ply,
        fen=turn.board.fen(),
        text=turn.text,
        legal_original=turn.move is not None,
        mass_original=turn.mass,
    )


def build_turn_frames(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return one frame per turn of the model: the position, with the text as an arrow or as an illegal try."""
    encoding = inputs.encoding(LegalitySpec(**inputs.read_spec(row)).checkpoint)
    views = []
    for turn in inputs.read_unit_rows(tables.Trial, row, tables.Trial.ply):
        board = chess.Board(turn.fen)
        arrows = move_arrows(board, [encoding.parse(turn.text, board)])
        legal = "legal" if turn.legal_original else "illegal"
        caption = [f"the model writes {turn.text!r}: {legal}"]
        if turn.mass_original is not None:
            caption.append(f"legal move mass {turn.mass_original:.3f}")
        if turn.detail:
            caption.append(f"mass of texts in the form of a move {turn.detail['valid_mass']:.3f}")
        title = f"game {turn.item}, ply {turn.ply}"
        frame = BoardFrame.from_board(board, title=title, arrows=arrows, caption=caption)
        views.append(replace(frame, ply=turn.ply))
    return views


@dataclass(frozen=True)
class FirstTry:
    """The text of a model at one turn.

    `game` is the index of the game among the given ones. `board` is the position; it changes when the iteration
    continues, so copy it to keep it. `move` is the legal move that the text names, if any. `mass` is the exact
    probability of a legal move, 0 to 1, and `valid` that of a text in the form of a move, if they were measured.
    """

    game: int
    ply: int
    board: chess.Board
    text: str
    move: chess.Move | None
    mass: float | None
    valid: Mass | None = None


def iterate_first_tries(
    model: LanguageModel,
    games: Games,
    places: np.ndarray,
    *,
    black: bool = False,
    every: int = 1,
    mass: bool = False,
    valid: bool = False,
    edits: Sequence[ResidualEdit] = (),
    policy: Policy | None = None,
    seed: int = 0,
) -> Iterator[list[FirstTry]]:
    """Yield the model's tries ply by ply, for all games at these rows together.

    At every `every`-th turn of one side (Black's if `black`) a move is chosen; without a policy the most probable text.
    `mass` adds the legal move mass, and `valid` the mass of texts that are a move on some board. The games then
    continue with their own moves. Each ply yields one list, empty if no move is chosen. A game whose prompt leaves no
    room for a move in the model's context has no further turns.
    """
    from chessreg.models.decoding.legal import compute_valid_masses
    from chessreg.models.decoding.session import open_decoding_session

    encoding = model.encoding
    move_policy = policy or make_policy("free", GREEDY, resigns=False)
    prompts = build_turn_prompts(encoding, games, places, "black" if black else "white")
    moves = [unpack_moves(packed_moves) for packed_moves in games.moves(places)]
    boards = [chess.Board() for _ in places]
    session = open_decoding_session(model, len(boards), edits)
    for ply in range(max(map(len, moves))):
        tries: list[FirstTry] = []
        if ply // STRIDE_PLIES % every == 0:
            turns = [r for r, game_plies in enumerate(prompts) if ply in game_plies]
            rows = [r for r in turns if has_room(model, prompts[r][ply])]
            if rows:
                session.sync([prompts[r][ply] if r in rows else session.tokens[r] for r in range(len(boards))])
                at = [boards[r] for r in rows]
                masses = compute_legal_masses(session, encoding, at, rows) if mass else [None] * len(rows)
                forms = compute_valid_masses(session, encoding, rows) if valid else [None] * len(rows)
                turns_to_choose = [
                    ModelTurn(r, board, (Stream.LEGALITY_TRIES, seed, int(places[r]), ply))
                    for r, board in zip(rows, at, strict=True)
                ]
                choices = choose_moves(move_policy, session, encoding, turns_to_choose)
                tries = [
                    FirstTry(r, ply, board, format_choice(choice, board), choice.move, share, form)
                    for r, board, choice, share, form in zip(rows, at, choices, masses, forms, strict=True)
                ]
        yield tries
        for board, move in zip(boards, moves, strict=True):
            if ply < len(move):
                board.push(move[ply])


def format_choice(choice: MoveChoice, board: chess.Board) -> str:
    """Return the last text of a choice; for a policy that writes no text, the move in SAN."""
    if choice.move is None:
        return choice.illegal[-1]
    return choice.text or board.san(choice.move)


def has_room(model: LanguageModel, prompt: Sequence[int]) -> bool:
    """Return whether a move fits after a prompt. A history needs one or two more tokens than the move itself."""
    needed_tokens = len(prompt) + model.encoding.max_move_tokens + (1 if model.encoding.content == "history" else -1)
    return needed_tokens <= model.block_size


def compute_legal_masses(
    session: DecodingSession, encoding: Encoding, boards: list[chess.Board], rows: list[int]
) -> list[float | None]:
    """Return, for each board, the exact probability (0 to 1) that the next text of session row `rows[i]` is a legal
    move on `boards[i]`."""
    from chessreg.models.decoding.legal import score_legal_moves, sum_legal_mass

    scores = score_legal_moves(session, boards, encoding, rows)
    return [min(sum_legal_mass(row), 1.0) for row in scores]
