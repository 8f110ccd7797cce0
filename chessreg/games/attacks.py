"""Attacked squares and pinned pieces of many positions at once.

Boards are int8 [n, 64], squares a1=0 … h8=63, P=1 … K=6, negative for Black. Sides are bool [n], True for White.
"""

from __future__ import annotations

import chess
import numpy as np

from chessreg.games import geometry
from chessreg.games.geometry import BISHOP, BLACK_PAWN, KING, QUEEN, ROOK, WHITE_PAWN, bit, first_on_ray

_DIAGONAL = np.array([0, 0, 1, 1, 0, 0, 1, 1], bool)  # of geometry.DIRECTIONS


def squares_of(bits: np.ndarray) -> np.ndarray:
    """bool [n, 64] of bit boards uint64 [n]."""
    return np.unpackbits(bits.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").astype(bool)


def bits_of(squares: np.ndarray) -> np.ndarray:
    """Bit boards uint64 [n] of bool [n, 64]."""
    return np.packbits(squares, axis=1, bitorder="little").view("<u8").reshape(-1).astype(np.uint64, copy=False)


def attacked(boards: np.ndarray, by_white: np.ndarray) -> np.ndarray:
    """Bit boards uint64 [n]: squares that a piece of this side attacks, its own pieces' squares too (as
    `chess.Board.is_attacked_by`)."""
    table = geometry.tables()
    occupied = bits_of(boards != 0)
    found = np.zeros(len(boards), np.uint64)
    mine = np.where(by_white[:, None], boards, -boards)
    row, square = np.nonzero(mine > 0)
    piece = mine[row, square].astype(np.int64)
    pawn = np.where(by_white[row], WHITE_PAWN, BLACK_PAWN)
    kind = np.where(piece == chess.PAWN, pawn, piece)
    leaper = np.isin(piece, (chess.PAWN, chess.KNIGHT, chess.KING))
    np.bitwise_or.at(found, row[leaper], table.attacks[kind[leaper], square[leaper]])
    for direction in range(8):
        straight = np.flatnonzero(np.isin(piece, (BISHOP if _DIAGONAL[direction] else ROOK, QUEEN)))
        at, origin = row[straight], square[straight].astype(np.int64)
        stop = first_on_ray(origin, np.full(len(at), direction), occupied[at])
        free = table.ray[origin * 9 + direction]
        hit = np.flatnonzero(stop >= 0)
        free[hit] = table.between[origin[hit] * 64 + stop[hit]] | bit(stop[hit])
        np.bitwise_or.at(found, at, free)
    return found


def pinned(boards: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Bit boards uint64 [n]: pieces of this side that are pinned to their king (as `chess.Board.is_pinned`)."""
    occupied = bits_of(boards != 0)
    found = np.zeros(len(boards), np.uint64)
    mine = np.where(white[:, None], boards, -boards)
    row, king = np.nonzero(mine == KING)
    for direction in range(8):
        shield = first_on_ray(king.astype(np.int64), np.full(len(row), direction), occupied[row])
        at = np.flatnonzero(shield >= 0)
        at = at[mine[row[at], shield[at]] > 0]
        pinner = first_on_ray(shield[at], np.full(len(at), direction), occupied[row[at]])
        behind = at[pinner >= 0]
        piece = mine[row[behind], pinner[pinner >= 0]]
        pins = (piece == -QUEEN) | (piece == -(BISHOP if _DIAGONAL[direction] else ROOK))
        found[row[behind[pins]]] |= bit(shield[behind[pins]])
    return found
