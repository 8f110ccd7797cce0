"""Read the commands that a report prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path


def printed_commands(folder: Path) -> Iterator[list[str]]:
    """Yield the arguments of each chessreg command in the pages of a report once.

    Examples with placeholders (`RUN:UNIT`, `--rows N`) are skipped. `paper` commands get --dry-run.
    """
    seen: dict[str, None] = {}
    for page in sorted(folder.glob("*.md")):
        for indented, quoted in re.findall(r"^ {4}(chessreg .*)$|`(chessreg [^`]*)`", page.read_text(), re.MULTILINE):
            seen[indented or quoted] = None
    for text in seen:
        words = shlex.split(text)[1:]
        if any(re.fullmatch(r"[A-Z]+(:[A-Z]+)?", word) for word in words):
            continue
        if words[0] == "paper":
            words = [*(word for word in words if word != "--report"), "--dry-run"]
        yield words
