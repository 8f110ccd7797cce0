"""`chessreg demo`: every command in it works in a new folder, and a second time nothing is done again."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from chessreg.games.engines import find_stockfish
from chessreg.registry import tables
from chessreg.registry.database import Database


@pytest.mark.timeout(600)
def test_the_demo_runs_and_is_not_run_twice(here):
    try:
        find_stockfish()  # adjudicates games at the move limit
    except Exception as error:
        pytest.skip(str(error))
    assert here("demo", "--size", "small") == 0, here.err
    headings = [line.split()[1] for line in here.out.splitlines() if line.lstrip().startswith("#")]
    assert headings == ["checkpoint", "checkpoint", "condition", "intervention", "row", "row", "row"]
    assert "8 layer with intervention" in here.out
    assert max(len(line) for line in here.out.splitlines() if not line.startswith("[")) < 150  # footnotes are longer
    with Database.open(here.folder / ".chessreg" / "registry.db") as database, database.read() as session:
        attempts = session.scalar(select(func.count()).select_from(tables.Attempt))
        kinds = set(session.scalars(select(tables.Run.kind).where(tables.Run.completed_at.is_not(None))))
    assert kinds == {"cache", "probe", "edit", "vector", "play"}
    assert here("demo", "--size", "small") == 0, here.err
    with Database.open(here.folder / ".chessreg" / "registry.db") as database, database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Attempt)) == attempts
