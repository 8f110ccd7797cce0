"""Handles keys in typing order: each key waits until everything triggered by the previous key is done.

Textual passes a letter to a widget immediately, but runs a key's action only after the key has bubbled up to the app. A
dialog that is being mounted accepts no keys. Without this queue, fast keys (macros, slow connections) would be
reordered or lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from textual.command import CommandPalette
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import Input

from tui import show
from tui.actions import EVERYWHERE, list_place_actions
from tui.escape import AltKeyParser, resolve_alt_key
from tui.screens.base import RELOAD, AppScreen

if TYPE_CHECKING:
    from textual.dom import DOMNode
    from textual.worker import Worker

    from tui.host import Host

ECHO_ROUNDS = 4  # echoes per key, because actions and their handlers post further messages
MAX_ECHO_ROUNDS = 200  # also while the focus changes
ECHO_POLL_S = 0.1  # seconds between checks that the widget that forwards the echo still exists
KEY_TIMEOUT_S = 10.0  # maximum wait for workers of a screen that shows something already
WORKER_POLL_S = 0.02
HELD_KEY_REPEATS = 8  # waiting repeats above which a key counts as held down
KEY_WORKER_GROUPS = {
    "load",
    "narrow",
    "open",
    "build",
    "columns",
    "page",
    "row",
    "run",
    "typed",
}  # groups of workers that keys start


class Echo(Message):
    """Follows a key on the same path, from the focused widget up to the app."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def is_text(key: Key | Paste) -> bool:
    """Return whether a key is a printable character."""
    return isinstance(key, Key) and key.is_printable and not key.key.startswith("alt+")


