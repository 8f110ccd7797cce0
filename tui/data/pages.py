"""Long lists in pages, so that a table keeps only a few pages of rows in memory."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from chessreg.errors import BadInputError
from tui.data import table_filter
from tui.data.table_filter import View

PAGE_ROWS = 200
Row = Mapping[str, Any]


class Pages(Protocol):
    """A list of `count` rows in pages of PAGE_ROWS. `read_page` may be called from several threads."""

    @property
    def count(self) -> int: ...

    def read_page(self, number: int) -> Sequence[Row]:
        """Return the rows of a page, counted from 0. The page after the last is empty."""
        ...

    def narrow(self, view: View) -> Pages:
        """Return the rows that match the view, in its order. Raises BadInputError for an unknown column."""
        ...


class ListPages:
    """Pages of rows that are already in memory."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.count = rows, len(rows)

    def read_page(self, number: int) -> Sequence[Row]:
        return self.rows[number * PAGE_ROWS : (number + 1) * PAGE_ROWS]

    def narrow(self, view: View) -> ListPages:
        return ListPages(table_filter.narrow_rows(self.rows, view))


def refuse_narrowing(view: View) -> Pages:
    """Raise BadInputError: a replacement for `narrow` in lists with a separate filter."""
    raise BadInputError("use the filter above this list")


class JoinedPages:
    """The rows of several sources, one after the other. `narrow_all` returns the joined pages of a view.

    Counting a source may be slow. The constructor counts sources until there are FIRST rows or a source yields None (a
    pause after many scanned rows). `count_more` counts further sources and appends their rows. `page` and `count_more`
    may be called from several threads.
    """

    FIRST, STEP, PAUSES = 10 * PAGE_ROWS, 500_000, 8  # rows, and pauses within one call of `count_more`
    STRETCH = 50_000  # rows that a source scans before a pause, in about 0.1 s

    def __init__(self, parts: Iterable[Pages | None], narrow_all: Callable[[View], Pages]) -> None:
        self._remaining_parts: Iterator[Pages | None] | None = iter(parts)
        self.narrow = narrow_all
        self._parts, self._starts = list[Pages](), [0]
        self._count_lock = threading.Lock()
        self.complete = False
        self.count_more(self.FIRST, 1)

    @property
    def count(self) -> int:
        return self._starts[-1]

    def count_more(self, rows: int = STEP, pauses: int = PAUSES) -> bool:
        """Count about `rows` more rows. Return whether further sources may remain.

        After an error of a source, which is raised, counting ends.
        """
        with self._count_lock:
            target_count, remaining_parts = self.count + rows, self._remaining_parts
            self._remaining_parts = None
            while remaining_parts is not None and self.count < target_count and pauses:
                try:
                    part = next(remaining_parts)
                except StopIteration:
                    self.complete, remaining_parts = True, None
                    break
                if part is None:
                    pauses -= 1
                elif part.count:
                    self._parts.append(part)
                    self._starts.append(self.count + part.count)
            self._remaining_parts = remaining_parts
            return remaining_parts is not None

    def read_page(self, number: int) -> Sequence[Row]:
        at, end = number * PAGE_ROWS, min((number + 1) * PAGE_ROWS, self.count)
        page: list[Row] = []
        while 0 <= at < end:
            part = bisect_right(self._starts, at) - 1
            inner, skipped_rows = divmod(at - self._starts[part], PAGE_ROWS)
            rows = self._parts[part].read_page(inner)[skipped_rows : skipped_rows + end - at]
            if not rows:
                break  # rows were removed after counting
            page += rows
            at += len(rows)
        return page


def is_counted(pages: Pages) -> bool:
    """Return whether all rows of a list are counted."""
    return not isinstance(pages, JoinedPages) or pages.complete


def count_rows_to(pages: Pages, place: int) -> None:
    """Count rows until there is one at `place`, or until all are counted."""
    while isinstance(pages, JoinedPages) and pages.count <= place and pages.count_more():
        pass
