"""Every text that python-chess reads as a legal move: canonical SAN, long algebraic, needless origins, signs left out.

`Board.parse_san` ignores `x`, `-`, `+` and `#`, takes more of an origin than is needed, and `0-0` for `O-O`. A model
may write any of these, so the probability that its text is legal is a sum over all of them. Null moves (`--`) are none.
"""

from __future__ import annotations

from collections import Counter

import chess

_SIGNS = ("", "+", "#")
_BETWEEN = ("", "x", "-")
_PROMOTIONS = {
    chess.KNIGHT: ("N", "n"),
    chess.BISHOP: ("B", "b"),
    chess.ROOK: ("R", "r"),
    chess.QUEEN: ("Q", "q"),
}


def spellings(board: chess.Board, alphabet: str | None = None) -> frozenset[str]:
    """All texts that `board.parse_san` reads as a legal move; with an `alphabet` those of its characters alone.

    >>> sorted(spellings(chess.Board("8/8/8/8/8/1k6/8/K7 w - - 0 1"), "Kab1"))
    ['Kab1', 'Ka1b1', 'K1b1', 'Kb1', 'a1b1']
    """
    moves = list(board.legal_moves)
    # (piece letter, origin, target, promotion) → how many legal moves it may mean; one makes it a spelling
    meant: Counter[tuple[str, str, int, int | None]] = Counter()
    written: set[str] = set()
    for move in moves:
        letter = board.piece_at(move.from_square).symbol().upper()  # type: ignore[union-attr]
        origin_name = chess.square_name(move.from_square)
        file, rank = origin_name[0], origin_name[1]
        origins = {"", file, rank, file + rank}
        if letter == "P":
            letter = ""
            origins.discard(file + rank)  # a full origin without a letter means any piece: below
            if move.from_square & 7 != move.to_square & 7:
                origins = {file}  # a pawn's capture needs its file
        if board.is_castling(move):
            origins = set()  # `Kg1` is no castling
            rook = chess.square(7 if board.is_kingside_castling(move) else 0, move.from_square >> 3)
            meant["", file + rank, rook, None] += 1  # the king takes its rook, as Chess960 writes it
            castle = "O-O" if board.is_kingside_castling(move) else "O-O-O"
            written.update(text + sign for text in (castle, castle.replace("O", "0")) for sign in _SIGNS)
        for origin in origins:
            meant[letter, origin, move.to_square, move.promotion] += 1
        meant["", file + rank, move.to_square, move.promotion] += 1
    for (letter, origin, target, promotion), count in meant.items():
        if count > 1:
            continue
        heads = [letter + origin + between + chess.square_name(target) for between in _BETWEEN]
        if promotion:
            heads = [head + equals + name for head in heads for equals in ("=", "") for name in _PROMOTIONS[promotion]]
        written.update(head + sign for head in heads for sign in _SIGNS)
    if alphabet is None:
        return frozenset(written)
    known = set(alphabet)
    return frozenset(text for text in written if known.issuperset(text))
