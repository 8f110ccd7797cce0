"""Opponents: a ladder from a random mover to full-strength Stockfish, each written as one line of text.

| text | player |
|---|---|
| `random` | a uniformly drawn legal move |
| `capture` | a uniformly drawn capture if there is one, else a uniformly drawn move |
| `stockfish:-1` | skill 0, depth 1, one node (chess_gpt_eval's level -1) |
| `stockfish:LEVEL@LIMIT` | Skill Level 0..20 under `nodes=N`, `time=SECONDS` or `depth=N`; default `nodes=100000` |
| either with `+random=SHARE` | this share of the moves, drawn by key, is uniformly random instead |

Stockfish of level L chooses its move once it has searched to depth L + 1 (level 0 after about 60 nodes), whatever the
limit allows beyond that. More nodes still make it stronger, probably because its hash table keeps later results for the
next move: at 1,000 nodes, level 0 as White scores 0.55 against itself, 0.32 against 10,000 and 0.28 against 100,000 (60
games each, docs/results/karvonen.md). `capture` lost all 100 games to level -1. The diluted rungs between them are for
weak models (each scored 0.57 to 0.88 against the one below, 200 games).

The ratings of skill levels 0 to 19 are chess_gpt_eval's, from official-stockfish/Stockfish pull request 4341 (commit
a08b8d4, January 2023): Ordo ratings against versions of Stash, anchored to CCRL, at 120 s + 1 s per game. Another limit
changes a level's strength, so datasets with these numbers record `rating_scale = stockfish`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal

import chess

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.engines.uci import UciProcess
from chessreg.noise import Stream, uniform
from chessreg.plugins import format_system_install_command

ENGINE_OPTIONS: Mapping[str, int] = {"Threads": 1, "Hash": 16}
"""Options of every engine process, in addition to its Skill Level."""

FULL_SKILL = 20
DEFAULT_NODES = 100_000
"""Nodes per move in Karvonen's intervention tables."""

_GRAMMAR = (
    "an engine is one of: random, capture, stockfish:-1, stockfish:LEVEL[@nodes=N|@time=SECONDS|@depth=N]; "
    "stockfish takes +random=SHARE at the end"
)


@dataclass(frozen=True)
class Limit:
    """The end of a search: `nodes` and `depth` are whole numbers, `time` is seconds per move."""

    kind: Literal["nodes", "time", "depth"]
    value: float

    def __post_init__(self) -> None:
        if not 0 < self.value < 1e12:
            raise BadInputError(f"an engine limit must be positive, not {self.kind}={self.value:g}", _GRAMMAR)
        if self.kind == "time" and self.value < 0.001:
            raise BadInputError(f"an engine limit must be at least 0.001 s, not {self.value:g}", _GRAMMAR)

    @property
    def text(self) -> str:
        return f"{self.kind}={format_decimal(self.value)}" if self.kind == "time" else f"{self.kind}={int(self.value)}"

    @property
    def go(self) -> str:
        """The UCI command that searches under this limit."""
        amount = round(self.value * 1000) if self.kind == "time" else int(self.value)
        return f"go {'movetime' if self.kind == 'time' else self.kind} {amount}"

    @property
    def patience(self) -> float:
        """Seconds after which a silent engine counts as dead: far more than a loaded machine needs."""
        return {"nodes": 60 + self.value / 10_000, "time": 60 + 10 * self.value, "depth": 3600.0}[self.kind]


@dataclass(frozen=True)
class EngineSpec:
    """An opponent.

    `level` and `limit` are None for the two opponents without an engine process. `random_share` is the share of moves,
    0 <= share < 1, that Stockfish does not choose.
    """

    kind: Literal["random", "capture", "stockfish"]
    level: int | None = None
    limit: Limit | None = None
    random_share: float = 0.0

    @property
    def text(self) -> str:
        """The canonical text; `parse_engine(spec.text) == spec`."""
        if self.kind != "stockfish":
            return self.kind
        limit = f"@{self.limit.text}" if self.limit else ""
        return f"stockfish:{self.level}{limit}" + (
            f"+random={format_decimal(self.random_share)}" if self.random_share else ""
        )

    @property
    def name(self) -> str:
        """The name for people and PGN tags: `Stockfish 3 (nodes=200)`."""
        if self.kind != "stockfish":
            return {"random": "Random mover", "capture": "Random capturer"}[self.kind]
        random_text = f", random={format_decimal(self.random_share)}" if self.random_share else ""
        return f"Stockfish {self.level} ({self.limit.text if self.limit else 'depth=1, nodes=1'}{random_text})"

    @property
    def needs_process(self) -> bool:
        return self.kind == "stockfish"

    @property
    def seedable(self) -> bool:
        """Whether it repeats its moves. Below its full level, Stockfish draws at random; under a time limit, speed
        matters."""
        if not self.needs_process:
            return True
        return self.level == FULL_SKILL and self.limit is not None and self.limit.kind != "time"

    @property
    def skill(self) -> int:
        """The `Skill Level` option; level -1 is skill 0 under a smaller limit."""
        return max(0, self.level or 0)

    @property
    def go(self) -> str:
        """The UCI command for one move (only for engines with a process)."""
        return self.limit.go if self.limit else "go depth 1 nodes 1"

    @property
    def patience(self) -> float:
        return self.limit.patience if self.limit else 60.0

    def __str__(self) -> str:
        return self.text


