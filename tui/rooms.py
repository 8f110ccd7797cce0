"""The rooms of the app, one line each: keys, palette, help and the modes of the app are made from it.

A room's screen is imported when it is first visited: a cold start reads the code of one room only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.screen import Screen


@dataclass(frozen=True)
class Door:
    """A room's name, the key that leads there, where its screen is, and the command that prints what it shows."""

    name: str
    key: str
    screen: str  # "module:Class"
    text: str
    twin: str

    def open(self) -> Screen[Any]:
        """The room's screen, made anew."""
        module, _, name = self.screen.partition(":")
        screen: Screen[Any] = getattr(import_module(module), name)()
        return screen


ROOMS: tuple[Door, ...] = (
    Door("home", "1", "tui.screens.home:HomeScreen", "Go home: what runs, what has ended", "chessreg status"),
    Door("jobs", "2", "tui.screens.jobs:JobsScreen", "Go to the jobs", "chessreg jobs"),
    Door("launch", "3", "tui.screens.launch:LaunchScreen", "Go to launching experiments", "chessreg launch --help"),
    Door("runs", "4", "tui.screens.runs:RunsScreen", "Go to the runs", "chessreg runs list"),
    Door("boards", "5", "tui.screens.boards:BoardsScreen", "Go to the boards", "chessreg game list"),
    Door("lab", "6", "tui.screens.lab:LabScreen", "Go to the lab", "chessreg lab"),
    Door("queries", "7", "tui.screens.queries:QueriesScreen", "Go to the queries", "chessreg query --list"),
    Door("data", "8", "tui.screens.data:DataScreen", "Go to the data", "chessreg dataset list"),
)


def modes() -> dict[str, Callable[[], Screen[Any]]]:
    """The rooms as textual's modes."""
    return {door.name: door.open for door in ROOMS}
