"""Stockfish plays some of the model's moves: what Junkin's evaluation code does, and its effect as a setting.

Junkin 2025 rates models that play on until fivefold repetition. Before a move of the model his code asks a
full-strength Stockfish for the five best moves at depth 10; where even the worst of them wins more than 990 of 1,000
games (wins, not expected points), Stockfish's best move is played in the model's place, and so on to mate
(specification 4.2). The player of his FEN model asks only where the position repeats one of the game. A rating from
such games is not the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import chess

from chessreg.games.boards.adjudication import MATE_CP
from chessreg.games.engines.opponents import Limit
from chessreg.games.engines.pool import Evaluation

Assist = Literal["none", "author", "on-repetition"]
ASSIST_LIMIT = Limit("depth", 10)
ASSIST_LINES = 5
TAKEOVER_WINS = 990
WDL_MODEL: Literal["sf16.1"] = "sf16.1"
"""Of python-chess: the one that `wdl()` took by default when the author's code was written."""


def is_consulted(assist: Assist, board: chess.Board) -> bool:
    """Whether Stockfish looks at the position before the model moves."""
    return assist == "author" or (assist == "on-repetition" and board.is_repetition(2))


def expected_wins(white_cp: int, turn: chess.Color) -> int:
    """Games of 1,000 that the side to move wins, from White's centipawns (a mate in n is 10,000 - n).

    >>> expected_wins(0, chess.WHITE), expected_wins(200, chess.WHITE), expected_wins(-9_997, chess.BLACK)
    (18, 984, 1000)
    """
    from chess.engine import Cp

    own = white_cp if turn == chess.WHITE else -white_cp
    if abs(own) > MATE_CP // 2:
        return 1000 if own > 0 else 0
    return Cp(own).wdl(model=WDL_MODEL).wins


def can_take_over(lines: Sequence[Evaluation], turn: chess.Color) -> bool:
    """Whether the worst of these moves wins so surely that Stockfish plays the best of them."""
    return bool(lines) and min(expected_wins(line.score_cp, turn) for line in lines) > TAKEOVER_WINS
