"""Ingest: each fragment once, the first complete row wins, differing later ones are listed."""

from __future__ import annotations

import gc
import shutil
import time

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import IntegrityError

from chessreg.registry import tables
from chessreg.runs import ingest
from chessreg.runs.ingest import ingest_fragments, ingest_waiting, insert_rows, list_waiting, requeue_quarantined
from chessreg.runs.kind import find_kind
from chessreg.session import open_session
from store.fragments import FRAGMENT_SUFFIX, FragmentWriter, adopt_fragment, list_ingested, make_uuid7


def count(session, table):
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table))


def test_fragments_that_come_twice_change_nothing(session, run_toy, tmp_path):
    run_toy(positions=5)
    before = count(session, tables.Score), count(session, tables.FragmentRecord)
    for fragment in list_ingested(session.store):
        shutil.copy(fragment.path, session.store.incoming / fragment.name)
    report = ingest_fragments(session.database, session.store)
    assert (report.fragments, report.rows, report.conflicts) == (0, 0, 0)
    assert (count(session, tables.Score), count(session, tables.FragmentRecord)) == before


def test_the_same_spec_on_two_machines_is_one_run_with_two_attempts(session, toy, run_toy, tmp_path):
    run_toy(positions=5)
    with open_session(str(tmp_path / "other.db"), tmp_path / "other") as other:
        other.run(toy.spec(positions=5), kind=toy.source)
        for fragment in list_ingested(other.store):
            adopt_fragment(session.store, fragment.path)
    report = ingest_fragments(session.database, session.store)
    assert report.conflicts == 0
    assert report.repeated == 5
    assert count(session, tables.Run) == 1
    assert count(session, tables.Attempt) == 2
    assert count(session, tables.Score) == 5


def test_a_differing_later_row_is_a_conflict_and_the_first_stays(session, toy, run_toy, tmp_path, monkeypatch):
    run_toy(positions=2)
    with open_session(str(tmp_path / "other.db"), tmp_path / "other") as other:
        from chessreg.runs.task import Task

        emit = Task.emit
        monkeypatch.setattr(
            Task, "emit", lambda self, family, unit, detail=None, **c: emit(self, family, unit, detail, **{**c, "n": 9})
        )
        other.run(toy.spec(positions=2), kind=toy.source)
        for fragment in list_ingested(other.store):
            adopt_fragment(session.store, fragment.path)
    assert ingest_fragments(session.database, session.store).conflicts == 2
    with session.database.read() as sql:
        assert set(sql.scalars(select(tables.Score.n))) == {1}
        assert {row["n"] for row in sql.scalars(select(tables.Conflict.row))} == {9}


def test_a_registry_made_anew_from_the_fragments_holds_the_same(session, run_toy, tmp_path):
    run_toy(positions=6)
    with open_session(str(tmp_path / "anew.db"), tmp_path / "anew") as anew:
        for fragment in list_ingested(session.store):
            adopt_fragment(anew.store, fragment.path)
        ingest_fragments(anew.database, anew.store)
        for table in (tables.Run, tables.Score, tables.Attempt, tables.UnitRange):
            assert count(anew, table) == count(session, table)


def test_fragments_of_clocks_that_run_ahead_go_in_whatever_their_order(session, toy, tmp_path):
    with open_session(str(tmp_path / "other.db"), tmp_path / "other") as other:
        run_id = other.run(toy.spec(positions=5), kind=toy.source).run_id
        later = time.time_ns() + 600 * 10**9
        for number, fragment in enumerate(
            reversed(list_ingested(other.store))
        ):  # the one that says it began comes last
            name = f"{make_uuid7(later + number * 10**6)}.{run_id.hex}{FRAGMENT_SUFFIX}"
            shutil.copy(fragment.path, session.store.incoming / name)
    report = ingest_fragments(session.database, session.store)
    assert (report.waiting, report.rows) == ({}, 5)
    assert (count(session, tables.Score), count(session, tables.Attempt)) == (5, 1)


def test_a_torn_fragment_is_set_aside(session, run_toy):
    run_toy(positions=3)
    fragment = list_ingested(session.store)[0]
    torn = session.store.incoming / fragment.name
    torn.write_bytes(fragment.path.read_bytes()[:-7])
    assert list(ingest_fragments(session.database, session.store).set_aside) == [fragment.name]
    assert not torn.exists()
    assert any(session.store.quarantine.iterdir())


