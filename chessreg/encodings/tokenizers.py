"""Tokenizers: how a game is written for a language model, behind one protocol. Registered by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import chess
import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.movetext import numbered


@runtime_checkable
class Tokenizer(Protocol):
    """What every game language can do. Ids are 0..size-1; a game is encoded without padding, BOS or EOS."""

    name: str
    size: int
    stop_ids: frozenset[int]
    """Ids that end a move while the model writes one."""
    max_move_tokens: int
    """More tokens than this without a stop id is not a move."""

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, integer [n]. BadInputError names an unknown character and its index."""
        ...

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts end to end, and int64 [texts + 1] offsets: text i is `ids[offsets[i]:offsets[i + 1]]`."""
        ...

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of ids. BadInputError for an id outside the vocabulary."""
        ...

    def render(self, sans: Sequence[str]) -> str:
        """The game text of moves in SAN, from the initial position."""
        ...

    def prompt(self, sans: Sequence[str]) -> str:
        """The text after which the model writes the next move."""
        ...

    def parse(self, text: str, board: chess.Board) -> chess.Move | None:
        """The legal move that generated text names on this board; None when it names none."""
        ...

    def spell(self, board: chess.Board, move: chess.Move) -> str:
        """Canonical text of a move with its terminator, as the model would have to write it after a prompt."""
        ...


class PgnCharacters:
    """Karvonen's 32 characters (specification 1.1, 1.2): `;1.e4 e5 2.Nf3`, canonical SAN, no result.

    >>> PgnCharacters().encode(";1.e4 e5 2.Nf3").tolist()
    [15, 6, 4, 27, 9, 0, 27, 10, 0, 7, 4, 19, 28, 8]
    >>> PgnCharacters().prompt(["e4", "e5"])
    ';1.e4 e5 2.'
    """

    name = "pgn-char-32"
    vocabulary = " #+-.0123456789;=BKNOQRabcdefghx"
    size = 32
    stop_ids = frozenset({0})
    max_move_tokens = 10

    def __init__(self) -> None:
        self._ids = np.full(256, 255, np.uint8)
        self._ids[np.frombuffer(self.vocabulary.encode(), np.uint8)] = np.arange(self.size)
        self._characters = np.frombuffer(self.vocabulary.encode(), np.uint8)

    def encode(self, text: str) -> np.ndarray:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        joined = "".join(texts)
        # Latin-1 keeps one byte a character; everything beyond it becomes `?`, which is unknown too.
        ids = self._ids[np.frombuffer(joined.encode("latin-1", "replace"), np.uint8)]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=offsets[1:])
        if (ids == 255).any():
            place = int((ids == 255).argmax())
            which = int(np.searchsorted(offsets, place, "right")) - 1
            where = f"index {place - offsets[which]}" + (f" of text {which}" if len(texts) > 1 else "")
            raise BadInputError(
                f"character {joined[place]!r} at {where} is not in the vocabulary of {self.name}",
                f"the {self.size} characters are {self.vocabulary!r}",
            )
        return ids, offsets

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
        if array.size and not (array.min() >= 0 and array.max() < self.size):
            wrong = array[(array < 0) | (array >= self.size)][0]
            raise BadInputError(f"id {wrong} is not in the vocabulary of {self.name}", f"ids are 0..{self.size - 1}")
        return self._characters[array].tobytes().decode()

    def render(self, sans: Sequence[str]) -> str:
        return numbered(sans)

    def prompt(self, sans: Sequence[str]) -> str:
        number = f"{len(sans) // 2 + 1}." if len(sans) % 2 == 0 else ""
        return self.render(sans) + (" " if sans else "") + number

    def parse(self, text: str, board: chess.Board) -> chess.Move | None:
        words = text.split(";", 1)[0].split()
        if not words:
            return None
        try:
            move = board.parse_san(words[0])
        except ValueError:
            return None
        return move or None  # python-chess reads `--` as a null move, which is falsy and no chess move

    def spell(self, board: chess.Board, move: chess.Move) -> str:
        return board.san(move) + " "


_tokenizers: dict[str, Callable[[], Tokenizer]] = {}


def register(name: str, make: Callable[[], Tokenizer]) -> None:
    """Make a tokenizer known by name. ValueError when the name is taken."""
    if name in _tokenizers:
        raise ValueError(f"tokenizer {name!r} is already registered")
    _tokenizers[name] = make


def names() -> list[str]:
    """All registered names, in the order of their registration."""
    return list(_tokenizers)


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of this name. NotFoundError lists those that there are."""
    if name not in _tokenizers:
        raise NotFoundError(f"no tokenizer {name!r}", f"known: {', '.join(_tokenizers)}")
    return _tokenizers[name]()


register(PgnCharacters.name, PgnCharacters)
