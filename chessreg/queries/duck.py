"""Locked, in-memory DuckDB connections with time limits. Conversion of answers to Arrow. Differences of DuckDB's
versions."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from chessreg.errors import BadInputError
from chessreg.queries import gate
from chessreg.queries.stop import wait_for_result

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

DEFAULT_TIMEOUT_S = 300.0
INTERRUPT_TIMEOUT_S = 0.5  # longest wait for an interrupted statement
BATCH_ROWS = 16_384
MOST_SORTED_BYTES = 32 << 20  # largest streamed answer that is sorted if it has no ORDER BY
T = TypeVar("T")
DEFAULT_MEMORY = "4GB"
LOCK_STATEMENTS = (
    "SET temp_directory = ''",  # first, because it is refused afterwards
    "SET TimeZone = 'UTC'",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",  # otherwise SQL can read any variable of the caller
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def connect_locked(memory: str, threads: int, files: Iterable[Path] = ()) -> duckdb.DuckDBPyConnection:
    """Return an empty database that can read these files and nothing else outside of it.

    Raises BadInputError for a memory limit that is not an amount of memory.
    """
    import duckdb

    if not re.fullmatch(r"\d+(\.\d+)? ?([KMGT]i?)?B", memory, re.IGNORECASE):
        raise BadInputError(f"{memory!r} is not an amount of memory", "for example --memory 8GB")
    connection = duckdb.connect(":memory:", config={"threads": str(threads)})
    connection.execute(f"SET memory_limit = '{memory}'")
    if files:
        connection.execute(f"SET allowed_paths = [{', '.join(map(quote_text, files))}]")
    hide_progress_bar(connection)
    for statement in LOCK_STATEMENTS:
        connection.execute(statement)
    return connection


def hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep DuckDB from drawing on stdout. In a notebook without ipywidgets, it draws no bar and refuses the setting."""
    import duckdb

    with suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")


def connect_unlocked() -> duckdb.DuckDBPyConnection:
    """Return an empty database that can write files. For statements of this package only, never for a user's."""
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    hide_progress_bar(connection)
    return connection


def quote_text(value: object) -> str:
    """Return a text or a path as a SQL literal."""
    return "'" + str(value).replace("'", "''") + "'"


def close_connections(connections: list[duckdb.DuckDBPyConnection]) -> None:
    """Close the connections. DuckDB closes those with an interrupted statement when the process ends."""
    import duckdb

    for connection in connections:
        with suppress(duckdb.Error):  # still busy with an interrupted statement: closed when the process ends
            connection.close()


