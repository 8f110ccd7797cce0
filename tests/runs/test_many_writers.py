"""Many processes that write and ingest into one SQLite registry at once: no error, no row lost, none twice."""

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
WRITERS_AT_WORK = """
import json, os, sys, time
from chessreg.runs.kind import find_kind
from chessreg.registry import provenance
from chessreg.session import open_session

home, seconds, source, writers = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
toy = find_kind(source)
code, environment = provenance.read_code_state(), provenance.read_packages()  # told once, not by git at every attempt
provenance.read_code_state, provenance.read_packages = lambda folder=None: code, lambda: environment

def write(seed, seconds):
    units, replicate, end = 0, 0, time.monotonic() + seconds
    with open_session(home + "/registry.db", home + "/store") as session:
        while not replicate or time.monotonic() < end:
            report = session.run(toy.spec(positions=20, plies=2, seed=seed, replicate=replicate), kind=source)
            assert report.state == "complete"
            units += report.units
            replicate += 1
    os.write(1, json.dumps({"units": units, "runs": replicate}).encode() + b"\\n")

write(writers, 0)  # so that everything is imported before there are twelve
pids = []
for seed in range(writers):  # each a process with connections of its own
    pids.append(os.fork())
    if not pids[-1]:
        write(seed, seconds)
        sys.exit()
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


def write_for(home: Path, seconds: float, writers: int) -> tuple[int, int]:
    """Let them write for so long; returns how many runs and rows came in, all of them, once."""
    with open_session(str(home / "registry.db"), home / "store"):
        pass
    words = [str(home), str(seconds), str(TOY), str(writers)]
    done = subprocess.run([sys.executable, "-c", WRITERS_AT_WORK, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(written) == 1 + writers
    with open_session(str(home / "registry.db"), home / "store") as session, session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.Score)) == sum(w["units"] for w in written)
        assert sql.scalar(select(func.count()).select_from(tables.Run)) == sum(w["runs"] for w in written)
        assert sql.scalar(select(func.count()).select_from(tables.Conflict)) == 0
        unfinished = select(func.count()).where(tables.Run.completed_at.is_(None))
        assert sql.scalar(unfinished) == 0
        assert list((home / "store" / "fragments" / "incoming").iterdir()) == []
    return sum(w["runs"] for w in written), sum(w["units"] for w in written)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("writers", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_many_writers_lose_nothing(tmp_path, writers):
    write_for(tmp_path, 1, writers)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_twelve_writers_lose_nothing_in_a_minute(tmp_path, capfd):
    runs, rows = write_for(tmp_path, 60, WRITERS)
    with capfd.disabled():
        print(f"\n{WRITERS} writers for a minute: {runs:,} runs, {rows:,} rows, 0 errors, 0 lost")
