"""Games that began alike: the same opening in two arms, and the ply where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import or_, select

from chessreg.errors import NotFoundError
from chessreg.experiments.play.stored import StoredGame, stored_games
from chessreg.games.moves import sans, unpack
from chessreg.registry import names, tables
from chessreg.registry.identity import short

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.registry.database import Database


@dataclass(frozen=True)
class Partner:
    """A game of another arm from the same opening. `parts` is the first ply that differs; None: it never does."""

    run_id: UUID
    unit: int
    arm: str  # the run's name and what plays there
    edited: bool
    plies: int
    parts: int | None


def parting(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first ply (0 is White's first move) at which two games differ, also by one's end; None when they are equal.

    >>> parting(["e2e4", "e7e5"], ["e2e4", "c7c5"]), parting(["e2e4"], ["e2e4"])
    (1, None)
    """
    for ply, (mine, yours) in enumerate(zip(one, other, strict=False)):
        if mine != yours:
            return ply
    return None if len(one) == len(other) else min(len(one), len(other))


def partners(session: Session, run_id: UUID, unit: int) -> list[Partner]:
    """The games of other arms that began with the same opening of the same book or seed, the model on the same side.

    An arm without an intervention comes first where this game has one, and the other way round; then the newest runs.
    Raises NotFoundError when there is no such game.
    """
    game, match, run = tables.Game, tables.Match, tables.Run
    mine = session.get(game, (run_id, unit))
    if mine is None:
        raise NotFoundError(f"run {short(run_id)} has no game {unit}", "chessreg game list --run RUN")
    own = session.get_one(match, (run_id, mine.match))
    alike = (
        select(game, match)
        .join(match, (match.run_id == game.run_id) & (match.number == game.match))
        .join(run, run.id == game.run_id)
        .where(
            match.opening == own.opening,
            match.opening_seed == own.opening_seed,
            match.color == own.color,
            game.opening_number == mine.opening_number,
            game.opening_plies == mine.opening_plies,
            or_(game.run_id != run_id, game.match != mine.match),
        )
        .order_by(run.created_at.desc(), game.run_id, game.unit)
    )
    called = names.names(session, "run")
    opening, moves = mine.opening_plies, unpack(mine.moves)
    found = []
    for other, its in session.execute(alike):
        theirs = unpack(other.moves)
        if theirs[:opening] != moves[:opening]:  # numbered alike, but of another book
            continue
        arm = called.get(other.run_id) or short(other.run_id)
        edited = its.intervention_id is not None
        arm += f" ({its.player}{', edited' if edited else ''})"
        found.append(Partner(other.run_id, other.unit, arm, edited, other.plies, parting(moves, theirs)))
    return sorted(found, key=lambda partner: partner.edited == (own.intervention_id is not None))


@dataclass(frozen=True)
class Pair:
    """Two stored games side by side."""

    one: StoredGame
    other: StoredGame

    @property
    def parts(self) -> int | None:
        """The first ply that differs."""
        return parting(self.one.moves, self.other.moves)

    def told(self) -> dict[str, Any]:
        """Lengths, the ply, and what both played there: `12.Nf3 | 12.Bc4`."""
        at = self.parts
        return {
            "plies": len(self.other.moves),
            "parts": at,
            "moves": "" if at is None else " | ".join(move_at(game, at) for game in (self.one, self.other)),
        }


def move_at(game: StoredGame, ply: int) -> str:
    """The move of a ply with its number, or how the game had ended before it."""
    found = sans(game.game.moves)
    if ply >= len(found):
        return f"{game.game.result} by {game.game.termination.replace('_', ' ')}"
    return f"{ply // 2 + 1}.{'' if ply % 2 == 0 else '..'}{found[ply]}"


def paired(database: Database, one: tuple[UUID, int], other: tuple[UUID, int]) -> Pair:
    """Two games by (run, unit). Raises NotFoundError naming one that is not there."""
    return Pair(*stored_games(database, [one, other]))
