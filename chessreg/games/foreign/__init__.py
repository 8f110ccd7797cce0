"""Results that others published: files of games and of aggregates, read, replayed and checked."""

from __future__ import annotations

from chessreg.games.foreign.file import FORMATS, Format, find_format
from chessreg.games.foreign.game import ForeignFile, ForeignGame, Oddity, Rejected

__all__ = [
    "FORMATS",
    "ForeignFile",
    "ForeignGame",
    "Format",
    "Oddity",
    "Rejected",
    "find_format",
]
