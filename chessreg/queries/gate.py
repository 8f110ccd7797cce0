"""What a user's SQL may be: one statement that only selects."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError, ChessregError

if TYPE_CHECKING:
    import duckdb

HINT = "a query may SELECT (or FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW) from the registry; nothing can be changed"

DEEPEST = 500  # parentheses inside each other: DuckDB's parser takes a second for a thousand, and ever more for each


def selects(sql: str) -> str:
    """The statement, without its semicolon. Raises BadInputError unless it is one that only selects."""
    import duckdb

    require_text(sql)
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise BadInputError(first_line(error), HINT) from error
    if not statements:
        raise BadInputError("there is no SQL in that", HINT)
    if len(statements) > 1:
        raise BadInputError(f"that is {len(statements)} statements; one at a time", HINT)
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        name = str(kind).rpartition(".")[2].replace("_", " ")
        if kind == duckdb.StatementType.LOAD and statements[0].query.split()[0].upper() != name:
            name = "INSTALL"  # which DuckDB has as LOAD
        raise BadInputError(f"{name} is not allowed here", HINT)
    text: str = statements[0].query.strip()
    return text.rstrip(";").rstrip()


def require_text(sql: str) -> None:
    """Raises BadInputError for what a terminal handed over as bytes that are no UTF-8."""
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise BadInputError("that SQL is no text in UTF-8", HINT) from None
    if max(itertools.accumulate((sign == "(") - (sign == ")") for sign in sql if sign in "()"), default=0) > DEEPEST:
        raise BadInputError(f"that SQL has more than {DEEPEST} parentheses inside each other", HINT)


def expression(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """One SQL expression, such as the one of --where. Raises BadInputError for anything more."""
    require_text(text)
    tree = parsed(connection, f"SELECT 1 WHERE ({text}\n)")
    node = tree["statements"][0]["node"] if tree and len(tree["statements"]) == 1 else {}
    plain = node.get("type") == "SELECT_NODE" and not node.get("modifiers") and node.get("where_clause")
    if not plain or node.get("group_expressions") or node.get("having") or node.get("qualify"):
        raise BadInputError(f"--where is one SQL condition, not {text!r}", "for example --where \"color = 'white'\"")
    return f"({text}\n)"


def ordered(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The statement with ORDER BY ALL unless it says an order itself: the same rows in the same order every time."""
    text = unordered(connection, sql)
    return sql if text is None else f"{text} ORDER BY ALL"


def unordered(connection: duckdb.DuckDBPyConnection, sql: str) -> str | None:
    """The statement as one to which an order can be added; None if it says an order, or a number of rows, itself."""
    tree = parsed(connection, sql)
    if tree is None:
        return None
    modifiers = tree["statements"][0]["node"].get("modifiers", [])
    if any(m["type"] in ("ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER") for m in modifiers):
        return None
    return f"SELECT * FROM (\n{sql}\n)"


def parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any] | None:
    """DuckDB's syntax tree of a SELECT; None for what it cannot show (SHOW, DESCRIBE)."""
    row = connection.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchone()
    assert row
    tree: dict[str, Any] = json.loads(row[0])
    return None if tree.get("error") else tree


def first_line(error: Exception) -> str:
    """DuckDB's message in one line: what is wrong, without the copy of the statement."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    kept: list[str] = []
    for line in lines:
        if line.startswith("LINE ") or set(line) <= {"^", " "}:
            break
        kept.append(line)
    return " ".join(kept) or type(error).__name__


def took_too_long() -> ChessregError:
    return ChessregError("the query was stopped: it took longer than allowed", "--timeout SECONDS gives it more")


def in_arrow(error: Exception) -> ChessregError:
    """An error of DuckDB that came through Arrow, whose class is lost."""
    message = first_line(error)
    if "INTERRUPT" in message.upper():
        return took_too_long()
    if "Out of Memory" in message:
        return ChessregError("the query needs more memory than it is allowed", "--memory 8GB gives it more")
    return BadInputError(message)


def explained(error: Exception) -> ChessregError:
    """An error of DuckDB as one of ours."""
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return took_too_long()
    if isinstance(error, duckdb.OutOfMemoryException):
        return ChessregError("the query needs more memory than it is allowed", "--memory 8GB gives it more")
    if isinstance(error, duckdb.CatalogException | duckdb.BinderException):
        return BadInputError(first_line(error), 'chessreg query --sql "SHOW TABLES"')
    return BadInputError(first_line(error))
