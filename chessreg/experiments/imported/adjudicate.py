"""Evaluations of others' games that were stopped at the move limit, by the Stockfish that is here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import chess

from chessreg.games.adjudication import ADJUDICATED
from chessreg.games.engines import EngineSpec, engine_identity, parse_limit
from chessreg.games.pool import EnginePool

if TYPE_CHECKING:
    from chessreg.games.foreign import ForeignGame


def evaluations(games: Iterable[ForeignGame], limit: str) -> dict[int, int]:
    """Row → White's centipawns at the end of each game that was stopped in play; empty for the limit `none`.

    The position is the one after White's last move, as chess_gpt_eval evaluates it (specification 7.6).
    """
    stopped = [game for game in games if game.result == "*" and game.termination in ADJUDICATED]
    if limit == "none" or not stopped:
        return {}
    asked = parse_limit(limit)
    with EnginePool(EngineSpec("random"), timed=asked.kind == "time") as pool:
        waiting = {game.row: pool.analyse(judged_board(game), asked) for game in stopped}
        return {row: future.result().score_cp for row, future in waiting.items()}


def judged_board(game: ForeignGame) -> chess.Board:
    """The position after White's last move."""
    board = chess.Board()
    for move in game.moves[: len(game.moves) - 1 + len(game.moves) % 2]:
        board.push(move)
    return board


def adjudicator(limit: str) -> str | None:
    """Name and version of the program that evaluates, for the match's record."""
    if limit == "none":
        return None
    found = engine_identity()
    return f"{found.name} {found.version}"
