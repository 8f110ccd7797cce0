"""One setting of a form on one line: its name, its value, where that comes from, and what it is or what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from tui.actions import bindings
from tui.columns import fitted
from tui.data.form import Field

GUTTER = 2
SOURCE = 8  # cells for given, default, preset, needed


class FieldInput(Input):
    """Where a value is typed. Enter keeps it, Esc takes it back."""

    BINDINGS = bindings("field")
    DEFAULT_CSS = """
    FieldInput { height: 1; border: none; padding: 0; background: $surface-lighten-2; color: $foreground; }
    FieldInput:focus { border: none; }
    """

    class Left(Message):
        """`kept`: what was typed stays; `way`: to the field after it or before it."""

        def __init__(self, kept: bool, way: int = 0) -> None:
            super().__init__()
            self.kept, self.way = kept, way

    def action_keep(self, way: str) -> None:
        self.post_message(self.Left(True, int(way)))

    def action_undo(self) -> None:
        self.post_message(self.Left(False))


@dataclass(frozen=True)
class Seen:
    """What a row shows."""

    text: str = ""
    source: str = ""
    error: str = ""
    note: str = ""


class FieldList(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Rows of fields. Their colours are worked out here once, not by each of fifty rows: a form opens at once. The
    arrows are not its own: they go from field to field."""

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


class FieldRow(Horizontal, can_focus=True):
    """A field, in a FieldList. The form around it says what it shows; it says what is done to it."""

    DEFAULT_CSS = """
    FieldRow { height: 1; width: 1fr; background: $background; }
    FieldRow:focus, FieldRow:focus-within { background: $surface-lighten-2; }
    """

    seen: reactive[Seen] = reactive(Seen())

    class Typed(Message):
        """The text of the field is this now, while one types."""

        def __init__(self, row: FieldRow, text: str | None) -> None:
            super().__init__()
            self.row, self.text = row, text

    class Entered(Message):
        """The row has the focus."""

        def __init__(self, row: FieldRow) -> None:
            super().__init__()
            self.row = row

    class Wanted(Message):
        """Enter, or a second click."""

        def __init__(self, row: FieldRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, field: Field, name_width: int) -> None:
        super().__init__()
        self.field, self.name_width = field, name_width
        self._before: str | None = None

    def compose(self) -> ComposeResult:
        return iter(())

    @property
    def value_width(self) -> int:
        space = self.size.width - GUTTER - self.name_width - SOURCE - 4
        return max(10, min(44, space // 2))

    def render(self) -> Text:
        assert isinstance(self.parent, FieldList)
        style = partial(self.parent.get_component_rich_style, partial=True)
        seen, wide = self.seen, self.value_width
        here = self.has_focus or self.has_focus_within
        value = style("field-row--default" if seen.source == "default" else "field-row--value")
        text = Text(no_wrap=True, overflow="crop", end="")
        text.append("› " if here else "  ", style("field-row--name"))
        text.append(fitted(self.field.path, self.name_width), style("field-row--name"))
        text.append("  ")
        text.append(fitted(seen.text, wide), value)
        text.append("  ")
        text.append(fitted(seen.source, SOURCE), style("field-row--source"))
        room = max(0, self.size.width - GUTTER - self.name_width - wide - SOURCE - 4)
        if seen.error:
            text.append(fitted(f"! {seen.error}", room), style("field-row--error"))
        else:
            text.append(fitted(seen.note, room), style("field-row--note"))
        return text

    # -- typing ---------------------------------------------------------------------------------------------------

    @property
    def input(self) -> FieldInput | None:
        return next(iter(self.query(FieldInput)), None)

    def edit(self, given: str | None) -> None:
        """Type here; what was given before comes back with Esc."""
        if self.input is not None:
            return
        self._before = given
        line = FieldInput(value=self.seen.text, select_on_focus=given is None)
        line.styles.margin = (0, 0, 0, GUTTER + self.name_width + 2)
        line.styles.width = self.value_width
        self.mount(line)
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if event.value != self.seen.text:
            self.post_message(self.Typed(self, event.value))

    def on_field_input_left(self, event: FieldInput.Left) -> None:
        if self.input is None:
            return
        if not event.kept:
            self.post_message(self.Typed(self, self._before))
        self.close()
        if not event.way:
            event.stop()
            self.focus()

    def close(self) -> None:
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
