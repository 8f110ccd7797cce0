"""The fields of a FEN other than the pieces, for every position of many games at once: castling, en
passant, counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import chess
import numpy as np

from chessreg.games.boards.moves import compute_boards_after

_PAWN = 1
_CASTLING_SQUARES = (  # a move from or to one of these squares ends the right to castle: K, Q, k, q
    (chess.E1, chess.H1),
    (chess.E1, chess.A1),
    (chess.E8, chess.H8),
    (chess.E8, chess.A8),
)


@dataclass(frozen=True, eq=False)
class FenFields:
    """Positions after 0, 1, … plies of each game; row `offsets[g] + p` is game g after p plies.

    `boards` int8 [n, 64] as in `moves.py`; `ply` int64 [n]; `castling` uint8 [n], bits 1 K, 2 Q, 4 k, 8 q; `en_passant`
    int8 [n], the target square of a legal en-passant capture, or -1; `halfmoves`, `fullmoves` int64 [n]; `offsets`
    int64 [games + 1].
    """

    boards: np.ndarray
    ply: np.ndarray
    castling: np.ndarray
    en_passant: np.ndarray
    halfmoves: np.ndarray
    fullmoves: np.ndarray
    offsets: np.ndarray


def compute_fen_fields(packed_games: Sequence[bytes]) -> FenFields:
    """Return every position of games given as packed moves (`moves.py`)."""
    boards, offsets = compute_boards_after(packed_games)
    lengths = np.diff(offsets)
    ply = np.arange(len(boards)) - np.repeat(offsets[:-1], lengths)
    codes = np.frombuffer(b"".join(packed_games), "<u2").astype(np.int64)
    after = np.flatnonzero(ply > 0)  # the position after each ply
    origin, target = codes & 63, codes >> 6 & 63
    pawn = np.abs(boards[after - 1, origin]) == _PAWN
    capture = boards[after - 1, target] != 0
    castling = np.full(len(boards), 15, np.uint8)
    for bit, squares in enumerate(_CASTLING_SQUARES):
        is_reset = np.zeros(len(boards), bool)
        is_reset[after] = np.isin(origin, squares) | np.isin(target, squares)
        castling[_count_plies_since(is_reset, ply) <= ply] &= np.uint8(15 ^ 1 << bit)
    reset = np.zeros(len(boards), bool)
    reset[after] = pawn | capture
    plies_since = _count_plies_since(reset, ply)
    return FenFields(
        boards,
        ply,
        castling,
        _en_passant(boards, after[pawn & (np.abs(origin - target) == 16)], origin, target, after),
        np.where(plies_since <= ply, plies_since, ply),
        ply // 2 + 1,
        offsets,
    )


def _count_plies_since(event: np.ndarray, ply: np.ndarray) -> np.ndarray:
    """Return the plies since the last event of the same game, int64 [n]; more than `ply` if no event has happened."""
    index = np.arange(len(event))
    return index - np.maximum.accumulate(np.where(event, index, -1)) if len(event) else index


def _en_passant(
    boards: np.ndarray, pushed_plies: np.ndarray, origin: np.ndarray, target: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Return the target squares of legal en-passant captures, int8 [n]; -1 if none.

    `pushed_plies` are the positions after a pawn moved two squares. If an enemy pawn is next to it, python-chess
    decides whether the capture is legal (a few in a hundred).
    """
    squares = np.full(len(boards), -1, np.int8)
    indices = np.searchsorted(after, pushed_plies)
    target_square, passed_square = target[indices], (origin[indices] + target[indices]) // 2
    pawn = boards[pushed_plies, target_square]
    has_left_pawn = (target_square % 8 > 0) & (boards[pushed_plies, np.maximum(target_square - 1, 0)] == -pawn)
    right = (target_square % 8 < 7) & (boards[pushed_plies, np.minimum(target_square + 1, 63)] == -pawn)
    for place in np.flatnonzero(has_left_pawn | right).tolist():
        board = make_board(boards[pushed_plies[place]], bool(pawn[place] < 0))
        board.ep_square = int(passed_square[place])
        if board.has_legal_en_passant():
            squares[pushed_plies[place]] = passed_square[place]
    return squares


def make_board(pieces: np.ndarray, white: bool) -> chess.Board:
    """Return a board from pieces int8 [64] and the side to move, without castling rights."""
    board = chess.Board(None)
    for square in np.flatnonzero(pieces).tolist():
        code = int(pieces[square])
        board._set_piece_at(square, abs(code), code > 0)
    board.turn = white
    return board
