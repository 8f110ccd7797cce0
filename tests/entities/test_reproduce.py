"""What made a number is told in commands that work, and an exact run comes out the same."""

from __future__ import annotations

import shutil

import pytest
from sqlalchemy import func, select

from chessreg.entities.reproduce import again, steps
from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.session import open_session


@pytest.fixture
def session(world, tmp_path):
    shutil.copytree(world, tmp_path / "world")
    with open_session(str(tmp_path / "world" / "registry.db"), tmp_path / "world" / "store") as opened:
        yield opened


def test_steps_are_commands_in_an_order_that_works(session):
    with session.database.read() as sql:
        commands = [step["command"] for step in steps(sql, session.id("run", "reference-board"))]
    assert commands[-1] == "chessreg run probe --cache reference-fit --epochs 1 --name reference-board"
    cache = "chessreg run cache --checkpoint reference --dataset sample:fit --last 16 --name reference-fit"
    order = [commands.index(cache), len(commands) - 1]
    assert order == sorted(order)
    assert any(c.startswith("chessreg dataset add games.pgn --name sample") for c in commands[: order[0]])
    assert any(c.startswith("chessreg import checkpoint FILE --name reference") for c in commands[: order[0]])


@pytest.mark.parametrize("name", ["reference-fit", "reference-board"])
def test_an_exact_run_comes_out_the_same_and_leaves_nothing_behind(session, name):
    before = session.database.data_version()
    fragments = sorted((session.store.root / "fragments").rglob("*"))
    found = again(session.database, session.store, session.id("run", name))
    assert found.agrees
    assert found.outputs_same > 0
    assert session.database.data_version() == before
    assert sorted((session.store.root / "fragments").rglob("*")) == fragments
    assert list(session.store.tmp.iterdir()) == []


def test_a_row_that_was_changed_is_found(session):
    run_id = session.id("run", "reference-board")
    with session.database.write() as sql:
        row = sql.scalars(select(tables.Score).where(tables.Score.run_id == run_id)).first()
        row.correct += 1
        place = f"score {row.unit} {row.split} {row.item}"
    found = again(session.database, session.store, run_id)
    assert found.differing == [place]


def test_a_run_that_is_not_complete_is_refused(session):
    with session.database.write() as sql:
        sql.query(tables.Run).update({"completed_at": None})
    with pytest.raises(BadInputError, match="is not complete"):
        again(session.database, session.store, session.id("run", "skill"))
    with session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.Run)) > 0
