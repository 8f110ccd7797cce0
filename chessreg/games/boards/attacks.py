"""Attacked squares and pinned pieces of many positions at once, from tables of the empty board.

Boards are int8 [n, 64], squares a1=0 … h8=63, P=1 … K=6, negative for Black. Sides are bool [n], True for White. Bit n
of a bit board is square n.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import chess
import numpy as np

DIRECTIONS = ((1, 0), (0, 1), (1, 1), (-1, 1), (-1, 0), (0, -1), (-1, -1), (1, -1))
"""(file step, rank step). The first four increase the square number, the others decrease it."""
NO_DIRECTION = 8
WHITE_PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING, BLACK_PAWN = range(1, 8)
"""Kinds of attacker: the piece types, and Black's pawn."""


@dataclass(frozen=True)
class AttackTables:
    """Tables of the empty board.

    `attacks` uint64 [8 kinds, 64] is a bit board per kind and square; `direction` uint8 [64 * 64] is the direction from
    the first to the second square, 8 if they share no line; `squares_between` uint64 [64 * 64] is the squares strictly
    between two on a line; `ray` uint64 [64 * 9] is the squares from a square in a direction.
    """

    attacks: np.ndarray
    direction: np.ndarray
    squares_between: np.ndarray
    ray: np.ndarray


@functools.cache
def build_tables() -> AttackTables:
    """Return the tables, built on first use (20 ms)."""
    attacks = np.zeros((8, 64), np.uint64)
    direction = np.full((64, 64), NO_DIRECTION, np.uint8)
    squares_between = np.zeros((64, 64), np.uint64)
    ray = np.zeros((64, 9), np.uint64)
    empty = chess.BaseBoard.empty()
    for square in range(64):
        for kind in range(WHITE_PAWN, BLACK_PAWN + 1):
            piece = chess.Piece(chess.PAWN if kind == BLACK_PAWN else kind, kind != BLACK_PAWN)
            empty.set_piece_at(square, piece)
            attacks[kind, square] = empty.attacks_mask(square)
            empty.remove_piece_at(square)
        for number, (file_step, rank_step) in enumerate(DIRECTIONS):
            file, rank, steps = square % 8 + file_step, square // 8 + rank_step, 0
            while 0 <= file < 8 and 0 <= rank < 8:
                other = rank * 8 + file
                direction[square, other] = number
                squares_between[square, other] = steps
                steps |= 1 << other
                file, rank = file + file_step, rank + rank_step
            ray[square, number] = steps
    return AttackTables(attacks, direction.reshape(-1), squares_between.reshape(-1), ray.reshape(-1))


def _compute_log2(power_of_two: np.ndarray) -> np.ndarray:
    """Return log2 of exact powers of two, uint64 [n] -> int64 [n], from the exponent of the float."""
    return (power_of_two.astype(np.float64).view(np.int64) >> 52) - 1023


def find_lowest_bit(bits: np.ndarray) -> np.ndarray:
    """Return the number of the lowest set bit, uint64 [n] of non-zero words -> int64 [n]."""
    return _compute_log2(bits & (~bits + np.uint64(1)))


def find_highest_bit(bits: np.ndarray) -> np.ndarray:
    """Return the number of the highest set bit, uint64 [n] of non-zero words -> int64 [n]."""
    # Clearing the bit below the top one keeps the conversion from rounding up to the next power of two.
    return _compute_log2(bits & ~(bits >> np.uint64(1)))


def get_square_bit(squares: np.ndarray) -> np.ndarray:
    """Return the bit board of each square, uint64 [n]."""
    return np.uint64(1) << squares.astype(np.uint64)


def find_first_on_ray(square: np.ndarray, direction: np.ndarray, occupied_bits: np.ndarray) -> np.ndarray:
    """Return the nearest occupied square from `square` along `direction` (0..8), int64 [n]; -1 if there is no such
    square."""
    hit = build_tables().ray[square.astype(np.int64) * 9 + direction] & occupied_bits
    first_pieces = np.full(len(hit), -1, np.int64)
    is_nearest_low = (direction < 4) & (hit != 0)
    down = (direction >= 4) & (hit != 0)
    first_pieces[is_nearest_low] = find_lowest_bit(hit[is_nearest_low])
    first_pieces[down] = find_highest_bit(hit[down])
    return first_pieces


_DIAGONAL = np.array([0, 0, 1, 1, 0, 0, 1, 1], bool)  # of DIRECTIONS


def unpack_bits(bits: np.ndarray) -> np.ndarray:
    """Return bit boards uint64 [n] as squares bool [n, 64]; bit 0 is a1, bit 63 is h8."""
    return np.unpackbits(bits.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").astype(bool)


def pack_bits(squares: np.ndarray) -> np.ndarray:
    """Return squares bool [n, 64] as bit boards uint64 [n]."""
    return np.packbits(squares, axis=1, bitorder="little").view("<u8").reshape(-1).astype(np.uint64, copy=False)


def find_attacked_squares(boards: np.ndarray, by_white: np.ndarray) -> np.ndarray:
    """Return bit boards uint64 [n] of the squares attacked by a side, including those of its own pieces.

    Equal to `chess.Board.is_attacked_by`.
    """
    table = build_tables()
    occupied_bits = pack_bits(boards != 0)
    attacks = np.zeros(len(boards), np.uint64)
    own_boards = np.where(by_white[:, None], boards, -boards)
    row, square = np.nonzero(own_boards > 0)
    piece = own_boards[row, square].astype(np.int64)
    pawn = np.where(by_white[row], WHITE_PAWN, BLACK_PAWN)
    kind = np.where(piece == chess.PAWN, pawn, piece)
    leaper = np.isin(piece, (chess.PAWN, chess.KNIGHT, chess.KING))
    np.bitwise_or.at(attacks, row[leaper], table.attacks[kind[leaper], square[leaper]])
    for direction in range(8):
        aligned_attackers = np.flatnonzero(np.isin(piece, (BISHOP if _DIAGONAL[direction] else ROOK, QUEEN)))
        at, origin = row[aligned_attackers], square[aligned_attackers].astype(np.int64)
        stop = find_first_on_ray(origin, np.full(len(at), direction), occupied_bits[at])
        free = table.ray[origin * 9 + direction]
        hit = np.flatnonzero(stop >= 0)
        free[hit] = table.squares_between[origin[hit] * 64 + stop[hit]] | get_square_bit(stop[hit])
        np.bitwise_or.at(attacks, at, free)
    return attacks


def find_pinned_pieces(boards: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Return bit boards uint64 [n] of a side's pieces that are pinned to their king. Equal to
    `chess.Board.is_pinned`."""
    occupied_bits = pack_bits(boards != 0)
    pinned_bits = np.zeros(len(boards), np.uint64)
    own_boards = np.where(white[:, None], boards, -boards)
    row, king = np.nonzero(own_boards == KING)
    for direction in range(8):
        shield = find_first_on_ray(king.astype(np.int64), np.full(len(row), direction), occupied_bits[row])
        at = np.flatnonzero(shield >= 0)
        at = at[own_boards[row[at], shield[at]] > 0]
        pinner = find_first_on_ray(shield[at], np.full(len(at), direction), occupied_bits[row[at]])
        pinned_plies = at[pinner >= 0]
        piece = own_boards[row[pinned_plies], pinner[pinner >= 0]]
        pins = (piece == -QUEEN) | (piece == -(BISHOP if _DIAGONAL[direction] else ROOK))
        pinned_bits[row[pinned_plies[pins]]] |= get_square_bit(shield[pinned_plies[pins]])
    return pinned_bits
