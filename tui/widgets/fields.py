"""The parts of the launch form: a setting per line, its help and errors, and the plan of the run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from chessreg.entities.display import format_layers
from tui import show
from tui.actions import make_bindings
from tui.columns import fit_text
from tui.themes import find_cursor_style

if TYPE_CHECKING:
    from chessreg.entities.vector import RelativeNorm
    from tui.data.launch_form import Field, Form, FormCheck, FormPlan
    from tui.data.pages import Row


GUTTER_CELLS = 2
SOURCE_CELLS = 9  # fits given, changed, default, preset, required, and a gap


class FieldInput(Input):
    """The input of a value. Enter keeps the value, Esc restores the previous one."""

    BINDINGS = make_bindings("field")
    DEFAULT_CSS = """
    FieldInput { height: 1; border: none; padding: 0; background: $selection; color: $foreground; }
    FieldInput:focus { border: none; }
    """

    class Left(Message):
        """The input lost the focus. `is_kept`: the text is kept. `way`: move to the next or the previous field."""

        def __init__(self, is_kept: bool, way: int = 0) -> None:
            super().__init__()
            self.is_kept, self.way = is_kept, way

    def action_keep(self, way: str) -> None:
        self.post_message(self.Left(True, int(way)))

    def action_undo(self) -> None:
        self.post_message(self.Left(False))


@dataclass(frozen=True)
class FieldState:
    """The contents of a row."""

    text: str = ""
    source: str = ""
    error: str = ""
    note: str = ""


MAX_VALUE_CELLS = 44


class FieldList(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Rows of fields. Colors are computed once for all rows, so that a form of fifty fields opens quickly. The form
    handles the arrow keys, which move between fields."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "field-row--name", "field-row--value", "field-row--default", "field-row--source", "field-row--note",
        "field-row--error",
    }  # fmt: skip
    DEFAULT_CSS = """
    FieldList { scrollbar-size-vertical: 1; }
    FieldList > .field-row--value { color: $text-accent; text-style: bold; }
    FieldList > .field-row--default { color: $foreground; }
    FieldList > .field-row--source { color: $text-muted; }
    FieldList > .field-row--note { color: $text-muted; }
    FieldList > .field-row--error { color: $text-error; text-style: bold; }
    """

    longest = MAX_VALUE_CELLS  # cells of the longest visible value

    def on_resize(self) -> None:
        """Keep the current row visible when the help below the list takes more lines."""
        for row in self.query("FieldRow:focus, FieldRow:focus-within"):
            row.scroll_visible(animate=False)

    def get_ink(self, name: str) -> Style:
        """Return the color of a component on the list's background, but without a background, because rows have their
        own."""
        style = self.get_component_rich_style(name)
        return Style(color=style.color, bold=style.bold)


class FieldRow(Horizontal, can_focus=True):
    """A field in a FieldList. The form sets its contents; the row posts messages about user actions."""

    DEFAULT_CSS = """
    FieldRow { height: 1; width: 1fr; background: $background; }
    FieldRow:focus, FieldRow:focus-within { background: $selection; }
    """

    field_state: reactive[FieldState] = reactive(FieldState())

    class Typed(Message):
        """The text of the field changed while the user types."""

        def __init__(self, row: FieldRow, text: str | None) -> None:
            super().__init__()
            self.row, self.text = row, text

    class Entered(Message):
        """The row received the focus."""

        def __init__(self, row: FieldRow) -> None:
            super().__init__()
            self.row = row

    class Wanted(Message):
        """Enter or a second click on the row."""

        def __init__(self, row: FieldRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, field: Field, name_width: int) -> None:
        super().__init__()
        self.field, self.name_width = field, name_width
        self.editing = False
        self._before: str | None = None

    def compose(self) -> ComposeResult:
        return iter(())

    @property
    def value_width(self) -> int:
        """The width of the value in cells: that of the longest value. The help uses the remaining width."""
        space = self.size.width - GUTTER_CELLS - self.name_width - SOURCE_CELLS - 4
        assert isinstance(self.parent, FieldList)
        return max(10, min(MAX_VALUE_CELLS, space // 2, self.parent.longest))

    @property
    def entry_width(self) -> int:
        """The width of the input in which the value is edited, in cells."""
        return min(MAX_VALUE_CELLS, self.size.width - GUTTER_CELLS - self.name_width - 4)

    def render(self) -> Text:
        assert isinstance(self.parent, FieldList)
        style, seen_cells, value_cells = self.parent.get_ink, self.field_state, self.value_width
        has_cursor = self.has_focus or self.has_focus_within
        value = style("field-row--default" if seen_cells.source == "default" else "field-row--value")
        text = Text(no_wrap=True, overflow="crop", end="")
        text.append("› " if has_cursor else "  ", style("field-row--name"))
        text.append(fit_text(self.field.path, self.name_width), style("field-row--name"))
        text.append("  ")
        text.append(fit_text(seen_cells.text, value_cells), value)
        text.append("  ")
        text.append(fit_text(seen_cells.source, SOURCE_CELLS), style("field-row--source"))
        cells = max(0, self.size.width - GUTTER_CELLS - self.name_width - value_cells - SOURCE_CELLS - 4)
        if (
            self.editing and (covered_cells := self.entry_width - value_cells - SOURCE_CELLS) > 0
        ):  # the input covers them
            text.append(" " * covered_cells)
            cells = max(0, cells - covered_cells)
        if seen_cells.error:
            error = fit_text(f"! {seen_cells.error}", min(cells, cell_len(seen_cells.error) + 2))
            text.append(error, style("field-row--error"))
            text.append(fit_text(f"  {seen_cells.note}", max(0, cells - cell_len(error))), style("field-row--note"))
        else:
            text.append(fit_text(seen_cells.note, cells), style("field-row--note"))
        cursor_style = find_cursor_style(self.app) if has_cursor else None
        return text if cursor_style is None else Text(text.plain, cursor_style, no_wrap=True, overflow="crop", end="")

    # -- typing ---------------------------------------------------------------------------------------------------

    @property
    def input(self) -> FieldInput | None:
        return next(iter(self.query(FieldInput)), None)

    def edit(self, typed_text: str | None) -> None:
        """Start editing the value. Esc restores the previous one."""
        if self.input is not None:
            return
        self._before = typed_text
        line = FieldInput(value=self.field_state.text, select_on_focus=True)
        line.styles.margin = (0, 0, 0, GUTTER_CELLS + self.name_width + 2)
        line.styles.width = self.entry_width
        self.editing = True
        self.mount(line)
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.value != self.field_state.text:
            self.post_message(self.Typed(self, event.value))

    def on_field_input_left(self, event: FieldInput.Left) -> None:
        if self.input is None:
            return
        if not event.is_kept:
            self.post_message(self.Typed(self, self._before))
        self.close()
        if not event.way:
            event.stop()
            self.focus()

    def close(self) -> None:
        self.editing = False
        if self.input is not None:
            self.input.remove()

    def on_descendant_blur(self) -> None:
        self.close()
        self.refresh()

    def on_focus(self) -> None:
        self.post_message(self.Entered(self))
        self.refresh()

    def on_descendant_focus(self) -> None:
        self.post_message(self.Entered(self))

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if self.has_focus:
            self.post_message(self.Wanted(self))
        elif self.input is None:
            self.focus()


def format_field_note(field: Field) -> str:
    """Return the field's type and its accepted values."""
    return f"{', '.join(field.choices)}: {field.text}" if field.form == "choice" else field.text


