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

from chessreg.experiments.edit.kind import arrows
from chessreg.experiments.settings.games import GameSelection, select
from chessreg.games.boardframe import BoardFrame
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import CheckpointRef, How

if TYPE_CHECKING:
    from chessreg.encodings.tokenizers import Tokenizer
    from chessreg.models.decoding import DecodingSession
    from chessreg.models.edits import Edit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.task import Task

STRIDE_PLIES = 2  # White's turns, or Black's


class LegalitySpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    games: int = Field(500, ge=1, description="games, the first in file order")
    black: bool = Field(False, description="look at Black's turns instead of White's")
    every: int = Field(1, ge=1, description="look at every Nth of these turns")
    mass: bool = Field(False, description="also the exact probability of a legal move (canonical spelling)")


class LegalityHow(How):
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
        plies = games.table(["plies"]).column("plies").to_numpy()[places].astype(np.int64)
        return Estimate({"trial": int((plies // (STRIDE_PLIES * spec.every) + 1).sum())})

    def run(self, task: Task[LegalitySpec, LegalityHow]) -> None:
        from chessreg.encodings.tokenizers import tokenizer
        from chessreg.models.devices import prepare
        from chessreg.models.language_model import LanguageModel

        _, folder = task.inputs.checkpoint(task.spec.checkpoint)
        model = LanguageModel.load(folder, device=prepare(task.how.device, task.how.threads))
        pgn = tokenizer(model.info.tokenizer)
        games, places = select(task.spec, task.inputs)
        for start in range(0, len(task.units), task.how.batch_games):
            units = task.units[start : start + task.how.batch_games]
            walk(task, model, pgn, units, games.texts(places[units]), places[units])
            for unit in units:
                task.done(unit)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        return frames_of_turns(row, inputs)


def walk(
    task: Task[LegalitySpec, LegalityHow],
    model: LanguageModel,
    pgn: Tokenizer,
    units: list[int],
    texts: list[str],
    places: np.ndarray,
) -> None:
    """Judge what the model writes at the turns of these games."""
    spec = task.spec
    for ply, turns in enumerate(first_tries(model, pgn, texts, black=spec.black, every=spec.every, mass=spec.mass)):
        for turn in turns:
            task.emit(
                "trial",
                units[turn.game],
                condition="clean",
                sample=-ply - 1,  # greedy texts count down, one for each ply
                intervention_id=None,
                item=int(places[turn.game]),
                ply=ply,
                fen=turn.board.fen(),
                text=turn.text[:32],
                legal_original=turn.move is not None,
                legal_modified=None,
                mass_original=turn.mass,
                mass_modified=None,
            )
        task.progress((units[0] + 1) / (task.units[-1] + 1), f"ply {ply}")


def frames_of_turns(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """One frame per looked-at turn of a game: the position, and the greedy text as an arrow or as an illegal try."""
    trial = tables.Trial
    with inputs.database.read() as session:
        rows = session.scalars(
            sqlalchemy.select(trial)
            .where(trial.run_id == UUID(str(row["run_id"])), trial.unit == int(row["unit"]))
            .order_by(trial.ply)
        ).all()
        session.expunge_all()
    frames = []
    for turn in rows:
        board = chess.Board(turn.fen)
        legal = "legal" if turn.legal_original else "illegal"
        caption = [f"the model writes {turn.text!r}: {legal}"]
        if turn.mass_original is not None:
            caption.append(f"legal move mass {turn.mass_original:.3f}")
        frames.append(
            BoardFrame.from_board(
                board, title=f"game {turn.item}, ply {turn.ply}", arrows=arrows([turn], board), caption=caption
            )
        )
    return frames


@dataclass(frozen=True)
class Written:
    """The greedy text at one turn. `game` is the place of the game among those given, `board` the position (the walk's
    own: copy what is to be kept), `move` the legal move that the text names, if it names one, `mass` the exact
    probability of a legal move, 0 to 1, where that was asked for."""

    game: int
    ply: int
    board: chess.Board
    text: str
    move: chess.Move | None
    mass: float | None


def first_tries(
    model: LanguageModel,
    pgn: Tokenizer,
    texts: Sequence[str],
    *,
    black: bool = False,
    every: int = 1,
    mass: bool = False,
    edits: Sequence[Edit] = (),
) -> Iterator[list[Written]]:
    """Go through these games together, ply by ply; at every `every`th turn of one side write a move, then go on as the
    game did. Yields one list a ply, empty where nothing was written. A game whose prompt leaves no room for a move in
    the model's context is not asked any more."""
    from chessreg.models.sampling import sample_moves

    moves = [[word.split(".")[-1] for word in text[1:].split()] for text in texts]
    boards = [chess.Board() for _ in texts]
    session = model.session(len(texts), edits)
    for ply in range(max(map(len, moves))):
        active = [r for r, played in enumerate(moves) if ply < len(played)]
        written: list[Written] = []
        if ply % STRIDE_PLIES == black and ply // STRIDE_PLIES % every == 0:
            prompts = {r: list(map(int, pgn.encode(pgn.prompt(moves[r][:ply])))) for r in active}
            room = [r for r in active if len(prompts[r]) + pgn.max_move_tokens < model.block_size]
            session.sync([prompts[r] if r in room else session.tokens[r] for r in range(len(texts))])
            if room:
                sampled = sample_moves(session, pgn, [(0,)] * len(room), temperature=0.0, rows=room)
                masses = legal_masses(session, pgn, boards, room) if mass else [None] * len(room)
                written = [
                    Written(r, ply, boards[r], one.text, pgn.parse(one.text, boards[r]), share)
                    for r, one, share in zip(room, sampled, masses, strict=True)
                ]
        yield written
        for r in active:
            boards[r].push_san(moves[r][ply])


def legal_masses(
    session: DecodingSession, pgn: Tokenizer, boards: list[chess.Board], rows: list[int]
) -> list[float | None]:
    """The exact probability that each row's next text is a legal move, 0 to 1."""
    from chessreg.models.legal import legal_move_mass, move_logprobs

    scored = move_logprobs(session, [boards[r] for r in rows], pgn, rows)
    return [min(legal_move_mass(row), 1.0) for row in scored]
