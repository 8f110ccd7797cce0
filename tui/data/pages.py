"""Long lists in pages: a table that is scrolled holds a few pages of rows, never all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

PAGE = 200
Row = Mapping[str, Any]


class Pages(Protocol):
    """A list of `count` rows in pages of PAGE. `page` may be called from several threads."""

    count: int

    def page(self, number: int) -> Sequence[Row]: ...


class Listed:
    """Rows that are all here, as pages."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.count = rows, len(rows)

    def page(self, number: int) -> Sequence[Row]:
        return self.rows[number * PAGE : (number + 1) * PAGE]
