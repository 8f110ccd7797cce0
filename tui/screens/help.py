"""Every key that works on a screen, made from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label

from tui.actions import EVERYWHERE, Action, bindings
from tui.screens.room import PageScreen

SECTIONS = {
    "table": "In a table", "filter": "In this line", "editor": "In the editor", "log": "In the log",
    EVERYWHERE: "Everywhere",
}  # fmt: skip
HERE = "Here"


class HelpScreen(PageScreen):
    """Keys, what they do, and the command that does the same."""

    crumb = "help"

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self.told = actions

    def content(self) -> RenderableType:
        parts: list[RenderableType] = []
        wide, longest = self.app.size.width, max((len(action.text) for action in self.told), default=0)
        titles = [SECTIONS.get(action.place, HERE) for action in self.told]
        for title in dict.fromkeys(titles):
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold", no_wrap=True, width=9)
            table.add_column(width=34 if wide < 110 else 50 if wide < 150 else longest)
            table.add_column(style="dim", overflow="fold")
            for action, its in zip(self.told, titles, strict=True):
                if its == title:
                    table.add_row(Text(action.shown_keys), Text(action.text), Text(action.twin))
            parts += [Text(title, style="bold underline"), table, Text()]
        return Group(*parts, Text("At the right: the command that does or prints the same.", style="dim"))


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
