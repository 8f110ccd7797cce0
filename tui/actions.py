"""Every action of the terminal UI, once: keys, footer, palette and help are all made from this table.

An action belongs to a place: a screen, the table, or `everywhere`. The place's class has a method `action_<method>` and
takes its BINDINGS from `bindings(place)`, so that neither a key nor a line of help can drift from what happens.
`twin` is the command that does or prints the same; words in capitals are filled in by who types it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from textual.binding import Binding

from tui.rooms import ROOMS


@dataclass(frozen=True)
class Action:
    """What one can do in one place. `short` is its word in the footer; without one it is not shown there."""

    place: str
    method: str
    keys: str  # of textual, separated by commas; the first is the one that is shown
    text: str
    short: str = ""
    twin: str = ""
    parameter: str = ""  # handed to the method
    writes: bool = False  # not offered with --read-only
    first: bool = False  # before the focused widget sees the key: what is typed next must go to the new focus

    @property
    def name(self) -> str:
        return f"{self.place}.{self.method}{'.' + self.parameter if self.parameter else ''}"

    @property
    def call(self) -> str:
        """The action as textual calls it."""
        return f"{self.method}({self.parameter!r})" if self.parameter else self.method

    @property
    def shown_keys(self) -> str:
        return " ".join(SHOWN.get(key, key) for key in self.keys.split(","))

    @property
    def shown_key(self) -> str:
        return self.shown_keys.partition(" ")[0]


SHOWN = {
    "up": "↑", "down": "↓", "left": "←", "right": "→", "pageup": "PgUp", "pagedown": "PgDn", "home": "Home",
    "end": "End", "enter": "Enter", "escape": "Esc", "question_mark": "?", "slash": "/", "space": "Space",
    "ctrl+p": "^p", "colon": ":", "ctrl+s": "^s", "ctrl+c": "^c", "G": "G", "tab": "Tab", "shift+tab": "S-Tab",
    "ctrl+d": "^d", "ctrl+u": "^u", "exclamation_mark": "!", "backspace": "Bksp",
    "plus": "+", "minus": "-", "equals_sign": "=", "right_square_bracket": "]", "left_square_bracket": "[", "f1": "F1",
}  # fmt: skip

EVERYWHERE, TABLE, FILTER, CONFIRM = "everywhere", "table", "filter", "confirm"

ACTIONS: tuple[Action, ...] = (
    Action(EVERYWHERE, "help", "question_mark,f1", "Show every key that works here", "help", "chessreg tui --help"),
    *(Action(EVERYWHERE, "room", door.key, door.text, twin=door.twin, parameter=door.name) for door in ROOMS),
    Action(EVERYWHERE, "back", "escape,backspace", "Go back", "back"),
    Action(EVERYWHERE, "reload", "r", "Read everything here again", twin="chessreg runs list"),
    Action(EVERYWHERE, "palette", "ctrl+p,colon", "Find an action by name", "actions"),
    Action(EVERYWHERE, "copy_command", "y", "Copy the command that prints this"),
    Action(EVERYWHERE, "theme", "T", "Change the colours: dark, light, high contrast"),
    Action(EVERYWHERE, "glyphs", "a", "Pieces solid, in outline, or as letters", twin="chessreg tui --ascii"),
    Action(EVERYWHERE, "picture", "ctrl+s", "Save a picture of the screen (SVG)"),
    Action(EVERYWHERE, "quit", "q,ctrl+c", "Quit", "quit"),
    Action(TABLE, "cursor_down", "down,j", "Next row"),
    Action(TABLE, "cursor_up", "up,k", "Previous row"),
    Action(TABLE, "page_down", "pagedown,ctrl+d", "A page down"),
    Action(TABLE, "page_up", "pageup,ctrl+u", "A page up"),
    Action(TABLE, "first", "home,g", "First row"),
    Action(TABLE, "last", "end,G", "Last row"),
    Action(TABLE, "scroll_columns", "left,h", "Columns to the left", parameter="-1"),
    Action(TABLE, "scroll_columns", "right,l", "Columns to the right", parameter="1"),
    Action(TABLE, "open", "enter,o", "Open the row", "open"),
    Action(TABLE, "inspect", "i", "All fields of the row", "fields"),
    Action(FILTER, "leave", "enter,down", "Keep the words and go to the list", "to the list"),
    Action(FILTER, "clear_words", "escape", "Clear the words", "clear"),
    Action("runs", "filter", "slash", "Filter the runs as you type", "filter", "chessreg runs list --kind KIND",
           first=True),
    Action("run", "pane", "tab,right_square_bracket", "Next part of the run", "next part",
           "chessreg runs show RUN", "1"),
    Action("run", "pane", "shift+tab,left_square_bracket", "Previous part of the run", parameter="-1"),
    Action("boards", "family", "tab", "Other rows with boards: games, trials, scores", "games/trials",
           'chessreg query --sql "SELECT * FROM trial"'),
    Action("board", "step", "right,l", "Next position", "step", "chessreg board RUN:UNIT --ply N", "1"),
    Action("board", "step", "left,h", "Previous position", parameter="-1"),
    Action("board", "edge", "home,g", "First position", parameter="first"),
    Action("board", "edge", "end,G", "Last position", parameter="last"),
    Action("board", "row", "down,j", "Next row of the list: its board", "next row", parameter="1"),
    Action("board", "row", "up,k", "Previous row of the list", parameter="-1"),
    Action("board", "illegal", "exclamation_mark,n", "Next position with an illegal try"),
    Action("board", "flip", "f", "Turn the board round", "flip"),
    Action("board", "size", "space", "Small, medium or large board", "size"),
    Action("board", "scroll_text", "pagedown", "Further down the text below", parameter="1"),
    Action("board", "scroll_text", "pageup", "Further up", parameter="-1"),
    Action("board", "inspect", "i", "All fields of the row"),
    Action("queries", "filter", "slash", "Search the queries", "search", "chessreg query --list", first=True),
    Action("jobs", "filter", "slash", "Filter the jobs as you type", "filter", "chessreg jobs", first=True),
    Action("jobs", "launch", "n", "Launch an experiment", "launch", "chessreg launch KIND", writes=True),
    Action("jobs", "cancel", "x", "Cancel the job; complete units are kept", "cancel", "chessreg cancel JOB",
           writes=True),
    Action("jobs", "cancel", "X", "Cancel every job of its launch", twin="chessreg cancel LAUNCH", parameter="launch",
           writes=True),
    Action("jobs", "retry", "t", "Try again what ended without finishing", "try again", "chessreg retry JOB",
           writes=True),
    Action("jobs", "priority", "plus,equals_sign", "Start it sooner", twin="chessreg priority JOB --by 1",
           parameter="1", writes=True),
    Action("jobs", "priority", "minus", "Start it later", twin="chessreg priority JOB --by -1", parameter="-1",
           writes=True),
    Action("job", "pane", "tab", "Log, attempts or settings", "next part", "chessreg job show JOB", "1"),
    Action("job", "pane", "shift+tab", "The part before", parameter="-1"),
    Action("job", "find", "slash", "Find words in the log", "find", "chessreg logs JOB", first=True),
    Action("job", "hit", "n", "Next place with the words", parameter="1"),
    Action("job", "hit", "N", "Previous place with the words", parameter="-1"),
    Action("job", "shard", "right_square_bracket", "Next shard", "next shard", "chessreg attach JOB", "1"),
    Action("job", "shard", "left_square_bracket", "Previous shard", parameter="-1"),
    Action("job", "run", "v", "View its run", "run", "chessreg runs show RUN"),
    Action("job", "cancel", "x", "Cancel the job; complete units are kept", "cancel", "chessreg cancel JOB",
           writes=True),
    Action("job", "cancel", "X", "Cancel every job of its launch", twin="chessreg cancel LAUNCH", parameter="launch",
           writes=True),
    Action("job", "retry", "t", "Try again what ended without finishing", "try again", "chessreg retry JOB",
           writes=True),
    Action("job", "priority", "plus,equals_sign", "Start it sooner", twin="chessreg priority JOB --by 1",
           parameter="1", writes=True),
    Action("job", "priority", "minus", "Start it later", twin="chessreg priority JOB --by -1", parameter="-1",
           writes=True),
    Action("log", "scroll_log", "down,j", "Down", twin="chessreg logs -f JOB", parameter="1"),
    Action("log", "scroll_log", "up,k", "Up; the log then stands still", parameter="-1"),
    Action("log", "scroll_log", "pagedown,space,ctrl+d", "A page down", parameter="page"),
    Action("log", "scroll_log", "pageup,ctrl+u", "A page up", parameter="-page"),
    Action("log", "scroll_log", "home,g", "To its beginning", parameter="first"),
    Action("log", "scroll_log", "end,G", "To its end, and follow it", parameter="last"),
    Action("log", "scroll_side", "right,l", "Further to the right", parameter="1"),
    Action("log", "scroll_side", "left,h", "Further to the left", parameter="-1"),
    Action("confirm", "answer", "y,enter", "Yes", parameter="yes"),
    Action("confirm", "answer", "n,escape,q", "No", parameter="no"),
    Action("page", "scroll_text", "down,j", "Down", parameter="1"),
    Action("page", "scroll_text", "up,k", "Up", parameter="-1"),
    Action("page", "scroll_text", "pagedown,space", "A page down", parameter="page"),
    Action("page", "scroll_text", "pageup", "A page up", parameter="-page"),
    Action("answer", "published", "p", "The papers' numbers beside ours", "published",
           'chessreg query "NAME" --published'),
    Action("answer", "partial", "u", "Unfinished runs too, or only complete ones", "unfinished",
           'chessreg query "NAME" --partial'),
    Action("answer", "meaning", "c", "What the columns mean", "columns", 'chessreg query "NAME" --columns'),
)  # fmt: skip


def of(place: str) -> list[Action]:
    """The actions of one place, in the table's order."""
    return [action for action in ACTIONS if action.place == place]


def bindings(place: str) -> list[Any]:
    """BINDINGS of the class that is this place."""
    return [
        Binding(action.keys, action.call, action.text, id=action.name, priority=action.first) for action in of(place)
    ]


def check(actions: Iterable[Action] = ACTIONS) -> None:
    """Raises ValueError when two actions of one place, or a screen and `everywhere`, want the same key."""
    by_place: dict[str, dict[str, str]] = {}
    for action in actions:
        keys = by_place.setdefault(action.place, {})
        for key in action.keys.split(","):
            if key in keys:
                raise ValueError(f"{key} in {action.place} is both {keys[key]} and {action.name}")
            keys[key] = action.name
    for place, keys in by_place.items():
        both = set(keys) & set(by_place.get(EVERYWHERE, {})) if place not in (EVERYWHERE, FILTER, CONFIRM) else set()
        if both:
            raise ValueError(f"{', '.join(sorted(both))} of {place} is taken everywhere")


check()
