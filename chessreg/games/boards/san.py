"""Canonical SAN of many games at once, from moves and boards: the text column of a dataset.

The text is written from the moves that the reader played, not copied from the source. It is therefore canonical, and
equal to python-chess's `Board.san` (checked by tests), which writes 70 thousand plies per second; this code writes two
million.

Check: after a move, the enemy king is attacked by the moved piece (or the castled rook) from its new square, or by a
slider along a line that the move opened: through the origin, or through the square of a pawn captured en passant.
Nothing else can attack it, because it was not in check before. Disambiguation: other pieces of the same kind that reach
the square do not count if they are pinned off that line. Being in check needs no test, because the square where one
piece answers a check is the square where another would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chessreg.games.boards.attacks import (
    BISHOP,
    BLACK_PAWN,
    KING,
    QUEEN,
    ROOK,
    WHITE_PAWN,
    build_tables,
    find_first_on_ray,
    find_lowest_bit,
    get_square_bit,
)

_SLICE = 1 << 15  # plies per slice, which keeps the working arrays in the CPU cache
_WIDTH = 15  # ";" + five digits + "." + seven of SAN + " "
_LETTER = np.frombuffer(b"\0\0NBRQK", np.uint8)
_DIAGONAL_NUMBERS = np.array([0, 0, 1, 1, 0, 0, 1, 1, 0], bool)


@dataclass(frozen=True)
class ReplayedGames:
    """Moves of several games with their boards, as both readers return them.

    `boards` uint8 [plies + games, 64]: codes 0 empty, 1..6 white PNBRQK, 7..12 black, a1..h8, ordered by game, the
    initial position first; `origin`, `target` uint8 [plies] squares; `promotion` int8 [plies], -1 none, 2..5 N B R Q;
    `offsets` int64 [games + 1] into the plies; `is_mate` bool [games]: whether the last position is checkmate.
    """

    boards: np.ndarray
    origin: np.ndarray
    target: np.ndarray
    promotion: np.ndarray
    offsets: np.ndarray
    is_mate: np.ndarray


def write_game_texts(replay: ReplayedGames) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated game texts (`;1.e4 e5 2.Nf3`), uint8, and their offsets, int64 [games + 1].

    The text of a game without moves is `;`.
    """
    plies = len(replay.origin)
    lengths = np.diff(replay.offsets)
    game = np.repeat(np.arange(len(lengths)), lengths)
    ply = np.arange(plies) - replay.offsets[game]
    before = np.arange(plies) + game
    white_king, black_king = _find_king_squares(replay, before)
    mate = np.zeros(plies, bool)
    mate[(replay.offsets[1:] - 1)[replay.is_mate & (lengths > 0)]] = True
    is_last = np.zeros(plies, bool)
    is_last[(replay.offsets[1:] - 1)[lengths > 0]] = True

    text: list[np.ndarray] = []
    sizes = np.zeros(plies, np.int64)
    for start in range(0, plies, _SLICE):
        part = slice(start, min(start + _SLICE, plies))
        moves = _MoveSlice(
            replay.boards[before[part.start] : before[part.stop - 1] + 2],
            before[part] - before[part.start],
            replay.origin[part].astype(np.int64),
            replay.target[part].astype(np.int64),
            replay.promotion[part],
            white_king[part],
            black_king[part],
        )
        table = _write_letters(moves, ply[part], mate[part], is_last[part])
        is_letter = table != 0
        sizes[part] = is_letter.sum(axis=1)
        text.append(table[is_letter])

    ends = np.zeros(plies + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    empty = lengths == 0
    characters = np.concatenate(text) if text else np.zeros(0, np.uint8)
    if empty.any():  # a game without moves is `;`, which no ply writes
        characters = np.insert(characters, ends[replay.offsets[:-1]][empty], ord(";"))
    return characters, ends[replay.offsets] + np.concatenate([[0], np.cumsum(empty)])


class _MoveSlice:
    """One slice of plies with the properties that the SAN rules need."""

    def __init__(
        self,
        boards: np.ndarray,
        before: np.ndarray,
        origin: np.ndarray,
        target: np.ndarray,
        promotion: np.ndarray,
        white_king: np.ndarray,
        black_king: np.ndarray,
    ) -> None:
        self.boards = boards.reshape(-1)
        self.before = before
        self.occupied_bits = np.packbits(boards != 0, axis=1, bitorder="little").view("<u8").reshape(-1)
        self.origin, self.target, self.promotion = origin, target, promotion
        self.code = self.boards[before * 64 + origin]
        self.white = self.code <= 6
        self.kind = np.where(self.white, self.code, self.code - 6)
        self.own_king = np.where(self.white, white_king, black_king)
        self.enemy_king = np.where(self.white, black_king, white_king)
        self.castling = (self.kind == KING) & (np.abs(target - origin) == 2)
        crossing = (self.kind == WHITE_PAWN) & ((origin ^ target) & 7 != 0)
        is_capture = self.boards[before * 64 + target] != 0
        self.en_passant = crossing & ~is_capture
        self.capture = is_capture | crossing


def _find_king_squares(replay: ReplayedGames, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the squares of White's and of Black's king before each ply, int64, carried forward from the
    king's moves."""
    code = replay.boards.reshape(-1)[before * 64 + replay.origin]
    is_first = np.zeros(len(code) + 1, bool)
    is_first[replay.offsets[:-1]] = True
    squares = []
    for king, home in ((6, 4), (12, 60)):
        # known[i] is before ply i: the home square at a game's start, the last target after a king move
        king_squares = is_first.copy()
        value = np.full(len(code) + 1, home, np.int64)
        king_moves = np.flatnonzero((code == king) & ~is_first[1:]) + 1
        king_squares[king_moves] = True
        value[king_moves] = replay.target[king_moves - 1]
        latest = np.maximum.accumulate(np.where(king_squares, np.arange(len(king_squares)), 0))
        squares.append(value[latest][:-1])
    return squares[0], squares[1]


def _is_slider(code: np.ndarray, white: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return whether pieces move along a direction as sliders of a side, bool [n].

    `code` has the codes of `ReplayedGames.boards`, `white` bool the side, `direction` 0..7 as in `attacks.DIRECTIONS`.
    """
    kind = code.astype(np.int64) - np.where(white, 0, 6)
    return (kind == QUEEN) | (kind == np.where(_DIAGONAL_NUMBERS[direction], BISHOP, ROOK))


def _opens_line(m: _MoveSlice, at: np.ndarray, vacated_square: np.ndarray) -> np.ndarray:
    """Return whether a vacated square opens a line from the enemy king to a slider of the mover, for plies `at`."""
    king = m.enemy_king[at]
    direction = build_tables().direction[king * 64 + vacated_square].astype(np.int64)
    blocker = find_first_on_ray(king, direction, m.occupied_bits[m.before[at] + 1])
    piece = m.boards[(m.before[at] + 1) * 64 + np.maximum(blocker, 0)]
    return (blocker >= 0) & _is_slider(piece, m.white[at], direction)


def _gives_check(m: _MoveSlice) -> np.ndarray:
    """Return whether each ply gives check, bool."""
    t = build_tables()
    kind = np.where(m.promotion > 0, m.promotion, m.kind).astype(np.int64)
    kind = np.where((kind == WHITE_PAWN) & ~m.white, BLACK_PAWN, kind)
    place = np.where(
        m.castling, (m.origin + m.target) >> 1, m.target
    )  # the castled rook is on the square that the king crossed
    kind = np.where(m.castling, ROOK, kind)
    check = t.attacks[kind, place] >> m.enemy_king.astype(np.uint64) & np.uint64(1) != 0
    check &= t.squares_between[place * 64 + m.enemy_king] & m.occupied_bits[m.before + 1] == 0
    in_line = np.flatnonzero(t.direction[m.enemy_king * 64 + m.origin] < 8)
    check[in_line] |= _opens_line(m, in_line, m.origin[in_line])
    en_passant_plies = np.flatnonzero(m.en_passant)
    check[en_passant_plies] |= _opens_line(
        m, en_passant_plies, (m.origin[en_passant_plies] & 56) | (m.target[en_passant_plies] & 7)
    )
    return check


def _is_pinned(m: _MoveSlice, at: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Return whether a piece on `square` cannot go to the target because it shields its own king, for plies `at`."""
    t = build_tables()
    king = m.own_king[at]
    direction = t.direction[king * 64 + square].astype(np.int64)
    occupied_bits = m.occupied_bits[m.before[at]]
    shields = (direction < 8) & (t.squares_between[king * 64 + square] & occupied_bits == 0)
    shields &= t.direction[king * 64 + m.target[at]] != direction
    blocker = find_first_on_ray(king, direction, occupied_bits & ~get_square_bit(square))
    piece = m.boards[m.before[at] * 64 + np.maximum(blocker, 0)]
    return shields & (blocker >= 0) & _is_slider(piece, ~m.white[at], direction)


def _find_rivals(m: _MoveSlice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find plies where another piece of the same kind can go to the same square.

    Returns (plies int64 [k], whether such a piece shares the file bool [k], whether one shares the rank bool [k]).
    """
    t = build_tables()
    ambiguous = np.flatnonzero((m.kind > WHITE_PAWN) & (m.kind < KING))
    rows = m.boards.reshape(-1, 64)[m.before[ambiguous]] == m.code[ambiguous, None]
    rivals = np.packbits(rows, axis=1, bitorder="little").view("<u8").reshape(-1)
    rivals &= ~get_square_bit(m.origin[ambiguous]) & t.attacks[m.kind[ambiguous], m.target[ambiguous]]
    has_rivals = rivals != 0
    at, remaining_rivals = ambiguous[has_rivals], rivals[has_rivals]
    has_rival, shares_file, on_rank = (np.zeros(len(at), bool) for _ in range(3))
    while remaining_rivals.any():
        open_ = np.flatnonzero(remaining_rivals)
        square = find_lowest_bit(remaining_rivals[open_])
        remaining_rivals[open_] &= remaining_rivals[open_] - np.uint64(1)
        open_moves = at[open_]
        reaches = t.squares_between[square * 64 + m.target[open_moves]] & m.occupied_bits[m.before[open_moves]] == 0
        reaches &= ~_is_pinned(m, open_moves, square)
        has_rival[open_] |= reaches
        shares_file[open_] |= reaches & ((square ^ m.origin[open_moves]) & 7 == 0)
        on_rank[open_] |= reaches & (square >> 3 == m.origin[open_moves] >> 3)
    return at[has_rival], shares_file[has_rival], on_rank[has_rival]


def _write_letters(m: _MoveSlice, ply: np.ndarray, mate: np.ndarray, is_last: np.ndarray) -> np.ndarray:
    """Return the characters of each ply with its move number and separator, uint8 [plies, 15]; zeros are unused.

    `m` has the moves, `ply` int [plies] their numbers in the game from 0. `mate` and `is_last` select the mating plies
    and the last ply of each game.
    """
    n = len(ply)
    letters = np.zeros((_WIDTH, n), np.uint8)
    number = np.where(ply % 2 == 0, ply // 2 + 1, 0)
    letters[0, ply == 0] = ord(";")
    for column, power in enumerate((10_000, 1_000, 100, 10, 1), 1):
        rows = np.flatnonzero(number >= power)
        letters[column, rows] = ord("0") + number[rows] // power % 10
    letters[6, number > 0] = ord(".")

    pawn = m.kind == WHITE_PAWN
    letters[7] = _LETTER[m.kind]
    pawn_takes = np.flatnonzero(pawn & m.capture)
    letters[7, pawn_takes] = ord("a") + (m.origin[pawn_takes] & 7)
    at, shares_file, on_rank = _find_rivals(m)
    by_file = on_rank | ~shares_file  # the file distinguishes them unless one shares it; then the rank does
    letters[8, at[by_file]] = ord("a") + (m.origin[at[by_file]] & 7)
    letters[9, at[shares_file]] = ord("1") + (m.origin[at[shares_file]] >> 3)
    letters[10, m.capture] = ord("x")
    letters[11] = ord("a") + (m.target & 7)
    letters[12] = ord("1") + (m.target >> 3)
    check = np.flatnonzero(_gives_check(m))
    letters[13, check] = ord("+")
    letters[13, mate] = ord("#")
    letters[14, ~is_last] = ord(" ")

    promotions = np.flatnonzero(m.promotion > 0)
    if len(promotions):  # "exd8=Q+" needs the same seven columns, two of which are free before the capture
        letters[8, promotions] = letters[10, promotions]
        letters[9:11, promotions] = letters[11:13, promotions]
        letters[11, promotions] = ord("=")
        letters[12, promotions] = _LETTER[m.promotion[promotions]]
    castlings = np.flatnonzero(m.castling)
    if len(castlings):
        long = m.target[castlings] < m.origin[castlings]
        letters[7:12, castlings] = np.where(long, np.frombuffer(b"O-O-O", np.uint8)[:, None], np.uint8(0))
        letters[12, castlings] = 0
        short = castlings[~long]
        letters[7:10, short] = np.frombuffer(b"O-O", np.uint8)[:, None]
    return np.ascontiguousarray(letters.T)
