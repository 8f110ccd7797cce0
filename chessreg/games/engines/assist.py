"""Stockfish plays some of the model's moves, as in Junkin's evaluation code, so that the effect can be measured.

Junkin 2025 rates models that play until fivefold repetition. Before a move of the model, the code asks a full-strength
Stockfish for the five best moves at depth 10. If even the worst of them wins more than 990 of 1,000 games (wins, not
expected points), Stockfish plays its best move instead of the model, and so on until mate (`play_game.py`). The
player of the FEN model asks only if the position repeats one of the game. A rating from such games is not the model's.
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
"""python-chess's win-draw-loss model; the default of `wdl()` when the author's code was written."""


def is_consulted(assist: Assist, board: chess.Board) -> bool:
    """Return whether Stockfish analyses the position before the model moves."""
    return assist == "author" or (assist == "on-repetition" and board.is_repetition(2))


def compute_expected_wins(white_cp: int, turn: chess.Color) -> int:
    """Return how many of 1,000 games the side to move wins, given White's centipawns (a mate in n is 10,000 - n).

    >>> compute_expected_wins(0, chess.WHITE), compute_expected_wins(200, chess.WHITE)
    (18, 984)
    >>> compute_expected_wins(-9_997, chess.BLACK)
    1000
    """
    from chess.engine import Cp

    own_cp = white_cp if turn == chess.WHITE else -white_cp
    if abs(own_cp) > MATE_CP // 2:
        return 1000 if own_cp > 0 else 0
    return Cp(own_cp).wdl(model=WDL_MODEL).wins


def can_take_over(lines: Sequence[Evaluation], turn: chess.Color) -> bool:
    """Return whether the worst of these moves wins more than TAKEOVER_WINS of 1,000 games, so that Stockfish plays the
    best."""
    return bool(lines) and min(compute_expected_wins(line.score_cp, turn) for line in lines) > TAKEOVER_WINS
