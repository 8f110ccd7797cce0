"""Openings that both arms of a match start from: a pure function of (spec, seed, number).

Sources are registered functions: `standard` (no moves), `random:PLIES` (uniform legal plies, never a finished game; the
ten random turns of Karvonen 2024, section 4.3, are `random:20`), `random-2024:PLIES` (the same draws, where finished
games are handled as in chess_gpt_eval) and `book:FILE` (lines of a TSV or CSV with a column `pgn`, `moves` or
`opening`, of a PGN, or positions of an EPD). Each line of a book is used once before any line repeats. Files may be
compressed.
"""

from __future__ import annotations

import bz2
import csv
import functools
import gzip
import hashlib
import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import chess

from chessreg.errors import BadInputError, NotFoundError, reraise_lack_of_memory
from chessreg.games.boards.typed import find_shortest_game
from chessreg.named import NameRegistry, clip_text
from chessreg.noise import Stream, generator

CHECKED_LINES = 100  # lines of a book that are checked before it is used
MAX_BOOK_BYTES = 1 << 29  # of an unpacked book; the largest books in use have a third of it
MAX_SHOWN_CHARACTERS = 20  # of an invalid move, in error messages
COLUMNS = ("pgn", "moves", "opening")
_COMMENT = re.compile(r"\{[^}]*\}|;[^\n]*|\$\d+")
_NUMBER = re.compile(r"\d+\.+")
_RESULTS = frozenset({"1-0", "0-1", "1/2-1/2", "*"})


@dataclass(frozen=True)
class BookLine:
    """One line of a book: its name (may be empty), and its moves as written in the file, or the position of an EPD."""

    name: str
    text: str


@dataclass(frozen=True)
class Book:
    """The distinct lines of a file, in its order. Lines that end in mate are dropped, because nothing is
    left to play."""

    path: str
    sha256: str
    lines: tuple[BookLine, ...]
    positions: bool = False  # an EPD: each line is a position, reached by a shortest game

    @staticmethod
    def read(path: str | Path) -> Book:
        """Return the book in a `.tsv`, `.csv`, `.pgn` or `.epd` file, which may be compressed (`.zip`, `.gz`, `.bz2`,
        `.zst`).

        Raises NotFoundError for a missing file, BadInputError for a file without lines.
        """
        path = Path(path)
        try:
            stat = path.stat()
        except OSError as error:
            raise NotFoundError(f"the opening book {path} cannot be read: {error.strerror}") from error
        return _read_book(path, stat.st_mtime_ns, stat.st_size)

    def moves(self, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the moves of line `number` as (UCI, canonical SAN).

        Raises BadInputError for an illegal move, and for a position that no short game reaches.
        """
        board, sans = chess.Board(), []
        line = self.lines[number]
        if self.positions:
            for move in self._find_moves_to(line, number):
                sans.append(board.san_and_push(move))
            return tuple(move.uci() for move in board.move_stack), tuple(sans)
        for token in _split_tokens(line.text):
            try:
                move = board.parse_san(token)
                if not move:  # python-chess reads "--" as a null move
                    raise ValueError(token)
                sans.append(board.san_and_push(move))
            except ValueError:
                line_name = line.name or f"line {number + 1}"
                word = clip_text(token, MAX_SHOWN_CHARACTERS)
                raise BadInputError(
                    f"{self.path}: {line_name}: {word!r} is not legal after {' '.join(sans)!r}"
                ) from None
        if board.is_game_over():
            raise BadInputError(f"{self.path}: {line.name or f'line {number + 1}'} ends in a finished game")
        return tuple(move.uci() for move in board.move_stack), tuple(sans)

    def check(self) -> None:
        """Read the first CHECKED_LINES lines of moves, or the first position. Raises BadInputError if one is not a
        valid opening."""
        for number in range(1 if self.positions else min(len(self.lines), CHECKED_LINES)):
            self.moves(number)

    def _find_moves_to(self, line: BookLine, number: int) -> list[chess.Move]:
        """Return the moves of a shortest game to an EPD position. Raises BadInputError for an unusable position."""
        try:
            target = chess.Board(line.text)
            if not target.is_valid() or target.is_game_over():
                raise ValueError("the game cannot continue from this position")
        except ValueError as error:
            raise BadInputError(
                f"{self.path}: {line.name or f'line {number + 1}'}: {line.text[:90]!r}: {error}"
            ) from None
        return find_shortest_game(target)


def _split_tokens(text: str) -> list[str]:
    """Return the move words of movetext without comments, variations, move numbers and results."""
    plain = _COMMENT.sub(" ", text)
    while "(" in plain:  # variations, innermost first
        plain, count = re.subn(r"\([^()]*\)", " ", plain)
        if not count:
            break
    return [token for token in _NUMBER.sub(" ", plain).split() if token not in _RESULTS]


@functools.lru_cache(maxsize=8)
def _read_book(path: Path, _modified_ns: int, _size: int) -> Book:
    """Return the book in a file; modification time and size are part of the cache key. Raises BadInputError."""
    data = path.read_bytes()
    name, content = _unpack_book(path, data)
    suffix = Path(name).suffix.lower()
    if b"\0" in content[:4096]:
        raise BadInputError(f"{path} is not an opening book: it holds binary data", "a book is text in UTF-8")
    text = content.decode("utf-8-sig", "replace")
    if suffix == ".epd":
        lines = _parse_epd(text)
    elif suffix in (".tsv", ".csv"):
        lines = _parse_table(path, text, "\t" if suffix == ".tsv" else ",")
    elif suffix == ".pgn":
        lines = _parse_pgn(path, text)
    else:
        raise BadInputError(
            f"{path} is not an opening book", "a book is a .tsv, .csv, .pgn or .epd file, or one of these zipped"
        )
    distinct = {line.text: line for line in reversed(lines) if line.text and not line.text.endswith("#")}
    if not distinct:
        mates = ": every one ends in mate" if any(line.text for line in lines) else ""
        raise BadInputError(f"{path} has no line of moves that can be continued{mates}")
    return Book(str(path), hashlib.sha256(data).hexdigest(), tuple(reversed(distinct.values())), suffix == ".epd")


def _unpack_book(path: Path, data: bytes) -> tuple[str, bytes]:
    """Return (name, content) of the file inside a compressed book, or of the book itself."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                if len(names) != 1:
                    raise BadInputError(f"{path} holds {len(names)} files, not one book")
                with archive.open(names[0]) as member:
                    return names[0], _read_bounded(path, member)
        if path.suffix == ".gz":
            return path.stem, _read_bounded(path, gzip.open(io.BytesIO(data)))
        if path.suffix == ".bz2":
            return path.stem, _read_bounded(path, bz2.open(io.BytesIO(data)))
        if path.suffix == ".zst":
            import zstandard

            decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_BOOK_BYTES)
            return path.stem, _read_bounded(path, decompressor.stream_reader(data, read_across_frames=True))
    except BadInputError:
        raise
    except Exception as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path} cannot be unpacked: {error}") from error
    return path.name, data


