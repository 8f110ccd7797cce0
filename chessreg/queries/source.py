"""Read tables of the registry through ADBC into Arrow, all as of one moment. Never writes.

SQLite types a column by its first values: an empty table would come back as integers, and NULLs before a number would
fail. So a first row of typed values is prepended to each table and removed afterwards. SQLite also lets any column hold
any type: values whose type differs from the column's become NULL.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import sqlalchemy as sa

from chessreg.errors import ChessregError
from chessreg.queries.stop import StoppedError
from chessreg.registry import sqlite
from chessreg.registry.engines import make_sqlalchemy_url, timeout_options
from chessreg.registry.migrations import VERSION_TABLE
from chessreg.registry.run_state import select_run_states
from chessreg.registry.tables import Base

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.registry.database import Database

# A view that the registry's database computes for queries, so that a run's state and units done are defined once.
RUN_NOW = sa.Table(
    "run_now",
    sa.MetaData(),
    sa.Column("run_id", sa.Uuid()),
    sa.Column("state", sa.String()),
    sa.Column("done", sa.Integer()),
)
TABLES: dict[str, sa.Table] = {table.name: table for table in (*Base.metadata.sorted_tables, RUN_NOW)}
BATCH_ROWS = "16384"
TEXT = "CASE WHEN typeof({0}) <> 'blob' THEN CAST({0} AS TEXT) END"
WHOLE = "CASE typeof({0}) WHEN 'integer' THEN {0} END"
REAL = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS REAL) END"
BYTES = "CASE typeof({0}) WHEN 'blob' THEN {0} END"
FIRST = {TEXT: "''", WHOLE: "0", REAL: "0.5", BYTES: "x'00'"}  # values of the first row


class ColumnConversion(NamedTuple):
    """The conversion of a column: the expression that reads it from SQLite, its type in DuckDB, and the cast to that
    type."""

    read_expression: str
    duckdb: str
    cast: str


# Order matters: BigInteger is a subclass of Integer. An Integer is read as BIGINT, so that sums never overflow.
TYPES: list[tuple[type[Any], ColumnConversion]] = [
    (sa.Uuid, ColumnConversion(TEXT, "UUID", "TRY_CAST({} AS UUID)")),
    (sa.Boolean, ColumnConversion(WHOLE, "BOOLEAN", "TRY_CAST({} AS BOOLEAN)")),
    (sa.BigInteger, ColumnConversion(WHOLE, "BIGINT", "{}")),
    (sa.Integer, ColumnConversion(WHOLE, "BIGINT", "TRY_CAST({} AS INTEGER)::BIGINT")),
    (sa.Float, ColumnConversion(REAL, "DOUBLE", "{}")),
    (sa.DateTime, ColumnConversion(TEXT, "TIMESTAMPTZ", "TRY_CAST({} || '+00' AS TIMESTAMPTZ)")),
    (sa.JSON, ColumnConversion(TEXT, "JSON", "TRY_CAST({} AS JSON)")),
    (sa.LargeBinary, ColumnConversion(BYTES, "BLOB", "{}")),
    (sa.String, ColumnConversion(TEXT, "VARCHAR", "{}")),
]


class CompleteRun(NamedTuple):
    """A complete run: its id (32 hex digits), its kind, and the time of completion in SQLite's text form."""

    id: str
    kind: str
    completed_at: str


def get_column_conversion(column: sa.Column[Any]) -> ColumnConversion:
    """Return the DuckDB conversion of a SQL column. Raises ChessregError for an unsupported type."""
    kind = column.type.impl_instance if isinstance(column.type, sa.types.TypeDecorator) else column.type
    for type_, known_types in TYPES:
        if isinstance(kind, type_):
            return known_types
    raise ChessregError(f"queries cannot read {column.table.name}.{column.name} of type {column.type}")


def list_table_columns(table: str) -> dict[str, sa.Column[Any]]:
    return {column.name: column for column in TABLES[table].columns}


def list_column_types(table: str) -> dict[str, str]:
    """Return column name → DuckDB type."""
    return {name: get_column_conversion(column).duckdb for name, column in list_table_columns(table).items()}


