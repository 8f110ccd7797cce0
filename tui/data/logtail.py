"""A log file that grows, read from its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FIRST_BYTES = 1 << 19  # of what there was before one looked
READ_BYTES = 1 << 20  # in one go
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class Read(NamedTuple):
    """What was added: whole lines, and the line that is being written."""

    lines: list[str]
    begun: str
    anew: bool  # the file is another or was cut: what was read before is void


class LogTail:
    """The lines of a file, and then those that are added to it. `read` may be called from any thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0  # bytes at the beginning that were not read
        self._at, self._rest, self._file = 0, b"", 0

    def read(self) -> Read:
        """What was written since the last time; nothing where the file is not there (yet)."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            return Read([], "", False)

    def _read(self, file) -> Read:  # type: ignore[no-untyped-def]
        import os

        state = os.fstat(file.fileno())
        anew = self._file != state.st_ino or state.st_size < self._at
        if anew:
            self._file, self._rest = state.st_ino, b""
            self._at = self.skipped = max(0, state.st_size - FIRST_BYTES)
        file.seek(self._at)
        added = file.read(READ_BYTES)
        if anew and self.skipped:  # from the next whole line on
            cut = added.find(b"\n") + 1
            self.skipped, self._at, added = self.skipped + cut, self._at + cut, added[cut:]
        self._at += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        return Read([readable(line) for line in whole], readable(self._rest), anew)


def readable(line: bytes) -> str:
    """A line as a terminal would have left it: without escapes, and after its last carriage return."""
    text = ESCAPES.sub("", line.decode(errors="replace").rstrip("\r")).rpartition("\r")[2]
    return "".join(c if c.isprintable() else " " for c in text.expandtabs(8))
