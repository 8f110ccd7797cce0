"""Two games of the same opening, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from tui.data.results import run_names

if TYPE_CHECKING:
    from chessreg.entities.game import Partner
    from chessreg.games.boardframe import BoardFrame
    from chessreg.session import Session


class Side(NamedTuple):
    """One game: the run's name, its frames, and the frame at its move limit where that was recorded."""

    run: str
    run_id: UUID
    unit: int
    frames: list[BoardFrame]
    limit: int | None


class Sides(NamedTuple):
    """A game, the chosen one of its partners, and the ply where they part."""

    sides: tuple[Side, Side]
    partners: list[Partner]
    chosen: int
    parts: int | None
    moves: str  # what both played there


def sides(session: Session, row: Mapping[str, Any], chosen: int) -> Sides | None:
    """A game beside number `chosen` of its partners; None when no other arm began with its opening."""
    from chessreg.entities.game import paired, partners

    run_id, unit = UUID(str(row["run_id"])), int(row["unit"])
    with session.database.read() as sql:
        found = partners(sql, run_id, unit)
        called = run_names(sql, {run_id, *(partner.run_id for partner in found)})
    if not found:
        return None
    chosen %= len(found)
    partner = found[chosen]
    pair = paired(session.database, (run_id, unit), (partner.run_id, partner.unit))
    both = [
        Side(called[game.game.run_id], game.game.run_id, game.game.unit, game.frames(), game.limit_ply)
        for game in (pair.one, pair.other)
    ]
    return Sides((both[0], both[1]), found, chosen, pair.parts, pair.told()["moves"])
