"""A game recorded by a third-party program: the text of its file, the players, and the findings of a replay."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chess

from chessreg.errors import BadInputError
from chessreg.games.boards.adjudication import Termination, find_game_end
from chessreg.games.boards.moves import pack_moves
from chessreg.games.datasets.borders import decode_text
from chessreg.games.datasets.sources import BrokenStreamError, GameSource
from chessreg.games.engines.opponents import EngineSpec

_MAX_FIELD_CHARACTERS = 1 << 24  # a transcript with a long prompt exceeds csv's default


def read_source_text(path: Path) -> str:
    """Return the text of a file (plain, zst, gz or bz2). Raises NotFoundError or BadInputError."""
    try:
        return decode_text(b"".join(GameSource(path).blocks())).removeprefix("\ufeff")
    except BrokenStreamError as error:
        raise BadInputError(f"{path} is damaged: {error.args[0]}") from error


def read_header(text: str) -> list[str]:
    """Return the column names of a CSV, from its first line."""
    line = text.split("\n", 1)[0]
    return [name.strip() for name in next(csv.reader([line]), [])] if len(line) < 10_000 else []


def read_table(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV by column; missing fields of a short row are empty. Raises BadInputError for a row that
    is too long."""
    csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        names = [name.strip() for name in next(reader, [])]
        rows = []
        for fields in reader:
            if not fields:
                continue
            if len(fields) > len(names):
                raise BadInputError(
                    f"line {reader.line_num} has {len(fields)} fields, the header has {len(names)}",
                    "the file is damaged, or two column sets were appended to one file",
                )
            rows.append(dict(zip(names, fields + [""] * (len(names) - len(fields)), strict=True)))
    except csv.Error as error:
        raise BadInputError(f"line {reader.line_num} is not CSV: {error}") from error
    return rows


def parse_number(text: str) -> float | None:
    """Return a finite number, or None for any other text."""
    if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", text, re.IGNORECASE) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def parse_flag(text: str) -> bool:
    """Return whether a field is `true` or `1`."""
    return text.strip().lower() in ("true", "1")


UNKNOWN = "unknown"
_LEVEL = re.compile(r"Stockfish (-?\d+)")
_LADDER = re.compile(r"(Stockfish) (-?\d+) \(((?:nodes|time|depth)=[^,)]+|depth=1, nodes=1)\)")
_NODES = re.compile(r"(\d+) ?nodes?")


@dataclass(frozen=True)
class MatchPlayer:
    """A side of a game.

    `text` identifies it as an opponent of a match: `stockfish:3@time=0.1`, `stockfish:3@unknown`, `gpt-4`. `engine` is
    the program's name for an engine, None for a model or a person; `level` and `limit` are the engine's, None if not
    recorded.
    """

    name: str
    text: str
    engine: str | None = None
    level: int | None = None
    limit: str | None = None

    @property
    def is_engine(self) -> bool:
        return self.engine is not None


def make_engine_player(name: str, level: int, limit: str | None) -> MatchPlayer:
    """Return a level of Stockfish as numbered by chess_gpt_eval: -1 has its own limit, -2 is the random mover."""
    if level == -2:
        return MatchPlayer(name, EngineSpec("random").text, "random")
    if level == -1:
        return MatchPlayer(name, EngineSpec("stockfish", -1).text, "Stockfish", -1)
    return MatchPlayer(name, f"stockfish:{level}@{limit or UNKNOWN}", "Stockfish", level, limit)


def make_chess_gpt_eval_player(name: str, limit: str | None) -> MatchPlayer:
    """Return the player with this name: `Stockfish N` is level N under `limit`; every other name is a model."""
    match = _LEVEL.fullmatch(name.strip())
    return make_engine_player(name, int(match[1]), limit) if match else MatchPlayer(name, name)


def make_tournament_player(name: str, is_program: bool) -> MatchPlayer:
    """Return a player of a PGN.

    It is an engine if the PGN says so, or if chessreg writes such names itself (`Stockfish 3 (nodes=200)` is level 3).
    `Stockfish 16` is version 16 of an engine without a level.
    """
    match = _LADDER.fullmatch(name.strip())
    if match:
        level = int(match[2])
        return make_engine_player(name, level, None if level < 0 else match[3])
    if is_program or name.lower().startswith("stockfish"):
        return MatchPlayer(name, name, name)
    return MatchPlayer(name, name)


def parse_engine_limit(text: str) -> str | None:
    """Return the engine's limit in a time column of chess_gpt_eval: seconds per move, or `40000 nodes`; None if empty.

    >>> parse_engine_limit("0.1"), parse_engine_limit("40000 nodes"), parse_engine_limit("")
    ('time=0.1', 'nodes=40000', None)
    """
    text = text.strip()
    if not text:
        return None
    if match := _NODES.fullmatch(text):
        return f"nodes={int(match[1])}"
    try:
        return f"time={float(text):g}"
    except ValueError:
        return text[:32]


@dataclass(frozen=True)
class Oddity:
    """An oddity of a row. `code` names its kind, `text` describes it."""

    code: str
    text: str


@dataclass(frozen=True)
class RejectedRow:
    """A row without a usable game, and the reason."""

    row: int
    text: str


