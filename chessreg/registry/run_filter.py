"""Runs that fit words, in any order: what `chessreg runs list` and the terminal UI narrow and sort by.

A word must be found in the name, kind, tags, state, machine or end of the id. `~word` takes the letters in this order
with others between them, in name and kind. `field:value` looks at one field, `spec.SETTING:value` at a setting,
`!word` wants it absent. `starred`, `pinned`, `archived`, `invalid` and `stale` are words of their own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    cast,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.orm import Session

from chessreg.errors import BadInputError
from chessreg.registry import lineage, tables
from chessreg.registry.names import holds, unindexed
from chessreg.registry.run_state import DONE, STATE, STATES

FIELDS = ("kind", "name", "state", "machine", "host", "id", "tag", "note", "since", "before")
SEARCHED = ("kind", "name", "state", "machine", "id", "tag")  # by a word that names no field
FLAGS = {"archived": "archive", "starred": "star", "pinned": "pin", "invalid": "invalid"}
SORTS = ("created", "id", "name", "kind", "state", "units", "completed", "machine", "tries", "tags", "starred")
NEWEST_FIRST = "-created"
FEW = 500  # runs that a condition names one by one


def find(session: Session, text: str = "", sort: str = NEWEST_FIRST, *, archived: bool = False) -> list[UUID]:
    """The ids of the runs that fit the words, in this order. Those in the archive only with `archived`, or where a
    word says so.

    `sort` is one of SORTS, spec.SETTING or metric.NAME; a dash before it turns it round. What has no value comes last.
    Raises BadInputError for a field or an order that there is not.
    """
    return [UUID(hex=id) for id in session.scalars(ids(session, text, sort, archived))]


def ids(session: Session, text: str, sort: str, archived: bool = False) -> Select[Any]:
    """The statement that finds the ids as 32 hex digits."""
    where = conditions(session, text, archived)
    return select(hex_of(session)).where(*where).order_by(*order(session, sort))


# -- words ------------------------------------------------------------------------------------------------------------


def conditions(session: Session, text: str, archived: bool = False) -> list[ColumnElement[bool]]:
    """The words of a filter as conditions on `run`."""
    conditions = [condition(session, word) for word in text.split()]
    if not archived and "archived" not in text.split():
        conditions.append(not_(annotated(session, "archive", None)))
    return conditions


def condition(session: Session, word: str) -> ColumnElement[bool]:
    if word.startswith("!") and len(word) > 1:
        return not_(condition(session, word[1:]))
    if word in FLAGS:
        return annotated(session, FLAGS[word], None)
    if word == "stale":
        return tables.Run.id.in_(list(lineage.stale(session)))
    if word.startswith("~"):
        letters = "%".join(escaped(letter) for letter in word[1:])
        return or_(*(by_pattern(session, field, f"%{letters}%") for field in ("name", "kind")))
    field, colon, value = word.partition(":")
    if colon and field.startswith("spec.") and len(field) > 5:
        return by_setting(session, field[5:], value)
    by = lambda field, value: by_field(session, field, value)
    return by_word("runs", word, FIELDS, SEARCHED, by, " and spec.SETTING")


def by_word(
    things: str,
    word: str,
    fields: Sequence[str],
    searched: Sequence[str],
    by_field: Callable[[str, str], ColumnElement[bool]],
    more: str = "",
) -> ColumnElement[bool]:
    """`field:value` as the condition of that field; a word alone is looked for in each of `searched`."""
    field, colon, value = word.partition(":")
    if not colon:
        return or_(*(by_field(name, word) for name in searched))
    if field not in fields:
        raise BadInputError(f"{things} have no {field!r} to look at", f"fields are {', '.join(fields)}{more}")
    return by_field(field, value)


def by_field(session: Session, field: str, value: str) -> ColumnElement[bool]:
    run = tables.Run
    if not value:  # `kind:` while it is typed
        return true()
    if field == "id":
        digits = value.lower().replace("-", "")
        return hex_of(session).like(f"%{digits}") if digits and set(digits) <= set("0123456789abcdef") else false()
    if field in ("since", "before"):
        return run.created_at >= moment(value) if field == "since" else run.created_at < moment(value)
    if field != "state":
        return by_pattern(session, field, f"%{escaped(value)}%")
    fits = [state for state in STATES if state.startswith(value.lower())]
    return STATE.in_(fits) if fits else false()


def by_pattern(session: Session, field: str, pattern: str) -> ColumnElement[bool]:
    run, attempt, machine = tables.Run, tables.Attempt, tables.Machine
    if field == "kind":
        every = kinds(session)
        fit = session.execute(select(*(like(session, literal(each), pattern) for each in every))).one() if every else ()
        wanted = list(itertools.compress(every, fit))
        return unindexed(run.kind).in_(wanted) if wanted else false()  # by the index they do not come by time
    if field in ("machine", "host"):
        there = session.scalars(select(machine.id).where(like(session, machine.host, pattern))).all()
        return exists().where(attempt.run_id == run.id, attempt.machine_id.in_(there)) if there else false()
    return annotated(session, field, pattern)


def kinds(session: Session) -> list[str]:
    """The kinds that runs have, each found by the index: they are few."""
    found, kind = list[str](), tables.Run.kind
    while (next_one := session.scalar(select(func.min(kind)).where(*(kind > last for last in found[-1:])))) is not None:
        found.append(next_one)
    return found


def like(session: Session, column: Any, pattern: str) -> ColumnElement[bool]:
    """Whether a text fits a pattern, without regard to the case of ASCII letters. SQLite's LIKE knows no case already:
    lower() of both sides would take twice as long; so would ILIKE of PostgreSQL by the rules of a language."""
    sqlite = session.get_bind().dialect.name == "sqlite"
    fits: ColumnElement[bool] = (column.like if sqlite else column.collate("C").ilike)(pattern, escape="\\")
    return fits


def by_setting(session: Session, name: str, value: str) -> ColumnElement[bool]:
    """Whether a setting is `value`, or, of a text, contains it."""
    text = func.lower(setting(session, name, text=True))
    if not value:
        return text.is_not(None)
    wanted = value.lower()
    try:
        number = float(wanted)
    except ValueError:
        truth = {"true": "1", "yes": "1", "false": "0", "no": "0"}  # as SQLite has it
        return or_(text.like(f"%{escaped(wanted)}%", escape="\\"), text == truth.get(wanted, wanted))
    return text.in_({wanted, repr(number), f"{number:.0f}" if number.is_integer() else wanted})


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def hex_of(session: Session) -> ColumnElement[str]:
    """A run's id as 32 hex digits, in SQL."""
    if session.get_bind().dialect.name == "postgresql":
        return func.replace(cast(tables.Run.id, String), "-", "")
    return type_coerce(tables.Run.id, String)


