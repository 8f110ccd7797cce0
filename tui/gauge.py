"""Progress, pace, sizes and loads as the screens write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chessreg.entities.display import size as size
from tui import show

FULL, PART, EMPTY = "━", "╸", "┄"


def bar(share: float | None, width: int = 10) -> str:
    """How much of something is done or taken, in this many cells; told by shape, so that it needs no colour.

    >>> bar(0.5, 8), bar(None, 4), bar(1, 4)
    ('━━━━┄┄┄┄', '    ', '━━━━')
    """
    if share is None:
        return " " * width
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    return (FULL * (halves // 2) + PART * (halves % 2)).ljust(width, EMPTY)


def percent(share: float | None) -> str:
    """Rounded down, so that 100 % is all of it."""
    return "" if share is None else f"{int(100 * share)} %"


def rate(a_second: float | None) -> str:
    """Units in the span that makes them more than one.

    >>> rate(12.34), rate(0.5), rate(0.001), rate(None)
    ('12.3/s', '30.0/min', '3.6/h', '')
    """
    if not a_second:
        return ""
    for span, name in ((1, "s"), (60, "min"), (3600, "h")):
        if a_second * span >= 1 or name == "h":
            return f"{a_second * span:.1f}/{name}"
    return ""


def pace(row: Mapping[str, Any]) -> str:
    """How fast a job is, and how long it will yet take: 12.3/s, 4 min 0 s left."""
    left = f"{show.duration(row['seconds_left'])} left" if row["seconds_left"] is not None else ""
    return ", ".join(filter(None, [rate(row["rate"]), left]))


def done(row: Mapping[str, Any]) -> str:
    """Units of how many: 3/12."""
    return f"{row['done']:,}/{row['units']:,}" if row["units"] else ""
