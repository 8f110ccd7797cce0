"""SELECTs of one's own: their answers in pages, and the names that may stand in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tui.data.queries import Answer, paged

if TYPE_CHECKING:
    from chessreg.session import Session

KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AS",
    "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS NULL", "IS NOT NULL", "DISTINCT", "CASE", "WHEN", "THEN", "ELSE",
    "END", "DESC", "ASC", "UNION ALL", "WITH", "FILTER", "OVER", "PARTITION BY", "QUALIFY", "count(*)", "sum(", "avg(",
    "min(", "max(", "round(", "coalesce(", "json_extract(", "DESCRIBE", "SUMMARIZE", "SHOW TABLES",
)  # fmt: skip
WORD = re.compile(r"[\w.]*$")
NAMED = re.compile(r"\b(?:from|join)\s+\"?(\w+)\"?(?:\s+(?:as\s+)?(\w+))?", re.IGNORECASE)

Names = dict[str, list[str]]  # table or view → columns


def ask(session: Session, text: str) -> Answer:
    """The answer to one SELECT. Raises what run_sql raises."""
    from chessreg.queries import run_sql

    return paged("sql", run_sql(session.database, text))


def names(session: Session) -> Names:
    """Every table and view that a SELECT may name, with its columns."""
    from chessreg.queries.engine import engine_of

    return engine_of(session.database).described()


def completions(before: str, whole: str, known: Names) -> list[str]:
    """What the word before the cursor may become: after a dot, columns of that table (or of the table of that alias);
    else columns of the tables that the statement names, then tables, then words of SQL. Where none begins so, those
    that have it somewhere.

    >>> completions("SELECT pl", "SELECT pl FROM game AS g", {"game": ["plies", "unit"]})
    ['plies']
    """
    found = WORD.search(before)
    word = found[0] if found else ""
    owner, dot, start = word.rpartition(".")
    tables = {alias.lower(): table for table, alias in NAMED.findall(whole) if alias} | {t.lower(): t for t in known}
    if dot:
        fitting = [f"{owner}.{name}" for name in known.get(tables.get(owner.lower(), ""), ())]
    else:
        named = [table for table, _ in NAMED.findall(whole) if table in known]
        columns = [name for table in named for name in known[table]]
        after_from = bool(re.search(r"\b(?:from|join)\s+\w*$", before, re.IGNORECASE))
        fitting = list(known) if after_from else [*columns, *known, *KEYWORDS]
    wanted = word.lower()
    unique = [name for name in dict.fromkeys(fitting) if name != word]
    starts = [name for name in unique if name.lower().startswith(wanted)]
    return starts or [name for name in unique if start and start.lower() in name.lower()]
