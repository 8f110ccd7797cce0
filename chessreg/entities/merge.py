"""Merge another registry into this one, by the rules of ingest. Repeated and mutual merges change nothing.

Facts are inserted by key. Results of units that are complete in both registries are compared, and differences are kept
as conflicts. Annotations are a log, so both logs are kept. Jobs are not merged.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

from sqlalchemy import Column, Integer, String, Table, Uuid, or_, select, text, update
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from chessreg.errors import DAMAGE_ERRORS, BadInputError, NotFoundError, get_first_line
from chessreg.folders import expand_path
from chessreg.registry import brought, lineage, migrations, names, read, tables
from chessreg.registry.database import Database, select_by_keys
from chessreg.registry.identity import make_id
from chessreg.registry.place import RegistryPlace, resolve_place
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.registry.tables.types import crop_model_texts, get_utc_now, require_admissible
from chessreg.runs.ingest import (
    TABLES,
    IngestReport,
    build_key_conditions,
    complete_run_if_done,
    format_conflict,
    insert_or_compare_rows,
    insert_rows,
    make_json_value,
    read_conflict_texts,
)

if TYPE_CHECKING:
    from store import Store

LOCAL_TABLES = frozenset({"registry_state", "job"})  # tables that are never merged
UNIT_TABLES = frozenset({*RESULT_TABLES, "unit_range", "fragment"})  # tables of results, which are merged unit by unit
INVALID_ROW_ERRORS: tuple[type[Exception], ...] = (DataError, IntegrityError, *DAMAGE_ERRORS)
PART_PREFIX = "merge."  # prefix of the names of merged parts; names of fragments begin with a time
INSERT_BATCH_ROWS = 500
MERGE_BATCH_UNITS = 500  # per transaction


@dataclass
class MergeReport:
    """Counts of merged rows. `conflicts` includes facts that differ between the registries."""

    facts: dict[str, int] = field(default_factory=dict)  # table → new rows
    results: int = 0
    repeated: int = 0
    conflicts: int = 0
    fragments: int = 0
    runs: int = 0  # runs with new results

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def merge_source(database: Database, store: Store, other: str) -> MergeReport:
    """Merge `other`: a registry (file or URL), a folder with a registry and a store, or a folder of fragments.

    Raises NotFoundError if it does not exist, BadInputError if it is something else or this registry itself, and
    SchemaError if its schema is newer, or older on a server.
    """
    report = MergeReport()
    place, fragments = find_merge_sources(other)
    if fragments is not None:
        ingest_folder(database, store, fragments, report)
    if place is not None:
        with open_other_registry(place, store) as source:
            if get_location_key(source) == get_location_key(database):
                raise BadInputError(f"{other} is this registry", "give another registry")
            merge_registry(database, source, report, copy_of=place)
    return report


class MergePreview(NamedTuple):
    """The effect of a merge.

    `runs`: the runs that would change, in their new state: `id`, `name`, `kind`, `host`, `state`, `units`, `done`,
    `done_before` (None: the run is not in this registry) and `conflicts`, their number. `unchanged`: the number of
    other runs in the other registry. `conflicts`: the new conflicts, with the keys of `registry.read.list_conflicts`
    and `differs`: column → (here, there).
    """

    report: MergeReport
    runs: list[dict[str, Any]]
    unchanged: int
    conflicts: list[dict[str, Any]]


def preview_merge(database: Database, store: Store, other: str) -> MergePreview:
    """Return the effect of a merge, determined in a transaction that is rolled back and with a temporary store.

    Holds the registry's write lock meanwhile. Raises the errors of `merge_source`.
    """
    from store import Store as Scratch
    from store.fragments import FRAGMENT_SUFFIX, Fragment

    place, fragments = find_merge_sources(other)
    ids = (
        [UUID(hex=Fragment.from_path(path).run_id) for path in fragments.rglob(f"*{FRAGMENT_SUFFIX}")]
        if fragments
        else []
    )
    if place is not None:
        with open_other_registry(place, store) as source:
            ids += list_run_ids(source, None)
    ids = list(dict.fromkeys(ids))
    with store.open_scratch("merge") as folder, database.rehearsal():
        with database.read() as session:
            before = {row["id"]: row["done"] for row in read.read_run_rows(session, ids, stale_runs=())}
            known_ids = set(session.scalars(select(tables.Conflict.id)))
        report = merge_source(database, Scratch.create(folder / "store"), other)
        with database.read() as session:
            conflicts = [row for row in read.list_conflicts(session) if row["id"] not in known_ids]
            conflicts = [{**row, "differs": find_conflict_differences(session, row)} for row in conflicts]
            runs = read.read_run_rows(session, ids, stale_runs=())
    per_run = Counter(row["run_id"] for row in conflicts)
    columns = ("id", "name", "kind", "host", "state", "units", "done")
    changed_rows = [
        {**{key: row[key] for key in columns}, "done_before": before.get(row["id"]), "conflicts": per_run[row["id"]]}
        for row in runs
        if row["done"] != before.get(row["id"]) or per_run[row["id"]]
    ]
    return MergePreview(report, changed_rows, len(runs) - len(changed_rows), conflicts)


def describe_run_change(row: Mapping[str, Any]) -> str:
    """Return the effect of a merge on a run as text.

    >>> describe_run_change({"done_before": None, "done": 3, "units": 8})
    'new, 3/8 units'
    >>> describe_run_change({"done_before": 3, "done": 8, "units": 8})
    '3 to 8 of 8 units'
    """
    if row["done_before"] is None:
        return f"new, {row['done']:,}/{row['units']:,} units"
    if row["done"] == row["done_before"]:
        return "no new units"
    return f"{row['done_before']:,} to {row['done']:,} of {row['units']:,} units"


def find_conflict_differences(session: Session, conflict: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the columns of a conflict's row that differ from the stored row, with both values."""
    table, key, row = TABLES.get(conflict["table_name"]), conflict["key"], conflict["row"]
    if table is None:
        table = tables.Base.metadata.tables[conflict["table_name"]]
    typed_key = {name: parse_key_value(table.c[name].type, value) for name, value in key.items()}
    stored_row = (
        session.execute(select(table).where(*build_key_conditions(table, list(key), typed_key))).mappings().first()
    )
    stored_values = {} if stored_row is None else make_json_value(crop_model_texts(table, dict(stored_row)))
    names_of_values = [name for name in row if name not in ("attempt_id", "seconds", *key)]
    return {
        name: (stored_values.get(name), row[name])
        for name in names_of_values
        if row[name] not in (stored_values.get(name), str(stored_values.get(name)))
    }


