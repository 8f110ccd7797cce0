"""One test that every kind of experiment passes: ours, and a user's in one file. A new kind is in it by existing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from chessreg.jobs.kind import FAMILIES, kind, kinds
from chessreg.registry import tables

TOY = str(Path(__file__).parent / "toy_kind.py")
EVERY = [*kinds(), TOY]


def command_line(world: Path, *words: str) -> list[str]:
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    return [sys.executable, "-m", "chessreg.cli", *place, *words]


def chessreg(world: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_line(world, *words), capture_output=True, text=True, timeout=300, check=False)


def results(session, run_id) -> dict[str, int]:
    """Rows of a run by family."""
    counts = {}
    with session.database.read() as sql:
        for family in FAMILIES:
            table = tables.Base.metadata.tables[family]
            counts[family] = sql.scalar(select(func.count()).select_from(table).where(table.c.run_id == run_id))
    return {family: count for family, count in counts.items() if count}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_kind_is_helped_planned_killed_resumed_queried_and_drawn(name, world, world_session):
    session = world_session
    found = kind(name)
    example = shlex.split(found.example)
    assert example, f"kind {found.name} has no example"

    shown = chessreg(world, "run", name, "--help").stdout
    for field in (*found.spec.model_fields, *found.how.model_fields):
        assert f"--{field.replace('_', '-')}" in shown

    planned = json.loads(chessreg(world, "run", name, *example, "--dry-run", "--json").stdout)
    assert planned["units"] == planned["missing"] > 0
    assert planned["settings"]["seed"]["source"] == "default"

    process = subprocess.Popen(command_line(world, "run", name, *example), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and not units_done(session, planned["run_id"]):
        assert time.monotonic() < deadline, "no unit was completed"
        time.sleep(0.02)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()

    finished = chessreg(world, "run", name, *example, "--json")
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert (report["state"], report["done"], report["run_id"]) == ("complete", planned["units"], planned["run_id"])
    rows = results(session, planned_id(planned))
    assert rows, "a complete run has results"
    assert set(rows) <= set(found.families)

    again = chessreg(world, "run", name, *example)
    assert "nothing to do" in again.stderr
    assert results(session, planned_id(planned)) == rows

    short = len(found.families) == 1 and found.name not in tables.Base.metadata.tables
    view = (found.name if short else f"{found.name}_{next(iter(rows))}").replace("-", "_")
    asked = f"select count(*) as n from {view} where run_id = '{planned_id(planned)}'"
    answer = chessreg(world, "query", "--sql", asked, "--format", "csv")
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout.split()[1]) == next(iter(rows.values()))

    board = chessreg(world, "board", f"{planned['run_id']}:0")
    if type(found).frames is type(found).__mro__[-2].frames:
        assert board.returncode != 0
        assert "no boards" in board.stderr
    else:
        assert board.returncode == 0, board.stderr
        assert board.stdout.count("\n") >= 8


def planned_id(planned):
    from uuid import UUID

    return UUID(planned["run_id"])


def units_done(session, run_id: str) -> int:
    from uuid import UUID

    with session.database.read() as sql:
        return sql.scalar(
            select(func.count()).select_from(tables.UnitRange).where(tables.UnitRange.run_id == UUID(run_id))
        )
