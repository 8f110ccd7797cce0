"""How a game ends, and what an unfinished one counts for.

Played games end as in chess_gpt_eval: by mate, stalemate, insufficient material, the 75-move rule or fivefold
repetition; claimable draws are claimed where a match says so. A game stopped at the move limit keeps the result `*` and
a White-relative evaluation in centipawns, from which every scoring policy can be computed without replaying it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import chess

from chessreg.errors import BadInputError
from chessreg.named import Registry

WIN_CP = 100
"""Karvonen: at the move limit an advantage of more than 100 centipawns wins."""
MATE_CP = 10_000
"""A mate in n counts as MATE_CP - n centipawns, as in chess_gpt_eval."""
LICHESS_MATE_CP = 30_000
"""Lichess' files write a mate in n as n centipawns less than this, of either sign."""


class Termination(StrEnum):
    """Why a game stopped."""

    CHECKMATE = "checkmate"
    STALEMATE = "stalemate"
    INSUFFICIENT_MATERIAL = "insufficient_material"
    SEVENTYFIVE_MOVES = "seventyfive_moves"
    FIVEFOLD_REPETITION = "fivefold_repetition"
    FORFEIT_ILLEGAL = "forfeit_illegal"
    RESIGNATION = "resignation"
    MOVE_LIMIT = "move_limit"
    CONTEXT_FULL = "context_full"
    ENGINE_DIED = "engine_died"
    THREEFOLD_REPETITION = "threefold_repetition"  # claimed
    FIFTY_MOVES = "fifty_moves"  # claimed
    # Of games that others played:
    OPPONENT_FORFEIT = "opponent_forfeit"  # the model's opponent found no legal move
    TIME_FORFEIT = "time_forfeit"
    ADJUDICATION = "adjudication"  # a result that the program of the match or a referee decided
    ABANDONED = "abandoned"  # an engine ended, or a player left
    STALLED = "stalled_connection"  # an engine gave no answer
    AGREEMENT = "agreement"
    UNTERMINATED = "unterminated"
    UNKNOWN = "unknown"


ADJUDICATED = frozenset({Termination.MOVE_LIMIT, Termination.CONTEXT_FULL})
"""Stopped in play: the result is `*` and the evaluation decides."""


@dataclass(frozen=True)
class GameEnd:
    """A finished game. `result` is 1-0, 0-1, 1/2-1/2, or * where a policy still has to score it."""

    termination: Termination
    result: str


def find_game_end(board: chess.Board, claim_draws: bool = False) -> GameEnd | None:
    """The end of the game on this board by the rules alone, or None while play goes on. With `claim_draws` also a draw
    that may be claimed as the position stands: the third repetition, or fifty moves.

    >>> find_game_end(chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"))
    GameEnd(termination=<Termination.STALEMATE: 'stalemate'>, result='1/2-1/2')
    """
    outcome = board.outcome(claim_draw=False)
    if outcome is not None:
        return GameEnd(Termination[outcome.termination.name], outcome.result())
    if claim_draws and board.is_repetition(3):
        return GameEnd(Termination.THREEFOLD_REPETITION, "1/2-1/2")
    if claim_draws and board.is_fifty_moves():
        return GameEnd(Termination.FIFTY_MOVES, "1/2-1/2")
    return None


def make_loss(color: chess.Color, termination: Termination) -> GameEnd:
    """The end of a game that `color` gave away, by a forfeit or a resignation."""
    return GameEnd(termination, "0-1" if color == chess.WHITE else "1-0")


def _result_score(color: chess.Color, result: str) -> float:
    try:
        white = {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5}[result]
    except KeyError:
        raise BadInputError(f"{result!r} is no game result", "one of 1-0, 0-1, 1/2-1/2, *") from None
    return white if color == chess.WHITE else 1.0 - white


def _score_paper(color: chess.Color, result: str, cp: int | None) -> float | None:
    if result != "*":
        return _result_score(color, result)
    if cp is None:
        return None
    own = cp if color == chess.WHITE else -cp
    return 1.0 if own > WIN_CP else 0.0 if own < -WIN_CP else 0.5


def _score_author_2024(color: chess.Color, result: str, cp: int | None) -> float | None:
    if result == "1/2-1/2":
        return None  # the string "1/2" became NaN in pd.to_numeric and left the mean
    if result != "*":
        return _result_score(color, result)
    if cp is None:
        return None
    own = cp if color == chess.WHITE else -cp
    return None if own == WIN_CP else float(own > WIN_CP)  # exactly 100 was written as "1/2": dropped as well


SCORING: Registry[Callable[[chess.Color, str, int | None], float | None]] = Registry("scoring policy")
SCORING["paper"] = _score_paper
SCORING["author-2024"] = _score_author_2024


def score_game(policy: str, color: chess.Color, result: str, adjudication_cp: int | None = None) -> float | None:
    """What a game counts for the player of `color`: 1, 0.5 or 0, or None where the policy leaves it out of the mean.

    `paper` is the stated rule: win 1, draw 0.5, loss 0; an unfinished game is decided by more than 100 centipawns.
    `author-2024` is what the notebook of chess_gpt_eval did: draws are left out, and an unfinished game that is not won
    by more than 100 centipawns is lost. An unfinished game without an evaluation (an engine died) counts for neither.
    `adjudication_cp` is White's view.

    Raises NotFoundError for an unknown policy, BadInputError for a result that is none.
    """
    return SCORING[policy](color, result, adjudication_cp)
