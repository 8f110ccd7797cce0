"""What a match leaves in the registry, and games back out of it as frames and PGN records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import select, tuple_

from chessreg.errors import NotFoundError
from chessreg.experiments.interventions import describe
from chessreg.games.adjudication import Termination
from chessreg.games.boardframe import BoardFrame, game_frames
from chessreg.games.engines import EngineSpec, engine_identity
from chessreg.games.moves import pack, unpack
from chessreg.games.pgn import GameRecord
from chessreg.registry import tables
from chessreg.registry.identity import digest_of, short, uuid_of
from chessreg.registry.names import name_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.experiments.playing.game import PlayedGame
    from chessreg.registry.database import Database

CHUNK = 300  # games fetched at once


def engine_row(spec: EngineSpec) -> dict[str, Any]:
    """The row of `engine` for this opponent: the Stockfish binary as it is here, or a built-in mover.

    Raises NotFoundError when the opponent needs Stockfish and there is none.
    """
    if spec.needs_process:
        found = engine_identity()
        columns: dict[str, Any] = {
            "name": found.name,
            "version": found.version,
            "binary_sha256": found.sha256,
            "options": dict(found.options),
        }
    else:
        columns = {"name": spec.kind, "version": "1", "binary_sha256": None, "options": {}}
    return {"id": uuid_of(digest_of(columns)), **columns}


def game_columns(game: PlayedGame) -> dict[str, Any]:
    """The columns of a finished game beside its key and its detail."""
    assert game.end is not None
    return {
        "opening_number": game.opening.number,
        "opening_plies": len(game.opening.moves),
        "plies": game.ply,
        "result": game.end.result,
        "termination": str(game.end.termination),
        "adjudication_cp": game.adjudication_cp,
        "turns": len(game.tries),
        "first_try_legal": game.first_try_legal,
        "tries": np.array(game.tries, np.uint8).tobytes(),
        "moves": pack(game.board.move_stack),
        "seconds": game.seconds,
    }


# -- games out of the registry ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredGame:
    """A game with what its match says of it."""

    game: tables.Game
    match: tables.Match
    seed: int
    replicate: int
    intervention: tables.Intervention | None
    engine: tables.Engine | None
    illegal: dict[int, list[str]]  # ply → texts, in order

    @property
    def moves(self) -> list[str]:
        return [move.uci() for move in unpack(self.game.moves)]

    @property
    def model(self) -> str:
        """The model's name for people."""
        return self.match.player

    @property
    def opponent(self) -> str:
        """The opponent's name for people, with the engine's version: `Stockfish 15.1, level 0, nodes=1000`."""
        if self.match.level is None or self.engine is None:
            return self.match.opponent
        limit = self.match.limit or "depth=1, nodes=1"
        return f"{self.engine.name} {self.engine.version}, level {self.match.level}, {limit}"

    @property
    def players(self) -> tuple[str, str]:
        """White and Black."""
        both = (self.model, self.opponent)
        return both if self.match.color == "white" else both[::-1]

    def record(self) -> GameRecord:
        """The game as PGN is written."""
        white, black = self.players
        match, game = self.match, self.game
        seeds = f"play {self.seed}, opening {match.opening_seed}, opening number {game.opening_number}"
        headers = {
            "Event": "chessreg match",
            "Round": str(game.unit),
            "Run": game.run_id.hex,
            "Policy": match.policy,
            "MoveLimit": str(match.move_limit),
        }
        if match.checkpoint_id is not None:
            headers["Checkpoint"] = match.checkpoint_id.hex
        if self.engine is not None and self.engine.binary_sha256:
            headers["EngineSha256"] = self.engine.binary_sha256
        return GameRecord(
            moves=self.moves,
            white=white,
            black=black,
            result=game.result,
            termination=Termination(game.termination) if game.termination in list(Termination) else None,
            tries=self.illegal,
            adjudication_cp=game.adjudication_cp,
            model=self.model,
            intervention=describe(self.intervention) if self.intervention else "none",
            engine=self.opponent,
            limit=match.limit or "none",
            opening=match.opening,
            seeds=seeds + (f", replicate {self.replicate}" if self.replicate else ""),
            headers=headers,
        )

    def frames(self) -> list[BoardFrame]:
        """One frame for the start and one a ply; the squares that illegal tries named are marked."""
        white, black = self.players
        game = self.game
        frames = game_frames(
            self.moves,
            f"{white} – {black}, game {game.unit}",
            tries=self.illegal,
            flipped=self.match.color == "black",
        )
        for ply in range(1, min(game.opening_plies, len(frames) - 1) + 1):
            frames[ply] = frames[ply].with_marks({}, ["opening"])
        for ply, texts in self.illegal.items():
            place = min(ply + 1, len(frames) - 1)
            squares = {square for text in texts if (square := target_square(text)) is not None}
            frames[place] = frames[place].with_marks(dict.fromkeys(squares, "illegal"))
        ending = [f"{game.result} by {game.termination.replace('_', ' ')}"]
        if game.adjudication_cp is not None:
            ending.append(f"evaluation {game.adjudication_cp / 100:+.2f} for White")
        frames[-1] = frames[-1].with_marks({}, ending)
        return frames


