"""Result rows of a run or of the whole registry, in pages, and how one is found again by its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select

from chessreg.registry import names, tables
from tui.data.pages import JoinedPages, KeysetPages, Pages, Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session

FAMILIES: dict[str, Any] = {
    "game": tables.Game,
    "trial": tables.Trial,
    "score": tables.Score,
    "illegal_attempt": tables.IllegalAttempt,
    "rating": tables.Rating,
    "prediction": tables.Prediction,
    "metric_point": tables.MetricPoint,
    "statistic": tables.Statistic,
}
WITH_BOARDS = ("game", "trial", "score")


def key_of(family: str) -> tuple[Any, ...]:
    """The primary key of a family, run first."""
    table = FAMILIES[family]
    return tuple(getattr(table, column.key) for column in table.__table__.primary_key)


def flat(record: Any) -> dict[str, Any]:
    """A result row as kinds know it: its columns, then those of its detail."""
    row = {column.key: getattr(record, column.key) for column in record.__table__.columns}
    detail = row.pop("detail", None) or {}
    return row | {(f"detail_{name}" if name in row else name): value for name, value in detail.items()}


def results(session: Session, family: str, run_id: UUID | None = None) -> Pages:
    """The rows of a family, of one run or of all, the oldest run first and each in the order of its keys. Each row
    names its run and its family."""
    table = FAMILIES[family]

    def rows(sql: SqlSession, records: Sequence[Any]) -> list[Row]:
        called = run_names(sql, {record.run_id for record in records})
        return [{**flat(record), "run": called[record.run_id], "family": family} for record in records]

    def of_run(id: UUID, count: int | None = None) -> KeysetPages:
        return KeysetPages(session, table, key_of(family), where=[table.run_id == id], rows=rows, count=count)

    if run_id is not None:
        return of_run(run_id)
    run = tables.Run
    with session.database.read() as sql:
        counts: dict[UUID, int] = dict(
            sql.execute(select(table.run_id, func.count()).group_by(table.run_id)).tuples().all()
        )
        oldest_first = sql.scalars(select(run.id).order_by(run.created_at, run.id)).all()
    return JoinedPages([of_run(id, counts[id]) for id in oldest_first if id in counts])


def run_names(sql: SqlSession, ids: set[UUID]) -> dict[UUID, str]:
    """The name of each run, or else its kind and id."""
    run = tables.Run
    kinds = dict(sql.execute(select(run.id, run.kind).where(run.id.in_(ids))).tuples().all())
    return {id: names.name_of(sql, "run", id) or f"{kinds.get(id, 'run')} {id.hex[-6:]}" for id in ids}


def families_of(session: Session, run_id: UUID, families: Sequence[str]) -> dict[str, int]:
    """Those of the families that have rows of this run, with their number."""
    with session.database.read() as sql:
        counts = {
            family: sql.scalar(
                select(func.count()).select_from(FAMILIES[family]).where(FAMILIES[family].run_id == run_id)
            )
            for family in families
            if family in FAMILIES
        }
    return {family: int(count) for family, count in counts.items() if count}


def families_with_boards(session: Session) -> list[str]:
    """The families that hold any row that a board may be drawn of."""
    with session.database.read() as sql:
        return [f for f in WITH_BOARDS if sql.scalar(select(FAMILIES[f].unit).limit(1)) is not None]


def find_row(session: Session, row: Row, families: Sequence[str]) -> dict[str, Any] | None:
    """The whole stored row that a row with (part of) its key stands for: a query's answer leaves columns out.

    The key is run_id, unit and what else of the family's key the row has; the first that fits in key order.
    """
    run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
    also = {"item": "game"}  # what queries call it
    with session.database.read() as sql:
        for family in families:
            table, query = FAMILIES[family], select(FAMILIES[family]).where(FAMILIES[family].run_id == run_id)
            for column in key_of(family)[1:]:
                name = column.key if column.key in row else also.get(column.key, "")
                if name in row and row[name] is not None:
                    query = query.where(getattr(table, column.key) == row[name])
            if (found := sql.scalars(query.order_by(*key_of(family)).limit(1)).first()) is not None:
                return {**flat(found), "family": family}
    return None
