"""Checks that a user's SQL is a single statement that only selects."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError, ChessregError

if TYPE_CHECKING:
    import duckdb

HINT = "a query may SELECT (or FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW) from the registry; nothing can be changed"

MOST_NESTED_PARENTHESES = (
    500  # nesting depth; DuckDB's parser takes a second for 1,000 levels, and more for each further one
)


def check_select(sql: str) -> str:
    """Return the statement without its semicolon. Raises BadInputError unless it is a single statement that only
    selects."""
    import duckdb

    check_sql_text(sql)
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise BadInputError(get_error_message(error), HINT) from error
    if not statements:
        raise BadInputError("the SQL is empty", HINT)
    if len(statements) > 1:
        raise BadInputError(f"the SQL has {len(statements)} statements; only one is allowed", HINT)
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        name = str(kind).rpartition(".")[2].replace("_", " ")
        if kind == duckdb.StatementType.LOAD and statements[0].query.split()[0].upper() != name:
            name = "INSTALL"  # DuckDB parses INSTALL as LOAD
        raise BadInputError(f"{name} is not allowed", HINT)
    text: str = statements[0].query.strip()
    return text.rstrip(";").rstrip()


def check_sql_text(sql: str) -> None:
    """Raise BadInputError for text that is not valid UTF-8 or is nested too deeply."""
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise BadInputError("the SQL is not valid UTF-8", HINT) from None
    if (
        max(itertools.accumulate((sign == "(") - (sign == ")") for sign in sql if sign in "()"), default=0)
        > MOST_NESTED_PARENTHESES
    ):
        raise BadInputError(f"the SQL has more than {MOST_NESTED_PARENTHESES} nested parentheses", HINT)


def check_condition(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """Return the text as one SQL condition, for --where. Raises BadInputError for anything else."""
    check_sql_text(text)
    tree = parse_select(connection, f"SELECT 1 WHERE ({text}\n)")
    node = tree["statements"][0]["node"] if tree and len(tree["statements"]) == 1 else {}
    is_plain_select = node.get("type") == "SELECT_NODE" and not node.get("modifiers") and node.get("where_clause")
    if not is_plain_select or node.get("group_expressions") or node.get("having") or node.get("qualify"):
        raise BadInputError(f"--where is one SQL condition, not {text!r}", "for example --where \"color = 'white'\"")
    return f"({text}\n)"


def add_order(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the statement, sorted by all columns unless it has an order or a limit."""
    text = select_without_order(connection, sql)
    return sql if text is None else f"{text} ORDER BY ALL"


def select_without_order(connection: duckdb.DuckDBPyConnection, sql: str) -> str | None:
    """Return the statement in a form that accepts an ORDER BY, or None if it has an order or a limit."""
    tree = parse_select(connection, sql)
    if tree is None:
        return None
    modifiers = tree["statements"][0]["node"].get("modifiers", [])
    if any(m["type"] in ("ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER") for m in modifiers):
        return None
    return f"SELECT * FROM (\n{sql}\n)"


def parse_select(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any] | None:
    """Return DuckDB's syntax tree of a SELECT, or None for statements without a tree (SHOW, DESCRIBE)."""
    row = connection.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchone()
    assert row
    tree: dict[str, Any] = json.loads(row[0])
    return None if tree.get("error") else tree


def get_error_message(error: Exception) -> str:
    """Return DuckDB's message in one line, without its copy of the statement."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    kept_lines: list[str] = []
    for line in lines:
        if line.startswith("LINE ") or set(line) <= {"^", " "}:
            break
        kept_lines.append(line)
    return " ".join(kept_lines) or type(error).__name__


def make_timeout_error() -> ChessregError:
    return ChessregError("the query was stopped: it exceeded its time limit", "raise the limit with --timeout SECONDS")


def convert_arrow_error(error: Exception) -> ChessregError:
    """Return the ChessregError for a DuckDB error that Arrow raised, whose class is lost."""
    message = get_error_message(error)
    if "INTERRUPT" in message.upper():
        return make_timeout_error()
    if "Out of Memory" in message:
        return ChessregError("the query exceeded its memory limit", "raise the limit, for example --memory 8GB")
    return BadInputError(message)


def convert_duckdb_error(error: Exception) -> ChessregError:
    """Return the ChessregError for a DuckDB error."""
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return make_timeout_error()
    if isinstance(error, duckdb.OutOfMemoryException):
        return ChessregError("the query exceeded its memory limit", "raise the limit, for example --memory 8GB")
    if isinstance(error, duckdb.CatalogException):
        return BadInputError(get_error_message(error), 'chessreg query --sql "SHOW TABLES"')
    if isinstance(error, duckdb.BinderException):  # mostly an unknown column
        return BadInputError(get_error_message(error), 'chessreg query --sql "DESCRIBE games"')
    return BadInputError(get_error_message(error))