MAX_COMMAND_CHARS = 500
PLAN_STATUS = {"complete": "already complete", "already_queued": "already queued"}


def format_scales_to_try(norms: Sequence[RelativeNorm]) -> str:
    """Return the scales to start with, of the layer with the smallest ones, and what they add.

    >>> from chessreg.entities.vector import RelativeNorm
    >>> format_scales_to_try([RelativeNorm(3, 0.5, 100.0)])
    'scale 20 to 60 adds 10 to 30 % of the residual stream at layer 3'
    >>> format_scales_to_try([RelativeNorm(3, 0.5, 100.0), RelativeNorm(4, 0.5, 120.0)])
    'scale 20 to 60 adds at most 10 to 30 % of the residual stream at layers 3-4'
    """
    from chessreg.entities.vector import STEERING_SHARES

    layers, (low, high) = format_layers(norm.layer for norm in norms), min(norm.scales_to_try for norm in norms)
    shares = ("at most " * (len(norms) > 1)) + " to ".join(f"{100 * share:g}" for share in STEERING_SHARES)
    plural = "s" * (len(norms) > 1)
    return f"scale {low:g} to {high:g} adds {shares} % of the residual stream at layer{plural} {layers}"


def format_scale_note(scale: float, norms: Sequence[RelativeNorm]) -> str:
    """Return the length of scaled vectors as a share of the residual's, and the scales to start with."""
    percents = sorted(norm.compute_percent(scale) for norm in norms)
    between = " to ".join(f"{percent:g}" for percent in dict.fromkeys((percents[0], percents[-1])))
    return f"scale {scale:g} adds {between} % of the residual stream's length; {format_scales_to_try(norms)}"


def format_field_help(field: Field, error: str) -> Text:
    """Return the field's accepted values, its error, and its help."""
    text = Text().append(field.path, style="bold")
    text.append(f"  {describe_input(field)}", style="dim")
    if field.part == "spec" and not field.choices:
        text.append(" · A|B: one run for each", style="dim")
    if error:
        text.append(f"  ! {error}", style="bold")
    text.append(f"\n{field.text}")
    if not field.is_required:
        text.append(f" (default: {field.shown_default or 'none'})", style="dim")
    return text


