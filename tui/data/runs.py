"""The runs: a list of them in pages, narrowed by words and sorted by any column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import select

from chessreg.registry import identity, lineage, read, run_filter, tables
from tui.data.pages import ChosenPages, KeysetPages, Pages, Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


def runs(session: Session, text: str = "", sort: str = run_filter.NEWEST_FIRST, metrics: Sequence[str] = ()) -> Pages:
    """The runs that fit the words (registry.run_filter says which), in this order; of `metrics` the last values.

    Raises BadInputError for a field or an order that there is not.
    """
    run = tables.Run
    with session.database.read() as sql:
        stale = lineage.stale(sql)

        def rows(sql: SqlSession, records: Sequence[tables.Run]) -> list[Row]:
            return summaries(sql, records, stale, metrics)

        if text.split() or sort != run_filter.NEWEST_FIRST:
            return ChosenPages(session, run, sql.scalars(run_filter.ids(sql, text, sort)).all(), rows)
        where = run_filter.conditions(sql, text)
    return KeysetPages(session, run, (run.created_at, run.id), where=where, descending=True, rows=rows)


def metric_names(session: Session, ids: Sequence[UUID]) -> list[str]:
    """The metrics that any of these runs has."""
    point = tables.MetricPoint
    with session.database.read() as sql:
        return sorted(sql.scalars(select(point.name).where(point.run_id.in_(ids)).distinct()))


def summaries(
    sql: SqlSession, records: Sequence[tables.Run], stale: Collection[UUID], metrics: Sequence[str] = ()
) -> list[Row]:
    """What `chessreg runs list` says of these runs, and no other run is looked at."""
    ids = [record.id for record in records]
    shown, last = identity.shorts(ids), run_filter.metrics(sql, ids, metrics) if metrics else {}
    return [
        {**row, "short": shown[row["id"].hex], "metrics": last.get(row["id"], {})}
        for row in read.run_rows(sql, ids, stale=stale)
    ]
