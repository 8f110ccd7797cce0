"""Wins, draws and losses against Stockfish's levels, one line per level, as in Junkin's sweeps.

A line is `level,wins,draws,losses`, optionally under a header, or has named numbers as in the first sweeps:
`Checkpoint: 0, Wins: 37, Draws: 62, Losses: 1`, where the first number is the level. The header repeats in a file that
several runs appended to. A level is a number or `Stockfish N`: -1 is skill 0 at one node, -2 the random mover. Model,
color, limit and assistance are not recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chessreg.errors import BadInputError

HEADER = re.compile(r"\s*level\s*,\s*wins\s*,\s*draws\s*,\s*losses\s*", re.IGNORECASE)
LINE = re.compile(r"\s*(?:stockfish\s*)?(-?\d{1,2})((?:\s*,\s*\d{1,30}){3})\s*", re.IGNORECASE)
NAMED_RESULT = re.compile(r"\s*(?:checkpoint|level):(.*?),\s*wins:(.*?),\s*draws:(.*?),\s*losses:(.*)", re.IGNORECASE)
NUMBER = re.compile(r"\s*(?:stockfish\s*)?[-+]?\d+(?:\.\d*)?\s*", re.IGNORECASE)
LEVELS = range(-2, 21)
MAX_GAMES_PER_LEVEL = 100_000  # a rating treats each as a played game


@dataclass(frozen=True)
class LevelCount:
    """One line: the games won, drawn and lost against a level. `line` counts from 1."""

    line: int
    level: int
    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses


def is_sweep(text: str) -> bool:
    """Return whether the first line is the header, or four fields of which at least three are numbers."""
    first_line = NAMED_RESULT.sub(r"\1,\2,\3,\4", next((line for line in text.splitlines() if line.strip()), ""))
    fields = first_line.split(",")
    numbers = sum(NUMBER.fullmatch(field) is not None for field in fields)
    return HEADER.fullmatch(first_line) is not None or (len(fields) == 4 and numbers >= 3)


def read_sweep(text: str) -> list[LevelCount]:
    """Return every line; a repeated level stays repeated.

    Raises BadInputError for an invalid line and for a text without lines.
    """
    counts: list[LevelCount] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or HEADER.fullmatch(line):
            continue
        match = LINE.fullmatch(NAMED_RESULT.sub(r"\1,\2,\3,\4", line))
        if match is None:
            raise BadInputError(
                f"line {number}: {line[:60]!r} is not level,wins,draws,losses", "whole numbers, 0 or more"
            )
        wins, draws, losses = (int(part) for part in match[2].split(",")[1:])
        count = LevelCount(number, int(match[1]), wins, draws, losses)
        if count.level not in LEVELS:
            raise BadInputError(f"line {number}: Stockfish has the levels -2 to 20, not {count.level}")
        if count.games > MAX_GAMES_PER_LEVEL:
            raise BadInputError(
                f"line {number}: {count.games:,} games against one level", f"at most {MAX_GAMES_PER_LEVEL:,}"
            )
        if not count.games:
            raise BadInputError(f"line {number}: no games against level {count.level}")
        counts.append(count)
    if not counts:
        raise BadInputError("the file has no line of results", "level,wins,draws,losses")
    return counts
