"""Esc and a key right behind it. A terminal sends the same for both as for Alt and the key, and Textual takes Esc 8 for
a bullet, Esc b for ctrl+left and Esc j for j: here each is alt+key first, then what it means where it is typed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Container

ESC = "\x1b"
SEQUENCE_INTRODUCERS = "[OP]X^_\\"  # what an escape sequence goes on with
EDITING_KEYS = {"alt+b": "ctrl+left", "alt+f": "ctrl+right", "alt+backspace": "ctrl+w"}  # as a shell has them


class AltKey(Key):
    """Alt and a key, or Esc and the key. `apart`: they were read one after the other, so it was Esc."""

    def __init__(self, key: str, character: str | None, apart: bool) -> None:
        super().__init__(key, character)
        self.apart = apart


class AltKeyParser(XTermParser):
    """Gives Esc with a key behind it as a Pair."""

    _before = ""  # what was read before
    _apart = False  # whether Esc was the last of that

    def feed(self, data: str) -> Iterable[Message]:
        self._apart, self._before = self._before.endswith(ESC) and not data.startswith(ESC), data
        return super().feed(data)

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        behind = sequence[1:] if sequence.startswith(ESC) and sequence[1:] not in SEQUENCE_INTRODUCERS else ""
        pair = len(behind) == 1 or (alt and len(sequence) == 1)
        apart, self._apart = self._apart, self._apart and sequence == ESC
        for key in super()._sequence_to_key_events(sequence[-1] if pair else sequence):
            name = f"shift+{key.key.lower()}" if len(key.key) == 1 and key.key.isupper() else key.key
            yield AltKey(f"alt+{name}", key.character, apart) if pair else key


def install_parser() -> None:
    """Have Textual's drivers read with this parser."""
    from textual.drivers import linux_driver, web_driver

    modules: tuple[Any, ...] = (linux_driver, web_driver)
    for module in modules:
        module.XTermParser = AltKeyParser


def resolve_alt_key(key: Key, bound: Container[str], vim: bool) -> list[Key]:
    """What a key means where these keys are bound: Alt and a key that is not bound is Esc, then the key. So is any in
    an editor with `vim`'s keys, where Esc comes first all the time."""
    bare = key.key.removeprefix("alt+")
    letter = bare[-1].upper() if bare.startswith("shift+") and len(bare) == 7 else bare
    if bare == key.key or not (key.character or len(letter) == 1):  # alt+left is a sequence of its own
        return [key]
    if not vim and not getattr(key, "apart", False):
        for name in (EDITING_KEYS.get(key.key), key.key):
            if name is not None and name in bound:
                return [Key(name, None)]
    return [Key("escape", ESC), Key(letter, key.character or letter)]
