"""What a query names of the registry, read through ADBC into Arrow with the declared types. Never writes.

SQLite types a column by its first values: an empty table would come back as integers, and NULLs before a number would
fail. So a first row of typed values goes in front of each table and is cut off again. SQLite also lets any column hold
any type: of a table in which one does, each value's type is checked, and values of another type become NULL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import sqlalchemy as sa

from chessreg.errors import ChessregError
from chessreg.queries import extras
from chessreg.queries.buffers import bits, bytes_of, validity
from chessreg.queries.column_files import ColumnFiles
from chessreg.queries.stop import StoppedError
from chessreg.registry import sqlite
from chessreg.registry.engines import link_options, sqlalchemy_url
from chessreg.registry.migrations import VERSION_TABLE
from chessreg.registry.run_state import run_now
from chessreg.registry.tables import Base

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.registry.database import Database

# Views that the registry's database computes for queries, so that a run's state and units done are defined once.
RUN_NOW = sa.Table(
    "run_now",
    sa.MetaData(),
    sa.Column("run_id", sa.Uuid()),
    sa.Column("state", sa.String()),
    sa.Column("done", sa.Integer()),
)
TABLES: dict[str, sa.Table] = {table.name: table for table in (*Base.metadata.sorted_tables, RUN_NOW)}
BATCH_ROWS = "16384"
LARGE = 100_000  # rows of results from which two connections share the reading, and runs are kept as Arrow files
LARGE_RUN = 10_000  # rows of a run that is kept
MOST_RUNS = 10_000  # of a table some of whose runs are kept: SQLite takes so many names in one SELECT
RUNS = """WITH RECURSIVE r(id) AS (
    SELECT min(run_id) FROM "{table}"
    UNION ALL SELECT (SELECT min(run_id) FROM "{table}" WHERE run_id > r.id) FROM r WHERE r.id IS NOT NULL
), sized AS (
    SELECT id, (SELECT max(unit) FROM "{table}" WHERE run_id = r.id) + 1 AS units FROM r WHERE id IS NOT NULL
) SELECT id, units, (SELECT count(*) FROM (SELECT 1 FROM "{table}" WHERE run_id = id AND unit >= units / 2
                                           AND unit < units / 2 + {some} LIMIT 100)) AS sampled FROM sized"""
SOME = 4  # units by which the rows of a run are estimated

# SQLAlchemy's type → (first row's value on SQLite, DuckDB's type, how DuckDB reads what SQLite gave). Order matters.
TYPES: list[tuple[type[Any], str, str, str]] = [
    (sa.Uuid, "''", "UUID", "{}"),
    (sa.Boolean, "0", "BOOLEAN", "TRY_CAST({} AS BOOLEAN)"),
    (sa.BigInteger, "0", "BIGINT", "TRY_CAST({} AS BIGINT)"),
    (sa.Integer, "0", "BIGINT", "TRY_CAST({} AS INTEGER)::BIGINT"),  # what PostgreSQL would take: sums never overflow
    (sa.Float, "0.5", "DOUBLE", "TRY_CAST({} AS DOUBLE)"),
    (sa.DateTime, "''", "TIMESTAMPTZ", "TRY_CAST({} || '+00' AS TIMESTAMPTZ)"),
    (sa.JSON, "''", "JSON", "TRY_CAST({} AS JSON)"),
    (sa.LargeBinary, "x'00'", "BLOB", "TRY_CAST({} AS BLOB)"),
    (sa.String, "''", "VARCHAR", "TRY_CAST({} AS VARCHAR)"),
]

GUARDS = {  # by the first row's value: what a column gives of which SQLite, where any may be, is asked the type
    "''": "CAST({} AS BLOB)",
    "0": "CASE typeof({0}) WHEN 'integer' THEN {0} END",
    "0.5": "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS REAL) END",
    "x'00'": "CAST({} AS BLOB)",
}


def _type(column: sa.Column[Any]) -> tuple[type[Any], str, str, str]:
    kind = column.type.impl_instance if isinstance(column.type, sa.types.TypeDecorator) else column.type
    for row in TYPES:
        if isinstance(kind, row[0]):
            return row
    raise ChessregError(f"queries cannot read {column.table.name}.{column.name} of type {column.type}")


def duckdb_type(column: sa.Column[Any]) -> str:
    return _type(column)[2]


def columns(table: str) -> dict[str, sa.Column[Any]]:
    return {column.name: column for column in TABLES[table].columns}


def view(database: Database, table: str, read: frozenset[str], source: str, extra: Collection[str] = ()) -> str:
    """SELECT that gives a table its declared types from the Arrow table `source`, which holds the columns `read`, and
    with them these extra columns.

    A column that was not read fails when it is looked at; it never passes for NULL.
    """
    parts = []
    for name, column in columns(table).items():
        _, _, kind, cast = _type(column)
        if name not in read:
            expression = f"CAST(error('{table}.{name} was not read') AS {kind})"
        elif database.dialect == "sqlite":
            expression = cast.format(f'"{name}"')
        else:
            expression = f'"{name}"::{kind}'
        parts.append(f'{expression} AS "{name}"')
    for name in sorted(extra):
        missing = f"CAST(error('{table}.{name} was not read') AS {extras.type_of(name)})"
        parts.append(f'"{name}"' if name in read else f'{missing} AS "{name}"')
    return f"SELECT {', '.join(parts)} FROM {source}"


def read(
    database: Database, wanted: Mapping[str, frozenset[str]], stop: threading.Event | None = None
) -> tuple[dict[str, pa.Table], str]:
    """These columns of these tables, and the data version: all as of one moment. No table without a wanted column.

    Of a large table of SQLite, runs that are kept as Arrow files come from there, and a second connection reads the
    second half of the others meanwhile, if it sees the same data version. Raises StoppedError soon after `stop` is set.
    """
    import pyarrow as pa

    with _connection(database) as connection:
        version = _version(connection, database.dialect)
        files = cache(partial(_column_files, connection, database))  # asked for where a table is large
        parts: dict[str, list[pa.Table]] = {}
        first: dict[str, str] = {}  # table → the rows that this connection reads
        second: dict[str, str] = {}
        for table, names in wanted.items():
            runs = _runs(connection, database.dialect, table)
            parts[table] = _kept(files, table, names, runs)
            wheres = _wheres(runs, bool(parts[table]))
            for rows, where in zip((first, second), wheres, strict=False):
                rows[table] = where

        def fetch(table: str, where: str) -> pa.Table:
            return _fetch(connection, table, wanted[table], where, database.dialect, stop)

        with ThreadPoolExecutor(1) as aside:
            reading = aside.submit(_read_aside, database, wanted, second, version, stop) if second else None
            for table, where in first.items():
                parts[table].append(fetch(table, where))
            others = reading.result() if reading else {}
        for table, where in second.items():
            parts[table].append(others[table] if others else fetch(table, where))
    return {t: pa.concat_tables(tables) for t, tables in parts.items()}, version


def keep(database: Database, tables: Mapping[str, Collection[str]]) -> None:
    """Write Arrow files of those large complete runs in these tables that have none, for the next who reads them, with
    these extra columns of each table.

    Raises OSError where none can be written, ChessregError where the registry cannot be read.
    """
    if database.dialect != "sqlite" or database.read_only:
        return
    with _connection(database) as connection:
        large = {table: runs for table in tables if _worth_keeping(runs := _runs(connection, database.dialect, table))}
        if not large:
            return
        files = _column_files(connection, database)
        files.clean()
        for table, runs in large.items():
            kept = _keepable(table).union(tables[table])
            for run, size in runs.items():
                if size.rows >= LARGE_RUN and run in files.complete and not files.has(table, run):
                    rows = _fetch(connection, table, kept, f"run_id = '{run}'", database.dialect)
                    files.write(table, run, extras.without_values(rows))


def _keepable(table: str) -> frozenset[str]:
    """The columns of a table that Arrow files have: not the long ones."""
    return frozenset(name for name, column in columns(table).items() if duckdb_type(column) not in ("BLOB", "JSON"))


def _kept(files: Callable[[], ColumnFiles], table: str, names: frozenset[str], runs: dict[str, Size]) -> list[pa.Table]:
    """What Arrow files have of these columns; their runs are taken out of `runs`."""
    if not (_worth_keeping(runs) and names <= _keepable(table).union(extras.among(names))):
        return []
    kept = []
    for run in [run for run, size in runs.items() if size.rows >= LARGE_RUN]:
        rows = files().read(table, run, names)
        if rows is not None:
            kept.append(extras.with_values(rows))
            del runs[run]
    return kept


def _worth_keeping(runs: Mapping[str, Size]) -> bool:
    return sum(size.rows for size in runs.values()) >= LARGE and len(runs) <= MOST_RUNS


def _column_files(connection: Any, database: Database) -> ColumnFiles:
    complete = "SELECT id, completed_at FROM run WHERE completed_at IS NOT NULL"
    schema = _answer(connection, f"SELECT version_num FROM {VERSION_TABLE}", "sqlite").to_pylist()
    assert database.place.path is not None
    rows = _answer(connection, complete, "sqlite").to_pylist()
    moments = {row["id"]: row["completed_at"] for row in rows}
    return ColumnFiles(database.place.path, schema[0]["version_num"], moments, database.read_only)


def _read_aside(
    database: Database,
    wanted: Mapping[str, frozenset[str]],
    wheres: Mapping[str, str],
    version: str,
    stop: threading.Event | None,
) -> dict[str, pa.Table]:
    """The answers, or none if the registry has moved on from `version`."""
    with _connection(database) as connection:
        if _version(connection, database.dialect) != version:
            return {}
        return {
            table: _fetch(connection, table, wanted[table], where, database.dialect, stop)
            for table, where in wheres.items()
        }


def _version(connection: Any, dialect: str) -> str:
    """The same text as Database.data_version(), as this connection sees it."""
    rows = _answer(connection, "SELECT registry_id, data_version FROM registry_state", dialect).to_pylist()
    return f"{UUID(str(rows[0]['registry_id'])).hex[-6:]}.{rows[0]['data_version']}" if rows else "0.0"


class Size(NamedTuple):
    """Units of a run, and about how many rows."""

    units: int
    rows: int


def _runs(connection: Any, dialect: str, table: str) -> dict[str, Size]:
    """The runs of a table of results; empty for other tables, and on PostgreSQL."""
    if dialect != "sqlite" or [c.name for c in TABLES[table].primary_key][:2] != ["run_id", "unit"]:
        return {}
    sizes = {}
    statement = RUNS.format(table=table, some=SOME)  # few steps down the index for each run
    for row in _answer(connection, statement, dialect).to_pylist():
        units = int(row["units"] or 0)
        sampled = max(1, min(units - units // 2, SOME))
        sizes[row["id"]] = Size(units, max(1, units, row["sampled"] * units // sampled))
    return sizes


def _wheres(runs: Mapping[str, Size], others_are_kept: bool) -> list[str]:
    """Conditions of the SELECTs that read the rows of these runs: two for a large table."""
    if others_are_kept and not runs:
        return []
    named = f"run_id IN ({', '.join(map(repr, runs))})" if others_are_kept else ""
    total = sum(size.rows for size in runs.values())
    if total < LARGE:
        return [named]
    before = 0
    for run, size in runs.items():
        if before + size.rows >= total / 2:
            cut = f"('{run}', {int((total / 2 - before) * size.units / size.rows)})"
            break
        before += size.rows
    return [" AND ".join(filter(None, (named, f"(run_id, unit) {sign} {cut}"))) for sign in ("<", ">=")]


def _select(table: str, wanted: frozenset[str], dialect: str, where: str, *, guarded: bool = False) -> str:
    """SELECT of these columns, on SQLite with the typed first row. `guarded`: a value of another type than its column's
    is NULL, and texts are bytes.
    """
    names = sorted(wanted)
    listed = ", ".join(f'"{name}"' for name in names)
    place = f'"{table}"'
    if table == RUN_NOW.name:
        place = f"({run_now().compile(dialect=_dialect(dialect), compile_kwargs={'literal_binds': True})}) AS run_now"
    if dialect != "sqlite":
        return f"SELECT {listed} FROM {place}"
    known = columns(table)
    first = {name: _type(known[name])[1] for name in names}
    if guarded:
        listed = ", ".join(GUARDS[first[name]].format(f'"{name}"') for name in names)
        first = {name: "x''" if value == "''" else value for name, value in first.items()}
    typed = ", ".join(f'{value} AS "{name}"' for name, value in first.items())
    return f"SELECT {typed} UNION ALL SELECT {listed} FROM {place}" + (f" WHERE {where}" if where else "")


def _dialect(name: str) -> sa.Dialect:
    dialect: sa.Dialect = sa.make_url(f"{name}://").get_dialect()()
    return dialect


@contextmanager
def _connection(database: Database) -> Iterator[Any]:
    """An ADBC connection in one read-only transaction.

    The driver is spoken to without its DB-API layer: that imports pyarrow.dataset and with it pandas, 0.4 s.
    """
    import adbc_driver_manager as adbc

    if (file := database.readable) is not None:
        import adbc_driver_sqlite

        driver, place = adbc_driver_sqlite._driver_path(), sqlite.uri(file, "ro")
    else:
        import adbc_driver_postgresql

        driver = adbc_driver_postgresql._driver_path()
        options = (
            "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read -c timezone=UTC"
        )
        url = sqlalchemy_url(database.place)
        url = url.set(drivername="postgresql").update_query_dict(link_options(url))
        place = f"{url.render_as_string(hide_password=False)}&options={quote(options)}"
    try:
        with (
            database.foreign_reader(),
            adbc.AdbcDatabase(driver=driver, uri=place) as opened,
            adbc.AdbcConnection(opened) as connection,
        ):
            connection.set_autocommit(False)
            yield connection
            connection.rollback()
    except adbc.Error as error:
        raise ChessregError(f"the registry cannot be read: {error}", "chessreg db status") from error


def library_version() -> str:
    """The version of the SQLite inside ADBC."""
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite

    with (
        adbc.AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=":memory:") as opened,
        adbc.AdbcConnection(opened) as connection,
    ):
        return str(_answer(connection, "SELECT sqlite_version() AS version", "sqlite")["version"][0].as_py())


def _fetch(
    connection: Any, table: str, names: frozenset[str], where: str, dialect: str, stop: threading.Event | None = None
) -> pa.Table:
    """These columns of the rows of a table for which `where` holds (empty: of all)."""
    extra = extras.among(names)
    own = names.difference(extra) | ({extras.DETAIL} if extra else frozenset())
    with closing(extras.Extractor(extra)) as extractor:

        def finished(rows: pa.Table) -> pa.Table:
            return extractor.beside(rows).select(sorted(names))

        def as_declared(rows: pa.Table) -> pa.Table:
            if not _as_declared(rows, table):
                raise OSError("a value of another type than its column's")
            return finished(rows)

        sql = _select(table, own, dialect, where)
        if dialect != "sqlite":
            return _answer(connection, sql, dialect, stop, finished)
        try:
            answer = _answer(connection, sql, dialect, stop, as_declared)
        except OSError:  # also where Arrow has no column of a value and of those before it
            guarded = _select(table, own, dialect, where, guarded=True)
            answer = _answer(connection, guarded, dialect, stop, lambda rows: finished(_decoded(rows, table)))
    return _with_uuids(answer.slice(1), table)


def _arrow_type(column: sa.Column[Any]) -> pa.DataType:
    """What ADBC makes of a column of SQLite whose values are all of the declared type."""
    import pyarrow as pa

    return {"''": pa.string(), "0": pa.int64(), "0.5": pa.float64(), "x'00'": pa.binary()}[_type(column)[1]]


def _as_declared(answer: pa.Table, table: str) -> bool:
    """Whether every column has its declared type, and every text is UTF-8."""
    import pyarrow as pa

    known = columns(table)
    if any(field.type != _arrow_type(known[field.name]) for field in answer.schema):
        return False
    try:
        for field in answer.schema:
            if pa.types.is_string(field.type):
                answer[field.name].validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _decoded(answer: pa.Table, table: str) -> pa.Table:
    """The answer to a guarded SELECT with its texts as such; bytes that are no UTF-8 become U+FFFD."""
    import pyarrow as pa

    known = columns(table)
    for place, name in enumerate(answer.column_names):
        if _arrow_type(known[name]) == pa.string():
            texts = [None if value is None else value.decode(errors="replace") for value in answer[name].to_pylist()]
            answer = answer.set_column(place, name, pa.array(texts, pa.string()))
    return answer


def _answer(
    connection: Any,
    sql: str,
    dialect: str,
    stop: threading.Event | None = None,
    made: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> pa.Table:
    """The rows of a SELECT, each batch as `made` makes it."""
    import adbc_driver_manager as adbc
    import pyarrow as pa

    with adbc.AdbcStatement(connection) as statement:
        if dialect == "sqlite":
            statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
        statement.set_sql_query(sql)
        handle, _ = statement.execute_query()
        reader = pa.RecordBatchReader._import_from_c(handle.address)
        parts = []
        for batch in reader:
            if stop is not None and stop.is_set():
                raise StoppedError("the reading was stopped")
            parts.append(made(pa.Table.from_batches([batch])))
        return pa.concat_tables(parts) if parts else made(pa.Table.from_batches([], reader.schema))


def _with_uuids(table: pa.Table, name: str) -> pa.Table:
    """SQLite's CHAR(32) ids as Arrow UUIDs, decoded once per run of equal values (rows lie in key order)."""
    import pyarrow as pa

    for place, column in enumerate(table.column_names):
        if column in columns(name) and _type(columns(name)[column])[0] is sa.Uuid:
            try:
                decoded = _uuids(table[column])
            except ValueError:  # not every one is an id: somebody else's file
                decoded = pa.chunked_array([pa.array([_id_or_none(v) for v in table[column].to_pylist()], pa.uuid())])
            table = table.set_column(place, column, decoded)
    return table


def _id_or_none(value: object) -> bytes | None:
    try:
        return UUID(hex=str(value)).bytes
    except ValueError:
        return None


def _uuids(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import numpy as np
    import pyarrow as pa

    chunks = []
    for chunk in column.chunks:
        valid = bits(chunk)
        digits = bytes_of(chunk, 32)
        halves = digits.view(np.uint64)
        first = np.ones(len(digits), bool)
        first[1:] = (halves[1:] != halves[:-1]).any(axis=1)
        decoded = np.frombuffer(bytes.fromhex(digits[first].tobytes().decode()), "V16")
        packed = np.zeros(len(chunk), "V16")
        packed[valid] = np.repeat(decoded, np.diff(np.flatnonzero(np.append(first, True))))
        buffers = [validity(valid), pa.py_buffer(packed)]
        storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(chunk), buffers)
        chunks.append(pa.ExtensionArray.from_storage(pa.uuid(), storage))
    return pa.chunked_array(chunks, pa.uuid())
