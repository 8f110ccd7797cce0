"""A query's answer as a table, and the rows behind one of its lines."""

from __future__ import annotations

from dataclasses import replace

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import Action, bindings
from tui.data.pages import Row
from tui.data.queries import Answer, Question, answer, behind, columns, plots_of
from tui.screens.result import ResultRoom, table_columns
from tui.screens.room import Scoped
from tui.widgets.bars import ScopeBar
from tui.widgets.table import PageTable


class AnswerScreen(Scoped, ResultRoom):
    """The table of one query. Enter opens the rows behind a line."""

    place = "answer"
    also = ("scoped", "result")
    follows = False
    BINDINGS = bindings("answer")
    DEFAULT_CSS = """
    AnswerScreen > .above { height: auto; max-height: 4; padding: 0 1; color: $foreground; }
    AnswerScreen > .below { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.question = Question(title)
        self.crumb = title

    def body(self) -> ComposeResult:
        yield ScopeBar()
        yield Static("", classes="above", markup=False)
        yield PageTable(id="answer", empty="no rows")
        yield Static("", classes="below", markup=False)

    async def fill(self) -> None:
        await self.offer_words()
        asked = self.asked
        found = await self.ask(f"asking {asked.title}", lambda session: first_page(answer(session, asked)))
        if found is not None:
            self.show(*found, asked, keep=self._shown == asked)
            self._shown = asked

    _shown: Question | None = None

    @property
    def asked(self) -> Question:
        """The question, in the scope that all queries are asked in."""
        return replace(self.question, scope=self.scope)

    def show(self, found: Answer, rows: list[Row], asked: Question, keep: bool = False) -> None:
        above = " · ".join(filter(None, [found.same, "with unfinished runs" if asked.partial else ""]))
        self.result = found.result
        self.query_one(".above", Static).update(above)
        self.query_one(".above").display = bool(above)
        self.query_one(".below", Static).update("\n".join([*found.notes, show.provenance(found.footer)]))
        self.query_one(PageTable).show(found.pages, rows, columns=table_columns(found), keep=keep)

    def offers(self, action: Action) -> bool:
        return super().offers(action) and (action.method != "plot" or bool(plots_of(self.question.title)))

    def command(self) -> str:
        return self.asked.command

    def action_published(self) -> None:
        self.question = replace(self.question, published=not self.question.published)
        self.load()

    def action_partial(self) -> None:
        self.question = replace(self.question, partial=not self.question.partial)
        self.load()

    def action_scoring(self) -> None:
        other = "author-2024" if self.question.scoring == "paper" else "paper"
        self.question = replace(self.question, scoring=other)
        self.load()

    def action_meaning(self) -> None:
        from tui.screens.room import Details

        told = columns(self.question.title)
        fields = {f"{row['name']} [{row['unit']}]" if row["unit"] else row["name"]: row["text"] for row in told}
        self.app.push_screen(Details(fields, "columns"))

    def action_plot(self) -> None:
        from tui.screens.plot import PlotScreen

        if plots_of(self.question.title):
            self.app.push_screen(PlotScreen(self.question))
        else:
            self.notify(f"{self.question.title} has no plot; chessreg plot --list says which queries have")

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if self.question.published:
            self.notify("these lines are the papers'; p goes back to ours")
        else:
            self.app.push_screen(RowsScreen(self.asked, event.row["#"]))


class RowsScreen(ResultRoom):
    """The games, trials or scores behind a line. Enter shows the board."""

    place = "rows"
    follows = False
    DEFAULT_CSS = """
    RowsScreen > .below { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, asked: Question, number: int) -> None:
        super().__init__()
        self.asked, self.number = asked, number
        self.crumb = f"row {number}"

    @property
    def file_name(self) -> str:
        return f"{self.asked.title.replace(' ', '-')}-{self.crumb.replace(' ', '-')}.csv"

    def body(self) -> ComposeResult:
        yield PageTable(id="behind", empty="no rows")
        yield Static("", classes="below", markup=False)

    async def fill(self) -> None:
        asked, number = self.asked, self.number
        found = await self.ask(f"asking {asked.title}", lambda session: first_page(behind(session, asked, number)))
        if found is not None:
            shown, rows = found
            self.result = shown.result
            self.query_one(".below", Static).update("\n".join([*shown.notes, show.provenance(shown.footer)]))
            table = self.query_one(PageTable)
            table.show(shown.pages, rows, columns=table_columns(shown), keep=table.loaded and table.cursor < len(rows))

    def command(self) -> str:
        return f'chessreg query "{self.asked.title}" --rows {self.number}{self.asked.options}'

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.board import BoardScreen

        if event.table.source is not None and event.row.get("run_id"):
            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))


def first_page(found: Answer) -> tuple[Answer, list[Row]]:
    return found, list(found.pages.page(0))
