"""Pick a file or folder and import it into the registry with a command."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn
from tui.data.pages import PAGE_ROWS, ListPages, Row
from tui.screens.base import AppScreen
from tui.widgets.table import PageTable

LAST_PATH_KEY = "files.last"  # the last path and its options
COLUMNS = (
    TableColumn("name", "name", widest=60, least=20),
    TableColumn("bytes", "size", right=True, text=lambda row: format_entry_size(row)),
    TableColumn("at", "changed", least=16),
)


def format_entry_size(row: Row) -> str:
    """Return the size of a file. For a folder, return whether it is a registry."""
    return show.format_size(row["bytes"]) if not row["folder"] else "registry" if row["fits"] else ""


def list_folder(folder: Path) -> list[Row]:
    """Return the visible entries of a folder, folders first, by name.

    Raises: OSError if the folder cannot be read.
    """
    rows: list[Row] = []
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        try:
            state, is_folder = path.stat(), path.is_dir()
        except OSError:  # a broken link
            continue
        at = datetime.fromtimestamp(state.st_mtime, UTC)
        name = path.name + ("/" if is_folder else "")
        rows.append({"name": name, "path": path, "folder": is_folder, "bytes": state.st_size, "at": at})
    return sorted(rows, key=lambda row: (not row["folder"], row["name"].lower()))


class FilesScreen(AppScreen):
    """A file picker.

    Enter opens a folder or picks a file, Space picks a folder, - goes up, e types a path, / filters.
    """

    place = "files"
    crumb = "files"
    follows = False
    BINDINGS = make_bindings("files")
    DEFAULT_CSS = "FilesScreen > #overview { height: auto; }"

    def __init__(
        self,
        command: Sequence[str],
        wanted_file: str,
        on_choice: Callable[[Any], None],
        fits: Callable[[Path], bool] = lambda folder: False,
    ) -> None:
        """Pick a file for `command`. `fits` returns whether Enter picks a folder instead of opening it.

        The `merge` command also accepts a URL.
        """
        super().__init__()
        self.words, self.wanted_file, self.on_choice, self.fits = command, wanted_file, on_choice, fits
        self.takes_urls = command == ("merge",)
        self.folder = Path.cwd()
        self.at: Path | None = None  # where the cursor is placed

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield PageTable(COLUMNS, id="files", title="Files", empty="empty folder; - goes to the parent folder")

    def on_mount(self) -> None:
        last_path = Path(self.app.saved_state.get(LAST_PATH_KEY, [""])[0])
        if last_path.is_absolute() and last_path.parent.is_dir():
            self.folder, self.at = last_path.parent, last_path

    async def fill(self) -> None:
        folder = self.folder
        try:
            rows = await asyncio.to_thread(list_folder, folder)
            rows = [{**row, "fits": row["folder"] and self.fits(row["path"])} for row in rows]
        except OSError as error:
            self.notify(f"{folder}: {error.strerror or error}", severity="error")
            self.action_up()
            return
        self.require_shown()
        self.query_one("#overview", Static).update(f"{self.wanted_file}\n{show.format_cell_value(str(folder))}")
        table = self.query_one(PageTable)
        table.show(ListPages(rows), rows[:PAGE_ROWS], columns=COLUMNS)
        if self.at is not None:
            table.move(next((n for n, row in enumerate(rows) if row["path"] == self.at), 0))
            self.at = None

    def command(self) -> str:
        return f"chessreg {' '.join(self.words)} FILE{'' if self.takes_urls else ' --name NAME'}"

    def show_folder(self, folder: Path, at: Path | None = None) -> None:
        """Show a folder without filter and order, with the cursor on `at`."""
        self.folder, self.at = folder, at
        table = self.query_one(PageTable)
        table.view = type(table.view)()
        table.post_message(PageTable.Act(table, "reset"))
        self.load()

    def action_up(self) -> None:
        if self.folder != self.folder.parent:
            self.show_folder(self.folder.parent, self.folder)

    def action_type(self) -> None:
        from tui.screens.dialogs import Prompt

        draft = "path", *self.words

        def open_typed(text: str | None) -> None:
            if text is None:
                return
            if "://" in text and self.takes_urls:
                self.take(text)
                return
            path = self.folder / os.path.expanduser(text)  # unchanged if the user of `~user` does not exist
            if os.path.exists(path):
                self.app.drop_draft(draft, text)
            if os.path.isfile(path) or (os.path.isdir(path) and self.fits(path)):
                self.folder = path.parent
                self.take(path)
                return
            if not os.path.isdir(path):
                self.notify(f"{path} does not exist", severity="error")
                path = next(above for above in path.parents if os.path.isdir(above))
            self.show_folder(path)

        folder_prefix = os.path.join(self.folder, "")  # with a trailing slash
        self.app.push_screen(
            Prompt("Path of a file to choose, or of a folder to open:", folder_prefix, draft=draft, replaced=True),
            open_typed,
        )

    def action_take(self) -> None:
        if (row := self.query_one(PageTable).current_row) is not None:
            self.take(row["path"])

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if event.row["folder"] and not event.row["fits"]:
            self.show_folder(event.row["path"])
        else:
            self.take(event.row["path"])

    def take(self, path: Path | str) -> None:
        """Close the screen and pass `path` to the caller.

        Does not await the pop: a screen that awaits its own removal in a handler deadlocks. The app runs the callback,
        because the answer to a closed screen's dialog is lost.
        """
        self.app.pop_screen()
        self.app.call_later(self.on_choice, path)


def import_picked_file(
    screen: AppScreen, command: Sequence[str], wanted_file: str, options: str, offered_name: str = ""
) -> None:
    """Pick a file, ask for a name and options, and run the import command. `options` is shown as a hint, and the
    options `offered_name` are typed already."""
    from tui.screens.dialogs import Prompt

    app: Any = screen.app

    def ask_options(path: Path) -> None:
        draft = *command, path

        def run_import(text: str | None) -> None:
            if text is None:
                return
            app.saved_state.set(LAST_PATH_KEY, [str(path), text])  # offered again if the command fails
            try:
                words = shlex.split(text)
            except ValueError as error:
                app.notify(f"{text}: {error}", severity="error")
                return
            if not words[0].startswith("-"):
                words.insert(0, "--name")
            summary = f"{path.name}: {shlex.join(words)}"
            app.run_command([*command, str(path), *words], progress_text="importing", done_text="imported",
                            notice=summary, on_success=lambda: app.drop_draft(draft, text))  # fmt: skip

        last_path, text = app.saved_state.get(LAST_PATH_KEY, ("", ""))
        if last_path != str(path):
            stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", path.name.partition(".")[0]).strip("-")
            text = f"--name {stem} {offered_name}".rstrip() if stem else "--name "
        hint = f"{options}\nEnter confirms, Esc cancels; chessreg {' '.join(command)} --help lists all options"
        app.push_screen(
            Prompt(f"chessreg {' '.join(command)} {show.format_cell_value(path.name)}", text, hint, draft), run_import
        )

    app.push_screen(FilesScreen(command, wanted_file, ask_options))
