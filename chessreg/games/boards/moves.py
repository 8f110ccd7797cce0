"""Packed moves, the boards they lead to, and hashes of games and positions.

A packed move is a little-endian uint16: from | to << 6 | promotion << 12 (0 none, 2 N, 3 B, 4 R, 5 Q). Squares are a1=0
… h8=63; castling is the king's move (e1g1). The format and the hash of moves never change, because both identify games.
The hash of a position (64 bits from its pieces and side to move, without castling rights and en passant) may change
between versions of chessreg; it is compared, never stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import chess
import numpy as np

_KEYS = np.array([(0x9E3779B97F4A7C15 * odd) & (2**64 - 1) for odd in range(1, 19, 2)], np.uint64)
_INITIAL = np.zeros(64, np.int8)
_INITIAL[:8] = 4, 2, 3, 5, 6, 3, 2, 4
_INITIAL[8:16] = 1
_INITIAL[48:56], _INITIAL[56:] = -1, -_INITIAL[:8]


def pack_moves(moves: Iterable[chess.Move]) -> bytes:
    """Return moves as packed bytes.

    >>> pack_moves([chess.Move.from_uci("e2e4")]).hex()
    '0c07'
    """
    codes = [m.from_square | m.to_square << 6 | (m.promotion or 0) << 12 for m in moves]
    return np.array(codes, "<u2").tobytes()


def unpack_moves(packed_moves: bytes) -> list[chess.Move]:
    """Return packed bytes as moves."""
    return [chess.Move(c & 63, c >> 6 & 63, c >> 12 or None) for c in np.frombuffer(packed_moves, "<u2").tolist()]


def replay_boards(packed_moves: bytes) -> Iterator[chess.Board]:
    """Yield the board after 0, 1, … plies. It is one board object, changed in place."""
    board = chess.Board()
    yield board
    for move in unpack_moves(packed_moves):
        board.push(move)
        yield board


def convert_packed_to_sans(packed_moves: bytes) -> list[str]:
    """Return the moves in canonical SAN. Slow (python-chess); a dataset's text column already contains them."""
    board = chess.Board()
    sans: list[str] = []
    for move in unpack_moves(packed_moves):
        sans.append(board.san_and_push(move))
    return sans


def hash_moves(packed_moves: bytes) -> int:
    """Return 64 bits that identify a list of moves: its blake2b-64 digest, little endian."""
    return int.from_bytes(hashlib.blake2b(packed_moves, digest_size=8).digest(), "little")


def hash_move_lists(packed_games: Iterable[bytes]) -> np.ndarray:
    """Return `hash_moves` of each list of moves, uint64 [n]."""
    blake2b = hashlib.blake2b
    return np.frombuffer(b"".join(blake2b(p, digest_size=8).digest() for p in packed_games), "<u8")


