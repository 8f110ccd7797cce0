"""`pgn-char-32`: games as Karvonen's 32 PGN characters, `;1.e4 e5 2.Nf3`: canonical SAN, no result.

Source: Karvonen 2024, section 2.1. The number of plies played on the board at character i is the number of spaces in
characters 0..i, because a space belongs to the move that follows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    make_history_encoding_error,
    resolve_sans,
    select_sites,
)
from chessreg.errors import BadInputError
from chessreg.games.datasets.movetext import number_sans
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

_CHARACTERS = " #+-.0123456789;=BKNOQRabcdefghx"
_SPACE, _DOT = _CHARACTERS.index(" "), _CHARACTERS.index(".")

SITES: NameRegistry[tuple[Select, int]] = NameRegistry("site of pgn-char-32")
"""Site name → (function that selects characters, offset of the site from the selected character)."""

for _name, _select in {
    "dots": lambda view: view.ids == _DOT,
    "even-spaces": lambda view: (view.ids == _SPACE) & (view.ply % 2 == 1),
    "odd-spaces": lambda view: (view.ids == _SPACE) & (view.ply % 2 == 0),
    "spaces": lambda view: view.ids == _SPACE,
}.items():
    SITES.register(_name, (_select, 0))
    SITES.register(f"{_name}+1", (_select, 1))
SITES.register("white-segments", (lambda view: view.ply % 2 == 0, 0))
SITES.register("black-segments", (lambda view: view.ply % 2 == 1, 0))
SITES.register("turns", (lambda view: (view.ids == _DOT) | (view.ids == _SPACE) & (view.ply % 2 == 1), 0))
SITES.register("white-turns", SITES["dots"])
SITES.register("black-turns", SITES["even-spaces"])
SITES.register("last", (lambda view: view.last, 0))
SITES.register("all", (lambda view: np.ones(len(view.ids), bool), 0))


class PgnChar:
    """The `pgn-char-32` encoding.

    >>> pgn = PgnChar()
    >>> pgn.encode(";1.e4 e5 2.Nf3").tolist()
    [15, 6, 4, 27, 9, 0, 27, 10, 0, 7, 4, 19, 28, 8]
    >>> pgn.decode(pgn.prompt(["e4", "e5"]))
    ';1.e4 e5 2.'
    >>> found = pgn.sites("dots", Tokens.from_items([pgn.encode(";1.e4 c5 2.Nf3 d6 3.d4")]))
    >>> found.token.tolist(), found.ply.tolist()
    ([2, 10, 19], [0, 2, 4])
    """

    name = "pgn-char-32"
    vocabulary: tuple[str, ...] = tuple(_CHARACTERS)
    size = answer_size = 32
    content: Content = "history"
    notation: Notation = "san"
    stop_ids = frozenset({_SPACE})
    boundary_ids = frozenset({_CHARACTERS.index(";")})
    max_move_tokens = 10
    phases: tuple[str, ...] = ("white", "black")
    """The side whose move the character belongs to."""

    def __init__(self) -> None:
        self._characters = np.frombuffer(_CHARACTERS.encode(), np.uint8)
        self._ids = np.full(256, 255, np.uint8)
        self._ids[self._characters] = np.arange(self.size)

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(SITES)

    def encode(self, text: str) -> np.ndarray:
        return self.texts([text]).ids

    def texts(self, texts: Sequence[str]) -> Tokens:
        """Encode game texts, one item each; ids are uint8. Raises BadInputError that names an unknown character and its
        index."""
        joined_text = "".join(texts)
        # Latin-1 has one byte per character; any other character becomes `?`, which is not in the vocabulary either.
        ids = self._ids[np.frombuffer(joined_text.encode("latin-1", "replace"), np.uint8)]
        tokens = Tokens.from_lengths(ids, np.fromiter(map(len, texts), np.int64, len(texts)))
        if (ids == 255).any():
            place = int((ids == 255).argmax())
            text_index = int(np.searchsorted(tokens.offsets, place, "right")) - 1
            location = f"index {place - tokens.offsets[text_index]}" + (
                f" of text {text_index}" if len(texts) > 1 else ""
            )
            raise BadInputError(
                f"character {joined_text[place]!r} at {location} is not in the vocabulary of {self.name}",
                f"the {self.size} characters are {_CHARACTERS!r}",
            )
        return tokens

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self._characters[check_ids(ids, self.size, self.name)].tobytes().decode()

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        return self.texts(games.texts(places))

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        raise make_history_encoding_error(self.name)

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return sites; both alignments are the same, because a move ends with the space that belongs to the
        next move."""
        check_alignment(alignment)
        view = TokenView(tokens)
        spaces = np.zeros(len(tokens.ids) + 1, np.int64)
        np.cumsum(tokens.ids == _SPACE, out=spaces[1:])
        view.ply = spaces[1:] - np.repeat(spaces[tokens.offsets[:-1]], view.lengths)
        view.phase = (view.ply % 2).astype(np.int8)
        return select_sites(SITES, name, tokens, view)

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        sans = resolve_sans(at, self.name)
        number = f"{len(sans) // 2 + 1}." if len(sans) % 2 == 0 else ""
        return tuple(self.encode(number_sans(sans) + (" " if sans else "") + number).tolist())

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        texts = {move: board.san(move) for move in board.legal_moves}
        tokens = self.texts([f"{text} " for text in texts.values()])
        return {move: tuple(tokens.item(number).tolist()) for number, move in enumerate(texts)}

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """Return the canonical SAN followed by a space."""
        return tuple(self.encode(board.san(move) + " ").tolist())

    def find_origin(self, number: int) -> int | None:
        return None

    def answer_text(self, ids: Ids) -> str:
        return self.decode(ids[:-1] if len(ids) and int(ids[-1]) in self.stop_ids else ids)

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        return tuple(sorted(list_spellings(board, _CHARACTERS)))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        tokens = self.texts(self.accepted_texts(board))
        return tuple(tuple(tokens.item(number).tolist()) for number in range(len(tokens)))

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        return make_san_forms({character: number for number, character in enumerate(_CHARACTERS)})

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        text = answer if isinstance(answer, str) else self.decode(answer)
        parts = text.split(";", 1)[0].split()
        if not parts:
            return None
        try:
            move = board.parse_san(parts[0])
        except ValueError:
            return None
        return move or None  # python-chess reads `--` as a null move, which is falsy

    def is_complete(self, ids: Ids, board: chess.Board) -> bool:
        return len(ids) > 0 and int(ids[-1]) in self.stop_ids


