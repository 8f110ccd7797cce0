"""Three ways to find what one can do: the palette, every key that works here, and letters that jump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label

from tui.actions import EVERYWHERE, Action, bindings
from tui.screens.base import AppScreen, TextScreen

SECTIONS = {
    "table": "In a table", "filter": "In this line", "editor": "In the editor", "log": "In the log",
    EVERYWHERE: "Everywhere",
}  # fmt: skip
HERE = "Here"


class HelpScreen(TextScreen):
    """Keys, what they do, and the command that does the same."""

    crumb = "help"

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self.offered = actions

    def content(self) -> RenderableType:
        parts: list[RenderableType] = []
        wide, longest = self.app.size.width, max((len(action.text) for action in self.offered), default=0)
        titles = [SECTIONS.get(action.place, HERE) for action in self.offered]
        for title in dict.fromkeys(titles):
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold", no_wrap=True, width=9)
            table.add_column(width=34 if wide < 110 else 50 if wide < 150 else longest)
            table.add_column(style="dim", overflow="fold")
            for action, its in zip(self.offered, titles, strict=True):
                if its == title:
                    table.add_row(Text(action.shown_keys), Text(action.text), Text(action.command))
            parts += [Text(title, style="bold underline"), table, Text()]
        return Group(*parts, Text("At the right: the command that does or prints the same.", style="dim"))


LETTERS = "asdfghjklqwertyuiopzxcvbnm"


def targets(screen: Screen[Any]) -> dict[str, Widget]:
    """The parts of a screen that take the focus, in reading order, by letter."""
    widgets = [
        widget
        for widget in screen.query("*")
        if widget.focusable and widget.region and screen.region.overlaps(widget.region)
    ]
    widgets.sort(key=lambda widget: (widget.region.y, widget.region.x))
    return dict(zip(LETTERS, widgets, strict=False))


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


class Actions(Provider):
    """Finds an action by the words of what it does."""

    def offered(self) -> Iterator[tuple[Action, AppScreen]]:
        if isinstance(self.screen, AppScreen):
            for action in self.screen.actions():
                if action.method != "palette":
                    yield action, self.screen

    async def discover(self) -> Hits:
        for action, screen in self.offered():
            yield DiscoveryHit(action.text, run(action, screen), help=keys_and_command(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, screen in self.offered():
            score = max(matcher.match(action.text), matcher.match(action.command) if action.command else 0.0)
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(action.text),
                    run(action, screen),
                    text=action.text,
                    help=keys_and_command(action),
                )


def run(action: Action, screen: AppScreen):  # type: ignore[no-untyped-def]
    async def go() -> None:
        await screen.app.run_action(action.call, default_namespace=screen.node_of(action))

    return go


def keys_and_command(action: Action) -> str:
    return f"{action.shown_keys}    {action.command}".rstrip()