def compute_boards_after(packed_games: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return (boards int8 [positions, 64], offsets int64 [games + 1]) of games given as packed legal moves.

    Row `offsets[g] + p` is game g after p plies. Squares are a1, b1 … h8, P=1 N=2 B=3 R=4 Q=5 K=6, negative for Black.
    All games advance together, ply by ply: 4 million positions per second.
    """
    plies = np.array([len(moves) // 2 for moves in packed_games], np.int64)
    starts = np.cumsum([0, *plies])
    offsets = starts + np.arange(len(plies) + 1)
    boards = np.empty((int(offsets[-1]), 64), np.int8)
    boards[offsets[:-1]] = _INITIAL
    codes = np.frombuffer(b"".join(packed_games), "<u2").astype(np.int64)
    order = np.argsort(
        -plies, kind="stable"
    )  # the longest first, so that the unfinished games are always the first ones
    boards_after = np.tile(_INITIAL, (len(plies), 1))
    game_count = len(plies)
    for ply in range(int(plies.max(initial=0))):
        while plies[order[game_count - 1]] <= ply:
            game_count -= 1
        rows, games = np.arange(game_count), order[:game_count]
        code = codes[starts[games] + ply]
        origin, target, promotion = code & 63, code >> 6 & 63, code >> 12
        piece = boards_after[rows, origin]
        kind = np.abs(piece)
        en_passant_plies = np.flatnonzero(
            (kind == chess.PAWN) & ((origin ^ target) & 7 != 0) & (boards_after[rows, target] == 0)
        )
        boards_after[en_passant_plies, origin[en_passant_plies] & 56 | target[en_passant_plies] & 7] = (
            0  # the pawn captured en passant
        )
        boards_after[rows, origin] = 0
        boards_after[rows, target] = np.where(promotion > 0, np.sign(piece) * promotion.astype(np.int8), piece)
        castling = np.flatnonzero((kind == chess.KING) & (np.abs(target - origin) == 2))
        is_short = target[castling] > origin[castling]
        boards_after[castling, target[castling] + np.where(is_short, 1, -2)] = 0
        boards_after[castling, target[castling] + np.where(is_short, -1, 1)] = np.sign(piece[castling]) * np.int8(
            chess.ROOK
        )
        boards[offsets[games] + ply + 1] = boards_after[:game_count]
    return boards, offsets


_CASTLING = np.zeros(64, np.uint8)  # the rights (K=1 Q=2 k=4 q=8) that end when a piece leaves or enters a square
_CASTLING[[chess.H1, chess.A1, chess.E1, chess.H8, chess.A8, chess.E8]] = 1, 2, 3, 4, 8, 12


def compute_rights_after(packed_games: Sequence[bytes], boards: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return castling and en-passant rights of `compute_boards_after(packed)`, uint8 [positions].

    Castling rights are K=1 Q=2 k=4 q=8. A pawn that an adjacent enemy pawn could capture en passant, pinned or not,
    adds 16 times its file (a=1).
    """
    codes = np.frombuffer(b"".join(packed_games), "<u2").astype(np.int64)
    at = np.setdiff1d(np.arange(offsets[-1]), offsets[:-1], assume_unique=True)  # every position after a move
    origin, target = codes & 63, codes >> 6 & 63
    lost_rights = np.zeros(int(offsets[-1]), np.uint8)
    lost_rights[at] = _CASTLING[origin] | _CASTLING[target]
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        np.bitwise_or.accumulate(lost_rights[low:high], out=lost_rights[low:high])
    rights = 15 - lost_rights
    pawn = boards[at, target]
    double_steps = np.flatnonzero((np.abs(pawn) == chess.PAWN) & (np.abs(origin - target) == 16))
    for step in (-1, 1):
        file = (target[double_steps] & 7) + step
        inside = double_steps[(file >= 0) & (file < 8)]
        can_take = inside[boards[at[inside], target[inside] + step] == -pawn[inside]]
        rights[at[can_take]] = rights[at[can_take]] & 15 | (16 * ((target[can_take] & 7) + 1)).astype(np.uint8)
    return rights


def mix_bits(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64, a bijection of uint64 in which every input bit affects every output bit, in
    place, and return the array."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def hash_positions(boards: np.ndarray, plies: np.ndarray) -> np.ndarray:
    """Return hashes uint64 [n] of boards int8 [n, 64] after `plies` int [n] plies (even: White to move)."""
    ranks = np.ascontiguousarray(boards, np.int8).view(np.uint64)
    hashes = mix_bits((plies % 2).astype(np.uint64) ^ _KEYS[8])
    for rank in range(8):
        hashes = mix_bits(hashes ^ ranks[:, rank] ^ _KEYS[rank])
    return hashes


class HashSet:
    """A set of 64-bit hashes with fast membership tests for many hashes, most of which are not in the set."""

    def __init__(self, hashes: np.ndarray) -> None:
        self.sorted_hashes = np.unique(hashes.astype(np.uint64, copy=False))
        self._mask = np.uint64((1 << max(16, min(26, (16 * len(self.sorted_hashes)).bit_length()))) - 1)
        self._is_filled = np.zeros(int(self._mask) + 1, bool)
        self._is_filled[self.sorted_hashes & self._mask] = True

    def __len__(self) -> int:
        return len(self.sorted_hashes)

    def places(self, hashes: np.ndarray) -> np.ndarray:
        """Return the index of each hash in `sorted_hashes`, int64 [n]; -1 if it is absent."""
        rows = np.full(len(hashes), -1, np.int64)
        maybe = np.flatnonzero(self._is_filled[hashes & self._mask])
        place = np.searchsorted(self.sorted_hashes, hashes[maybe])
        place[place == len(self.sorted_hashes)] = 0
        hit = self.sorted_hashes[place] == hashes[maybe] if len(self.sorted_hashes) else np.zeros(0, bool)
        rows[maybe[hit]] = place[hit]
        return rows

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """Return whether each hash is in the set, bool [n]."""
        return self.places(hashes) >= 0
