"""The form of one kind: every setting, checked while one types; what launching would do; then launching it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.timer import Timer
from textual.widgets import Static

from tui.actions import EVERYWHERE, FILTER, Action, bindings, of
from tui.data.form import Checked, Field, Form
from tui.screens.planned import about, plan_text
from tui.screens.room import Room
from tui.widgets.bars import FilterBar, PaneStrip
from tui.widgets.fieldrow import FieldInput, FieldList, FieldRow, Seen

if TYPE_CHECKING:
    from tui.data.launching import Outlook

PAUSE = 0.4  # seconds without a change before it is planned
AT_ONCE = 12  # rows that are mounted in one step of the event loop
TITLES = {
    "spec": "Settings: they decide the result",
    "options": "Execution options: not part of the run's identity",
    "launch": "Launch",
}


class FormScreen(Room):
    """Settings as rows. What is typed goes into `form`; what it comes to is planned aside, and shown beside."""

    place = "form"
    AUTO_FOCUS = "FieldRow"
    follows = False
    BINDINGS = bindings("form")
    DEFAULT_CSS = """
    FormScreen > #parts { height: 1fr; }
    FormScreen #fields { height: 1fr; }
    FormScreen #fields > .title { height: 1; padding: 0 1; color: $text-accent; background: $panel; text-style: bold; }
    FormScreen #side { height: auto; max-height: 9; background: $surface; padding: 0 1; }
    FormScreen #about { height: 2; }
    FormScreen #plan { height: auto; }
    FormScreen #side VerticalScroll { height: auto; max-height: 7; scrollbar-size-vertical: 1; }
    FormScreen.-wide > #parts { layout: horizontal; }
    FormScreen.-wide #fields { width: 1fr; height: 100%; }
    FormScreen.-wide #side { width: 64; height: 100%; max-height: 100%; padding: 0 2; }
    FormScreen.-wide #about { height: auto; min-height: 4; margin-bottom: 1; }
    FormScreen.-wide #side VerticalScroll { height: 1fr; max-height: 100%; }
    """

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form, self.crumb = form, form.kind.name
        self.checked: Checked = form.check()
        self.outlook: Outlook | None = None
        self._timer: Timer | None = None
        self._planning = self._again = False

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield FilterBar("words of a setting's name or of what it means", id="filter")
        with Container(id="parts"):
            yield FieldList(id="fields")
            with Container(id="side"):
                yield Static("", id="about", markup=False)
                with VerticalScroll(can_focus=False):
                    yield Static("", id="plan", markup=False)

    def on_mount(self) -> None:
        strip = self.query_one(PaneStrip)
        strip.names = tuple(f"preset {name}" if name else "no preset" for name in self.form.presets)
        strip.display = len(strip.names) > 1
        self.run_worker(self.build(), group="build")

    async def build(self) -> None:
        """Mount the rows, a few at a time: fifty at once would keep a key waiting."""
        fields, wide = self.query_one(FieldList), min(24, max(len(field.path) for field in self.form.fields))
        for part in TITLES:
            rows = [FieldRow(field, wide) for field in self.form.fields if field.part == part]
            await fields.mount(Static(TITLES[part], classes="title", markup=False))
            for begin in range(0, len(rows), AT_ONCE):
                await fields.mount(*rows[begin : begin + AT_ONCE])
        self.show_fields()
        needed = (n for n, row in enumerate(self.rows) if self.form.source(row.field.key) == "needed")
        self.go(self.rows, next(needed, 0))

    def on_resize(self) -> None:
        self.set_class(self.size.width >= 130, "-wide")
        self.tell()

    @property
    def rows(self) -> list[FieldRow]:
        return list(self.query(FieldRow))

    @property
    def row(self) -> FieldRow | None:
        """The row that has the focus, itself or what is typed in it."""
        node: Any = self.focused
        while node is not None and not isinstance(node, FieldRow):
            node = node.parent
        return node

    async def fill(self) -> None:
        """On `r`: what the form names may be there now."""
        self.plan()

    # -- what is typed --------------------------------------------------------------------------------------------

    def give(self, key: str, text: str | None) -> None:
        self.form.give(key, text)
        self.changed()

    def changed(self) -> None:
        """Check at once, plan in a while."""
        self.checked, self.outlook = self.form.check(), None
        self.show_fields()
        self.tell()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(PAUSE, self.plan)

    def error_of(self, key: str) -> str:
        known = self.outlook.errors if self.outlook else {}
        return self.checked.errors.get(key) or known.get(key, "")

    def show_fields(self) -> None:
        for row in self.rows:
            key, field = row.field.key, row.field
            error, source = self.error_of(key), self.form.source(key)
            if source == "needed" and error == "it is needed":
                error = ""  # the word stands there already
            row.seen = Seen(self.form.text(key), source, error, note_of(field))

    def on_field_row_typed(self, event: FieldRow.Typed) -> None:
        self.give(event.row.field.key, event.text)

    def on_field_row_entered(self, event: FieldRow.Entered) -> None:
        self.tell()
        self.relabel()

    def on_field_row_wanted(self, event: FieldRow.Wanted) -> None:
        self.action_edit()

    def on_field_input_left(self, event: FieldInput.Left) -> None:
        self.action_move(str(event.way))

    # -- planning -------------------------------------------------------------------------------------------------

    @work(group="plan")
    async def plan(self) -> None:
        """What launching would do. One look at a time: a change meanwhile makes another."""
        from tui.data.launching import outlook

        if self._planning:
            self._again = True
            return
        self._planning = True
        try:
            while True:
                self._again = False
                checked = self.checked
                if not checked.right:
                    break
                look = partial(outlook, form=self.form.snapshot(), checked=checked)
                found = await self.ask("planning", look)
                if checked is self.checked:
                    self.outlook = found
                if not self._again:
                    break
        finally:
            self._planning = False
        self.show_fields()
        self.tell()

    def tell(self) -> None:
        """Write what the field means, and what the form comes to."""
        if not self.query("#about"):
            return
        row = self.row
        self.query_one("#about", Static).update(about(row.field, self.error_of(row.field.key)) if row else "")
        wide = self.has_class("-wide")
        self.query_one("#plan", Static).update(plan_text(self.form, self.checked, self.outlook, wide))

    # -- actions --------------------------------------------------------------------------------------------------

    def action_move(self, way: str) -> None:
        rows = [row for row in self.rows if row.display]
        if not rows or not int(way):
            return
        place = rows.index(self.row) if self.row in rows else -1
        self.go(rows, min(max(0, place + int(way)), len(rows) - 1))

    def action_edge(self, way: str) -> None:
        rows = [row for row in self.rows if row.display]
        if rows:
            self.go(rows, 0 if way == "first" else len(rows) - 1)

    def go(self, rows: list[FieldRow], place: int) -> None:
        """To this row; the title above the first comes into sight with it."""
        self.set_focus(rows[place], scroll_visible=False)
        rows[place].scroll_visible(animate=False)
        if not place:
            self.query_one("#fields").scroll_home(animate=False)

    def action_edit(self) -> None:
        """Pick, turn to the next choice, or type: what suits the field."""
        if (row := self.row) is None:
            return
        if row.field.picked:
            self.pick(row.field)
        elif row.field.choices or row.field.key == "asked.on":
            self.action_turn("1")
        else:
            row.edit(self.form.given.get(row.field.key))

    def action_type(self) -> None:
        if (row := self.row) is not None and not row.field.choices:
            row.edit(self.form.given.get(row.field.key))

    def action_turn(self, way: str) -> None:
        """The next choice of a field that has some."""
        if (row := self.row) is None:
            return
        if row.field.key == "asked.on":
            self.turn_executor(int(way))
        elif row.field.choices:
            self.turn(row.field, row.field.choices, int(way))

    def turn(self, field: Field, choices: tuple[str, ...], way: int) -> None:
        now = self.form.text(field.key)
        place = choices.index(now) + way if now in choices else 0
        chosen = choices[place % len(choices)]
        given = None if chosen == field.shown_default and field.key not in self.form.filled else chosen
        self.give(field.key, given)

    @work(group="places")
    async def turn_executor(self, way: int) -> None:
        from tui.data.launching import places

        found = await self.ask("looking for executors", lambda session: places())
        if found:
            self.turn(self.form.by_key["asked.on"], found, way)

    def action_default(self) -> None:
        if (row := self.row) is not None:
            self.give(row.field.key, None)

    def pick(self, field: Field) -> None:
        from tui.screens.dialogs import PickerScreen

        several = field.form == "references"
        now = self.form.given.get(field.key, "")
        self.app.push_screen(PickerScreen(field.path, field.noun, now, several, partial(self.picked, field)))

    def picked(self, field: Field, text: str) -> None:
        self.give(field.key, text or None)
        self.set_focus(next(row for row in self.rows if row.field is field))

    def action_preset(self, way: str) -> None:
        presets = self.form.presets
        self.choose_preset((presets.index(self.form.preset) + int(way)) % len(presets))

    def choose_preset(self, place: int) -> None:
        self.form.preset = self.form.presets[place]
        self.query_one(PaneStrip).place = place
        self.changed()

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose_preset(event.place)

    def action_wrong(self) -> None:
        """The next field that is needed or wrong."""
        rows = [row for row in self.rows if self.error_of(row.field.key)]
        if not rows:
            self.notify("no field is wrong")
            return
        every = self.rows
        here = every.index(self.row) if self.row in every else -1
        row = next((row for row in rows if every.index(row) > here), rows[0])
        row.display = True
        self.set_focus(row)

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        words = event.words.lower().split()
        found = {row: f"{row.field.path} {row.field.text}".lower() for row in self.rows}
        fitting = [row for row, told in found.items() if all(word in told for word in words)]
        for row in found:
            row.display = row in fitting or not fitting  # where nothing fits, all of them rather than an empty form
        if not fitting:
            self.notify("no setting has these words", severity="warning")

    def on_filter_bar_left(self) -> None:
        shown = [row for row in self.rows if row.display]
        if shown:
            self.set_focus(self.row if self.row in shown else shown[0])

    def command(self) -> str:
        return self.form.command()

    @work(group="launch", exclusive=True)
    async def action_launch(self) -> None:
        """Queue it and show its job."""
        from tui.data.jobs import newest_of
        from tui.data.launching import launch

        if not self.checked.right:
            self.action_wrong()
            self.notify("the form is not complete", severity="warning")
            return
        form, checked = self.form.snapshot(), self.checked
        done = await self.ask("launching", lambda session: launch(session, form, checked))
        if done is None:
            return
        group, why_not = done
        if group is None:
            self.notify(f"nothing was queued: {why_not}", severity="warning")
            return
        job_id = await self.ask("reading the job", lambda session: newest_of(session, group))
        if job_id is None:
            return
        from tui.screens.job import JobScreen

        self.desk_app.action_room("jobs")
        await self.app.push_screen(JobScreen(job_id, form.kind.name))

    # -- keys -----------------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        if isinstance(self.focused, FieldInput):
            return [*of("field"), *(a for a in of("form") if a.method == "launch" and not self.desk_app.read_only)]
        found = super().actions()
        if isinstance(self.focused, FilterBar):
            return [a for a in found if a.place in (FILTER, EVERYWHERE)]
        return found

    def offers(self, action: Action) -> bool:
        if action.place == "form" and action.method == "preset":
            return len(self.form.presets) > 1
        return super().offers(action)

    def node_of(self, action: Action) -> Any:
        if action.place == "field":
            return self.query_one(FieldInput)
        return super().node_of(action)


def note_of(field: Field) -> str:
    """What the field is, and what it may be."""
    return f"{', '.join(field.choices)}: {field.text}" if field.form == "choice" else field.text
