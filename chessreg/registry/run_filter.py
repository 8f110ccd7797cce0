"""Filtering and sorting of runs, for `chessreg runs list` and the terminal UI.

A word must occur in the name, kind, tags, state, machine or end of the id. `~word` matches its letters in this order,
with others between them, in name and kind. `field:value` tests one field, `spec.SETTING:value` a setting and
`metric.NAME:value` a last value. `=`, `!=`, `<`, `<=`, `>` and `>=` compare numbers, times (`2026-11`, `7d` ago; UTC)
and texts. `!word` negates. `starred`, `pinned`, `archived`, `invalid` and `stale` are separate words and also
fields, as in `starred:no`.
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
    Float,
    Select,
    String,
    and_,
    case,
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
from chessreg.registry import lineage, read, tables, words
from chessreg.registry.names import disable_index, is_current
from chessreg.registry.run_state import END, ENDS, FAILURES, STATE, STATES, UNITS_DONE
from chessreg.registry.words import COMPARISONS, TRUTH_WORDS

TEXT_FIELDS, NUMBER_FIELDS, TIME_FIELDS = (
    ("kind", "name", "machine", "tag", "note"),
    ("units", "tries"),
    ("created", "completed"),
)
FLAG_WORDS = {"starred": "star", "pinned": "pin", "archived": "archive", "invalid": "invalid"}
MARK_FIELDS = (*FLAG_WORDS, "stale")
FIELDS = ("state", *TEXT_FIELDS, "id", *NUMBER_FIELDS, *TIME_FIELDS, "since", "before", *MARK_FIELDS)
FIELD_ALIASES = {"host": "machine", "tags": "tag", "notes": "note", "done": "units", "star": "starred", "pin": "pinned"}
SEARCHED_FIELDS = ("kind", "name", "state", "machine", "id", "tag")  # by a plain word
SORT_KEYS = ("created", "id", "name", "kind", "state", "units", "completed", "machine", "tries", "tags", "starred")
NEWEST_FIRST = "-created"
MAX_LISTED_RUNS = 500  # in one condition


def find_runs(session: Session, text: str = "", sort: str = NEWEST_FIRST, *, archived: bool = False) -> list[UUID]:
    """Return the ids of the runs that match `text`, sorted by `sort`.

    Archived runs are included only with `archived`, or if a word tests `archived`. `sort` is one of SORT_KEYS,
    spec.SETTING or metric.NAME; a leading dash reverses it. Runs without a value come last. Raises BadInputError for an
    unknown field or sort key.
    """
    return [UUID(hex=id) for id in session.scalars(select_run_ids(session, text, sort, archived))]


def list_matching_runs(
    session: Session, text: str = "", *, kind: str | None = None, archived: bool = False, sort: str = ""
) -> list[read.Row]:
    """Return the rows of the runs that match all words, sorted by `sort` or else newest last. Raises the errors of
    `find_runs`.
    """
    rows = read.list_runs(session, kind=kind, archived=archived or "archived" in text.split())
    if not text and not sort:
        return rows
    by_id = {row["id"]: row for row in rows}
    return [by_id[id] for id in find_runs(session, text, sort or "created", archived=archived) if id in by_id]


def select_run_ids(session: Session, text: str, sort: str, archived: bool = False) -> Select[Any]:
    """Return the statement that selects the ids of runs that match the filter `text`, as 32 hex digits, ordered by
    `sort`.

    `archived` includes archived runs.
    """
    conditions = filter_conditions(session, text, archived)
    return select(build_run_id_hex(session)).where(*conditions).order_by(*make_sort_columns(session, sort))


# -- words ------------------------------------------------------------------------------------------------------------


def filter_conditions(session: Session, text: str, archived: bool = False) -> list[ColumnElement[bool]]:
    """Return the words of a filter as SQL conditions on `run`."""
    filter_words = words.split_words(text)
    conditions = [match_run_word(session, word) for word in filter_words]
    if not archived and not any((words.parse_term(word) or (word,))[0] == "archived" for word in filter_words):
        conditions.append(not_(match_annotation(session, "archive", None)))
    return conditions


def match_run_word(session: Session, word: str) -> ColumnElement[bool]:
    """Return the SQL condition of one word of a filter."""
    if word.startswith("!") and len(word) > 1:
        return not_(match_run_word(session, word[1:]))
    if word in MARK_FIELDS:
        return match_mark(session, word)
    if word.startswith("~"):
        letters = "%".join(escape_like(letter) for letter in word[1:])
        return or_(*(match_pattern(session, field, f"%{letters}%") for field in ("name", "kind")))

    def match_term(field: str, sign: str, value: str) -> ColumnElement[bool]:
        field = FIELD_ALIASES.get(field, field)
        if field.startswith("spec.") and len(field) > 5:
            return match_setting(session, field[5:], sign, value)
        if field.startswith("metric.") and len(field) > 7:
            return match_number(field, select_last_metric_value(field[7:]), sign, value)
        return match_run_field(session, field, sign, value)

    fields = (*FIELDS, *FIELD_ALIASES, "spec.SETTING", "metric.NAME")
    return match_word("runs", word, fields, SEARCHED_FIELDS, match_term)


def match_word(
    things: str,
    word: str,
    fields: Sequence[str],
    searched_fields: Sequence[str],
    by_field: Callable[[str, str, str], ColumnElement[bool]],
) -> ColumnElement[bool]:
    """Return the condition for a word: `field:value` tests that field, a plain word each of `searched_fields`.

    `by_field` makes the condition from field, sign and value. A field written `spec.SETTING` in `fields` stands for all
    fields that begin with `spec.`. Raises BadInputError for an unknown field; `things` names the rows in its message.
    """
    term = words.parse_term(word)
    if term is None:
        return or_(*(by_field(name, ":", word.replace('"', "")) for name in searched_fields))
    field, sign, value = term
    begins = tuple(name.partition(".")[0] + "." for name in fields if "." in name)
    if field not in fields and not (begins and field.startswith(begins)):
        raise BadInputError(f"{things} have no field {field!r}", f"fields are {', '.join(fields)}")
    if sign == "!=":
        return not_(by_field(field, "=", value))
    return by_field(field, sign, value)


def match_run_field(session: Session, field: str, sign: str, value: str) -> ColumnElement[bool]:
    """Return the condition that `field` of the table `run` compares by `sign` (`=`, `:`, `<`, …) to `value`.

    An empty value matches everything.
    """
    run = tables.Run
    if not value:  # `kind:` while it is typed
        return true()
    if field == "id":
        digits = value.lower().replace("-", "")
        return (
            build_run_id_hex(session).like(f"%{digits}")
            if digits and set(digits) <= set("0123456789abcdef")
            else false()
        )
    if field in ("since", "before"):
        return run.created_at >= parse_moment(value) if field == "since" else run.created_at < parse_moment(value)
    if field in TIME_FIELDS:
        return match_time(build_sort_value(session, field), sign, value)
    if field in NUMBER_FIELDS:
        return match_number(field, build_sort_value(session, field), sign, value)
    if field in MARK_FIELDS:
        if (truth := TRUTH_WORDS.get(value.lower())) is None:
            raise BadInputError(f"{field} must be yes or no, not {value!r}", f"{field}:yes")
        return match_mark(session, field) if truth else not_(match_mark(session, field))
    if sign in "=:":
        return (
            match_state(session, sign, value)
            if field == "state"
            else match_pattern(session, field, build_like_pattern(sign, value))
        )
    order = {"tag": "tags", "note": "notes"}.get(field, field)
    return match_text(build_sort_value(session, order), sign, value)


def match_state(session: Session, sign: str, value: str) -> ColumnElement[bool]:
    """Return the condition for a state as lists show it: either word finds `partial (failed)` or `complete (invalid)`.

    `failed` finds all runs that did not end well, as the home screen counts them; `ended` finds every run that has
    ended.
    """
    value = value.lower()
    states = {state for state in STATES if (state == value if sign == "=" else state.startswith(value))}
    states |= {"failed": set(FAILURES), "ended": set(ENDS)}.get(value, set())  # whole words only: `e` may begin a name
    conditions = [STATE.in_(states), func.coalesce(END.in_(states), false())] if states else []
    conditions += [match_mark(session, mark) for mark in ("invalid", "stale") if mark.startswith(value)]
    return or_(*conditions) if conditions else false()


def match_number(field: str, number: Any, sign: str, value: str) -> ColumnElement[bool]:
    """Return the condition that compares a number with `value`. Raises BadInputError if `value` is not a number."""
    if not value:
        return true()
    try:
        wanted_number = float(value.replace(",", ""))
    except ValueError:
        raise BadInputError(f"{field} must be a number, not {value!r}", f"{field}>5") from None
    is_whole_number = wanted_number.is_integer() and abs(wanted_number) < 2**53
    return func.coalesce(COMPARISONS[sign](number, int(wanted_number) if is_whole_number else wanted_number), false())


def match_text(text: Any, sign: str, value: str) -> ColumnElement[bool]:
    """Return the condition that compares a text with `value`, ignoring case."""
    return func.coalesce(COMPARISONS[sign](func.lower(text), value.lower()), false())


def match_time(time: Any, sign: str, value: str) -> ColumnElement[bool]:
    """Return the condition for a period: `>` means after its last moment, `<` before its first."""
    if not value:
        return true()
    start, end = parse_period(value)
    comparisons = {">": time >= end, ">=": time >= start, "<": time < start, "<=": time < end}
    return func.coalesce(comparisons.get(sign, and_(time >= start, time < end)), false())


def build_like_pattern(sign: str, value: str) -> str:
    """Return the LIKE pattern for `value`: exact for `=`, else anywhere in the text."""
    return escape_like(value) if sign == "=" else f"%{escape_like(value)}%"


def match_mark(session: Session, mark: str) -> ColumnElement[bool]:
    """Return the condition that a run has a mark: starred, pinned, archived, invalid or stale."""
    if mark == "stale":
        return tables.Run.id.in_(list(lineage.find_stale_runs(session)))
    return match_annotation(session, FLAG_WORDS[mark], None)


def match_pattern(session: Session, field: str, pattern: str) -> ColumnElement[bool]:
    """Return the condition that a text field of `run` matches a LIKE pattern."""
    run, attempt, machine = tables.Run, tables.Attempt, tables.Machine
    if field == "kind":
        every = list_run_kinds(session)
        fit = (
            session.execute(select(*(match_like(session, literal(each), pattern) for each in every))).one()
            if every
            else ()
        )
        matching_texts = list(itertools.compress(every, fit))
        return (
            disable_index(run.kind).in_(matching_texts) if matching_texts else false()
        )  # the index would not return them by time
    if field in ("machine", "host"):
        machine_ids = session.scalars(select(machine.id).where(match_like(session, machine.host, pattern))).all()
        return exists().where(attempt.run_id == run.id, attempt.machine_id.in_(machine_ids)) if machine_ids else false()
    return match_annotation(session, field, pattern)


def list_run_kinds(session: Session) -> list[str]:
    """Return the kinds of all runs. Each is found by one index lookup, since kinds are few."""
    kinds, kind = list[str](), tables.Run.kind
    while (
        next_kind := session.scalar(select(func.min(kind)).where(*(kind > last for last in kinds[-1:])))
    ) is not None:
        kinds.append(next_kind)
    return kinds


def match_like(session: Session, column: Any, pattern: str) -> ColumnElement[bool]:
    """Return the condition that a text matches a pattern, ignoring the case of ASCII letters.

    SQLite's LIKE ignores case already. lower() on both sides would take twice as long, and so would PostgreSQL's ILIKE
    with a locale's collation.
    """
    sqlite = session.get_bind().dialect.name == "sqlite"
    matches: ColumnElement[bool] = (column.like if sqlite else column.collate("C").ilike)(pattern, escape="\\")
    return matches


def match_setting(session: Session, name: str, sign: str, value: str) -> ColumnElement[bool]:
    """Return the condition on the setting `name`, a dotted path.

    The sign `=` tests equality with `value`, `:` also finds part of a text, and others compare.
    """
    text = func.lower(select_setting_value(session, name, text=True))
    if not value:
        return text.is_not(None)
    lowercase = value.lower()
    try:
        number = float(lowercase)
    except ValueError:
        if sign not in "=:":
            return match_text(text, sign, value)
        truth = {"true": "1", "yes": "1", "false": "0", "no": "0"}  # as SQLite stores it
        contains = [text.like(f"%{escape_like(lowercase)}%", escape="\\")] if sign == ":" else []
        return func.coalesce(or_(*contains, text == lowercase, text == truth.get(lowercase, lowercase)), false())
    if sign not in "=:":
        return func.coalesce(COMPARISONS[sign](select_setting_number(session, name), number), false())
    is_number_equal = text.in_({lowercase, repr(number), f"{number:.0f}" if number.is_integer() else lowercase})
    # As a number too: SQLite writes 1e-05 as 1.0e-05.
    return func.coalesce(or_(is_number_equal, select_setting_number(session, name) == number), false())


def escape_like(value: str) -> str:
    """Escape the wildcards of LIKE in `value`."""
    return value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def build_run_id_hex(session: Session) -> ColumnElement[str]:
    """Return the SQL expression of a run's id as 32 hex digits."""
    if session.get_bind().dialect.name == "postgresql":
        return func.replace(cast(tables.Run.id, String), "-", "")
    return type_coerce(tables.Run.id, String)


