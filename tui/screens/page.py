"""A page of text that scrolls: help, and all fields of a row."""

from __future__ import annotations

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.actions import bindings
from tui.screens.room import Room


class PageScreen(Room):
    """Text on a screen of its own. Subclasses say it with `content`."""

    place = "page"
    follows = False
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS = bindings("page")
    DEFAULT_CSS = """
    PageScreen VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; }
    PageScreen VerticalScroll > Static { height: auto; }
    """

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.content())

    def content(self) -> RenderableType:
        raise NotImplementedError

    def action_scroll_text(self, way: str) -> None:
        scroll = self.query_one(VerticalScroll)
        step = scroll.size.height - 1 if "page" in way else 1
        scroll.scroll_relative(y=-step if way.startswith("-") else step, animate=False)
