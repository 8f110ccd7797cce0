"""Matches that are killed or interrupted, and go on: no game is lost, none is doubled."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from sqlalchemy import func, select

from chessreg.errors import NotFoundError
from chessreg.games.engines.opponents import find_stockfish
from chessreg.noise import uniform
from chessreg.registry import tables


def count(session, table):
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table))


def settings_of(opponent, games):
    """Of a match, or of a ladder where opponents are listed: `games` in all."""
    rungs = opponent.count(",") + 1
    whom = {"ladder" if rungs > 1 else "opponent": opponent, "games": games // rungs}
    return {"policy": "legal", "opening": "random:4", "move_limit": 8, **whom}


@pytest.fixture
def match(spawn, tmp_path):
    """Starts a match in a separate process, with its output in the file `said`."""

    def started(settings):
        words = ["run", "play", "--checkpoint", "bigram", "--adjudication", "none"]
        words += ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
        words += ["--device", "cpu", "--threads", "1", "--parallel-games", "4"]
        for name, value in settings.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return spawn(words, tmp_path / "said")

    return started


def opponent_here():
    try:
        find_stockfish()
    except NotFoundError:
        return "random"
    return "stockfish:0@nodes=10"


def wait_for(process, session, games, seconds=300):
    """Wait until the registry has this number of games; False if the match ended first."""
    deadline = time.monotonic() + seconds
    while count(session, tables.UnitRange) < games:
        if not process.is_alive():
            assert process.exitcode == 0
            return False
        assert time.monotonic() < deadline, "the match made no progress"
        time.sleep(0.02)
    return True


def engines_of(process):
    """The engine processes of a match; empty for one that has just ended."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def check_whole(session, games, matches):
    with session.database.read() as sql:
        assert sql.scalars(select(tables.Game.unit).order_by(tables.Game.unit)).all() == list(range(games))
    assert count(session, tables.Conflict) == 0
    assert count(session, tables.Match) == matches


def test_an_interrupted_match_keeps_what_is_finished_and_ends_its_engines(session, match, tmp_path):
    games, opponent = 400, opponent_here()
    process = match(settings_of(opponent, games))
    assert wait_for(process, session, 3)
    engines = engines_of(process)
    os.kill(process.pid, signal.SIGINT)
    process.join(300)
    assert process.exitcode == 130
    assert "--resume" in (tmp_path / "said").read_text()
    _, alive = psutil.wait_procs(engines, timeout=300)
    assert not alive, "an engine outlived the match"
    done = count(session, tables.UnitRange)
    assert 3 <= done < games
    assert count(session, tables.Game) == done


def kill_again_and_again(session, play, match, opponent, games, kills):
    """Kill a match `kills` times at moments that differ, and finish it. Returns the games that each attempt played."""
    settings = settings_of(opponent, games)
    for number in range(kills):
        before = count(session, tables.UnitRange)
        process = match(settings)
        if not wait_for(process, session, before + 1):
            break
        engines = engines_of(process)
        time.sleep(uniform("kill", number) * 0.5)  # anywhere between two games, in a flush or in an ingest
        process.kill()
        process.join(300)
        _, alive = psutil.wait_procs(engines, timeout=300)
        assert not alive, "an engine outlived the match"
    report = play(**{**settings, **({"ladder": opponent.split(",")} if "," in opponent else {})})
    assert (report.state, report.units) == ("complete", games)
    check_whole(session, games, matches=opponent.count(",") + 1)
    with session.database.read() as sql:
        attempts = sql.execute(select(tables.Game.attempt_id, func.count()).group_by(tables.Game.attempt_id)).all()
    return [played for _, played in attempts]


def test_a_ladder_that_is_killed_loses_and_doubles_no_game(session, play, match):
    played = kill_again_and_again(session, play, match, f"random,{opponent_here()},capture", games=120, kills=1)
    assert sum(played) == 120


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_match_killed_three_times_loses_and_doubles_no_game(session, play, match):
    played = kill_again_and_again(session, play, match, "random", games=300, kills=3)
    assert sum(played) == 300
    assert len(played) > 1


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_match_of_2000_games_killed_twenty_times_loses_and_doubles_no_game(session, play, match):
    played = kill_again_and_again(session, play, match, opponent_here(), games=2000, kills=20)
    assert sum(played) == 2000
    assert len(played) > 1
