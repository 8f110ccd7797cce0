"""What a query names of the registry, read through ADBC into Arrow with the declared types. Never writes.

SQLite types a column by its first values: an empty table would come back as integers, and NULLs before a number would
fail. So a first row of typed values goes in front of each table and is cut off again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from chessreg.errors import ChessregError
from chessreg.queries.buffers import bits, bytes_of, validity
from chessreg.queries.column_files import ColumnFiles
from chessreg.registry.migrations import VERSION_TABLE
from chessreg.registry.run_state import run_now
from chessreg.registry.tables import Base

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.registry.database import Database

# What the database itself computes for queries, so that it is said once: of each run the state and units done.
RUN_NOW = sa.Table(
    "run_now",
    sa.MetaData(),
    sa.Column("run_id", sa.Uuid()),
    sa.Column("state", sa.String()),
    sa.Column("done", sa.Integer()),
)
TABLES: dict[str, sa.Table] = {table.name: table for table in (*Base.metadata.sorted_tables, RUN_NOW)}
BATCH_ROWS = "16384"
LARGE = 100_000  # units of results from which two connections share the reading, and runs are kept as Arrow files
LARGE_RUN = 10_000  # units of a run that is kept
MOST_RUNS = 10_000  # of a table some of whose runs are kept: SQLite takes so many names in one SELECT
RUNS = """WITH RECURSIVE r(id) AS (
    SELECT min(run_id) FROM "{table}"
    UNION ALL SELECT (SELECT min(run_id) FROM "{table}" WHERE run_id > r.id) FROM r WHERE r.id IS NOT NULL
) SELECT id, (SELECT max(unit) FROM "{table}" WHERE run_id = r.id) + 1 AS units FROM r WHERE id IS NOT NULL"""

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


def view(database: Database, table: str, read: frozenset[str], source: str) -> str:
    """SELECT that gives a table its declared types from the Arrow table `source`, which holds the columns `read`.

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
    return f"SELECT {', '.join(parts)} FROM {source}"


class StoppedError(ChessregError):
    """Who asked does not wait for the answer any more."""


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
        found: dict[str, list[pa.Table]] = {}
        first: dict[str, str] = {}
        second: dict[str, str] = {}
        for table, names in wanted.items():
            runs = _runs(connection, database.dialect, table)
            found[table] = _kept(files, table, names, runs)
            wheres = _wheres(runs, bool(found[table]))
            for selects, where in zip((first, second), wheres, strict=False):
                selects[table] = _select(table, names, database.dialect, where)
        with ThreadPoolExecutor(1) as aside:
            reading = aside.submit(_read_aside, database, second, version, stop) if second else None
            for table, sql in first.items():
                found[table].append(_fetch(connection, sql, table, database.dialect, stop))
            others = reading.result() if reading else {}
        for table, sql in second.items():
            found[table].append(others[table] if others else _fetch(connection, sql, table, database.dialect, stop))
    return {t: pa.concat_tables(tables) for t, tables in found.items()}, version


def keep(database: Database, tables: Iterable[str]) -> None:
    """Write Arrow files of those large complete runs in these tables that have none, for the next who reads them.

    Raises OSError where none can be written, ChessregError where the registry cannot be read.
    """
    if database.dialect != "sqlite":
        return
    with _connection(database) as connection:
        large = {table: runs for table in tables if _worth_keeping(runs := _runs(connection, database.dialect, table))}
        if not large:
            return
        files = _column_files(connection, database)
        files.clean()
        for table, runs in large.items():
            for run, units in runs.items():
                if units >= LARGE_RUN and run in files.complete and not files.has(table, run):
                    sql = _select(table, _keepable(table), database.dialect, f"run_id = '{run}'")
                    files.write(table, run, _fetch(connection, sql, table, database.dialect))


def _keepable(table: str) -> frozenset[str]:
    """The columns of a table that Arrow files have: not the long ones."""
    return frozenset(name for name, column in columns(table).items() if duckdb_type(column) not in ("BLOB", "JSON"))


def _kept(files: Callable[[], ColumnFiles], table: str, names: frozenset[str], runs: dict[str, int]) -> list[pa.Table]:
    """What Arrow files have of these columns; their runs are taken out of `runs`."""
    if not (_worth_keeping(runs) and names <= _keepable(table)):
        return []
    found = []
    for run in [run for run, units in runs.items() if units >= LARGE_RUN]:
        rows = files().read(table, run, names)
        if rows is not None:
            found.append(rows)
            del runs[run]
    return found


def _worth_keeping(runs: Mapping[str, int]) -> bool:
    return sum(runs.values()) >= LARGE and len(runs) <= MOST_RUNS


def _column_files(connection: Any, database: Database) -> ColumnFiles:
    complete = "SELECT id, completed_at FROM run WHERE completed_at IS NOT NULL"
    schema = _answer(connection, f"SELECT version_num FROM {VERSION_TABLE}", "sqlite").to_pylist()
    assert database.place.path is not None
    rows = _answer(connection, complete, "sqlite").to_pylist()
    moments = {row["id"]: row["completed_at"] for row in rows}
    return ColumnFiles(database.place.path, schema[0]["version_num"], moments)