def match_annotation(session: Session, word: str, pattern: str | None) -> ColumnElement[bool]:
    """Return the condition that a current annotation of the run matches `pattern` (None: that there is one).

    If at most MAX_LISTED_RUNS runs match, the condition lists them. Otherwise each run is tested as it is read, and a
    page of results fills quickly.
    """
    if pattern is None:
        return build_run_id_hex(session).in_(select_annotated_targets(word))
    run, annotation = tables.Run, tables.Annotation
    matches = match_like(session, annotation.value, pattern)
    few = session.scalars(select_annotated_targets(word).where(matches).limit(MAX_LISTED_RUNS + 1)).all()
    if len(few) <= MAX_LISTED_RUNS:
        return run.id.in_({UUID(hex=target) for target in few}) if few else false()
    is_annotation_of_run = (
        annotation.noun == "run",
        annotation.target == build_run_id_hex(session),
        disable_index(annotation.word) == word,
    )
    return exists().where(*is_annotation_of_run, matches, *is_current()).correlate(run)


def select_annotated_targets(word: str) -> Select[Any]:
    """Return the statement that selects the targets of current annotations of runs with this word.

    Equals the view annotation_now but uses the index; the view numbers every annotation of the registry first.
    """
    annotation = tables.Annotation
    return select(annotation.target).where(
        annotation.noun == "run", annotation.word == tables.AnnotationWord(word), *is_current()
    )


