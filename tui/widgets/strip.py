"""The parts of a screen in a line, the one that is shown set off."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget


class PaneStrip(Widget):
    """Names of parts; the current one is in brackets too, so that it is told without colour."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"pane-strip--name", "pane-strip--here"}
    DEFAULT_CSS = """
    PaneStrip { height: 1; background: $surface; }
    PaneStrip > .pane-strip--name { color: $text-muted; }
    PaneStrip > .pane-strip--here { color: $text-accent; text-style: bold; }
    """

    names: reactive[tuple[str, ...]] = reactive(())
    place: reactive[int] = reactive(0)

    class Chosen(Message):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    def cells(self) -> list[str]:
        return [f"[{name}]" if n == self.place else f" {name} " for n, name in enumerate(self.names)]

    def render_line(self, y: int) -> Strip:
        line = [Segment(" ", self.rich_style)]
        for n, cell in enumerate(self.cells()):
            style = self.get_component_rich_style(f"pane-strip--{'here' if n == self.place else 'name'}")
            line.append(Segment(cell + " ", style))
        return Strip(line).crop_extend(0, self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        at = 1
        for n, cell in enumerate(self.cells()):
            if at <= event.x < at + len(cell):
                self.post_message(self.Chosen(n))
            at += len(cell) + 1
