"""A power cut with `synchronous=NORMAL`: whichever blocks of the write-ahead log are lost, the remaining state is that
after some commit, and the fragments that the store keeps restore the rest."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from chessreg import doctor
from chessreg.registry import sqlite, tables
from chessreg.runs import attempt, task
from chessreg.runs.kind import find_kind
from chessreg.session import open_session

TOY = str(Path(__file__).parents[1] / "kinds" / "toy_kind.py")
BLOCK = 4096  # bytes that a disk writes or does not


def rows(session):
    score = tables.Score
    with session.database.read() as sql:
        found = sql.execute(select(score.run_id, score.unit, score.detail).order_by(score.run_id, score.unit)).all()
        return [repr(tuple(row)) for row in found]


@pytest.mark.slow
@pytest.mark.skipif(not sqlite.is_log_safe(sqlite.dbapi.sqlite_version_info), reason="this SQLite writes no log")
def test_what_a_lost_log_leaves_is_a_prefix_and_fragments_bring_the_rest(tmp_path, monkeypatch):
    monkeypatch.setenv("CHESSREG_SYNCHRONOUS", "NORMAL")
    monkeypatch.setattr(task, "FLUSH_INTERVAL_S", -1.0)  # a transaction for every unit
    monkeypatch.setattr(attempt.Heartbeat, "run", lambda heartbeat: None)
    toy = find_kind(TOY)
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        with session.database.write() as sql:
            assert sql.connection().exec_driver_sql("PRAGMA synchronous").scalar() == 1  # NORMAL
        session.run(toy.spec(positions=6), kind=TOY)
        session.run(toy.spec(positions=5, plies=3), kind=TOY)
        expected = rows(session)
        main, log = (tmp_path / "registry.db").read_bytes(), (tmp_path / "registry.db-wal").read_bytes()
    assert len(log) > 20 * BLOCK
    states, drawn = set(), random.Random(0)
    for number in range(12):
        cut = tmp_path / f"cut-{number}"
        cut.mkdir()
        (cut / "registry.db").write_bytes(main)
        blocks = [log[start : start + BLOCK] for start in range(0, len(log), BLOCK)]
        for place in drawn.sample(range(len(blocks)), number):  # 0: nothing is lost
            blocks[place] = drawn.choice([bytes(len(blocks[place])), drawn.randbytes(len(blocks[place]))])
        (cut / "registry.db-wal").write_bytes(b"".join(blocks[: drawn.randint(1, len(blocks)) if number else None]))
        shutil.copytree(tmp_path / "store", cut / "store")
        with open_session(str(cut / "registry.db"), cut / "store") as after:
            assert sqlite.check_integrity(cut / "registry.db") == []
            left = rows(after)
            states.add(len(left))
            assert set(left) <= set(expected)
            with after.database.read() as sql:
                done = sum(span.stop - span.start for span in sql.scalars(select(tables.UnitRange)))
            assert done == len(left)  # never a row without its unit, nor a unit without its row
            for problem in doctor.find_problems(after.database, after.store, str(cut / "registry.db")):
                doctor.apply_fix(problem)
            assert rows(after) == expected
    assert len(states) > 3
