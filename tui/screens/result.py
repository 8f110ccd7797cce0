"""What can be done with any table of results: write it to a file, copy it for a paper."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work

from tui import show
from tui.actions import bindings
from tui.columns import Column
from tui.data.queries import Answer
from tui.screens.room import Room

if TYPE_CHECKING:
    from chessreg.queries.result import QueryResult


def table_columns(found: Answer) -> list[Column]:
    """The columns of an answer, its lines numbered."""
    cells = [
        Column(f"c{n}", heading, right)
        for n, (heading, right) in enumerate(zip(found.headings, found.numeric, strict=True))
    ]
    return [Column("#", "#", right=True), *cells]


class ResultRoom(Room):
    """A screen that shows a `result`."""

    also: ClassVar[tuple[str, ...]] = ("result",)
    BINDINGS = bindings("result")

    result: QueryResult | None = None

    @property
    def file_name(self) -> str:
        """What its file is called, unless one says otherwise."""
        return re.sub(r"[^\w.-]+", "-", self.crumb).strip("-") + ".csv"

    def suffixes(self) -> str:
        from chessreg.queries.render import SUFFIXES

        return " ".join(SUFFIXES)

    def action_export(self) -> None:
        from tui.screens.dialogs import Prompt

        if self.result is None:
            self.notify("there is nothing to write yet", severity="warning")
            return

        def chosen(name: str | None) -> None:
            self.write(name)

        hint = f"The suffix says the format: {self.suffixes()}. Esc leaves it."
        self.app.push_screen(Prompt("Write this table to", self.file_name, hint), chosen)

    @work(group="export")
    async def write(self, name: str | None) -> None:
        """Write the file, on the desk: a large table takes its time."""
        if name is None or self.result is None:
            return
        path, result = Path(name).expanduser(), self.result
        written = await self.ask(f"writing {path.name}", lambda session: self.written(result, path))
        if written:
            again = f"; the same: {self.command()} --output {shlex.quote(str(path))}"
            self.notify(f"{show.counted(len(result), 'row')} as {written}{again}", title=str(path))

    def written(self, result: QueryResult, path: Path) -> str:
        """Write and say the format. Raises BadInputError for a suffix that says none."""
        from chessreg.queries import render

        return render.write(result, path)

    @work(group="copy")
    async def action_copy_as(self, format: str) -> None:
        """Copy the table as it is printed in this format."""
        if self.result is None:
            self.notify("there is nothing to copy yet", severity="warning")
            return
        result = self.result

        def rendered() -> str:
            from chessreg.queries import render

            text = render.rendered(result, format)
            assert isinstance(text, str)
            return text

        text = await self.ask("writing the table", lambda session: rendered())
        if text is not None:
            self.desk_app.copy(text, f"{show.counted(len(result), 'row')} as {format}")
