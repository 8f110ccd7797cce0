"""Games between Stockfish's levels: the generated dataset.

Opening, colors and levels of game n are functions of (seed, n). The moves are not, because a handicapped level draws at
random inside Stockfish, which has no seed.

Each core gets a worker process with two engines, which plays every P-th game and writes one JSON line per game. The
parent reads the workers in turn, so games arrive in order. A worker ends when its standard input closes, also when the
parent is killed, and its engines end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import chess

from chessreg import child
from chessreg.errors import BadInputError, ChessregError
from chessreg.games.boards.adjudication import WIN_CP, Termination, find_game_end, make_loss
from chessreg.games.boards.openings import OpeningSpec, make_openings
from chessreg.games.boards.pgn import format_pgn
from chessreg.games.engines.opponents import (
    ENGINE_OPTIONS,
    RATING_SCALE,
    EngineSpec,
    Limit,
    find_stockfish,
    get_level_rating,
)
from chessreg.games.engines.pool import count_free_cores, parse_engine_move, to_white_centipawns
from chessreg.games.engines.uci import UciProcess
from chessreg.noise import Stream, generator, uniform

EVENT = "chessreg generated"
LEVELS: tuple[int, ...] = tuple(range(20))
"""The levels that have a published rating."""
RESIGN_CP = 500
RESIGN_MOVES = 2


@dataclass(frozen=True)
class GeneratedGame:
    """One finished game. `moves` are UCI from the standard start, including the `opening_plies` of the
    random opening."""

    number: int
    white: EngineSpec
    black: EngineSpec
    opening_plies: int
    moves: tuple[str, ...]
    sans: tuple[str, ...]
    result: str
    termination: Termination

    def tags(self) -> dict[str, str]:
        """Return the PGN tags; a level without a published rating has no Elo tag.

        Tags that repeat together are adjacent (a player and its rating, the result and its termination), which makes a
        compressed file a quarter smaller.
        """
        tags = {"Event": EVENT, "TimeControl": "-", "RatingScale": RATING_SCALE}
        for color, spec in (("White", self.white), ("Black", self.black)):
            tags[color] = spec.name
            if spec.level is not None and (rating := get_level_rating(spec.level)) is not None:
                tags[f"{color}Elo"] = f"{rating:.0f}"
        is_adjudicated = self.termination is Termination.MOVE_LIMIT
        return {**tags, "Termination": "adjudication" if is_adjudicated else "normal", "Result": self.result}

    @property
    def pgn(self) -> str:
        """The game as PGN text, ending in one newline."""
        return format_pgn(self.tags(), self.sans, self.result)


@dataclass(frozen=True)
class SelfPlay:
    """Settings of games between the levels of an engine.

    A game that reaches `max_plies` (including the opening) is decided by the evaluation of the side that moved last:
    more than 100 centipawns win, else it is a draw. In `resign_share` of the games, chosen by (seed, number), a player
    resigns once its own evaluation was below -RESIGN_CP for RESIGN_MOVES consecutive moves; the other games are played
    to the end. `nodes` is the search limit per move. Raises BadInputError for settings out of range.
    """

    levels: tuple[int, ...] = LEVELS
    nodes: int = 200
    max_plies: int = 140
    opening_plies: int = 4
    resign_share: float = 0.7

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise BadInputError(f"cannot search {self.nodes} nodes", "at least 1")
        if not self.levels or not all(0 <= level <= 20 for level in self.levels):
            raise BadInputError(f"levels must be from 0 to 20, not {list(self.levels)}", "for example --levels 0,5,10")
        if not 0 <= self.opening_plies < self.max_plies:
            raise BadInputError(
                f"{self.opening_plies} opening plies leave no moves to play within {self.max_plies} plies"
            )
        if not 0 <= self.resign_share <= 1:
            raise BadInputError(f"the share of games with resignation must be from 0 to 1, not {self.resign_share}")


@dataclass(frozen=True)
class _WorkerSettings:
    """The settings of a worker, sent to it as its first line."""

    engine: str
    seed: int
    settings: SelfPlay
    numbers: tuple[int, int, int]  # the arguments of range()


def draw_levels(seed: int, number: int, levels: Sequence[int]) -> tuple[int, int]:
    """Return the levels of White and Black in game `number`: two independent uniform draws."""
    draw = generator(Stream.SELFPLAY, seed, number)
    return levels[int(draw.integers(len(levels)))], levels[int(draw.integers(len(levels)))]


def generate_games(
    games: int, settings: SelfPlay = SelfPlay(), *, seed: int, processes: int | None = None, first_game: int = 0
) -> Generator[GeneratedGame]:
    """Play games number `first_game` to `first_game + games - 1` and yield them in this order.

    `processes` defaults to the cores that this process may use. Raises NotFoundError without Stockfish, BadInputError
    for fewer than one game, ChessregError if a worker fails.
    """
    if games < 1:
        raise BadInputError(f"cannot generate {games} games", "at least 1")
    engine = str(find_stockfish())
    count = min(processes or count_free_cores(), games)
    works = [_WorkerSettings(engine, seed, settings, (first_game + k, first_game + games, count)) for k in range(count)]
    return _run_workers(games, works)


def _run_workers(games: int, works: Sequence[_WorkerSettings]) -> Generator[GeneratedGame]:
    """Start the workers and yield their games in order; end the workers in any case."""
    workers: list[subprocess.Popen[str]] = []
    try:
        for work in works:
            workers.append(_start_worker(work))
        for index in range(games):
            yield _receive_game(workers[index % len(workers)], works[0].settings.nodes)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.communicate()


def _start_worker(work: _WorkerSettings) -> subprocess.Popen[str]:
    # a separate session, so that only the parent handles Ctrl-C
    worker = subprocess.Popen(
        child.build_python_command("chessreg.games.engines.selfplay"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        env=child.build_child_environment(),
    )
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the first read reports the error
        worker.stdin.write(json.dumps(asdict(work)) + "\n")
        worker.stdin.flush()
    return worker


def _receive_game(worker: subprocess.Popen[str], nodes: int) -> GeneratedGame:
    """Return the next game of a worker. Raises ChessregError if the worker ended."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line.endswith("\n"):
        _, error_text = worker.communicate()
        cause = (error_text or "").strip().splitlines()
        raise ChessregError(f"a generating process ended: {cause[-1] if cause else f'exit status {worker.returncode}'}")
    data = json.loads(line)
    limit = Limit("nodes", nodes)
    return GeneratedGame(
        number=data["number"],
        white=EngineSpec("stockfish", data["levels"][0], limit),
        black=EngineSpec("stockfish", data["levels"][1], limit),
        opening_plies=data["opening_plies"],
        moves=tuple(data["moves"]),
        sans=tuple(data["sans"]),
        result=data["result"],
        termination=Termination(data["termination"]),
    )


