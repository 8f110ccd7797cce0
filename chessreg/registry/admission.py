"""What a row of others must be before it enters a registry: those of a merge, and those of fragments.

Names become parts of paths and commands later on, and SQLite keeps whatever it is given. So what a column holds is
declared with the column (`tables.types`: DigestText, NameText, ArrayPath), and checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Table

from chessreg.errors import BadInputError
from chessreg.named import NAME
from chessreg.registry.tables import Word
from chessreg.registry.tables.types import ArrayPath, DigestText, NameText

DIGEST = re.compile(r"[0-9a-f]{64}")
ARRAY = re.compile(r"arrays/[A-Za-z0-9][A-Za-z0-9_-]{0,119}")
MOST_UNITS = 10_000_000  # of a run, a reduce aside: lists of units are held in memory
UNITS = {"run": ("units",), "unit_range": ("start", "stop")}
PATTERNS = {DigestText: DIGEST, NameText: NAME, ArrayPath: ARRAY}


def admit(table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise BadInputError for the first row that holds what its column cannot: no digest, a name that is none, a path
    out of the store, more units than a run can have."""
    patterns = patterns_of(table)
    for row in rows:
        wanted = [*patterns, ("value", NAME)] if row.get("word") == Word.NAME and "word" in table.c else patterns
        for column, pattern in wanted:
            value = row.get(column)
            if value is not None and not pattern.fullmatch(str(value)):
                text = str(value)
                shown = text if len(text) <= 80 else f"{text[:77]}…"
                raise BadInputError(
                    f"a row of {table.name} is refused: its {column} cannot be {shown!a}",
                    "whatever holds this row was not written by chessreg, or was changed since",
                )
        for column in UNITS.get(table.name, ()):
            if type(row.get(column)) is not int or not 0 <= row[column] <= MOST_UNITS + 1:
                raise BadInputError(
                    f"a row of {table.name} is refused: its {column} cannot be {str(row.get(column))[:80]!a}",
                    f"a run has {MOST_UNITS:,} units at most",
                )


@cache
def patterns_of(table: Table) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Column → what its values are, for the columns that declare it."""
    return tuple(
        (column.name, pattern)
        for column in table.columns
        for declared, pattern in PATTERNS.items()
        if isinstance(column.type, declared)
    )