@contextmanager
def open_other_registry(place: RegistryPlace, store: Store) -> Iterator[Database]:
    """Open another registry. If a file has an older schema, open an upgraded copy and leave the file unchanged."""
    if place.path is None or not place.path.exists() or migrations.read_schema_status(place).state != "behind":
        with Database.open(place, create=False) as other:
            yield other
        return
    with store.open_scratch("merge") as folder:
        copy = migrations.back_up_registry(place, folder / "registry.db")
        migrations.upgrade_registry(copy)
        with Database.open(copy, create=False) as other:
            yield other


def check_merge_source(other: str) -> None:
    """Raise the errors of `merge_source` if `other` contains neither a registry nor fragments."""
    place, _ = find_merge_sources(other)
    if place is not None and migrations.read_schema_status(place).state != "behind":
        Database.open(place, create=False).close()


def find_merge_sources(other: str) -> tuple[RegistryPlace | None, Path | None]:
    """Return the registry and the folder of fragments at `other`. At least one of them is not None."""
    if "://" in other:
        return resolve_place(other), None
    path = expand_path(other)
    if path.is_file():
        return resolve_place(path), None
    if not path.is_dir():
        raise NotFoundError(f"{other} does not exist", "give a registry's file or URL, or a folder")
    for home in (path, path / ".chessreg"):
        if (home / "registry.db").is_file():
            store = home / "store"
            return resolve_place(home / "registry.db"), store if store.is_dir() else None
    from store.fragments import FRAGMENT_SUFFIX

    if next(path.rglob(f"*{FRAGMENT_SUFFIX}"), None) is None:
        raise BadInputError(
            f"{other} holds neither a registry.db nor fragments (*{FRAGMENT_SUFFIX})", "give another folder"
        )
    return None, path


