"""The launch room: every kind of experiment. Enter opens its form."""

from __future__ import annotations

from textual import work
from textual.app import ComposeResult

from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import Listed
from tui.screens.room import Room
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable

COLUMNS = (
    Column("name", "kind", widest=24, least=19),
    Column("summary", "what it does", widest=90, least=40),
    Column("presets", "presets", widest=40),
    Column("source", "from", widest=50),
)


class LaunchScreen(Room):
    """Kinds of experiments: those of chessreg, those of installed packages, those of files that were used here."""

    place = "launch"
    crumb = "launch"
    follows = False
    BINDINGS = bindings("launch")

    words = ""

    def body(self) -> ComposeResult:
        yield FilterBar("words of a kind's name or of what it does", id="filter")
        yield PageTable(COLUMNS, id="kinds", empty="no kind of experiment has these words")

    async def fill(self) -> None:
        from tui.data.launching import kinds

        rows = await self.ask("reading the kinds of experiments", kinds)
        if rows is None:
            return
        wanted = self.words.lower().split()
        rows = [row for row in rows if all(word in f"{row['name']} {row['summary']}".lower() for word in wanted)]
        self.query_one(PageTable).show(Listed(rows), rows, columns=COLUMNS)

    def command(self) -> str:
        return "chessreg launch --help"

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def action_file(self) -> None:
        from tui.screens.dialogs import Prompt

        self.app.push_screen(
            Prompt("A kind of your own: the file that defines it", hint="./my_kind.py, or ./my_kind.py:CLASS"),
            self.open_file,
        )

    def open_file(self, reference: str | None) -> None:
        if reference:
            self.open(reference)

    @work(group="open")
    async def open(self, reference: str) -> None:
        """The form of the kind of this name or file."""
        from chessreg.runs.kind import kind
        from tui.data.form import Form
        from tui.screens.form import FormScreen

        found = await self.ask("loading the kind", lambda session: kind(reference))
        if found is not None:
            await self.app.push_screen(FormScreen(Form(found, reference)))

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.words = event.words
        self.load()

    def on_filter_bar_left(self) -> None:
        self.set_focus(self.query_one(PageTable))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.open(event.row["reference"])
