"""Picking a file or a folder, and bringing it into the registry by the command that does it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import PAGE, Listed, Row
from tui.screens.base import AppScreen
from tui.widgets.table import PageTable

FOLDER = "files.folder"  # under which it is remembered where one was last
COLUMNS = (
    Column("name", "name", widest=60, least=20),
    Column("bytes", "size", right=True, text=lambda row: "" if row["folder"] else show.size(row["bytes"])),
    Column("at", "changed", text=lambda row: show.when(row["at"]), least=16),
)


def listed(folder: Path) -> list[Row]:
    """What a folder holds: folders first, then files, by name; hidden ones are left out. Raises OSError."""
    rows: list[Row] = []
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        try:
            state, is_folder = path.stat(), path.is_dir()
        except OSError:  # a link to nothing
            continue
        at = datetime.fromtimestamp(state.st_mtime, UTC)
        name = path.name + ("/" if is_folder else "")
        rows.append({"name": name, "path": path, "folder": is_folder, "bytes": state.st_size, "at": at})
    return sorted(rows, key=lambda row: (not row["folder"], row["name"].lower()))


class FilesScreen(AppScreen):
    """Enter opens a folder or takes a file, Space takes a folder too, - goes up; / narrows as everywhere."""

    place = "files"
    crumb = "files"
    follows = False
    BINDINGS = bindings("files")

    def __init__(self, command: Sequence[str], wanted: str, chosen: Callable[[Path], None]) -> None:
        super().__init__()
        self.words, self.wanted, self.chosen = command, wanted, chosen
        self.folder = Path.cwd()

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield PageTable(COLUMNS, id="files", empty="nothing here; - goes to the folder above")

    def on_mount(self) -> None:
        kept = Path(self.app.remembered.get(FOLDER, ""))
        if kept.is_absolute() and kept.is_dir():
            self.folder = kept

    async def fill(self) -> None:
        folder = self.folder
        try:
            rows = await asyncio.to_thread(listed, folder)
        except OSError as error:
            self.notify(f"{folder}: {error.strerror or error}", severity="error")
            if folder != folder.parent:
                self.go(folder.parent)
            return
        self.require_shown()
        self.query_one("#overview", Static).update(f"{self.wanted} · {show.place(str(folder))}")
        self.query_one(PageTable).show(Listed(rows), rows[:PAGE], columns=COLUMNS)

    def command(self) -> str:
        return f"chessreg {' '.join(self.words)} FILE --name NAME"

    def go(self, folder: Path) -> None:
        self.folder = folder
        table = self.query_one(PageTable)
        table.view = type(table.view)()
        table.post_message(PageTable.Act(table, "reset"))
        self.load()

    def action_up(self) -> None:
        self.go(self.folder.parent)

    def action_take(self) -> None:
        if (row := self.query_one(PageTable).current) is not None:
            self.take(row["path"])

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if event.row["folder"]:
            self.go(event.row["path"])
        else:
            self.take(event.row["path"])

    def take(self, path: Path) -> None:
        """Not awaited: a screen that waits in a handler of its own for its own end waits for ever. The next dialog
        is the app's: the answer to a screen that is gone would reach nobody."""
        self.app.remembered.set(FOLDER, str(self.folder))
        self.app.pop_screen()
        self.app.call_later(self.chosen, path)


def bring_in(screen: AppScreen, command: Sequence[str], wanted: str) -> None:
    """Pick a file, ask what to call it, and run the command that brings it in."""
    from tui.screens.dialogs import Prompt

    app: Any = screen.app

    def picked(path: Path) -> None:
        def named(name: str | None) -> None:
            if name:
                app.run_command([*command, str(path), "--name", name], doing="bringing it in", done="brought in")

        stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", path.name.partition(".")[0]).strip("-")
        app.push_screen(Prompt(f"What to call {path.name}:", stem), named)

    app.push_screen(FilesScreen(command, wanted, picked))
