"""The engine pool: right moves, and no leftovers after any process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import chess
import psutil
import pytest

from chessreg.errors import BadInputError, ChessregError
from chessreg.games.engines import uci
from chessreg.games.engines.opponents import Limit, parse_engine
from chessreg.games.engines.pool import EnginePool, count_free_cores, format_position_command, to_white_centipawns
from chessreg.games.engines.uci import EngineAnswerError, EngineDiedError, SearchResult, UciProcess

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/K2R4 w - - 0 1"
ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 300.0  # seconds for a short operation, on a busy machine


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
    assert format_position_command(board) == "position fen 4k3/8/8/8/8/8/8/R3K3 w - - 0 1 moves a1a8 e8d7"
    assert format_position_command(chess.Board()) == "position startpos"


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
    assert to_white_centipawns(SearchResult("e2e4", score, mate, 1, 0.0), turn) == expected


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


FIRST = "info depth 1 multipv 1 score cp 34 nodes 20 pv e2e4 e7e5"


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], EnginePool]:
    """A pool of an engine that answers every search with the same lines."""
    script = tmp_path / "odd-engine"
    monkeypatch.setenv("CHESSREG_STOCKFISH", str(script))

    def pool(lines: str) -> EnginePool:
        answer = tmp_path / "answer"
        answer.write_bytes(lines.encode())
        script.write_text(
            '#!/bin/sh\nwhile read -r x; do case "$x" in uci) echo uciok;; isready) echo readyok;; quit) exit;; '
            f"go*) cat {answer};; esac; done\n"
        )
        script.chmod(0o755)
        return EnginePool(parse_engine("stockfish:20@nodes=10"), 1)

    return pool


@pytest.mark.parametrize(
    ("lines", "score", "nodes"),
    [
        (f"{FIRST}\nbestmove e2e4 ponder e7e5\n", 34, 20),
        (f"{FIRST}\r\nbestmove e2e4\r\n", 34, 20),
        ("bestmove e2e4\n", None, 0),
        (f"{FIRST}\ninfo string best score so far is fine\nbestmove e2e4\n", 34, 20),
        (f"{FIRST}\ninfo string searched many nodes in time\nbestmove e2e4\n", 34, 20),
        (f"{FIRST}\ninfo depth 2 string score cp 99 nodes 99 bestmove d2d4\nbestmove e2e4\n", 34, 20),
        (f"Engine 1.0: score of nodes 3 4\n{FIRST}\n  a score line\nbestmove e2e4\n", 34, 20),
        (f"{FIRST}\ninfo depth 1 score cp 0 ebf 1.75 nodes 13 pv e2e4\nbestmove e2e4\n", 0, 13),
        (f"{FIRST}\ninfo depth 1 score cp 72 wdl 249 747 4 nodes 40\nbestmove e2e4\n", 72, 40),
        (f"{FIRST}\ninfo depth 1 score cp 50 lowerbound nodes 40\nbestmove e2e4\n", 34, 40),
        (f"{FIRST}\ninfo depth 1 score\nbestmove e2e4\n", 34, 20),
        (f"{FIRST}\ninfo depth 1 score cp 12.5 nodes x\nbestmove e2e4\n", None, 0),
        (f"{FIRST}\ninfo depth 1 score cp 99999999999 nodes 13\nbestmove e2e4\n", None, 13),
        (f"{FIRST}\ninfo depth 1 score mate\nbestmove e2e4\n", None, 20),
    ],
)
def test_what_an_engine_says_beside_its_move_is_read_or_left(
    answering: Callable[[str], EnginePool], lines: str, score: int | None, nodes: int
) -> None:
    with answering(lines) as pool:
        move = pool.submit(0, chess.Board(), key=(0,)).result(PATIENCE)
        assert (move.move.uci(), move.score_cp, move.nodes) == ("e2e4", score, nodes)
        evaluation = pool.analyse(chess.Board(), Limit("nodes", 5))
        if score is not None:
            assert evaluation.result(PATIENCE).score_cp == score
        else:
            with pytest.raises(EngineAnswerError, match=r"odd-engine \(process \d+\) gave no score that can be read"):
                evaluation.result(PATIENCE)


@pytest.mark.parametrize(
    "answer", ["e2e5", "E2E4", "e4", "", "(none)", "0000", "e7e8q", "e2e4q", "\xff", "nonsense word"]
)
def test_an_answer_that_is_no_legal_move_is_the_engines_fault_by_name(
    answering: Callable[[str], EnginePool], answer: str
) -> None:
    board = chess.Board()
    with answering(f"{FIRST}\nbestmove {answer}\n") as pool:
        asked = [pool.submit(0, board, key=(0,)), pool.analyse(board, Limit("nodes", 5))]
        board.push_san("d4")  # the caller continues
        for future in asked:
            with pytest.raises(
                EngineAnswerError, match=r"odd-engine \(process \d+\) answered .* not legal in rnbq"
            ) as caught:
                future.result(PATIENCE)
            assert caught.value.cause == "engine_died"


def test_castling_of_a_king_onto_its_rook_is_the_kings_move(answering: Callable[[str], EnginePool]) -> None:
    with answering("info score cp 1 pv e1h1\nbestmove e1h1\n") as pool:
        board = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
        assert pool.submit(0, board, key=(0,)).result(PATIENCE).move.uci() == "e1g1"


@pytest.mark.parametrize(
    "line",
    [
        "info multipv 1 score cp 3 pv e2e5",
        "info multipv x score cp 3 pv e2e4",
        "info multipv 1 score cp pv e2e4",
        "info multipv",
        "info string multipv 1 score cp 3 pv e2e4",
        "info multipv 1 score cp 3 pv",
    ],
)
def test_variations_that_cannot_be_read_are_the_engines_fault(
    answering: Callable[[str], EnginePool], line: str
) -> None:
    with answering(f"{line}\nbestmove e2e4\n") as pool, pytest.raises(EngineAnswerError, match="odd-engine"):
        pool.lines(chess.Board(), Limit("nodes", 5), 3).result(PATIENCE)


def test_an_engine_that_writes_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uci, "MAX_OUTPUT_BYTES", 1 << 16)
    chatty = tmp_path / "chatty"
    chatty.write_text(
        "#!/bin/sh\nread x; echo uciok\n"
        'while read -r x; do case "$x" in isready) echo readyok;; go*) yes;; esac; done\n'
    )
    chatty.chmod(0o755)
    process = UciProcess(chatty, {})
    try:
        with pytest.raises(EngineAnswerError, match=r"chatty .* wrote 0 MiB without an answer"):
            process.search("position startpos", "go nodes 1", 30)
    finally:
        process.kill()
        process.close()


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
from chessreg.games.engines.opponents import parse_engine
from chessreg.games.engines.pool import EnginePool
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
    cores = count_free_cores()
    assert EnginePool(parse_engine("stockfish:0@time=0.1"), 64).processes == cores
    assert EnginePool(parse_engine("stockfish:0@time=0.1"), 64, reserved_cores=cores).processes == 1
    assert EnginePool(parse_engine("stockfish:0@nodes=100"), 64).processes == 64
    with pytest.raises(BadInputError):
        EnginePool(parse_engine("stockfish:0"), 0)


def test_a_time_limit_ends_the_search_in_time(stockfish: Path) -> None:
    with EnginePool(parse_engine("stockfish:20@time=0.1"), 1) as pool:
        searches = (pool.submit(0, chess.Board(), key=(0,)).result(PATIENCE).seconds for _ in range(30))
        assert any(seconds == pytest.approx(0.1, abs=0.05) for seconds in searches)  # a busy machine delays some


def test_a_full_strength_opponent_without_a_clock_forgets_also_where_evaluations_have_one() -> None:
    with EnginePool(parse_engine("random"), 1, is_timed=True) as pool:
        texts = ("stockfish:20@nodes=10", "stockfish:20@time=0.1", "stockfish:19@nodes=10", "random")
        assert [pool._is_reset_each_move(parse_engine(text)) for text in texts] == [True, False, False, False]
