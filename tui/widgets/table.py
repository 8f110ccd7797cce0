"""A table of any length. Only visible rows are drawn, and only the pages around them are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui import show
from tui.actions import TABLE, make_bindings
from tui.columns import (
    GAP_CELLS,
    MAX_MEASURED_CHARS,
    MIN_CUT_CELLS,
    MORE_MARK,
    TableColumn,
    Tone,
    compute_widths,
    find_foldable,
    fit_text,
)
from tui.data.pages import PAGE_ROWS, JoinedPages, Pages, is_counted
from tui.data.table_filter import View
from tui.interval_bars import MAX_BAR_CELLS, MIN_BAR_CELLS, MIN_TERMINAL_CELLS, IntervalBars
from tui.themes import find_cursor_style

MAX_PAGES = 16  # pages in memory
GUTTER_CELLS = 2
BORDER_CELLS = 4  # border cells next to the text
SHORT_CELLS = 8  # maximum width of an id or a number


class PageTable(ScrollView, can_focus=True):
    """Rows of `Pages`. The table never reads: it requests pages with `Wanted` and receives them in `accept_page`.

    A `view` filters and sorts the rows: `Narrow` requests the matching rows, and `show_narrowed` delivers them.

    The frame shows the title and the number of rows. Columns that are empty or constant are left out and listed at the
    bottom of the frame.
    """

    BINDINGS = make_bindings(TABLE)
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "page-table--head", "page-table--cursor", "page-table--even", "page-table--odd", "page-table--key",
        "page-table--value", "page-table--text", "page-table--detail", "page-table--good", "page-table--bad",
        "page-table--warn", "page-table--running", "page-table--queued",
    }  # fmt: skip
    DEFAULT_CSS = """
    PageTable {
        height: 1fr;
        background: $surface;
        color: $foreground;
        border: round $edge;
        border-title-color: $foreground;
        border-title-style: bold;
        border-subtitle-color: $text-muted;
        border-subtitle-align: left;
        padding: 0;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
    }
    PageTable:focus { border: round $accent; border-title-color: $text-accent; }
    PageTable.-bare, PageTable.-bare:focus { border: none; }
    PageTable > .page-table--head { color: $text-muted; background: $surface; }
    PageTable > .page-table--cursor { background: $panel; }
    PageTable:focus > .page-table--cursor { background: $selection; }
    PageTable > .page-table--even { background: $surface; }
    PageTable > .page-table--odd { background: $background; }
    PageTable > .page-table--key { color: $foreground; text-style: bold; }
    PageTable > .page-table--value { color: $foreground; text-style: bold; }
    PageTable > .page-table--text { color: $foreground; }
    PageTable > .page-table--detail { color: $text-muted; }
    PageTable > .page-table--good { color: $text-success; }
    PageTable > .page-table--bad { color: $text-error; }
    PageTable > .page-table--warn { color: $text-warning; }
    PageTable > .page-table--running { color: $text-primary; }
    PageTable > .page-table--queued { color: $text-secondary; }
    """

    cursor: reactive[int] = reactive(0, repaint=False)

    class Wanted(Message):
        """A page to be drawn has not been read yet."""

        def __init__(self, table: PageTable, pages: Pages, number: int) -> None:
            super().__init__()
            self.table, self.pages, self.number = table, pages, number

    class Counting(Message):
        """The count of the shown rows is not complete yet."""

        def __init__(self, table: PageTable, pages: JoinedPages) -> None:
            super().__init__()
            self.table, self.pages = table, pages

    class Moved(Message):
        """The cursor moved to another row."""

        def __init__(self, table: PageTable, place: int) -> None:
            super().__init__()
            self.table, self.place = table, place

    class Opened(Message):
        """Enter, or a second click, on a row in memory."""

        def __init__(self, table: PageTable, place: int, row: Mapping[str, Any]) -> None:
            super().__init__()
            self.table, self.place, self.row = table, place, row

    class Inspected(Opened):
        """All fields of a row are requested."""

    class Narrow(Message):
        """The rows that match the view are requested."""

        def __init__(self, table: PageTable, all_pages: Pages, keep: bool) -> None:
            super().__init__()
            self.table, self.whole, self.keep = table, all_pages, keep

    class Act(Message):
        """An action of the screen: `find`, `sort` (`way` 1: by the next column, 0: reverse the order), `number`, or
        `reset` (the view was cleared)."""

        def __init__(self, table: PageTable, action_name: str, way: int = 0) -> None:
            super().__init__()
            self.table, self.what, self.way = table, action_name, way

    class HeadClicked(Message):
        """A click on the heading of a column."""

        def __init__(self, table: PageTable, column: TableColumn) -> None:
            super().__init__()
            self.table, self.column = table, column

    def __init__(
        self,
        columns: Sequence[TableColumn] = (),
        *,
        id: str | None = None,
        title: str = "",
        empty: str = "nothing here",
        folds: bool = True,
        counts: bool = True,
    ) -> None:
        super().__init__(id=id)
        self.title, self.folds, self.counts = title, folds, counts
        self.columns: tuple[TableColumn, ...] = tuple(columns)
        self.empty = empty
        self.loaded = False
        self.view = View()
        self.whole: Pages | None = None  # the rows before the view filters them
        self._source: Pages | None = None
        self._pages: OrderedDict[int, Sequence[Mapping[str, Any]]] = OrderedDict()
        self._asked_pages: set[int] = set()
        self._held_id: Any = None  # id of the cursor's row during a reload
        self._folded_columns: dict[str, str] = {}  # columns left out, with their constant text
        self._rows_by_page: dict[int, int] = {}  # page read so far → its number of rows
        self._constant: dict[str, str] = {}  # fields that are constant in the rows read so far, with their text
        self._varied_fields: set[str] = set()  # fields that are not
        self.bars: IntervalBars | None = None
        self._bar: TableColumn | None = None  # the bars as a column, where there is room
        self._widths: list[int] = [len(column.heading) for column in self.columns]
        self._longest: dict[str, Mapping[str, Any]] = {}  # field → row of a later page with its longest number
        self.is_marked: Callable[[Mapping[str, Any]], bool] = lambda row: False  # whether a row is marked in the gutter

    # -- rows -----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self._source.count if self._source is not None else 0

    @property
    def source(self) -> Pages | None:
        return self._source

    def show(
        self,
        source: Pages,
        first_rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        columns: Sequence[TableColumn] | None = None,
        keep: bool = False,
        number: int = 0,
        bars: IntervalBars | None = None,
    ) -> None:
        """Show these rows from the top. With `keep`, keep the cursor on its row. `first_rows` is page `number` if
        already read, which avoids flicker. `bars` are drawn next to their column where there is room.
        """
        if columns is not None:
            if {column.field for column in columns} != {column.field for column in self.columns}:
                if self.view.is_active:
                    self.post_message(self.Act(self, "reset"))
                self.view = View()  # the filter referred to other columns
                self._folded_columns = {}
            self.columns = tuple(columns)
        self.whole, self.bars = source, bars
        if self.view.is_active and self._source is not None:
            self.narrow(keep)
            return
        self._show(source, first_rows, keep, number, columns is not None)

    @property
    def loaded_visible_rows(self) -> list[Mapping[str, Any]]:
        """Return the visible rows that are in memory."""
        top = self.scroll_offset.y
        places = range(top, min(self.count, top + self.visible_rows))
        return [row for place in places if (row := self.row(place)) is not None]

    @property
    def source_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the first page that are in memory."""
        return self._pages.get(0, ())

    @property
    def column_space(self) -> int:
        """The cells of a line available to columns."""
        return self.size.width - GUTTER_CELLS - 1

    def reorder(self, columns: Sequence[TableColumn]) -> None:
        """Show the same columns in another order."""
        self.columns = tuple(columns)
        self._fit_columns()
        self.refresh()

    @property
    def shown_columns(self) -> list[TableColumn]:
        """Return the columns that are not left out, and the bars after their column."""
        visible_columns = [column for column in self.columns if column.field not in self._folded_columns]
        bar = self._bar
        if bar is None:
            return visible_columns
        return [one for column in visible_columns for one in ([column, bar] if column.field == bar.field else [column])]

    legend = ""

    def set_title(self, title: str, legend: str = "") -> None:
        """Set the frame's title, with its first letter capitalized. `legend` explains columns, after the row count."""
        self.title, self.legend = title[:1].upper() + title[1:], legend
        self._write_title()

    def _write_title(self) -> None:
        """Write the title with the number of rows, and at the bottom the columns that are left out."""
        count = self.count_text.strip() or (f"{self.count:,}" if self.count or not self.title else "")
        if not self.title and self.loaded:
            count = count if " " in count else f"{count} {'row' if self.count == 1 else 'rows'}"
        count_shown = count if self.loaded and self.counts else ""
        title = " ".join(filter(None, [self.title, count_shown]))
        self.border_title = cast(str, Content(f"{title} · {self.legend}" if self.legend and self.count else title))
        self.border_subtitle = cast(str, Content(self._left_out_text))

    @property
    def _left_out_text(self) -> str:
        """The text below the table: the columns left out and the value of each."""
        headings = {column.field: column.heading.rstrip(" ▲▼") for column in self.columns}
        alike = [
            f"{headings[field]} {text}"
            for field, text in self._folded_columns.items()
            if field in headings and not set(text) <= show.BAR_SIGNS  # not empty, not a drawn bar
        ]
        if not alike or not self.count:
            return ""
        complete = (
            self._source is not None and is_counted(self._source) and sum(self._rows_by_page.values()) >= self.count
        )
        return f"same in {'all rows' if complete else 'the rows read so far'}: {' · '.join(alike)}"

    waiting_text = "reading…"

    def fail(self) -> None:
        """Record that the rows could not be read. The banner shows the reason."""
        if not self.loaded:
            self.waiting_text = "not read"
            self.refresh()

    def narrow(self, keep: bool = False) -> None:
        """Request the rows that match the view. The current rows remain visible until they arrive."""
        if self.whole is None:
            return
        self.view = replace(self.view, columns=self.columns)
        if self.view.is_active:
            self.post_message(self.Narrow(self, self.whole, keep))
        else:
            self._show(self.whole, None, keep, 0, True)

    def show_narrowed(
        self, all_pages: Pages, pages: Pages, first_rows: Sequence[Mapping[str, Any]], keep: bool
    ) -> None:
        """Show `pages`, the rows of `all_pages` that match, whose first page is `first_rows`. Ignored if the table
        shows another list by now.

        `keep` keeps the cursor.
        """
        if all_pages is self.whole:
            self._show(pages, first_rows, keep, 0, True)

    def _show(
        self,
        source: Pages,
        first_rows: Sequence[Mapping[str, Any]] | None,
        keep: bool,
        number: int,
        fit: bool,
    ) -> None:
        """Show the pages of `source`; `first_rows` is the page `number`, if it is read already.

        With `keep`, the cursor stays on its row. With `fit`, the column widths are computed again.
        """
        held_id = self._get_id_at(self.cursor) if self._held_id is None else self._held_id
        self._held_id = held_id if keep else None
        self._source, self.loaded = source, True
        self._pages.clear()
        self._longest.clear()
        self._asked_pages.clear()
        self._rows_by_page.clear()
        self._constant.clear()
        self._varied_fields.clear()
        if first_rows is not None:
            self._add_page(number, first_rows)
        if fit or not keep or not any(self._widths):
            self._fit_columns()
        self._resize_virtual()
        self._write_title()
        self.set_reactive(PageTable.cursor, min(self.cursor, max(0, source.count - 1)) if keep else 0)
        if not keep:
            self.scroll_to(0, 0, animate=False)
        self.refresh()
        self._restore_cursor_row()
        self.post_message(self.Moved(self, self.cursor))
        self._continue_counting(source)

    def _get_id_at(self, place: int) -> Any:
        """Return an id of the row that is stable across reloads, or None if the row is not in memory or has no id."""
        number, line = divmod(place, PAGE_ROWS)
        rows = self._pages.get(number, ())
        return (rows[line].get("id") or rows[line].get("thing")) if line < len(rows) else None

    def _restore_cursor_row(self) -> None:
        """Restore the cursor to its row after a reload, if the row is on this page or an adjacent one. Until these
        pages are read, no row is current."""
        if self._held_id is None or self._get_id_at(self.cursor) == self._held_id:
            self._held_id = None
            return
        cursor_page = self.cursor // PAGE_ROWS
        near_pages = [
            number for number in (cursor_page, cursor_page - 1, cursor_page + 1) if 0 <= number * PAGE_ROWS < self.count
        ]
        places = (
            number * PAGE_ROWS + line for number in near_pages for line in range(len(self._pages.get(number, ())))
        )
        place = next((place for place in places if self._get_id_at(place) == self._held_id), None)
        if place is not None:
            self.cursor = place  # watch_cursor ends the search
        elif all(number in self._pages for number in near_pages):
            self._held_id = None
        else:
            for number in near_pages:
                self.row(number * PAGE_ROWS)

    def grow(self, source: Pages, more: bool) -> None:
        """Accept additional counted rows at the end. `more`: the count is not complete yet."""
        if source is self._source:
            full_pages = [
                n for n, rows in self._pages.items() if len(rows) == min(PAGE_ROWS, source.count - n * PAGE_ROWS)
            ]
            self._pages = OrderedDict((n, self._pages[n]) for n in full_pages)
            self._resize_virtual()
            self._write_title()
            self.refresh()
            if more:
                self._continue_counting(source)

    def _continue_counting(self, source: Pages) -> None:
        if isinstance(source, JoinedPages) and not is_counted(source):
            self.post_message(self.Counting(self, source))

    def accept_page(self, source: Pages, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Accept a requested page. Ignored if the table shows other rows by now."""
        if source is not self._source:
            return
        self._asked_pages.discard(number)
        if len(rows) < min(PAGE_ROWS, source.count - number * PAGE_ROWS) and not is_counted(source):
            self.refresh()  # read before the count was complete: request it again
            return
        self._add_page(number, rows)
        self._pages.move_to_end(number)
        while len(self._pages) > MAX_PAGES:
            self._pages.popitem(last=False)
        self._restore_cursor_row()
        if len(self._pages) == 1 or self._has_wider_numbers(rows) or self._varied_fields & self._folded_columns.keys():
            self._fit_columns()
        self._write_title()
        self.refresh()

    def _add_page(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep a page, and record which columns are constant in all pages read so far."""
        self._pages[number], self._rows_by_page[number] = rows, len(rows)
        for column in self.columns if rows else ():
            if column.field in self._varied_fields:
                continue
            text = self._constant.setdefault(column.field, column.format_cell(rows[0]))
            other = next((row for row in rows if column.format_cell(row) != text), None)
            if other is not None:
                self._varied_fields.add(column.field)
                if len(self._rows_by_page) > 1:
                    self._longest.setdefault(column.field, other)

    def refuse(self, source: Pages, number: int) -> None:
        """Record that a requested page could not be read. It is requested again on the next drawing."""
        if source is self._source:
            self._asked_pages.discard(number)
            self._held_id = None

    def row(self, place: int) -> Mapping[str, Any] | None:
        """Return a row, or None if it is not in memory, in which case its page is requested."""
        if not 0 <= place < self.count:
            return None
        number = place // PAGE_ROWS
        page = self._pages.get(number)
        if page is None:
            if number not in self._asked_pages and self._source is not None:
                self._asked_pages.add(number)
                self.post_message(self.Wanted(self, self._source, number))
            return None
        self._pages.move_to_end(number)
        return page[place % PAGE_ROWS] if place % PAGE_ROWS < len(page) else None

    @property
    def current_row(self) -> Mapping[str, Any] | None:
        return self.row(self.cursor) if self._held_id is None else None

    # -- drawing --------------------------------------------------------------------------------------------------

    def _fit_columns(self) -> None:
        """Compute the column widths from the rows read so far, and draw interval bars if there is space for them."""
        rows = [*next(iter(self._pages.values()), ()), *self._longest.values()]
        self._bar = None
        self._fold(rows)
        self._widths = compute_widths(self.shown_headings, rows, self.column_space) if self.columns else []
        spare = self.column_space - sum(self._widths) - GAP_CELLS * len(self._widths)
        if self.bars is not None and self.app.size.width >= MIN_TERMINAL_CELLS and spare >= MIN_BAR_CELLS:
            self._bar = self.bars.make_column(min(spare, MAX_BAR_CELLS))
            self._widths = compute_widths(self.shown_headings, rows, self.column_space)
        self._resize_virtual()

    def _fold(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Leave out empty and constant columns. While a filter is active, leave out no others than before it. Keep
        columns whose text would be cut in the border if the table is wide enough."""
        if not self.folds:
            return
        if self.view.text:
            if self._rows_by_page:
                self._folded_columns = {
                    field: self._constant.get(field, text)
                    for field, text in self._folded_columns.items()
                    if field not in self._varied_fields
                }
            return
        columns = [
            column for n, column in enumerate(self.columns)
            if column.field != self.view.sort and (n == 0 or column.field not in self._varied_fields)
        ]  # fmt: skip
        self._folded_columns = (
            find_foldable(columns, rows) if self.columns and columns[:1] == list(self.columns[:1]) else {}
        )
        for column in reversed(columns):
            if cell_len(self._left_out_text) <= self.size.width - BORDER_CELLS:
                break
            if self._folded_columns.get(column.field):
                possible_columns = [column, *self.shown_columns]
                if (
                    sum(compute_widths(possible_columns, rows, MAX_MEASURED_CHARS * len(possible_columns)))
                    + GAP_CELLS * (len(possible_columns) - 1)
                    <= self.column_space
                ):
                    del self._folded_columns[column.field]

    def _has_wider_numbers(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether numbers in these rows are wider than their columns. Numbers are never cut."""
        wider = False
        for column, column_width in zip(self.shown_columns, self._widths, strict=True):
            if (column.right or column.whole) and rows:
                longest_row = max(rows, key=lambda row, column=column: cell_len(column.format_cell(row)))  # type: ignore[misc]
                if min(column.widest, cell_len(column.format_cell(longest_row))) > column_width:
                    self._longest[column.field], wider = longest_row, True
        return wider

    @property
    def shown_headings(self) -> list[TableColumn]:
        """The visible columns, with an arrow on the sorted one."""
        arrow = "▼" if self.view.descending else "▲"
        return [
            replace(column, heading=f"{column.heading} {arrow}")
            if column.field == self.view.sort and column is not self._bar
            else column
            for column in self.shown_columns
        ]

    def _resize_virtual(self) -> None:
        total_cells = GUTTER_CELLS + sum(self._widths) + GAP_CELLS * max(0, len(self._widths) - 1)
        self.virtual_size = Size(total_cells, self.count + 1)

    def on_show(self) -> None:
        """Restore the focus that a hidden table lost, unless another widget has it."""
        if self.screen.focused is None:
            self.focus()

    def on_resize(self, event: events.Resize) -> None:
        self._fit_columns()
        self._write_title()
        self.scroll_to_cursor()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            head = self.get_component_rich_style("page-table--head")
            line = self._make_line(" " * GUTTER_CELLS, [[(c.heading, head)] for c in self.shown_headings], head)
            visible_cells = min(width, self.scrollable_content_region.width)  # without the scrollbar
            return self._add_scroll_hints(line.crop(0, visible_cells), visible_cells, head).extend_cell_length(
                width, head
            )
        place = y - 1 + self.scroll_offset.y
        if not self.count:
            empty = "no row matches the filter; Esc clears it" if self.whole is not self._source else self.empty
            if self._source is not None and not is_counted(self._source):
                empty = "searching…"
            text = (empty if self.loaded else self.waiting_text) if y == min(2, self.size.height - 1) else ""
            return self._make_message_line(" " * GUTTER_CELLS + text)
        if place >= self.count:
            return self._make_message_line("")
        row, is_cursor = self.row(place), place == self.cursor
        style = self.get_component_rich_style(
            f"page-table--{'cursor' if is_cursor else 'odd' if place % 2 else 'even'}"
        )
        mark = "●" if row is not None and self.is_marked(row) else " "
        gutter = ("›" if is_cursor else " ") + mark
        if row is None:
            return self._make_line(gutter + "…", [], style)
        line = self._make_line(gutter, [self._split_cell(column, row, style) for column in self.shown_columns], style)
        cursor_style = find_cursor_style(self.app) if is_cursor and self.has_focus else None
        return line if cursor_style is None else Strip([Segment(line.text, cursor_style)], line.cell_length)

    def _make_message_line(self, text: str) -> Strip:
        """Return a line that shows a message instead of a row."""
        width = self.size.width
        style = self.get_component_rich_style("page-table--even") + self._make_tone_style("detail")
        return Strip([Segment(fit_text(text, width), style)], width)

    def _make_tone_style(self, tone: Tone) -> Style:
        return self.get_component_rich_style(f"page-table--{tone}", partial=True)

    def _split_cell(self, column: TableColumn, row: Mapping[str, Any], style: Style) -> list[tuple[str, Style]]:
        """Return a cell as texts with styles. The interval or the explanation after a value is muted."""
        text, tone = column.format_cell(row), column.choose_tone(row)
        value, bracket, interval = text.partition(column.split) if column.role == "value" else (text, "", "")
        parts = [(value, style + self._make_tone_style(tone))]
        return [*parts, (bracket + interval, style + self._make_tone_style("detail"))] if interval else parts

    def _make_line(self, gutter: str, cells: Sequence[Sequence[tuple[str, Style]]], style: Style) -> Strip:
        """Return a screen line: the fixed first columns and the scrolled ones. Text cut at the right edge ends in an
        ellipsis, and numbers that do not fit are omitted."""
        x, fixed_width, width = self.scroll_offset.x, self.fixed_width, self.size.width
        visible_cells = min(width, self.scrollable_content_region.width)
        visible_cells -= len(MORE_MARK) if self.virtual_size.width > x + visible_cells else 0
        line, at, begins = [Segment(gutter, style)], cell_len(gutter), GUTTER_CELLS
        for parts, column, column_width in zip(cells, self.shown_columns, self._widths, strict=False):
            is_fixed = begins < fixed_width
            left, right = (begins, begins + column_width) if is_fixed else (begins - x, begins + column_width - x)
            begins += column_width + GAP_CELLS
            first, last = max(left, 0 if is_fixed else fixed_width), min(right, visible_cells)
            if last <= first:
                continue
            if (first, last) != (left, right) and (
                column.right
                or column.whole
                or first > left
                or last - first < min(column.least, column_width, MIN_CUT_CELLS)
            ):
                continue  # the heading has a mark at that edge
            line.append(Segment(" " * (first - at), style))
            line += fit_segments(parts, last - first, column.right, column.ends, style)
            at = last
        return Strip([*line, Segment(" " * max(0, width - at), style)], width)

    @property
    def fixed_width(self) -> int:
        """Return the width in cells of the fixed part: the cursor's mark and the first column. If the first column is
        short (an id or a number), the second is included. At most half of the line is fixed."""
        if not self._widths:
            return 0
        ends = [GUTTER_CELLS + self._widths[0] + GAP_CELLS]
        if self._widths[0] <= SHORT_CELLS and len(self._widths) > 2:
            ends.append(ends[0] + self._widths[1] + GAP_CELLS)
        return next((end for end in reversed(ends) if 2 * end <= self.size.width), GUTTER_CELLS)

    def _add_scroll_hints(self, line: Strip, width: int, style: Any) -> Strip:
        """Return the headings with « and » at edges beyond which there are more columns."""
        x, fixed_width = self.scroll_offset.x, self.fixed_width
        if x > 0:
            line = Strip.join([line.crop(0, fixed_width - 1), Strip([Segment("«", style)]), line.crop(fixed_width)])
        if self.virtual_size.width > x + self.scrollable_content_region.width:
            line = Strip.join([line.crop(0, width - len(MORE_MARK)), Strip([Segment(MORE_MARK, style)])])
        return line

    @property
    def count_text(self) -> str:
        """Return the number of matching rows and the total, or the number counted so far."""
        if self._source is None or self.whole is None:
            return ""
        if not is_counted(self._source):
            return f"  {self.count:,} rows so far "
        if not is_counted(self.whole):
            return f"  {self.count:,} rows "
        return f"  {self.count:,} of {self.whole.count:,} " if self.whole.count != self.count else ""

    # -- the cursor -----------------------------------------------------------------------------------------------

    @property
    def visible_rows(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def move(self, place: int) -> None:
        """Move the cursor to a row, or to the nearest one if `place` is out of range."""
        self.cursor = min(max(0, place), max(0, self.count - 1))

    def watch_cursor(self, before: int, after: int) -> None:
        self._held_id = None
        for place in (before, after):  # two lines, not the whole table
            self.refresh(Region(0, place + 1 - self.scroll_offset.y, self.size.width, 1))
        self.scroll_to_cursor()
        self.post_message(self.Moved(self, after))

    def scroll_to_cursor(self) -> None:
        """Scroll by as few lines as show the cursor's row."""
        top, visible_lines = self.scroll_offset.y, self.visible_rows
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + visible_lines:
            self.scroll_to(y=self.cursor - visible_lines + 1, animate=False)

    def action_cursor_down(self) -> None:
        self.move(self.cursor + 1)

    def action_cursor_up(self) -> None:
        self.move(self.cursor - 1)

    def action_page_down(self) -> None:
        self.move(self.cursor + self.visible_rows)

    def action_page_up(self) -> None:
        self.move(self.cursor - self.visible_rows)

    def action_first(self) -> None:
        self.move(0)

    def action_last(self) -> None:
        self.move(self.count - 1)

    def action_scroll_columns(self, way: str) -> None:
        """Scroll to the beginning of the next column on that side."""
        begins, at, fixed_width = [0], GUTTER_CELLS, self.fixed_width
        for column_width in self._widths[:-1]:
            at += column_width + GAP_CELLS
            if at > fixed_width:
                begins.append(at - fixed_width)
        x = self.scroll_offset.x
        further_starts = [b for b in begins if b > x] if int(way) > 0 else [b for b in reversed(begins) if b < x]
        if further_starts:
            self.scroll_to(x=further_starts[0], animate=False)

    def action_find(self) -> None:
        self.post_message(self.Act(self, "find"))

    def action_sort(self, way: str) -> None:
        self.post_message(self.Act(self, "sort", int(way)))

    def action_number(self) -> None:
        self.post_message(self.Act(self, "number"))

    def sort_by(self, field: str, descending: bool = False) -> None:
        """Sort by a field. An empty `field` restores the list's order."""
        self.view = replace(self.view, sort=field, descending=descending)
        self.narrow()

    def action_open(self) -> None:
        if (row := self.current_row) is not None:
            self.post_message(self.Opened(self, self.cursor, row))

    def action_inspect(self) -> None:
        if (row := self.current_row) is not None:
            self.post_message(self.Inspected(self, self.cursor, row))

    def find_column(self, x: int) -> TableColumn | None:
        """Return the column at this cell of a line."""
        x += self.scroll_offset.x if x >= self.fixed_width else 0
        at = GUTTER_CELLS
        for column, column_width in zip(self.shown_columns, self._widths, strict=True):
            if at <= x < at + column_width:
                return column
            at += column_width + GAP_CELLS
        return None

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        place = offset.y - 1 + self.scroll_offset.y
        if offset.y == 0 and (column := self.find_column(offset.x)) is not None:
            self.post_message(self.HeadClicked(self, column))
        if offset.y < 1 or place >= self.count:
            return
        is_cursor = place == self.cursor
        self.move(place)
        if is_cursor:
            self.action_open()


def fit_segments(
    parts: Sequence[tuple[str, Style]], width: int, right: bool, ends: bool, style: Style
) -> list[Segment]:
    """Return the styled texts `parts` cut or padded to exactly `width` cells, like `fit_text` with `right` and `ends`.

    Padding has `style`.
    """
    text = "".join(part for part, _ in parts)
    room = width - cell_len(text)
    if room < 0 and (ends or right):
        return [Segment(fit_text(text, width, right, ends), parts[0][1])]
    if room < 0:
        segments, cells_left = [], width
        for part, part_style in parts:
            shown_text = fit_text(part, cells_left) if cell_len(part) > cells_left or part == parts[-1][0] else part
            segments.append(Segment(shown_text, part_style))
            cells_left -= cell_len(shown_text)
        return segments
    segments = [Segment(part, part_style) for part, part_style in parts if part]
    gap = [Segment(" " * room, style)] if room else []
    return [*gap, *segments] if right else [*segments, *gap]
