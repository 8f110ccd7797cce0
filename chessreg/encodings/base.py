"""The interface of an encoding: chess as tokens, the sites of boards among the tokens, and moves as token sequences.

A *history* encoding writes a game as one sequence to which every ply appends. A *position* encoding writes every board
as a separate sequence. All code above this package works with items (games or boards), sites, boards and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.boards.typed import convert_moves_to_sans, play_sans
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

Alignment = Literal["post-ply", "pre-ply"]
"""The board that labels a token which completes a move: the board after the move (`post-ply`, correct), or the board
before it (`pre-ply`, as in Davis's code). The two differ only where a move ends with its own token,
as in UCI squares."""

Content = Literal["history", "position"]
Notation = Literal["uci", "san"]
Form = tuple[frozenset[int], ...]
"""The possible shape of a text: one set of token ids per position."""
Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Tokens:
    """Items concatenated: item i is `ids[offsets[i]:offsets[i + 1]]`.

    `ids` integer [n]; `offsets` int64 [items + 1]; `source` int64 [items] is the index of the item's game or board in
    the input; `ply` int64 [items] is the number of plies played before the item's first board.
    """

    ids: np.ndarray
    offsets: np.ndarray
    source: np.ndarray
    ply: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def item(self, number: int) -> np.ndarray:
        """Return the ids of item `number`, integer [length]."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    @classmethod
    def from_items(cls, items: Sequence[Ids]) -> Tokens:
        """Return already tokenized games or boards as Tokens, with `source` 0, 1, … and `ply` 0 (unknown)."""
        arrays = [np.asarray(item) for item in items]
        ids = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return cls.from_lengths(ids, np.fromiter(map(len, arrays), np.int64, len(arrays)))

    @classmethod
    def from_lengths(cls, ids: np.ndarray, lengths: np.ndarray) -> Tokens:
        """Return concatenated ids as Tokens; `lengths` int [items] has the length of each item. `ply` is 0
        (unknown)."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(ids, offsets, np.arange(len(lengths), dtype=np.int64), np.zeros(len(lengths), np.int64))


@dataclass(frozen=True, eq=False)
class Sites:
    """Token positions at which activations are read.

    `item`, `token` (index within the item) and `ply` (plies played on the token's board) are int64 [s]; `phase` int8
    [s] is an index into `Encoding.phases`.
    """

    item: np.ndarray
    token: np.ndarray
    ply: np.ndarray
    phase: np.ndarray

    def __len__(self) -> int:
        return len(self.item)

    def take(self, mask: np.ndarray | slice) -> Sites:
        """Return the sites chosen by a mask bool [s], an index array or a slice."""
        return Sites(self.item[mask], self.token[mask], self.ply[mask], self.phase[mask])


@runtime_checkable
class Encoding(Protocol):
    """How chess is written for a model. A model reads ids 0..size-1 and writes ids 0..answer_size-1."""

    name: str
    size: int
    answer_size: int
    """Equal to `size` if the model reads and writes the same vocabulary."""
    content: Content
    notation: Notation
    """How a move is written: UCI (from and to square) or SAN. In UCI, 1,968 texts have the form of a move."""
    stop_ids: frozenset[int]
    """Ids that end a written move; empty if a move ends by itself (see `is_complete`)."""
    boundary_ids: frozenset[int]
    """Ids that separate games. Tokens that a model writes from such an id on do not belong to the present game."""
    max_move_tokens: int
    """The maximum number of tokens of a move, including its end token."""
    phases: tuple[str, ...]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The text of each id that a model reads."""
        ...

    @property
    def site_names(self) -> tuple[str, ...]:
        """The site names. Every encoding has `all`, `last`, `turns` (the last token of each prompt), `white-turns`,
        `black-turns`."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, integer [n]. Raises BadInputError that names the first character or word it cannot
        encode."""
        ...

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the text of ids. Raises BadInputError for an id outside the vocabulary."""
        ...

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        """Encode the games at rows `places` of a dataset: one item per game (history) or per board (position)."""
        ...

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        """Encode positions (FENs or boards), one item each. History encodings raise BadInputError, because they need
        the games."""
        ...

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return the sites with this name, ordered by item. Raises NotFoundError for an unknown name."""
        ...

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        """Return the tokens after which the model writes the next move.

        `at` is a board with its moves on the stack, or the moves of a game in SAN. A history encoding raises
        BadInputError for a board whose move stack is not the whole game.
        """
        ...

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        """Return {legal move: its canonical tokens after the prompt}, in python-chess's order of moves."""
        ...

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """Return the canonical tokens of one move. Raises BadInputError for a move that cannot be written."""
        ...

    def find_origin(self, number: int) -> int | None:
        """Return the from-square of all answers that begin with id `number`; None if the id does not determine it."""
        ...

    def answer_text(self, ids: Ids) -> str:
        """Return the text of a written answer, without the token that ends a move."""
        ...

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        """Return all texts that `parse` reads as a legal move on this board, sorted."""
        ...

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each text in `accepted_texts`, without the token that ends a move."""
        ...

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that a move can have on any board, without the token that ends it.

        A text is *valid* (Junkin 2025, Appendix D.5) if each of its ids is in the set at its position of one form. In
        UCI these are the 1,968 moves.
        """
        ...

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        """Return the legal move that a text or ids describe on this board; None if they describe none."""
        ...

    def is_complete(self, ids: Ids, board: chess.Board) -> bool:
        """Return whether a model should stop writing after `ids`: they are a whole move, or cannot become one."""
        ...


class TokenView:
    """The tokens with the properties that select sites; each array has shape [n]."""

    def __init__(self, tokens: Tokens) -> None:
        self.ids, self._tokens = tokens.ids, tokens
        self.ply = np.zeros(0, np.int64)
        self.phase = np.zeros(0, np.int8)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each item, int64 [items]."""
        return np.diff(self._tokens.offsets)

    @cached_property
    def item(self) -> np.ndarray:
        """The item of each token, int64 [n]."""
        return np.repeat(np.arange(len(self._tokens), dtype=np.int64), self.lengths)

    @cached_property
    def last(self) -> np.ndarray:
        """Whether each token is the last of its item, bool [n]."""
        mask = np.zeros(len(self.ids), bool)
        mask[(self._tokens.offsets[1:] - 1)[self.lengths > 0]] = True
        return mask


Select = Callable[[TokenView], np.ndarray]
"""Returns which tokens are sites: bool [n]."""


def select_sites(registry: NameRegistry[tuple[Select, int]], name: str, tokens: Tokens, view: TokenView) -> Sites:
    """Return the sites with this name. `view` holds the ply and phase of each token.

    A registered site has an offset: the site is that many tokens after the selected one, with the same ply and phase.
    Sites past the end of their item are dropped.
    """
    select, offset = registry[name]
    indices = np.flatnonzero(select(view))
    item = view.item[indices]
    index = indices - tokens.offsets[item]
    inside = index + offset < view.lengths[item]
    indices, item, index = indices[inside] + offset, item[inside], index[inside] + offset
    return Sites(item, index, view.ply[indices], view.phase[indices])


def check_alignment(alignment: str) -> None:
    """Raise BadInputError unless the alignment is `post-ply` or `pre-ply`."""
    if alignment not in ("post-ply", "pre-ply"):
        raise BadInputError(f"the label alignment {alignment!r} does not exist", "known: post-ply, pre-ply")


def check_ids(ids: Iterable[int] | np.ndarray, size: int, name: str) -> np.ndarray:
    """Return the ids as int64 [n]. Raises BadInputError for an id outside 0..size-1."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
    if array.size and not (array.min() >= 0 and array.max() < size):
        wrong = array[(array < 0) | (array >= size)][0]
        raise BadInputError(f"id {wrong} is not in the vocabulary of {name}", f"ids are 0..{size - 1}")
    return array


def resolve_sans(at: chess.Board | Sequence[str], name: str) -> Sequence[str]:
    """Return the moves in SAN that lead to `at`. Raises BadInputError if a board's move stack is not the whole game."""
    if not isinstance(at, chess.Board):
        return at
    check_whole_game(at, name)
    return convert_moves_to_sans(at.move_stack)


def check_whole_game(board: chess.Board, name: str) -> None:
    """Raise BadInputError unless the board's move stack begins at the initial position."""
    if board.root() != chess.Board():
        raise BadInputError(
            f"{name} writes games, and the moves that led to {board.fen()} are not known",
            "give the moves, or use a position encoding such as fen-77",
        )


def resolve_board(at: chess.Board | Sequence[str]) -> chess.Board:
    """Return `at` itself if it is a board, else the board after these moves in SAN."""
    return at if isinstance(at, chess.Board) else play_sans(at)


def make_history_encoding_error(name: str) -> BadInputError:
    """Return the error of a history encoding that receives positions."""
    return BadInputError(
        f"{name} writes games, not positions", "use a dataset of games, or a position encoding such as fen-77"
    )