def _read_aside(
    database: Database, selects: Mapping[str, str], version: str, stop: threading.Event | None
) -> dict[str, pa.Table]:
    """The answers, or none if the registry has moved on from `version`."""
    with _connection(database) as connection:
        if _version(connection, database.dialect) != version:
            return {}
        return {table: _fetch(connection, sql, table, database.dialect, stop) for table, sql in selects.items()}


def _version(connection: Any, dialect: str) -> str:
    """The same text as Database.data_version(), as this connection sees it."""
    rows = _answer(connection, "SELECT registry_id, data_version FROM registry_state", dialect).to_pylist()
    return f"{UUID(str(rows[0]['registry_id'])).hex[-6:]}.{rows[0]['data_version']}" if rows else "0.0"


def _runs(connection: Any, dialect: str, table: str) -> dict[str, int]:
    """Units by run of a table of results; empty for other tables, and on PostgreSQL."""
    if dialect != "sqlite" or [c.name for c in TABLES[table].primary_key][:2] != ["run_id", "unit"]:
        return {}
    rows = _answer(connection, RUNS.format(table=table), dialect).to_pylist()  # few steps down the index for each run
    return {row["id"]: int(row["units"] or 0) for row in rows}


def _wheres(runs: Mapping[str, int], others_are_kept: bool) -> list[str]:
    """Conditions of the SELECTs that read the rows of these runs: two for a large table."""
    if others_are_kept and not runs:
        return []
    named = f"run_id IN ({', '.join(map(repr, runs))})" if others_are_kept else ""
    total = sum(runs.values())
    if total < LARGE:
        return [named]
    before = 0
    for run, units in runs.items():
        if before + units >= total / 2:
            cut = f"('{run}', {int(total / 2 - before)})"
            break
        before += units
    return [" AND ".join(filter(None, (named, f"(run_id, unit) {sign} {cut}"))) for sign in ("<", ">=")]


def _select(table: str, wanted: frozenset[str], dialect: str, where: str) -> str:
    names = sorted(wanted)
    listed = ", ".join(f'"{name}"' for name in names)
    place = f'"{table}"'
    if table == RUN_NOW.name:
        place = f"({run_now().compile(dialect=_dialect(dialect), compile_kwargs={'literal_binds': True})}) AS run_now"
    if dialect != "sqlite":
        return f"SELECT {listed} FROM {place}"
    known = columns(table)
    first = ", ".join(f'{_type(known[name])[1]} AS "{name}"' for name in names)
    return f"SELECT {first} UNION ALL SELECT {listed} FROM {place}" + (f" WHERE {where}" if where else "")


def _dialect(name: str) -> sa.Dialect:
    dialect: sa.Dialect = sa.make_url(f"{name}://").get_dialect()()
    return dialect


@contextmanager
def _connection(database: Database) -> Iterator[Any]:
    """An ADBC connection in one read-only transaction.

    The driver is spoken to without its DB-API layer: that imports pyarrow.dataset and with it pandas, 0.4 s.
    """
    import adbc_driver_manager as adbc

    url = sa.make_url(database.url)
    if database.dialect == "sqlite":
        import adbc_driver_sqlite

        driver, place = adbc_driver_sqlite._driver_path(), f"file:{_quoted(str(database.readable))}?mode=ro"
    else:
        import adbc_driver_postgresql

        driver = adbc_driver_postgresql._driver_path()
        options = (
            "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read -c timezone=UTC"
        )
        place = url.set(drivername="postgresql").render_as_string(hide_password=False)
        place += f"{'&' if url.query else '?'}options={_quoted(options)}"
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


def _fetch(connection: Any, sql: str, table: str, dialect: str, stop: threading.Event | None = None) -> pa.Table:
    """The answer to a `_select` of this table, without the first row."""
    found = _answer(connection, sql, dialect, stop)
    return _with_uuids(found.slice(1), table) if dialect == "sqlite" else found


def _answer(connection: Any, sql: str, dialect: str, stop: threading.Event | None = None) -> pa.Table:
    import adbc_driver_manager as adbc
    import pyarrow as pa

    with adbc.AdbcStatement(connection) as statement:
        if dialect == "sqlite":
            statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
        statement.set_sql_query(sql)
        handle, _ = statement.execute_query()
        reader = pa.RecordBatchReader._import_from_c(handle.address)
        if stop is None:
            return reader.read_all()
        found = []
        for batch in reader:
            if stop.is_set():
                raise StoppedError("the reading was stopped")
            found.append(batch)
        return pa.Table.from_batches(found, reader.schema)


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text)


def _with_uuids(table: pa.Table, name: str) -> pa.Table:
    """SQLite's CHAR(32) ids as Arrow UUIDs, decoded once per run of equal values (rows lie in key order)."""
    import pyarrow as pa

    for place, column in enumerate(table.column_names):
        if _type(columns(name)[column])[0] is sa.Uuid:
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
        words = digits.view(np.uint64)
        first = np.ones(len(digits), bool)
        first[1:] = (words[1:] != words[:-1]).any(axis=1)
        decoded = np.frombuffer(bytes.fromhex(digits[first].tobytes().decode()), "V16")
        packed = np.zeros(len(chunk), "V16")
        packed[valid] = np.repeat(decoded, np.diff(np.flatnonzero(np.append(first, True))))
        buffers = [validity(valid), pa.py_buffer(packed)]
        storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(chunk), buffers)
        chunks.append(pa.ExtensionArray.from_storage(pa.uuid(), storage))
    return pa.chunked_array(chunks, pa.uuid())