def read_registry_id(database: Database) -> UUID | None:
    """Return the id of a registry."""
    with database.read() as session:
        return session.scalar(select(tables.RegistryState.registry_id))


def get_location_key(database: Database) -> tuple[Any, ...]:
    """Return a key that identifies the location of a registry. A copy of its file has another key."""
    if database.dialect == "postgresql":
        with database.read() as session:
            return tuple(session.execute(text("SELECT current_database(), pg_postmaster_start_time()")).one())
    path = database.place.path
    assert path
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def ingest_folder(database: Database, store: Store, folder: Path, report: MergeReport) -> None:
    """Ingest the fragments below `folder` and count them in `report`.

    In a store with a registry, only the pending fragments are ingested.
    """
    from chessreg.runs.ingest import ingest_fragments
    from store.fragments import FRAGMENT_SUFFIX
    from store.fragments import adopt_fragment as copy

    is_store = (folder / "store.json").is_file() and (folder.parent / "registry.db").is_file()
    incoming_folder = folder / "fragments" / "incoming" if is_store else folder
    for path in sorted(incoming_folder.rglob(f"*{FRAGMENT_SUFFIX}")):
        report.fragments += copy(store, path) is not None
    ingest_report = ingest_fragments(database, store)
    report.results += ingest_report.rows
    report.repeated += ingest_report.repeated
    report.conflicts += ingest_report.conflicts


# -- from one registry into another -----------------------------------------------------------------------------------


def merge_registry(
    database: Database,
    source_database: Database,
    report: MergeReport,
    runs: Collection[UUID] | None = None,
    copy_of: RegistryPlace | None = None,
) -> None:
    """Merge all of `source_database`, or only `runs`, their inputs and annotations. `copy_of`: the registry that
    `source_database` is a copy of.

    Raises BadInputError for an invalid row. If it is a fact, nothing is merged; if it is a result, all other runs are.
    """
    origin = read_registry_id(source_database)
    assert origin
    if origin == read_registry_id(database):  # a copy: its location identifies it
        origin = uuid5(origin, (copy_of or source_database.place).reference)
    ids = list_run_ids(source_database, runs)
    facts = []  # read and checked completely before any is inserted
    brought.load_package_nouns()
    for table in tables.Base.metadata.sorted_tables:  # parents first
        if table.name not in LOCAL_TABLES | UNIT_TABLES:
            with convert_row_errors(table.name):
                facts.append((table, list(read_fact_batches(source_database, table, ids, everything=runs is None))))
            for rows in facts[-1][1]:
                require_admissible(table, rows)
    require_own_units(source_database)
    with database.write() as session:
        lock_ingest(session)
        if any(parts and not brought.has_table(session, table) for table, parts in facts):
            brought.create_missing_tables(session)
        for table, parts in facts:
            for rows in parts:
                with convert_row_errors(table.name):
                    merge_facts(session, table, rows, report)
    errors: list[BadInputError] = []
    for run_id in ids:
        try:
            merge_results(database, source_database, run_id, origin, report)
        except BadInputError as error:  # continue with the other runs
            errors.append(error)
    if errors:
        others_note = f"; of {len(errors) - 1} more runs too" if len(errors) > 1 else ""
        raise BadInputError(f"{errors[0].message}{others_note}; all other runs were merged", errors[0].hint)


