"""Lists that show what the row under the cursor holds beside them, from 160 columns on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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

SHARE = 0.42  # of the width, that it takes
WIDE = 160  # columns of a terminal from which there is a preview
PAUSE = 0.15  # seconds on a row before it is read


class Shown(NamedTuple):
    """What a preview shows of a row: text, the board above it, and the title of its frame."""

    text: RenderableType
    board: BoardFrame | None = None
    title: str = ""


class Preview(VerticalScroll, can_focus=False):
    """The pane at the right."""

    DEFAULT_CSS = """
    Preview {
        dock: right; width: 42%; margin: 1 0; padding: 0 1; display: none; scrollbar-size-vertical: 1;
        background: $surface; border: round $edge; border-title-color: $foreground; border-title-style: bold;
    }
    Preview > Static { height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)

    async def show(self, shown: Shown | None) -> None:
        text = self.children[-1]
        assert isinstance(text, Static)
        text.update("" if shown is None else shown.text)
        self.border_title = cast(str, Content(shown.title if shown is not None else ""))
        for pane in self.children[:-1]:
            pane.display = shown is not None and shown.board is not None
        if shown is not None and shown.board is not None:
            from tui.widgets.board import SIZES, BoardPane, extent  # code that a start of the app does not need

            if text is self.children[0]:
                await self.mount(BoardPane(), before=text)
            pane = self.query_one(BoardPane)
            wide, high = int(SHARE * self.app.size.width) - 6, self.app.size.height - 8
            fitting = [size for size in SIZES if extent(size)[0] <= wide and extent(size)[1] <= high]
            size = fitting[-1] if fitting else "small"
            pane.styles.width = max(extent(size)[0], wide)
            pane.show(shown.board, size, self.app.glyphs)  # type: ignore[attr-defined]
        self.scroll_home(animate=False)


class PreviewingScreen(AppScreen):
    """A list. Subclasses say with `previewed` what is shown of a row; it is read after a moment on the row, and what is
    made for a row that was left is dropped."""

    def compose(self) -> ComposeResult:
        yield Preview()
        yield from super().compose()

    async def previewed(self, row: Mapping[str, Any]) -> Shown | None:
        """What is shown of a row; None: nothing."""
        raise NotImplementedError

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(Preview).styles.height = event.size.height - 2  # between the rooms and the keys
        wide = event.size.width >= WIDE
        if wide != self.has_class("-wide"):
            self.set_class(wide, "-wide")
            self.look_ahead()

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.look_ahead()

    def look_ahead(self) -> None:
        """Show the row that the cursor stands on once it has stood there for a moment; what was begun for another is
        dropped."""
        there = self.has_class("-wide") and not self.has_class("-empty")
        self.query_one(Preview).display = there
        if there:
            self.run_worker(self.preview(), group="preview", exclusive=True)

    @property
    def previewed_table(self) -> PageTable:
        return self.query(PageTable).first()

    async def preview(self) -> None:
        await asyncio.sleep(PAUSE)
        self.require_shown()
        row = self.previewed_table.current
        shown = None if row is None else await self.previewed(row)
        self.require_shown()
        await self.query_one(Preview).show(shown)


def fields(rows: Mapping[str, Any] | Sequence[tuple[str, Any]], title: str = "") -> Table:
    """Names and values under each other, under a title; what is empty is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if title:
        table.add_row(Text(title, style="not dim bold"), "")
    for name, value in rows.items() if isinstance(rows, Mapping) else rows:
        if value is not False and value not in (None, "", [], {}, ()):
            table.add_row(Text(name.replace("_", " ")), Text(show.full(value)))
    return table
