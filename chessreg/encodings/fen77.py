"""`fen-77`: a position as 77 characters derived from its FEN, and a move as one of 1,968 actions.

Source: Ruoss et al. 2024, `tokenizer.py` and `utils.py` of searchless_chess. The tokens are:

    0        side to move               1-64    squares a8 … h8, a7 … h1, `.` for an empty one
    65-68    castling, as in the FEN    69-70   en passant    71-73, 74-76  half-move clock, full-move number

Short fields are padded on the right with `.`. A token that a model puts in front (Junkin's nanoGPT: 0) is not part of
the encoding.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import chess
import numpy as np

from chessreg.encodings.base import (
    Alignment,
    Content,
    Form,
    Ids,
    Notation,
    Sites,
    Tokens,
    check_alignment,
    check_ids,
    resolve_board,
)
from chessreg.errors import BadInputError
from chessreg.games.boards.fields import compute_fen_fields
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

_CHARACTERS = "0123456789abcdefghpnrkqPBNRQKw."
_EMPTY = _CHARACTERS.index(".")
FEN77_TOKENS = 77
_FIELDS = {"castling": (65, 4), "en-passant": (69, 2), "halfmoves": (71, 3), "fullmoves": (74, 3)}
SQUARE_BY_TOKEN = np.full(FEN77_TOKENS, -1, np.int8)
"""The square of each token (a1 = 0); -1 for tokens that are not squares."""
SQUARE_BY_TOKEN[1:65] = np.arange(64).reshape(8, 8)[::-1].reshape(64)
_BATCH_FENS = 1 << 10  # keeps the working arrays in the CPU cache
_FEN = re.compile(r"\S+ [wb] (?:-|[KQkq]{1,4}) (?:-|[a-h][36]) \d{1,3} \d{1,3}", re.ASCII)
_TAIL = re.compile(r"([wb]) (-|[KQkq]{1,4}) (-|[a-h][36]) (\d{1,3}) (\d{1,3})", re.ASCII)
_RUNS = [(b"%d" % run, b"1" * run) for run in range(2, 9)]
_SLASH, _END, _INVALID = 200, 201, 255
_CODE_BY_BYTE = bytes(
    {"1": _EMPTY, "/": _SLASH, " ": _END}.get(c, _CHARACTERS.index(c) if c in "pnbrqkPNBRQK" else _INVALID)
    for c in map(chr, range(256))
)
"""Maps a byte of a FEN's first field (its digits expanded to ones) to a token, or to one of the three codes above."""


class FenError(BadInputError):
    """Raised when a FEN cannot be written as 77 characters."""


SITES: NameRegistry[tuple[range, str]] = NameRegistry("site of fen-77")
"""Site name → (token positions, sides to move of the boards that have the site: "w", "b" or "wb")."""
for _name, _tokens in {
    "last": range(FEN77_TOKENS - 1, FEN77_TOKENS),
    "turns": range(FEN77_TOKENS - 1, FEN77_TOKENS),
    "squares": range(1, 65),
    "side": range(1),
    **{name: range(start, start + length) for name, (start, length) in _FIELDS.items()},
    "all": range(FEN77_TOKENS),
}.items():
    SITES.register(_name, (_tokens, "wb"))
SITES.register("white-turns", (range(FEN77_TOKENS - 1, FEN77_TOKENS), "w"))
SITES.register("black-turns", (range(FEN77_TOKENS - 1, FEN77_TOKENS), "b"))


def list_actions() -> Iterator[str]:
    """Yield the 1,968 moves (UCI) in the reference's order: queen and knight moves from each square, then
    promotions."""
    empty = chess.Board(None)
    for origin in chess.SQUARES:
        for piece in (chess.QUEEN, chess.KNIGHT):
            empty.set_piece_at(origin, chess.Piece(piece, chess.WHITE))
            for target in empty.attacks(origin):
                yield chess.SQUARE_NAMES[origin] + chess.SQUARE_NAMES[target]
        empty.remove_piece_at(origin)
    for origin_rank, target_rank in (("2", "1"), ("7", "8")):
        for file in range(8):
            for neighbor_file in (file, file - 1, file + 1):
                if 0 <= neighbor_file < 8:
                    squares = f"{'abcdefgh'[file]}{origin_rank}{'abcdefgh'[neighbor_file]}{target_rank}"
                    yield from (squares + piece for piece in "qrbn")