def describe_input(field: Field) -> str:
    """Return a description of the accepted input."""
    if field.form == "choice":
        return f"one of {', '.join(field.choices)}"
    if field.form == "reference":
        return f"a {field.noun.removeprefix('run:').replace('-', ' ')}"
    if field.form == "references":
        return f"{field.noun.removeprefix('run:').replace('-', ' ')}s, separated by commas"
    if field.form == "list":
        return "numbers such as 0,2,5-7" if field.type is int else "values separated by commas"
    return field.form


def format_plan(
    form: Form, form_check: FormCheck, outlook: FormPlan | None, wide: bool, run_key: str, note: str = ""
) -> Text:
    """Return the plan in a few lines, or the reason why no plan is available yet, followed by the command.

    `run_key` is the key that opens an existing run. `note` is a further remark on the plan.
    """
    text = Text()
    if not form_check.is_valid:
        required_paths = [
            form.fields_by_key[key].path for key in form_check.errors if form_check.errors[key] == "it is required"
        ]
        wrong_paths = [
            form.fields_by_key[key].path for key in form_check.errors if form_check.errors[key] != "it is required"
        ]
        problems = []
        if required_paths:
            problems.append(f"required: {', '.join(required_paths)}")
        if wrong_paths:
            problems.append(f"invalid: {', '.join(wrong_paths)}")
        text.append("not ready  ", style="bold")
        text.append("; ".join([*problems, *form_check.general]))
    elif outlook is None:
        text.append("planning…", style="dim")
    elif outlook.errors:
        text.append("not ready  ", style="bold")
        text.append(f"not found: {', '.join(form.fields_by_key[key].path for key in outlook.errors)}")
    elif outlook.plan is None:
        text.append("not ready  ", style="bold")
        text.append(outlook.trouble + (f" ({outlook.hint})" if outlook.hint else ""))
    else:
        plan = {**outlook.plan, "remarks": [*filter(None, [note]), *outlook.plan["remarks"]]}
        text.append_text(format_plan_facts(plan, form_check, wide, run_key))
    text.append("\n\n" if wide else "\n")
    command = format_command_lines(form) if wide else form.command()
    text.append("$ ", style="dim")
    text.append(command[:MAX_COMMAND_CHARS])
    if len(command) > MAX_COMMAND_CHARS:
        text.append("\n… y copies all of it", style="dim")
    return text


def format_plan_facts(plan: Row, form_check: FormCheck, wide: bool, run_key: str) -> Text:
    """Return units, rows, bytes and time of a plan, one per line if it is `wide`. `run_key` is the key that runs the
    form.
    """
    units = "unknown until its inputs exist"
    if plan["units"] is not None:
        units = f"{plan['units']:,}" + (
            f", {plan['missing']:,} missing" if plan["missing"] not in (None, plan["units"]) else ""
        )
    rows = ", ".join(f"{count:,} in {table}" for table, count in (plan["rows"] or {}).items()) or "not estimated"
    size = show.format_size(plan["bytes"]) if plan["bytes"] is not None else "not estimated"
    basis = f", from {plan['basis']}" if plan["basis"] else ""
    time = (
        f"about {show.format_seconds(plan['seconds'])}{basis}"
        if plan["seconds"] is not None
        else "unknown: this kind has not run yet"
    )
    if plan["status"] == "complete":
        time = ""
    launch = form_check.launch
    place_text = " · ".join([launch.on, show.format_count(launch.shards, "shard"), plan["determinism"]])
    runs = plan.get("runs", 1)
    if runs > 1 and plan["seconds"] is not None:
        time = f"about {show.format_seconds(plan['seconds'])} in all{basis}"
    facts = {
        "run": show.abbreviate_id(plan["run_id"]) if runs == 1 else "",
        "runs": f"{runs}, {plan['queued']} to queue" if runs > 1 else "",
        "units": units,
        "rows": rows,
        "bytes": size,
        "time": time,
        "on": place_text,
        "waits for": ", ".join(plan["waits_for"]),
    }
    text = Text()
    status = PLAN_STATUS.get(plan["status"], "ready")
    if plan["status"] in PLAN_STATUS and runs == 1:
        target = "it" if plan["status"] == "complete" else "its job"
        status += f" as {plan['existing']}: {run_key} opens {target}"
    text.append(status, style="bold")
    for name, fact in facts.items():
        if fact:
            text.append(f"\n{name:<10}" if wide else f"  {name} ", style="dim")
            text.append(fact)
    for remark in plan["remarks"]:
        text.append(f"\nnote: {remark}", style="dim")
    return text


def format_command_lines(form: Form) -> str:
    """Return the command with one option per line, ready to paste into a shell."""
    arguments = form.build_arguments()
    lines, line = [], [*arguments[:3]]
    for word in arguments[3:]:
        if word.startswith("--"):
            lines.append(line)
            line = []
        line.append(word)
    return " \\\n    ".join(shlex.join(line) for line in [*lines, line])
