"""Launching: a list of the experiment kinds, and a form that is checked and planned as the user types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from chessreg.errors import ChessregError
from tui import show
from tui.actions import EVERYWHERE, FILTER, Action, list_place_actions, make_bindings
from tui.columns import TableColumn
from tui.data.pages import ListPages
from tui.screens.base import AppScreen, RunOnPage
from tui.screens.dialogs import Confirm
from tui.widgets.bars import FilterBar, PaneStrip
from tui.widgets.fields import (
    FieldInput,
    FieldList,
    FieldRow,
    FieldState,
    format_field_help,
    format_field_note,
    format_plan,
    format_scale_note,
    format_scales_to_try,
)
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.entities.vector import RelativeNorm
    from tui.data.launch_form import Field, Form, FormCheck, FormPlan


COLUMNS = (
    TableColumn("name", "kind", widest=24, least=19),
    TableColumn("summary", "description", widest=160, least=56),
    TableColumn("presets", "presets", widest=16, role="detail"),
    TableColumn("source", "from", widest=16, ends=True, role="detail"),
)


DRAFT = TableColumn("draft", "draft", widest=12, least=5)
DRAFTS_KEY = "launch.drafts"  # unfinished forms by the reference of their kind


class LaunchScreen(AppScreen):
    """The experiment kinds of chessreg, of installed packages and of files used in this registry."""

    place = "launch"
    finds = False
    keeps_filter = False
    crumb = "launch"
    follows = False
    BINDINGS = make_bindings("launch")

    filter_text = ""

    def body(self) -> ComposeResult:
        yield FilterBar("words of a kind's name or description", id="filter")
        yield PageTable(
            COLUMNS, id="kinds", title="Kinds", empty="no kind of experiment matches the filter; Esc clears it"
        )

    def on_screen_resume(self) -> None:
        if self.is_mounted:
            self.load()  # a form that was just closed has a draft

    async def fill(self) -> None:
        from chessreg.runs.inputs import IMPORTED_PREFIX
        from tui.data.launch_form import list_kind_rows

        rows = await self.ask("reading the kinds of experiments", list_kind_rows)
        if rows is None:
            return
        words = self.filter_text.lower().split()
        rows = [row for row in rows if all(word in f"{row['name']} {row['summary']}".lower() for word in words)]
        rows.sort(key=lambda row: (row["name"].startswith(IMPORTED_PREFIX), rank_kind(row["name"], words)))
        drafts = self.app.saved_state.get(DRAFTS_KEY, {})
        rows = [{**row, "draft": format_draft(drafts.get(row["reference"], {}))} for row in rows]
        table = self.query_one(PageTable)
        columns = (*COLUMNS[:2], DRAFT, *COLUMNS[2:]) if any(row["draft"] for row in rows) else COLUMNS
        table.show(ListPages(rows), rows, columns=columns, keep=table.loaded and self._shown_text == self.filter_text)
        self._shown_text = self.filter_text
        self.open_named_kind()

    _shown_text = ""
    _opening = False  # open the kind that the filter names as soon as its rows are read

    def leave_filter(self) -> None:
        super().leave_filter()
        self._opening = bool(self.query_one(FilterBar).value)
        self.open_named_kind()

    def open_named_kind(self) -> None:
        """Open the form of a kind whose name was typed, or of the only one that matches, and ask for its inputs."""
        table, words = self.query_one(PageTable), self.query_one(FilterBar).value
        if self._opening and words == self._shown_text:
            self._opening = False
            if (row := table.row(0)) is not None and (table.count == 1 or row["name"] == words.strip().lower()):
                self.open(row["reference"], asks=True)

    def command(self) -> str:
        return "chessreg launch --help"

    def action_file(self) -> None:
        from tui.screens.dialogs import Prompt

        self.app.push_screen(
            Prompt("A custom kind: the file that defines it", hint="./my_kind.py, or ./my_kind.py:CLASS"),
            self.open_file,
        )

    def open_file(self, reference: str | None) -> None:
        if reference:
            self.open(reference, is_typed=True)

    @work(group="open")
    async def open(
        self, reference: str, is_typed: bool = False, asks: bool = False, on_page: RunOnPage | None = None
    ) -> None:
        """Open the form of the kind with this name or file.

        With `is_typed` the reference is trusted, because the user entered it. With `asks` the form opens the picker of
        the first required setting that does not accept the run `on_page`.
        """
        from tui.data.launch_form import Form, find_form_kind

        kind = await self.ask("loading the kind", lambda session: find_form_kind(session, reference, is_typed))
        if kind is not None:
            draft = self.app.saved_state.get(DRAFTS_KEY, {}).get(reference, {})
            await self.app.push_screen(FormScreen(Form.from_draft(kind, reference, draft), asks, on_page=on_page))

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.filter_text = event.text
        self.load()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.open(event.row["reference"])


def open_run_form(screen: AppScreen, run_id: UUID, label: str) -> None:
    """Open the form of a run's kind with the run's settings, to launch it with other ones."""
    from tui.data.launch_form import read_run_form

    async def open_form() -> None:
        form = await screen.ask("reading the settings", lambda session: read_run_form(session, run_id))
        if form is not None:
            await screen.app.push_screen(FormScreen(form, of_run=label))

    screen.run_exclusive(open_form, "open")


def rank_kind(name: str, wanted_kinds: Sequence[str]) -> int:
    """Rank a kind for a search: exact name, prefix, part of the name, then a match in the summary only."""
    if not wanted_kinds:
        return 0
    return (
        0 if name == wanted_kinds[0] else 1 if name.startswith(wanted_kinds[0]) else 2 if wanted_kinds[0] in name else 3
    )


def format_draft(draft: Mapping[str, Any]) -> str:
    """Return how many settings of an unfinished form are filled in."""
    number = len(draft.get("typed", ()))
    return show.format_count(number, "setting") if number else draft.get("preset", "")


WIDE_CELLS = 180  # minimum to show the plan next to the form
PLAN_DELAY_S = 0.4
PASTED_CHARACTERS = 300  # long text is pasted: check it after the delay
SETTING_PATTERN = re.compile(r"--([a-z][\w.-]*)")  # settings named in errors
MAX_UNCONFIRMED_RUNS = 4
NAME_KEY = "launch.name"
SCALE_PATH = "intervention.scale"
MOUNT_BATCH_ROWS = 12
PART_TITLES = {
    "name": "Name of the run",  # of the launch, but first in the form
    "spec": "Settings that determine the result",
    "options": "Execution options: not part of the run's identity",
    "launch": "Launch",
}


def get_titled_part(field: Field) -> str:
    """Return the key in PART_TITLES of the part of the form in which a field is shown."""
    return "name" if field.key == NAME_KEY else field.part


class FormScreen(AppScreen):
    """The settings of a kind as rows.

    Input goes into `form`. The plan is computed in a worker and shown next to the rows.
    """

    place = "form"
    finds = False
    keeps_filter = False
    AUTO_FOCUS = "FieldRow"
    follows = False
    BINDINGS = make_bindings("form")
    DEFAULT_CSS = """
    FormScreen > #parts { height: 1fr; }
    FormScreen > #none { display: none; padding: 1 2; color: $text-muted; }
    FormScreen.-none > #none { display: block; }
    FormScreen.-none #fields { display: none; }
    FormScreen #fields { height: 1fr; background: $surface; border: round $edge; }
    FormScreen #fields:focus-within { border: round $accent; }
    FormScreen #fields > .title { height: 1; padding: 0 1; color: $text-accent; background: $panel; text-style: bold; }
    FormScreen #side { height: auto; max-height: 11; background: $surface; padding: 0 1; border: round $edge; }
    FormScreen #fields, FormScreen #side { border-title-color: $foreground; border-title-style: bold; }
    FormScreen #fields:focus-within { border-title-color: $text-accent; }
    FormScreen #about { height: auto; min-height: 2; max-height: 6; }
    FormScreen #plan { height: auto; }
    FormScreen #side VerticalScroll { height: auto; max-height: 7; scrollbar-size-vertical: 1; }
    FormScreen.-wide > #parts { layout: horizontal; }
    FormScreen.-wide #fields { width: 1fr; height: 100%; }
    FormScreen.-wide #side { width: 60; height: 100%; max-height: 100%; padding: 0 1; }
    FormScreen.-wide #side VerticalScroll { height: 1fr; max-height: 100%; }
    FormScreen.-wide #about { min-height: 4; max-height: 50%; margin-bottom: 1; }
    """

    def __init__(self, form: Form, asks: bool = False, of_run: str = "", on_page: RunOnPage | None = None) -> None:
        """With `of_run` the form has the settings of this run, and is not kept as a draft.

        `on_page` is taken for the first required setting that accepts it.
        """
        super().__init__()
        self.on_page = on_page
        self.form, self.crumb, self.asks, self.of_run = form, form.kind.name, asks, of_run
        self.form_check: FormCheck = form.check()
        self.outlook: FormPlan | None = None
        self.filter_words: list[str] = []
        self._timer: Timer | None = None
        self._is_planning = self._again = False
        self.norms: Sequence[RelativeNorm] = ()  # of the chosen vector
        self._measured_vector = ""  # the vector of `norms`, or whose norms are being measured

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield FilterBar("words of a setting's name or description", id="filter")
        yield Static("no setting matches the filter; Esc clears it", id="none", markup=False)
        with Container(id="parts"):
            yield FieldList(id="fields")
            with Container(id="side"):
                yield Static("", id="about", markup=False)
                with VerticalScroll(can_focus=False):
                    yield Static("", id="plan", markup=False)

    def on_mount(self) -> None:
        strip = self.query_one(PaneStrip)
        strip.names = tuple(f"preset {name}" if name else "no preset" for name in self.form.presets)
        strip.place = self.form.presets.index(self.form.preset)
        self.query_one("#fields").border_title = "Settings"
        self.query_one("#side").border_title = "Setting and plan"
        strip.display = len(strip.names) > 1
        self.run_exclusive(self.build, "build")
        if self.form.typed_texts or self.form.preset:
            (clear,) = (action for action in self.list_keyed_actions() if action.method == "clear_form")
            origin = f"has the settings of {self.of_run}" if self.of_run else "is as you left it"
            self.notify(f"the form {origin}; {clear.shown_key} clears it", title=self.form.kind.name)

    def save_draft(self) -> None:
        """Remember the filled-in settings for the next time the form is opened."""
        if self.of_run:
            return
        drafts = dict(self.app.saved_state.get(DRAFTS_KEY, {}))
        drafts.pop(self.form.reference, None)
        if not self.launched and (self.form.typed_texts or self.form.preset):
            drafts[self.form.reference] = {"typed": dict(self.form.typed_texts), "preset": self.form.preset}
        self.app.saved_state.set(DRAFTS_KEY, drafts or None)

    launched = False  # a launched form is no longer a draft
    built_variant = ""  # variant of the fields shown

    async def build(self) -> None:
        """Mount the rows of the fields in batches, so that keys stay responsive.

        Existing rows are kept, so that a change of variant does not move the focus.
        """
        first, self.built_variant = not self.rows, self.form.variant
        fields, name_cells = self.query_one(FieldList), min(24, max(map(len, self.form.every_key)))
        rows_by_key = {row.field.key: row for row in self.rows}
        await fields.remove_children([row for row in self.query(FieldRow) if row.field.key not in rows_by_key])
        for part in PART_TITLES:
            if first:
                await fields.mount(Static(PART_TITLES[part], classes=f"title -{part}", markup=False))
            place: Widget = self.query_one(f"#fields > .-{part}")
            for field, alike in groupby(
                self.list_part_fields(part), lambda field: field if field.key in rows_by_key else None
            ):
                if field is not None:
                    row = rows_by_key[field.key]
                    row.field = field
                    fields.move_child(row, after=place)
                    place = row
                    continue
                rows = [FieldRow(field, name_cells) for field in alike]
                for begin in range(0, len(rows), MOUNT_BATCH_ROWS):
                    await fields.mount(*rows[begin : begin + MOUNT_BATCH_ROWS], after=place)
                    place = rows[min(begin + MOUNT_BATCH_ROWS, len(rows)) - 1]
        self.show_fields()
        self.filter_rows()
        if first:
            self.focus_row(self.rows, 0)
            self.go_to_needed(asks=self.asks)

    def go_to_needed(self, asks: bool) -> None:
        """Move to the first required setting and, if `asks`, open its picker or take the run of the page for it."""
        row = next((row for row in self.rows if self.form.source(row.field.key) == "required"), None)
        if row is None and asks:
            row = next((row for row in self.find_rows_of_general_errors() if row.field.is_reference), None)
        if row is not None:
            self.focus_row(self.rows, self.rows.index(row))
            if asks and row.field.is_reference:
                if (name := self.take_run_on_page(row.field)) is not None:
                    self.set_picked(row.field, name)
                else:
                    self.pick(row.field)

    def take_run_on_page(self, field: Field) -> str | None:
        """Return the run of the page if the setting accepts it. It is taken once."""
        from tui.data.launch_form import is_run_accepted

        if self.on_page is None or not is_run_accepted(self.on_page.kind, field.noun.removeprefix("run:")):
            return None
        name, self.on_page = self.on_page.name, None
        return name

    def find_rows_of_general_errors(self) -> list[FieldRow]:
        """Return the rows that errors of several settings together name, in the order of the text."""
        names = [name.replace("-", "_") for name in SETTING_PATTERN.findall(" ".join(self.form_check.general))]
        return [row for name in names for row in self.rows if row.field.path == name]

    def list_part_fields(self, part: str) -> list[Field]:
        return [field for field in self.form.fields if get_titled_part(field) == part]

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE_CELLS, "-wide")
        self.show_description()

    @property
    def rows(self) -> list[FieldRow]:
        """Rows of the form's fields, without rows of another variant that are being removed."""
        by_key = self.form.fields_by_key
        return [row for row in self.query(FieldRow) if row.field.key in by_key]

    @property
    def row(self) -> FieldRow | None:
        """The focused row, also while its text is edited."""
        node: Any = self.focused
        while node is not None and not isinstance(node, FieldRow):
            node = node.parent
        return node if node is not None and node.field.key in self.form.fields_by_key else None

    async def fill(self) -> None:
        """Plan again on `r`, because the inputs named in the form may exist now."""
        self.plan()

    # -- input ----------------------------------------------------------------------------------------------------

    def give(self, key: str, text: str | None) -> None:
        self.form.set_text(key, text)
        self.schedule_check()

    def schedule_check(self) -> None:
        """Check the form now and plan after a delay.

        The draft is saved here, because the list reads it when the form is closed.
        """
        self.unchecked = False
        self.save_draft()
        self.form_check, self.outlook = self.form.check(), None
        if self.form.variant != self.built_variant:
            self.run_exclusive(self.build, "build")
        self.show_fields()
        self.show_description()
        self.call_after_delay(self.plan)

    def find_error(self, key: str) -> str:
        errors = self.outlook.errors if self.outlook else {}
        return self.form_check.errors.get(key) or errors.get(key, "")

    def show_fields(self) -> None:
        """Show the value, source and error of every field."""
        fields, rows = self.query_one(FieldList), self.rows
        longest = max((cell_len(self.form.text(row.field.key)) for row in rows), default=0)
        if longest != fields.longest:
            fields.longest = longest
            for row in rows:
                row.refresh()
        for row in rows:
            key, field = row.field.key, row.field
            error, source = self.find_error(key), self.form.source(key)
            if source == "required" and error == "it is required":
                error = ""  # the row already shows the word
            row.field_state = FieldState(self.form.text(key), source, error, format_field_note(field))

    def on_field_row_typed(self, event: FieldRow.Typed) -> None:
        if len(event.text or "") < PASTED_CHARACTERS:
            self.give(event.row.field.key, event.text)
            return
        self.form.set_text(event.row.field.key, event.text)
        self.unchecked = True
        self.call_after_delay(self.check)

    unchecked = False  # whether pasted text is not checked yet

    def check(self) -> None:
        """Check the form if it has unchecked text."""
        if self.unchecked:
            self.schedule_check()

    def on_descendant_blur(self) -> None:
        self.check()

    def on_screen_suspend(self) -> None:
        self.check()

    def on_screen_resume(self) -> None:
        if self.outlook is not None:
            self.plan()  # the run may have been launched or completed meanwhile

    def call_after_delay(self, function: Callable[[], Any]) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(PLAN_DELAY_S, function)

    def on_field_row_entered(self, event: FieldRow.Entered) -> None:
        self.show_description()
        self.relabel()

    def on_field_row_wanted(self, event: FieldRow.Wanted) -> None:
        self.action_edit()

    def on_field_input_left(self, event: FieldInput.Left) -> None:
        self.action_move(str(event.way))

    # -- planning -------------------------------------------------------------------------------------------------

    @work(group="plan")
    async def plan(self) -> None:
        """Compute the effect of a launch.

        Only one plan runs at a time. A change in the meantime starts another.
        """
        from tui.data.launch_form import plan_form

        if self._is_planning:
            self._again = True
            return
        self._is_planning = True
        try:
            while True:
                self._again = False
                form_check = self.form_check
                if not form_check.is_valid:
                    break
                look = partial(plan_form, form=self.form.copy_typed(), form_check=form_check)
                new_plan = await self.ask("planning", look)
                if form_check is self.form_check:
                    self.outlook = new_plan
                if not self._again:
                    break
        finally:
            self._is_planning = False
        self.show_fields()
        self.show_description()
        self.relabel()
        self.measure_vector()

    def measure_vector(self) -> None:
        """Measure the chosen vector, as a guide to its scale, if it is another one than before."""
        spec = self.form_check.spec if self.form_check.is_valid else None
        vector = getattr(getattr(spec, "intervention", None), "vector", None) or ""
        if vector != self._measured_vector:
            self.norms, self._measured_vector = (), vector
            if vector:
                self.run_exclusive(partial(self.read_norms, vector), "norms")
            self.show_description()

    async def read_norms(self, vector: str) -> None:
        """Show the norms of a vector next to those of the model. Shows nothing if they cannot be measured."""
        with suppress(ChessregError):
            self.norms = await self.app.model.measure_scales(vector)
        self.require_shown()
        self.show_description()

    @property
    def edited_norms(self) -> Sequence[RelativeNorm]:
        """The norms of the layers that the form edits."""
        settings = getattr(self.form_check.spec, "intervention", None)
        layers = settings.layers if settings is not None else ()
        return [norm for norm in self.norms if not layers or norm.layer in layers]

    def show_description(self) -> None:
        """Show the description of the field and the plan."""
        if not self.query("#about"):
            return
        row, norms = self.row, self.edited_norms
        about = format_field_help(row.field, self.find_error(row.field.key)) if row else Text()
        if row is not None and row.field.path == SCALE_PATH and norms:
            about.append(f"\n{format_scales_to_try(norms)}; also try negative ones", style="bold")
        self.query_one("#about", Static).update(about)
        is_wide = self.has_class("-wide")
        edit = getattr(self.form_check.spec, "intervention", None)
        note = format_scale_note(edit.scale, norms) if norms and edit is not None else ""
        plan = format_plan(self.form, self.form_check, self.outlook, is_wide, self.run_key, note)
        if self.launching:
            plan = Text(f"{', then '.join(('launching', *self.after_launch))}…\n", style="bold").append_text(plan)
        self.query_one("#plan", Static).update(plan)

    # -- actions --------------------------------------------------------------------------------------------------

    def action_move(self, way: str) -> None:
        rows = [row for row in self.rows if row.display]
        if not rows or not int(way):
            return
        place = rows.index(self.row) if self.row in rows else -1
        self.focus_row(rows, min(max(0, place + int(way)), len(rows) - 1))

    def action_edge(self, way: str) -> None:
        rows = [row for row in self.rows if row.display]
        if rows:
            self.focus_row(rows, 0 if way == "first" else len(rows) - 1)

    def focus_row(self, rows: list[FieldRow], place: int) -> None:
        """Focus the row at `place`. For the first row, also scroll its title into view."""
        self.set_focus(rows[place], scroll_visible=False)
        rows[place].scroll_visible(animate=False)
        if not place:
            self.query_one("#fields").scroll_home(animate=False)

    def action_edit(self) -> None:
        """Open the picker, select the next choice, or edit the text, depending on the field."""
        if (row := self.row) is None:
            return
        if row.field.is_reference:
            self.pick(row.field)
        elif row.field.choices or row.field.key == "launch.on":
            self.action_turn("1")
        else:
            row.edit(self.form.typed_texts.get(row.field.key))

    def action_type(self) -> None:
        if (row := self.row) is not None and not row.field.choices:
            row.edit(self.form.typed_texts.get(row.field.key))

    def action_turn(self, way: str) -> None:
        """Select the next choice of a field with choices."""
        if (row := self.row) is None:
            return
        if row.field.key == "launch.on":
            self.turn_executor(int(way))
        elif row.field.choices:
            self.turn(row.field, row.field.choices, int(way))

    def turn(self, field: Field, choices: tuple[str, ...], way: int) -> None:
        """Set a field to the next choice (`way` 1) or the previous one (-1). The default choice clears the field."""
        now = self.form.text(field.key)
        place = choices.index(now) + way if now in choices else 0
        choice = choices[place % len(choices)]
        typed_text = None if choice == field.shown_default and field.key not in self.form.preset_values else choice
        self.give(field.key, typed_text)

    @work(group="places")
    async def turn_executor(self, way: int) -> None:
        """Set the executor to the next or previous available one."""
        from tui.data.launch_form import list_executors

        executors = await self.ask("looking for executors", lambda session: list_executors())
        if executors:
            self.turn(self.form.fields_by_key["launch.on"], executors, way)

    def action_default(self) -> None:
        if (row := self.row) is not None:
            self.give(row.field.key, None)

    def pick(self, field: Field) -> None:
        """Open the list from which the values of a field are chosen."""
        from tui.data.launch_form import find_existing_runs, is_evaluated_on
        from tui.screens.dialogs import PickerScreen

        is_list = field.form == "references"
        now = self.form.typed_texts.get(field.key, "")
        model = self.form.text("checkpoint") if "checkpoint" in self.form.fields_by_key else ""
        evaluates = is_evaluated_on(self.form.kind.name, field.path)
        take_value = partial(self.set_picked, field)
        find_existing = None if is_list else partial(find_existing_runs, form=self.form.copy_typed(), key=field.key)
        self.app.push_screen(
            PickerScreen(
                field.path, field.noun, now, is_list, take_value, model, evaluates, self.form.kind.name, find_existing
            )
        )

    def set_picked(self, field: Field, text: str) -> None:
        """Set the picked value and open the picker of the next required setting."""
        self.give(field.key, text or None)
        self.set_focus(next(row for row in self.rows if row.field is field))
        if text:
            self.go_to_needed(asks=True)

    def action_clear_form(self) -> None:
        """Reset every setting to its default."""
        if not self.form.typed_texts:
            self.clear_form(True)
        else:
            question = f"Clear {show.format_count(len(self.form.typed_texts), 'setting')} of this form?"
            self.app.push_screen(Confirm(question), self.clear_form)

    def clear_form(self, yes: bool | None) -> None:
        if yes:
            self.form.typed_texts.clear()
            self.choose_preset(0)

    def action_preset(self, way: str) -> None:
        presets = self.form.presets
        self.choose_preset((presets.index(self.form.preset) + int(way)) % len(presets))

    def choose_preset(self, place: int) -> None:
        self.form.preset = self.form.presets[place]
        self.query_one(PaneStrip).place = place
        self.schedule_check()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose_preset(event.place)

    @property
    def existing_run(self) -> Mapping[str, Any] | None:
        """The plan, if its only run is already complete or queued."""
        plan = self.outlook.plan if self.outlook is not None else None
        return plan if plan is not None and plan["runs"] == 1 and plan["status"] != "queued" else None

    def action_run(self) -> None:
        """Open the existing run, or its job if it is not complete."""
        if (plan := self.existing_run) is None:
            return
        if plan["status"] == "complete":
            self.app.open("run", plan["run_id"], plan["existing"])
        elif plan["job_id"] is not None:
            self.app.open("job", plan["job_id"], plan["existing"])

    @property
    def run_key(self) -> str:
        """The key that opens the existing run."""
        (run,) = self.app.apply_keys_to([a for a in list_place_actions("form") if a.method == "run"])
        return run.shown_key

    def action_wrong(self) -> None:
        """Move to the next required or invalid field, or to a field named in a general error."""
        rows = [row for row in self.rows if self.find_error(row.field.key)]
        if not rows:
            self.notify("; ".join(self.form_check.general) or "no field is wrong")
            rows = self.find_rows_of_general_errors()[:1]
        if not rows:
            return
        every = self.rows
        row_index = every.index(self.row) if self.row in every else -1
        row = next((row for row in rows if every.index(row) > row_index), rows[0])
        if not row.display:
            self.query_one(FilterBar).action_clear_words()
        self.set_focus(row)

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.filter_words = event.text.lower().split()
        self.filter_rows()

    def filter_rows(self) -> None:
        """Show only the fields whose name or description contains all typed words."""
        for row in self.rows:
            text = f"{row.field.path} {row.field.text}".lower()
            row.display = all(word in text for word in self.filter_words)
        for title in self.query("#fields > .title"):
            part = next(part for part, words in PART_TITLES.items() if title.has_class(f"-{part}"))
            title.display = any(row.display for row in self.rows if get_titled_part(row.field) == part)
        self.set_class(not any(row.display for row in self.rows), "-none")

    def leave_filter(self) -> None:
        """Go to a row that the filter leaves. The whole name of a setting clears the filter and edits the setting."""
        rows = [row for row in self.rows if row.display]
        row = self.find_named_row(rows) if rows else None
        is_named = row is not None and self.is_named(row)
        if is_named:  # the words led to a setting: they hide no others
            self.query_one(FilterBar).set_text("")
            self.query_one(FilterBar).display = False
            self.filter_words = []
            self.filter_rows()
        self.set_focus(row)
        if row is not None and is_named and not (row.field.choices or row.field.key == "launch.on"):
            self.action_edit()

    def is_named(self, row: FieldRow) -> bool:
        """Return whether the words of the filter are exactly the name of the row's setting."""
        name = "_".join(self.filter_words).replace("-", "_")
        return name in (row.field.path, row.field.path.rpartition(".")[2])

    def find_named_row(self, rows: Sequence[FieldRow]) -> FieldRow:
        """Return the row that the words of the filter name.

        In order: a row with exactly this name, the current row, a row whose name has the words, a row whose description
        has them.
        """
        exact = [row for row in rows if self.is_named(row)]
        named_rows = [row for row in rows if all(word in row.field.path for word in self.filter_words)]
        if exact:
            return exact[0]
        return self.row if self.row in (named_rows or rows) and self.row is not None else (named_rows or rows)[0]

    def command(self) -> str:
        return self.form.command()

    def action_launch(self) -> None:
        """Queue the run and show its job. Ask first for a sweep of more than MAX_UNCONFIRMED_RUNS runs."""
        self.check()
        if not self.form_check.is_valid:
            self.action_wrong()
            if self.form_check.errors:
                self.notify("the form is not complete", severity="warning")
            elif self.row is not None and self.row.field.is_reference:
                self.pick(self.row.field)
        elif (runs := len(self.form.make_run_forms())) > MAX_UNCONFIRMED_RUNS:
            self.app.push_screen(Confirm(f"Launch {runs} runs?"), self.launch_if_confirmed)
        else:
            self.launch_if_confirmed(True)

    launching = False
    after_launch: Sequence[str] = ()  # methods of the job's page for which the user pressed a key meanwhile

    def launch_if_confirmed(self, yes: bool | None) -> None:
        """Launch if the user agreed. A second launch waits for the first one."""
        if yes and not self.launching:
            self.launching, self.after_launch = True, ()
            self.show_description()
            self.relabel()
            self.app.run_worker(cast(Any, self.launch), group="launch")  # a launch continues if the form is closed

    async def launch(self) -> None:
        """Queue the form and open the page of its job, or explain why nothing was queued."""
        try:
            await self.launch_now()
        finally:
            self.launching = False
            if self.is_attached:
                self.show_description()
                self.relabel()

    async def launch_now(self) -> None:
        """Queue the form as it was when checked, and open the page of its job."""
        from tui.data.job_rows import find_current_job
        from tui.data.launch_form import plan_form, queue_form

        form, form_check = self.form.copy_typed(), self.form_check
        result = await self.change_registry("launching", lambda session: queue_form(session, form, form_check))
        if result is None:
            return
        group, refusal = result
        if group is None:
            key_hint = ""
            if self.is_attached:
                self.outlook = await self.ask("planning", partial(plan_form, form=form, form_check=form_check))
                key_hint = f"; {self.run_key} opens it" if self.existing_run is not None else ""
            self.notify(f"nothing was queued: {refusal}{key_hint}", severity="warning")
            return
        self.launched = True
        self.save_draft()
        if self.is_attached:
            self.step_back()  # the form is shown without a filter when the user returns to it
        job_id = await self.change_registry("reading the job", lambda session: find_current_job(session, group))
        if job_id is None:
            return
        from tui.screens.job import JobScreen
        from tui.screens.jobs import format_job_reference

        page = JobScreen(job_id, form.kind.name)
        if self.is_current or self.after_launch:
            await self.app.switch_mode("jobs")
            self.app.return_to(1)  # a job that was open there is left
            await self.app.push_screen(page)
            for method in self.after_launch:
                getattr(page, f"action_{method}")()
        else:
            self.notify(f"launched: {format_job_reference(page.placeholder_row)}")

    def action_after_launch(self, method: str) -> None:
        """Cancel or retry the job as soon as it is queued."""
        if self.launching:
            self.after_launch = (*self.after_launch, method)
            self.show_description()
            self.relabel()

    # -- keys -----------------------------------------------------------------------------------------------------

    def list_actions(self) -> list[Action]:
        if isinstance(self.focused, FieldInput):
            return [
                *list_place_actions("field"),
                *(a for a in list_place_actions("form") if a.method == "launch" and not self.app.read_only),
            ]
        actions = super().list_actions()
        if isinstance(self.focused, FilterBar):
            return [a for a in actions if a.place in (FILTER, EVERYWHERE)]
        return actions

    def can_offer(self, action: Action) -> bool:
        if action.place == "form" and action.method == "preset":
            return len(self.form.presets) > 1
        if action.place == "form" and action.method == "clear_form":
            return bool(self.form.typed_texts or self.form.preset)
        if action.place == "form" and action.method == "run":
            return self.existing_run is not None
        if action.place == "form" and action.method == "after_launch":
            return self.launching and ("cancel" in self.after_launch) is (action.parameter == "retry")
        return super().can_offer(action)

    def find_node(self, action: Action) -> Any:
        if action.place == "field":
            return self.query_one(FieldInput)
        return super().find_node(action)
