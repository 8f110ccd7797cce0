"""How a game ends, and the score of an unfinished game.

Games end as in chess_gpt_eval: by mate, stalemate, insufficient material, the 75-move rule or fivefold repetition; a
match may also claim draws. A game stopped at the move limit keeps the result `*` and an evaluation in centipawns from
White's view, from which every scoring policy can compute a score without a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import chess

from chessreg.errors import BadInputError
from chessreg.named import NameRegistry

WIN_CP = 100
"""Centipawns above which an unfinished game is won at the move limit (Karvonen)."""
MATE_CP = 10_000
"""A mate in n is stored as MATE_CP - n centipawns, as in chess_gpt_eval."""
LICHESS_MATE_CP = 30_000
"""Lichess's files store a mate in n as LICHESS_MATE_CP - n centipawns, with the sign of the winning side."""


class Termination(StrEnum):
    """The reason why a game stopped."""

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
    # In imported games:
    OPPONENT_FORFEIT = "opponent_forfeit"  # the model's opponent found no legal move
    TIME_FORFEIT = "time_forfeit"
    ADJUDICATION = "adjudication"  # the result was decided by the match program or a referee
    ABANDONED = "abandoned"  # an engine exited, or a player left
    STALLED = "stalled_connection"  # an engine did not answer
    AGREEMENT = "agreement"
    UNTERMINATED = "unterminated"
    UNKNOWN = "unknown"


ADJUDICATED_ENDS = frozenset({Termination.MOVE_LIMIT, Termination.CONTEXT_FULL})
"""Terminations with the result `*`, which the evaluation decides."""


@dataclass(frozen=True)
class GameEnd:
    """The end of a game. `result` is 1-0, 0-1, 1/2-1/2, or * if a scoring policy still has to decide."""

    termination: Termination
    result: str


def find_game_end(board: chess.Board, claim_draws: bool = False) -> GameEnd | None:
    """Return the end of the game on this board by the rules, or None if it continues.

    With `claim_draws`, a draw that can be claimed in this position (threefold repetition, fifty moves) also ends the
    game.

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
    """Return the end of a game that `color` lost by a forfeit or a resignation."""
    return GameEnd(termination, "0-1" if color == chess.WHITE else "1-0")


def _compute_result_score(color: chess.Color, result: str) -> float:
    """Return the score of a decided game for `color`. Raises BadInputError for an invalid result."""
    try:
        white = {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5}[result]
    except KeyError:
        raise BadInputError(f"{result!r} is not a game result", "one of 1-0, 0-1, 1/2-1/2, *") from None
    return white if color == chess.WHITE else 1.0 - white


def _score_paper(color: chess.Color, result: str, cp: int | None) -> float | None:
    """Return the score of an unfinished game (`*`) by its evaluation in centipawns for White: 1, 0.5 or 0.

    A finished game keeps its result. None if there is no evaluation.
    """
    if result != "*":
        return _compute_result_score(color, result)
    if cp is None:
        return None
    own_cp = cp if color == chess.WHITE else -cp
    return 1.0 if own_cp > WIN_CP else 0.0 if own_cp < -WIN_CP else 0.5


def _score_author_2024(color: chess.Color, result: str, cp: int | None) -> float | None:
    """Return the score as in the published evaluation code of 2024, in which some draws are None and leave the mean."""
    if result == "1/2-1/2":
        return None  # pd.to_numeric turned the string "1/2" into NaN, so the game left the mean
    if result != "*":
        return _compute_result_score(color, result)
    if cp is None:
        return None
    own_cp = cp if color == chess.WHITE else -cp
    return None if own_cp == WIN_CP else float(own_cp > WIN_CP)  # exactly 100 was written as "1/2" and dropped too


MAX_MATE_MOVES = 100  # an evaluation further from that of a mate is centipawns


def count_mate_moves(centipawns: float) -> int | None:
    """Return the moves to mate of an evaluation that stores a mate, as chessreg's engines or Lichess's files do; else
    None.

    >>> count_mate_moves(9_997), count_mate_moves(-29_999), count_mate_moves(-35)
    (3, 1, None)
    """
    moves = (round(mate - abs(centipawns)) for mate in (MATE_CP, LICHESS_MATE_CP))
    return next((moves_left for moves_left in moves if 0 <= moves_left < MAX_MATE_MOVES), None)


SCORING: NameRegistry[Callable[[chess.Color, str, int | None], float | None]] = NameRegistry("scoring policy")
SCORING["paper"] = _score_paper
SCORING["author-2024"] = _score_author_2024


def score_game(policy: str, color: chess.Color, result: str, adjudication_cp: int | None = None) -> float | None:
    """Return the score of a game for the player of `color`: 1, 0.5 or 0, or None if the policy excludes it from the
    mean.

    `paper` is the stated rule: a win counts 1, a draw 0.5, a loss 0, and more than 100 centipawns decide an unfinished
    game. `author-2024` is the rule in the notebook of chess_gpt_eval: draws are excluded, and an unfinished game counts
    as lost unless it is won by more than 100 centipawns. Both exclude an unfinished game without an evaluation.
    `adjudication_cp` is from White's view.

    Raises NotFoundError for an unknown policy, BadInputError for an invalid result.
    """
    return SCORING[policy](color, result, adjudication_cp)