def make_uci_forms(ids: Callable[[str], int], width: int) -> tuple[Form, ...]:
    """Return the forms of the 1,968 UCI moves.

    `ids` maps a text to its token; `width` is the number of characters per token in the squares of a move: 1 (a
    character) or 2 (a square). A promotion piece is one token.
    """
    continuations: dict[tuple[str, ...], set[str]] = {}
    promotions: dict[tuple[str, ...], set[str]] = {}
    for move in list_actions():
        words = [move[start : start + width] for start in range(0, 4, width)]
        last_words = continuations.setdefault(tuple(words[:-1]), set())
        if len(move) == 5:
            promotions.setdefault(tuple(words), set()).add(move[4])
        else:
            last_words.add(words[-1])
    ends = [*continuations.items(), *promotions.items()]
    return tuple(
        (*(frozenset({ids(word)}) for word in head), frozenset(map(ids, sorted(last)))) for head, last in ends if last
    )


class _Tails(dict[str, bytes]):
    """Cache: the part of a FEN after the squares → its 13 tokens, then the ply as two bytes. KeyError for an invalid
    part."""

    max_entries = 1 << 16

    def __missing__(self, tail: str) -> bytes:
        match = _TAIL.fullmatch(tail)
        if match is None:
            raise KeyError(tail)
        side, *fields = match.groups()
        text = side + "".join(
            ("" if field == "-" else field).ljust(length, ".")
            for field, (_, length) in zip(fields, _FIELDS.values(), strict=True)
        )
        ply = max(2 * (int(fields[-1]) - 1), 0) + (side == "b")
        if len(self) >= self.max_entries:
            self.clear()
        self[tail] = bytes(map(_CHARACTERS.index, text)) + ply.to_bytes(2, "little")
        return self[tail]