def annotated(session: Session, word: str, pattern: str | None) -> ColumnElement[bool]:
    """Whether a present annotation of the run matches `pattern`.

    Texts are looked through once: where FEW runs at most have one that fits, the condition is a list of these runs.
    Where there are more, each run is tested as it comes, and a page of them is full soon.
    """
    if pattern is None:
        return hex_of(session).in_(targets_of(word))
    run, annotation = tables.Run, tables.Annotation
    fits = like(session, annotation.value, pattern)
    few = session.scalars(targets_of(word).where(fits).limit(FEW + 1)).all()
    if len(few) <= FEW:
        return run.id.in_({UUID(hex=target) for target in few}) if few else false()
    its = annotation.noun == "run", annotation.target == hex_of(session), unindexed(annotation.word) == word
    return exists().where(*its, fits, *holds()).correlate(run)


def targets_of(word: str) -> Select[Any]:
    """Targets of the present annotations of runs with this word. The same as view annotation_now has, but through the
    index: the view numbers every annotation of the registry first."""
    annotation = tables.Annotation
    return select(annotation.target).where(annotation.noun == "run", annotation.word == tables.Word(word), *holds())


def setting(session: Session, name: str, *, text: bool = False) -> Any:
    """A setting of the spec in SQL, `skill.bins` one inside another: as text, or as what sorts as numbers do."""
    path = name.split(".")
    if session.get_bind().dialect.name == "postgresql":
        get: Any = getattr(func, "jsonb_extract_path_text" if text else "jsonb_extract_path")
        return get(tables.Run.spec, *path)
    value = func.json_extract(tables.Run.spec, "$" + "".join(f'."{key}"' for key in path))
    return cast(value, String) if text else value


