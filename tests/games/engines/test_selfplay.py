"""Generated games: legal, seeded where they can be, and nothing left running."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import chess
import chess.pgn
import psutil
import pytest
import zstandard

from chessreg.errors import BadInputError, ChessregError
from chessreg.games.boards.adjudication import Termination
from chessreg.games.boards.openings import OpeningSpec, make_openings
from chessreg.games.engines.opponents import get_level_rating
from chessreg.games.engines.selfplay import LEVELS, GeneratedGame, SelfPlay, draw_levels, generate_games

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def games(stockfish: Path) -> list[GeneratedGame]:
    return list(generate_games(16, SelfPlay(tuple(range(0, 20, 3)), 20, 120), seed=3, processes=2, first_game=5))


def test_games_come_in_the_order_of_their_numbers(games: list[GeneratedGame]) -> None:
    assert [game.number for game in games] == list(range(5, 21))


def test_openings_and_levels_are_functions_of_seed_and_number(games: list[GeneratedGame]) -> None:
    for game in games:
        (opening,) = make_openings(OpeningSpec("random", "4"), 3, [game.number])
        assert game.moves[:4] == opening.moves
        assert (game.white.level, game.black.level) == draw_levels(3, game.number, range(0, 20, 3))
    assert len({(game.white.level, game.black.level) for game in games}) > 8


def test_every_game_is_legal_and_ends_as_it_says(games: list[GeneratedGame]) -> None:
    for game in games:
        board = chess.Board()
        for san, uci in zip(game.sans, game.moves, strict=True):
            assert board.san(board.parse_uci(uci)) == san
            board.push_uci(uci)
        if game.termination is Termination.MOVE_LIMIT:
            assert len(game.moves) == 120
        elif game.termination is Termination.RESIGNATION:
            assert not board.is_game_over()
            assert game.result == ("0-1" if board.turn == chess.WHITE else "1-0")
        else:
            assert board.result() == game.result
            assert board.is_game_over()


def test_the_pgn_names_levels_ratings_and_their_scale(games: list[GeneratedGame]) -> None:
    for game in games[:5]:
        read = chess.pgn.read_game(io.StringIO(game.pgn))
        assert read is not None
        assert read.errors == []
        assert [move.uci() for move in read.mainline_moves()] == list(game.moves)
        tags = read.headers
        assert tags["White"] == f"Stockfish {game.white.level} (nodes=20)"
        assert int(tags["WhiteElo"]) == round(get_level_rating(game.white.level or 0) or 0)
        assert (tags["RatingScale"], tags["TimeControl"], tags["Event"]) == ("stockfish", "-", "chessreg generated")
        assert tags["Result"] == game.result
        assert "Date" not in game.tags()


def test_level_twenty_has_no_published_rating_and_so_no_elo_tag(stockfish: Path) -> None:
    (game,) = generate_games(1, SelfPlay((20,), nodes=20, max_plies=12), seed=1)
    assert "WhiteElo" not in game.tags()


@pytest.mark.slow
def test_without_resignation_games_are_played_to_their_end(stockfish: Path) -> None:
    for share in (0.0, 1.0):
        settings = SelfPlay((0, 19), nodes=5, max_plies=240, resign_share=share)
        ends = {game.termination for game in generate_games(4, settings, seed=1)}
        assert (Termination.RESIGNATION in ends) is bool(share)


@pytest.mark.parametrize(
    "wrong",
    [{"levels": (21,)}, {"levels": ()}, {"nodes": 0}, {"opening_plies": 50, "max_plies": 50}, {"resign_share": 2.0}],
)
def test_settings_out_of_range_are_refused_before_anything_starts(wrong: dict) -> None:
    with pytest.raises(BadInputError):
        SelfPlay(**wrong)
    with pytest.raises(BadInputError):
        generate_games(0, seed=1)


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def ended(processes: list[psutil.Process], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
            return True
        time.sleep(0.02)
    return False


def test_a_caller_that_stops_early_leaves_no_process(stockfish: Path) -> None:
    stream = generate_games(1000, SelfPlay(nodes=50), seed=1, processes=2)
    next(stream)
    children = [
        child for child in descendants(os.getpid()) if "stockfish" in child.name() or "selfplay" in str(child.cmdline())
    ]
    assert len(children) >= 4
    stream.close()
    assert ended(children)


def test_workers_and_engines_end_when_the_parent_is_killed(stockfish: Path) -> None:
    code = (
        "from chessreg.games.engines.selfplay import SelfPlay, generate_games\n"
        "for game in generate_games(100000, SelfPlay(nodes=50), seed=1, processes=2): print(game.number, flush=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0\n"
    deadline = time.monotonic() + 300
    while len(family := descendants(parent.pid)) < 6:  # two workers with two engines each
        assert time.monotonic() < deadline, family
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait(300)
    parent.stdout.close()
    assert ended(family)


def test_an_engine_that_dies_ends_the_generation_with_its_cause(stockfish: Path) -> None:
    stream = generate_games(100000, SelfPlay(nodes=50), seed=1, processes=1)
    next(stream)
    (engine, *_) = [child for child in descendants(os.getpid()) if "stockfish" in child.name()]
    engine.kill()
    with pytest.raises(ChessregError, match=r"a generating process ended: engine stockfish .*signal 9"):
        for _ in stream:
            pass


def test_the_bundled_sample_is_what_its_readme_says() -> None:
    import chessreg

    path = Path(chessreg.__file__).parent / "data" / "sample-games.pgn.zst"
    assert path.stat().st_size < 900_000
    text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().decode()
    games = text.split("\n\n[Event ")
    assert len(games) == 5000
    assert len({game.split("\n\n")[-1] for game in games}) == 4999  # one mate on the fourth move was played twice
    for number in range(0, 5000, 250):
        read = chess.pgn.read_game(io.StringIO("[Event " + games[number].removeprefix("[Event ")))
        assert read is not None
        assert read.errors == []
        moves = [move.uci() for move in read.mainline_moves()]
        (opening,) = make_openings(OpeningSpec("random", "4"), 1, [number])
        assert tuple(moves[:4]) == opening.moves
        levels = draw_levels(1, number, LEVELS)
        assert [read.headers["White"], read.headers["Black"]] == [f"Stockfish {level} (nodes=200)" for level in levels]
        assert [int(read.headers[f"{side}Elo"]) for side in ("White", "Black")] == [
            round(get_level_rating(level) or 0) for level in levels
        ]