def format_decimal(value: float) -> str:
    """Return all digits of a number, without an exponent and trailing zeros.

    >>> [format_decimal(value) for value in (0.00001, 0.25, 1e6)]
    ['0.00001', '0.25', '1000000']
    """
    text = f"{Decimal(repr(float(value))):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_limit(text: str) -> Limit:
    """Return the limit `nodes=1000`, `time=0.1` or `depth=8`. Raises BadInputError for anything else."""
    match = re.fullmatch(r"(nodes|depth)=(\d+(?:_\d+)*)|(time)=(\d+(?:\.\d*)?|\.\d+)", text.strip())
    if match is None:
        raise BadInputError(f"{text!r} is not an engine limit", "write nodes=1000, time=0.1 or depth=8")
    if match[3]:
        return Limit("time", float(match[4]))
    return Limit("nodes" if match[1] == "nodes" else "depth", int(match[2]))


def parse_engine(text: str) -> EngineSpec:
    """Return the opponent with this text. Raises BadInputError for an invalid one.

    >>> parse_engine("stockfish:0").text
    'stockfish:0@nodes=100000'
    """
    cleaned_text = text.strip().lower()
    if cleaned_text in ("random", "capture"):
        return EngineSpec("random" if cleaned_text == "random" else "capture")
    match = re.fullmatch(r"stockfish:([+-]?\d+)(?:@([^+]*))?(?:\+random=(\d*\.?\d+))?", cleaned_text)
    if match is None:
        raise BadInputError(f"{text!r} does not name an engine", _GRAMMAR)
    level, share = int(match[1]), float(match[3] or 0)
    if not -1 <= level <= 20:
        raise BadInputError(f"Stockfish has the levels -1 to 20, not {level}", _GRAMMAR)
    if not 0 <= share < 1:
        raise BadInputError(f"the share of random moves must be at least 0 and below 1, not {share:g}", _GRAMMAR)
    if level == -1:
        if match[2] is not None:
            raise BadInputError("stockfish:-1 has its own limit (depth 1, one node) and takes no other", _GRAMMAR)
        return EngineSpec("stockfish", -1, None, share)
    limit = parse_limit(match[2]) if match[2] is not None else Limit("nodes", DEFAULT_NODES)
    return EngineSpec("stockfish", level, limit, share)


def parse_ladder(texts: Iterable[str]) -> tuple[EngineSpec, ...]:
    """Return the rungs with these texts, in order; `stockfish:0-10@LIMIT` denotes eleven.

    Raises BadInputError for an invalid opponent and for a repeated one.

    >>> [rung.text for rung in parse_ladder(["random", "stockfish:0-1@nodes=10"])]
    ['random', 'stockfish:0@nodes=10', 'stockfish:1@nodes=10']
    """
    rungs: list[EngineSpec] = []
    for text in texts:
        levels = re.fullmatch(r"\s*stockfish:(\d{1,2})-(\d{1,2})((?:[@+].*)?)", text, re.IGNORECASE)
        if levels is None:
            rungs.append(parse_engine(text))
        elif int(levels[1]) > int(levels[2]):
            raise BadInputError(f"{text!r} names no level", "the lower level first: stockfish:0-10")
        else:
            rungs += [parse_engine(f"stockfish:{n}{levels[3]}") for n in range(int(levels[1]), int(levels[2]) + 1)]
    if repeated_rungs := [rung.text for place, rung in enumerate(rungs) if rung in rungs[:place]]:
        raise BadInputError(f"the ladder has {repeated_rungs[0]} twice")
    return tuple(rungs)


def _build_ladder() -> tuple[EngineSpec, ...]:
    """Return the rungs of LADDER."""
    random_engines = [f"stockfish:-1+random={share}" for share in (0.4, 0.2, 0.1)]
    low = [parse_engine(text) for text in ("random", "capture", *random_engines, "stockfish:-1")]
    zero = [EngineSpec("stockfish", 0, Limit("nodes", nodes)) for nodes in (1, 10, 100, 1_000, DEFAULT_NODES)]
    rest = [EngineSpec("stockfish", level, Limit("nodes", DEFAULT_NODES)) for level in range(1, 21)]
    return (*low, *zero, *rest)


LADDER: tuple[EngineSpec, ...] = _build_ladder()
"""The rungs, weakest first; a rung's name is its `text`. Measure a weak model where it scores 0.2 to 0.8."""


