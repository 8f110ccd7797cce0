"""Runs: done once, resumed, replicated, and the truth about how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import func, select

from chessreg.errors import BadInputError, ChessregError
from chessreg.registry import names, tables
from chessreg.runs import attempt
from chessreg.runs.attempt import classify_failure, mark_dead_attempts
from tests.quick import quick_first

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"


def rows(session, table, *columns):
    with session.database.read() as sql:
        return sql.execute(select(*(getattr(table, c) for c in columns))).all()


def count(session, table):
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table))


def test_a_run_leaves_its_rows_units_attempt_machine_and_kind(session, run_toy):
    report = run_toy(positions=7)
    assert (report.state, report.units, report.missing) == ("complete", 7, 0)
    assert count(session, tables.Score) == 7
    assert rows(session, tables.Attempt, "state", "cause", "units_done", "exit_code") == [
        (tables.AttemptState.FINISHED, tables.Cause.FINISHED, 7, 0)
    ]
    ((spec, given, completed),) = rows(session, tables.Run, "spec", "explicit", "completed_at")
    assert spec["positions"] == 7
    assert spec["plies"] == 12
    assert given == ["positions"]
    assert completed is not None
    assert count(session, tables.Machine) == 1
    ((source, schema),) = rows(session, tables.KindRecord, "source", "extra_columns")
    assert source == f"{TOY}:Toy"
    assert set(schema["score"]["properties"]) == {"fen", "move", "checks"}


def test_a_finished_spec_does_nothing_and_a_replicate_runs_anew(session, run_toy):
    first, again = run_toy(positions=3), run_toy(positions=3)
    assert again.attempt_id is None
    assert again.run_id == first.run_id
    assert count(session, tables.Attempt) == 1
    anew = run_toy(positions=3, replicate=1)
    assert anew.run_id != first.run_id
    assert count(session, tables.Score) == 6


def test_how_settings_and_key_order_do_not_change_the_run(session, toy, run_toy):
    first = run_toy(positions=3, plies=5)
    again = session.run(toy.spec(plies=5, positions=3), toy.options(threads=1), kind=str(TOY))
    assert again.run_id == first.run_id


def test_what_needs_all_units_waits_until_the_registry_has_them(session, monkeypatch):
    from chessreg.errors import RegistryError
    from chessreg.runs import attempt, background
    from chessreg.runs.kind import find_kind

    path = str(TOY.parent / "captures_kind.py")
    spec = find_kind(path).spec(games=5, plies=20, shuffles=3)
    taken, began = background.ingest_fragments, []

    def full(database, store, on_fragment):
        if began:  # the run exists; then the disk of the registry is full
            raise RegistryError("the registry cannot grow: the disk is full")
        return taken(database, store, on_fragment)

    monkeypatch.setattr(background, "ingest_fragments", full)
    monkeypatch.setattr(
        attempt.RunAttempt, "begin", lambda self, begin=attempt.RunAttempt.begin: began.append(begin(self))
    )
    with pytest.raises(ChessregError, match=r"lacks 5 of 5 units.*the disk is full"):
        session.run(spec, kind=path)
    assert count(session, tables.Statistic) == 0
    monkeypatch.undo()
    assert session.run(spec, kind=path).state == "complete"
    with session.database.read() as sql:
        rerun = sql.scalars(select(tables.Statistic)).one()
    other = session.run(find_kind(path).spec(**spec.model_dump() | {"replicate": 1}), kind=path)
    with session.database.read() as sql:
        undisturbed = sql.scalars(select(tables.Statistic).where(tables.Statistic.run_id == other.run_id)).one()
    assert (rerun.value, rerun.p, rerun.n) == (undisturbed.value, undisturbed.p, undisturbed.n)


def test_a_registry_that_does_not_answer_holds_no_unit_up(session, toy, monkeypatch):
    from chessreg.runs import background, task

    taken, in_time, all_done = background.ingest_fragments, [], threading.Event()

    def silent(database, store, on_fragment):
        if began:
            in_time.append(all_done.wait(20))
        return taken(database, store, on_fragment)

    began: list[float] = []

    def on_progress(fraction, text):
        began.append(fraction)
        if fraction == 1:
            all_done.set()

    monkeypatch.setattr(background, "ingest_fragments", silent)
    monkeypatch.setattr(task, "FLUSH_ROWS", 1)  # each unit is a fragment
    report = session.run(toy.spec(positions=5), kind=str(TOY), on_progress=on_progress)
    assert report.state == "complete"
    assert in_time
    assert all(in_time), "the units waited for the registry"


def test_an_interrupted_run_says_what_it_did_though_the_registry_does_not_answer(session, toy, monkeypatch):
    from chessreg.registry.engines import ServerUnreachableError
    from chessreg.runs import attempt, background

    began: list[float] = []

    def away(*_):
        raise ServerUnreachableError("the registry does not answer")

    def on_progress(fraction, text):
        if not began:
            monkeypatch.setattr(background, "ingest_fragments", away)
            monkeypatch.setattr(attempt, "find_missing_units", away)
        began.append(fraction)
        if len(began) == 3:
            raise KeyboardInterrupt

    report = session.run(toy.spec(positions=5), kind=str(TOY), on_progress=on_progress)
    assert (report.interrupted, report.state, report.missing) == (True, "partial", 2)
    monkeypatch.undo()
    assert session.run(toy.spec(positions=5), kind=str(TOY)).state == "complete"


def test_a_run_that_the_registry_refuses_to_begin_leaves_nothing(session, toy, run_toy, monkeypatch):
    from chessreg.errors import RegistryError
    from chessreg.runs import background

    def refused(*_):
        raise RegistryError("the registry is being written by another process")

    monkeypatch.setattr(background, "ingest_fragments", refused)
    with pytest.raises(ChessregError, match="written by another process"):
        session.run(toy.spec(positions=5), kind=str(TOY))
    monkeypatch.undo()
    assert list(session.store.incoming.iterdir()) == []
    run_toy(positions=2)
    assert count(session, tables.Run) == 1


def test_the_third_ctrl_c_and_more_leave_the_end_to_be_recorded(monkeypatch):
    from chessreg.runs import attempt

    class Task:
        stopping = False

    with attempt.stop_on_signals(Task) as hold:
        signal.raise_signal(signal.SIGINT)
        assert Task.stopping
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
        except KeyboardInterrupt:
            pytest.fail("the third one broke off what records the end")
        monkeypatch.setattr(attempt, "END_RECORD_TIMEOUT_S", 0.0)
        hold()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_failing_kind_keeps_its_complete_units_and_says_why(session, tmp_path):
    from chessreg.runs.kind import find_kind

    source = TOY.read_text().replace(
        "random, board =", "if unit == 2: raise RuntimeError('no such thing')\n            random, board ="
    )
    path = tmp_path / "failing_kind.py"
    path.write_text(source)
    with pytest.raises(RuntimeError, match="no such thing"):
        session.run(find_kind(str(path)).spec(positions=4), kind=str(path))
    ((state, cause, message, done),) = rows(session, tables.Attempt, "state", "cause", "message", "units_done")
    assert (state.value, cause.value, message, done) == ("failed", "failed", "RuntimeError: no such thing", 2)
    assert count(session, tables.Score) == 2
    assert rows(session, tables.Run, "completed_at") == [(None,)]


def test_a_name_that_is_taken_is_refused_before_anything_is_done(session, toy, run_toy):
    session.run(toy.spec(positions=2), kind=str(TOY), name="mine")
    with pytest.raises(BadInputError, match="mine"):
        session.run(toy.spec(positions=3), kind=str(TOY), name="mine")
    assert count(session, tables.Run) == 1


def test_a_run_that_is_interrupted_and_typed_again_is_named_once(session, toy):
    def stop(fraction: float, text: str) -> None:
        raise KeyboardInterrupt

    for on_progress in (stop, stop, lambda fraction, text: None):
        report = session.run(toy.spec(positions=2), kind=str(TOY), name="mine", on_progress=on_progress)
    assert report.state == "complete"
    with session.database.read() as sql:
        assert names.read_name(sql, "run", report.run_id) == "mine"
        assert sql.scalar(select(func.count()).select_from(tables.Annotation)) == 1


def test_a_run_has_its_name_while_it_runs_and_a_finished_one_takes_another(session, toy):
    seen = []

    def look(fraction, text):
        with session.database.read() as sql:
            seen.append(set(names.read_noun_names(sql, "run").values()))

    session.run(toy.spec(positions=2), kind=str(TOY), name="mine", on_progress=look)
    assert seen
    assert all(each == {"mine"} for each in seen)
    session.run(toy.spec(positions=2), kind=str(TOY), name="ours")
    with session.database.read() as sql:
        assert set(names.read_noun_names(sql, "run").values()) == {"ours"}


def spawn(tmp_path: Path, *settings: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "chessreg.cli", "--registry", str(tmp_path / "registry.db")]
    command += ["--store", str(tmp_path / "store"), "run", str(TOY), *settings]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_units(session, enough: int) -> None:
    deadline = time.monotonic() + 300
    while count(session, tables.UnitRange) < enough:
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "state"),
    quick_first(2, [(signal.SIGKILL, "lost"), (signal.SIGINT, "killed"), (signal.SIGTERM, "killed")]),
)
def test_a_killed_run_goes_on_where_it_stopped(session, run_toy, tmp_path, number, state):
    process = spawn(tmp_path, "--positions", "40", "--pause", "0.1")
    wait_for_units(session, 3)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=300)
    done = count(session, tables.UnitRange)
    assert 3 <= done < 40
    assert count(session, tables.Score) == done
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert b"--resume" in error
    assert mark_dead_attempts(session.database) == (1 if number == signal.SIGKILL else 0)
    assert rows(session, tables.Attempt, "state") == [(tables.AttemptState(state),)]
    report = run_toy(positions=40, pause=0.1)
    assert (report.state, report.missing_before) == ("complete", 40 - count_before(session, report))
    assert count(session, tables.Score) == 40


@pytest.mark.slow
def test_ctrl_c_again_ends_a_run_in_the_middle_of_a_unit(session, tmp_path):
    process = spawn(tmp_path, "--positions", "3", "--pause", "3600")
    deadline = time.monotonic() + 300
    while not count(session, tables.Attempt):
        assert time.monotonic() < deadline, "the run did not begin"
        time.sleep(0.05)
    presses = 0
    while rows(session, tables.Attempt, "ended_at") == [(None,)]:  # the first asks, and the unit takes an hour
        assert time.monotonic() < deadline, "it goes on"
        process.send_signal(signal.SIGINT)
        presses += 1
        time.sleep(0.01)
    _, error = process.communicate(timeout=300)
    assert (process.returncode, presses >= 2) == (130, True)
    assert b"Traceback" not in error
    assert rows(session, tables.Attempt, "state") == [(tables.AttemptState.KILLED,)]
    assert mark_dead_attempts(session.database) == 0, "it recorded its end itself"


def count_before(session, report) -> int:
    """Units that earlier attempts had completed."""
    with session.database.read() as sql:
        return sql.scalar(
            select(func.count()).select_from(tables.UnitRange).where(tables.UnitRange.attempt_id != report.attempt_id)
        )


def test_ctrl_c_while_a_run_begins_is_recorded(session, toy):
    def press(run_id):
        os.kill(os.getpid(), signal.SIGINT)

    spec = toy.spec(positions=3)
    report = attempt.run_spec(toy, spec, toy.options(), session.database, session.store, on_begun=press)
    assert report.state != "complete"
    assert rows(session, tables.Attempt, "state") == [(tables.AttemptState.KILLED,)]


def test_an_allocation_that_fails_is_recorded_as_lack_of_memory():
    for allocate in (lambda: torch.empty(1 << 50), lambda: np.empty(1 << 50)):
        with pytest.raises((RuntimeError, MemoryError)) as raised:
            allocate()
        assert classify_failure(raised.value) == "oom"
    assert classify_failure(RuntimeError("CUDA error: out of memory")) == "oom"
    assert classify_failure(RuntimeError("could not create a primitive descriptor")) == "failed"
