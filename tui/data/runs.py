"""The runs: a list of them in pages, narrowed by words and sorted by any column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select

from chessreg.registry import identity, lineage, names, tables
from chessreg.registry import read as listing
from chessreg.registry import run_filter as finding
from tui.data.keyset import ChosenPages, KeysetPages
from tui.data.pages import Pages, Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


def runs(session: Session, text: str = "", sort: str = finding.NEWEST_FIRST, metrics: Sequence[str] = ()) -> Pages:
    """The runs that fit the words (registry.run_filter says which), in this order; of `metrics` the last values.

    Raises BadInputError for a field or an order that there is not.
    """
    run = tables.Run
    with session.database.read() as sql:
        stale = lineage.stale(sql)

        def rows(sql: SqlSession, records: Sequence[tables.Run]) -> list[Row]:
            return summaries(sql, records, stale, metrics)

        if text.split() or sort != finding.NEWEST_FIRST:
            return ChosenPages(session, run, sql.scalars(finding.ids(sql, text, sort)).all(), rows)
        where = finding.conditions(sql, text)
    return KeysetPages(session, run, (run.created_at, run.id), where=where, descending=True, rows=rows)


def metric_names(session: Session, ids: Sequence[UUID]) -> list[str]:
    """The metrics that any of these runs has."""
    point = tables.MetricPoint
    with session.database.read() as sql:
        return sorted(sql.scalars(select(point.name).where(point.run_id.in_(ids)).distinct()))


def summaries(
    sql: SqlSession, records: Sequence[tables.Run], stale: Mapping[UUID, Any], metrics: Sequence[str] = ()
) -> list[Row]:
    """What `chessreg runs list` says of these runs, and no other run is looked at."""
    ids = [record.id for record in records]
    spoken, done, tried = words(sql, ids), done_units(sql, ids), attempts(sql, ids)
    shown, last = identity.shorts(ids), finding.metrics(sql, ids, metrics) if metrics else {}
    return [
        {
            **listing.summary(record, spoken.get(record.id, listing.NOTHING_SAID), done, tried[record.id]),
            "stale": record.id in stale,
            "short": shown[record.id.hex],
            "metrics": last.get(record.id, {}),
        }
        for record in records
    ]


def words(sql: SqlSession, ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Names, tags and the like of these runs; a name that several runs have is written name@host."""
    now = names.NOW
    mine = select(now.c.target, now.c.word, now.c.value, now.c.host).where(
        now.c.noun == "run", now.c.target.in_([id.hex for id in ids])
    )
    said: dict[UUID, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for target, word, value, host in sql.execute(mine.order_by(now.c.at, now.c.value)):
        said[UUID(hex=target)][word].append((value, host))
    called = {target: spoken["name"][-1] for target, spoken in said.items() if spoken["name"]}
    said_by = tables.Annotation
    holders = (
        finding.now_said("name")
        .where(said_by.value.in_([name for name, _ in called.values()]))
        .with_only_columns(said_by.value)
        .group_by(said_by.value)
        .having(func.count(said_by.target.distinct()) > 1)
    )
    shared = set(sql.scalars(holders)) if called else set()
    return {
        target: {
            "name": (f"{called[target][0]}@{called[target][1]}" if called[target][0] in shared else called[target][0])
            if target in called
            else None,
            "tags": sorted(value for value, _ in spoken["tag"]),
            "notes": [value for value, _ in spoken["note"]],
            "starred": bool(spoken["star"]),
            "pinned": bool(spoken["pin"]),
            "archived": bool(spoken["archive"]),
            "invalid": "; ".join(value for value, _ in spoken["invalid"]) if spoken["invalid"] else None,
        }
        for target, spoken in said.items()
    }


def done_units(sql: SqlSession, ids: Sequence[UUID]) -> dict[UUID, int]:
    """Complete units of the unfinished among these runs. Ranges may overlap."""
    ranges = tables.UnitRange
    found: dict[UUID, list[tuple[int, int]]] = defaultdict(list)
    query = select(ranges.run_id, ranges.start, ranges.stop).join(tables.Run)
    query = query.where(ranges.run_id.in_(ids), tables.Run.completed_at.is_(None))
    for run_id, start, stop in sql.execute(query.order_by(ranges.run_id, ranges.start)):
        found[run_id].append((start, stop))
    done: dict[UUID, int] = {}
    for run_id, spans in found.items():
        total, reached = 0, 0
        for start, stop in spans:
            total += max(0, stop - max(start, reached))
            reached = max(reached, stop)
        done[run_id] = total
    return done


def attempts(sql: SqlSession, ids: Sequence[UUID]) -> dict[UUID, list[dict[str, Any]]]:
    """State and host of the attempts of these runs, oldest first."""
    attempt, machine = tables.Attempt, tables.Machine
    query = (
        select(attempt.run_id, attempt.state, machine.host)
        .join(machine, machine.id == attempt.machine_id, isouter=True)
        .where(attempt.run_id.in_(ids))
        .order_by(attempt.started_at, attempt.id)
    )
    found: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
    for run_id, state, host in sql.execute(query):
        found[run_id].append({"state": state, "host": host})
    return found
