"""The line at the bottom: the keys that matter here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from tui.actions import Action


class KeyBar(Widget):
    """Key and word of each action that has one; those that do not fit are left to the help."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--word"}
    DEFAULT_CSS = """
    KeyBar { height: 1; background: $panel; color: $foreground; }
    KeyBar > .key-bar--key { color: $text-accent; text-style: bold; }
    KeyBar > .key-bar--word { color: $text-muted; }
    """

    actions: reactive[tuple[Action, ...]] = reactive(())

    def shown(self) -> list[tuple[int, int, Action]]:
        """(first cell, last cell + 1, action) of what fits."""
        at, found = 1, []
        for action in self.actions:
            wide = cell_len(action.shown_key) + 1 + cell_len(action.short)
            if at + wide > self.size.width:
                break
            found.append((at, at + wide, action))
            at += wide + 2
        return found

    def render_line(self, y: int) -> Strip:
        key, word = self.get_component_rich_style("key-bar--key"), self.get_component_rich_style("key-bar--word")
        line = [Segment(" ", word)]
        for _, _, action in self.shown():
            line += [Segment(action.shown_key, key), Segment(f" {action.short}  ", word)]
        return Strip(line).crop_extend(0, self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        for begin, end, action in self.shown():
            if begin <= event.x < end:
                self.app.simulate_key(action.keys.split(",")[0])


FIRST = ("help", "quit", "back", "open")  # in this order, whatever else there is


def footer(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions of a footer: those with a word, those that one needs everywhere first so that a narrow one has
    them."""
    shown = [action for action in actions if action.short]
    everywhere = [action for action in shown if action.place in ("everywhere", "table") and action.method in FIRST]
    first = sorted(everywhere, key=lambda action: FIRST.index(action.method))
    return (*first, *(action for action in shown if action not in first))