def _read_bounded(path: Path, file: IO[bytes] | gzip.GzipFile) -> bytes:
    """Return the content of an unpacked book.

    Raises BadInputError above MAX_BOOK_BYTES, because a small file could unpack to more than the memory.
    """
    pieces, remaining_bytes = [], MAX_BOOK_BYTES
    while remaining_bytes >= 0 and (piece := file.read(min(remaining_bytes + 1, 1 << 20))):
        pieces.append(piece)
        remaining_bytes -= len(piece)
    if remaining_bytes < 0:
        raise BadInputError(f"{path} unpacks to more than {MAX_BOOK_BYTES >> 20} MiB", "give a part of that book")
    return b"".join(pieces)


def _parse_table(path: Path, text: str, delimiter: str) -> list[BookLine]:
    """Return the lines of a TSV or CSV book. Raises BadInputError without a column of moves."""
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    try:
        names, rows = reader.fieldnames or (), list(reader)
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}: {error}", "check that it is a table") from error
    column = next((name for name in COLUMNS if name in names), None)
    if column is None:
        raise BadInputError(f"{path} has no column of moves", f"name one of its columns {', '.join(COLUMNS)}")
    return [BookLine(row.get("name") or "", " ".join((row[column] or "").split())) for row in rows]


def _parse_epd(text: str) -> list[BookLine]:
    """Return the positions of an EPD: the first four fields, without counters and operations; `id` is the name."""
    lines = []
    for line in text.splitlines():
        fields = line.split(maxsplit=4)
        if len(fields) >= 4 and not line.startswith("#"):
            id_match = re.search(r'\bid "([^"]*)"', fields[4]) if len(fields) > 4 else None
            lines.append(BookLine(id_match[1] if id_match else "", " ".join(fields[:4])))
    return lines


def _parse_pgn(path: Path, text: str) -> list[BookLine]:
    """Return the lines of a PGN book. Raises BadInputError for a game from another start position."""
    lines = []
    for game in re.split(r"^(?=\[Event )", text, flags=re.MULTILINE):
        tags = dict(re.findall(r'^\[(\w+) "((?:[^"\\]|\\.)*)"\]', game, flags=re.MULTILINE))
        if "FEN" in tags:
            raise BadInputError(f"{path} has a game that starts from a set-up position", "remove it from the book")
        movetext = "\n".join(line for line in game.splitlines() if not line.startswith(("[", "%")))
        lines.append(BookLine(tags.get("Opening", ""), " ".join(_split_tokens(movetext))))
    return lines


@dataclass(frozen=True)
class OpeningSpec:
    """An opening source: `source` is a registered name, `argument` the text after the colon (plies, or the path of a
    book)."""

    source: str = "standard"
    argument: str = ""

    @property
    def text(self) -> str:
        """The canonical text; `parse_opening(spec.text) == spec`."""
        return f"{self.source}:{self.argument}" if self.argument else self.source


