"""Lists with a pane at the right that previews the row under the cursor, in wide terminals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tui import show
from tui.screens.base import AppScreen
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.games.boards.boardframe import BoardFrame

WIDE_CELLS = 160
BOARD_WIDE_CELLS = 120
WIDTH_PERCENT = 42  # of the terminal's width, without a board
PREVIEW_DELAY_S = 0.15


class RowPreview(NamedTuple):
    """The preview of a row: its text, an optional board above it, and the title of the frame."""

    text: RenderableType
    board: BoardFrame | None = None
    title: str = ""


class Preview(VerticalScroll, can_focus=False):
    """The pane at the right of a list, with details or boards of the row under the cursor."""

    DEFAULT_CSS = """
    Preview {
        dock: right; width: 42%; margin: 1 0; padding: 0 1; display: none; scrollbar-size-vertical: 1;
        background: $surface; border: round $edge; border-title-color: $foreground; border-title-style: bold;
    }
    Preview > Static { height: auto; }
    Preview.-board { width: 46%; }
    Preview > BoardPane { margin: 0 0 1 0; }
    """

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    @property
    def text_width(self) -> int:
        """The width of the text in cells, without the scrollbar."""
        return max(1, self.content_size.width - self.scrollbar_size_vertical)

    async def show(self, preview: RowPreview | None) -> None:
        """Show the text of a row and the largest board that fits. None clears both."""
        text = self.children[-1]
        assert isinstance(text, Static)
        text.update("" if preview is None else preview.text)
        self.border_title = cast(str, Content(preview.title if preview is not None else ""))
        for pane in self.children[:-1]:
            pane.display = preview is not None and preview.board is not None
        if preview is not None and preview.board is not None:
            from tui.widgets.board import (  # not imported when the app starts
                BoardPane,
                compute_board_extent,
                list_sizes,
            )

            if text is self.children[0]:
                await self.mount(BoardPane(), before=text)
            pane = self.query_one(BoardPane)
            text_cells, high = self.text_width, self.app.size.height - 8
            glyphs = self.app.glyphs  # type: ignore[attr-defined]
            sizes = list_sizes(glyphs)
            has_space = (
                size
                for size in reversed(sizes)
                if compute_board_extent(size)[0] <= text_cells and compute_board_extent(size)[1] <= high
            )
            size = next(has_space, sizes[0])
            pane.styles.width = max(compute_board_extent(size)[0], text_cells)
            pane.show(preview.board, size, glyphs)
        self.scroll_home(animate=False)


class PreviewingScreen(AppScreen):
    """A list with a preview pane. Subclasses implement `build_preview`.

    A row is read after the cursor has rested on it. Moving on cancels a preview that is still being made.
    """

    preview_classes: ClassVar[str] = ""

    def compose(self) -> ComposeResult:
        yield Preview(classes=self.preview_classes)
        yield from super().compose()

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        """Return the preview of `row`, or None to show an empty pane."""
        raise NotImplementedError

    @property
    def min_width_cells(self) -> int:
        """The smallest terminal width, in cells, at which the pane is shown."""
        return WIDE_CELLS

    @property
    def has_previews(self) -> bool:
        """Whether the current list has previews."""
        return True

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(Preview).styles.height = event.size.height - 2  # between the top bar and the key bar
        is_wide = event.size.width >= self.min_width_cells
        if is_wide != self.has_class("-wide"):
            self.set_class(is_wide, "-wide")
            self.schedule_preview()

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.schedule_preview()

    def schedule_preview(self) -> None:
        """Preview the row under the cursor after a delay, and cancel the preview of an earlier row."""
        has_pane = self.has_class("-wide") and not self.has_class("-empty") and self.has_previews
        self.query_one(Preview).display = has_pane
        if has_pane:
            self.run_exclusive(self.preview, "preview")

    @property
    def previewed_table(self) -> PageTable:
        return self.query(PageTable).first()

    async def preview(self) -> None:
        """Show the preview of the current row after PREVIEW_DELAY_S."""
        await asyncio.sleep(PREVIEW_DELAY_S)
        self.require_shown()
        row = self.previewed_table.current_row
        row_preview = None if row is None else await self.build_preview(row)
        self.require_shown()
        await self.query_one(Preview).show(row_preview)


class BoardPreviewingScreen(PreviewingScreen):
    """A list whose rows have boards: games, states of edits and probe readings."""

    preview_classes = "-board"

    @property
    def min_width_cells(self) -> int:
        return BOARD_WIDE_CELLS

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        from tui.data.board_views import preview_boards

        boards = await self.ask("drawing the board", lambda session: [preview_boards(session, row)])
        return build_board_preview(*boards[0]) if boards and boards[0] else None


def build_board_preview(views: Sequence[BoardFrame], facts: Sequence[str]) -> RowPreview:
    """Return the preview of a row with boards.

    With `facts` (a game): the final position and the facts. For probe readings: the last position, and the number of
    squares read correctly at each ply. Otherwise: the first board, and one line for each further board.
    """
    from tui.widgets.evaluation import draw_column
    from tui.widgets.moves import format_frame_line

    if facts:
        return RowPreview("\n".join(facts), replace(views[-1], caption=(), evaluation=None))
    if views[-1].doubts:
        shares = "".join(draw_column(view.squares_right / 64, 1, letters=False) for view in views)
        return RowPreview(f"squares read correctly by ply, of 64:\n{shares}", views[-1])
    captions = [f"{view.title}: {format_frame_line(view)}" if view.caption else view.title for view in views[1:]]
    return RowPreview("\n".join(captions), views[0])


def build_fields_table(rows: Mapping[str, Any] | Sequence[tuple[str, Any]], title: str = "") -> Table:
    """Return a two-column table of names and values under `title`. Empty values are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if title:
        table.add_row(Text(title, style="not dim bold"), "")
    for name, value in rows.items() if isinstance(rows, Mapping) else rows:
        if value is not False and value not in (None, "", [], {}, ()):
            table.add_row(Text(name.replace("_", " ")), Text(show.format_full_value(value)))
    return table