@dataclass
class ForeignGame:
    """One game as recorded in its file.

    `row` counts from 0. `white_tries` and `black_tries` are the tries of each turn (None if not recorded); `illegal`
    has (ply, number, text) of each recorded illegal try. `source_columns` are values of the file without another
    field, such as its scores, unchanged.
    """

    row: int
    id: str
    white: MatchPlayer
    black: MatchPlayer
    result: str
    moves: list[chess.Move]
    termination: str
    loser_by_forfeit: chess.Color | None = None
    white_tries: list[int] | None = None
    black_tries: list[int] | None = None
    white_first_try_legal: int | None = None
    black_first_try_legal: int | None = None
    illegal: list[tuple[int, int, str]] = field(default_factory=list)
    seconds: float | None = None
    source_columns: dict[str, Any] = field(default_factory=dict)
    oddities: list[Oddity] = field(default_factory=list)

    @property
    def packed_moves(self) -> bytes:
        return pack_moves(self.moves)

    def side(self, color: chess.Color) -> MatchPlayer:
        return self.white if color else self.black

    def turns(self, color: chess.Color) -> int:
        """Return the number of turns of one side: its moves, and the turn in which it forfeited."""
        plies = len(self.moves)
        lost_turn = self.loser_by_forfeit == color and plies % 2 == (0 if color else 1)
        return (plies + (1 if color else 0)) // 2 + lost_turn

    def tries(self, color: chess.Color) -> list[int] | None:
        """Return the number of tries at each turn of one side, or None if the file does not record them."""
        return self.white_tries if color else self.black_tries

    def first_try_legal(self, color: chess.Color) -> int | None:
        """Return the number of turns of one side that were legal at the first try, None if unknown."""
        return self.white_first_try_legal if color else self.black_first_try_legal

    def record_oddity(self, code: str, text: str) -> None:
        """Record an oddity of the game."""
        self.oddities.append(Oddity(code, text))


@dataclass(frozen=True)
class ForeignFile:
    """The contents of a file: games in row order, rejected rows, and the number of rows.

    `policy` and `move_limit` are those of the program that wrote the format, if any.
    """

    rows: int
    games: tuple[ForeignGame, ...]
    rejected_rows: tuple[RejectedRow, ...]
    policy: str = "unknown"
    move_limit: int | None = None

    def report(self) -> dict[str, Any]:
        """Return counts, and every oddity by code with its rows, as plain values for people and JSON."""
        by_code: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for game in self.games:
            for oddity in game.oddities:
                by_code[oddity.code].append((game.row, oddity.text))
        return {
            "rows": self.rows,
            "games": len(self.games),
            "rejected": [{"row": r.row, "reason": r.text} for r in self.rejected_rows],
            "results": dict(sorted(Counter(game.result for game in self.games).items())),
            "terminations": dict(sorted(Counter(game.termination for game in self.games).items())),
            "oddities": [
                {
                    "code": code,
                    "count": len(rejects),
                    "rows": [row for row, _ in rejects],
                    "texts": sorted({text for _, text in rejects})[:3],
                }
                for code, rejects in sorted(by_code.items())
            ],
        }


def replay_sans(sans: Iterable[str]) -> tuple[chess.Board, str | None]:
    """Play SAN words from the initial position; return the board and the first word that is not a legal
    move, or None."""
    board = chess.Board()
    for word in sans:
        try:
            move = board.parse_san(word)
        except ValueError:
            return board, word
        if not move:  # parse_san accepts a null move
            return board, word
        board.push(move)
    return board, None


def find_termination(board: chess.Board, result: str) -> str:
    """Return why a game with this last position and result stopped, as far as the board shows; else `unknown`.

    Draws may have been claimed: threefold repetition and fifty moves count if the position allows the claim.
    """
    end = find_game_end(board)
    if end is not None:
        return str(end.termination)
    if result == "1/2-1/2" and board.is_repetition(3):
        return str(Termination.THREEFOLD_REPETITION)
    if result == "1/2-1/2" and board.is_fifty_moves():
        return str(Termination.FIFTY_MOVES)
    return str(Termination.UNKNOWN)


def compare_result(game: ForeignGame, board: chess.Board) -> None:
    """Note a recorded result that contradicts the last position."""
    end = find_game_end(board)
    if end is not None and end.result != game.result:
        game.record_oddity("result differs from board", f"recorded {game.result}, the board says {end.result}")
    if end is None and game.result != "*" and game.termination == Termination.UNKNOWN:
        game.record_oddity(
            "ending not recorded", f"{game.result}, but the game could continue, and no reason for its end is recorded"
        )


def note_duplicates(games: Iterable[ForeignGame]) -> None:
    """Note games with the same players and moves as an earlier game."""
    first_rows: dict[tuple[str, str, bytes], int] = {}
    ids: dict[str, int] = {}
    for game in games:
        key = (game.white.text, game.black.text, game.packed_moves)
        if key in first_rows:
            game.record_oddity("moves of an earlier game", f"the same moves as row {first_rows[key]}")
        first_rows.setdefault(key, game.row)
        if game.id and game.id in ids:
            game.record_oddity("id of an earlier game", f"{game.id} is row {ids[game.id]} too")
        if game.id:
            ids.setdefault(game.id, game.row)
