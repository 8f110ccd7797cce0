"""`maia-2`: a position as 77 characters, and a move as one of 1,880, as the side to move sees it.

Source: Tang et al. 2024 (arXiv 2409.20553). Maia-2 always plays as White: for Black to move, the board is mirrored from
top to bottom and the colors are exchanged. Black's e7e5 is therefore written `e2e4`. The model reads neither of the
move counters. Its residual stream has no token per character, so only sites at the end of a position are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

import chess

from chessreg.encodings import register_encoding
from chessreg.encodings.base import Alignment, Ids, Sites, Tokens, check_ids
from chessreg.encodings.fen77 import SITES, FenCharacters
from chessreg.errors import BadInputError
from chessreg.named import NameRegistry

MAIA2_SITES: NameRegistry[tuple[range, str]] = NameRegistry("site of maia-2")
for _name in ("last", "turns", "white-turns", "black-turns", "all"):
    MAIA2_SITES.register(_name, SITES[_name])


def list_maia2_moves() -> Iterator[str]:
    """Yield the 1,880 moves (UCI) in the order of Maia-2's outputs.

    From each square, the moves of a queen and then those of a knight, each with falling target; then White's
    promotions.
    """
    empty = chess.Board(None)
    for origin in chess.SQUARES:
        for piece in (chess.QUEEN, chess.KNIGHT):
            empty.set_piece_at(origin, chess.Piece(piece, chess.WHITE))
            targets = sorted(empty.attacks(origin), reverse=True)
            yield from (chess.Move(origin, target).uci() for target in targets)
        empty.remove_piece_at(origin)
    for origin in chess.SquareSet(chess.BB_RANK_7):
        for target in (origin + 8, origin + 7, origin + 9):
            if chess.square_rank(target) == 7 and chess.square_distance(origin, target) == 1:
                for piece in (chess.QUEEN, chess.ROOK, chess.BISHOP, chess.KNIGHT):
                    yield chess.Move(origin, target, piece).uci()


def mirror_move_for_black(move: chess.Move, turn: chess.Color) -> chess.Move:
    """Return the move as the side to move sees it; for a move as that side sees it, return the move itself."""
    if turn == chess.WHITE:
        return move
    return chess.Move(chess.square_mirror(move.from_square), chess.square_mirror(move.to_square), move.promotion)


class Maia2Encoding(FenCharacters):
    """The `maia-2` encoding: a model reads 31 characters and writes 1,880 moves.

    >>> maia = Maia2Encoding()
    >>> maia.answer(chess.Board(), chess.Move.from_uci("e2e4"))
    (311,)
    >>> maia.answer_text((311,))
    'e2e4'
    """

    name = "maia-2"
    answer_size = 1880
    named_sites: ClassVar[NameRegistry[tuple[range, str]]] = MAIA2_SITES

    @cached_property
    def moves(self) -> tuple[str, ...]:
        """The UCI text of each answer, as the side to move sees it."""
        return tuple(list_maia2_moves())

    @cached_property
    def move_ids(self) -> dict[str, int]:
        """UCI text, as the side to move sees it → answer."""
        return {move: number for number, move in enumerate(self.moves)}

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return sites. Raises BadInputError for the sites of single characters in fen-77."""
        if name in SITES and name not in MAIA2_SITES:
            raise BadInputError(
                f"a model of {self.name} has no activations at {name}: its tokens are maps of the whole board",
                "--sites turns",
            )
        return super().sites(name, tokens, alignment)

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        number = self.move_ids.get(mirror_move_for_black(move, board.turn).uci())
        if number is None:
            raise BadInputError(f"{move.uci()} is not one of the {self.answer_size:,} moves of {self.name}")
        return (number,)

    def find_origin(self, number: int) -> int | None:
        """Return None: the from-square depends on the side to move."""
        return None

    def answer_text(self, ids: Ids) -> str:
        return " ".join(self.moves[number] for number in check_ids(ids, self.answer_size, self.name).tolist())

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        return tuple(sorted(mirror_move_for_black(move, board.turn).uci() for move in board.legal_moves))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        return tuple((self.move_ids[text],) for text in self.accepted_texts(board))

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        text = answer if isinstance(answer, str) else self.answer_text(answer[:1])
        try:
            played_move = chess.Move.from_uci(text.strip())
        except ValueError:
            return None
        move = mirror_move_for_black(played_move, board.turn)
        return move if move and board.is_legal(move) else None


register_encoding(Maia2Encoding())
