"""Third-party text on a terminal: characters that a terminal would obey are shown as escapes.

Names, hosts, notes, messages and logs may come from another user's registry. A control character in them (an escape
sequence, a newline, a change of writing direction) could hide a line, forge one, or drive the terminal.
"""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO


def make_visible(text: str, keep: str = "") -> str:
    r"""Return the text with every character that is not printable written as its escape, except those in `keep`.

    >>> print(make_visible("name\x1b[2J\n"))
    name\x1b[2J\n
    """
    if text.isprintable():
        return text
    return "".join(c if is_printable(c) or c in keep else ascii(c)[1:-1] for c in text)


def is_printable(character: str) -> bool:
    """Return whether a character is printed as itself: any space is, a control or format character is not."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def make_json_visible(document: str) -> str:
    r"""Return a JSON document with its unprintable characters escaped; it parses to the same value.

    Control characters occur only in its strings, where JSON has escaped those below 0x20; newlines separate its lines.
    """
    if document.replace("\n", "").isprintable():
        return document
    return "".join(c if is_printable(c) or c == "\n" else escape_json(c) for c in document)


def escape_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


class Lines:
    """A text stream that writes visible text: other characters are written as escapes.

    `raw` is the stream itself, for programs that draw on the terminal (rich), and for data that goes to a file.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        encoding = getattr(self.raw, "encoding", None) or "utf-8"
        self.raw.write(make_visible(text, "\n\t").encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def make_streams_visible() -> Iterator[None]:
    """Make stdout and stderr write visible text only, until the block ends."""
    stdout, err = (Lines(stream or io.StringIO()) for stream in (sys.stdout, sys.stderr))  # None: it is closed
    with redirect_stdout(stdout), redirect_stderr(err):
        yield


def wrap_drawing_stream(stream: Any) -> Any:
    """Return the underlying stream, for drawing with escape sequences (rich, click's colors). Characters that it cannot
    encode are written as escapes."""
    raw_stream = stream.raw if isinstance(stream, Lines) else stream
    if isinstance(raw_stream, io.TextIOWrapper) and raw_stream.errors == "strict":
        raw_stream.reconfigure(errors="backslashreplace")
    return raw_stream


def wrap_data_stream(stream: Any) -> Any:
    """Return the underlying stream for unchanged data; on a terminal, return `stream` itself."""
    return stream.raw if isinstance(stream, Lines) and not stream.isatty() else stream
