"""What the home room shows: what runs, how busy the machines are, what has ended; how much of everything there is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, select

from chessreg.registry import read, tables
from chessreg.scheduling import status
from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.session import Session


COUNTED = {
    "run": tables.Run,
    "dataset": tables.Dataset,
    "checkpoint": tables.Checkpoint,
}


def overview(session: Session) -> dict[str, int]:
    """Rows by noun, and how many runs are not complete."""
    with session.database.read() as sql:
        counts = {noun: sql.scalar(select(func.count()).select_from(table)) or 0 for noun, table in COUNTED.items()}
        unfinished = select(func.count()).select_from(tables.Run).where(tables.Run.completed_at.is_(None))
        return counts | {"unfinished": sql.scalar(unfinished) or 0}


def next_steps(counts: dict[str, int]) -> tuple[str, list[str]]:
    """What is missing first, and the commands that make it."""
    if not counts["dataset"]:
        return "There are no games yet.", [
            "chessreg demo",
            "chessreg dataset add FILE.pgn --name games",
            "chessreg dataset add --sample --name sample",
        ]
    if not counts["checkpoint"]:
        return "There are games, but no model yet.", [
            "chessreg import checkpoint FILE --name model",
            "chessreg import checkpoint --reference --name reference",
        ]
    return "There are games and a model, but nothing was run yet.", [
        "chessreg run --help",
        "chessreg run cache --checkpoint MODEL --dataset GAMES --name cache",
        "chessreg run play --checkpoint MODEL --opponent random --games 20 --name games",
    ]


class AtHome(NamedTuple):
    """`going` and `ended` as in `chessreg status`; `machines` are those on which something runs, or ran last."""

    counts: dict[str, int]
    going: Sequence[Row]
    machines: Sequence[Row]
    ended: Sequence[Row]


def at_home(session: Session, since: datetime) -> AtHome:
    counts = overview(session)
    with session.database.read() as sql:
        machines = {row["host"]: row for row in reversed(read.machines(sql))}  # of each host the one seen last
        newest = sorted(machines.values(), key=lambda row: (row["running"] > 0, row["last_seen"]), reverse=True)
        return AtHome(counts, status.going(sql), newest, status.ended(sql, since))