class FenCharacters(ABC):
    """Base class of encodings that write a position as 77 characters: everything that a model reads. Subclasses add the
    moves."""

    name: str
    answer_size: int
    vocabulary: tuple[str, ...] = tuple(_CHARACTERS)
    size = len(_CHARACTERS)
    content: Content = "position"
    notation: Notation = "uci"
    stop_ids: frozenset[int] = frozenset()
    boundary_ids: frozenset[int] = frozenset()
    max_move_tokens = 1
    phases: tuple[str, ...] = ("white", "black")
    """The side to move."""
    length = FEN77_TOKENS
    named_sites: ClassVar[NameRegistry[tuple[range, str]]] = SITES

    def __init__(self) -> None:
        self._characters = np.frombuffer(_CHARACTERS.encode(), np.uint8)
        self._ids = np.full(256, 255, np.uint8)
        self._ids[self._characters] = np.arange(self.size)
        self._tails = _Tails()

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(self.named_sites)

    def encode(self, text: str) -> np.ndarray:
        """Return the 77 ids of a FEN, uint8 [77]. Raises FenError that names the problem."""
        return self.boards([text]).ids

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the FEN of 77 ids."""
        array = check_ids(ids, self.size, self.name)
        if len(array) != FEN77_TOKENS:
            raise BadInputError(f"{len(array)} ids are not a board of {self.name}", f"a board is {FEN77_TOKENS} ids")
        text = self._characters[array].tobytes().decode()
        ranks = "/".join(text[start : start + 8] for start in range(1, 65, 8))
        pieces = re.sub(r"\.+", lambda run: str(len(run[0])), ranks)
        field_texts = (text[start : start + length].rstrip(".") or "-" for start, length in _FIELDS.values())
        return " ".join((pieces, text[0], *field_texts))

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        """Encode every position of these games, ordered by game; `source` is the game's index in `places`, `ply` the
        ply.

        Raises FenError for a game with 1,000 moves or more.
        """
        positions = compute_fen_fields(games.moves(places))
        count = len(positions.ply)
        if count and positions.fullmoves.max() > 999:
            raise FenError(f"a game has {positions.fullmoves.max():,} moves", f"{self.name} counts to 999")
        ids = np.full((count, FEN77_TOKENS), _EMPTY, np.uint8)
        ids[:, 0] = self._ids[np.where(positions.ply % 2 == 0, ord("w"), ord("b"))]
        pieces = self._ids[np.frombuffer(b"kqrbnp.PNBRQK", np.uint8)]
        ids[:, 1:65] = pieces[positions.boards[:, SQUARE_BY_TOKEN[1:65]] + 6]
        rights = ["".join(letter for bit, letter in enumerate("KQkq") if set_bits >> bit & 1) for set_bits in range(16)]
        squares = ["", *chess.SQUARE_NAMES]
        numbers = [str(number) for number in range(1000)]
        for name, texts, values in (
            ("castling", rights, positions.castling),
            ("en-passant", squares, positions.en_passant.astype(np.int64) + 1),
            ("halfmoves", numbers, positions.halfmoves),
            ("fullmoves", numbers, positions.fullmoves),
        ):
            start, length = _FIELDS[name]
            padded_text = "".join(text.ljust(length, ".") for text in texts).encode()
            ids[:, start : start + length] = self._ids[np.frombuffer(padded_text, np.uint8).reshape(-1, length)][values]
        offsets = np.arange(count + 1, dtype=np.int64) * FEN77_TOKENS
        source = np.repeat(np.arange(len(places), dtype=np.int64), np.diff(positions.offsets))
        return Tokens(ids.reshape(-1), offsets, source, positions.ply)

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        """Encode FENs or boards. Raises FenError for the first FEN that does not encode to 77 characters."""
        fens = [board if isinstance(board, str) else board.fen() for board in boards]
        ids = np.empty((len(fens), FEN77_TOKENS), np.uint8)
        ply = np.empty(len(fens), np.int64)
        for start in range(0, len(fens), _BATCH_FENS):
            chunk = slice(start, start + _BATCH_FENS)
            self._encode(fens[chunk], ids[chunk], ply[chunk])
        offsets = np.arange(len(fens) + 1, dtype=np.int64) * FEN77_TOKENS
        return Tokens(ids.reshape(-1), offsets, np.arange(len(fens), dtype=np.int64), ply)

    def _encode(self, fens: Sequence[str], ids: np.ndarray, ply: np.ndarray) -> None:
        """Write the tokens of FENs into `ids` uint8 [fens, 77] and their plies into `ply` int64 [fens].

        Expands runs of empty squares in all FENs together, and looks up the other fields in a cache, because they have
        few distinct values. Raises FenError for the first invalid FEN.
        """
        parts = [fen.partition(" ") for fen in fens]
        heads = (" ".join([head for head, _, _ in parts]) + " ").encode("latin-1", "replace")
        for run, ones in _RUNS:
            heads = heads.replace(run, ones)
        if len(heads) != 72 * len(fens):
            raise self._make_fen_error(fens)
        ranks = np.frombuffer(heads.translate(_CODE_BY_BYTE), np.uint8).reshape(-1, 8, 9)
        borders = ranks[:, :, 8]
        if (borders[:, :7] != _SLASH).any() or (borders[:, 7] != _END).any():
            raise self._make_fen_error(fens)
        squares = ranks[:, :, :8].reshape(-1, 64)
        if squares.max(initial=0) >= self.size:
            raise self._make_fen_error(fens)
        try:
            tails = b"".join([self._tails[tail] for _, _, tail in parts])
        except KeyError:
            raise self._make_fen_error(fens) from None
        tail_bytes = np.frombuffer(tails, np.uint8).reshape(-1, 15)
        ids[:, 0] = tail_bytes[:, 0]
        ids[:, 1:65] = squares
        ids[:, 65:] = tail_bytes[:, 1:13]
        ply[:] = tail_bytes[:, 13:].copy().view("<u2")[:, 0]

    def _make_fen_error(self, fens: Sequence[str]) -> FenError:
        """Return the error of the first invalid FEN."""
        for fen in fens:
            fields = fen.split(" ")
            if len(fields) != 6:
                return FenError(f"{fen!r} has {len(fields)} fields", "a FEN has six")
            try:
                chess.BaseBoard(fields[0])
            except ValueError as error:
                return FenError(f"{fen!r} is not a FEN: {error}", "a FEN is like rnbqkbnr/… w KQkq - 0 1")
            if any(field.isascii() and field.isdigit() and int(field) > 999 for field in fields[4:]):
                return FenError(f"{fen!r} has a counter above 999", f"{self.name} has three digits for each")
            if re.fullmatch(r"[A-Ha-hKQkq]+", fields[2]) and not re.fullmatch(r"[KQkq]{1,4}", fields[2]):
                return FenError(f"{fen!r} has Chess960 castling rights", f"{self.name} writes standard chess")
            if not _FEN.fullmatch(fen):
                return FenError(f"{fen!r} is not a FEN", "a FEN is like rnbqkbnr/… w KQkq - 0 1")
        return FenError("one of the FENs is invalid", "a FEN is like rnbqkbnr/… w KQkq - 0 1")

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return sites; both alignments are the same, because an item is one board."""
        check_alignment(alignment)
        sides_mask, sides = self.named_sites[name]
        if not np.array_equal(tokens.offsets, np.arange(len(tokens) + 1) * FEN77_TOKENS):
            raise BadInputError(f"an item of {self.name} is {FEN77_TOKENS} tokens", "encode boards with `boards`")
        side = tokens.ids[tokens.offsets[:-1]]
        items = np.flatnonzero(np.isin(side, [_CHARACTERS.index(letter) for letter in sides]))
        item = np.repeat(items, len(sides_mask))
        phase = (side[item] != _CHARACTERS.index("w")).astype(np.int8)
        return Sites(item, np.tile(np.array(sides_mask), len(items)), tokens.ply[item], phase)

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        return tuple(self.encode(resolve_board(at).fen()).tolist())

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        return {move: self.answer(board, move) for move in board.legal_moves}

    @abstractmethod
    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """Return the ids of a move's answer, without an end token. Raises BadInputError for a move that the model
        cannot write."""

    @property
    def forms(self) -> tuple[Form, ...]:
        return ((frozenset(range(self.answer_size)),),)

    def is_complete(self, ids: Ids, board: chess.Board) -> bool:
        return len(ids) > 0


