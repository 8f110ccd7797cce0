"""The query catalogue (the papers' tables and figures over this registry) and the SQL editor."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from rich.console import Group
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.color import Color
from textual.containers import Horizontal
from textual.events import Resize
from textual.geometry import Offset
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.text_area import TextAreaTheme

from tui.actions import EVERYWHERE, Action, list_place_actions, make_bindings
from tui.columns import TableColumn
from tui.data import query_answers
from tui.data.pages import PAGE_ROWS, ListPages, Row
from tui.data.query_answers import WORD_PATTERN, Names, ScreenQuestion, complete_sql, search_catalogue
from tui.screens.answers import AnswerScreen, ResultScreen, ScopedScreen, open_run_lineage, read_first_page
from tui.screens.base import AppScreen, FieldsScreen
from tui.screens.preview import PreviewingScreen, RowPreview, build_fields_table
from tui.widgets.bars import FilterBar, ScopeBar
from tui.widgets.notes import NotesPane
from tui.widgets.table import PageTable
from tui.widgets.vim import VimEditor

COLUMNS = (
    TableColumn("title", "query", least=30, role="key"),
    TableColumn("answered", "runs", text=lambda row: "✓" if row["answered"] else "none",
           tone=lambda row: "good" if row["answered"] else "detail"),
    TableColumn("question", "question", widest=90, least=44),
    TableColumn("made_by", "from", least=18, role="detail"),
    TableColumn("paper", "paper", least=24, role="detail"),
    TableColumn("plots", "plots", widest=40, role="detail"),
    TableColumn("aliases", "also called", widest=60, role="detail"),
)  # fmt: skip
SEARCH_KEY = "queries.search"


class QueriesScreen(ScopedScreen, PreviewingScreen):
    """The query catalogue. Enter runs the selected query in the scope set in the bar."""

    place = "queries"
    finds = False
    also = ("scoped",)
    follows = False
    crumb = "queries"
    BINDINGS = make_bindings("queries")

    def body(self) -> ComposeResult:
        yield FilterBar("words of a title, a question, an alias, a paper or a plot", id="filter")
        yield ScopeBar()
        yield PageTable(COLUMNS, id="queries", title="Queries", empty="no query matches the filter; Esc clears it")

    async def fill(self) -> None:
        search_text: str = self.app.saved_state.get(SEARCH_KEY, "")
        search = self.query_one("#filter", FilterBar)
        if not search.has_focus:
            search.set_text(search_text)
        answer = await self.ask("reading the catalogue", lambda session: search_catalogue(session, search_text))
        if answer is not None:
            rows, error_text = answer
            if error_text and error_text != self._wrong:
                self.notify(error_text, severity="warning", title="the queries of your kinds were left out")
            self._wrong = error_text
            table = self.query_one(PageTable)
            table.show(ListPages(rows), rows, columns=COLUMNS, keep=table.loaded and search_text == self._shown_text)
            self._shown_text = search_text
        await self.offer_words()

    _shown_text = ""
    _wrong = ""

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        """Return the question, paper, plots and columns of a query."""
        entry = row["entry"]
        columns = [(f"{c.name} [{c.unit}]" if c.unit else c.name, c.text) for c in entry.columns if not c.hidden]
        facts = {"answers": entry.question, "paper": entry.paper, "made by": entry.made_by,
                 "plots": ", ".join(plot.title for plot in entry.plots)}  # fmt: skip
        return RowPreview(
            Group(build_fields_table(facts), Text(""), build_fields_table(columns, "columns")), title=entry.title
        )

    def command(self) -> str:
        return "chessreg query --list"

    def action_sql(self) -> None:
        self.app.push_screen(SqlScreen())

    def action_plot(self) -> None:
        row = self.query_one(PageTable).current_row
        if row is not None and row["entry"].plots:
            self.app.open_plot(ScreenQuestion(row["entry"]))
        elif row is not None:
            self.notify(f"{row['title']} has no plot")

    def action_published(self) -> None:
        row = self.query_one(PageTable).current_row
        if row is not None:
            self.app.push_screen(AnswerScreen(row["entry"], with_published=True))

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        if not isinstance(event.bar, ScopeBar):
            self.app.saved_state.set(SEARCH_KEY, event.text or None)
            self.load()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.app.push_screen(AnswerScreen(event.row["entry"]))


MAX_COMPLETIONS = 60


SQL_COLORS = {
    "text-accent": ("attribute", "conditional", "function.call", "keyword", "keyword.operator", "storageclass",
               "type.builtin", "type.qualifier"),
    "text-success": ("boolean", "float", "number", "string"),
}  # fmt: skip


class SqlEditor(VimEditor):
    """A SQL editor with completion.

    Tab opens a list of completions below the cursor. The arrow keys select, Enter or Tab inserts, Esc closes the list,
    and typing narrows it.
    """

    BINDINGS = make_bindings("editor")
    DEFAULT_CSS = """
    SqlEditor { border: none; padding: 0; background: $surface; }
    SqlEditor:focus { border: none; }
    """

    class Left(Message):
        """Posted when Esc moves the focus to the rows."""

    class Nameless(Message):
        """Posted when no names are loaded to complete with."""

    def __init__(self, text: str) -> None:
        super().__init__(text, show_line_numbers=True, tab_behavior="focus")
        if "sql" in self.available_languages:
            self.language = "sql"
        self.names: Names = {}
        self.cursor_blink = False
        self.asking: Callable[[], bool] = lambda: False  # whether a statement is running

    def on_mount(self) -> None:
        self.watch(self.app, "theme", self.apply_theme_colors)

    def apply_theme_colors(self, name: str) -> None:
        """Color SQL keywords and literals with the theme `name` of the app."""
        colors = self.app.get_css_variables()
        styles = {
            token: Style(color=Color.parse(colors[variable]).rich_color)
            for variable, tokens in SQL_COLORS.items()
            for token in tokens
        }
        self.register_theme(TextAreaTheme(name, syntax_styles={**styles, "comment": Style(italic=True)}))
        self.theme = name

    @property
    def text_before_cursor(self) -> str:
        """The text before the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    @property
    def completion_list(self) -> OptionList:
        return self.screen.query_one("#offered", OptionList)

    @property
    def has_completions(self) -> bool:
        return self.completion_list.has_class("-open")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the list's keys (Enter, arrows) unless the list is open."""
        return self.has_completions if action in ("take", "choose") else True

    def list_completions(self) -> list[str]:
        return complete_sql(self.text_before_cursor, self.text, self.names)[:MAX_COMPLETIONS]

    def action_complete(self) -> None:
        if self.has_completions:
            self.action_take()
            return
        names = self.list_completions()
        if len(names) == 1:
            self.complete_with(names[0])
        elif names:
            self.offer(names)
        elif self.names:
            self.notify("no name begins with this")
        else:
            self.notify("names of tables and columns are still being read")
            self.post_message(self.Nameless())

    def offer(self, names: Sequence[str]) -> None:
        """Show the completions just below the cursor."""
        self.completion_list.clear_options()
        self.completion_list.add_options(names)
        self.completion_list.highlighted = 0
        self.completion_list.absolute_offset = self.cursor_screen_offset + Offset(
            -len(find_partial_word(self.text_before_cursor)), 1
        )
        self.completion_list.add_class("-open")

    def on_text_area_changed(self) -> None:
        if self.has_completions:
            names = self.list_completions() if find_partial_word(self.text_before_cursor) else []
            self.offer(names) if names else self.close()

    def on_blur(self) -> None:
        if not self.completion_list.has_focus:
            self.close()

    def close(self) -> None:
        self.completion_list.remove_class("-open")

    def action_take(self) -> None:
        option = self.completion_list.highlighted_option
        self.close()
        if option is not None:
            self.complete_with(str(option.prompt))

    def action_choose(self, way: str) -> None:
        self.completion_list.action_cursor_down() if int(way) > 0 else self.completion_list.action_cursor_up()

    def complete_with(self, word: str) -> None:
        """Replace the partially typed word with `word`."""
        row, column = self.cursor_location
        start = column - len(find_partial_word(self.text_before_cursor))
        self.replace(word, (row, start), (row, column), maintain_selection_offset=False)
        self.move_cursor((row, start + len(word)))

    def action_vim(self) -> None:
        self.vim = not self.vim
        self.notify("Esc switches to vim's normal mode, and from there to the rows" if self.vim else "vim keys are off")

    def action_leave(self) -> None:
        if self.has_completions:
            self.close()
        elif self.vim and not self.normal and not self.asking():
            self.normal = True
        else:
            self.post_message(self.Left())