def merge_results(
    database: Database, source_database: Database, run_id: UUID, origin: UUID, report: MergeReport
) -> None:
    """Merge the results of run `run_id` from the registry `source_database`, and count the rows in `report`.

    `origin` is the id of that registry. Raises BadInputError for an invalid row; parts before it stay merged.
    """
    before = report.results
    for name, results in read_result_parts(
        source_database, run_id, seen_digests=read_fragment_names(database, run_id), origin=origin
    ):
        with database.write() as session, convert_row_errors(f"run {run_id.hex[-6:]}"):
            lock_ingest(session)
            if session.get(tables.FragmentRecord, name) is not None:
                continue  # a concurrent merge has inserted it
            ingest_report = IngestReport()
            insert_or_compare_rows(session, results, ingest_report)
            session.add(
                tables.FragmentRecord(name=name, run_id=run_id, rows=ingest_report.rows, ingested_at=get_utc_now())
            )
        report.results += ingest_report.rows
        report.repeated += ingest_report.repeated
        report.conflicts += ingest_report.conflicts
    report.runs += report.results > before
    settle_completion(database, source_database, run_id)


@contextmanager
def convert_row_errors(owner: str) -> Iterator[None]:
    """Convert errors about unreadable or invalid rows of `owner` to BadInputError."""
    try:
        yield
    except INVALID_ROW_ERRORS as error:
        message = get_first_line(getattr(error, "orig", None) or error)
        raise BadInputError(
            f"a row of {owner} is refused: {message}", "this row was not written by chessreg, or was changed"
        ) from error


def require_own_units(source_database: Database) -> None:
    """Raise BadInputError if a unit range exceeds the units of its run, because ranges are expanded unit by unit."""
    units, run = tables.UnitRange, tables.Run
    is_beyond = or_(units.start < 0, units.stop <= units.start, units.stop > run.units)
    with source_database.read() as session:
        row = session.execute(select(units.start, units.stop, run.units).join(run).where(is_beyond).limit(1)).first()
    if row is not None:
        raise BadInputError(
            f"a row of unit_range is refused: units {row.start} to {row.stop} exceed the {row.units} units of the run",
            "this row was not written by chessreg, or was changed later",
        )


def settle_completion(database: Database, source_database: Database, run_id: UUID) -> None:
    """Mark a run as complete if it is. Its completion time is the earlier of both registries."""
    with source_database.read() as session:
        source_time = session.get_one(tables.Run, run_id).completed_at
    with database.read() as session:
        target_time = session.get_one(tables.Run, run_id).completed_at
    if target_time is not None and (source_time is None or source_time >= target_time):
        return
    with database.write() as session:
        complete_run_if_done(session, run_id)
        run = session.get_one(tables.Run, run_id)
        if run.completed_at is not None and source_time is not None and source_time < run.completed_at:
            if (
                results := database.place.results
            ) is not None:  # files of the earlier completion time may have fewer rows
                for path in (*results.glob(f"*-{run_id.hex}-*.parquet"), *results.glob("*.numbers.zip")):
                    path.unlink(missing_ok=True)
            run.completed_at = source_time


def find_merged_runs(session: Session) -> set[UUID]:
    """Return the runs whose results all came from merges, so that none of them used this registry's store."""
    record = tables.FragmentRecord
    is_merged = record.name.startswith(PART_PREFIX, autoescape=True)
    by_merge, by_fragment = (
        set(session.scalars(select(record.run_id).where(condition))) for condition in (is_merged, ~is_merged)
    )
    return by_merge - by_fragment