@dataclass(frozen=True)
class Opening:
    """The moves before play starts. `number` is the opening's index in its stream, `name` its name in a book."""

    number: int
    moves: tuple[str, ...] = ()
    sans: tuple[str, ...] = ()
    name: str = ""

    def board(self) -> chess.Board:
        """Return the position after the opening, with its move stack."""
        board = chess.Board()
        for move in self.moves:
            board.push_uci(move)
        return board


class OpeningSource(Protocol):
    """Returns the openings with these numbers. May raise BadInputError for its argument."""

    def __call__(self, argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]: ...


SOURCES: NameRegistry[OpeningSource] = NameRegistry("opening source", "standard, random:20, book:FILE")


def parse_opening(text: str) -> OpeningSpec:
    """Return the spec of `standard`, `random:20`, `random-2024:20` or `book:FILE`.

    Raises NotFoundError for an unknown source or a missing book, BadInputError for an invalid argument.
    """
    source, _, argument = text.strip().partition(":")
    spec = OpeningSpec(source, argument.strip())
    make_openings(spec, 0, ())  # a source checks its argument even without numbers
    return spec


def make_openings(spec: OpeningSpec, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """Return the openings with these numbers, the same for every arm, batch and machine.

    Raises NotFoundError for an unknown source or a missing book, BadInputError for an invalid argument.
    """
    return SOURCES[spec.source](spec.argument, seed, numbers)


@SOURCES.named("standard")
def _make_standard(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """Return the standard starting position under each number. Raises BadInputError for an argument."""
    if argument:
        raise BadInputError(f"the opening source standard takes no argument, not {argument!r}")
    return [Opening(number) for number in numbers]


@SOURCES.named("random")
def _make_random(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """Return one random opening per number, of `argument` plies (1 to 200), drawn from `seed` and the number."""
    if not argument.isdecimal() or not 1 <= int(argument) <= 200:
        raise BadInputError(f"random openings need 1 to 200 plies, not {argument!r}", "for example random:20")
    return [_draw_opening(int(argument), seed, number) for number in numbers]


def _draw_opening(plies: int, seed: int, number: int) -> Opening:
    """Return a random opening of `plies` plies that does not end the game. Raises BadInputError after 1,000 tries."""
    for attempt in range(1000):
        board, sans = _draw_plies(plies, seed, number, attempt)
        if len(sans) == plies and not board.is_game_over():
            return _make_opening(number, board, sans)
    raise BadInputError(f"no unfinished game after {plies} random plies in 1,000 tries", "use fewer plies")


AUTHOR_RESTARTS = 5


@SOURCES.named("random-2024")
def _make_random_2024(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """Return openings as chess_gpt_eval draws them (`main.py`).

    If a side runs out of moves, it starts again, at most five times; the last ply may end the game.
    """
    if not argument.isdecimal() or not 1 <= int(argument) <= 200:
        raise BadInputError(f"random openings need 1 to 200 plies, not {argument!r}", "for example random-2024:20")
    openings = []
    for number in numbers:
        for attempt in range(AUTHOR_RESTARTS + 1):
            board, sans = _draw_plies(int(argument), seed, number, attempt)
            if len(sans) == int(argument):
                break
        openings.append(_make_opening(number, board, sans))
    return openings


def _draw_plies(plies: int, seed: int, number: int, attempt: int) -> tuple[chess.Board, list[str]]:
    """Return the board after `plies` uniformly drawn legal moves (fewer if the game ends before), and their SAN."""
    draw = generator(Stream.OPENING, seed, number, attempt)
    board, sans = chess.Board(), []
    for _ in range(plies):
        moves = sorted(board.legal_moves, key=chess.Move.uci)  # python-chess's order may change
        if not moves:
            break
        sans.append(board.san_and_push(moves[int(draw.integers(len(moves)))]))
    return board, sans


def _make_opening(number: int, board: chess.Board, sans: list[str]) -> Opening:
    return Opening(number, tuple(move.uci() for move in board.move_stack), tuple(sans))


@SOURCES.named("book")
def _make_book(argument: str, seed: int, numbers: Iterable[int]) -> list[Opening]:
    """Return the openings with these numbers from the book file `argument`, in an order drawn from `seed`.

    Every line is used once before any is repeated. Raises BadInputError without a file.
    """
    if not argument:
        raise BadInputError("the opening source book needs a file", "for example book:openings.tsv")
    book = Book.read(argument)
    orders: dict[int, Sequence[int]] = {}
    openings = []
    for number in numbers:
        lap, place = divmod(number, len(book.lines))
        if lap not in orders:
            orders[lap] = generator(Stream.OPENING_BOOK, seed, lap).permutation(len(book.lines)).tolist()
        line = orders[lap][place]
        moves, sans = book.moves(line)
        openings.append(Opening(number, moves, sans, book.lines[line].name))
    return openings