def select_setting_value(session: Session, name: str, *, text: bool = False) -> Any:
    """Return the SQL expression of a setting, as text or as a sortable value. A dotted name is a nested setting."""
    path = name.split(".")
    if session.get_bind().dialect.name == "postgresql":
        get: Any = getattr(func, "jsonb_extract_path_text" if text else "jsonb_extract_path")
        return get(tables.Run.spec, *path)
    value = func.json_extract(tables.Run.spec, build_json_path(name))
    return cast(value, String) if text else value


def build_json_path(name: str) -> str:
    """Return the JSON path of a dotted setting name, for SQLite."""
    return "$" + "".join(f'."{key}"' for key in name.split("."))


def select_setting_number(session: Session, name: str) -> Any:
    """Return the SQL expression of a numeric setting, NULL if it is not a number."""
    if session.get_bind().dialect.name == "postgresql":
        is_number = func.jsonb_typeof(select_setting_value(session, name)) == "number"
        return case((is_number, cast(select_setting_value(session, name, text=True), Float)))
    kind = func.json_type(tables.Run.spec, build_json_path(name))
    return case((kind.in_(("integer", "real")), type_coerce(select_setting_value(session, name), Float)))


# -- order ------------------------------------------------------------------------------------------------------------


def make_sort_columns(session: Session, sort: str, from_end: bool = False) -> list[Any]:
    """Return the sort columns: the value, then newest first, so that the order is unique. `from_end` reverses all of
    them."""
    run = tables.Run
    key, is_descending = sort.removeprefix("-"), sort.startswith("-")
    value = build_sort_value(session, key)
    ties = [(run.id, is_descending)] if key == "created" else [(run.created_at, True), (run.id, True)]
    by = [(value, is_descending), *ties]
    first_column, *other_columns = (column.desc() if down is not from_end else column.asc() for column, down in by)
    if key != "created":  # with NULLS LAST, PostgreSQL would not use the index
        first_column = first_column.nulls_first() if from_end else first_column.nulls_last()
    return [first_column, *other_columns]