class Fen77(FenCharacters):
    """The `fen-77` encoding: a model reads 31 characters and writes 1,968 actions.

    >>> fen = Fen77()
    >>> fen.encode(chess.STARTING_FEN)[:10].tolist()
    [29, 20, 19, 11, 22, 21, 11, 19, 20, 18]
    >>> fen.answer(chess.Board(), chess.Move.from_uci("e2e4"))
    (317,)
    """

    name = "fen-77"
    answer_size = 1968

    @cached_property
    def actions(self) -> tuple[str, ...]:
        """The UCI text of each action."""
        return tuple(list_actions())

    @cached_property
    def action_ids(self) -> dict[str, int]:
        """UCI text → action. The paper calls a text syntactically valid if it is a key of this mapping."""
        return {move: number for number, move in enumerate(self.actions)}

    @cached_property
    def _action_of_code(self) -> np.ndarray:
        """The action of each packed move (`games.boards.moves`), int16 [65536]; -1 if the move is not an action."""
        table = np.full(1 << 16, -1, np.int16)
        for number, text in enumerate(self.actions):
            move = chess.Move.from_uci(text)
            table[move.from_square | move.to_square << 6 | (move.promotion or 0) << 12] = number
        return table

    def encode_actions(self, codes: np.ndarray) -> np.ndarray:
        """Return the actions int16 [n] of packed moves uint16 [n]. Raises BadInputError for a move that is not an
        action."""
        actions = self._action_of_code[codes]
        if (actions < 0).any():
            code = int(codes[(actions < 0).argmax()])
            raise self._make_action_error(chess.Move(code & 63, code >> 6 & 63, code >> 12 or None).uci())
        return actions

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        number = self.action_ids.get(move.uci())
        if number is None:
            raise self._make_action_error(move.uci())
        return (number,)

    def _make_action_error(self, uci: str) -> BadInputError:
        """Return the error for a UCI move that is not one of the actions."""
        return BadInputError(f"{uci} is not one of the {self.answer_size:,} actions of {self.name}")

    def find_origin(self, number: int) -> int | None:
        return chess.parse_square(self.actions[number][:2])

    def answer_text(self, ids: Ids) -> str:
        return " ".join(self.actions[number] for number in check_ids(ids, self.answer_size, self.name).tolist())

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        return tuple(sorted(move.uci() for move in board.legal_moves))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        return tuple((self.action_ids[text],) for text in self.accepted_texts(board))

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        text = answer if isinstance(answer, str) else self.answer_text(answer[:1])
        try:
            move = chess.Move.from_uci(text.strip())
        except ValueError:
            return None
        return move if move and board.is_legal(move) else None
