"""Matches that are killed or interrupted, and go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from sqlalchemy import func, select

from chessreg.errors import NotFoundError
from chessreg.games.engines import find_stockfish
from chessreg.registry import tables

GAMES = 60


def count(session, table):
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table))


def settings_of(opponent):
    return {"games": GAMES, "policy": "legal", "opening": "random:4", "move_limit": 25, "opponent": opponent}


def spawn(tmp_path, opponent):
    command = [sys.executable, "-m", "chessreg.cli", "run", "play", "--checkpoint", "bigram", "--adjudication", "none"]
    command += ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    command += ["--device", "cpu", "--threads", "1", "--batch-games", "4"]
    for name, value in settings_of(opponent).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def opponent_here():
    try:
        find_stockfish()
    except NotFoundError:
        return "random"
    return "stockfish:0@nodes=10"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_match_loses_and_doubles_no_game(session, play, tmp_path, number):
    opponent = opponent_here()
    process = spawn(tmp_path, opponent)
    deadline = time.monotonic() + 240
    while count(session, tables.UnitRange) < 3:
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline, "the match made no progress"
        time.sleep(0.1)
    engines = psutil.Process(process.pid).children(recursive=True)
    assert bool(engines) == (opponent != "random")
    asked = time.monotonic()
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert time.monotonic() - asked < 30
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert b"--resume" in error
    _, alive = psutil.wait_procs(engines, timeout=20)
    assert not alive, "an engine outlived the match"
    done = count(session, tables.UnitRange)
    assert 3 <= done < GAMES
    assert count(session, tables.Game) == done
    report = play(**settings_of(opponent))
    assert (report.state, report.units) == ("complete", GAMES)
    assert report.missing_before < GAMES
    with session.database.read() as sql:
        assert sql.scalars(select(tables.Game.unit).order_by(tables.Game.unit)).all() == list(range(GAMES))
        attempts = dict(
            sql.execute(select(tables.Game.attempt_id, func.count()).group_by(tables.Game.attempt_id)).all()
        )
    assert sorted(attempts.values()) == sorted([report.missing_before, GAMES - report.missing_before])
    assert count(session, tables.Conflict) == 0
    assert count(session, tables.Match) == 1