def build_sort_value(session: Session, key: str) -> ColumnElement[Any]:
    """Return the SQL expression of a sort key. Raises BadInputError for an unknown key."""
    run, attempt, machine = tables.Run, tables.Attempt, tables.Machine
    if key.startswith("spec.") and len(key) > 5:
        return type_coerce(select_setting_value(session, key[5:]), String)
    if key.startswith("metric.") and len(key) > 7:
        return select_last_metric_value(key[7:])
    if key in ("created", "completed", "id", "kind"):
        columns: dict[str, Any] = {
            "created": run.created_at,
            "completed": run.completed_at,
            "id": run.id,
            "kind": run.kind,
        }
        return columns[key]
    if key in ("name", "tags", "notes", "starred"):
        word = {"name": "name", "tags": "tag", "notes": "note", "starred": "star"}[key]
        annotation = tables.Annotation
        run_value = (
            annotation.noun == "run",
            annotation.target == build_run_id_hex(session),
            disable_index(annotation.word) == word,
        )
        return select(func.min(annotation.value)).where(*run_value, *is_current()).correlate(run).scalar_subquery()
    is_of_run = attempt.run_id == run.id
    if key == "tries":
        return select(func.count()).where(is_of_run).correlate(run).scalar_subquery()
    if key == "machine":
        last_host = select(machine.host).join(attempt, attempt.machine_id == machine.id).where(is_of_run)
        return (
            last_host.order_by(attempt.started_at.desc(), attempt.id.desc()).limit(1).correlate(run).scalar_subquery()
        )
    if key in ("state", "units"):
        return STATE if key == "state" else UNITS_DONE
    raise BadInputError(f"runs cannot be sorted by {key!r}", f"by {', '.join(SORT_KEYS)}, spec.SETTING or metric.NAME")


