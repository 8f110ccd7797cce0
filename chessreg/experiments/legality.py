"""`legality`: how often the move a model would write next is legal, by ply, on games it did not see.

What it writes at the turns of given games is found by `first_tries`, which other kinds use too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np
import sqlalchemy
from pydantic import Field

from chessreg.experiments.settings.games import GameSelection, select, turn_prompts
from chessreg.games.boardframe import BoardFrame, move_arrows
from chessreg.games.dataset import numbers
from chessreg.games.moves import unpack
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import CheckpointRef, ExecutionOptions, Plies

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.dataset import Games
    from chessreg.models.decoding import DecodingSession
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.task import Task

STRIDE_PLIES = 2  # White's turns, or Black's


class LegalitySpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    games: int = Field(500, ge=1, description="games, the first in file order")
    black: bool = Field(False, description="look at Black's turns instead of White's")
    every: Plies = Field(1, ge=1, description="look at every Nth of these turns")
    mass: bool = Field(False, description="also the exact probability of a legal move (canonical spelling)")


class LegalityHow(ExecutionOptions):
    batch_games: int = Field(32, ge=1, description="games that go through the model together")


class Legality(Kind):
    """First-try legal rate on given games: the greedy text at every turn, and the exact legal move mass.

    The legal-move rate of Karvonen 2024, section 2.2, on games of a dataset instead of games against an engine. One
    unit is one game; its texts are written turn by turn on a kept key-value cache.
    """

    name = "legality"
    example = "--checkpoint reference --dataset sample:test --games 6 --every 4"
    tables = ("trial",)
    spec = LegalitySpec
    options = LegalityHow
    queries = ("legal moves by ply",)

    def units(self, spec: LegalitySpec, inputs: Inputs) -> int:
        inputs.checkpoint(spec.checkpoint)
        return len(select(spec, inputs)[1])

    def estimate(self, spec: LegalitySpec, inputs: Inputs) -> Estimate:
        games, places = select(spec, inputs)
        plies = numbers(games.table(["plies"]).column("plies"))[places].astype(np.int64)
        return Estimate({"trial": int((plies // (STRIDE_PLIES * spec.every) + 1).sum())})

    def run(self, task: Task[LegalitySpec, LegalityHow]) -> None:
        from chessreg.models.devices import prepare
        from chessreg.models.language_model import LanguageModel

        spec = task.spec
        _, folder = task.inputs.checkpoint(spec.checkpoint)
        model = LanguageModel.load(folder, device=prepare(task.options.device, task.options.threads))
        games, places = select(spec, task.inputs)
        for start in range(0, len(task.units), task.options.batch_games):
            units = task.units[start : start + task.options.batch_games]
            tries = first_tries(model, games, places[units], black=spec.black, every=spec.every, mass=spec.mass)
            for ply, turns in enumerate(tries):
                for turn in turns:
                    emit(task, units[turn.game], int(places[units[turn.game]]), turn)
                task.progress((units[0] + 1) / (task.units[-1] + 1), f"ply {ply}")
            for unit in units:
                task.done(unit)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        return frames_of_turns(row, inputs)


def emit(task: Task[LegalitySpec, LegalityHow], unit: int, place: int, turn: FirstTry) -> None:
    """The row of one turn."""
    task.emit(
        "trial",
        unit,
        condition="clean",
        sample=-turn.ply - 1,  # greedy texts count down, one for each ply
        intervention_id=None,
        item=place,
        ply=turn.ply,
        fen=turn.board.fen(),
        text=turn.text[:32],
        legal_original=turn.move is not None,
        legal_modified=None,
        mass_original=turn.mass,
        mass_modified=None,
    )


def frames_of_turns(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """One frame per turn at which the model was asked: the position, and the text as an arrow or as an illegal try."""
    trial = tables.Trial
    with inputs.database.read() as session:
        rows = session.scalars(
            sqlalchemy.select(trial)
            .where(trial.run_id == UUID(str(row["run_id"])), trial.unit == int(row["unit"]))
            .order_by(trial.ply)
        ).all()
        spec = LegalitySpec(**session.get_one(tables.Run, UUID(str(row["run_id"]))).spec)
        session.expunge_all()
    encoding = inputs.encoding(spec.checkpoint)
    frames = []
    for turn in rows:
        board = chess.Board(turn.fen)
        arrows = move_arrows(board, [encoding.parse(turn.text, board)])
        legal = "legal" if turn.legal_original else "illegal"
        caption = [f"the model writes {turn.text!r}: {legal}"]
        if turn.mass_original is not None:
            caption.append(f"legal move mass {turn.mass_original:.3f}")
        frames.append(
            BoardFrame.from_board(board, title=f"game {turn.item}, ply {turn.ply}", arrows=arrows, caption=caption)
        )
    return frames


@dataclass(frozen=True)
class FirstTry:
    """What a model writes first at one turn, greedily. `game` is the place of the game among those given, `board` the
    position (the walk's own: copy what is to be kept), `move` the legal move that the text names, if it names one,
    `mass` the exact probability of a legal move, 0 to 1, where that was asked for."""

    game: int
    ply: int
    board: chess.Board
    text: str
    move: chess.Move | None
    mass: float | None


def first_tries(
    model: LanguageModel,
    games: Games,
    places: np.ndarray,
    *,
    black: bool = False,
    every: int = 1,
    mass: bool = False,
    edits: Sequence[ResidualEdit] = (),
) -> Iterator[list[FirstTry]]:
    """Go through the games at these rows together, ply by ply; at every `every`th turn of one side write a move, then
    go on as the game did. Yields one list a ply, empty where nothing was written. A game whose prompt leaves no room
    for a move in the model's context is not asked any more."""
    from chessreg.models.sampling import sample_moves

    encoding = model.encoding
    prompts = turn_prompts(encoding, games, places, "black" if black else "white")
    moves = [unpack(packed) for packed in games.moves(places)]
    boards = [chess.Board() for _ in places]
    session = model.session(len(boards), edits)
    for ply in range(max(map(len, moves))):
        tries: list[FirstTry] = []
        if ply // STRIDE_PLIES % every == 0:
            asked = [r for r, own in enumerate(prompts) if ply in own]
            rows = [r for r in asked if has_room(model, prompts[r][ply])]
            if rows:
                session.sync([prompts[r][ply] if r in rows else session.tokens[r] for r in range(len(boards))])
                at = [boards[r] for r in rows]
                written = sample_moves(session, encoding, at, [(0,)] * len(rows), temperature=0.0, rows=rows)
                masses = legal_masses(session, encoding, at, rows) if mass else [None] * len(rows)
                tries = [
                    FirstTry(r, ply, board, one.text, encoding.parse(one.tokens, board), share)
                    for r, board, one, share in zip(rows, at, written, masses, strict=True)
                ]
        yield tries
        for board, played in zip(boards, moves, strict=True):
            if ply < len(played):
                board.push(played[ply])


def has_room(model: LanguageModel, prompt: Sequence[int]) -> bool:
    """Whether a move fits behind a prompt. Of a history a little more room is asked for than the move needs."""
    needed = len(prompt) + model.encoding.max_move_tokens + (1 if model.encoding.content == "history" else -1)
    return needed <= model.block_size


def legal_masses(
    session: DecodingSession, encoding: Encoding, boards: list[chess.Board], rows: list[int]
) -> list[float | None]:
    """The exact probability that what each row writes next is a legal move, 0 to 1."""
    from chessreg.models.legal import legal_move_mass, move_logprobs

    scored = move_logprobs(session, boards, encoding, rows)
    return [min(legal_move_mass(row), 1.0) for row in scored]
