"""Distinguish Alt+key from Esc followed by a key, which terminals send as the same bytes.

Textual reads Esc 8 as a bullet, Esc b as ctrl+left and Esc j as j. Here each becomes alt+key and is then resolved by
the bindings of the focused widget.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Container

ESC = "\x1b"
SEQUENCE_INTRODUCERS = "[OP]X^_\\"  # second characters of escape sequences
EDITING_KEYS = {"alt+b": "ctrl+left", "alt+f": "ctrl+right", "alt+backspace": "ctrl+w"}  # as in shells


class AltKey(Key):
    """Alt+key, or Esc followed by the key. `apart`: the two were read separately, so Esc was pressed."""

    def __init__(self, key: str, character: str | None, apart: bool) -> None:
        super().__init__(key, character)
        self.apart = apart


class AltKeyParser(XTermParser):
    """Parses Esc followed by a key as an AltKey."""

    _before = ""  # the previous input
    _apart = False  # whether the previous input ended with Esc

    def feed(self, data: str) -> Iterable[Message]:
        self._apart, self._before = self._before.endswith(ESC) and not data.startswith(ESC), data
        return super().feed(data)

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        behind = sequence[1:] if sequence.startswith(ESC) and sequence[1:] not in SEQUENCE_INTRODUCERS else ""
        pair = len(behind) == 1 or (alt and len(sequence) == 1)
        is_apart, self._apart = self._apart, self._apart and sequence == ESC
        for key in super()._sequence_to_key_events(sequence[-1] if pair else sequence):
            name = f"shift+{key.key.lower()}" if len(key.key) == 1 and key.key.isupper() else key.key
            yield AltKey(f"alt+{name}", key.character, is_apart) if pair else key


def install_parser() -> None:
    """Make Textual's drivers use AltKeyParser."""
    from textual.drivers import linux_driver, web_driver

    modules: tuple[Any, ...] = (linux_driver, web_driver)
    for module in modules:
        module.XTermParser = AltKeyParser


def resolve_alt_key(key: Key, bound: Container[str], vim: bool) -> list[Key]:
    """Return the keys that an AltKey means, given the bound keys.

    An unbound Alt+key is Esc followed by the key. In an editor with `vim` keys this is always so.
    """
    bare = key.key.removeprefix("alt+")
    letter = bare[-1].upper() if bare.startswith("shift+") and len(bare) == 7 else bare
    if bare == key.key or not (key.character or len(letter) == 1):  # alt+left has a separate escape sequence
        return [key]
    if not vim and not getattr(key, "apart", False):
        for name in (EDITING_KEYS.get(key.key), key.key):
            if name is not None and name in bound:
                return [Key(name, None)]
    return [Key("escape", ESC), Key(letter, key.character or letter)]
