"""What every encoding can do: chess written as tokens, the sites of boards in them, and the moves as token sequences.

A *history* encoding writes a game as one sequence, to which every ply appends. A *position* encoding writes every board
as a sequence of its own. Everything above this floor speaks of items (games or boards), sites, boards and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.boards.typed import moves_to_sans, play_sans
from chessreg.named import Registry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

Alignment = Literal["post-ply", "pre-ply"]
"""Which board a token that completes a move is labelled with: the one after the move (correct), or the one before it,
as Davis's code does (specification 1.3). It matters where a move ends with a token of its own: in UCI squares."""

Content = Literal["history", "position"]
Notation = Literal["uci", "san"]
Form = tuple[frozenset[int], ...]
"""Sets of ids, one for each place of a text."""
Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True, eq=False)
class Tokens:
    """Items end to end: item i is `ids[offsets[i]:offsets[i + 1]]`.

    `ids` integer [n]; `offsets` int64 [items + 1]; `source` int64 [items]: which of the given games or boards an
    item is of; `ply` int64 [items]: plies played on the board that the item begins with.
    """

    ids: np.ndarray
    offsets: np.ndarray
    source: np.ndarray
    ply: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def item(self, number: int) -> np.ndarray:
        """The ids of one item."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    @classmethod
    def of(cls, items: Sequence[Ids]) -> Tokens:
        """Games, or boards, that are tokens already. The ply of a board is not in its tokens' place: 0 for all."""
        arrays = [np.asarray(item) for item in items]
        ids = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return cls.laid(ids, np.fromiter(map(len, arrays), np.int64, len(arrays)))

    @classmethod
    def laid(cls, ids: np.ndarray, lengths: np.ndarray) -> Tokens:
        """Items of these lengths (int [items]) from ids that lie end to end, one for each game or board."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(ids, offsets, np.arange(len(lengths), dtype=np.int64), np.zeros(len(lengths), np.int64))


@dataclass(frozen=True, eq=False)
class Sites:
    """Tokens at which a model is looked at, item by item: `item`, `token` (its index in the item) and `ply` (plies
    played on the board that it stands for) int64 [s]; `phase` int8 [s], an index into `Encoding.phases`."""

    item: np.ndarray
    token: np.ndarray
    ply: np.ndarray
    phase: np.ndarray

    def __len__(self) -> int:
        return len(self.item)

    def take(self, keep: np.ndarray | slice) -> Sites:
        """Those that a mask bool [s], an index array or a slice chooses."""
        return Sites(self.item[keep], self.token[keep], self.ply[keep], self.phase[keep])


@runtime_checkable
class Encoding(Protocol):
    """How chess is written for a model. Ids that are read are 0..size-1, ids that are written 0..answer_size-1."""

    name: str
    size: int
    answer_size: int
    """The same as `size` where the model writes what it reads."""
    content: Content
    notation: Notation
    """How a move is written: by its squares, or in SAN. In UCI a text has the form of a move if it is one of 1,968."""
    stop_ids: frozenset[int]
    """Ids that end a move while the model writes one; none where a move ends by itself (`complete`)."""
    boundary_ids: frozenset[int]
    """Ids between games: what a model writes from there on is no part of this one."""
    max_move_tokens: int
    """More tokens than this that are not complete are no move."""
    phases: tuple[str, ...]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The text of every id that is read."""
        ...

    @property
    def site_names(self) -> tuple[str, ...]:
        """Every encoding has `all`, `last`, `turns` (the last token of each prompt), `white-turns`, `black-turns`."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, integer [n]. BadInputError names what cannot be written, and its place."""
        ...

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of ids that are read. BadInputError for an id outside the vocabulary."""
        ...

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        """The games at these rows of a dataset: whole games, or every board of them."""
        ...

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        """Positions (FENs or boards). BadInputError from a history encoding, which needs the games."""
        ...

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """The sites of this name, item by item. NotFoundError for an unknown name."""
        ...

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        """Tokens after which the model writes the next move: at a board with its moves on the stack, or after moves in
        SAN. BadInputError from a history encoding for a board whose game is not known."""
        ...

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        """Every legal move as the model would have to write it after the prompt, in python-chess's order."""
        ...

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """One move so. BadInputError for a move that cannot be written."""
        ...

    def origin_of(self, number: int) -> int | None:
        """The square whose piece moves when an answer begins with this id; None where the id alone does not tell."""
        ...

    def answer_text(self, ids: Ids) -> str:
        """The text of what a model wrote, without the token that ends a move."""
        ...

    def accepted(self, board: chess.Board) -> tuple[str, ...]:
        """Every text that `parse` reads as a legal move here, sorted."""
        ...

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        """The tokens of each of `accepted`, without a token that ends a move."""
        ...

    @property
    def forms(self) -> tuple[Form, ...]:
        """What a move may look like on any board, without a token that ends it: a text is a move in form (Junkin's
        *valid*, specification 3.1) if each of its ids is in the set at its place. Of UCI the 1,968 moves."""
        ...

    def parse(self, written: str | Ids, board: chess.Board) -> chess.Move | None:
        """The legal move that written text or ids name on this board; None when they name none."""
        ...

    def complete(self, ids: Ids, board: chess.Board) -> bool:
        """The ids written so far are a whole move, or can become none: nothing more is to be written."""
        ...