def lock_ingest(session: Session) -> None:
    """Wait for concurrent ingests to end. On SQLite, every write transaction does so already."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg ingest'))"))


def list_run_ids(source_database: Database, runs: Collection[UUID] | None) -> list[UUID]:
    """Return the ids of `runs` (None: all runs) in `source_database`, oldest first."""
    with convert_row_errors("run"), source_database.read() as session:
        run_ids = session.scalars(select(tables.Run.id).order_by(tables.Run.created_at, tables.Run.id)).all()
    return [id for id in run_ids if runs is None or id in runs]


def read_fact_batches(
    source_database: Database, table: Table, runs: list[UUID], everything: bool
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a table of facts in batches of AT_ONCE, parents first.

    Unless `everything`, rows that belong to a run other than `runs` are left out.
    """
    column = find_run_column(table)
    with source_database.read() as session:
        if not brought.has_table(session, table):
            return
        if everything or column is None:
            rows = [dict(row) for row in session.execute(select(table)).mappings()]
        else:
            rows = [dict(row._mapping) for row in select_by_keys(session, select(table), column, runs)]
    if table.name == "annotation" and not everything:
        run_hexes = {run.hex for run in runs}
        rows = [row for row in rows if row["target"] in run_hexes or row["noun"] in list_runless_nouns()]
    if "parent_id" in table.c:
        by_id = {row["id"]: row for row in rows}
        parents = {id: {row["parent_id"]} & by_id.keys() for id, row in by_id.items()}
        try:  # parents first, even if clocks were wrong
            rows = [by_id[id] for id in TopologicalSorter(parents).static_order()]
        except CycleError as error:
            message = f"a row of {table.name} is refused: it is its own ancestor"
            raise BadInputError(message, "this row was not written by chessreg, or was changed") from error
    for start in range(0, len(rows), INSERT_BATCH_ROWS):
        yield rows[start : start + INSERT_BATCH_ROWS]


def find_run_column(table: Table) -> Column[Any] | None:
    """Return the column with the run of a row. None: rows of this table may have no run, so all of them are merged."""
    column = table.c.get("run_id", table.c.id if table.name == "run" else None)
    return None if column is None or column.nullable else column


def list_runless_nouns() -> set[str]:
    """Return the nouns whose entities need no run, such as datasets, checkpoints, engines and machines."""
    noun_tables = names.list_noun_tables().items()
    return {
        noun for noun, table in noun_tables if find_run_column(table.__table__) is None and noun not in LOCAL_TABLES
    }


def merge_facts(session: Session, table: Table, rows: list[dict[str, Any]], report: MergeReport) -> None:
    """Insert the `rows` of `table` that have new keys, compare or update the others, and count both in `report`."""
    key = [column.name for column in table.primary_key]
    existing_rows, compared_columns = read_existing_rows(session, table, rows), list_compared_columns(table)
    fresh_rows = []
    for row in rows:
        place = tuple(row[name] for name in key)
        existing_row = existing_rows.get(place)
        if existing_row is None:
            fresh_rows.append(row | ({"completed_at": None} if table.name == "run" else {}))
        elif any(existing_row[name] != row[name] for name in compared_columns):
            report.conflicts += record_conflict(session, table, key, row)
        elif values := find_fact_updates(table, existing_row, row):
            session.execute(update(table).where(*build_key_conditions(table, key, row)).values(**values))
    if table.name == "conflict":
        fresh_rows = list(filter_new_conflicts(session, fresh_rows))
    insert_rows(session, table, fresh_rows)
    if fresh_rows:
        report.facts[table.name] = report.facts.get(table.name, 0) + len(fresh_rows)


