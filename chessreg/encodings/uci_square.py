"""`uci-square-72` (Davis) and `uci-square-77` (LCB): a move is the token of its origin square, its target square and,
for a promotion, the piece. Castling is the king's move. Source: Davis 2026, Appendices A and B.

Promotion pieces are always lower case, and nothing is written as `<unk>`, although Davis's published model very likely
saw promotions only as `<unk>` (1.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import chess
import numpy as np

from chessreg.encodings.base import (
    Alignment,
    Content,
    Form,
    Ids,
    Notation,
    Select,
    Sites,
    Tokens,
    TokenView,
    check_alignment,
    check_ids,
    check_whole_game,
    make_history_encoding_error,
    resolve_board,
    select_sites,
)
from chessreg.encodings.fen77 import make_uci_forms
from chessreg.errors import BadInputError
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

WHITE_ORIGIN, WHITE_DESTINATION, BLACK_ORIGIN, BLACK_DESTINATION, PROMOTION, SPECIAL = range(6)
"""The phases: the kind of token that is read (Davis 2026, Appendix A)."""

_PIECE = re.compile(r"[a-h][1-8]|[qrbnQRBN]|</?\w+>|\s+")
_PROMOTION_LETTERS = {chess.QUEEN: "q", chess.ROOK: "r", chess.BISHOP: "b", chess.KNIGHT: "n"}
_LCB_SQUARES = (
    "c2 c4 e7 e5 g2 g3 b8 c6 f1 g8 f6 b1 c3 f8 b4 d5 e8 e2 e3 e4 a2 a3 d6 d8 a1 e6 b2 b3 c7 d2 d3 f7 f5 a7 a5 g1 d4 g4 "
    "c5 e1 d7 d1 h8 c1 a4 h2 h3 a8 f4 g7 g5 b6 b7 c8 h7 h4 f3 h5 h1 f2 h6 g6 b5 a6"
)


class _SquareView(TokenView):
    """The tokens of games with their phase and the number of plies played once each token is read."""

    def __init__(self, tokens: Tokens, phase_of: np.ndarray, bos: int, alignment: Alignment) -> None:
        """`phase_of` int8 [ids] is 0 for squares, else PROMOTION or SPECIAL."""
        super().__init__(tokens)
        kind = phase_of[self.ids]
        square = kind == 0
        square_counts = np.zeros(len(self.ids) + 1, np.int64)
        np.cumsum(square, out=square_counts[1:])
        before = square_counts[:-1] - np.repeat(
            square_counts[tokens.offsets[:-1]], self.lengths
        )  # number of squares read in this game
        self.phase = np.where(square, before % 4, kind).astype(np.int8)
        promotes = np.zeros(len(self.ids), bool)  # whether the next token is this move's promotion
        promotes[:-1] = (kind[1:] == PROMOTION) & ~self.last[:-1]
        target = square & (before % 2 == 1)
        self.turn = (target & ~promotes) | (kind == PROMOTION) | (self.ids == bos)
        self.after = before // 2 + (target & ~promotes)
        self.ply = self.after if alignment == "post-ply" else (before - (kind == PROMOTION)) // 2


def _select_phases(*phases: int) -> Callable[[TokenView], np.ndarray]:
    """Return a function that selects the tokens of these phases."""
    return lambda view: np.isin(view.phase, phases)


SITES: NameRegistry[tuple[Select, int]] = NameRegistry("site of UCI squares")
for _name, _select in {
    "turns": lambda view: view.turn,
    "white-turns": lambda view: view.turn & (view.after % 2 == 0),
    "black-turns": lambda view: view.turn & (view.after % 2 == 1),
    "last": lambda view: view.last,
    "all": lambda view: np.ones(len(view.ids), bool),
    "origins": _select_phases(WHITE_ORIGIN, BLACK_ORIGIN),
    "destinations": _select_phases(WHITE_DESTINATION, BLACK_DESTINATION),
    "white-origins": _select_phases(WHITE_ORIGIN),
    "white-destinations": _select_phases(WHITE_DESTINATION),
    "black-origins": _select_phases(BLACK_ORIGIN),
    "black-destinations": _select_phases(BLACK_DESTINATION),
    "promotions": _select_phases(PROMOTION),
    "specials": _select_phases(SPECIAL),
    **{f"phase-{number}": _select_phases(number) for number in range(6)},
}.items():
    SITES.register(_name, (_select, 0))


class UciSquare:
    """The UCI-square encoding over a vocabulary that contains `<s>`, 64 squares and q, r, b, n at any ids.

    >>> davis.encode("e2e4 d7d5 e4d5").tolist()
    [1, 16, 32, 55, 39, 32, 39]
    >>> davis.decode(davis.prompt(["e4", "d5"]))
    'e2e4 d7d5'
    """

    content: Content = "history"
    notation: Notation = "uci"
    stop_ids: frozenset[int] = frozenset()
    max_move_tokens = 3
    phases: tuple[str, ...] = (
        "white-origin", "white-destination", "black-origin", "black-destination", "promotion", "special",
    )  # fmt: skip
    promotion_case = "lower"

    def __init__(self, name: str, vocabulary: Sequence[str], closing_tokens: Sequence[str] = ()) -> None:
        """`closing_tokens` are the tokens that end a whole game of a dataset."""
        self.name, self.vocabulary = name, tuple(vocabulary)
        self.size = self.answer_size = len(vocabulary)
        self._id = {text: number for number, text in enumerate(vocabulary)}
        self._closing_ids = [self._id[text] for text in closing_tokens]
        self._bos = self._id["<s>"]
        self._squares = np.array([self._id[square] for square in chess.SQUARE_NAMES], np.uint8)
        self._promotions = np.zeros(8, np.uint8)  # of python-chess's piece types
        self._phase_by_id = np.full(self.size, SPECIAL, np.int8)
        self._phase_by_id[self._squares] = 0
        for piece, letter in _PROMOTION_LETTERS.items():
            self._promotions[piece] = self._id[letter]
            self._phase_by_id[self._id[letter]] = PROMOTION
        self._square_by_id = {int(number): square for square, number in enumerate(self._squares)}
        self._piece_by_id = {self._id[letter]: piece for piece, letter in _PROMOTION_LETTERS.items()}
        self.boundary_ids = frozenset(self._id[text] for text in ("<pad>", "<s>", "</s>"))
        self.masked_ids = frozenset(self._id[text] for text in "PNRBQK" if text in self._id)
        """Piece letters of LCB's oracle models, whose logits are masked in evaluation."""

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(SITES)

    def encode(self, text: str) -> np.ndarray:
        """Return `<s>` and the moves, uint8 [n]. The text may end after any token."""
        ids = [] if text.lstrip().startswith("<s>") else [self._bos]
        place = 0
        while place < len(text):
            match = _PIECE.match(text, place)
            piece = match[0] if match else text[place]
            word = piece.lower() if len(piece) == 1 else piece
            if match is None or (not piece.isspace() and (word == "<unk>" or word not in self._id)):
                raise BadInputError(
                    f"{text[place : place + 8]!r} at index {place} is not a square, promotion or special token of "
                    f"{self.name}",
                    "moves are written like e2e4 e7e8q",
                )
            if not piece.isspace():
                ids.append(self._id[word])
            place += len(piece)
        return np.array(ids, np.uint8)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the moves as text. A leading `<s>` is dropped; other special tokens become separate words."""
        array = check_ids(ids, self.size, self.name)
        texts: list[str] = []
        squares = 0  # of the present move
        for place, number in enumerate(array.tolist()):
            text = self.vocabulary[number]
            if number in self._piece_by_id and texts and squares == 2:
                texts[-1] += text
                squares = 0
            elif number in self._square_by_id:
                if squares == 1:
                    texts[-1] += text
                else:
                    texts.append(text)
                squares = 2 if squares == 1 else 1
            elif place or number != self._bos:
                texts.append(text)
                squares = 0
        return " ".join(texts)

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        return self.encode_packed(games.moves(places))

    def encode_packed(self, games: Sequence[bytes]) -> Tokens:
        """Encode whole games from packed moves; ids are uint8: `<s>`, the moves, then the closing tokens."""
        plies = np.fromiter(map(len, games), np.int64, len(games)) // 2
        codes = np.frombuffer(b"".join(games), "<u2")
        promotion = codes >> 12
        width = 2 + (promotion > 0).astype(np.int64)
        ends = np.zeros(len(codes) + 1, np.int64)
        np.cumsum(width, out=ends[1:])
        edges = np.zeros(len(games) + 1, np.int64)
        np.cumsum(plies, out=edges[1:])
        tokens = Tokens.from_lengths(np.zeros(0, np.uint8), np.diff(ends[edges]) + 1 + len(self._closing_ids))
        ids = np.full(int(tokens.offsets[-1]), self._bos, np.uint8)
        overhead = np.arange(len(games)) * (1 + len(self._closing_ids)) + 1
        start = ends[:-1] + np.repeat(overhead, plies)
        ids[start] = self._squares[codes & 63]
        ids[start + 1] = self._squares[codes >> 6 & 63]
        promotions = np.flatnonzero(promotion)
        ids[start[promotions] + 2] = self._promotions[promotion[promotions]]
        for offset, closing_id in enumerate(reversed(self._closing_ids), 1):
            ids[tokens.offsets[1:] - offset] = closing_id
        return Tokens(ids, tokens.offsets, tokens.source, tokens.ply)

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        raise make_history_encoding_error(self.name)

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return the token positions that `name` selects, with their boards.

        With `post-ply`, the board of the token that completes a move (its destination or promotion) is the one after
        the move. With `pre-ply`, the board of every token is the one before its move. The board of an origin is always
        the one before its move. Only for whole games: in a text that is cut before a promotion piece, the destination
        counts as the move's end.
        """
        check_alignment(alignment)
        return select_sites(SITES, name, tokens, _SquareView(tokens, self._phase_by_id, self._bos, alignment))

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        board = resolve_board(at)
        check_whole_game(board, self.name)
        return (self._bos, *(number for move in board.move_stack for number in self._encode_move(move)))

    def _encode_move(self, move: chess.Move) -> tuple[int, ...]:
        """Return the two or three tokens of a move."""
        squares = int(self._squares[move.from_square]), int(self._squares[move.to_square])
        return (*squares, int(self._promotions[move.promotion])) if move.promotion else squares

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        return {move: self._encode_move(move) for move in board.legal_moves}

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        return self._encode_move(move)

    def find_origin(self, number: int) -> int | None:
        return self._square_by_id.get(number)

    def answer_text(self, ids: Ids) -> str:
        return self.decode(ids)

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        return tuple(sorted(move.uci() for move in board.legal_moves))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        return tuple(self._encode_move(chess.Move.from_uci(text)) for text in self.accepted_texts(board))

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        return make_uci_forms(self._id.__getitem__, 2)

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        """Return the legal move in the first word of a text, or in the ids up to the end of the first move;
        else None."""
        if isinstance(answer, str):
            parts = answer.split()
            try:
                move = chess.Move.from_uci(parts[0].lower() if parts else "")
            except ValueError:
                return None
        else:
            ids = [int(number) for number in answer]
            if len(ids) < 2 or ids[0] not in self._square_by_id or ids[1] not in self._square_by_id:
                return None
            squares = self._square_by_id[ids[0]], self._square_by_id[ids[1]]
            piece = self._piece_by_id.get(ids[2]) if _is_promotion(board, *squares) and len(ids) > 2 else None
            move = chess.Move(*squares, promotion=piece)
        return move if move and board.is_legal(move) else None

    def is_complete(self, ids: Ids, board: chess.Board) -> bool:
        """Return whether the move is complete: after the destination, unless a pawn reaches its last rank there."""
        squares = [self._square_by_id[int(number)] for number in ids[:2] if int(number) in self._square_by_id]
        if len(squares) < min(len(ids), 2) or len(ids) > 2:
            return True
        return len(squares) == 2 and not _is_promotion(board, *squares)


def _is_promotion(board: chess.Board, origin: int, target: int) -> bool:
    """Return whether a pawn of the side to move goes from `origin` to its last rank."""
    return chess.square_rank(target) == (7 if board.turn else 0) and board.piece_at(origin) == chess.Piece(
        chess.PAWN, board.turn
    )


davis = UciSquare("uci-square-72", ("<pad>", "<s>", "</s>", "<unk>", *chess.SQUARE_NAMES, *"qrbn"))
lcb = UciSquare("uci-square-77", ("<pad>", "<s>", "</s>", *"PNRBQK", *_LCB_SQUARES.split(), *"qrbn"), ("</s>",))
