"""Dialogs: a line of text, a confirmation, and a picker of values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.actions import Action, make_bindings
from tui.columns import GAP_CELLS, TableColumn, compute_widths
from tui.data.pages import PAGE_ROWS, ListPages, Row
from tui.screens.base import AppScreen
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from tui.host import Host

PROMPT_HINT = "Enter confirms, Esc cancels"


class Prompt(ModalScreen[str | None]):
    """Asks for one line of text and returns it, or None if cancelled.

    The text is kept under the name `draft` and offered again until `app.drop_draft`. `wrong` returns an error for
    invalid text, which keeps the dialog open. A draft, or a `value` with `replaced`, is selected so that typing
    replaces it.
    """

    place = "prompt"
    BINDINGS = make_bindings("prompt")
    DEFAULT_CSS = """
    Prompt { align: center middle; }
    Prompt > Vertical {
        width: 72; max-width: 95%; height: auto; padding: 1 2; background: $panel; border: round $accent;
    }
    Prompt Input { height: 1; border: none; padding: 0 1; background: $surface; color: $foreground; }
    Prompt Input:focus { border: none; }
    Prompt Static { height: auto; }
    Prompt #hint { margin-top: 1; color: $text-muted; }
    """

    def __init__(
        self,
        question: str,
        value: str = "",
        hint: str = "",
        draft: Hashable = None,
        wrong: Callable[[str], str] = lambda text: "",
        replaced: bool = False,
    ) -> None:
        super().__init__()
        self.question, self.value, self.hint, self.draft, self.wrong = question, value, hint, draft, wrong
        self.replaced = replaced

    def compose(self) -> ComposeResult:
        draft_text = self.drafts.get(self.draft)
        with Vertical():
            yield Static(self.question, markup=False)
            yield Input(draft_text or self.value, select_on_focus=self.replaced or draft_text is not None)
            yield Static(self.hint or PROMPT_HINT, id="hint", markup=False)

    @property
    def drafts(self) -> dict[Hashable, str]:
        return cast("Host", self.app).drafts

    @property
    def text(self) -> str:
        return self.query_one(Input).value.strip()

    def keep(self) -> None:
        """Save the text as the draft if it differs from the initial value."""
        self.drafts.pop(self.draft, None)
        if self.draft is not None and self.text not in ("", self.value.strip()):
            self.drafts[self.draft] = self.text

    def action_accept(self) -> None:
        if self.text and (reason := self.wrong(self.text)):
            self.query_one("#hint", Static).update(f"! {reason}")
            return
        self.keep()
        self.dismiss(self.text or None)

    def action_cancel(self) -> None:
        self.keep()
        self.dismiss(None)


class Confirm(ModalScreen[bool]):
    """A yes or no question, answered by key or click. Cancelling means no."""

    place = "confirm"
    BINDINGS = make_bindings("confirm")
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical {
        width: auto; max-width: 70; height: auto; padding: 1 3; background: $panel; border: round $accent;
    }
    Confirm Static { width: auto; height: auto; }
    Confirm #answers { margin-top: 1; color: $text-muted; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            question = Static(self.question, markup=False)
            question.styles.max_width = min(62, self.app.size.width - 8)  # wraps long questions
            yield question
            yield Static("y  yes      n  no", id="answers", markup=False)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer == "yes")


LIST_COMMANDS = {"dataset": "chessreg dataset list", "checkpoint": "chessreg checkpoint list"}


class PickerScreen(AppScreen):
    """The possible values of a field. Runs of the checkpoint `model` come first. If the kind `evaluates` on the field,
    the last part of a dataset comes before the others. `find_existing` finds the complete runs of `kind` that a value
    would repeat.

    Enter picks a row. Space marks several.
    """

    place = "picker"
    finds = False
    keeps_filter = False
    BINDINGS = make_bindings("picker")
    DEFAULT_CSS = """
    PickerScreen { align: center middle; }
    PickerScreen > #box { width: auto; height: auto; max-width: 100%; max-height: 100%; }
    PickerScreen PageTable, PickerScreen FilterBar { width: 60; max-width: 100%; }
    PickerScreen PageTable { height: 5; }
    """

    def __init__(
        self, field: str, noun: str, now: str, several: bool, on_choice: Callable[[str], None], model: str = "",
        evaluates: bool = False, kind: str = "", find_existing: Callable[..., dict[str, str]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.evaluates, self.kind, self.find_existing = model, evaluates, kind, find_existing
        self.crumb, self.noun, self.several, self.on_choice = field, noun, several, on_choice
        self.marked_values = [word for word in (piece.strip() for piece in now.split(",")) if word] if several else []
        self.now, self.filter_text = now, ""

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The table columns: name, description and time."""
        return (
            TableColumn("value", self.noun.removeprefix("run:"), widest=40, least=16, role="key"),
            TableColumn("about", "", widest=80, least=20),
            TableColumn(
                "existing", f"existing {self.kind}", text=lambda row: row.get("existing", ""), widest=24, least=12
            ),
            TableColumn("at", "made", least=16, role="detail"),
        )

    def body(self) -> ComposeResult:
        with Vertical(id="box"):
            yield FilterBar("words of a name or of its description", id="filter")
            empty = f"no match; {self.command()} lists all"
            yield PageTable(self.columns, id="candidates", title=self.crumb, empty=empty)

    def fit(self, rows: Sequence[Row]) -> None:
        """Size the dialog to its content, within the screen."""
        table, screen = self.query_one(PageTable), self.app.size
        needed_cells = (
            sum(compute_widths(self.columns, rows[:PAGE_ROWS], screen.width)) + GAP_CELLS * len(self.columns) + 6
        )
        table.styles.width = min(max(needed_cells, 60), screen.width - 4)
        table.styles.height = min(max(len(rows), 2) + 3, screen.height - 7)
        self.query_one(FilterBar).styles.width = table.styles.width

    async def fill(self) -> None:
        from tui.data.launch_form import list_candidates

        noun, words, table = self.noun, self.filter_text, self.query_one(PageTable)
        model, evaluates = self.model, self.evaluates
        rows = await self.ask(
            "reading the candidates", lambda session: list_candidates(session, noun, words, model, evaluates=evaluates)
        )
        if rows is None:
            return
        keep_cursor, self._shown_words = table.loaded, words
        table.empty = "no match; Esc clears the filter" if words else f"none yet; {self.command()} lists all"
        table.is_marked = lambda row: row["value"] in self.marked_values
        self.show_rows(rows, keep_cursor)
        if not keep_cursor and self.now:
            table.move(next((n for n, row in enumerate(rows) if row["value"] == self.now), 0))
        self.take_only_row()
        if (find_existing := self.find_existing) is not None:
            values = [row["value"] for row in rows]
            runs = await self.ask("looking for complete runs", lambda session: find_existing(session, values=values))
            if runs and words == self.filter_text:
                self.show_rows([{**row, "existing": runs.get(row["value"], "")} for row in rows], True)

    def show_rows(self, rows: Sequence[Row], keep: bool) -> None:
        """Show these candidates; with `keep`, under the same cursor."""
        self.fit(rows)
        self.query_one(PageTable).show(ListPages(rows), rows[:PAGE_ROWS], columns=self.columns, keep=keep)

    def command(self) -> str:
        kind = self.noun.partition(":")[2]
        return LIST_COMMANDS.get(self.noun, f"chessreg runs list --kind {kind}" if kind else "chessreg runs list")

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.filter_text = event.text
        self.query_one(PageTable).loaded = False
        self.load()

    _shown_words = ""  # filter of the table shown
    _taking = False  # pick the only matching row as soon as it is read

    def leave_filter(self) -> None:
        super().leave_filter()
        self._taking = bool(self.query_one(FilterBar).value)
        self.take_only_row()

    def take_only_row(self) -> None:
        """Take the only matching row after Enter, as soon as the rows that match the typed words are read."""
        table, words = self.query_one(PageTable), self.query_one(FilterBar).value
        if self._taking and words == self._shown_words:
            self._taking = False
            if not self.several and table.count == 1 and (row := table.row(0)) is not None:
                self.take(row)

    def action_mark(self) -> None:
        table = self.query_one(PageTable)
        if self.several and (row := table.current_row) is not None:
            value = row["value"]
            self.marked_values = (
                [v for v in self.marked_values if v != value]
                if value in self.marked_values
                else [*self.marked_values, value]
            )
            table.refresh()
            table.action_cursor_down()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.take(event.row)

    def on_page_table_inspected(self, event: PageTable.Inspected) -> None:
        from tui.screens.base import FieldsScreen

        shown_texts = {column.heading or "description": column.format_cell(event.row) for column in self.columns}
        self.app.push_screen(FieldsScreen(shown_texts))

    def take(self, row: Mapping[str, Any]) -> None:
        """Close the picker and pass on the value.

        Does not await the pop: a screen that awaits its own removal in a handler deadlocks.
        """
        self.app.pop_screen()
        self.on_choice(",".join(self.marked_values or [row["value"]]))

    def can_offer(self, action: Any) -> bool:
        return super().can_offer(action) and (self.several or action.method != "mark")

    def list_actions(self) -> list[Action]:
        return [replace(a, short="choose") if a.method == "open" else a for a in super().list_actions()]
