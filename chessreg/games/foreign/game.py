"""A game that somebody else's program recorded: the text of its file, the players, and the findings of a replay."""

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

_MAX_FIELD_CHARACTERS = 1 << 24  # characters: a transcript with a long prompt is more than csv takes by itself


def read_source_text(path: Path) -> str:
    """The whole text of a file (plain, zst, gz or bz2). Raises NotFoundError or BadInputError saying what is wrong."""
    try:
        return decode_text(b"".join(GameSource(path).blocks())).removeprefix("\ufeff")
    except BrokenStreamError as error:
        raise BadInputError(f"{path} is damaged: {error.args[0]}") from error


def read_header(text: str) -> list[str]:
    """The column names of a CSV: its first line's fields."""
    line = text.split("\n", 1)[0]
    return [name.strip() for name in next(csv.reader([line]), [])] if len(line) < 10_000 else []


def read_table(text: str) -> list[dict[str, str]]:
    """The rows of a CSV by column; what a short row lacks is empty. Raises BadInputError for a row that is too long."""
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
        raise BadInputError(f"line {reader.line_num} is no CSV: {error}") from error
    return rows


def parse_number(text: str) -> float | None:
    """A number, or None for an empty field and for what is none, or is too large for one."""
    if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", text, re.IGNORECASE) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def parse_flag(text: str) -> bool:
    return text.strip().lower() in ("true", "1")


UNKNOWN = "unknown"
_LEVEL = re.compile(r"Stockfish (-?\d+)")
_LADDER = re.compile(r"(Stockfish) (-?\d+) \(((?:nodes|time|depth)=[^,)]+|depth=1, nodes=1)\)")
_NODES = re.compile(r"(\d+) ?nodes?")


@dataclass(frozen=True)
class MatchPlayer:
    """A side. `text` is what a match calls it as an opponent: `stockfish:3@time=0.1`, `stockfish:3@unknown`, `gpt-4`.

    `engine` is the program's name for an engine, None for a model or a person; `level` and `limit` are the engine's,
    None where they are not recorded.
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
    """A level of Stockfish as chess_gpt_eval numbers them: -1 has a limit of its own, -2 is the random mover."""
    if level == -2:
        return MatchPlayer(name, EngineSpec("random").text, "random")
    if level == -1:
        return MatchPlayer(name, EngineSpec("stockfish", -1).text, "Stockfish", -1)
    return MatchPlayer(name, f"stockfish:{level}@{limit or UNKNOWN}", "Stockfish", level, limit)


def make_chess_gpt_eval_player(name: str, limit: str | None) -> MatchPlayer:
    """`Stockfish N` is level N under `limit`; every other name is a model."""
    match = _LEVEL.fullmatch(name.strip())
    return make_engine_player(name, int(match[1]), limit) if match else MatchPlayer(name, name)


def make_tournament_player(name: str, is_program: bool) -> MatchPlayer:
    """A player of a PGN: an engine when the PGN says so, or when the name is one that chessreg writes itself
    (`Stockfish 3 (nodes=200)` is level 3). `Stockfish 16` is version 16 of an engine without a level."""
    match = _LADDER.fullmatch(name.strip())
    if match:
        level = int(match[2])
        return make_engine_player(name, level, None if level < 0 else match[3])
    if is_program or name.lower().startswith("stockfish"):
        return MatchPlayer(name, name, name)
    return MatchPlayer(name, name)


def parse_engine_limit(text: str) -> str | None:
    """The engine's limit in a time column of chess_gpt_eval: seconds a move, or `40000 nodes`; empty is unknown.

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
class Rejected:
    """A row that holds no game that could be kept, and why."""

    row: int
    text: str


@dataclass
class ForeignGame:
    """One game as its file has it.

    `row` counts from 0. `white_tries` and `black_tries` are the tries of each turn where the file tells them (None: it
    does not); `illegal` is (ply, number, text) of the recorded illegal tries. `source_columns` is what the file says
    of the game that has no column here (its scores among it), kept as it stands.
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
    def packed(self) -> bytes:
        return pack_moves(self.moves)

    def side(self, color: chess.Color) -> MatchPlayer:
        return self.white if color else self.black

    def turns(self, color: chess.Color) -> int:
        """Turns of one side: its moves, and the turn in which it gave the game away."""
        plies = len(self.moves)
        lost_turn = self.loser_by_forfeit == color and plies % 2 == (0 if color else 1)
        return (plies + (1 if color else 0)) // 2 + lost_turn

    def tries(self, color: chess.Color) -> list[int] | None:
        return self.white_tries if color else self.black_tries

    def first_try_legal(self, color: chess.Color) -> int | None:
        return self.white_first_try_legal if color else self.black_first_try_legal

    def odd(self, code: str, text: str) -> None:
        self.oddities.append(Oddity(code, text))


@dataclass(frozen=True)
class ForeignFile:
    """What a file holds: games in row order, rows without one, and how many rows there are.

    `policy` and `move_limit` are those of the program that wrote the format, where it has any.
    """

    rows: int
    games: tuple[ForeignGame, ...]
    rejected: tuple[Rejected, ...]
    policy: str = "unknown"
    move_limit: int | None = None

    def report(self) -> dict[str, Any]:
        """Counts, and every oddity by its sort with the rows that have it: plain values, for people and as JSON."""
        by_code: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for game in self.games:
            for oddity in game.oddities:
                by_code[oddity.code].append((game.row, oddity.text))
        return {
            "rows": self.rows,
            "games": len(self.games),
            "rejected": [{"row": r.row, "reason": r.text} for r in self.rejected],
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
    """Play SAN words from the start position. The second value is the first word that is no legal move, or None."""
    board = chess.Board()
    for word in sans:
        try:
            move = board.parse_san(word)
        except ValueError:
            return board, word
        if not move:  # a null move is legal for parse_san, not in chess
            return board, word
        board.push(move)
    return board, None


def find_termination(board: chess.Board, result: str) -> str:
    """Why a game with this last position and result stopped, as far as the board shows it; else `unknown`.

    Draws may have been claimed: threefold repetition and fifty moves count when the position allows the claim.
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
    """Note a recorded result that differs from that of the last position."""
    end = find_game_end(board)
    if end is not None and end.result != game.result:
        game.odd("result differs from board", f"recorded {game.result}, the board says {end.result}")
    if end is None and game.result != "*" and game.termination == Termination.UNKNOWN:
        game.odd("ending not recorded", f"{game.result}, but the game could go on and nothing says why it stopped")


def note_duplicates(games: Iterable[ForeignGame]) -> None:
    """Note games whose moves an earlier game of the same players has too."""
    seen: dict[tuple[str, str, bytes], int] = {}
    ids: dict[str, int] = {}
    for game in games:
        key = (game.white.text, game.black.text, game.packed)
        if key in seen:
            game.odd("moves of an earlier game", f"the same moves as row {seen[key]}")
        seen.setdefault(key, game.row)
        if game.id and game.id in ids:
            game.odd("id of an earlier game", f"{game.id} is row {ids[game.id]} too")
        if game.id:
            ids.setdefault(game.id, game.row)
