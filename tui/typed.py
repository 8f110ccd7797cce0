"""Keys in the order in which they were typed: each is handed on when all that the one before led to is done.

Textual gives a letter to a widget at once, but runs what a key is bound to when the key has bubbled up to the app, and
a dialog that is being mounted takes no keys. Keys that come faster than that, of a macro or over a slow line, would be
reordered or lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import Input

from tui.actions import EVERYWHERE, list_place_actions
from tui.escape import AltKeyParser, resolve_alt_key
from tui.screens.base import RELOAD, AppScreen

if TYPE_CHECKING:
    from textual.dom import DOMNode
    from textual.worker import Worker

    from tui.host import Host

ECHO_ROUNDS = 4  # of an echo: what a key is bound to sends messages on its part, and their handlers do
ECHO_TIMEOUT_S = 0.1  # seconds after which an echo comes no more: who was to hand it on is gone
KEY_TIMEOUT_S = 1.0  # seconds that a key waits at most for what is being read, or for a focus that does not rest
WORKER_POLL_S = 0.02  # seconds between looks at what is being read
HELD_KEY_REPEATS = 8  # times that a key is waiting from which on it is held down
KEY_WORKER_GROUPS = {
    "load",
    "narrow",
    "open",
    "build",
    "columns",
    "row",
    "run",
    "typed",
}  # groups of workers that keys begin


class Echo(Message):
    """Goes the way of a key after it, from what has the focus up to the app."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def is_text(key: Key | Paste) -> bool:
    """Whether a key is a sign to be written."""
    return isinstance(key, Key) and key.is_printable and not key.key.startswith("alt+")


class TypedKeys:
    """Keys and pasted text that wait for the key before them."""

    def __init__(self, app: Host, text: str = "") -> None:
        """`text`: what the terminal sent before the app began. It waits until that hands on the first key of it."""
        self.app = app
        self.waiting: deque[Key | Paste] = deque(
            key for key in AltKeyParser().feed(text) if isinstance(key, Key | Paste)
        )
        self.under_way = bool(self.waiting)
        self._number = self._rounds = 0
        self._until = 0.0
        self._focus: DOMNode = app
        self._text: Input | None = None  # where the last key was text
        self._in_flight = False  # an echo
        self._lost: asyncio.TimerHandle | None = None
        self._slow: WeakSet[Worker[Any]] = WeakSet()

    def keep(self, key: Key | Paste) -> bool:
        """Whether this key has to wait; it is kept then. Text behind text of the same line does not."""
        if self.under_way and (self.waiting or not self._goes_on(key)):
            self.waiting.append(key)
            return True
        return False

    def _goes_on(self, key: Key | Paste) -> bool:
        """Whether a key is text behind text: one line takes them in their order."""
        return is_text(key) and self._text is not None and self.focus() is self._text

    def first_of(self, key: Key | Paste) -> Key | Paste:
        """The key that this one means where it is typed now; where it means two, the second waits."""
        if isinstance(key, Key) and key.key.startswith("alt+") and self.app.screen_stack:
            first, *more = resolve_alt_key(
                key, self.app.screen.active_bindings, bool(getattr(self.focus(), "vim", False))
            )
            self.waiting.extendleft(more)
            return first
        return key

    def follow(self, key: Key | Paste) -> None:
        """A key has been handed on: wait for what it leads to."""
        focus = self.focus()
        self._text = focus if isinstance(focus, Input) and is_text(key) else None
        self.under_way, self._rounds, self._until = True, 0, time.monotonic() + KEY_TIMEOUT_S
        if not self._in_flight:
            self._send()

    def more(self) -> Key | Paste | None:
        """What waits and goes on with the text of the key that has just been handed on."""
        return self.waiting.popleft() if self.waiting and self._goes_on(self.waiting[0]) else None

    def focus(self) -> DOMNode:
        """What the next key would be given to."""
        stack = self.app.screen_stack
        return (stack[-1].focused or stack[-1]) if stack else self.app

    def _send(self) -> None:
        self._in_flight = True
        self._number += 1
        self._focus = self.focus()
        self._lost = asyncio.get_running_loop().call_later(ECHO_TIMEOUT_S, self.app.post_message, Echo(self._number))
        self._focus.post_message(Echo(self._number))

    def next(self, echo: Echo) -> Key | Paste | None:
        """The key to be handed on now that this echo has come."""
        if echo.number != self._number or not self.under_way:
            return None
        if self._lost is not None:
            self._lost.cancel()
        self._in_flight = False
        self._rounds += 1
        if not self.app.screen_stack:  # the app ends
            return None
        patient = time.monotonic() < self._until
        if patient and (self._rounds < ECHO_ROUNDS or self.focus() is not self._focus):
            self._send()
            return None
        reading = self._read_for(self.waiting[0]) if self.waiting and not self._held_down() else []
        if reading and patient:
            self._in_flight = True  # soon
            asyncio.get_running_loop().call_later(WORKER_POLL_S, self._send)
            return None
        self._slow.update(reading)
        if self.waiting:
            return self.waiting.popleft()
        self.under_way = False
        return None

    def _held_down(self) -> bool:
        """Whether one key comes again and again, faster than what it leads to: none of these is waited for, or they
        would go on after it is let go."""
        return (
            len(self.waiting) > HELD_KEY_REPEATS and len({key.key for key in self.waiting if isinstance(key, Key)}) == 1
        )

    def _read_for(self, key: Key | Paste) -> list[Worker[Any]]:
        """Who reads what a key is for, as keys before it led to: a screen, rows that are filtered, a form. Text, and
        keys that work everywhere, are for none of these; a screen that is read again keeps no key waiting, nor does who
        took too long once."""
        screen = self.app.screen
        if not isinstance(screen, AppScreen) or not isinstance(key, Key) or isinstance(self.focus(), Input):
            return []
        if any(key.key in action.keys.split(",") for action in self.app.keyed(list_place_actions(EVERYWHERE))):
            return []
        return [
            worker
            for worker in self.app.workers
            if worker.node is screen and worker.group.split()[0] in KEY_WORKER_GROUPS and worker.name != RELOAD
            and not worker.is_finished and worker not in self._slow
        ]  # fmt: skip
