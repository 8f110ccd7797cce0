"""What the home room shows: what runs, how busy the machines are, what has ended since one last looked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from chessreg.registry import read as listing
from chessreg.scheduling import status
from tui.data.overview import overview
from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.session import Session


class AtHome(NamedTuple):
    """`going` and `ended` as in `chessreg status`; `machines` are those on which something runs, or ran last."""

    counts: dict[str, int]
    going: Sequence[Row]
    machines: Sequence[Row]
    ended: Sequence[Row]


def at_home(session: Session, since: datetime) -> AtHome:
    counts = overview(session)
    with session.database.read() as sql:
        machines = {row["host"]: row for row in reversed(listing.machines(sql))}  # of each host the one seen last
        newest = sorted(machines.values(), key=lambda row: (row["running"] > 0, row["last_seen"]), reverse=True)
        return AtHome(counts, status.going(sql), newest, status.ended(sql, since))
