"""A query's answer as a table, and the rows behind one of its lines."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import bindings
from tui.data.pages import Row
from tui.data.queries import Answer, answer, behind, columns
from tui.screens.room import Room
from tui.widgets.columns import Column
from tui.widgets.table import PageTable


def table_columns(found: Answer) -> list[Column]:
    cells = [
        Column(f"c{n}", heading, right)
        for n, (heading, right) in enumerate(zip(found.headings, found.numeric, strict=True))
    ]
    return [Column("#", "#", right=True), *cells]


class AnswerScreen(Room):
    """The table of one query. Enter opens the rows behind a line."""

    place = "answer"
    follows = False
    BINDINGS = bindings("answer")
    DEFAULT_CSS = """
    AnswerScreen > .above { height: auto; max-height: 4; padding: 0 1; color: $foreground; }
    AnswerScreen > .below { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title_asked = self.crumb = title
        self.published = self.partial = False

    def body(self) -> ComposeResult:
        yield Static("", classes="above", markup=False)
        yield PageTable(id="answer", empty="no rows")
        yield Static("", classes="below", markup=False)

    async def fill(self) -> None:
        title, published, partial = self.title_asked, self.published, self.partial
        found = await self.ask(
            f"asking {title}", lambda session: first_page(answer(session, title, published=published, partial=partial))
        )
        if found is not None:
            self.show(*found, keep=self._shown == (published, partial))
            self._shown = (published, partial)

    _shown: tuple[bool, bool] | None = None

    def show(self, found: Answer, rows: list[Row], keep: bool = False) -> None:
        above = " · ".join(filter(None, [found.same, "with unfinished runs" if self.partial else ""]))
        self.query_one(".above", Static).update(above)
        self.query_one(".above").display = bool(above)
        self.query_one(".below", Static).update("\n".join([*found.notes, show.provenance(found.footer)]))
        self.query_one(PageTable).show(found.pages, rows, columns=table_columns(found), keep=keep)

    def command(self) -> str:
        more = (" --published" if self.published else "") + (" --partial" if self.partial else "")
        return f'chessreg query "{self.title_asked}"{more}'

    def action_published(self) -> None:
        self.published = not self.published
        self.load()

    def action_partial(self) -> None:
        self.partial = not self.partial
        self.load()

    def action_meaning(self) -> None:
        from tui.screens.details import Details

        told = columns(self.title_asked)
        fields = {f"{row['name']} [{row['unit']}]" if row["unit"] else row["name"]: row["text"] for row in told}
        self.app.push_screen(Details(fields, "columns"))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if self.published:
            self.notify("these lines are the papers'; p goes back to ours")
        else:
            self.app.push_screen(RowsScreen(self.title_asked, event.row["#"], self.partial))


class RowsScreen(Room):
    """The games, trials or scores behind a line. Enter shows the board."""

    place = "rows"
    follows = False
    DEFAULT_CSS = """
    RowsScreen > .below { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, title: str, number: int, partial: bool) -> None:
        super().__init__()
        self.title_asked, self.number, self.partial = title, number, partial
        self.crumb = f"row {number}"

    def body(self) -> ComposeResult:
        yield PageTable(id="behind", empty="no rows")
        yield Static("", classes="below", markup=False)

    async def fill(self) -> None:
        title, number, partial = self.title_asked, self.number, self.partial
        found = await self.ask(f"asking {title}", lambda session: first_page(behind(session, title, number, partial)))
        if found is not None:
            shown, rows = found
            self.query_one(".below", Static).update("\n".join([*shown.notes, show.provenance(shown.footer)]))
            table = self.query_one(PageTable)
            table.show(shown.pages, rows, columns=table_columns(shown), keep=table.loaded and table.cursor < len(rows))

    def command(self) -> str:
        return f'chessreg query "{self.title_asked}" --rows {self.number}' + (" --partial" if self.partial else "")

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.board import BoardScreen

        if event.table.source is not None and event.row.get("run_id"):
            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))


def first_page(found: Answer) -> tuple[Answer, list[Row]]:
    return found, list(found.pages.page(0))
