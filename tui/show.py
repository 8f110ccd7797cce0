"""Values as the screens write them. Times are local; tests replace those that differ from machine to machine."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from chessreg.entities.display import counted as counted


def when(time: datetime | None) -> str:
    """A moment, in the local time zone, to the minute."""
    if time is None:
        return ""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone().strftime("%Y-%m-%d %H:%M")


def short(id: UUID | str) -> str:
    """The end of an id, as every list shows it. What is short already stays as it is."""
    return id.hex[-6:] if isinstance(id, UUID) else id[-6:] if len(id) == 32 else id


def provenance(text: str) -> str:
    """Where a table's numbers come from, without the rows that were read: `chessreg query` prints those too."""
    return text.partition("; read ")[0]


def host(name: str | None) -> str:
    return name or ""


def place(text: str) -> str:
    """Where the registry is: its folder and file, or the URL without a password."""
    if "://" in text:
        return text
    parts = [part for part in text.split("/") if part]
    return "/".join(parts[-3:]) if len(parts) <= 3 else "…/" + "/".join(parts[-3:])


def duration(seconds: float | None) -> str:
    """A span of time in its two largest units.

    >>> duration(7.25), duration(75), duration(7260), duration(None)
    ('7.2 s', '1 min 15 s', '2 h 1 min', '')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def value(thing: Any) -> str:
    """Any value of a row in a cell, on one line."""
    if isinstance(thing, enum.Enum):
        thing = thing.value
    if thing is None:
        return ""
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    if isinstance(thing, str):
        return " ".join(thing.split())
    if isinstance(thing, UUID):
        return short(thing)
    if isinstance(thing, datetime):
        return when(thing)
    if isinstance(thing, float):
        return f"{thing:.4g}"
    if isinstance(thing, int):
        return f"{thing:,}"
    if isinstance(thing, (bytes, memoryview)):
        return f"{len(bytes(thing)):,} bytes"
    return json.dumps(thing, ensure_ascii=False, default=str)


def full(thing: Any) -> str:
    """The same with nothing left out: whole ids, every digit."""
    if isinstance(thing, UUID):
        return thing.hex
    if isinstance(thing, float):
        return repr(thing)
    if isinstance(thing, (bytes, memoryview)):
        return bytes(thing).hex()
    if isinstance(thing, str):
        return thing
    if isinstance(thing, (dict, list)):
        return json.dumps(thing, ensure_ascii=False, default=str, indent=2 if len(str(thing)) > 60 else None)
    return value(thing)


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
