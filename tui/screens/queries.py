"""The queries: the papers' tables and figures, to be asked of this registry, and SQL of one's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea

from tui.actions import EVERYWHERE, Action, bindings, of
from tui.columns import Column
from tui.data import query_answers
from tui.data.pages import Listed
from tui.data.query_answers import WORD, Names, Question, catalogue, completions
from tui.screens.answers import AnswerScreen, PlotScreen, ResultScreen, ScopedScreen, first_page
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


class QueriesScreen(ScopedScreen):
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
        words: str = self.app.remembered.get(SEARCH, "")
        search = self.query_one("#filter", FilterBar)
        if not search.has_focus:
            search.set_words(words)
        found = await self.ask("reading the catalogue", lambda session: catalogue(session, words))
        if found is not None:
            rows, wrong = found
            if wrong and wrong != self._wrong:
                self.notify(wrong, severity="warning", title="queries beside your kinds are left out")
            self._wrong = wrong
            table = self.query_one(PageTable)
            table.show(Listed(rows), rows, columns=COLUMNS, keep=table.loaded and words == self._shown)
            self._shown = words
        await self.offer_words()

    _shown = ""
    _wrong = ""

    def command(self) -> str:
        return "chessreg query --list"

    def action_sql(self) -> None:
        self.app.push_screen(SqlScreen())

    def action_plot(self) -> None:
        row = self.query_one(PageTable).current
        if row is not None and row["entry"].plots:
            self.app.push_screen(PlotScreen(Question(row["entry"])))
        elif row is not None:
            self.notify(f"{row['title']} has no plot")

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        if not isinstance(event.bar, ScopeBar):
            self.app.remembered.set(SEARCH, event.words or None)
            self.load()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.app.push_screen(AnswerScreen(event.row["entry"]))


OFFERED = 60  # at most


class SqlEditor(TextArea):
    """Tab completes; Esc and what asks are the screen's."""

    BINDINGS = bindings("editor")
    DEFAULT_CSS = """
    SqlEditor { border: none; padding: 0; background: $surface; }
    SqlEditor:focus { border: none; }
    """

    class Offered(Message):
        """These words may stand here, when they are more than one, or none."""

        def __init__(self, words: Sequence[str]) -> None:
            super().__init__()
            self.words = words

    class Left(Message):
        """On to the rows."""

    def __init__(self, text: str) -> None:
        super().__init__(text, show_line_numbers=True, tab_behavior="focus")
        if "sql" in self.available_languages:
            self.language = "sql"
        self.names: Names = {}
        self.cursor_blink = False

    @property
    def before(self) -> str:
        """What stands before the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    def action_complete(self) -> None:
        words = completions(self.before, self.text, self.names)[:OFFERED]
        if len(words) == 1:
            self.complete_with(words[0])
        else:
            self.post_message(self.Offered(words))

    def complete_with(self, word: str) -> None:
        """Put a word in the place of what of it is there."""
        row, column = self.cursor_location
        begun = WORD.search(self.before)
        start = column - (len(begun[0]) if begun else 0)
        self.replace(word, (row, start), (row, column), maintain_selection_offset=False)
        self.move_cursor((row, start + len(word)))

    def action_leave(self) -> None:
        self.post_message(self.Left())


LAST = "queries.sql"  # under which it is remembered
EXAMPLE = """SELECT run, kind, state, created_at
FROM runs
ORDER BY created_at DESC"""


class SqlScreen(ResultScreen):
    """An editor above, the answer below. Enter on a row goes to its board or its run."""

    place = "sql"
    follows = False
    crumb = "SQL"
    AUTO_FOCUS = "SqlEditor"
    BINDINGS = bindings("sql")
    DEFAULT_CSS = """
    SqlScreen > SqlEditor { height: 40%; min-height: 5; }
    SqlScreen > #offered {
        height: auto; max-height: 8; display: none; background: $panel; border: none; padding: 0 1;
    }
    SqlScreen > #offered.-open { display: block; }
    """

    def body(self) -> ComposeResult:
        yield SqlEditor(self.app.remembered.get(LAST, EXAMPLE))
        yield OptionList(id="offered")
        yield PageTable(id="rows", empty="F5 or ^r asks; Tab completes the names of tables and columns")
        yield Static("", classes="below", markup=False)

    async def fill(self) -> None:
        """Ask again what was asked; the names for completion at first."""
        editor, table = self.query_one(SqlEditor), self.query_one(PageTable)
        if not table.loaded:
            table.show(Listed([]), [])
        if not editor.names:
            editor.names = await self.ask("reading the names of tables", query_answers.names) or {}
        if self.asked:
            await self.question()

    asked = ""

    def action_run(self) -> None:
        text = self.query_one(SqlEditor).text.strip()
        if not text:
            self.notify("there is no SQL to ask", severity="warning")
            return
        self.asked = text
        self.app.remembered.set(LAST, text)
        self.load()

    async def question(self) -> None:
        text = self.asked
        self.query_one(".below", Static).update("asking …")
        page = await self.ask("asking the SQL", lambda session: first_page(query_answers.ask(session, text)))
        if page is None:
            self.query_one(".below", Static).update("not answered; Esc goes to the rows of before")
            return
        answer, rows = page
        self.show_answer(answer, rows)
        if rows:
            self.set_focus(self.query_one(PageTable))

    @property
    def file_name(self) -> str:
        return "rows.csv"

    def command(self) -> str:
        return f"chessreg query --sql {shlex.quote(' '.join((self.asked or EXAMPLE).split()))}"

    def actions(self) -> list[Action]:
        """In the editor only what is no letter: letters are typed."""
        if not isinstance(self.focused, SqlEditor):
            return super().actions()
        more = [a for a in of(EVERYWHERE) if a.keys.split(",")[0].startswith("ctrl")]
        return [*(a for a in of("sql") if a.method == "run"), *of("editor"), *more]

    def node_of(self, action: Action) -> Any:
        return self.query_one(SqlEditor) if action.place == "editor" else super().node_of(action)

    def action_edit(self) -> None:
        self.set_focus(self.query_one(SqlEditor))

    def on_sql_editor_left(self) -> None:
        if self.result is not None:
            self.set_focus(self.query_one(PageTable))
        else:
            self.app.pop_screen()

    # -- completion -----------------------------------------------------------------------------------------------

    def on_sql_editor_offered(self, event: SqlEditor.Offered) -> None:
        """One completion is taken at once; of several one chooses."""
        offered = self.query_one("#offered", OptionList)
        offered.clear_options()
        offered.add_options(event.words)
        offered.set_class(bool(event.words), "-open")
        if event.words:
            offered.highlighted = 0
            self.set_focus(offered)
        else:
            self.notify("nothing begins so")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.query_one(SqlEditor).complete_with(str(event.option.prompt))
        self.close_offer()

    def close_offer(self) -> None:
        self.query_one("#offered").remove_class("-open")
        self.set_focus(self.query_one(SqlEditor))

    async def action_shut(self) -> None:
        """Esc: shut what is offered, else go back."""
        if self.query_one("#offered").has_class("-open"):
            self.close_offer()
        else:
            await self.app.action_back()

    # -- what is behind a row --------------------------------------------------------------------------------------

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.boards import BoardScreen

        row = event.row
        if event.table.source is not None and row.get("run_id") and row.get("unit") is not None:
            self.app.push_screen(BoardScreen(event.table.source, event.place, row))
        elif row.get("run_id"):
            self.app.open("run", row["run_id"], str(row.get("run") or row.get("name") or "run"))
        else:
            self.notify("a row with run_id and unit leads to its board, one with run_id to its run; i shows its fields")
