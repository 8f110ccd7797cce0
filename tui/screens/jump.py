"""Letters over the parts of a screen; typing one goes there."""

from __future__ import annotations

from typing import Any, cast

from textual import events
from textual.app import ComposeResult
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label

from tui.actions import bindings

LETTERS = "asdfghjklqwertyuiopzxcvbnm"


def targets(screen: Screen[Any]) -> dict[str, Widget]:
    """The parts of a screen that take the focus, in reading order, by letter."""
    found = [
        widget
        for widget in screen.query("*")
        if widget.focusable and widget.region and screen.region.overlaps(widget.region)
    ]
    found.sort(key=lambda widget: (widget.region.y, widget.region.x))
    return dict(zip(LETTERS, found, strict=False))


class Jump(ModalScreen[Widget | None]):
    """Ends with the part that was chosen, or with None."""

    BINDINGS = bindings("jump")
    DEFAULT_CSS = """
    Jump { background: $background 40%; }
    Jump > .letter { width: auto; height: 1; padding: 0 1; background: $accent; color: $background; text-style: bold; }
    Jump > #told { dock: bottom; width: 100%; height: 1; padding: 0 1; background: $panel; color: $foreground; }
    """

    def __init__(self, parts: dict[str, Widget]) -> None:
        super().__init__()
        self.parts = parts

    def compose(self) -> ComposeResult:
        for letter, widget in self.parts.items():
            label = Label(letter, classes="letter")
            label.absolute_offset = Offset(widget.region.x, widget.region.y)
            yield label
        yield Label("a letter jumps there, Esc stays", id="told")

    def on_mount(self) -> None:
        for label in self.query(".letter"):
            label.styles.position = "absolute"
            label.styles.offset = cast(Offset, label.absolute_offset)

    def on_key(self, event: events.Key) -> None:
        if event.character and event.character in self.parts:
            event.stop()
            self.dismiss(self.parts[event.character])

    def action_leave(self) -> None:
        self.dismiss(None)
