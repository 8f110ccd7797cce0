"""The main screens, one line each: keys, palette, help and the app's modes are generated from it.

A screen's module is imported when it is first opened, which keeps the start fast. A thread imports the others after the
first screen is filled.
"""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.screen import Screen


@dataclass(frozen=True)
class ScreenEntry:
    """A screen's name, key, class, help text, and the command that prints its contents."""

    name: str
    key: str
    screen: str  # "module:Class"
    text: str
    command: str

    def open(self) -> Screen[Any]:
        """Return a new instance of the screen."""
        module, _, name = self.screen.partition(":")
        screen: Screen[Any] = getattr(import_module(module), name)()
        return screen


ENTRIES: tuple[ScreenEntry, ...] = (
    ScreenEntry("home", "1", "tui.screens.home:HomeScreen", "Go home: active jobs and ended runs", "chessreg status"),
    ScreenEntry("jobs", "2", "tui.screens.jobs:JobsScreen", "Go to the jobs", "chessreg jobs"),
    ScreenEntry("launch", "3", "tui.screens.launch:LaunchScreen", "Go to the launch form", "chessreg launch --help"),
    ScreenEntry("runs", "4", "tui.screens.runs:RunsScreen", "Go to the runs", "chessreg runs list"),
    ScreenEntry("boards", "5", "tui.screens.boards:BoardsScreen", "Go to the boards", "chessreg game list"),
    ScreenEntry("lab", "6", "tui.screens.lab:LabScreen", "Go to the lab", "chessreg lab"),
    ScreenEntry("queries", "7", "tui.screens.queries:QueriesScreen", "Go to the queries", "chessreg query --list"),
    ScreenEntry("data", "8", "tui.screens.things:DataScreen", "Go to the data", "chessreg dataset list"),
)


LATE_MODULES = (  # modules that screens import on first use
    "chessreg.queries.ask", "tui.data.palette", "tui.data.board_views", "chessreg.experiments.edit",
)  # fmt: skip


def warm_up() -> threading.Thread:
    """Import every screen on a separate thread, after the first screen is filled."""
    thread = threading.Thread(target=import_screens, name="warm", daemon=True)
    thread.start()
    return thread


def import_screens() -> None:
    """Import all screens. An import error is reported when the screen is opened."""
    for name in (
        *(f"tui.screens.{module.name}" for module in iter_modules(import_module("tui.screens").__path__)),
        *LATE_MODULES,
    ):
        if name not in sys.modules:
            try:
                import_module(name)
            except ImportError:
                continue
    if not gc.isenabled():
        gc.freeze()  # existing objects are mostly code
        gc.enable()
