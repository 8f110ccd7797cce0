"""Ingest: copies fragments to the registry, each exactly once. The only writer of results.

The rows of a fragment and the fragment's id are inserted in one transaction, so a second ingest does nothing. Rows of a
unit that is already complete are compared with the stored ones: equal rows are skipped, differing ones are recorded as
conflicts. The first complete row wins.
"""

from __future__ import annotations

import gc
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import Column, Dialect, LargeBinary, Table, Uuid, insert, select, text, update
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.orm import Session

from chessreg.errors import DAMAGE_ERRORS, ChessregError, RegistryError, get_first_line, reraise_lack_of_memory
from chessreg.registry import tables
from chessreg.registry.database import Database, select_by_keys
from chessreg.registry.engines import FOREIGN_KEY, SchemaError
from chessreg.registry.identity import make_id
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.registry.run_state import count_done, read_complete_units
from chessreg.registry.tables.types import (
    UtcDateTime,
    crop_model_texts,
    get_utc_now,
    list_model_text_columns,
    replace_nul,
    require_admissible,
)
from store.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

    from store import Store
    from store.fragments import Fragment

TABLES: Mapping[str, Table] = tables.Base.metadata.tables  # includes tables of packages once loaded
ATTEMPT_UPDATES = ("check_in", "attempt_end")


class MissingParentError(ChessregError):
    """Raised when a fragment arrives before one that it refers to."""


@dataclass
class IngestReport:
    """The numbers of ingested fragments and rows, and the fragments that were not ingested."""

    fragments: int = 0
    rows: int = 0
    repeated: int = 0
    conflicts: int = 0
    set_aside: dict[str, str] = field(default_factory=dict)  # fragment → why it was quarantined
    waiting: dict[str, str] = field(default_factory=dict)  # fragment → why it waits

    def list_quarantine_reasons(self, run_id: UUID) -> list[str]:
        """Return the reasons why fragments of a run were quarantined."""
        return [reason for name, reason in self.set_aside.items() if name.endswith(f".{run_id.hex}{FRAGMENT_SUFFIX}")]


def ingest_fragments(database: Database, store: Store, on_fragment: Callable[[], None] = lambda: None) -> IngestReport:
    """Ingest every fragment that waits in the store.

    Damaged and unreadable fragments are quarantined with the reason. A fragment whose run or machine has not arrived
    keeps waiting. `on_fragment` is called after each fragment. Raises RegistryError if the registry does not respond;
    all fragments keep waiting then.
    """
    from store.fragments import list_pending

    report = IngestReport()
    pending = list_pending(store)
    while pending:
        before = report.fragments
        report.waiting.clear()
        for fragment in pending:
            ingest_fragment(database, store, fragment, report)
            on_fragment()
        # Names sort by the writers' clocks, so a fragment may precede one that it refers to. Try it again.
        pending = [each for each in pending if each.name in report.waiting] if report.fragments > before else []
    return report


def ingest_fragment(database: Database, store: Store, fragment: Fragment, report: IngestReport) -> None:
    """Ingest one fragment, quarantine it, or note in `report` why it waits."""
    from store.fragments import mark_ingested, quarantine_fragment, read_or_quarantine

    def set_aside(reason: str) -> None:  # so that the other fragments need not wait
        quarantine_fragment(store, fragment, reason)
        report.set_aside[fragment.name] = reason

    with pause_garbage_collection():
        chunks = read_or_quarantine(store, fragment)
    if chunks is None:
        if (store.quarantine / fragment.name).exists():  # otherwise another process has just ingested it
            report.set_aside[fragment.name] = "it is damaged"
        return
    fragment_report = IngestReport()
    try:
        with database.write() as session:
            if database.dialect == "postgresql":
                session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg ingest'))"))
            try:
                with pause_garbage_collection():
                    ingest_rows(session, fragment, chunks, fragment_report)
            except Exception as error:
                reraise_lack_of_memory(error)
                if is_row_error(error, database.dialect):
                    raise ChessregError(f"its rows cannot be read: {get_first_line(error)}") from error
                raise
    except (RegistryError, SchemaError):
        raise
    except IntegrityError as error:
        reason = str(error.orig).split("\n", 1)[0]
        state = getattr(error.orig, "sqlstate", None)  # PostgreSQL's message may be translated
        if state == FOREIGN_KEY or "foreign key" in reason.lower():  # the referenced row is not ingested yet
            report.waiting[fragment.name] = reason
        else:
            set_aside(f"its rows do not fit: {reason}")
    except MissingParentError as error:
        report.waiting[fragment.name] = error.message
    except ChessregError as error:
        set_aside(str(error))
    else:
        for name in ("fragments", "rows", "repeated", "conflicts"):
            setattr(report, name, getattr(report, name) + getattr(fragment_report, name))
        mark_ingested(store, fragment, keep=any(table != "check_in" for table, _ in chunks))


