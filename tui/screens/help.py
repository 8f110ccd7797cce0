"""Every key that works on a screen, made from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tui.actions import EVERYWHERE, Action
from tui.screens.page import PageScreen

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
