"""Ratings of Stockfish's skill levels: the table of chess_gpt_eval, which is Stockfish's own.

Source: official-stockfish/Stockfish pull request 4341 (commit a08b8d4, January 2023), the games from which UCI_Elo was
fitted: Ordo ratings of skill levels 0 to 19 against versions of Stash, anchored to CCRL, at 120 s + 1 s a game. Under
another limit a level's strength is another, so datasets that carry these numbers say `rating_scale = stockfish`.
"""

from __future__ import annotations

import re

from chessreg.games.engines import EngineSpec

RATING_SCALE = "stockfish"
SOURCE = "official-stockfish/Stockfish#4341 (a08b8d4), 120 s + 1 s, anchored to CCRL"

# fmt: off
STOCKFISH_ELO: tuple[float, ...] = (
    1320.1, 1467.6, 1608.4, 1742.3, 1922.9, 2203.7, 2363.2, 2499.5, 2596.2, 2702.8,
    2788.3, 2855.5, 2923.1, 2972.9, 3024.8, 3069.5, 3111.2, 3141.3, 3170.3, 3191.1,
)
# fmt: on
"""Elo of level 0, 1, … 19. Level 20 is unhandicapped and was not in the table; -1 never was."""


def level_rating(level: int) -> float | None:
    """Elo of a skill level, or None where nobody published one (-1 and 20)."""
    return STOCKFISH_ELO[level] if 0 <= level < len(STOCKFISH_ELO) else None


def engine_rating(spec: EngineSpec) -> float | None:
    """Elo of an opponent by its skill level, or None. The table's time control is not the spec's limit."""
    return None if spec.level is None or spec.random_share else level_rating(spec.level)


ANCHOR_ERROR = 100.0
"""Elo by which the whole table may be off, by its own statement; it was measured under another time control."""

TABLES = ("levels", "levels-truncated")
"""`levels` as published; `levels-truncated` without the decimals, as Junkin 2025 uses them (1467.6 is 1467)."""


def opponent_rating(opponent: str, table: str = "levels") -> float | None:
    """Elo of an opponent as a match writes it, whatever its limit; None for one that the table has not.

    >>> opponent_rating("stockfish:3@time=0.1"), opponent_rating("random")
    (1742.3, None)
    """
    match = re.fullmatch(r"stockfish:(\d+)@[^+]*", opponent)
    found = level_rating(int(match[1])) if match else None
    return float(int(found)) if found is not None and table == "levels-truncated" else found