# -- order ------------------------------------------------------------------------------------------------------------


def order(session: Session, sort: str, from_end: bool = False) -> list[Any]:
    """What to order by: the value, then the newest first, so that the order is always the same; or the same from its
    end."""
    run = tables.Run
    key, falls = sort.removeprefix("-"), sort.startswith("-")
    value = sort_value(session, key)
    ties = [(run.id, falls)] if key == "created" else [(run.created_at, True), (run.id, True)]
    by = [(value, falls), *ties]
    first, *others = (column.desc() if down is not from_end else column.asc() for column, down in by)
    if key != "created":  # what has no NULL is found by its index, which the order of NULLs would keep PostgreSQL from
        first = first.nulls_first() if from_end else first.nulls_last()
    return [first, *others]


def sort_value(session: Session, key: str) -> ColumnElement[Any]:
    run, attempt, machine = tables.Run, tables.Attempt, tables.Machine
    if key.startswith("spec.") and len(key) > 5:
        return type_coerce(setting(session, key[5:]), String)
    if key.startswith("metric.") and len(key) > 7:
        return last_metric(key[7:])
    if key in ("created", "completed", "id", "kind"):
        columns: dict[str, Any] = {
            "created": run.created_at,
            "completed": run.completed_at,
            "id": run.id,
            "kind": run.kind,
        }
        return columns[key]
    if key in ("name", "tags", "starred"):
        word = {"name": "name", "tags": "tag", "starred": "star"}[key]
        annotation = tables.Annotation
        of_run = annotation.noun == "run", annotation.target == hex_of(session), unindexed(annotation.word) == word
        return select(func.min(annotation.value)).where(*of_run, *holds()).correlate(run).scalar_subquery()
    mine = attempt.run_id == run.id
    if key == "tries":
        return select(func.count()).where(mine).correlate(run).scalar_subquery()
    if key == "machine":
        last = select(machine.host).join(attempt, attempt.machine_id == machine.id).where(mine)
        return last.order_by(attempt.started_at.desc(), attempt.id.desc()).limit(1).correlate(run).scalar_subquery()
    if key in ("state", "units"):
        return STATE if key == "state" else DONE
    raise BadInputError(f"runs are not sorted by {key!r}", f"by {', '.join(SORTS)}, spec.SETTING or metric.NAME")


def last_metric(name: str) -> ColumnElement[Any]:
    """The last value of a metric of a run, of its first unit that has it."""
    point = tables.MetricPoint
    query = select(point.value).where(point.run_id == tables.Run.id, point.name == name)
    return query.order_by(point.unit, point.step.desc()).limit(1).correlate(tables.Run).scalar_subquery()


def metrics(session: Session, runs: list[UUID], names: Sequence[str]) -> dict[UUID, dict[str, float | None]]:
    """The last values of these metrics of these runs, each of the run's first unit that has it."""
    values = [last_metric(name) for name in names]
    rows = session.execute(select(tables.Run.id, *values).where(tables.Run.id.in_(runs)))
    return {run_id: dict(zip(names, last, strict=True)) for run_id, *last in rows}


AGO = re.compile(r"(\d+)\s*([hdw])")
HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def moment(text: str, now: datetime | None = None) -> datetime:
    """A point in time: an ISO date or time (UTC unless it says otherwise), or how long ago: 12h, 7d, 2w.

    >>> moment("2026-01-31").isoformat()
    '2026-01-31T00:00:00+00:00'
    """
    if ago := AGO.fullmatch(text.strip().lower()):
        try:
            return (now or datetime.now(UTC)) - timedelta(hours=int(ago[1]) * HOURS[ago[2]])
        except OverflowError:
            raise BadInputError(f"{text!r} is before the first year", "for example --since 7d") from None
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInputError(f"{text!r} is no date", "for example --since 2026-01-31, or --since 7d") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