def build_typed_select(table: str, dialect: str) -> str:
    """Return the SELECT of the rows of the Arrow table `_<table>` with their declared types."""
    parts = []
    for name, column in list_table_columns(table).items():
        _, kind, cast_sql = get_column_conversion(column)
        value = cast_sql.format(f'"{name}"') if dialect == "sqlite" else f'"{name}"::{kind}'
        parts.append(f'{value} AS "{name}"')
    return f'SELECT {", ".join(parts)} FROM "_{table}"'


@contextmanager
def open_reader(database: Database) -> Iterator[RegistryReader]:
    """Open a reader on one state of the registry. Raises ChessregError if the registry cannot be read.

    Uses the driver without its DB-API layer, which imports pandas (0.4 s).
    """
    import adbc_driver_manager as adbc

    if (file := database.readable_file) is not None:
        import adbc_driver_sqlite

        driver, place = adbc_driver_sqlite._driver_path(), sqlite.make_sqlite_uri(file, "ro")
    else:
        import adbc_driver_postgresql

        driver = adbc_driver_postgresql._driver_path()
        options = (
            "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read -c timezone=UTC"
        )
        url = make_sqlalchemy_url(database.place)
        url = url.set(drivername="postgresql").update_query_dict(timeout_options(url))
        place = f"{url.render_as_string(hide_password=False)}&options={quote(options)}"
    try:
        with (
            database.foreign_reader(),
            adbc.AdbcDatabase(driver=driver, uri=place) as adbc_database,
            adbc.AdbcConnection(adbc_database) as connection,
        ):
            connection.set_autocommit(False)
            yield RegistryReader(connection, database.dialect)
            connection.rollback()
    except adbc.Error as error:
        raise ChessregError(f"the registry cannot be read: {error}", "chessreg db status") from error


