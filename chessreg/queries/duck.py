"""DuckDB connections: in memory, locked down; Arrow in and out, a time limit. Differences of its versions are here."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from chessreg.errors import BadInputError
from chessreg.queries import gate
from chessreg.queries.stop import awaited

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

DEFAULT_TIMEOUT = 300.0
PATIENCE = 0.5  # seconds that a statement has to end once it is stopped
BATCH_ROWS = 16_384
SORTED_BYTES = 32 << 20  # of an answer without an ORDER BY that comes in parts: a longer one is not sorted
T = TypeVar("T")
DEFAULT_MEMORY = "4GB"
LOCK = (
    "SET temp_directory = ''",  # first: it is refused afterwards
    "SET TimeZone = 'UTC'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",  # else SQL reads any variable of the caller
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def connect(memory: str, threads: int, files: Iterable[Path] = ()) -> duckdb.DuckDBPyConnection:
    """Return an empty database that can read these files and reaches nothing else outside. Raises BadInputError for a
    memory limit that is not an amount of memory."""
    import duckdb

    if not re.fullmatch(r"\d+(\.\d+)? ?([KMGT]i?)?B", memory, re.IGNORECASE):
        raise BadInputError(f"{memory!r} is no amount of memory", "for example --memory 8GB")
    connection = duckdb.connect(":memory:", config={"threads": str(threads)})
    connection.execute(f"SET memory_limit = '{memory}'")
    if files:
        connection.execute(f"SET allowed_paths = [{', '.join(map(text_literal, files))}]")
    hide_progress_bar(connection)
    for statement in LOCK:
        connection.execute(statement)
    return connection


def hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep DuckDB from drawing on stdout. In a notebook without ipywidgets it has no bar and refuses the setting."""
    import duckdb

    with suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")


def connect_unlocked() -> duckdb.DuckDBPyConnection:
    """Return an empty database that can write files: for statements of this package, never for a user's."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    hide_progress_bar(connection)
    return connection


def text_literal(value: object) -> str:
    """Return a text, or a path, as a literal of SQL."""
    return "'" + str(value).replace("'", "''") + "'"


def close(connections: list[duckdb.DuckDBPyConnection]) -> None:
    import duckdb

    for connection in connections:
        with suppress(duckdb.Error):  # busy with what was stopped: it goes with the process
            connection.close()


def is_busy(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a statement that was stopped has not ended yet."""
    import duckdb

    try:
        connection.execute("SELECT 1").fetchall()
    except duckdb.Error:
        return True
    return False


def run(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None, timeout: float | None
) -> pa.Table:
    """The rows of a SELECT. Raises ChessregError when `timeout` seconds have passed."""
    with explained():
        return within(connection, deadline(timeout), lambda: _arrow(connection, sql, used(sql, parameters)))


def bind(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
    """Raises BadInputError for a SELECT that does not bind."""
    with explained():
        connection.execute("EXPLAIN " + sql, used(sql, parameters))


def batches(connection: duckdb.DuckDBPyConnection, sql: str, until: float, *, sort: bool = False) -> Iterator[pa.Table]:
    """The rows of a SELECT, some at a time and never all in memory; the first table, perhaps empty, has the columns.

    With `sort`, an answer of up to SORTED_BYTES is held until it is whole, and comes in the order of its values.
    """
    import pyarrow as pa

    with explained():
        relation = within(connection, until, lambda: connection.sql(sql))
        if relation is None:
            raise BadInputError("that gives no rows", gate.HINT)
        relation = _representable(relation)
        types = [str(kind) for kind in relation.types]
        make = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
        reader = within(connection, until, lambda: make(BATCH_ROWS))
        yield _tidied(reader.schema.empty_table(), types)
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in _read(connection, reader, until):
            held.append(batch)
            size += batch.nbytes
            if not sort or size > SORTED_BYTES:
                sort = False
                while held:
                    yield _tidied(pa.Table.from_batches([held.pop(0)]), types)
        if held:
            yield _tidied(within(connection, until, lambda: _sorted(connection, pa.Table.from_batches(held))), types)


def _sorted(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """Rows in the order of their values, by the first column, then the second."""
    connection.register("short_answer", rows)
    try:
        return arrow_table(connection.sql("SELECT * FROM short_answer ORDER BY ALL"))
    finally:
        connection.unregister("short_answer")


def _read(connection: duckdb.DuckDBPyConnection, reader: Any, until: float) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    while True:
        try:
            yield within(connection, until, reader.read_next_batch)
        except StopIteration:
            return
        except pa.ArrowException as error:  # DuckDB's errors come through Arrow here
            raise gate.in_arrow(error) from error


def deadline(timeout: float | None) -> float:
    """When so many seconds, or the default, will have passed, by the monotonic clock."""
    return time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout)


def within(connection: duckdb.DuckDBPyConnection, until: float, work: Callable[[], T]) -> T:
    """What `work` gives, which runs inside DuckDB on a thread of its own: there Python hears no Ctrl-C.

    Stops it when `until` is over, with a ChessregError, and when this thread is interrupted or stopped.
    """
    outcome: Future[T] = Future()

    def do() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=do, name="duckdb", daemon=True)
    thread.start()
    try:
        return awaited(outcome, until)
    except BaseException as error:
        ours = not outcome.done()
        patience = time.monotonic() + PATIENCE
        while not outcome.done() and time.monotonic() < patience:
            connection.interrupt()  # one that comes before the statement has begun is not heard
            thread.join(0.05)
        if ours and isinstance(error, TimeoutError):
            raise gate.took_too_long() from None
        raise


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


