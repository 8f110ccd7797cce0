"""SELECTs of one's own over everything in the registry, with the rows that they give."""

from __future__ import annotations

import shlex
from typing import Any

from textual.app import ComposeResult
from textual.widgets import OptionList, Static

from tui import show
from tui.actions import EVERYWHERE, Action, bindings, of
from tui.data import queries
from tui.data.pages import Listed
from tui.screens.answer import first_page
from tui.screens.result import ResultRoom, table_columns
from tui.widgets.editor import SqlEditor
from tui.widgets.table import PageTable

LAST = "queries.sql"  # under which it is remembered
EXAMPLE = """SELECT run, kind, state, created_at
FROM runs
ORDER BY created_at DESC"""


class SqlScreen(ResultRoom):
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
    SqlScreen > .below { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    """

    def body(self) -> ComposeResult:
        yield SqlEditor(self.desk_app.remembered.get(LAST, EXAMPLE))
        yield OptionList(id="offered")
        yield PageTable(id="rows", empty="F5 or ^r asks; Tab completes the names of tables and columns")
        yield Static("", classes="below", markup=False)

    async def fill(self) -> None:
        """Ask again what was asked; the names for completion at first."""
        editor, table = self.query_one(SqlEditor), self.query_one(PageTable)
        if not table.loaded:
            table.show(Listed([]), [])
        if not editor.names:
            editor.names = await self.ask("reading the names of tables", queries.names) or {}
        if self.asked:
            await self.question()

    asked = ""

    def action_run(self) -> None:
        text = self.query_one(SqlEditor).text.strip()
        if not text:
            self.notify("there is no SQL to ask", severity="warning")
            return
        self.asked = text
        self.desk_app.remembered.set(LAST, text)
        self.load()

    async def question(self) -> None:
        text = self.asked
        self.query_one(".below", Static).update("asking …")
        found = await self.ask("asking the SQL", lambda session: first_page(queries.ask(session, text)))
        if found is None:
            self.query_one(".below", Static).update("not answered; Esc goes to the rows of before")
            return
        shown, rows = found
        self.result = shown.result
        self.query_one(".below", Static).update("\n".join([*shown.notes, show.provenance(shown.footer)]))
        table = self.query_one(PageTable)
        table.show(shown.pages, rows, columns=table_columns(shown))
        if rows:
            self.set_focus(table)

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
            self.desk_app.pop_screen()

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
            await self.desk_app.action_back()

    # -- what is behind a row --------------------------------------------------------------------------------------

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.board import BoardScreen
        from tui.screens.run import RunScreen

        row = event.row
        if event.table.source is not None and row.get("run_id") and row.get("unit") is not None:
            self.app.push_screen(BoardScreen(event.table.source, event.place, row))
        elif row.get("run_id"):
            self.app.push_screen(RunScreen(row["run_id"], str(row.get("run") or row.get("name") or "run")))
        else:
            self.notify("a row with run_id and unit leads to its board, one with run_id to its run; i shows its fields")
