"""Twelve processes that write and ingest into one SQLite registry at once: no error, no row lost, none twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, select

from chessreg.registry import tables
from chessreg.session import open_session

WRITERS = 12
TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
WRITER = """
import json, sys, time
from chessreg.jobs.kind import kind
from chessreg.session import open_session

home, seed, seconds, source = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
toy, units, replicate = kind(source), 0, 0
with open_session(home + "/registry.db", home + "/store") as session:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        report = session.run(toy.spec(positions=20, plies=2, seed=seed, replicate=replicate), kind=source)
        assert report.state == "complete"
        units += report.units
        replicate += 1
print(json.dumps({"units": units, "runs": replicate}))
"""


def write_for(home: Path, seconds: float) -> None:
    with open_session(str(home / "registry.db"), home / "store"):
        pass
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(home), str(seed), str(seconds), str(TOY)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(WRITERS)
    ]
    ends = [process.communicate() for process in started]
    assert [error for _, error in ends if error] == []
    assert [process.returncode for process in started] == [0] * WRITERS
    written = [json.loads(out) for out, _ in ends]
    with open_session(str(home / "registry.db"), home / "store") as session, session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.Score)) == sum(w["units"] for w in written)
        assert sql.scalar(select(func.count()).select_from(tables.Run)) == sum(w["runs"] for w in written)
        assert sql.scalar(select(func.count()).select_from(tables.Conflict)) == 0
        unfinished = select(func.count()).where(tables.Run.completed_at.is_(None))
        assert sql.scalar(unfinished) == 0
        assert list((home / "store" / "fragments" / "incoming").iterdir()) == []


def test_twelve_writers_lose_nothing(tmp_path):
    write_for(tmp_path, seconds=3)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_twelve_writers_lose_nothing_in_a_minute(tmp_path):
    write_for(tmp_path, seconds=60)
