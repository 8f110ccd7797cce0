"""Who plays in somebody else's file: engines by level and limit, and everybody else by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chessreg.games.engines import EngineSpec

UNKNOWN = "unknown"
_LEVEL = re.compile(r"Stockfish (-?\d+)")
_LADDER = re.compile(r"(Stockfish) (-?\d+) \(((?:nodes|time|depth)=[^,)]+|depth=1, nodes=1)\)")
_NODES = re.compile(r"(\d+) ?nodes?")


@dataclass(frozen=True)
class Player:
    """A side. `text` is what a match calls it as an opponent: `stockfish:3@time=0.1`, `stockfish:3@unknown`, `gpt-4`.

    `engine` is the program's name for an engine, None for a model or a person; `level` and `limit` are the engine's,
    None where they are not told.
    """

    name: str
    text: str
    engine: str | None = None
    level: int | None = None
    limit: str | None = None

    @property
    def is_engine(self) -> bool:
        return self.engine is not None


def engine_player(name: str, level: int, limit: str | None) -> Player:
    """A level of Stockfish as chess_gpt_eval numbers them: -1 has a limit of its own, -2 is the random mover."""
    if level == -2:
        return Player(name, EngineSpec("random").text, "random")
    if level == -1:
        return Player(name, EngineSpec("stockfish", -1).text, "Stockfish", -1)
    return Player(name, f"stockfish:{level}@{limit or UNKNOWN}", "Stockfish", level, limit)


def chess_gpt_eval_player(name: str, limit: str | None) -> Player:
    """`Stockfish N` is level N under `limit`; every other name is a model."""
    match = _LEVEL.fullmatch(name.strip())
    return engine_player(name, int(match[1]), limit) if match else Player(name, name)


def tournament_player(name: str, is_program: bool) -> Player:
    """A player of a PGN: an engine when the PGN says so, or when the name is one that chessreg writes itself
    (`Stockfish 3 (nodes=200)` is level 3). `Stockfish 16` is version 16 of an engine without a level."""
    match = _LADDER.fullmatch(name.strip())
    if match:
        level = int(match[2])
        return engine_player(name, level, None if level < 0 else match[3])
    if is_program or name.lower().startswith("stockfish"):
        return Player(name, name, name)
    return Player(name, name)


def limit_of(text: str) -> str | None:
    """The engine's limit in a time column of chess_gpt_eval: seconds a move, or `40000 nodes`; empty is unknown.

    >>> limit_of("0.1"), limit_of("40000 nodes"), limit_of("")
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