def test_a_fragment_that_is_not_understood_is_set_aside_and_keeps_nobody_back(session, run_toy):
    run_toy(positions=2)
    with session.database.read() as sql:
        run_id = sql.scalars(select(tables.Run.id)).one()
        attempt_id = sql.scalars(select(tables.Attempt.id)).one()
    with FragmentWriter(session.store, run_id.hex, attempt_id.hex) as writer:
        writer.add("dream", {"run_id": run_id.hex})
    point = {"run_id": run_id.hex, "unit": 0, "name": "late", "step": 0, "attempt_id": attempt_id.hex, "value": 1.0}
    with FragmentWriter(session.store, run_id.hex, attempt_id.hex) as writer:
        writer.add("metric_point", point)
    report = ingest_fragments(session.database, session.store)
    assert (report.fragments, len(report.set_aside)) == (1, 1)
    (left,) = list_waiting(session.database, session.store)
    assert left["state"] == "set aside"
    assert "unknown table 'dream'" in left["why"]
    assert requeue_quarantined(session.store) == 1
    assert ingest_waiting(session.database, session.store)["set_aside"] == 1


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("score", {"run_id": "no id"}),
        ("score", {"run_id": 7}),
        ("score", {"n": [1]}),
        ("score", {"n": 2**70}),
        ("score", {"split": {"a": 1}}),
        ("score", {"attempt_id": None, "n": "\ud800"}),
        ("score", {"split": None}),
        ("score", {"n": None}),
        ("unit_range", {"start": "x"}),
        ("unit_range", {"stop": 2**62}),
        ("unit_range", {"start": -1}),
        ("check_in", {"id": "no id"}),
        ("attempt_end", {"ended_at": "yesterday"}),
    ],
)
def test_rows_that_their_tables_cannot_hold_are_set_aside_and_keep_nobody_back(session, run_toy, table, changed):
    done = run_toy(positions=3)
    run, attempt = done.run_id.hex, done.attempt_id.hex
    rows = {
        "score": {"run_id": run, "unit": 1, "attempt_id": attempt, "split": "x", "item": 1, "n": 1, "correct": 1},
        "unit_range": {"run_id": run, "start": 0, "stop": 1, "attempt_id": attempt},
        "check_in": {"id": attempt, "checked_in_at": "2026-01-01T00:00:00+00:00"},
        "attempt_end": {"id": attempt, "ended_at": "2026-01-01T00:00:00+00:00"},
    }
    for row in (rows[table] | changed, rows["unit_range"]):
        with FragmentWriter(session.store, run, attempt) as writer:
            writer.add(table if row != rows["unit_range"] else "unit_range", row)
    before = count(session, tables.Score)
    report = ingest_fragments(session.database, session.store)
    assert (len(report.set_aside), report.fragments, report.waiting) == (1, 1, {})
    assert count(session, tables.Score) == before


def test_what_a_model_wrote_is_cropped_to_its_column(session, tmp_path):
    path = tmp_path / "wordy_kind.py"
    path.write_text(
        "from chessreg.kinds import Kind, Spec\n"
        "class Wordy(Kind):\n"
        "    name, spec, tables = 'wordy', Spec, ('illegal_attempt',)\n"
        "    def units(self, spec, inputs):\n"
        "        return 1\n"
        "    def run(self, task):\n"
        "        task.emit('illegal_attempt', 0, ply=0, number=0, text='e4 ' * 40)\n"
        "        task.done(0)\n"
    )
    found = find_kind(str(path))
    done = session.run(found.spec(), kind=str(path))
    row = {"run_id": done.run_id.hex, "unit": 0, "ply": 0, "attempt_id": done.attempt_id.hex, "text": "e4 " * 40}
    with FragmentWriter(session.store, done.run_id.hex, done.attempt_id.hex) as writer:  # of an earlier version
        writer.add("illegal_attempt", row | {"number": 0})
        writer.add("unit_range", {"run_id": done.run_id.hex, "start": 0, "stop": 1, "attempt_id": done.attempt_id.hex})
    report = ingest_fragments(session.database, session.store)
    assert (report.repeated, report.conflicts) == (1, 0)
    with session.database.read() as sql:
        assert sql.scalars(select(tables.IllegalAttempt.text)).all() == [("e4 " * 40)[:32]]