class RegistryReader:
    """An ADBC connection within one read-only transaction."""

    def __init__(self, connection: Any, dialect: str) -> None:
        self._connection, self._dialect = connection, dialect

    def version(self) -> str:
        """Return the text of Database.data_version(), as this connection sees it."""
        rows = self._answer("SELECT registry_id, data_version FROM registry_state").to_pylist()
        return f"{UUID(str(rows[0]['registry_id'])).hex[-6:]}.{rows[0]['data_version']}" if rows else "0.0"

    def schema(self) -> str:
        """Return the revision of the registry's schema."""
        return str(self._answer(f"SELECT version_num FROM {VERSION_TABLE}").to_pylist()[0]["version_num"])

    def complete_runs(self) -> list[CompleteRun]:
        """Return all complete runs of a SQLite registry."""
        columns_sql = ", ".join(TEXT.format(name) + f" AS {name}" for name in CompleteRun._fields)
        first = ", ".join(f"'' AS {name}" for name in CompleteRun._fields)
        sql = f"SELECT {first} UNION ALL SELECT {columns_sql} FROM run WHERE completed_at IS NOT NULL"
        return [CompleteRun(**row) for row in self._answer(sql).slice(1).to_pylist()]

    def long_runs(self, table: str, rows: int, without: Sequence[str]) -> list[str]:
        """Return the ids of complete runs of a SQLite registry with at least `rows` rows in a table, except
        `without`."""
        ids_sql = ", ".join(f"'{id}'" for id in without)
        sql = (
            f"SELECT '' AS id UNION ALL SELECT {TEXT.format('id')} FROM run WHERE completed_at IS NOT NULL "
            f"AND id NOT IN ({ids_sql}) "
            f'AND EXISTS (SELECT 1 FROM "{table}" WHERE run_id = run.id LIMIT 1 OFFSET {rows - 1})'
        )
        return [str(row["id"]) for row in self._answer(sql).slice(1).to_pylist()]

    def table(
        self,
        table: str,
        without: Sequence[str] = (),
        runs: Collection[str] | None = None,
        stop: threading.Event | None = None,
    ) -> pa.Table:
        """Return all columns of a table's rows: the rows of `runs`, or of all runs, except `without`. Ids are 32 hex
        digits.

        Raises StoppedError soon after `stop` is set.
        """
        names = list(list_table_columns(table))
        place = f'"{table}"'
        if table == RUN_NOW.name:
            dialect: sa.Dialect = sa.make_url(f"{self._dialect}://").get_dialect()()
            place = (
                f"({select_run_states().compile(dialect=dialect, compile_kwargs={'literal_binds': True})}) AS run_now"
            )
        if self._dialect != "sqlite":
            name_list = ", ".join(f'"{name}"' for name in names)
            where = "" if runs is None else f" WHERE run_id IN ({_list_ids(runs, without)})"
            return self._answer(f"SELECT {name_list} FROM {place}{where}", stop)
        where = "" if runs is None else f" WHERE run_id IN ({_list_ids(runs, without)})"
        if without and runs is None:  # SQLite finds the remaining rows by key
            name_list = ", ".join(f"'{id}'" for id in without)
            where = f" WHERE run_id IN (SELECT id FROM run WHERE id NOT IN ({name_list}))"
        return _valid_texts(self._answer(_select_typed(table, place, where), stop).slice(1))

    @contextmanager
    def stream(self, table: str, run: str, stop: threading.Event | None = None) -> Iterator[pa.RecordBatchReader]:
        """Open the rows of one run of a SQLite registry, as `table` returns them, without holding them in memory."""
        import pyarrow as pa

        with self._batches(_select_typed(table, f'"{table}"', f" WHERE run_id = '{run}'")) as reader:

            def iterate_valid_batches() -> Iterator[pa.RecordBatch]:
                first = 1  # the row of typed values
                for batch in reader:
                    if stop is not None and stop.is_set():
                        raise StoppedError("the reading was stopped")
                    yield from _valid_texts(pa.Table.from_batches([batch]).slice(first)).to_batches()
                    first = 0

            yield pa.RecordBatchReader.from_batches(reader.schema, iterate_valid_batches())

    def _answer(self, sql: str, stop: threading.Event | None = None) -> pa.Table:
        """Return the rows of a SELECT as one table. Raises StoppedError if `stop` is set meanwhile."""
        import pyarrow as pa

        with self._batches(sql) as reader:
            batches = []
            for batch in reader:
                if stop is not None and stop.is_set():
                    raise StoppedError("the reading was stopped")
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)

    @contextmanager
    def _batches(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """Open a reader of the rows of a SELECT in batches; it is closed when the block ends."""
        import adbc_driver_manager as adbc
        import pyarrow as pa

        with adbc.AdbcStatement(self._connection) as statement:
            if self._dialect == "sqlite":
                statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
            statement.set_sql_query(sql)
            handle, _ = statement.execute_query()
            yield pa.RecordBatchReader._import_from_c(handle.address)


def _select_typed(table: str, place: str, where: str) -> str:
    """Return the SELECT of a table's columns from `place` in SQLite, after a row of typed values."""
    types = {name: get_column_conversion(column) for name, column in list_table_columns(table).items()}
    first = ", ".join(f'{FIRST[type_.read_expression]} AS "{name}"' for name, type_ in types.items())
    values = ", ".join(type_.read_expression.format(f'"{name}"') for name, type_ in types.items())
    return f"SELECT {first} UNION ALL SELECT {values} FROM {place}{where}"


def _list_ids(ids: Collection[str], without: Collection[str]) -> str:
    """Return ids for a condition `IN (…)`."""
    return ", ".join(f"'{id}'" for id in sorted(set(ids) - set(without))) or "NULL"


def _valid_texts(table: pa.Table) -> pa.Table:
    """Return the table with NULL for each text that is not valid UTF-8."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            try:
                table[field.name].validate(full=True)
            except pa.ArrowInvalid:
                values = [value for chunk in table[field.name].chunks for value in chunk.view(pa.binary()).to_pylist()]
                table = table.set_column(place, field.name, pa.array(map(_text_or_none, values), pa.string()))
    return table


def _text_or_none(value: bytes | None) -> str | None:
    try:
        return value.decode() if value is not None else None
    except UnicodeDecodeError:
        return None


def get_adbc_sqlite_version() -> str:
    """Return the version of ADBC's SQLite library."""
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite

    with (
        adbc.AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=":memory:") as adbc_database,
        adbc.AdbcConnection(adbc_database) as connection,
    ):
        return str(
            RegistryReader(connection, "sqlite")._answer("SELECT sqlite_version() AS version")["version"][0].as_py()
        )