_PAUSE = threading.Lock()


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the collection of reference cycles, unless another thread does. Rows are many objects without cycles, and
    visiting them repeatedly takes a third of the time of ingest."""
    if not gc.isenabled() or not _PAUSE.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _PAUSE.release()


def is_row_error(error: Exception, dialect: str) -> bool:
    """Return whether an error is about values that a table cannot store rather than about the database."""
    if isinstance(error, DBAPIError):
        refused_errors = (DataError, ProgrammingError, *((InterfaceError,) if dialect == "sqlite" else ()))
        return isinstance(error, refused_errors)
    return isinstance(error, (StatementError, *DAMAGE_ERRORS)) and not isinstance(error, ChessregError)


def ingest_rows(
    session: Session, fragment: Fragment, chunks: list[tuple[str, list[dict[str, Any]]]], report: IngestReport
) -> None:
    """Insert the rows of one fragment, inside one transaction, and count them in `report`.

    `chunks` are (table, rows) in the order of the fragment. Raises MissingParentError.
    """
    if session.get(tables.FragmentRecord, fragment.name) is not None:
        return
    by_table: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for table, rows in chunks:
        if table not in ATTEMPT_UPDATES and table not in tables.OWN_TABLES:
            require_package_table(session, table, fragment)
        by_table[table] += parse_rows(TABLES["attempt" if table in ATTEMPT_UPDATES else table], rows)
    insert_or_compare_rows(session, by_table, report)
    for row in by_table["check_in"]:
        record_check_in(session, row)
    attempt = TABLES["attempt"]
    for row in by_table["attempt_end"]:
        known_fragment = session.execute(
            update(attempt).where(attempt.c.id == row.pop("id")).values(**row).returning(attempt.c.id)
        )
        if known_fragment.first() is None:
            raise MissingParentError("the attempt that ends has not arrived")
    # Check-ins are frequent and each replaces the last, so they are not recorded.
    if all(table == "check_in" for table, _ in chunks):
        report.fragments += 1
        return
    session.add(
        tables.FragmentRecord(
            name=fragment.name,
            run_id=UUID(fragment.run_id),
            rows=sum(len(rows) for _, rows in chunks),
            ingested_at=get_utc_now(),
        )
    )
    for run_id in {row["run_id"] for row in by_table["unit_range"]}:
        complete_run_if_done(session, run_id)
    report.fragments += 1


def require_package_table(session: Session, table: str, fragment: Fragment) -> None:
    """Create the table of an installed package's entity if it is missing. Raises ChessregError for an unknown table."""
    from chessreg.registry import brought

    failures = brought.load_package_nouns()
    if table not in TABLES:
        reason = "; ".join(failures) or "install the package that defines it"
        raise ChessregError(f"fragment {fragment.name} has rows of an unknown table {table!r}", reason)
    if not brought.has_table(session, TABLES[table]):
        brought.create_missing_tables(session)


def record_check_in(session: Session, row: dict[str, Any]) -> None:
    """Record that an attempt is alive. Older check-ins that arrive late are ignored; a newer one revives a lost
    attempt."""
    attempt = TABLES["attempt"]
    is_newer = attempt.c.id == row.pop("id"), attempt.c.checked_in_at < row["checked_in_at"]
    running_state, lost_state = tables.AttemptState.RUNNING, tables.AttemptState.LOST
    session.execute(update(attempt).where(*is_newer, attempt.c.state == running_state).values(**row))
    alive_values = {"state": running_state, "cause": None, "ended_at": None, "message": None}
    session.execute(update(attempt).where(*is_newer, attempt.c.state == lost_state).values(**row, **alive_values))