def target_square(text: str) -> int | None:
    """The square that a move's text names last, if it names one: `Nf3+` → f3.

    >>> chess.square_name(target_square("Raxd1+") or 0), target_square("O-O")
    ('d1', None)
    """
    names = [text[i : i + 2] for i in range(len(text) - 1) if text[i : i + 2] in chess.SQUARE_NAMES]
    return chess.parse_square(names[-1]) if names else None


def stored_games(database: Database, keys: Iterable[tuple[UUID, int]]) -> Iterator[StoredGame]:
    """Games by (run, unit), in the order asked for. Raises NotFoundError naming one that is not there."""
    wanted = list(keys)
    for start in range(0, len(wanted), CHUNK):
        with database.read() as session:
            found = _chunk(session, wanted[start : start + CHUNK])
            session.expunge_all()
        yield from found


def _chunk(session: Session, keys: list[tuple[UUID, int]]) -> list[StoredGame]:
    by_key: dict[tuple[UUID, int], tables.Game] = {}
    illegal: dict[tuple[UUID, int], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    game, attempt = tables.Game, tables.IllegalAttempt
    for row in session.scalars(select(game).where(tuple_(game.run_id, game.unit).in_(keys))):
        by_key[row.run_id, row.unit] = row
    tries = select(attempt).where(tuple_(attempt.run_id, attempt.unit).in_(keys)).order_by(attempt.ply, attempt.number)
    for failed in session.scalars(tries):
        illegal[failed.run_id, failed.unit][failed.ply].append(failed.text)
    made = []
    for run_id, unit in keys:
        if (run_id, unit) not in by_key:
            raise NotFoundError(f"run {short(run_id)} has no game {unit}", "chessreg game list --run RUN")
        row = by_key[run_id, unit]
        match = session.get_one(tables.Match, (run_id, row.match))
        spec = session.get_one(tables.Run, run_id).spec
        made.append(
            StoredGame(
                game=row,
                match=match,
                seed=int(spec.get("seed", 0)),
                replicate=int(spec.get("replicate", 0)),
                intervention=session.get(tables.Intervention, match.intervention_id) if match.intervention_id else None,
                engine=session.get(tables.Engine, match.engine_id) if match.engine_id else None,
                illegal=dict(illegal[run_id, unit]),
            )
        )
    return made


def player_name(session: Session, checkpoint_id: UUID) -> str:
    """What a match calls the model: the checkpoint's name now, or its short id."""
    return name_of(session, "checkpoint", checkpoint_id) or f"checkpoint {short(checkpoint_id)}"