def choose_move(spec: EngineSpec, board: chess.Board, key: tuple[int | str, ...]) -> chess.Move | None:
    """Return the move of an opponent that needs no engine process for it, else None.

    `random` and `capture` never need one; a diluted Stockfish does not at random plies. The move is a pure function of
    position and `key` (seed, unit, ply). Raises BadInputError for a finished position.
    """
    if spec.needs_process and not (spec.random_share and uniform(Stream.ENGINE_DILUTION, *key) < spec.random_share):
        return None
    moves = sorted(board.legal_moves, key=chess.Move.uci)  # python-chess's order may change
    if not moves:
        raise BadInputError(f"{board.fen()} has no legal move")
    if spec.kind == "capture":
        moves = [move for move in moves if board.is_capture(move)] or moves
    return moves[int(uniform(Stream.ENGINE_MOVE, spec.kind, *key) * len(moves))]


def find_stockfish() -> Path:
    """Return the Stockfish binary: `CHESSREG_STOCKFISH`, else from the PATH, else where Debian and Homebrew install it.

    Raises NotFoundError with the install command of this system.
    """
    environment_path = os.environ.get("CHESSREG_STOCKFISH")
    if environment_path:
        path = shutil.which(environment_path)
        if path is None:
            raise NotFoundError(
                f"CHESSREG_STOCKFISH={environment_path} is not a program", format_stockfish_install_command()
            )
        return Path(path)
    places = (None, "/usr/games", "/usr/local/bin", "/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin")
    for place in places:
        if path := shutil.which("stockfish", path=place):
            return Path(path)
    raise NotFoundError("Stockfish is not installed", format_stockfish_install_command())


def format_stockfish_install_command() -> str:
    """Return the command or instruction that installs Stockfish on this system."""
    download = "download it from https://stockfishchess.org/download and set CHESSREG_STOCKFISH to its path"
    return format_system_install_command("stockfish") or download


@dataclass(frozen=True)
class EngineIdentity:
    """The identity of an engine binary. `options` are the engine's defaults, overridden by `ENGINE_OPTIONS`."""

    name: str
    version: str
    sha256: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)


def identify_engine(path: Path | None = None) -> EngineIdentity:
    """Return the identity of an engine binary, cached until the file changes.

    Raises NotFoundError for a missing file, BadInputError for a program that is not a UCI engine.
    """
    path = path or find_stockfish()
    try:
        stat = path.stat()
    except OSError as error:
        raise NotFoundError(
            f"the engine {path} cannot be started: {error.strerror}", format_stockfish_install_command()
        ) from error
    return _read_identity(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _read_identity(path: Path, _modified_ns: int, _size: int) -> EngineIdentity:
    """Start the engine and return its identity; modification time and size are part of the cache key."""
    process = UciProcess(path, ENGINE_OPTIONS)
    process.close()
    title = next((line[8:].strip() for line in process.greeting if line.startswith("id name ")), path.name)
    name, _, version = title.partition(" ")
    options: dict[str, str] = {}
    for line in process.greeting:
        if match := re.match(
            r"option name (.+?) type (?!button)\w+(?: default ?(.*?))?(?: (?:min|max|var) .*)?$", line
        ):
            options[match[1]] = match[2] or ""
    options.update({key: str(value) for key, value in ENGINE_OPTIONS.items()})
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return EngineIdentity(name, version, digest, str(path), options)


RATING_SCALE = "stockfish"
ELO_SOURCE = "official-stockfish/Stockfish#4341 (a08b8d4), 120 s + 1 s, anchored to CCRL"

# fmt: off
STOCKFISH_ELO: tuple[float, ...] = (
    1320.1, 1467.6, 1608.4, 1742.3, 1922.9, 2203.7, 2363.2, 2499.5, 2596.2, 2702.8,
    2788.3, 2855.5, 2923.1, 2972.9, 3024.8, 3069.5, 3111.2, 3141.3, 3170.3, 3191.1,
)
# fmt: on
"""Elo of levels 0, 1, … 19. Levels 20 (unhandicapped) and -1 are not in the table."""


def get_level_rating(level: int) -> float | None:
    """Return the Elo of a skill level, or None if it was never published (-1 and 20)."""
    return STOCKFISH_ELO[level] if 0 <= level < len(STOCKFISH_ELO) else None


def get_engine_rating(spec: EngineSpec) -> float | None:
    """Return the Elo of an opponent by its skill level, or None. The table's time control differs from the spec's
    limit."""
    return None if spec.level is None or spec.random_share else get_level_rating(spec.level)


ANCHOR_ERROR = 100.0
"""The possible error of the whole table in Elo, as its author states; it was measured under another time control."""

ELO_TABLES = ("levels", "levels-truncated")
"""`levels` as published; `levels-truncated` without the decimals, as used by Junkin 2025 (1467.6 becomes 1467)."""


def get_opponent_rating(opponent: str, table: str = "levels") -> float | None:
    """Return the Elo of an opponent as written in a match, independent of its limit; None if it is not in the table.

    >>> get_opponent_rating("stockfish:3@time=0.1"), get_opponent_rating("random")
    (1742.3, None)
    """
    match = re.fullmatch(r"stockfish:(\d+)@[^+]*", opponent)
    rating = get_level_rating(int(match[1])) if match else None
    return float(int(rating)) if rating is not None and table == "levels-truncated" else rating