def test_results_wait_for_their_run_whatever_language_the_server_speaks(session, run_toy, monkeypatch):
    from chessreg.runs import ingest as ingesting

    class Violation(Exception):
        sqlstate = "23503"

    def refused(*_: object) -> None:
        raise IntegrityError("insert", {}, Violation("verletzt Fremdschlüssel-Constraint"))

    run_toy(positions=2)
    fragment = list_ingested(session.store)[0]
    shutil.copy(fragment.path, session.store.incoming / fragment.name)
    monkeypatch.setattr(ingesting, "ingest_rows", refused)
    report = ingest_fragments(session.database, session.store)
    assert (list(report.waiting), report.set_aside) == ([fragment.name], {})


def test_results_that_come_before_their_run_wait_for_it_and_go_in_once(session, toy, tmp_path):
    with open_session(str(tmp_path / "other.db"), tmp_path / "other") as other:
        run_id = other.run(toy.spec(positions=5), kind=toy.source).run_id
        begun, *results = list_ingested(other.store)
        for fragment in results:
            adopt_fragment(session.store, fragment.path)
        with other.database.read() as sql:
            attempt_id = sql.scalars(select(tables.Attempt.id)).one()
        end = {"id": attempt_id.hex, "state": "finished", "cause": "finished", "units_done": 5}
        with FragmentWriter(session.store, run_id.hex, attempt_id.hex) as writer:
            writer.add("attempt_end", end)  # an end alone
        report = ingest_fragments(session.database, session.store)
        wait = [row for row in list_waiting(session.database, session.store) if row["state"] == "waiting"]
        assert {row["fragment"] for row in wait} == set(report.waiting)
        assert wait
        assert "has not arrived" in wait[0]["why"]
        assert count(session, tables.Score) == 0
        adopt_fragment(session.store, begun.path)
    for _ in range(2):
        ingest_fragments(session.database, session.store)
    assert list_waiting(session.database, session.store) == []
    assert (count(session, tables.Score), count(session, tables.Run)) == (5, 1)
    with session.database.read() as sql:
        assert sql.scalars(select(tables.Attempt.state)).one() is tables.AttemptState.FINISHED


def test_results_are_stored_as_sqlalchemy_stores_them(session, run_toy):
    """Every column of a game: ids, numbers, bytes, JSON, NULL, and the hash that is computed from the moves."""
    run_toy(positions=2)
    if session.database.dialect != "sqlite":
        pytest.skip("PostgreSQL's rows are inserted by SQLAlchemy")
    with session.database.read() as sql:
        attempt = sql.scalars(select(tables.Attempt)).one()
    row = {"run_id": attempt.run_id, "match": 0, "attempt_id": attempt.id, "opening_number": 1, "opening_plies": 2,
           "plies": 3, "result": "1-0", "termination": "checkmate", "adjudication_cp": None, "turns": 2,
           "first_try_legal": 1, "tries": b"\x01\x02", "moves": b"\x00\xff" * 3, "seconds": 0.1,
           "detail": {"name": "é", "list": [1, None]}}  # fmt: skip
    with session.database.write() as sql:
        sql.execute(insert(tables.Game.__table__), [{**row, "unit": 0}])
        insert_rows(sql, tables.Game.__table__, [{**row, "unit": 1}, {**row, "unit": 2, "detail": None}])
        columns = [column.name for column in tables.Game.__table__.c if column.name not in ("unit", "detail")]
        listed = ", ".join(f"quote({name}) || typeof({name})" for name in (*columns, "detail"))
        apart, fast, without = sql.execute(text(f"SELECT {listed} FROM game ORDER BY unit")).all()
        sql.execute(text("DELETE FROM game"))
    assert fast == apart
    assert without == (*apart[:-1], "NULLnull")


def test_garbage_is_collected_again_after_an_ingest_that_fails(session, run_toy, monkeypatch):
    run_toy(positions=2)
    (fragment, *_) = list_ingested(session.store)
    fragment.path.rename(session.store.incoming / fragment.name)
    enabled = []

    def fail(*_):
        enabled.append(gc.isenabled())
        raise OSError("disk")

    monkeypatch.setattr(ingest, "ingest_rows", fail)
    with pytest.raises(OSError, match="disk"):
        ingest_fragments(session.database, session.store)
    with ingest.pause_garbage_collection(), ingest.pause_garbage_collection():
        enabled.append(gc.isenabled())
    assert (enabled, gc.isenabled()) == ([False, False], True)