def select_last_metric_value(name: str) -> ColumnElement[Any]:
    """Return the SQL expression of a metric's last value, in the first unit of the run that has the metric."""
    point = tables.MetricPoint
    query = select(point.value).where(point.run_id == tables.Run.id, point.name == name)
    return query.order_by(point.unit, point.step.desc()).limit(1).correlate(tables.Run).scalar_subquery()


def read_last_metrics(session: Session, runs: list[UUID], names: Sequence[str]) -> dict[UUID, dict[str, float | None]]:
    """Return run id → metric name → last value, in the first unit that has the metric. None without a value."""
    values = [select_last_metric_value(name) for name in names]
    rows = session.execute(select(tables.Run.id, *values).where(tables.Run.id.in_(runs)))
    return {run_id: dict(zip(names, last, strict=True)) for run_id, *last in rows}


AGO_PATTERN = re.compile(r"(\d+)\s*([hdw])")
UNIT_HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def parse_moment(text: str, now: datetime | None = None) -> datetime:
    """Parse a point in time: an ISO date or time (UTC by default), or an age such as 12h, 7d or 2w.

    >>> parse_moment("2026-01-31").isoformat()
    '2026-01-31T00:00:00+00:00'

    Raises BadInputError for other texts.
    """
    if age := AGO_PATTERN.fullmatch(text.strip().lower()):
        try:
            return (now or datetime.now(UTC)) - timedelta(hours=int(age[1]) * UNIT_HOURS[age[2]])
        except OverflowError:
            raise BadInputError(f"{text!r} is before the first year", "for example --since 7d") from None
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInputError(f"{text!r} is not a date", "for example --since 2026-01-31, or --since 7d") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


DATE_PATTERN = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")


def parse_period(text: str) -> tuple[datetime, datetime]:
    """Return the start and the end of a year, month, day or minute. `7d` is the day seven days ago.

    >>> [time.isoformat() for time in parse_period("2026-12")]
    ['2026-12-01T00:00:00+00:00', '2027-01-01T00:00:00+00:00']

    Raises BadInputError for other texts.
    """
    date, age = DATE_PATTERN.fullmatch(text.strip()), AGO_PATTERN.fullmatch(text.strip().lower())
    year, month, day = (int(part) if part else None for part in date.groups()) if date else (None, None, None)
    start = parse_moment(f"{year:04}-{month or 1:02}-{day or 1:02}" if date else text)
    span = timedelta(hours=UNIT_HOURS[age[2]]) if age else timedelta(minutes=1)
    try:
        end = start + (timedelta(days=1 if day else 31 if month else 366) if date else span)
    except OverflowError:
        raise BadInputError(f"{text!r} is in the last year", "for example 2026-11") from None
    return start, end.replace(day=1, month=end.month if month else 1) if date and not day else end
