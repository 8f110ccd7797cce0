"""Engine moves for many games at once: worker threads, each with its own engine process.

A search waits in a queue, a free process runs it, and a future returns the move. Games are interleaved over processes,
so one hash table serves several games; a process resets (ucinewgame) at its first move of each game. Full-strength
Stockfish under a nodes or depth limit resets before every move, so that its moves do not depend on the number of
processes. Handicapped levels draw at random and cannot be seeded, so they save the 1.5 ms per reset (1,000 nodes take
0.8 ms).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import chess

from chessreg.errors import BadInputError, ChessregError
from chessreg.games.boards.adjudication import MATE_CP
from chessreg.games.engines.opponents import ENGINE_OPTIONS, FULL_SKILL, EngineSpec, Limit, choose_move, find_stockfish
from chessreg.games.engines.uci import MULTI_PV, EngineAnswerError, EngineDiedError, SearchResult, UciProcess, Variation

A = TypeVar("A")
B = TypeVar("B")

DEFAULT_ANALYSIS = Limit("nodes", 100_000)


@dataclass(frozen=True)
class EngineMove:
    """One engine move.

    `score_cp` is White's view in centipawns of the engine's best line (before a handicap picks a worse one), None
    without a search. `seconds` is the wall time of the search.
    """

    move: chess.Move
    score_cp: int | None
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """A full-strength evaluation: White's view in centipawns, mate in n = ±(10000 - n), and the engine's best move."""

    score_cp: int
    nodes: int
    seconds: float
    move: chess.Move | None = None


@dataclass(frozen=True)
class _Task:
    """One search: the UCI commands `position` and `go`, the skill level, and the future that receives the result."""

    game: Hashable
    position: str
    go: str
    skill: int
    patience: float
    is_fresh: bool
    lines: int
    future: Future[SearchResult]


def count_free_cores(reserved_cores: int = 0) -> int:
    """Return the cores that this process may use, less `reserved_cores` ones (for example for a model's threads);
    at least 1."""
    get_affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS
    return max(1, (len(get_affinity(0)) if get_affinity else os.cpu_count() or 1) - reserved_cores)


def format_position_command(board: chess.Board) -> str:
    """Return the UCI command for this board with its whole history, which repetition draws depend on."""
    root = board.root()
    fen = root.fen(en_passant="fen")
    start = "startpos" if fen == chess.STARTING_FEN else f"fen {fen}"
    if not board.move_stack:
        return f"position {start}"
    return f"position {start} moves {' '.join([move.uci() for move in board.move_stack])}"


def to_white_centipawns(result: SearchResult | Variation, turn: chess.Color) -> int | None:
    """Return the score of a search from White's view, or None if the engine printed none."""
    if result.mate is not None:
        # "mate 0" means that the side to move is already mated
        value = MATE_CP - result.mate if result.mate > 0 else -MATE_CP - result.mate
    elif result.score is not None:
        value = result.score
    else:
        return None
    return value if turn == chess.WHITE else -value


def parse_engine_move(board: chess.Board, answer: str | None, engine: str) -> chess.Move:
    """Return the move that an engine answered on `board`, with castling as the king's move.

    Raises EngineAnswerError, which names the engine, for an illegal answer.
    """
    try:
        move = board.parse_uci(answer or "")
    except ValueError:
        move = chess.Move.null()
    if not move:
        answer_text = "no move" if answer is None else repr(answer[:20])
        raise EngineAnswerError(f"engine {engine} answered {answer_text}, which is not legal in {board.fen()}")
    return move


class EnginePool:
    """Engine moves for many games. Thread-safe; use as a context manager.

    `processes` defaults to the free cores. Under a time limit it never exceeds them, because engines that share a core
    search less in the same time; `is_timed` overrides whether there is a time limit (for analyses).

    Raises NotFoundError if the opponent needs Stockfish and it is not installed.
    """

    def __init__(
        self,
        spec: EngineSpec,
        processes: int | None = None,
        *,
        reserved_cores: int = 0,
        is_timed: bool | None = None,
    ) -> None:
        if processes is not None and processes < 1:
            raise BadInputError(f"an engine pool needs at least one process, not {processes}")
        self.spec = spec
        cores = count_free_cores(reserved_cores)
        process_count = processes or cores
        if is_timed is None:
            is_timed = spec.limit is not None and spec.limit.kind == "time"
        self.processes = min(process_count, cores) if is_timed else process_count
        self.is_timed = is_timed
        self._path = find_stockfish() if spec.needs_process else None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def _is_reset_each_move(self, spec: EngineSpec) -> bool:
        """Return whether this opponent resets before each move."""
        return spec.needs_process and spec.seedable

    def submit(
        self, game_id: Hashable, board: chess.Board, *, key: tuple[int | str, ...], spec: EngineSpec | None = None
    ) -> Future[EngineMove]:
        """Request the opponent's move on `board`, which is read before this returns.

        `key` is (seed, unit, ply): it alone determines random draws outside Stockfish. `spec` is another opponent than
        the pool's. The future raises EngineDiedError if the engine dies twice on this move, BadInputError if the game
        is over.
        """
        spec = spec or self.spec
        future: Future[EngineMove] = Future()
        start = time.perf_counter()
        try:
            move = choose_move(spec, board, key)
        except ChessregError as error:
            future.set_exception(error)
            return future
        if move is not None:
            future.set_result(EngineMove(move, None, 0, time.perf_counter() - start))
            return future
        turn, position, snapshot = board.turn, format_position_command(board), board.copy(stack=False)

        def finish(result: SearchResult) -> EngineMove:
            if result.move is None and not any(snapshot.legal_moves):
                raise BadInputError(f"{position} has no legal move")
            score = to_white_centipawns(result, turn)
            return EngineMove(
                parse_engine_move(snapshot, result.move, result.engine), score, result.nodes, result.seconds
            )

        if self._path is None:
            self._path = find_stockfish()
        search = self._enqueue(game_id, position, spec.go, spec.skill, spec.patience, self._is_reset_each_move(spec))
        return _chain_future(search, finish, future)

    def analyse(
        self, board: chess.Board, limit: Limit = DEFAULT_ANALYSIS, searched_move: chess.Move | None = None
    ) -> Future[Evaluation]:
        """Request a full-strength evaluation of `board`, or of one move on it. Any pool can analyse if Stockfish is
        installed."""
        turn, snapshot = board.turn, board.copy(stack=False)
        go = limit.go if searched_move is None else f"{limit.go} searchmoves {searched_move.uci()}"
        if self._path is None:
            self._path = find_stockfish()

        def finish(result: SearchResult) -> Evaluation:
            score = to_white_centipawns(result, turn)
            if score is None:
                raise EngineAnswerError(f"engine {result.engine} gave no score that can be read for {snapshot.fen()}")
            best = (
                parse_engine_move(snapshot, result.move, result.engine)
                if result.move or any(snapshot.legal_moves)
                else None
            )
            return Evaluation(score, result.nodes, result.seconds, best)

        search = self._enqueue(None, format_position_command(board), go, FULL_SKILL, limit.patience, True)
        return _chain_future(search, finish, Future())

    def lines(self, board: chess.Board, limit: Limit, number: int) -> Future[list[Evaluation]]:
        """Request full-strength evaluations of the `number` best moves of `board` (or of all moves), best first."""
        turn, snapshot = board.turn, board.copy(stack=False)
        if self._path is None:
            self._path = find_stockfish()

        def finish(result: SearchResult) -> list[Evaluation]:
            line_scores = [(line, to_white_centipawns(line, turn)) for line in result.lines]
            evaluations = [
                Evaluation(score, result.nodes, result.seconds, parse_engine_move(snapshot, line.move, result.engine))
                for line, score in line_scores
                if score is not None
            ]
            if not evaluations:
                raise EngineAnswerError(
                    f"engine {result.engine} gave no variation that can be read for {snapshot.fen()}"
                )
            return evaluations

        position = format_position_command(board)
        search = self._enqueue(None, position, limit.go, FULL_SKILL, limit.patience, True, number)
        return _chain_future(search, finish, Future())

    def evaluations(self, fens: Iterable[str], limit: Limit) -> Iterator[int]:
        """Yield White's centipawns for each position, in order. A finished game is ±MATE_CP or 0."""
        pending: deque[Future[Evaluation] | int] = deque()

        def first() -> int:
            one = pending.popleft()
            return one if isinstance(one, int) else one.result().score_cp

        for fen in fens:
            board = chess.Board(fen)
            if board.is_checkmate():
                pending.append(-MATE_CP if board.turn == chess.WHITE else MATE_CP)
            else:
                pending.append(self.analyse(board, limit) if any(board.legal_moves) else 0)
            if len(pending) > 2 * self.processes:
                yield first()
        while pending:
            yield first()

    def close(self) -> None:
        """End every engine and cancel waiting requests. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            workers, self._workers = self._workers, []
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task.future.cancel()
        for _ in workers:
            self._tasks.put(None)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()

    @property
    def pids(self) -> list[int]:
        """Process ids of the running engines."""
        return [pid for worker in self._workers if (pid := worker.pid) is not None]

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(
        self, game: Hashable, position: str, go: str, skill: int, patience: float, is_fresh: bool, lines: int = 1
    ) -> Future[SearchResult]:
        """Queue a search and start a worker if fewer than `processes` run.

        `position` and `go` are UCI commands, `skill` is the level, and `patience` the seconds to wait for its answer.
        `is_fresh` resets the engine before the search, and `lines` is the number of variations. Raises ChessregError on
        a closed pool.
        """
        future: Future[SearchResult] = Future()
        with self._lock:
            if self._is_closed:
                raise ChessregError("the engine pool is closed")
            assert self._path is not None
            if len(self._workers) < self.processes:
                self._workers.append(_Worker(self._path, self._tasks))
                self._workers[-1].start()
            self._tasks.put(_Task(game, position, go, skill, patience, is_fresh, lines, future))
        return future


class _Worker(threading.Thread):
    """A thread with its engine process, which it restarts after a crash."""

    def __init__(self, path: Path, tasks: queue.SimpleQueue[_Task | None]) -> None:
        super().__init__(
            name="chessreg-engine", daemon=True
        )  # an unclosed pool must not block the exit of the interpreter
        self._path = path
        self._tasks = tasks
        self._guard = threading.Lock()
        self._process: UciProcess | None = None
        self._is_stopped = False
        self._games: set[Hashable] = set()

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process else None

    def run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                result = self._search(task)
            except BaseException as error:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)
        if self._process is not None:
            self._process.close()

    def stop(self) -> None:
        """End the engine, even in mid-search; the thread then reads the end of its output. Call from any thread."""
        with self._guard:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _search(self, task: _Task) -> SearchResult:
        """Run a search; after a crash, repeat it once with a new process. Raises EngineDiedError."""
        for is_last in (False, True):
            try:
                process = self._engine()
                process.set_option("Skill Level", task.skill)
                process.set_option(MULTI_PV, task.lines)
                is_fresh = task.is_fresh or task.game not in self._games
                self._games.add(task.game)
                return process.search(task.position, task.go, task.patience, is_fresh=is_fresh)
            except EngineDiedError as error:
                with self._guard:
                    if self._process is not None:
                        self._process.close()
                        self._process = None
                    if self._is_stopped:
                        raise CancelledError from error
                if is_last:
                    raise EngineDiedError(f"{error.message}, twice on the same move: {task.position}") from error
        raise AssertionError("unreachable")

    def _engine(self) -> UciProcess:
        """Return the running engine process, started if necessary."""
        with self._guard:
            if self._is_stopped:
                raise EngineDiedError("the engine pool is closed")
            if self._process is None:
                self._process = UciProcess(self._path, ENGINE_OPTIONS)
            return self._process


def _chain_future(source: Future[A], function: Callable[[A], B], target: Future[B]) -> Future[B]:
    """Make `target` follow `source`; `function` converts the result in the worker's thread. Return `target`."""

    def relay(finished_future: Future[A]) -> None:
        if not target.set_running_or_notify_cancel():
            return
        try:
            result = function(finished_future.result())
        except Exception as error:
            target.set_exception(error)
        else:
            target.set_result(result)

    source.add_done_callback(relay)
    return target
