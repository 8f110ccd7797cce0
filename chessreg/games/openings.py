"""Openings that both arms of a match start from: a pure function of (spec, seed, number).

Sources are a registry of functions: `standard` (no moves), `random:PLIES` (uniform legal plies, never a finished game;
the ten random turns of Karvonen 2024, section 4.3, are `random:20`), `random-2024:PLIES` (the same draws, finished
games handed over as in chess_gpt_eval) and `book:FILE` (lines of a TSV or CSV with a `pgn`, `moves` or `opening`
column, or of a PGN file, or positions of an EPD; each line is used once before any is used again).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import chess

from chessreg.errors import BadInputError
from chessreg.games.book import Book
from chessreg.named import Registry
from chessreg.noise import generator


@dataclass(frozen=True)
class OpeningSpec:
    """`source` names a registered function; `argument` is what follows the colon (plies, or the path of a book)."""

    source: str = "standard"
    argument: str = ""

    @property
    def text(self) -> str:
        """The canonical text; `parse_opening(spec.text) == spec`."""
        return f"{self.source}:{self.argument}" if self.argument else self.source


@dataclass(frozen=True)
class Opening:
    """The moves before play starts. `number` is the opening's place in its stream, `name` a book's name for it."""

    number: int
    moves: tuple[str, ...] = ()
    sans: tuple[str, ...] = ()
    name: str = ""

    def board(self) -> chess.Board:
        """The position after the opening, with its move stack."""
        board = chess.Board()
        for move in self.moves:
            board.push_uci(move)
        return board


class Source(Protocol):
    """Makes the openings of `numbers`; may raise BadInputError for its argument."""

    def __call__(self, argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]: ...


SOURCES: Registry[Source] = Registry("opening source", "standard, random:20, book:FILE")


def parse_opening(text: str) -> OpeningSpec:
    """Read `standard`, `random:20`, `random-2024:20` or `book:FILE`.

    Raises NotFoundError for an unknown source or a missing book, BadInputError for an argument that it cannot use."""
    source, _, argument = text.strip().partition(":")
    spec = OpeningSpec(source, argument.strip())
    openings(spec, 0, ())  # a source checks its argument even for no openings
    return spec


def openings(spec: OpeningSpec, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """The openings with these numbers, the same for every arm, batch and machine.

    Raises NotFoundError for an unknown source or a missing book, BadInputError for an argument it cannot use."""
    return SOURCES[spec.source](spec.argument, seed, numbers)


@SOURCES.named("standard")
def _standard(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    if argument:
        raise BadInputError(f"the opening source standard takes no argument, not {argument!r}")
    return [Opening(number) for number in numbers]


@SOURCES.named("random")
def _random(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    if not argument.isdecimal() or not 1 <= int(argument) <= 200:
        raise BadInputError(f"random openings need 1 to 200 plies, not {argument!r}", "for example random:20")
    return [_random_opening(int(argument), seed, number) for number in numbers]


def _random_opening(plies: int, seed: int, number: int) -> Opening:
    for attempt in range(1000):
        board, sans = _random_plies(plies, seed, number, attempt)
        if len(sans) == plies and not board.is_game_over():
            return _opening_of(number, board, sans)
    raise BadInputError(f"no unfinished game after {plies} random plies in 1,000 tries", "use fewer plies")


AUTHOR_RESTARTS = 5


@SOURCES.named("random-2024")
def _random_2024(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """chess_gpt_eval (specification 7.2): a new start, at most five, when a side runs out of moves; the last ply may
    itself end the game."""
    if not argument.isdecimal() or not 1 <= int(argument) <= 200:
        raise BadInputError(f"random openings need 1 to 200 plies, not {argument!r}", "for example random-2024:20")
    made = []
    for number in numbers:
        for attempt in range(AUTHOR_RESTARTS + 1):
            board, sans = _random_plies(int(argument), seed, number, attempt)
            if len(sans) == int(argument):
                break
        made.append(_opening_of(number, board, sans))
    return made


def _random_plies(plies: int, seed: int, number: int, attempt: int) -> tuple[chess.Board, list[str]]:
    """The board after so many uniformly drawn plies, fewer when there is no move left, and their SAN."""
    draw = generator("opening", seed, number, attempt)
    board, sans = chess.Board(), []
    for _ in range(plies):
        moves = sorted(board.legal_moves, key=chess.Move.uci)  # not python-chess's own order, which may change
        if not moves:
            break
        sans.append(board.san_and_push(moves[int(draw.integers(len(moves)))]))
    return board, sans


def _opening_of(number: int, board: chess.Board, sans: list[str]) -> Opening:
    return Opening(number, tuple(move.uci() for move in board.move_stack), tuple(sans))


@SOURCES.named("book")
def _book(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    if not argument:
        raise BadInputError("the opening source book needs a file", "for example book:openings.tsv")
    book = Book.read(argument)
    orders: dict[int, Sequence[int]] = {}
    made = []
    for number in numbers:
        lap, place = divmod(number, len(book.lines))
        if lap not in orders:
            orders[lap] = generator("opening book", seed, lap).permutation(len(book.lines)).tolist()
        line = orders[lap][place]
        moves, sans = book.moves(line)
        made.append(Opening(number, moves, sans, book.lines[line].name))
    return made
