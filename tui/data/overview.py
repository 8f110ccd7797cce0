"""How much of everything a registry holds, for the line above the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from chessreg.registry import tables

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
