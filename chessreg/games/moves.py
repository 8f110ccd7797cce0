"""Packed moves: uint16 little endian per ply, from | to << 6 | promotion << 12 (0 none, 2 N, 3 B, 4 R, 5 Q).

Squares are a1=0 … h8=63; castling is the king's move (e1g1). The format and the hash are fixed for ever: both name
games.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import chess
import numpy as np


def pack(moves: Iterable[chess.Move]) -> bytes:
    """The packed bytes of moves.

    >>> pack([chess.Move.from_uci("e2e4")]).hex()
    '0c07'
    """
    codes = [m.from_square | m.to_square << 6 | (m.promotion or 0) << 12 for m in moves]
    return np.array(codes, "<u2").tobytes()


def unpack(packed: bytes) -> list[chess.Move]:
    """The moves of packed bytes."""
    return [chess.Move(c & 63, c >> 6 & 63, c >> 12 or None) for c in np.frombuffer(packed, "<u2").tolist()]


def replay(packed: bytes) -> Iterator[chess.Board]:
    """The board after 0, 1, … plies: one board object, changed in place."""
    board = chess.Board()
    yield board
    for move in unpack(packed):
        board.push(move)
        yield board


def sans(packed: bytes) -> list[str]:
    """The moves in canonical SAN. Slow (python-chess); a dataset's text has them already."""
    board = chess.Board()
    words: list[str] = []
    for move in unpack(packed):
        words.append(board.san_and_push(move))
    return words


def move_hash(packed: bytes) -> int:
    """64 bits that name a move list: the first 8 bytes of its blake2b-64, little endian."""
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def move_hashes(packed: Iterable[bytes]) -> np.ndarray:
    """`move_hash` of many, uint64 [n]."""
    blake2b = hashlib.blake2b
    return np.frombuffer(b"".join(blake2b(p, digest_size=8).digest() for p in packed), "<u8")
