"""DuckDB connections: in memory, locked down; Arrow in and out, a time limit. Differences of its versions are here."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.queries import gate, views
from chessreg.queries.buffers import without_dashes

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

DEFAULT_TIMEOUT = 300.0
DEFAULT_MEMORY = "4GB"
LOCK = (
    "SET temp_directory = ''",  # first: it is refused afterwards
    "SET TimeZone = 'UTC'",
    "SET enable_progress_bar = false",  # it would be drawn on stdout
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",  # else SQL reads any variable of the caller
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def connect(memory: str, threads: int, without_optimizers: str = "") -> duckdb.DuckDBPyConnection:
    """An empty database that reaches nothing outside. Raises BadInputError for a memory limit that is none."""
    import duckdb

    if not re.fullmatch(r"\d+(\.\d+)? ?([KMGT]i?)?B", memory, re.IGNORECASE):
        raise BadInputError(f"{memory!r} is no amount of memory", "for example --memory 8GB")
    connection = duckdb.connect(":memory:", config={"threads": str(threads)})
    connection.execute(f"SET memory_limit = '{memory}'")
    if without_optimizers:
        connection.execute(f"SET disabled_optimizers = '{without_optimizers}'")
    for macro in views.MACROS:
        connection.execute(macro)
    for statement in LOCK:
        connection.execute(statement)
    return connection


def close(connections: list[duckdb.DuckDBPyConnection]) -> None:
    for connection in connections:
        connection.close()


def run(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None, timeout: float | None
) -> pa.Table:
    """The rows of a SELECT. Raises ChessregError when `timeout` seconds have passed."""
    timer = threading.Timer(DEFAULT_TIMEOUT if timeout is None else timeout, connection.interrupt)
    timer.daemon = True
    with explained():
        timer.start()
        try:
            return _arrow(connection, sql, used(sql, parameters))
        finally:
            timer.cancel()


def used(sql: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parameters that a statement names: DuckDB refuses others."""
    return {name: value for name, value in (parameters or {}).items() if f"${name}" in sql}


@contextmanager
def explained() -> Iterator[None]:
    """DuckDB's errors as ours."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise gate.explained(error) from error


def register(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    """Give DuckDB an Arrow table. It would import pandas first (0.3 s) only to see that this is no data frame."""
    hide = "pandas" not in sys.modules
    if hide:
        sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        connection.register(name, table)
    finally:
        if hide:
            del sys.modules["pandas"]


def _arrow(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any]) -> pa.Table:
    """Rows as Arrow. DuckDB 2 gives them through a relation, DuckDB 1 by another name."""
    relation = connection.sql(sql, params=parameters or None)
    if relation is None:  # a statement without rows; the gate lets none through
        raise BadInputError("that gives no rows", gate.HINT)
    table = relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table()
    return _tidied(table, [str(kind) for kind in relation.types])


def _tidied(table: pa.Table, types: list[str]) -> pa.Table:
    """Ids as 32 hex digits, as everywhere else; whole numbers as int64, other decimals as doubles."""
    import pyarrow as pa

    for place, (field, kind) in enumerate(zip(table.schema, types, strict=True)):
        column = table.column(place)
        if kind == "UUID":
            column = without_dashes(column)
        elif pa.types.is_decimal(field.type):
            values = column.to_pylist()
            whole = field.type.scale == 0 and all(v is None or abs(v) < 2**63 for v in values)
            number, target = (int, pa.int64()) if whole else (float, pa.float64())
            column = pa.array([None if v is None else number(v) for v in values], target)
        elif kind in ("HUGEINT", "UHUGEINT"):
            values = column.to_pylist()
            if all(v is None or abs(v) < 2**53 for v in values):  # a double holds these exactly
                column = pa.array([None if v is None else int(v) for v in values], pa.int64())
        else:
            continue
        table = table.set_column(place, field.name, column)
    return table
