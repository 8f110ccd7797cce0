"""Every key that works on a screen, made from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tui.actions import EVERYWHERE, Action
from tui.screens.page import PageScreen

SECTIONS = {"table": "In a table", EVERYWHERE: "Everywhere"}


class HelpScreen(PageScreen):
    """Keys, what they do, and the command that does the same."""

    crumb = "help"

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self.told = actions

    def content(self) -> RenderableType:
        parts: list[RenderableType] = []
        for place in dict.fromkeys(action.place for action in self.told):
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold", no_wrap=True, width=9)
            table.add_column(width=34 if self.app.size.width < 110 else 50)
            table.add_column(style="dim", overflow="fold")
            for action in self.told:
                if action.place == place:
                    table.add_row(Text(action.shown_keys), Text(action.text), Text(action.twin))
            parts += [Text(SECTIONS.get(place, "Here"), style="bold underline"), table, Text()]
        return Group(*parts, Text("At the right: the command that does or prints the same.", style="dim"))
