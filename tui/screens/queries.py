"""The queries' room: the papers' tables, to be asked of this registry."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.actions import bindings
from tui.data.pages import Listed
from tui.data.queries import catalogue
from tui.screens.room import Room
from tui.widgets.columns import Column
from tui.widgets.filterbar import FilterBar
from tui.widgets.table import PageTable

COLUMNS = (
    Column("title", "query", least=30),
    Column("made_by", "from", least=18),
    Column("paper", "paper", least=24),
    Column("aliases", "also called", widest=60),
)


class QueriesScreen(Room):
    """The catalogue. Enter asks a query."""

    place = "queries"
    follows = False
    crumb = "queries"
    BINDINGS = bindings("queries")

    words = ""

    def body(self) -> ComposeResult:
        yield FilterBar("words of a title, an alias or a paper", id="filter")
        yield PageTable(COLUMNS, id="queries", empty="no query has these words")

    async def fill(self) -> None:
        words = self.words
        rows = await self.ask("reading the catalogue", lambda session: catalogue(words))
        if rows is not None:
            self.query_one(PageTable).show(Listed(rows), rows, columns=COLUMNS)

    def command(self) -> str:
        return "chessreg query --list"

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.words = event.words
        self.load()

    def on_filter_bar_left(self) -> None:
        self.set_focus(self.query_one(PageTable))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.answer import AnswerScreen

        self.app.push_screen(AnswerScreen(event.row["title"]))
