"""Columns of a table: what is shown of a row, and how wide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from tui import show

WIDEST = 48
GAP = 2
KEPT = 18


@dataclass(frozen=True)
class Column:
    """A heading, the row's field behind it, and how the field is written."""

    field: str
    heading: str
    right: bool = False
    text: Callable[[Mapping[str, Any]], str] | None = None
    widest: int = WIDEST
    least: int = 8  # cells that it keeps where space is short

    def of(self, row: Mapping[str, Any]) -> str:
        return self.text(row) if self.text is not None else show.value(row.get(self.field))


def numeric(field: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a field holds numbers and nothing else."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def widths(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], space: int) -> list[int]:
    """The width of each column: its widest cell, at most `widest`. Where `space` is short, the widest give way first,
    each down to its heading and `least`; numbers are never cut. Where that is not enough, the last columns are scrolled
    to, and those of KEPT cells are not cut any more: it would help nobody."""
    wide = [cell_len(column.heading) for column in columns]
    for row in rows:
        for place, column in enumerate(columns):
            if wide[place] < column.widest:
                wide[place] = min(column.widest, max(wide[place], cell_len(column.of(row))))
    floor = [
        wide[place] if column.right else max(column.least, cell_len(column.heading))
        for place, column in enumerate(columns)
    ]
    gaps = GAP * (len(wide) - 1)
    if sum(floor) + gaps > space:
        floor = [min(cells, max(least, KEPT)) for cells, least in zip(wide, floor, strict=True)]
    over = sum(wide) + gaps - space
    while over > 0:
        free = [place for place in range(len(wide)) if wide[place] > floor[place]]
        if not free:
            break
        wide[max(free, key=wide.__getitem__)] -= 1
        over -= 1
    return wide


def fitted(text: str, width: int, right: bool = False) -> str:
    """Text in exactly this many cells; what does not fit ends in an ellipsis."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + "…" if width else ""
    return " " * (width - size) + text if right else text + " " * (width - size)