def _arrow(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any]) -> pa.Table:
    """Rows as Arrow. DuckDB 2 gives them through a relation, DuckDB 1 by another name."""
    relation = connection.sql(sql, params=parameters or None)
    if relation is None:  # a statement without rows; the gate lets none through
        raise BadInputError("that gives no rows", gate.HINT)
    relation = _representable(relation)
    return _tidied(arrow_table(relation), [str(kind) for kind in relation.types])


AS_TEXT = re.compile(r"BIGNUM|BIT|INTERVAL|TIME|TIME WITH TIME ZONE|TIME_NS|UNION\(.*")


def _representable(relation: Any) -> Any:
    """The relation, with ids as 32 hex digits, and with columns of types that Arrow or Python lacks (24:00, intervals,
    bits) as DuckDB writes them."""
    types = [str(kind) for kind in relation.types]
    if not any(kind == "UUID" or AS_TEXT.fullmatch(kind) for kind in types):
        return relation
    cells = []
    for number, (name, kind) in enumerate(zip(relation.columns, types, strict=True), 1):
        text = f"CAST(#{number} AS VARCHAR)"
        cell = f"replace({text}, '-', '')" if kind == "UUID" else text if AS_TEXT.fullmatch(kind) else f"#{number}"
        quoted = name.replace('"', '""')
        cells.append(f'{cell} AS "{quoted}"')
    return relation.project(", ".join(cells))


def arrow_table(relation: Any) -> pa.Table:
    return relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table()


def _tidied(table: pa.Table, types: list[str]) -> pa.Table:
    """Return the table with whole numbers as int64 or, beyond it, as their digits, other decimals
    as doubles, and dates that Python cannot hold (infinity, years beyond 9999) as text. `types` are DuckDB's."""
    import pyarrow as pa

    for place, (field, kind) in enumerate(zip(table.schema, types, strict=True)):
        column = table.column(place)
        if pa.types.is_nested(field.type):
            column = _nested(column, kind)
        elif pa.types.is_decimal(field.type) or kind in ("HUGEINT", "UHUGEINT"):
            column = _numbers(column, kind)
        elif pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            column = _moments(column)
        else:
            continue
        table = table.set_column(place, field.name, column)
    return table


def _numbers(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray | pa.Array:
    import pyarrow as pa

    values = column.to_pylist()
    if pa.types.is_decimal(column.type) and column.type.scale > 0:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if any(isinstance(value, float) and abs(value) >= 2**53 for value in values):  # of DuckDB 1: the digits are lost
        return column
    whole = [None if value is None else _whole(value, kind) for value in values]
    if all(value is None or -(2**63) <= value < 2**63 for value in whole):
        return pa.array(whole, pa.int64())
    return pa.array([None if value is None else str(value) for value in whole], pa.string())


def _whole(value: Any, kind: str) -> int:
    """A whole number of this DuckDB type. Arrow has no unsigned 128 bits: it gives the upper half as negative."""
    number = int(value)
    return number + 2**128 if number < 0 and "UHUGEINT" in kind else number


def _moments(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Dates or times; as text if Python cannot hold one of them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    unit: Any = "D" if pa.types.is_date32(column.type) else column.type.unit
    integers = column.cast(pa.int32() if unit == "D" else pa.int64())
    first, last = 2 - 2**63, 2**63 - 2
    if unit != "ns":  # which has no year that Python lacks
        first, last = (int(np.datetime64(day, unit).astype(int)) for day in ("0001-01-01", "9999-12-31"))
    ends = pc.min_max(integers).as_py()
    if ends["min"] is None or first <= ends["min"] <= ends["max"] <= last:
        return column
    infinite = {sign * top: f"{'-' * (sign < 0)}infinity" for sign in (1, -1) for top in (2**31 - 1, 2**63 - 1)}
    texts = (
        value if value is None else infinite.get(value) or str(np.datetime64(value, unit))
        for value in integers.to_pylist()
    )
    return pa.array(texts, pa.string())


def _nested(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray | pa.Array:
    """Lists, structs and maps; as text if one holds a number or a moment that Arrow or Python cannot."""
    import duckdb
    import pyarrow as pa

    try:
        values = column.to_pylist()
    except (ArithmeticError, ValueError):  # a moment
        with duckdb.connect() as connection:
            return arrow_table(connection.from_arrow(pa.table({"c": column})).project("c::VARCHAR AS c")).column(0)
    if "HUGEINT" not in kind:
        return column
    whole = [_whole_inside(value, kind) for value in values]
    try:
        return pa.array(whole)
    except (ArithmeticError, pa.ArrowException):
        return pa.array([None if value is None else str(value) for value in whole], pa.string())


def _whole_inside(value: Any, kind: str) -> Any:
    from decimal import Decimal

    if isinstance(value, dict):
        return {key: _whole_inside(each, kind) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole_inside(each, kind) for each in value]
    return _whole(value, kind) if isinstance(value, Decimal) and value == int(value) else value
