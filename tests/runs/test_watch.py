"""Liveness: promises counted on the watcher's own clock, reused pids, a registry without progress."""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from chessreg import doctor as health
from chessreg.registry import tables
from chessreg.registry.identity import make_id
from chessreg.registry.tables import AttemptState, Cause
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs import watch
from chessreg.runs.attempt import CHECK_IN_TIMEOUT_S
from chessreg.runs.ingest import ingest_fragments
from store.process import get_process_start, read_boot_id, read_system_id


class Clock:
    """The watcher's own clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watch.time, "monotonic", made.monotonic)
    return made


@pytest.fixture
def attempt(session, run_toy):
    """Makes an attempt that is recorded as running; returns its id."""
    run_toy(positions=1)
    with session.database.read() as sql:
        done = sql.query(tables.Attempt).one()
        here = sql.get_one(tables.Machine, done.machine_id)
        values = {c.key: getattr(done, c.key) for c in tables.Attempt.__table__.columns}
        machine = {c.key: getattr(here, c.key) for c in tables.Machine.__table__.columns}

    def make(host: str = "box1", checked_in: datetime | None = None, **columns: object) -> UUID:
        own = {"id": make_id(), "state": AttemptState.RUNNING, "cause": None, "ended_at": None, "exit_code": None}
        own |= {"checked_in_at": checked_in or get_utc_now(), "next_check_in_seconds": CHECK_IN_TIMEOUT_S}
        with session.database.write() as sql:
            if host != machine["host"]:
                other = UUID(int=sum(host.encode()))
                sql.merge(tables.Machine(**machine | {"id": other, "host": host}))
                sql.flush()
                own |= {"machine_id": other, "boot_id": f"boot of {host}"}
            sql.add(tables.Attempt(**values | own | columns))
        return own["id"]

    return make


def state(session, attempt_id: UUID) -> tuple[str, str | None]:
    with session.database.read() as sql:
        found = sql.get_one(tables.Attempt, attempt_id)
        return str(found.state), found.cause and str(found.cause)


def check_in(session, attempt_id: UUID, at: datetime) -> None:
    from store.fragments import FragmentWriter

    with session.database.read() as sql:
        run_id = sql.get_one(tables.Attempt, attempt_id).run_id.hex
    with FragmentWriter(session.store, run_id, attempt_id.hex) as writer:
        writer.add("check_in", {"id": attempt_id.hex, "checked_in_at": at.isoformat(), "units_done": 1})


def test_a_promise_that_is_not_kept_makes_lost_and_never_failed(session, attempt, clock):
    silent = attempt()
    watcher = watch.Watcher(session.store)
    assert watcher.mark_lost_attempts(session.database) == 0
    clock.now += CHECK_IN_TIMEOUT_S - 1
    assert watcher.mark_lost_attempts(session.database) == 0
    clock.now += 2
    assert watch.Watcher(session.store).mark_lost_attempts(session.database) == 1, (
        "another process of this host watched with it"
    )
    assert state(session, silent) == ("lost", "lost")


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_clock_that_is_ten_minutes_wrong_loses_nobody(session, attempt, clock, minutes):
    theirs = get_utc_now() + timedelta(minutes=minutes)
    running = attempt(checked_in=theirs)
    watcher = watch.Watcher(session.store)
    for beat in range(1, 60):
        clock.now += 10
        check_in(session, running, theirs + timedelta(seconds=10 * beat))
        ingest_fragments(session.database, session.store)
        assert watcher.mark_lost_attempts(session.database) == 0
    assert state(session, running) == ("running", None)


def test_a_registry_that_stood_still_for_a_minute_loses_nobody(session, attempt, clock):
    running = attempt()
    watcher = watch.Watcher(session.store)
    watcher.mark_lost_attempts(session.database)
    clock.now += CHECK_IN_TIMEOUT_S - 10
    began = clock.now
    clock.now += 60  # the look itself took a minute, and others could not bring their check-ins
    assert watcher.mark_lost_attempts(session.database, began) == 0
    clock.now += CHECK_IN_TIMEOUT_S - 1
    assert watcher.mark_lost_attempts(session.database) == 0
    clock.now += 2
    assert watcher.mark_lost_attempts(session.database) == 1
    assert state(session, running)[0] == "lost"


def test_what_was_lost_is_found_again_by_its_next_check_in(session, attempt, clock):
    silent = attempt()
    watcher = watch.Watcher(session.store)
    watcher.mark_lost_attempts(session.database)
    clock.now += CHECK_IN_TIMEOUT_S + 1
    watcher.mark_lost_attempts(session.database)
    assert state(session, silent) == ("lost", "lost")
    check_in(session, silent, get_utc_now() - timedelta(hours=1))  # a late old one is ignored
    ingest_fragments(session.database, session.store)
    assert state(session, silent) == ("lost", "lost")
    check_in(session, silent, get_utc_now() + timedelta(seconds=5))
    ingest_fragments(session.database, session.store)
    assert state(session, silent) == ("running", None)
    assert watcher.mark_lost_attempts(session.database) == 0


def test_one_that_never_checked_in_is_lost_too(session, attempt, clock):
    """It was claimed, and its machine died before the first heartbeat."""
    claimed = attempt(units_done=0)
    watcher = watch.Watcher(session.store)
    watcher.mark_lost_attempts(session.database)
    clock.now += CHECK_IN_TIMEOUT_S + 1
    watcher.mark_lost_attempts(session.database)
    assert state(session, claimed) == ("lost", "lost")


def test_doctor_finds_a_stale_promise_and_tells_the_truth(session, attempt, clock):
    silent = attempt()
    assert list(health.find_overdue_attempts(session.database, session.store)) == []
    clock.now += CHECK_IN_TIMEOUT_S + 1
    (found,) = health.find_overdue_attempts(session.database, session.store)
    assert f"attempt {silent.hex[-6:]}" in found.detail
    assert state(session, silent) == ("running", None), "looking changes nothing"
    assert health.apply_fix(found).startswith("fixed")
    assert state(session, silent) == ("lost", "lost")
    assert list(health.find_overdue_attempts(session.database, session.store)) == []


def test_on_this_host_the_process_table_tells_at_once(session, attempt):
    import socket

    here, me = socket.gethostname(), os.getpid()
    alive = attempt(here, pid=me, pid_started=get_process_start(me), boot_id=read_boot_id())
    used_again = attempt(here, pid=me, pid_started=1.25, boot_id=read_boot_id())
    earlier_boot = attempt(here, pid=me, pid_started=get_process_start(me), boot_id="an earlier one")
    in_container = attempt(here, pid=me, pid_started=1.25, boot_id=f"{read_boot_id().partition('.')[0]}.1")
    known = 1 if read_system_id() is not None else 0
    assert watch.mark_dead_attempts(session.database) == 1 + known
    assert state(session, alive) == state(session, in_container) == ("running", None)
    assert state(session, used_again) == ("lost", str(Cause.KILLED))
    assert state(session, earlier_boot)[0] == ("lost" if known else "running")


def test_attempts_of_another_machine_with_this_host_name_are_left_alone(session, attempt, monkeypatch):
    """Not even two machines of the same hardware and software are mistaken for each other."""
    import socket

    running = attempt(socket.gethostname(), pid=os.getpid(), pid_started=1.25, boot_id="of that machine")
    monkeypatch.setattr("store.process.read_system_id", lambda: "another" * 4)
    assert watch.mark_dead_attempts(session.database) == 0
    assert list(health.find_orphans(session.database)) == []
    assert state(session, running) == ("running", None)


def test_notes_of_an_earlier_boot_prove_nothing(session, attempt, clock):
    running = attempt()
    watcher = watch.Watcher(session.store)
    watcher.mark_lost_attempts(session.database)
    notes = json.loads(watcher.file.read_text())
    watcher.file.write_text(json.dumps(notes | {"boot": "an earlier one"}))
    clock.now += CHECK_IN_TIMEOUT_S + 1
    assert watcher.mark_lost_attempts(session.database) == 0
    watcher.file.write_text("{ torn")
    assert watcher.mark_lost_attempts(session.database) == 0
    assert state(session, running)[0] == "running"


def test_check_ins_go_on_while_the_registry_is_locked_and_leave_no_files(session, toy):
    """A heartbeat that meets a lock does no harm, because it is a file."""
    from chessreg.runs.attempt import AttemptOrigin, RunAttempt
    from chessreg.runs.resolve import resolve_spec

    resolved = resolve_spec(toy, toy.spec(positions=8, pause=0.3), session.inputs)
    running = RunAttempt(
        resolved, toy.options(), session.inputs, (), list(range(8)), where=AttemptOrigin(ingests=False)
    )
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with session.database.write():
            locked.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(60)
    try:
        assert running.execute() is False
        waiting = len(list(session.store.incoming.iterdir()))
    finally:
        done.set()
        thread.join()
    assert waiting >= 3  # its beginning, a check-in, its end
    ingest_fragments(session.database, session.store)
    assert state(session, running.id) == ("finished", "finished")
    with session.database.read() as sql:
        found = sql.get_one(tables.Attempt, running.id)
        assert (found.units_done, sql.query(tables.Score).count()) == (8, 8)
        assert found.progress is not None
        kept = sql.query(tables.FragmentRecord).count()
    assert kept == len(list((session.store.ingested / resolved.run_id.hex).iterdir())) < waiting
