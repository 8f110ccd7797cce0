"""Where a game comes from: its source, its time-control class, whose ratings its Elo tags hold.

Ratings of different sources, or of bullet and classical games, are not one scale, and a probe can tell sources apart
without knowing anything of skill. So classes of skill are made within such strata or balanced over them (`skill.py`).
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("site", "event", "time_control")
"""Columns of `games.parquet` that `strata` and `rating_scales` read."""

_HOST = re.compile(r"(?:https?://)?(?:www\.)?([a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,})(?:/|$)", re.IGNORECASE)
_CLASSES = ("ultrabullet", "bullet", "blitz", "rapid", "classical", "correspondence", "standard")
_STAGE = re.compile(r"(?:\d+/)?(\d+)(?:\+(\d+))?")


@cache
def source(site: str | None, event: str | None) -> str:
    """The host of the Site tag, `generated` for our own engine games, `named site`, or `unnamed`.

    >>> source("https://lichess.org/ljsUecFp", "Rated Rapid game"), source("Wijk aan Zee", None), source(None, None)
    ('lichess.org', 'named site', 'unnamed')
    """
    from chessreg.games.selfplay import EVENT

    if event == EVENT:
        return "generated"
    found = _HOST.match(site or "")
    return found[1].lower() if found else "named site" if site else "unnamed"


@cache
def seconds(time_control: str | None) -> int | None:
    """Estimated seconds of a player's game, as Lichess counts: base + 40 increments. None: no clock, or not readable.

    >>> seconds("600+5"), seconds("300"), seconds("40/7200:3600"), seconds("-")
    (800, 300, 10800, None)
    """
    total = 0
    for stage in (time_control or "").split(":"):
        found = _STAGE.fullmatch(stage.strip())
        if not found:
            return None
        total += int(found[1]) + 40 * int(found[2] or 0)
    return total


@cache
def time_class(time_control: str | None, event: str | None) -> str:
    """Lichess's class by estimated duration; without a readable TimeControl the class that the Event tag names.

    >>> time_class("600+5", None), time_class("-", "Rated Blitz game"), time_class("-", None)
    ('rapid', 'blitz', 'no clock')
    """
    words = set((event or "").lower().split())
    named = next((name for name in _CLASSES if name in words), None)
    duration = seconds(time_control)
    if duration is None:
        return named or "no clock"
    for name, limit in (("ultrabullet", 30), ("bullet", 180), ("blitz", 480), ("rapid", 1500)):
        if duration < limit:
            return name
    return "classical"


def strata(table: pa.Table) -> np.ndarray:
    """`source/time class` of every game, an object array [n], from the columns `COLUMNS` of a dataset's table."""
    rows = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
    return np.array([f"{source(site, event)}/{time_class(clock, event)}" for site, event, clock in rows], object)


def rating_scales(table: pa.Table, dataset_scale: str | None) -> np.ndarray:
    """Whose ratings each game's Elo tags hold, an object array [n]: the dataset's word, or else the source's."""
    if dataset_scale:
        return np.full(len(table), dataset_scale, object)
    known = {"lichess.org": "lichess", "generated": "stockfish"}
    pairs = zip(table.column("site").to_pylist(), table.column("event").to_pylist(), strict=True)
    return np.array([known.get(source(*pair), "unknown") for pair in pairs], object)
