"""Table columns: the text of a cell and the widths of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len, set_cell_size

from tui import show

MAX_WIDTH_CELLS = 48
GAP_CELLS = 2
MIN_CUT_CELLS = 18
MIN_FOLD_ROWS = 3
MORE_MARK = " »"  # at a right edge beyond which there are more columns or names
BOOKKEEPING = ("runs", "machines")  # headings of bookkeeping columns
MAX_MEASURED_CHARS = 1000  # measured characters of a text; no screen is wider


Role = Literal["key", "value", "text", "detail"]
"""`key` names the row, `value` is its result; both are always shown. `detail` explains and is muted."""
Tone = Literal["key", "value", "text", "detail", "good", "bad", "warn", "running", "queued"]
"""The color of a cell: the role of its column, or the state that the cell shows."""
STATE_TONES: dict[str, Tone] = {
    "complete": "good", "running": "running", "cancelling": "warn", "queued": "queued",
    "waiting": "queued", "blocked": "warn", "partial": "warn", "interrupted": "warn", "cancelled": "detail",
}  # fmt: skip
TONE_SIGNS: dict[Tone, str] = {"good": "✓", "bad": "✗", "running": "●", "queued": "○", "warn": "!", "detail": "–"}


def choose_state_tone(state: str) -> Tone:
    """Return the tone of a run's or job's state. Unknown states are failures.

    >>> choose_state_tone("complete"), choose_state_tone("engine died"), choose_state_tone("complete (invalid)")
    ('good', 'bad', 'bad')
    """
    name, _, marks = state.replace("_", " ").partition(" (")
    if "invalid" in marks:
        return "bad"
    return "warn" if "stale" in marks else STATE_TONES.get(name, "bad")


def format_state(state: str) -> str:
    """Return a state with its sign, so that it is readable without color."""
    return f"{TONE_SIGNS.get(choose_state_tone(state), '')} {state.replace('_', ' ')}" if state else ""


@dataclass(frozen=True)
class TableColumn:
    """A column: its heading, its field, and the format of its cells."""

    field: str
    heading: str
    right: bool = False
    text: Callable[[Mapping[str, Any]], str] | None = None
    widest: int = MAX_WIDTH_CELLS
    least: int = 8  # minimum width in cells if space is short
    whole: bool = False  # never cut, as numbers are
    ends: bool = False  # cut in the middle: its texts differ at their ends
    role: Role = "text"
    stays: bool = False  # show it even if it is empty or the same in all rows
    tone: Callable[[Mapping[str, Any]], Tone] | None = None  # tone of a cell that shows a state
    split: str = " ["  # beginning of the interval or explanation after a value

    def format_cell(self, row: Mapping[str, Any]) -> str:
        return self.text(row) if self.text is not None else show.format_cell_value(row.get(self.field))

    def choose_tone(self, row: Mapping[str, Any]) -> Tone:
        return self.tone(row) if self.tone is not None else self.role

    @property
    def foldable(self) -> bool:
        """Whether the column is left out if it is empty or, unless it is a name or a result, the same in all rows."""
        return bool(self.heading) and not self.stays


def find_foldable(
    columns: Sequence[TableColumn], rows: Sequence[Mapping[str, Any]], several: bool = True
) -> dict[str, str]:
    """Return the fields of the columns that these rows do not need, with the text that all of their cells have.

    The first column is always needed. A text that is not empty is only left out of at least FOLDED_ROWS rows, if
    `several` of them are compared.
    """
    foldable = {}
    for column in columns[1:]:
        if rows and column.foldable:
            text = column.format_cell(rows[0])
            constant = several and len(rows) >= MIN_FOLD_ROWS and column.role not in ("key", "value")
            if (constant or not text) and all(column.format_cell(row) == text for row in rows[1:]):
                foldable[column.field] = text
    return foldable


def is_numeric_field(field: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a field contains only numbers."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def compute_widths(columns: Sequence[TableColumn], rows: Iterable[Mapping[str, Any]], space: int) -> list[int]:
    """Return the width of each column: its widest cell, at most `widest` unless space is left.

    If `space` is too small, trailing detail columns move out of view first. Then the widest columns shrink, down to
    their heading and `least`, names last; numbers are never cut. If that is not enough, the last columns are reached by
    scrolling, and columns of MIN_CUT_CELLS are not cut further.
    """
    heading_widths = [cell_len(column.heading) for column in columns]
    for row in rows:
        for place, column in enumerate(columns):
            heading_widths[place] = max(heading_widths[place], cell_len(column.format_cell(row)[:MAX_MEASURED_CHARS]))
    column_widths = [
        max(cell_len(column.heading), min(cells, column.widest))
        for column, cells in zip(columns, heading_widths, strict=True)
    ]
    floor = [
        column_widths[place] if column.right or column.whole else max(column.least, cell_len(column.heading))
        for place, column in enumerate(columns)
    ]
    gaps = GAP_CELLS * (len(column_widths) - 1)
    spare = space - sum(column_widths) - gaps
    for place in sorted(range(len(column_widths)), key=heading_widths.__getitem__):  # nearly complete columns first
        added_cells = max(0, min(spare, heading_widths[place] - column_widths[place]))
        column_widths[place], spare = column_widths[place] + added_cells, spare - added_cells
    over, kept_count = sum(column_widths) + gaps - space, len(column_widths)
    while over > 0 and kept_count > 1 and columns[kept_count - 1].role == "detail":
        kept_count -= 1
        over -= (
            column_widths[kept_count] + GAP_CELLS - 2 * (kept_count == len(column_widths) - 1)
        )  # " »" needs two cells
    if sum(floor[:kept_count]) + GAP_CELLS * (kept_count - 1) > space:
        floor = [min(cells, max(least, MIN_CUT_CELLS)) for cells, least in zip(column_widths, floor, strict=True)]
    while over > 0 and kept_count > 1 and sum(floor[:kept_count]) + GAP_CELLS * (kept_count - 1) > space:
        kept_count -= 1
        over -= column_widths[kept_count] + GAP_CELLS - 2 * (kept_count == len(column_widths) - 1)
    while over > 0:
        free = [place for place in range(kept_count) if column_widths[place] > floor[place]]
        if not free:
            break
        less = [place for place in free if columns[place].role != "key"]  # names stay whole as long as possible
        column_widths[max(less or free, key=column_widths.__getitem__)] -= 1
        over -= 1
    return column_widths


def order_by_use(
    columns: Sequence[TableColumn],
    rows: Sequence[Mapping[str, Any]],
    space: int,
    differences: Collection[str] = (),
) -> list[TableColumn]:
    """Return the columns in order of importance if they do not all fit.

    First the first column and texts that distinguish rows, then numbers (results first), then details and texts that
    most rows share. The first result is followed by the fields in `differences`, as on the command line.
    """
    if sum(compute_widths(columns, rows, space)) + GAP_CELLS * (len(columns) - 1) <= space:
        return list(columns)
    texts = [column for column in columns if not column.right and column.role != "value"]
    distinct_counts = {column.field: len({column.format_cell(row) for row in rows}) for column in texts}
    max_distinct = max(distinct_counts.values(), default=0)
    first_result = next((column for column in columns if column.role == "value"), None)

    def rank_column(column: TableColumn) -> int:
        if column.role == "key":
            return 0
        if column.role == "value":
            return 1 if column is first_result or column.field in differences else 2
        if column.right:
            return 3
        if column.role == "detail":
            return 4
        return 0 if 2 * distinct_counts[column.field] >= max_distinct and column.heading not in BOOKKEEPING else 4

    return [*columns[:1], *sorted(columns[1:], key=rank_column)]


def fit_text(text: str, width: int, right: bool = False, ends: bool = False) -> str:
    """Return the text in exactly `width` cells, cut with an ellipsis at the end or, with `ends`, in the middle.

    >>> fit_text("legality, edit-3", 12), fit_text("legality, edit-3", 12, ends=True)
    ('legality, e…', 'legali…dit-3')
    """
    size = cell_len(text)
    if ends and size > width > 2:
        half = width // 2
        head = set_cell_size(text, half)
        tail = text[-(width - half - 1) :]
        return set_cell_size(f"{head}…{tail}", width)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + "…" if width else ""
    return " " * (width - size) + text if right else text + " " * (width - size)