def find_fact_updates(table: Table, own_row: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of `own_row` to update from `row`, the other registry's row of the same entity.

    These are the end of an attempt, a later sighting of a machine, further engines that evaluated a match, an earlier
    creation time, and values that this registry lacks. Other columns are never changed, because runs and files depend
    on them.
    """
    if table.name == "attempt":
        lost_state = tables.AttemptState.LOST
        has_end = own_row["ended_at"] is not None and not (
            own_row["state"] == lost_state and row["state"] != lost_state
        )
        return row if row["ended_at"] is not None and not has_end else {}
    if table.name == "machine":
        return row if row["last_seen"] > own_row["last_seen"] else {}
    if table.name == "match":
        detail = read.combine_evaluators(own_row["detail"], row["detail"])
        return {"detail": detail} if detail else {}
    if "created_at" not in own_row:
        return {}
    unknown_values: tuple[Any, ...] = (None, {})
    values = {
        name: value for name, value in row.items() if own_row[name] in unknown_values and value not in unknown_values
    }
    values.pop("completed_at", None)  # set by `settle_completion`
    return values | ({"created_at": row["created_at"]} if row["created_at"] < own_row["created_at"] else {})


def list_compared_columns(table: Table) -> tuple[str, ...]:
    """Return the columns of a table that may differ for equal keys and are therefore compared."""
    return next(m.class_.__compared__ for m in tables.Base.registry.mappers if m.local_table is table)


def read_existing_rows(
    session: Session, table: Table, rows: list[dict[str, Any]]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return key → existing row, for the keys of `rows` that exist in this registry."""
    key = [column.name for column in table.primary_key]
    keys = {tuple(row[name] for name in key) for row in rows}
    first_keys = [row[key[0]] for row in rows]
    existing_rows = session.execute(select(table).where(table.c[key[0]].in_(set(first_keys)))).mappings()
    by_key = ((tuple(row[name] for name in key), dict(row)) for row in existing_rows)
    return {place: row for place, row in by_key if place in keys}


def record_conflict(session: Session, table: Table, key: list[str], row: dict[str, Any]) -> bool:
    """Record, once, that `row` of `table` differs from the stored row with the same `key` columns.

    Returns whether the conflict is new.
    """
    run_id = row.get("run_id")
    key_text = {name: str(row[name]) for name in key}
    conditions = tables.Conflict.table_name == table.name, tables.Conflict.run_id == (run_id or UUID(int=0))
    content = {name: str(row[name]) for name in list_compared_columns(table)}
    if any(c.key == key_text and c.row == content for c in session.scalars(select(tables.Conflict).where(*conditions))):
        return False
    session.add(
        tables.Conflict(
            id=make_id(),
            table_name=table.name,
            run_id=run_id or UUID(int=0),
            attempt_id=UUID(int=0),  # facts do not belong to an attempt
            key=key_text,
            row=content,
            found_at=get_utc_now(),
        )
    )
    return True


def filter_new_conflicts(session: Session, conflicts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the other registry's conflicts that this registry has not recorded and whose row differs from its own."""
    for name in dict.fromkeys(row["table_name"] for row in conflicts):
        table_rows = [row for row in conflicts if row["table_name"] == name]
        stored_texts = read_conflict_texts(session, name, {row["run_id"] for row in table_rows})
        for row in table_rows:
            if format_conflict(row["key"], row["row"]) not in stored_texts and not is_current_row(session, row):
                yield row


def is_current_row(session: Session, conflict: dict[str, Any]) -> bool:
    """Return whether the row of another registry's conflict equals this registry's current row. Its JSON is not
    trusted.
    """
    table, key, row = TABLES.get(conflict["table_name"]), conflict["key"], conflict["row"]
    kinds: dict[str, Any] = {} if table is None else {column.name: column.type for column in table.primary_key}
    if table is None or not (isinstance(key, dict) and isinstance(row, dict)) or not brought.has_table(session, table):
        return False
    try:
        typed_key = {name: parse_key_value(kind, key[name]) for name, kind in kinds.items()}
    except (LookupError, ValueError):
        return False
    stored_row = (
        session.execute(select(table).where(*build_key_conditions(table, list(key), typed_key))).mappings().first()
    )
    stored_values = {} if stored_row is None else make_json_value(crop_model_texts(table, dict(stored_row)))
    content = row.keys() - {"attempt_id", "seconds"}  # for a fact: its compared columns as text
    return bool(stored_values) and all(
        row[name] in (stored_values.get(name), str(stored_values.get(name))) for name in content
    )


def parse_key_value(kind: TypeEngine[Any], value: object) -> UUID | int | str:
    """Convert a key's JSON value to the type of its column. Raises ValueError for an impossible value."""
    if isinstance(kind, Uuid):
        return UUID(str(value))
    if isinstance(kind, Integer) and abs(number := int(str(value))) < 1 << 63:
        return number
    if isinstance(kind, String) and isinstance(value, str) and "\0" not in value:
        return value
    raise ValueError(f"{value!r} is not a valid key")


# -- results of a run, part by part ------------------------------------------------------------------------------------


def read_fragment_names(database: Database, run_id: UUID) -> set[str]:
    """Return the names of the ingested fragments and merged parts of a run."""
    with database.read() as session:
        record = tables.FragmentRecord
        return set(session.scalars(select(record.name).where(record.run_id == run_id)))


def read_result_parts(
    source_database: Database, run_id: UUID, seen_digests: set[str], origin: UUID
) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """Yield (name, table → rows) of the complete units of a run, in parts of whole unit ranges.

    Parts whose names are in `seen_digests` are skipped.
    """
    ranges = tables.UnitRange.__table__
    with source_database.read() as session:
        merged_fragments = session.execute(
            select(tables.FragmentRecord.name).where(tables.FragmentRecord.run_id == run_id)
        ).scalars()
        if seen_digests and seen_digests >= set(merged_fragments):
            return  # everything ingested there was ingested here
        run_ranges = select(ranges).where(ranges.c.run_id == run_id).order_by(ranges.c.start, ranges.c.stop)
        results = [dict(row) for row in session.execute(run_ranges).mappings()]
    for part in split_unit_ranges(results):
        name = f"{PART_PREFIX}{origin.hex}.{run_id.hex}.{part[0]['start']}.{part[-1]['stop']}.{hash_unit_ranges(part)}"
        if name in seen_digests:
            continue
        units = {unit for row in part for unit in range(row["start"], row["stop"])}
        rows: dict[str, list[dict[str, Any]]] = {"unit_range": part}
        with convert_row_errors(f"run {run_id.hex[-6:]}"), source_database.read() as session:
            for result_table in RESULT_TABLES:
                table = TABLES[result_table]
                in_part = table.c.run_id == run_id, table.c.unit.between(min(units), max(units))
                rows[result_table] = [
                    dict(row)
                    for row in session.execute(select(table).where(*in_part)).mappings()
                    if row["unit"] in units
                ]
        yield name, {result_table: group for result_table, group in rows.items() if group}


def hash_unit_ranges(part: list[dict[str, Any]]) -> str:
    """Return a digest of unit ranges and their attempts. It distinguishes copies of a registry that diverged."""
    entries = [(row["start"], row["stop"], row["attempt_id"].hex) for row in part]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


def split_unit_ranges(ranges: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield consecutive unit ranges with about UNITS_AT_ONCE units together."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in ranges:
        part.append(row)
        size += row["stop"] - row["start"]
        if size >= MERGE_BATCH_UNITS:
            yield part
            part, size = [], 0
    if part:
        yield part


def export_rows(database: Database, target: Path, references: Collection[str]) -> MergeReport:
    """Write a new registry with these runs, their inputs and annotations, for `merge`."""
    with database.read() as session:
        trees = [
            lineage.build_tree(session, lineage.find_node(session, reference), up=True) for reference in references
        ]
    return export_runs(
        database,
        target,
        {UUID(hex=node.id) for tree in trees for node in lineage.iter_nodes(tree) if node.noun == "run"},
    )


def export_runs(database: Database, target: Path, runs: Collection[UUID]) -> MergeReport:
    """Write a new registry with only these runs and their annotations.

    Running attempts become lost there. A later merge with their actual end corrects this.
    """
    report = MergeReport()
    attempt, lost_state = tables.Attempt, tables.AttemptState.LOST
    with Database.open(target) as target_database:
        merge_registry(target_database, database, report, runs)
        with target_database.write() as session:
            end_values = {"ended_at": attempt.checked_in_at, "message": "it was at work when its run was saved"}
            end_running = update(attempt).where(attempt.state == tables.AttemptState.RUNNING)
            session.execute(end_running.values(state=lost_state, cause=tables.Cause.LOST, **end_values))
    return report
