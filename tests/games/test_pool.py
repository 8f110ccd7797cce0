"""The engine pool: right moves, nothing left behind, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import chess
import psutil
import pytest

from chessreg.errors import BadInputError, ChessregError
from chessreg.games.engines import Limit, parse_engine
from chessreg.games.pool import EnginePool, free_cores, position_command, white_centipawns
from chessreg.games.uci import EngineDiedError, SearchResult, UciProcess

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/K2R4 w - - 0 1"
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0  # seconds for what takes a moment, on a machine that does much else


def gone(pids: list[int], seconds: float = PATIENCE) -> bool:
    """Whether all these processes end within the time (a zombie waiting for a reaper has ended)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
        if not alive:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def strong(stockfish: Path) -> Iterator[EnginePool]:
    with EnginePool(parse_engine("stockfish:20@nodes=2000"), 2) as pool:
        yield pool


def test_a_mate_in_one_is_played_by_either_color_and_scored_from_whites_view(strong: EnginePool) -> None:
    white = chess.Board(MATE_IN_ONE)
    black = white.mirror()
    first = strong.submit("a", white, key=(1, 0, 0)).result(PATIENCE)
    second = strong.submit("b", black, key=(1, 1, 0)).result(PATIENCE)
    assert (first.move.uci(), first.score_cp) == ("d1d8", 9999)
    assert (second.move.uci(), second.score_cp) == ("d8d1", -9999)
    assert first.nodes > 0
    assert first.seconds > 0


def test_the_board_may_change_while_the_engine_thinks(strong: EnginePool) -> None:
    board = chess.Board(MATE_IN_ONE)
    future = strong.submit("a", board, key=(1, 0, 0))
    board.push_uci("a1a2")
    assert future.result(PATIENCE).move.uci() == "d1d8"