def insert_or_compare_rows(session: Session, by_table: dict[str, list[dict[str, Any]]], report: IngestReport) -> None:
    """Insert rows by table. Results of units that are complete already are compared instead."""
    if session.get_bind().dialect.name == "postgresql":
        by_table = defaultdict(list, replace_nul(by_table))
    complete = find_complete_units(session, by_table)
    parents_first = [table.name for table in tables.Base.metadata.sorted_tables]
    for name in sorted(by_table.keys() - set(ATTEMPT_UPDATES), key=parents_first.index):
        if name in RESULT_TABLES:
            rows = by_table[name]
            if list_model_text_columns(TABLES[name]):
                rows = [crop_model_texts(TABLES[name], row) for row in rows]
            require_admissible(TABLES[name], rows)
            repeated_rows = [row for row in rows if (row["run_id"], row["unit"]) in complete] if complete else []
            fresh_rows = [row for row in rows if (row["run_id"], row["unit"]) not in complete] if complete else rows
            insert_rows(session, TABLES[name], fresh_rows)
            compare_rows(session, TABLES[name], repeated_rows, report)
            report.rows += len(fresh_rows)
        else:
            insert_missing(session, TABLES[name], by_table[name])


def parse_rows(table: Table, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert a fragment's rows in place to the types of their table's columns, and return them.

    Raises ChessregError for an unknown column.
    """
    conversions = list_conversions(table)
    converters = [(name, convert) for name, convert in conversions.items() if convert is not None]
    for row in rows:
        if not row.keys() <= conversions.keys():
            raise ChessregError(
                f"{table.name} has no column {min(row.keys() - conversions.keys())!r}",
                "use the version of chessreg that wrote this fragment",
            )
        for name, convert in converters:
            if (value := row.get(name)) is not None:
                row[name] = convert(value)
    if table.name not in RESULT_TABLES:
        require_admissible(table, rows)
    return rows


@cache
def list_conversions(table: Table) -> Mapping[str, Callable[[Any], Any] | None]:
    """Return column name → function that converts a fragment's value to the column's type; None if it has it."""
    repeated_ids = lru_cache(UUID)  # a fragment names few runs, attempts and interventions
    conversions: list[tuple[type[TypeEngine[Any]], Callable[[Any], Any]]] = [
        (Uuid, repeated_ids),
        (UtcDateTime, datetime.fromisoformat),
        (LargeBinary, bytes),
    ]
    return {
        column.name: next((convert for type_, convert in conversions if isinstance(column.type, type_)), None)
        for column in table.c
    }


def find_complete_units(session: Session, by_table: Mapping[str, list[dict[str, Any]]]) -> set[tuple[UUID, int]]:
    """Return (run id, unit) of the fragment's units that the registry has already.

    Raises ChessregError for units outside the run.
    """
    by_run: dict[UUID, set[int]] = defaultdict(set)
    units_by_run = {row["id"]: row["units"] for row in by_table.get("run", [])}
    for row in by_table.get("unit_range", []):
        recorded_units = session.scalar(select(tables.Run.units).where(tables.Run.id == row["run_id"]))
        planned_units = units_by_run.get(row["run_id"]) if recorded_units is None else recorded_units
        if planned_units is None:
            continue  # the foreign key reports the missing run
        if not 0 <= row["start"] < row["stop"] <= planned_units:
            raise ChessregError(f"units {row['start']} to {row['stop']} are outside this run's {planned_units}")
        by_run[row["run_id"]].update(range(row["start"], row["stop"]))
    return {
        (run_id, unit)
        for run_id, units in by_run.items()
        for unit in read_complete_units(session, run_id, min(units), max(units) + 1) & units
    }


def insert_rows(session: Session, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows, grouped by their columns as executemany requires."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row)].append(row)
    dialect = session.get_bind().dialect
    for names, group in groups.items():
        if dialect.name == "sqlite" and table.name in RESULT_TABLES:
            statement, processors = compile_insert(table, names, dialect)
            columns = [convert_column(name, group, processor) for name, processor in processors]
            session.connection().exec_driver_sql(statement, list(zip(*columns, strict=True)))
        else:
            session.execute(insert(table), group)


@lru_cache(maxsize=64)
def compile_insert(table: Table, names: tuple[str, ...], dialect: Dialect) -> tuple[str, list[tuple[Any, Any]]]:
    """Return the INSERT of these columns with positional parameters, and for each parameter its column and the function
    that converts its values for the driver, or None.

    SQLAlchemy's own executemany converts row by row, which takes longer than the insertion.
    """
    statement = insert(table).compile(dialect=dialect, column_keys=list(names))
    columns = [table.c[name] for name in statement.positiontup or ()]
    return str(statement), [(column, column.type.dialect_impl(dialect).bind_processor(dialect)) for column in columns]


def convert_column(
    column: Column[Any], rows: list[dict[str, Any]], processor: Callable[[Any], Any] | None
) -> list[Any]:
    """Return the driver's values of a column in these rows. A column that the rows lack is computed by its default."""
    if column.name in rows[0]:
        values = list(map(itemgetter(column.name), rows))
    else:
        default: Any = column.default
        values = [default.arg(RowContext(row)) for row in rows]
    if processor is None:
        return values
    if isinstance(column.type, Uuid):  # `parse_rows` uses the same object for equal ids
        converted_values = {key: processor(value) for key, value in {id(value): value for value in values}.items()}
        return [converted_values[key] for key in map(id, values)]
    return list(map(processor, values))


class RowContext(NamedTuple):
    """The part of SQLAlchemy's execution context that defaults of columns use."""

    row: dict[str, Any]

    def get_current_parameters(self) -> dict[str, Any]:
        return self.row


def insert_missing(session: Session, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert entity rows whose key does not exist yet. Existing rows are kept. A match gets the engines that
    evaluated it on another machine."""
    key = [column.name for column in table.primary_key]
    seen_keys: set[tuple[Any, ...]] = set()
    fresh_rows = []
    for row in rows:
        place = tuple(row.get(name) for name in key)
        if place in seen_keys:
            continue
        conditions = build_key_conditions(table, key, row)
        if session.execute(select(*table.primary_key).where(*conditions)).first():
            if table.name == "match":
                from chessreg.registry.read import combine_evaluators

                stored_detail = session.scalar(select(table.c.detail).where(*conditions).with_for_update())
                if detail := combine_evaluators(stored_detail, row.get("detail")):
                    session.execute(update(table).where(*conditions).values(detail=detail))
            continue
        seen_keys.add(place)
        fresh_rows.append(row)
    insert_rows(session, table, fresh_rows)


def build_key_conditions(table: Table, key: list[str], row: dict[str, Any]) -> list[Any]:
    """Return the SQL conditions that a table's key equals that of `row`."""
    return [table.c[name] == row.get(name) for name in key]


def compare_rows(session: Session, table: Table, rows: list[dict[str, Any]], report: IngestReport) -> None:
    """Compare `rows` of complete units with the stored ones and count them in `report`.

    Equal rows count as repeated, others become conflicts, once each.
    """
    key = [column.name for column in table.primary_key]
    stored_texts = read_conflict_texts(session, table.name, {row["run_id"] for row in rows}) if rows else set()
    for row in rows:
        stored_row = session.execute(select(table).where(*build_key_conditions(table, key, row))).mappings().first()
        stored_values = None if stored_row is None else crop_model_texts(table, dict(stored_row))
        content = row.keys() - {"attempt_id", "seconds"}
        if stored_values is not None and all(stored_values[name] == row[name] for name in content):
            report.repeated += 1
            continue
        key_json, row_json = make_json_value({name: row.get(name) for name in key}), make_json_value(row)
        known_by = format_conflict(key_json, row_json)
        if known_by in stored_texts:
            report.repeated += 1
            continue
        stored_texts.add(known_by)
        report.conflicts += 1
        session.add(
            tables.Conflict(
                id=make_id(),
                table_name=table.name,
                run_id=row["run_id"],
                attempt_id=row["attempt_id"],
                key=key_json,
                row=row_json,
                found_at=get_utc_now(),
            )
        )


def read_conflict_texts(session: Session, table_name: str, runs: Collection[UUID]) -> set[str]:
    """Return the `format_conflict` of each conflict of these runs in one table."""
    conflict = tables.Conflict
    query = select(conflict.key, conflict.row).where(conflict.table_name == table_name)
    return {format_conflict(key, row) for key, row in select_by_keys(session, query, conflict.run_id, sorted(runs))}


def format_conflict(key: Any, row: Any) -> str:
    """Return a text that is equal for conflicts with equal keys and rows."""
    return json.dumps([key, row], sort_keys=True)


def make_json_value(row: Mapping[str, Any]) -> Any:
    """Return a row, or its key, as JSON values for a conflict."""
    return json.loads(json.dumps(row, default=lambda value: value.hex() if isinstance(value, bytes) else str(value)))


def complete_run_if_done(session: Session, run_id: UUID) -> None:
    """Mark a run complete if all of its units are complete."""
    run = session.get(tables.Run, run_id)
    if run is None or run.completed_at is not None:
        return
    if count_done(session, run_id) >= run.units:
        run.completed_at = get_utc_now()


# -- fragments that are not in the registry ---------------------------------------------------------------------------


FRAGMENT_SUFFIX = ".jsonl.zst"


def list_waiting(database: Database, store: Store) -> list[dict[str, Any]]:
    """Return the waiting and quarantined fragments, oldest first, each with the reason."""
    from store.fragments import list_pending

    fragments = []
    for fragment in list_pending(store):
        row: dict[str, Any] = {"fragment": fragment.name, "state": "waiting", "run": fragment.run_id[-6:]}
        try:
            header, chunks = fragment.read_header(), list(fragment.read())
            rows_by_table = {table: sum(len(rows) for name, rows in chunks if name == table) for table, _ in chunks}
            row |= {"rows": sum(rows_by_table.values()), "result_tables": rows_by_table, "created": header["created"]}
            row |= {"why": explain_waiting(database, rows_by_table, fragment.run_id)}
        except StoreError as error:
            row |= {"rows": None, "result_tables": {}, "created": None, "why": error.message}
        fragments.append(row)
    for path in sorted(store.quarantine.glob(f"*{FRAGMENT_SUFFIX}")):
        reason = path.with_name(path.name + ".reason.txt")
        text = (
            reason.read_text(encoding="utf-8", errors="replace").strip()
            if reason.exists()
            else "quarantined without a reason"
        )
        run = path.name.removesuffix(FRAGMENT_SUFFIX).rpartition(".")[2][-6:]
        row = {"fragment": path.name, "state": "set aside", "run": run, "rows": None, "result_tables": {}}
        fragments.append({**row, "created": path.stat().st_mtime, "why": text})
    return fragments


def explain_waiting(database: Database, rows_by_table: dict[str, int], run_id: str) -> str:
    """Return why an undamaged fragment is not ingested: its run is unknown, or no process has ingested it yet."""
    try:
        with database.read() as session:
            has_run = "run" in rows_by_table or session.get(tables.Run, UUID(run_id)) is not None
    except (ChessregError, ValueError) as error:
        return str(error)
    return "not ingested yet" if has_run else "the fragment with this run's spec has not arrived"


def ingest_waiting(database: Database, store: Store) -> dict[str, Any]:
    """Ingest waiting fragments. Return the numbers of fragments, rows, repeated rows, conflicts and `set_aside`.

    Raises RegistryError if the registry does not respond.
    """
    report = ingest_fragments(database, store)
    return {
        "fragments": report.fragments,
        "rows": report.rows,
        "repeated": report.repeated,
        "conflicts": report.conflicts,
        "set_aside": len(report.set_aside),
    }


def requeue_quarantined(store: Store) -> int:
    """Move quarantined fragments back to the waiting ones and return their number. Damaged ones will be quarantined
    again."""
    moved_count = 0
    for path in store.quarantine.glob(f"*{FRAGMENT_SUFFIX}"):
        path.rename(store.incoming / path.name)
        path.with_name(path.name + ".reason.txt").unlink(missing_ok=True)
        moved_count += 1
    return moved_count