_SIGNS = ("", "+", "#")
_CAPTURE_MARKS = ("", "x", "-")
_PROMOTIONS = {
    chess.KNIGHT: ("N", "n"),
    chess.BISHOP: ("B", "b"),
    chess.ROOK: ("R", "r"),
    chess.QUEEN: ("Q", "q"),
}


def list_spellings(board: chess.Board, alphabet: Iterable[str] | None = None) -> frozenset[str]:
    """Return all texts that `board.parse_san` reads as a legal move, restricted to the characters of `alphabet` if
    given.

    `parse_san` ignores `x`, `-`, `+` and `#`, accepts a redundant origin, and reads `0-0` as `O-O`. A model may write
    any of these, so the probability of a legal move is a sum over all spellings. Null moves are excluded.

    >>> sorted(list_spellings(chess.Board("8/8/8/8/8/1k6/8/K7 w - - 0 1"), "Kab1"))
    ['K1b1', 'Ka1b1', 'Kab1', 'Kb1', 'a1b1']
    """
    moves = list(board.legal_moves)
    # (piece letter, origin, target, promotion) → number of legal moves it can mean; unambiguous if 1
    meanings: Counter[tuple[str, str, int, int | None]] = Counter()
    texts: set[str] = set()
    for move in moves:
        letter = board.piece_at(move.from_square).symbol().upper()  # type: ignore[union-attr]
        origin_name = chess.square_name(move.from_square)
        file, rank = origin_name[0], origin_name[1]
        origins = {"", file, rank, file + rank}
        if letter == "P":
            letter = ""
            origins.discard(file + rank)  # a full origin without a letter means any piece: handled below
            if move.from_square & 7 != move.to_square & 7:
                origins = {file}  # a pawn's capture needs its file
        if board.is_castling(move):
            origins = set()  # `Kg1` is not castling
            rook = chess.square(7 if board.is_kingside_castling(move) else 0, move.from_square >> 3)
            meanings["", file + rank, rook, None] += 1  # the king takes its rook, as Chess960 writes it
            castle = "O-O" if board.is_kingside_castling(move) else "O-O-O"
            texts.update(text + sign for text in (castle, castle.replace("O", "0")) for sign in _SIGNS)
        for origin in origins:
            meanings[letter, origin, move.to_square, move.promotion] += 1
        meanings["", file + rank, move.to_square, move.promotion] += 1
    for (letter, origin, target, promotion), count in meanings.items():
        if count > 1:
            continue
        heads = [letter + origin + capture_mark + chess.square_name(target) for capture_mark in _CAPTURE_MARKS]
        if promotion:
            heads = [head + equals + name for head in heads for equals in ("=", "") for name in _PROMOTIONS[promotion]]
        texts.update(head + sign for head in heads for sign in _SIGNS)
    if alphabet is None:
        return frozenset(texts)
    characters = set(alphabet)
    return frozenset(text for text in texts if characters.issuperset(text))


def make_san_forms(ids: Mapping[str, int]) -> tuple[Form, ...]:
    """Return the forms of SAN moves, with disambiguation and check signs; `ids` maps a character to its id."""
    square, sets = ("abcdefgh", "12345678"), list[tuple[str, ...]]()
    for origin in ((), ("abcdefgh",), ("12345678",), square):
        for capture_sign in ((), ("x",)):
            sets.append(("NBRQK", *origin, *capture_sign, *square))
    for begin in ((), ("abcdefgh", "x")):
        sets.append((*begin, "abcdefgh", "234567"))
        sets.append((*begin, "abcdefgh", "18", "=", "NBRQ"))
    sets += [tuple("O-O"), tuple("O-O-O")]
    signed_forms = [(*form, *sign) for form in sets for sign in ((), ("+#",))]
    return tuple(tuple(frozenset(ids[character] for character in place) for place in form) for form in signed_forms)