class TokenView:
    """Every token of `tokens` with what sites are chosen by; each array [n]."""

    def __init__(self, tokens: Tokens) -> None:
        self.ids, self._tokens = tokens.ids, tokens
        self.ply = np.zeros(0, np.int64)
        self.phase = np.zeros(0, np.int8)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 [items]."""
        return np.diff(self._tokens.offsets)

    @cached_property
    def item(self) -> np.ndarray:
        """int64."""
        return np.repeat(np.arange(len(self._tokens), dtype=np.int64), self.lengths)

    @cached_property
    def last(self) -> np.ndarray:
        """bool: the last token of its item."""
        mask = np.zeros(len(self.ids), bool)
        mask[(self._tokens.offsets[1:] - 1)[self.lengths > 0]] = True
        return mask


Select = Callable[[TokenView], np.ndarray]
"""Which tokens are sites: bool [n]."""


def select_sites(registry: Registry[tuple[Select, int]], name: str, tokens: Tokens, view: TokenView) -> Sites:
    """The sites of this name of tokens whose `view` has ply and phase. A site's offset moves it so many tokens on, in
    the same state; past the end of an item there is none."""
    select, offset = registry[name]
    chosen = np.flatnonzero(select(view))
    item = view.item[chosen]
    index = chosen - tokens.offsets[item]
    inside = index + offset < view.lengths[item]
    chosen, item, index = chosen[inside] + offset, item[inside], index[inside] + offset
    return Sites(item, index, view.ply[chosen], view.phase[chosen])


def check_alignment(alignment: str) -> None:
    """BadInputError for an alignment that there is not."""
    if alignment not in ("post-ply", "pre-ply"):
        raise BadInputError(f"no label alignment {alignment!r}", "known: post-ply, pre-ply")


def check_ids(ids: Iterable[int] | np.ndarray, size: int, name: str) -> np.ndarray:
    """The ids as int64 [n]. BadInputError for one that is not in 0..size-1."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
    if array.size and not (array.min() >= 0 and array.max() < size):
        wrong = array[(array < 0) | (array >= size)][0]
        raise BadInputError(f"id {wrong} is not in the vocabulary of {name}", f"ids are 0..{size - 1}")
    return array


def resolve_sans(at: chess.Board | Sequence[str], name: str) -> Sequence[str]:
    """The moves, in SAN, that lead to a board; BadInputError where its stack does not hold the whole game."""
    if not isinstance(at, chess.Board):
        return at
    check_whole_game(at, name)
    return moves_to_sans(at.move_stack)


def check_whole_game(board: chess.Board, name: str) -> None:
    """BadInputError where a board's move stack does not begin at the initial position."""
    if board.root() != chess.Board():
        raise BadInputError(
            f"{name} writes games, and the moves that led to {board.fen()} are not known",
            "give the moves, or use a position encoding such as fen-77",
        )


def resolve_board(at: chess.Board | Sequence[str]) -> chess.Board:
    """The board itself, or the one after these moves in SAN."""
    return at if isinstance(at, chess.Board) else play_sans(at)


def history_encoding_error(name: str) -> BadInputError:
    """The refusal of a history encoding that is given positions."""
    return BadInputError(
        f"{name} writes games, not positions", "use a dataset of games, or a position encoding such as fen-77"
    )
