"""The queries' room: the papers' tables and figures, to be asked of this registry, and SQL of one's own."""

from __future__ import annotations

from textual.app import ComposeResult

from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import Listed
from tui.data.queries import catalogue
from tui.screens.room import Scoped
from tui.widgets.bars import FilterBar, ScopeBar
from tui.widgets.table import PageTable

COLUMNS = (
    Column("title", "query", least=30),
    Column("made_by", "from", least=18),
    Column("paper", "paper", least=24),
    Column("plots", "plots", widest=40),
    Column("aliases", "also called", widest=60),
)
SEARCH = "queries.search"  # under which it is remembered


class QueriesScreen(Scoped):
    """The catalogue. Enter asks a query, in the scope of the bar."""

    place = "queries"
    also = ("scoped",)
    follows = False
    crumb = "queries"
    BINDINGS = bindings("queries")

    def body(self) -> ComposeResult:
        yield FilterBar("words of a title, an alias, a paper or a plot", id="filter")
        yield ScopeBar()
        yield PageTable(COLUMNS, id="queries", empty="no query has these words")

    async def fill(self) -> None:
        words: str = self.desk_app.remembered.get(SEARCH, "")
        search = self.query_one("#filter", FilterBar)
        if not search.has_focus:
            search.set_words(words)
        rows = await self.ask("reading the catalogue", lambda session: catalogue(words))
        if rows is not None:
            table = self.query_one(PageTable)
            table.show(Listed(rows), rows, columns=COLUMNS, keep=table.loaded and words == self._shown)
            self._shown = words
        await self.offer_words()

    _shown = ""

    def command(self) -> str:
        return "chessreg query --list"

    def action_filter(self) -> None:
        self.query_one("#filter", FilterBar).open()

    def action_sql(self) -> None:
        from tui.screens.sql import SqlScreen

        self.app.push_screen(SqlScreen())

    def action_plot(self) -> None:
        from tui.data.queries import Question, plots_of
        from tui.screens.plot import PlotScreen

        row = self.query_one(PageTable).current
        if row is not None and plots_of(row["title"]):
            self.app.push_screen(PlotScreen(Question(row["title"])))
        elif row is not None:
            self.notify(f"{row['title']} has no plot")

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        if isinstance(event.bar, ScopeBar):
            super().on_filter_bar_typed(event)
        else:
            self.desk_app.remembered.set(SEARCH, event.words or None)
            self.load()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.answer import AnswerScreen

        self.app.push_screen(AnswerScreen(event.row["title"]))