def is_busy(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether an interrupted statement is still running."""
    import duckdb

    try:
        connection.execute("SELECT 1").fetchall()
    except duckdb.Error:
        return True
    return False


def run_select_in_batches(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None, timeout: float | None
) -> pa.Table:
    """Return the rows of a SELECT. Raises ChessregError after `timeout` seconds."""
    with translate_errors():
        return run_until(
            connection,
            compute_deadline(timeout),
            lambda: _fetch_arrow(connection, sql, select_parameters(sql, parameters)),
        )


def check_binds(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
    """Raise BadInputError for a SELECT that does not bind."""
    with translate_errors():
        connection.execute("EXPLAIN " + sql, select_parameters(sql, parameters))


def stream_batches(
    connection: duckdb.DuckDBPyConnection, sql: str, until: float, *, sort: bool = False
) -> Iterator[pa.Table]:
    """Yield the rows of a SELECT in parts, never all in memory. The first table, perhaps empty, has the columns.

    With `sort`, an answer of up to MOST_SORTED_BYTES is held in memory and sorted by value.
    """
    import pyarrow as pa

    with translate_errors():
        relation = run_until(connection, until, lambda: connection.sql(sql))
        if relation is None:
            raise BadInputError("the statement returns no rows", gate.HINT)
        relation = _with_representable_types(relation)
        types = [str(kind) for kind in relation.types]
        make = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
        reader = run_until(connection, until, lambda: make(BATCH_ROWS))
        yield _convert_columns(reader.schema.empty_table(), types)
        held_batches: list[pa.RecordBatch] = []
        size = 0
        for batch in _read_batches(connection, reader, until):
            held_batches.append(batch)
            size += batch.nbytes
            if not sort or size > MOST_SORTED_BYTES:
                sort = False
                while held_batches:
                    yield _convert_columns(pa.Table.from_batches([held_batches.pop(0)]), types)
        if held_batches:
            yield _convert_columns(
                run_until(connection, until, lambda: _sort_rows(connection, pa.Table.from_batches(held_batches))), types
            )


def _sort_rows(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    """Return the rows sorted by value, by the first column, then the second."""
    connection.register("short_answer", rows)
    try:
        return convert_to_arrow(connection.sql("SELECT * FROM short_answer ORDER BY ALL"))
    finally:
        connection.unregister("short_answer")


def _read_batches(connection: duckdb.DuckDBPyConnection, reader: Any, until: float) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader. Raises the errors of `run_until`, and those of `gate.convert_arrow_error`."""
    import pyarrow as pa

    while True:
        try:
            yield run_until(connection, until, reader.read_next_batch)
        except StopIteration:
            return
        except pa.ArrowException as error:  # DuckDB's errors come through Arrow here
            raise gate.convert_arrow_error(error) from error


def compute_deadline(timeout: float | None) -> float:
    """Return the monotonic time in `timeout` seconds, by default in DEFAULT_TIMEOUT_S."""
    return time.monotonic() + (DEFAULT_TIMEOUT_S if timeout is None else timeout)


def run_until(connection: duckdb.DuckDBPyConnection, until: float, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in DuckDB on a separate thread, because DuckDB calls do not receive
    Ctrl-C.

    Interrupts DuckDB at the monotonic time `until`, with a ChessregError, and if this thread is interrupted or stopped.
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
        return wait_for_result(outcome, until)
    except BaseException as error:
        ours = not outcome.done()
        patience = time.monotonic() + INTERRUPT_TIMEOUT_S
        while not outcome.done() and time.monotonic() < patience:
            connection.interrupt()  # has no effect before the statement has begun, so it is repeated
            thread.join(0.05)
        if ours and isinstance(error, TimeoutError):
            raise gate.make_timeout_error() from None
        raise


def select_parameters(sql: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parameters that the statement names, because DuckDB refuses others."""
    return {name: value for name, value in (parameters or {}).items() if f"${name}" in sql}


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate DuckDB's errors into ChessregErrors."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise gate.convert_duckdb_error(error) from error


def _fetch_arrow(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any]) -> pa.Table:
    """Return the rows of a SELECT as Arrow."""
    relation = connection.sql(sql, params=parameters or None)
    if relation is None:  # a statement without rows, which the gate rejects
        raise BadInputError("the statement returns no rows", gate.HINT)
    relation = _with_representable_types(relation)
    return _convert_columns(convert_to_arrow(relation), [str(kind) for kind in relation.types])


AS_TEXT = re.compile(r"BIGNUM|BIT|INTERVAL|TIME|TIME WITH TIME ZONE|TIME_NS|UNION\(.*")


def _with_representable_types(relation: Any) -> Any:
    """Return the relation with ids as 32 hex digits, with types that Arrow or Python lacks (24:00, intervals, bits) as
    text, and with a separate name for each column."""
    types, names = [str(kind) for kind in relation.types], _number_repeated_names(relation.columns)
    if names == relation.columns and not any(kind == "UUID" or AS_TEXT.fullmatch(kind) for kind in types):
        return relation
    cells = []
    for number, (name, kind) in enumerate(zip(names, types, strict=True), 1):
        text = f"CAST(#{number} AS VARCHAR)"
        cell = f"replace({text}, '-', '')" if kind == "UUID" else text if AS_TEXT.fullmatch(kind) else f"#{number}"
        quoted_name = name.replace('"', '""')
        cells.append(f'{cell} AS "{quoted_name}"')
    return relation.project(", ".join(cells))


def _number_repeated_names(names: Sequence[str]) -> list[str]:
    """Return the names with a number after each repetition, as in DuckDB's subqueries: a row is a dict, which would
    lose the first of two columns with one name."""
    unique: list[str] = []
    for name in names:
        numbers = (f"{name}_{number}" for number in count(1))
        unique.append(name if name not in unique else next(n for n in numbers if n not in unique and n not in names))
    return unique


@contextmanager
def registered_answers(connection: duckdb.DuckDBPyConnection, answers: Mapping[str, pa.Table]) -> Iterator[None]:
    """Define the tables of earlier answers by these names during the block. Their columns of ids become UUIDs again."""
    import pyarrow as pa

    for name, table in answers.items():
        ids = [field.name for field in table.schema if field.name.endswith("_id") and pa.types.is_string(field.type)]
        casts = ", ".join(f'TRY_CAST("{column}" AS UUID) AS "{column}"' for column in ids)
        connection.register(f"_{name}", table)
        connection.execute(
            f'CREATE TEMP VIEW "{name}" AS SELECT *{f" REPLACE ({casts})" if ids else ""} FROM "_{name}"'
        )
    try:
        yield
    finally:
        for name in answers:
            connection.execute(f'DROP VIEW IF EXISTS "{name}"')
            connection.unregister(f"_{name}")


def convert_to_arrow(relation: Any) -> pa.Table:
    return relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table()


def _convert_columns(table: pa.Table, types: list[str]) -> pa.Table:
    """Return the table with types that Python can hold.

    Whole numbers become int64 or, beyond it, text; other decimals become doubles; dates outside of Python's range
    become text. `types` are DuckDB's.
    """
    import pyarrow as pa

    for place, (field, kind) in enumerate(zip(table.schema, types, strict=True)):
        column = table.column(place)
        if pa.types.is_nested(field.type):
            column = _representable_nested(column, kind)
        elif pa.types.is_decimal(field.type) or kind in ("HUGEINT", "UHUGEINT"):
            column = _representable_numbers(column, kind)
        elif pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            column = _representable_times(column)
        else:
            continue
        table = table.set_column(place, field.name, column)
    return table


def _representable_numbers(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray | pa.Array:
    """Return a column of large numbers as int64 if all fit, otherwise as text; decimal fractions become float64.

    A column whose digits DuckDB has lost is returned unchanged.
    """
    import pyarrow as pa

    values = column.to_pylist()
    if pa.types.is_decimal(column.type) and column.type.scale > 0:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if any(isinstance(value, float) and abs(value) >= 2**53 for value in values):  # DuckDB 1 loses the digits
        return column
    whole = [None if value is None else _convert_whole_number(value, kind) for value in values]
    if all(value is None or -(2**63) <= value < 2**63 for value in whole):
        return pa.array(whole, pa.int64())
    return pa.array([None if value is None else str(value) for value in whole], pa.string())


def _convert_whole_number(value: Any, kind: str) -> int:
    """Return a whole number of this DuckDB type. Arrow has no unsigned 128-bit type and gives the upper half as
    negative."""
    number = int(value)
    return number + 2**128 if number < 0 and "UHUGEINT" in kind else number


def _representable_times(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return dates or times, as text if one is outside of Python's range."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    unit: Any = "D" if pa.types.is_date32(column.type) else column.type.unit
    integers = column.cast(pa.int32() if unit == "D" else pa.int64())
    first, last = 2 - 2**63, 2**63 - 2
    if unit != "ns":  # every year of `ns` is within Python's range
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


def _representable_nested(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray | pa.Array:
    """Return lists, structs and maps, as text if Arrow or Python cannot hold one of their numbers or times."""
    import duckdb
    import pyarrow as pa

    try:
        values = column.to_pylist()
    except (ArithmeticError, ValueError):  # a time outside of Python's range
        with duckdb.connect() as connection:
            return convert_to_arrow(connection.from_arrow(pa.table({"c": column})).project("c::VARCHAR AS c")).column(0)
    if "HUGEINT" not in kind:
        return column
    whole = [_convert_whole_numbers(value, kind) for value in values]
    try:
        return pa.array(whole)
    except (ArithmeticError, pa.ArrowException):
        return pa.array([None if value is None else str(value) for value in whole], pa.string())


def _convert_whole_numbers(value: Any, kind: str) -> Any:
    from decimal import Decimal

    if isinstance(value, dict):
        return {key: _convert_whole_numbers(each, kind) for key, each in value.items()}
    if isinstance(value, list):
        return [_convert_whole_numbers(each, kind) for each in value]
    return _convert_whole_number(value, kind) if isinstance(value, Decimal) and value == int(value) else value