def find_partial_word(before: str) -> str:
    """Return the partially typed word at the end of `before`, or an empty string."""
    match = WORD_PATTERN.search(before)
    return match[0] if match else ""


LAST_SQL_KEY = "queries.sql"
VIM_KEY = "queries.vim"
HISTORY_KEY, MAX_HISTORY_STATEMENTS = "queries.history", 50
TREE_COLUMNS = (
    TableColumn("text", "tables and columns", widest=40, text=lambda row: row["text"]),
    TableColumn("rows", "rows", right=True),
)


class HistoryScreen(AppScreen):
    """The statements that were run, newest first. Enter copies one into the editor."""

    place = "history"
    crumb = "history"
    follows = False
    BINDINGS = make_bindings("history")

    def __init__(self, statements: Sequence[str], on_choice: Callable[[str], None]) -> None:
        super().__init__()
        self.statements, self.on_choice = statements, on_choice

    def body(self) -> ComposeResult:
        yield PageTable(id="history", title="Statements", empty="no statement was run yet")

    async def fill(self) -> None:
        rows = [{"number": n, "sql": text} for n, text in enumerate(self.statements, 1)]
        columns = (TableColumn("number", "#", right=True), TableColumn("sql", "SQL", widest=300, least=20))
        self.query_one(PageTable).show(ListPages(rows), rows, columns=columns)

    def command(self) -> str:
        return 'chessreg query --sql "SELECT …"'

    def action_take(self) -> None:
        self.query_one(PageTable).action_open()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.app.pop_screen()
        self.on_choice(event.row["sql"])