def _run_worker() -> None:
    """Run a worker process: read one line of settings, write one line per game."""
    message = json.loads(sys.stdin.readline())
    work = _WorkerSettings(**{**message, "settings": SelfPlay(**message["settings"])})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    engines = [UciProcess(Path(work.engine), ENGINE_OPTIONS) for _ in range(2)]
    try:
        for number in range(*work.numbers):
            print(json.dumps(_play_game(work, number, engines)), flush=True)
    finally:
        for engine in engines:
            engine.close()


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not sys.stdin.read(): its lock, held by a thread, aborts an exit
        pass
    signal.raise_signal(signal.SIGTERM)


def _play_game(work: _WorkerSettings, number: int, engines: Sequence[UciProcess]) -> dict[str, object]:
    """Play game `number` and return its JSON line as a dict."""
    settings = work.settings
    levels = draw_levels(work.seed, number, settings.levels)
    for engine, level in zip(engines, levels, strict=True):
        engine.set_option("Skill Level", level)
    board = chess.Board()
    sans: list[str] = []
    moves: list[str] = []
    if settings.opening_plies:
        (opening,) = make_openings(OpeningSpec("random", str(settings.opening_plies)), work.seed, [number])
        board, sans, moves = opening.board(), list(opening.sans), list(opening.moves)
    limit = Limit("nodes", settings.nodes)
    is_fresh = [True, True]
    cp: int | None = None
    patience = (
        RESIGN_MOVES
        if uniform(Stream.SELFPLAY_RESIGN, work.seed, number) < settings.resign_share
        else settings.max_plies
    )
    bad_moves = [0, 0]
    while (end := find_game_end(board)) is None and len(moves) < settings.max_plies:
        side = 0 if board.turn else 1
        position = f"position startpos moves {' '.join(moves)}" if moves else "position startpos"
        answer = engines[side].search(position, limit.go, limit.patience, is_fresh=is_fresh[side])
        is_fresh[side] = False
        cp = to_white_centipawns(answer, board.turn)
        is_hopeless = cp is not None and (cp if board.turn else -cp) < -RESIGN_CP
        bad_moves[side] = bad_moves[side] + 1 if is_hopeless else 0
        if bad_moves[side] == patience:
            end = make_loss(board.turn, Termination.RESIGNATION)
            break
        move = parse_engine_move(board, answer.move, answer.engine)
        sans.append(board.san_and_push(move))
        moves.append(move.uci())
    termination, result = (end.termination, end.result) if end else (Termination.MOVE_LIMIT, _adjudicate_result(cp))
    return {
        "number": number,
        "levels": levels,
        "opening_plies": settings.opening_plies,
        "moves": moves,
        "sans": sans,
        "result": result,
        "termination": termination.value,
    }


def _adjudicate_result(cp: int | None) -> str:
    """Return the result for White's centipawns; a draw if unknown."""
    return "1/2-1/2" if cp is None or abs(cp) <= WIN_CP else "1-0" if cp > 0 else "0-1"


if __name__ == "__main__":
    try:
        _run_worker()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)  # the parent has ended
    except ChessregError as error:
        sys.exit(str(error))
