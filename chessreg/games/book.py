"""Opening books on disk: named lines of moves in a TSV, a CSV or a PGN file, or positions of an EPD; zipped or not."""

from __future__ import annotations

import bz2
import csv
import functools
import gzip
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import chess

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.shortest import shortest_game

COLUMNS = ("pgn", "moves", "opening")
_COMMENT = re.compile(r"\{[^}]*\}|;[^\n]*|\$\d+")
_NUMBER = re.compile(r"\d+\.+")
_RESULTS = frozenset({"1-0", "0-1", "1/2-1/2", "*"})


@dataclass(frozen=True)
class Line:
    """One line of a book: its name (may be empty) and its moves as the file has them; of an EPD its position."""

    name: str
    text: str


@dataclass(frozen=True)
class Book:
    """The distinct lines of a file, in its order. Lines that end in mate are left out: there is nothing to play."""

    path: str
    sha256: str
    lines: tuple[Line, ...]
    positions: bool = False  # an EPD: lines are positions, and the shortest game to one is played

    @staticmethod
    def read(path: str | Path) -> Book:
        """Read a `.tsv`, `.csv`, `.pgn` or `.epd` book, or one of these in `.zip`, `.gz`, `.bz2` or `.zst`.

        Raises NotFoundError when there is no such file, BadInputError when it holds no lines."""
        path = Path(path)
        try:
            stat = path.stat()
        except OSError as error:
            raise NotFoundError(f"no opening book at {path}: {error.strerror}") from error
        return _read(path, stat.st_mtime_ns, stat.st_size)

    def moves(self, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The moves of line `number` as UCI and as canonical SAN.

        Raises BadInputError naming an illegal move, or a position to which no short game leads."""
        board, sans = chess.Board(), []
        line = self.lines[number]
        if self.positions:
            for move in self._to_position(line, number):
                sans.append(board.san_and_push(move))
            return tuple(move.uci() for move in board.move_stack), tuple(sans)
        for token in _tokens(line.text):
            try:
                move = board.parse_san(token)
                if not move:  # python-chess takes "--" for a null move
                    raise ValueError(token)
                sans.append(board.san_and_push(move))
            except ValueError:
                where = line.name or f"line {number + 1}"
                raise BadInputError(f"{self.path}: {where}: {token!r} is not legal after {' '.join(sans)!r}") from None
        if board.is_game_over():
            raise BadInputError(f"{self.path}: {line.name or f'line {number + 1}'} ends in a finished game")
        return tuple(move.uci() for move in board.move_stack), tuple(sans)

    def _to_position(self, line: Line, number: int) -> list[chess.Move]:
        try:
            target = chess.Board(line.text)
            if not target.is_valid() or target.is_game_over():
                raise ValueError("it is not a position that play can go on from")
        except ValueError as error:
            raise BadInputError(f"{self.path}: {line.name or f'line {number + 1}'}: {line.text!r}: {error}") from None
        return shortest_game(target)


def _tokens(text: str) -> list[str]:
    plain = _COMMENT.sub(" ", text)
    while "(" in plain:  # variations, innermost first
        plain, count = re.subn(r"\([^()]*\)", " ", plain)
        if not count:
            break
    return [token for token in _NUMBER.sub(" ", plain).split() if token not in _RESULTS]


@functools.lru_cache(maxsize=8)
def _read(path: Path, _modified: int, _size: int) -> Book:
    data = path.read_bytes()
    name, content = _unpacked(path, data)
    suffix = Path(name).suffix.lower()
    text = content.decode("utf-8-sig", "replace")
    if suffix == ".epd":
        lines = _positions(text)
    elif suffix in (".tsv", ".csv"):
        lines = _table(path, text, "\t" if suffix == ".tsv" else ",")
    elif suffix == ".pgn":
        lines = _games(path, text)
    else:
        raise BadInputError(
            f"{path} is no opening book", "a book is a .tsv, .csv, .pgn or .epd file, or one of these zipped"
        )
    distinct = {line.text: line for line in reversed(lines) if line.text and not line.text.endswith("#")}
    if not distinct:
        raise BadInputError(f"{path} holds no line of moves")
    return Book(str(path), hashlib.sha256(data).hexdigest(), tuple(reversed(distinct.values())), suffix == ".epd")


def _unpacked(path: Path, data: bytes) -> tuple[str, bytes]:
    """Name and content of what a compressed book holds."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                if len(names) != 1:
                    raise BadInputError(f"{path} holds {len(names)} files, not one book")
                return names[0], archive.read(names[0])
        if path.suffix == ".gz":
            return path.stem, gzip.decompress(data)
        if path.suffix == ".bz2":
            return path.stem, bz2.decompress(data)
        if path.suffix == ".zst":
            import zstandard

            return path.stem, zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    except BadInputError:
        raise
    except Exception as error:
        raise BadInputError(f"{path} cannot be unpacked: {error}") from error
    return path.name, data


def _table(path: Path, text: str, delimiter: str) -> list[Line]:
    rows = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    column = next((name for name in COLUMNS if name in (rows.fieldnames or ())), None)
    if column is None:
        raise BadInputError(f"{path} has no column of moves", f"name one of its columns {', '.join(COLUMNS)}")
    return [Line(row.get("name") or "", " ".join((row[column] or "").split())) for row in rows]


def _positions(text: str) -> list[Line]:
    """The positions of an EPD: its first four fields, without counters and operations; the `id` is the name."""
    lines = []
    for line in text.splitlines():
        fields = line.split(maxsplit=4)
        if len(fields) >= 4 and not line.startswith("#"):
            named = re.search(r'\bid "([^"]*)"', fields[4]) if len(fields) > 4 else None
            lines.append(Line(named[1] if named else "", " ".join(fields[:4])))
    return lines


def _games(path: Path, text: str) -> list[Line]:
    lines = []
    for game in re.split(r"^(?=\[Event )", text, flags=re.MULTILINE):
        tags = dict(re.findall(r'^\[(\w+) "((?:[^"\\]|\\.)*)"\]', game, flags=re.MULTILINE))
        if "FEN" in tags:
            raise BadInputError(f"{path} has a game that starts from a set-up position", "remove it from the book")
        movetext = " ".join(line for line in game.splitlines() if not line.startswith(("[", "%")))
        lines.append(Line(tags.get("Opening", ""), " ".join(_tokens(movetext))))
    return lines