class ReadsScreen(FieldsScreen):
    """The tables and rows that a SELECT would read, without running it."""

    def __init__(self, statement: str, row_counts: Mapping[str, str]) -> None:
        super().__init__(row_counts, "tables read")
        self.statement = statement

    def command(self) -> str:
        return f"chessreg query --explain --sql {shlex.quote(' '.join(self.statement.split()))}"


EXAMPLE_SQL = """SELECT run, kind, state, created_at
FROM runs
ORDER BY created_at DESC"""


class SqlScreen(ResultScreen):
    """An editor above, the result below.

    Enter on a row opens its board or its run. Esc, or leaving the screen, stops a running statement.
    """

    place = "sql"
    follows = False
    crumb = "SQL"
    AUTO_FOCUS = "SqlEditor"
    BINDINGS = make_bindings("sql")
    DEFAULT_CSS = """
    SqlScreen > #above { height: 40%; min-height: 5; }
    SqlScreen SqlEditor { width: 1fr; height: 100%; }
    SqlScreen #tables { width: 36; height: 100%; display: none; }
    SqlScreen.-wide #tables { display: block; }
    SqlScreen > #offered {
        overlay: screen; constrain: inside inside; width: auto; max-width: 60; height: auto; max-height: 10;
        display: none; background: $panel; border: none; padding: 0 1;
    }
    SqlScreen > #offered.-open { display: block; }
    """

    def body(self) -> ComposeResult:
        with Horizontal(id="above"):
            yield SqlEditor(self.app.saved_state.get(LAST_SQL_KEY, EXAMPLE_SQL))
            yield PageTable(TREE_COLUMNS, id="tables", title="Tables", empty="", folds=False)
        yield OptionList(id="offered")
        yield PageTable(
            id="rows", title="Rows", empty="F5 or ^r runs the statement; Tab completes names of tables and columns"
        )
        yield NotesPane()

    def on_mount(self) -> None:
        editor = self.query_one(SqlEditor)
        editor.vim, editor.asking = bool(self.app.saved_state.get(VIM_KEY, False)), lambda: self.is_asking
        self.watch(editor, "vim", lambda vim: self.app.saved_state.set(VIM_KEY, vim or None), init=False)
        editor.select_all()  # typing replaces the example or the last statement

    async def fill(self) -> None:
        """Run the statement again. On the first call, load the names for completion."""
        if not self.table.loaded:
            self.table.show(ListPages([]), [])
            self.query_one(NotesPane).show([], "not run yet")
        await self.read_names()
        if self.statement and not self.stopped:
            await self.question()

    async def read_names(self) -> None:
        """Read the names of tables and columns, then their row counts, and draw the tree, once."""
        editor = self.query_one(SqlEditor)
        if not editor.names:
            editor.names = await self.ask("reading the names of tables", query_answers.list_sql_names) or {}
            self.draw_tree()
            self.counts = await self.ask("counting rows", query_answers.format_row_counts) or {}
            self.draw_tree()

    def on_sql_editor_nameless(self) -> None:
        """Retry reading the names, which failed when the screen opened."""
        if self.filling is None or self.filling.is_finished:
            self.run_exclusive(self.read_names, "names")

    statement = ""
    stopped = False  # whether the user stopped the statement

    @property
    def is_asking(self) -> bool:
        """Whether a statement is running."""
        return bool(self.statement) and not self.stopped and self.filling is not None and not self.filling.is_finished

    def step_back(self) -> bool:
        if not self.is_asking:
            return super().step_back()
        assert self.filling is not None
        self.stopped = True
        self.filling.cancel()
        self.notify("the SQL was stopped; F5 runs it again")
        self.query_one(NotesPane).show([], "stopped")
        return True

    @property
    def table(self) -> PageTable:
        return self.query_one("#rows", PageTable)

    # -- tables and columns -------------------------------------------------------------------------------------------

    unfolded_names: frozenset[str] = frozenset()
    counts: Mapping[str, str] = MappingProxyType({})  # rows by table

    def on_resize(self, event: Resize) -> None:
        self.set_class(self.size.width >= 130, "-wide")

    def draw_tree(self) -> None:
        """Show the tables and views, and the columns of unfolded ones."""
        rows = []
        for name, columns in self.query_one(SqlEditor).names.items():
            is_unfolded = name in self.unfolded_names
            rows.append({"text": f"{'▾' if is_unfolded else '▸'} {name}", "name": name, "table": name,
                         "rows": self.counts.get(name, "")})  # fmt: skip
            rows += [
                {"text": f"    {column}", "name": column, "table": "", "rows": ""} for column in columns if is_unfolded
            ]
        self.query_one("#tables", PageTable).show(ListPages(rows), rows[:PAGE_ROWS], columns=TREE_COLUMNS, keep=True)

    def insert(self, row: Row) -> None:
        """Fold or unfold a table, or insert the name of a column at the cursor of the editor."""
        name = row["table"]
        if name and name not in self.unfolded_names:
            self.unfolded_names |= {name}
        elif name:
            self.unfolded_names -= {name}
        else:
            self.query_one(SqlEditor).insert(row["name"])
        self.draw_tree()

    def action_history(self) -> None:
        def set_statement(text: str) -> None:
            editor = self.query_one(SqlEditor)
            editor.text = text
            self.set_focus(editor)

        self.app.push_screen(HistoryScreen(self.app.saved_state.get(HISTORY_KEY, []), set_statement))

    def action_explain(self) -> None:
        if text := self.query_one(SqlEditor).text.strip():
            self.run_exclusive(partial(self.explain, text), "explain")
        else:
            self.notify("no SQL to explain", severity="warning")

    async def explain(self, text: str) -> None:
        """Show which tables and rows a SELECT would read."""
        row_counts = await self.ask("planning the SQL", lambda session: query_answers.explain_select(session, text))
        if row_counts is not None:
            await self.app.push_screen(ReadsScreen(text, row_counts))

    def action_run(self) -> None:
        text = self.query_one(SqlEditor).text.strip()
        if not text:
            self.notify("no SQL to run", severity="warning")
            return
        self.statement, self.stopped = text, False
        self.app.saved_state.set(LAST_SQL_KEY, text)
        earlier_statements = [other for other in self.app.saved_state.get(HISTORY_KEY, []) if other != text]
        self.app.saved_state.set(HISTORY_KEY, [text, *earlier_statements][:MAX_HISTORY_STATEMENTS])
        self.load()

    async def question(self) -> None:
        """Run the statement and show its first page."""
        text = self.statement
        self.query_one(NotesPane).show([], "running … Esc stops it")
        page = await self.ask(
            "running the SQL", lambda session: read_first_page(query_answers.answer_select(session, text))
        )
        if page is None:
            before = "Esc goes to the earlier rows" if self.table.count else "Esc leaves"
            self.query_one(NotesPane).show([], f"not run; {before}")
            return
        answer, rows = page
        self.show_answer(answer, rows)
        if rows:
            self.set_focus(self.table)

    @property
    def file_name(self) -> str:
        return "rows.csv"

    def command(self) -> str:
        return f"chessreg query --sql {shlex.quote(' '.join((self.statement or EXAMPLE_SQL).split()))}"

    def list_actions(self) -> list[Action]:
        """Return the screen's actions; in the editor, only those whose keys are not letters."""
        if not isinstance(self.focused, SqlEditor):
            return super().list_actions()
        more = [a for a in list_place_actions(EVERYWHERE) if a.keys.split(",")[0].startswith("ctrl")]
        return [
            *(a for a in list_place_actions("sql") if a.method in ("run", "explain", "history")),
            *list_place_actions("editor"),
            *more,
        ]

    def find_node(self, action: Action) -> Any:
        return self.query_one(SqlEditor) if action.place == "editor" else super().find_node(action)

    def action_edit(self) -> None:
        self.set_focus(self.query_one(SqlEditor))

    def action_lineage(self) -> None:
        open_run_lineage(self, self.table.current_row)

    def on_sql_editor_left(self) -> None:
        if self.is_asking:
            self.step_back()
        elif self.table.count:
            self.set_focus(self.table)
        else:
            self.app.pop_screen()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Insert the completion that was clicked."""
        editor = self.query_one(SqlEditor)
        editor.action_take()
        self.set_focus(editor)

    async def action_shut(self) -> None:
        await self.app.action_back()

    # -- opening a row ---------------------------------------------------------------------------------------------

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.boards import BoardScreen

        row = event.row
        if event.table.id == "tables":
            self.insert(row)
            return
        if event.table.source is not None and row.get("run_id") and row.get("unit") is not None:
            self.app.push_screen(BoardScreen(event.table.source, event.place, row))
        elif row.get("run_id"):
            self.app.open("run", row["run_id"], str(row.get("run") or row.get("name") or "run"))
        else:
            self.notify("a row with run_id and unit leads to its board, one with run_id to its run; i shows its fields")