class TypedKeys:
    """Keys and pasted text that wait for the previous key."""

    def __init__(self, app: Host, text: str = "") -> None:
        """Queue `text`, the terminal input received before the app started. The queue waits for the app to forward its
        first key."""
        self.app = app
        self.waiting: deque[Key | Paste] = deque(
            key for key in AltKeyParser().feed(text) if isinstance(key, Key | Paste)
        )
        self.under_way = bool(self.waiting)
        self._number = self._rounds = 0
        self._blocked_since: float | None = None  # since when the next key waits for workers
        self._focus: DOMNode = app
        self._text: Input | None = None  # the input that received the last key, if it was text
        self._in_flight = False  # whether an echo is pending
        self._echo_timer: asyncio.TimerHandle | None = None
        self._slow: WeakSet[Worker[Any]] = WeakSet()

    def queue_key(self, key: Key | Paste) -> bool:
        """Queue the key if it must wait, for an earlier key or for a screen that shows nothing yet, and return whether
        it was queued. Text that follows text in the same input does not wait.

        Once keys have waited for KEY_TIMEOUT_S, a key that works everywhere, such as Esc, drops them.
        """
        if self.under_way and (self.waiting or not self._is_text_continued(key)):
            if self.waiting and self.is_stuck and isinstance(key, Key) and self._is_global_key(key):
                self.app.notify(f"dropped {show.format_count(len(self.waiting), 'waiting key')}", severity="warning")
                self.waiting.clear()
            self.waiting.append(key)
            return True
        if not self.under_way and self._is_opening() and self._is_blocked(key):
            self.waiting.append(key)
            self._wait()
            return True
        return False

    @property
    def is_stuck(self) -> bool:
        """Whether the next key has waited for KEY_TIMEOUT_S for a screen to be filled."""
        return self._blocked_since is not None and time.monotonic() - self._blocked_since > KEY_TIMEOUT_S

    def _is_opening(self) -> bool:
        """Return whether the screen shows nothing yet, or is about to be replaced by its successor. The palette may be
        searching at any time."""
        screen = self.app.screen_stack[-1] if self.app.screen_stack else None
        if isinstance(screen, CommandPalette):
            return True
        return isinstance(screen, AppScreen) and (not screen.filled or screen.successor is not None)

    def _is_text_continued(self, key: Key | Paste) -> bool:
        """Return whether a key is text that follows text in the same input, which preserves the order itself."""
        return is_text(key) and self._text is not None and self.focus() is self._text

    def split_key(self, key: Key | Paste) -> Key | Paste:
        """Return the key that this one means at the current focus. If it means two keys, queue the second."""
        if isinstance(key, Key) and key.key.startswith("alt+") and self.app.screen_stack:
            first_key, *more = resolve_alt_key(
                key, self.app.screen.active_bindings, bool(getattr(self.focus(), "vim", False))
            )
            self.waiting.extendleft(more)
            return first_key
        return key

    def follow(self, key: Key | Paste) -> None:
        """Start waiting for the effects of a key that was forwarded."""
        focus = self.focus()
        self._text = focus if isinstance(focus, Input) and is_text(key) else None
        self._wait()

    def _wait(self) -> None:
        """Begin to hold keys back: forward the first one, and the others one at a time once it has arrived."""
        self.under_way, self._rounds, self._blocked_since = True, 0, None
        if not self._in_flight:
            self._send()

    def take_next_text_key(self) -> Key | Paste | None:
        """Return the next waiting key if it continues the text of the forwarded key, else None."""
        return self.waiting.popleft() if self.waiting and self._is_text_continued(self.waiting[0]) else None

    def focus(self) -> DOMNode:
        """Return the receiver of the next key."""
        stack = self.app.screen_stack
        return (stack[-1].focused or stack[-1]) if stack else self.app

    def _send(self) -> None:
        self._in_flight = True
        self._number += 1
        self._focus = self.focus()
        self._watch_echo(Echo(self._number))
        self._focus.post_message(Echo(self._number))

    def _watch_echo(self, echo: Echo) -> None:
        """Post the echo to the app if the widget that would forward it has been removed. A slow widget is awaited."""

        def check_focus() -> None:
            self._watch_echo(echo) if self._focus.is_attached else self.app.post_message(echo)

        self._echo_timer = asyncio.get_running_loop().call_later(ECHO_POLL_S, check_focus)

    def get_next_key(self, echo: Echo) -> Key | Paste | None:
        """Return the key to forward after this echo, or None."""
        if echo.number != self._number or not self.under_way:
            return None
        if self._echo_timer is not None:
            self._echo_timer.cancel()
        self._in_flight = False
        self._rounds += 1
        if not self.app.screen_stack:  # the app ends
            return None
        if self._rounds < ECHO_ROUNDS or (self.focus() is not self._focus and self._rounds < MAX_ECHO_ROUNDS):
            self._send()
            return None
        if self.waiting and self._is_blocked(self.waiting[0]):
            self._in_flight = True  # scheduled below
            asyncio.get_running_loop().call_later(WORKER_POLL_S, self._send)
            return None
        self._blocked_since = None
        if self.waiting:
            return self.waiting.popleft()
        self.under_way = False
        return None

    def _is_blocked(self, key: Key | Paste) -> bool:
        """Return whether `key` must wait for workers: without limit for a screen that shows nothing yet, where it would
        be lost, else for KEY_TIMEOUT_S.

        A key that is held down waits only for such a screen. A backlog would continue after the key is released.
        """
        screen = self.app.screen
        if isinstance(screen, AppScreen) and screen.successor is not None:
            return True
        is_shown = not isinstance(screen, AppScreen) or screen.filled
        if (is_shown and self._is_held_down()) or not (reading := self._list_awaited_workers(key)):
            return False
        if self._blocked_since is None:
            self._blocked_since = time.monotonic()
        if is_shown and self.is_stuck:
            self._slow.update(reading)
            return False
        return True

    def _is_held_down(self) -> bool:
        """Return whether a key is held down: it repeats faster than it is handled."""
        return (
            len(self.waiting) > HELD_KEY_REPEATS and len({key.key for key in self.waiting if isinstance(key, Key)}) == 1
        )

    def _is_global_key(self, key: Key) -> bool:
        """Return whether the key has the same meaning on every screen."""
        return any(
            key.key in action.keys.split(",") for action in self.app.apply_keys_to(list_place_actions(EVERYWHERE))
        )

    def _list_awaited_workers(self, key: Key | Paste) -> list[Worker[Any]]:
        """Return the workers that `key` must wait for. These load a screen, filtered rows or a form because of earlier
        keys. Text and keys that work everywhere wait for none of them. Reloads and workers that once exceeded the
        timeout are excluded. Enter in the palette waits for its search."""
        screen = self.app.screen
        if isinstance(screen, CommandPalette) and isinstance(key, Key) and key.key == "enter":
            return [w for w in self.app.workers if w.node is screen and not w.is_finished and w not in self._slow]
        if not isinstance(screen, AppScreen) or not isinstance(key, Key) or isinstance(self.focus(), Input):
            return []
        if self._is_global_key(key):
            return []
        return [
            worker
            for worker in self.app.workers
            if worker.node is screen and worker.group.split()[0] in KEY_WORKER_GROUPS and worker.name != RELOAD
            and not worker.is_finished and worker not in self._slow
        ]  # fmt: skip
