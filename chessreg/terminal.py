"""Text of others on a terminal: what a terminal would obey is shown, not sent.

Names, hosts, notes, messages and logs may come from another's registry. A control character in them (an escape
sequence, a newline, a change of writing direction) could hide a line, forge one, or drive the terminal.
"""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


def visible(text: str, keep: str = "") -> str:
    r"""The text with everything that is not printed as a character of its own written as its escape, but for `keep`.

    >>> print(visible("name\x1b[2J\n"))
    name\x1b[2J\n
    """
    if text.isprintable():
        return text
    return "".join(c if shows(c) or c in keep else ascii(c)[1:-1] for c in text)


def shows(character: str) -> bool:
    """Whether a character is shown as itself: a space of any width is, a control or format character is not."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def visible_json(document: str) -> str:
    r"""The same of a JSON document: what it escapes means the same to whoever parses it.

    Control characters stand in its strings only, where JSON itself has escaped those below 0x20; new lines are its own.
    """
    if document.replace("\n", "").isprintable():
        return document
    return "".join(c if shows(c) or c == "\n" else json_escape(c) for c in document)


def json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


class Lines:
    """A text stream that sends lines of visible text: all else that is written to it is shown by its escape.

    `raw` is the stream itself, for what draws on the terminal on purpose (rich), and for data that goes to a file.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        encoding = getattr(self.raw, "encoding", None) or "utf-8"
        self.raw.write(visible(text, "\n\t").encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def visible_streams() -> Iterator[None]:
    """stdout and stderr send visible text alone, until the block ends."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Lines(stream or io.StringIO()) for stream in before)  # None: it is closed
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def for_drawing(stream: Any) -> Any:
    """The stream below, for what draws by escape sequences of its own (rich, click's colors). It shows a character
    that it cannot encode by its escape."""
    raw = stream.raw if isinstance(stream, Lines) else stream
    if isinstance(raw, io.TextIOWrapper) and raw.errors == "strict":
        raw.reconfigure(errors="backslashreplace")
    return raw


def for_data(stream: Any) -> Any:
    """The stream below, for data as they are; on a terminal, where somebody looks at them, the stream itself."""
    return stream.raw if isinstance(stream, Lines) and not stream.isatty() else stream
