"""All fields of one row, in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tui import show
from tui.screens.page import PageScreen


class Details(PageScreen):
    """Field and value, nothing shortened."""

    def __init__(self, fields: Mapping[str, Any], crumb: str = "fields") -> None:
        super().__init__()
        self.fields, self.crumb = fields, crumb

    def content(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self.fields.items():
            table.add_row(Text(name.replace("_", " ")), Text(show.full(value)))
        return table