def test_a_finished_game_has_no_engine_move(strong: EnginePool) -> None:
    with pytest.raises(BadInputError, match="no legal move"):
        strong.submit("a", chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"), key=(1, 0, 0)).result(PATIENCE)


def test_full_strength_moves_do_not_depend_on_the_number_of_processes(strong: EnginePool) -> None:
    boards = []
    board = chess.Board()
    for san in ("e4", "c5", "Nf3", "d6", "d4", "cxd4", "Nxd4", "Nf6", "Nc3", "a6", "Be2", "e5"):
        board.push_san(san)
        boards.append(board.copy())
    with EnginePool(strong.spec, 1) as alone:
        one = [alone.submit(0, board, key=(0,)).result(PATIENCE) for board in boards]
    many = [future.result(PATIENCE) for future in [strong.submit(i, board, key=(0,)) for i, board in enumerate(boards)]]
    assert [(move.move, move.score_cp) for move in one] == [(move.move, move.score_cp) for move in many]


def test_the_engine_knows_the_moves_that_led_to_the_position() -> None:
    board = chess.Board("4k3/8/8/8/8/8/8/R3K3 w - - 0 1")
    board.push_uci("a1a8")
    board.push_uci("e8d7")
    assert position_command(board) == "position fen 4k3/8/8/8/8/8/8/R3K3 w - - 0 1 moves a1a8 e8d7"
    assert position_command(chess.Board()) == "position startpos"


def test_an_evaluation_is_at_full_strength_whatever_the_opponent(stockfish: Path) -> None:
    with EnginePool(parse_engine("random")) as pool:
        assert pool.pids == []
        queen_up = chess.Board("4k3/8/8/8/8/8/8/3QK3 b - - 0 1")
        evaluation = pool.analyse(queen_up, Limit("nodes", 5000)).result(PATIENCE)
        assert evaluation.score_cp > 500
        assert evaluation.nodes <= 6000
        mated = chess.Board("R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1")
        assert pool.analyse(mated, Limit("nodes", 100)).result(PATIENCE).score_cp == 10_000


@pytest.mark.parametrize(
    ("score", "mate", "turn", "expected"),
    [(31, None, chess.WHITE, 31), (31, None, chess.BLACK, -31), (None, 3, chess.BLACK, -9997), (None, -2, True, -9998)],
)
def test_scores_are_turned_to_whites_view(score: int | None, mate: int | None, turn: bool, expected: int) -> None:
    assert white_centipawns(SearchResult("e2e4", score, mate, 1, 0.0), turn) == expected


def test_random_opponents_answer_by_key_without_any_process() -> None:
    with EnginePool(parse_engine("capture")) as pool:
        moves = [pool.submit(game, chess.Board(), key=(5, game, 0)).result() for game in range(5)]
        again = [pool.submit(game, chess.Board(), key=(5, game, 0)).result() for game in range(5)]
        assert [move.move for move in moves] == [move.move for move in again]
        assert pool.pids == []


def test_a_diluted_engine_mixes_its_own_moves_with_random_ones(stockfish: Path) -> None:
    with EnginePool(parse_engine("stockfish:20@nodes=2000+random=0.5"), 1) as pool:
        moves = [pool.submit(0, chess.Board(MATE_IN_ONE), key=(1, unit, 0)).result(PATIENCE) for unit in range(40)]
    own = [move for move in moves if move.nodes > 0]
    assert {move.move.uci() for move in own} == {"d1d8"}
    assert 8 < len(own) < 32
    assert len({move.move for move in moves if move.nodes == 0}) > 5


def test_many_games_from_many_threads_each_get_their_own_answers(strong: EnginePool) -> None:
    wrong: list[str] = []

    def play(white: bool) -> None:
        board = chess.Board(MATE_IN_ONE) if white else chess.Board(MATE_IN_ONE).mirror()
        for index in range(20):
            move = strong.submit((white, index), board, key=(index,)).result(30).move.uci()
            if move != ("d1d8" if white else "d8d1"):
                wrong.append(move)

    threads = [threading.Thread(target=play, args=(index % 2 == 0,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(strong.pids) == 2


def test_a_killed_engine_is_replaced_and_the_move_still_comes(stockfish: Path) -> None:
    with EnginePool(parse_engine("stockfish:20@nodes=1000"), 1) as pool:
        pool.submit(0, chess.Board(MATE_IN_ONE), key=(0,)).result(PATIENCE)
        (before,) = pool.pids
        os.kill(before, signal.SIGKILL)
        assert pool.submit(0, chess.Board(MATE_IN_ONE), key=(0,)).result(PATIENCE).move.uci() == "d1d8"
        (after,) = pool.pids
        assert after != before


def test_an_engine_killed_in_mid_search_is_retried_once_and_then_named_as_the_cause(stockfish: Path) -> None:
    with EnginePool(parse_engine("stockfish:20@nodes=900000000"), 1) as pool:
        future = pool.submit(0, chess.Board(), key=(0,))
        killed: set[int] = set()
        while not future.done() and len(killed) < 5:
            for pid in set(pool.pids) - killed:
                while sum(psutil.Process(pid).cpu_times()[:2]) < 1:  # seconds of processor: into the search
                    time.sleep(0.01)
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.01)
        with pytest.raises(EngineDiedError, match="signal 9, twice on the same move") as caught:
            future.result(PATIENCE)
        assert caught.value.cause == "engine_died"
        assert len(killed) == 2


def test_an_engine_that_falls_silent_counts_as_dead(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text('#!/bin/sh\nread x; echo uciok; while read x; do [ "$x" = isready ] && echo readyok; done\n')
    mute.chmod(0o755)
    process = UciProcess(mute, {"Hash": 16})
    try:
        with pytest.raises(EngineDiedError, match="gave no answer for 0 s"):
            process.search("position startpos", "go nodes 1", 0.2)
    finally:
        process.close()
    assert gone([process.pid])


def test_leaving_the_pool_by_an_exception_ends_engines_in_mid_search(stockfish: Path) -> None:
    pids: list[int] = []

    def use() -> None:
        with EnginePool(parse_engine("stockfish:20@depth=200"), 2) as pool:
            futures.extend(pool.submit(index, chess.Board(), key=(index,)) for index in range(4))
            while len(pool.pids) < 2:
                time.sleep(0.01)
            pids.extend(pool.pids)
            raise KeyboardInterrupt

    futures: list = []
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        use()
    assert time.monotonic() - started < PATIENCE
    assert gone(pids)
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(PATIENCE)


def test_a_closed_pool_takes_no_more_games(stockfish: Path) -> None:
    pool = EnginePool(parse_engine("stockfish:0@nodes=1"), 1)
    pool.submit(0, chess.Board(), key=(0,)).result(PATIENCE)
    pool.close()
    pool.close()
    with pytest.raises(ChessregError, match="closed"):
        pool.submit(0, chess.Board(), key=(0,))


PARENT = """
import sys, chess
from chessreg.games.engines import parse_engine
from chessreg.games.pool import EnginePool
import time
pool = EnginePool(parse_engine("stockfish:20@depth=200"), 2)
futures = [pool.submit(i, chess.Board(), key=(i,)) for i in range(2)]
while len(pool.pids) < 2:
    time.sleep(0.01)
time.sleep(0.3)
print(*pool.pids, flush=True)
futures[0].result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_engine_outlives_a_parent_that_is_killed_in_mid_search(stockfish: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(psutil.pid_exists(pid) for pid in pids)
    parent.send_signal(number)
    parent.wait(PATIENCE)
    parent.stdout.close()
    assert gone(pids)


def test_under_a_time_limit_there_are_no_more_processes_than_free_cores(stockfish: Path) -> None:
    cores = free_cores()
    assert EnginePool(parse_engine("stockfish:0@time=0.1"), 64).processes == cores
    assert EnginePool(parse_engine("stockfish:0@time=0.1"), 64, reserved_cores=cores).processes == 1
    assert EnginePool(parse_engine("stockfish:0@nodes=100"), 64).processes == 64
    with pytest.raises(BadInputError):
        EnginePool(parse_engine("stockfish:0"), 0)


def test_a_time_limit_ends_the_search_in_time(stockfish: Path) -> None:
    with EnginePool(parse_engine("stockfish:20@time=0.1"), 1) as pool:
        seconds = [pool.submit(0, chess.Board(), key=(0,)).result(PATIENCE).seconds for _ in range(2)]
    assert min(seconds) == pytest.approx(0.1, abs=0.05)


def test_a_full_strength_opponent_without_a_clock_forgets_also_where_evaluations_have_one() -> None:
    with EnginePool(parse_engine("random"), 1, timed=True) as pool:
        texts = ("stockfish:20@nodes=10", "stockfish:20@time=0.1", "stockfish:19@nodes=10", "random")
        assert [pool._forgets(parse_engine(text)) for text in texts] == [True, False, False, False]
