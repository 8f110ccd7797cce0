"""What there is in a registry, as plain rows for lists and for `--json`. Keys are the tables' columns."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chessreg.errors import NotFoundError
from chessreg.registry import lineage, names, tables

Row = dict[str, Any]


def columns(record: Any) -> Row:
    """A table's row as a dict of its columns, in their order."""
    return {column.key: getattr(record, column.key) for column in record.__table__.columns}


def words(session: Session, noun: str) -> dict[UUID, Row]:
    """What is said now of the things of a noun: name, tags, notes, archived, and why it is invalid, if it is."""
    now = names.NOW
    said: dict[UUID, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for target, word, value in session.execute(
        select(now.c.target, now.c.word, now.c.value).where(now.c.noun == noun).order_by(now.c.at, now.c.value)
    ):
        said[UUID(hex=target)][word].append(value)
    called = names.names(session, noun)
    return {
        target: {
            "name": called.get(target),
            "tags": sorted(spoken["tag"]),
            "notes": spoken["note"],
            "starred": bool(spoken["star"]),
            "pinned": bool(spoken["pin"]),
            "archived": bool(spoken["archive"]),
            "invalid": "; ".join(spoken["invalid"]) if spoken["invalid"] else None,
        }
        for target, spoken in said.items()
    }


NOTHING_SAID: Row = {
    "name": None, "tags": [], "notes": [], "starred": False, "pinned": False, "archived": False, "invalid": None,
}  # fmt: skip


# -- runs -------------------------------------------------------------------------------------------------------------


def done_units(session: Session) -> dict[UUID, int]:
    """Units complete, by run."""
    ranges = tables.UnitRange
    units: dict[UUID, set[int]] = defaultdict(set)
    for run_id, start, stop in session.execute(
        select(ranges.run_id, ranges.start, ranges.stop).join(tables.Run).where(tables.Run.completed_at.is_(None))
    ):
        units[run_id].update(range(start, stop))
    return {run_id: len(found) for run_id, found in units.items()}


def runs(session: Session, *, kind: str | None = None, archived: bool = False) -> list[Row]:
    """Runs, newest last: what they are, how far they are, how often they were tried, where last."""
    query = select(tables.Run).order_by(tables.Run.created_at, tables.Run.id)
    if kind is not None:
        query = query.where(tables.Run.kind == kind)
    said, done, tried = words(session, "run"), done_units(session), attempts(session)
    rotten = lineage.stale(session)
    listed = []
    for record in session.scalars(query):
        spoken = said.get(record.id, NOTHING_SAID)
        if archived or not spoken["archived"]:
            row = summary(record, spoken, done, tried.get(record.id, []))
            listed.append(row | {"stale": record.id in rotten})
    return listed


def summary(record: tables.Run, spoken: Row, done: dict[UUID, int], tried: list[Row]) -> Row:
    complete = record.completed_at is not None
    running = any(attempt["state"] == tables.AttemptState.RUNNING for attempt in tried)
    return {
        **spoken,
        **columns(record),
        "state": "complete" if complete else "running" if running else "partial",
        "done": record.units if complete else done.get(record.id, 0),
        "attempts": len(tried),
        "host": tried[-1]["host"] if tried else None,
    }


def attempts(session: Session, run_id: UUID | None = None) -> dict[UUID, list[Row]]:
    """Attempts by run, oldest first, each with its machine's host."""
    query = select(tables.Attempt, tables.Machine.host).join(
        tables.Machine, tables.Machine.id == tables.Attempt.machine_id, isouter=True
    )
    if run_id is not None:
        query = query.where(tables.Attempt.run_id == run_id)
    found: dict[UUID, list[Row]] = defaultdict(list)
    for record, host in session.execute(query.order_by(tables.Attempt.started_at, tables.Attempt.id)):
        found[record.run_id].append({**columns(record), "host": host})
    return found


def run(session: Session, reference: str) -> Row:
    """One run in full: its spec, what it read and made, every attempt."""
    record = session.get(tables.Run, names.resolve(session, "run", reference))
    if record is None:
        raise NotFoundError(f"there is no run {reference!r}", "chessreg runs list")
    tried = attempts(session, record.id)[record.id]
    inputs = session.scalars(select(tables.RunInput).where(tables.RunInput.run_id == record.id))
    outputs = session.scalars(
        select(tables.Output).where(tables.Output.run_id == record.id).order_by(tables.Output.unit, tables.Output.name)
    )
    spoken = words(session, "run").get(record.id, NOTHING_SAID)
    rests_on = lineage.stale(session).get(record.id, [])
    return {
        **summary(record, spoken, done_units(session), tried),
        "stale": bool(rests_on),
        "rests_on_invalid": [f"{node.noun} {node.id[-6:]}" for node in rests_on],
        "defaulted": sorted(record.spec.keys() - {name.partition(".")[0] for name in record.given}),
        "inputs": [columns(row) for row in inputs],
        "outputs": [columns(row) for row in outputs],
        "conflicts": session.scalar(
            select(func.count()).select_from(tables.Conflict).where(tables.Conflict.run_id == record.id)
        ),
        "tries": tried,
    }


def conflicts(session: Session, reference: str | None = None) -> list[Row]:
    """Results that came a second time and were other than those here, of one run or of all, oldest first."""
    table = tables.Conflict
    query = select(table, tables.Run.kind).join(tables.Run, tables.Run.id == table.run_id, isouter=True)
    if reference is not None:
        query = query.where(table.run_id == names.resolve(session, "run", reference))
    called, hosts = names.names(session, "run"), hosts_of_attempts(session)
    return [
        {"run": called.get(record.run_id), "kind": kind, "host": hosts.get(record.attempt_id), **columns(record)}
        for record, kind in session.execute(query.order_by(table.found_at, table.id))
    ]


def hosts_of_attempts(session: Session) -> dict[UUID, str]:
    pairs = select(tables.Attempt.id, tables.Machine.host).join(
        tables.Machine, tables.Machine.id == tables.Attempt.machine_id
    )
    return dict(session.execute(pairs).tuples().all())


def machines(session: Session) -> list[Row]:
    """Machines that ran something, the one seen last first, with the runs that they had a part in."""
    attempt, running = tables.Attempt, tables.AttemptState.RUNNING
    counts = {
        machine: (runs, now)
        for machine, runs, now in session.execute(
            select(
                attempt.machine_id, func.count(attempt.run_id.distinct()), func.count().filter(attempt.state == running)
            ).group_by(attempt.machine_id)
        )
    }
    query = select(tables.Machine).order_by(tables.Machine.last_seen.desc(), tables.Machine.host, tables.Machine.id)
    told = loads(session)
    return [
        {
            **columns(record),
            "runs": counts.get(record.id, (0, 0))[0],
            "running": counts.get(record.id, (0, 0))[1],
            **told.get(record.id, {"load": None, "load_at": None}),
        }
        for record in session.scalars(query)
    ]


def loads(session: Session) -> dict[UUID, Row]:
    """`load` of each machine on which something runs, as its attempts told it last, and when."""
    attempt = tables.Attempt
    query = (
        select(attempt.machine_id, attempt.load, attempt.checked_in_at)
        .where(attempt.state == tables.AttemptState.RUNNING, attempt.load.is_not(None))
        .order_by(attempt.checked_in_at)
    )
    return {machine: {"load": load, "load_at": at} for machine, load, at in session.execute(query)}
