"""The runs: a list of them in pages, narrowed by words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, String, and_, cast, exists, func, literal, not_, or_, select, type_coerce
from sqlalchemy.orm import aliased

from chessreg.errors import BadInputError
from chessreg.jobs import listing
from chessreg.registry import identity, names, tables
from tui.data.keyset import ChosenPages, KeysetPages
from tui.data.pages import Pages, Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session

FIELDS = ("kind", "name", "state", "machine", "id", "tag")
STATES = ("complete", "partial", "running")


def runs(session: Session, text: str = "") -> Pages:
    """The runs that fit the words, newest first; those in the archive only where a word asks for `archived`.

    Each word must be found in kind, name, tag, state, machine or the end of the id; `kind:edit` looks at one of them,
    `!word` wants it absent. Raises BadInputError for a field that there is not.
    """
    run = tables.Run
    conditions = [condition(session, word) for word in text.split()]
    if "archived" not in text.split():
        conditions.append(not_(said(session, "archive", None)))
    if not text.split():
        return KeysetPages(session, run, (run.created_at, run.id), where=conditions, descending=True, rows=summaries)
    order = select(hex_of(session)).where(*conditions).order_by(run.created_at.desc(), run.id.desc())
    with session.database.read() as sql:
        return ChosenPages(session, run, sql.scalars(order).all(), summaries)


def condition(session: Session, word: str) -> ColumnElement[bool]:
    """One word of the filter as a condition on `run`."""
    if word.startswith("!") and len(word) > 1:
        return not_(condition(session, word[1:]))
    if word == "archived":
        return said(session, "archive", None)
    field, colon, value = word.partition(":")
    if colon and field in FIELDS:
        return by_field(session, field, value)
    if colon:
        raise BadInputError(f"runs have no {field!r} to look at", f"fields are {', '.join(FIELDS)}")
    return or_(*(by_field(session, field, word) for field in FIELDS))


def by_field(session: Session, field: str, value: str) -> ColumnElement[bool]:
    run, attempt = tables.Run, tables.Attempt
    if not value:  # `kind:` while it is typed
        return not_(no())
    pattern = "%" + value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    if field == "kind":
        return run.kind.ilike(pattern, escape="\\")
    if field == "id":
        digits = value.lower().replace("-", "")
        return hex_of(session).like(f"%{digits}") if digits and set(digits) <= set("0123456789abcdef") else no()
    if field in ("name", "tag"):
        return said(session, field, pattern)
    if field == "machine":
        machine = tables.Machine
        there = select(machine.id).where(machine.host.ilike(pattern, escape="\\"))
        return exists().where(attempt.run_id == run.id, attempt.machine_id.in_(there))
    running = exists().where(attempt.run_id == run.id, attempt.state == tables.AttemptState.RUNNING)
    is_state = {
        "complete": run.completed_at.is_not(None),
        "running": and_(run.completed_at.is_(None), running),
        "partial": and_(run.completed_at.is_(None), not_(running)),
    }
    fits = [is_state[state] for state in STATES if state.startswith(value.lower())]
    return or_(*fits) if fits else no()


def no() -> ColumnElement[bool]:
    return literal(1) == literal(0)


def hex_of(session: Session) -> ColumnElement[str]:
    """A run's id as 32 hex digits, in SQL."""
    if session.database.dialect == "postgresql":
        return func.replace(cast(tables.Run.id, String), "-", "")
    return type_coerce(tables.Run.id, String)


def said(session: Session, word: str, pattern: str | None) -> ColumnElement[bool]:
    """Whether something like `pattern` is said of the run now."""
    spoken = now_said(word)
    if pattern is not None:
        spoken = spoken.where(tables.Annotation.value.ilike(pattern, escape="\\"))
    return hex_of(session).in_(spoken)


def now_said(word: str) -> Select[Any]:
    """Targets of what is said of runs with this word now. The same as view annotation_now has, but through the index:
    the view numbers every annotation of the registry first."""
    said, later = tables.Annotation, aliased(tables.Annotation)
    newer = or_(later.at > said.at, and_(later.at == said.at, later.id > said.id))
    same = (later.noun == said.noun, later.target == said.target, later.word == said.word, later.value == said.value)
    return select(said.target).where(
        said.noun == "run", said.word == tables.Word(word), not_(said.withdrawn), not_(exists().where(*same, newer))
    )


def summaries(sql: SqlSession, records: Sequence[tables.Run]) -> list[Row]:
    """What `chessreg runs list` says of these runs, and no other run is looked at."""
    ids = [record.id for record in records]
    spoken, done, tried = words(sql, ids), done_units(sql, ids), attempts(sql, ids)
    shown = identity.shorts(ids)
    return [
        {
            **listing.summary(record, spoken.get(record.id, listing.NOTHING_SAID), done, tried[record.id]),
            "short": shown[record.id.hex],
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
        now_said("name")
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
