"""Several processes, or an unreachable registry: each job is queued once, and running jobs continue."""

from __future__ import annotations

import threading
import time

import pytest

from chessreg import doctor as health
from chessreg.errors import BadInputError
from chessreg.registry.tables import Job, MetricPoint
from chessreg.runs.ingest import ingest_fragments
from chessreg.scheduling import launch as launching
from chessreg.scheduling import queue, status
from chessreg.scheduling.executors.local import LocalExecutor
from chessreg.session import open_session

from ..postgres import Door
from ..postgres import postgres as postgres
from .conftest import Desk


@pytest.fixture(params=["sqlite", "postgresql"])
def either_desk(request, tmp_path, make_desk):
    """A desk on each of the two databases."""
    url = str(request.getfixturevalue("postgres").migrated()) if request.param == "postgresql" else tmp_path / "r.db"
    with open_session(str(url), tmp_path / "store", create=True) as opened:
        yield make_desk(opened, tmp_path)


def test_two_launches_at_once_of_one_spec_queue_it_once(either_desk, monkeypatch):
    desk, both = either_desk, threading.Barrier(2)
    planned_by = launching.plan_orders

    def plan(*arguments):
        planned = planned_by(*arguments)
        both.wait(300)  # each has seen that nothing is queued
        return planned

    monkeypatch.setattr(launching, "plan_orders", plan)
    said: list[str] = []
    order = desk.order(count=4, shards=2)

    def launch() -> None:
        said.extend(each.status for each in desk.launch(order))

    threads = [threading.Thread(target=launch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(desk.jobs()) == 2, "two shards, of one launch"
    assert sorted(said) == ["already_queued", "queued"]


def test_what_was_completed_between_plan_and_queue_is_not_queued(desk, monkeypatch):
    from chessreg.runs.kind import find_kind

    planned_by = launching.plan_orders

    def plan(*arguments):
        planned = planned_by(*arguments)
        desk.session.run(find_kind(desk.gated).spec(count=3), kind=desk.gated)
        return planned

    monkeypatch.setattr(launching, "plan_orders", plan)
    (planned,) = desk.launch(desk.order(count=3))
    assert (planned.status, desk.jobs()) == ("complete", [])


def test_retry_beside_an_active_job_does_nothing(desk):
    def states() -> list[str]:
        return [str(job.state) for job in desk.jobs()]

    desk.launch(desk.order(count=4, name="squares"))
    with desk.session.database.write() as sql:
        queue.cancel_jobs(sql, queue.find_jobs(sql, desk.jobs()[0].id.hex))
    desk.launch(desk.order(count=4))
    assert states() == ["ended", "queued"]
    with desk.session.database.write() as sql:
        assert queue.retry_jobs(sql, queue.find_jobs(sql, desk.jobs()[0].id.hex)) == []
    assert states() == ["ended", "queued"]
    with desk.session.database.write() as sql:
        queue.cancel_jobs(sql, queue.find_jobs(sql, desk.jobs()[1].id.hex))
    with desk.session.database.write() as sql:  # of all that stood for the run, one: the newest
        assert [job.id for job in queue.retry_jobs(sql, sql.query(Job).all())] == [desk.jobs()[1].id]
    assert states() == ["ended", "queued"]


def test_a_job_runs_this_machines_interpreter_on_this_machines_packages(desk):
    """For any text in its row, and any file in the folder that the row names."""
    desk.supervisor.executors["local"] = LocalExecutor()
    desk.open_gate()
    desk.launch(desk.order(count=2))
    package = desk.folder / "chessreg"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(desk.folder / 'ran')!r}, 'w')")
    foreign = desk.folder / "python"
    foreign.write_text(f"#!/bin/sh\ntouch {desk.folder / 'ran'}\n")
    foreign.chmod(0o755)
    with desk.session.database.write() as sql:
        (job,) = sql.query(Job).all()
        job.detail = {**job.detail, "python": str(foreign), "argv": [str(foreign)], "env": {"PYTHONPATH": str(package)}}
    desk.finish()
    assert desk.states() == ["finished"]
    assert not (desk.folder / "ran").exists()


def test_a_job_launched_inside_the_store_is_refused(desk):
    """Pulled files are there: a profile of Slurm among them would be another machine's command."""
    desk.launch(desk.order(count=2))
    inside = desk.session.store.artifacts / "ab"
    inside.mkdir()
    with desk.session.database.write() as sql:
        (job,) = sql.query(Job).all()
        job.detail = {**job.detail, "folder": str(inside)}
    with pytest.raises(BadInputError, match="inside the store"):
        queue.make_submission(desk.session.database, desk.session.store, desk.jobs()[0])
    desk.finish()
    assert desk.states() == ["failed"]


def test_a_worker_waits_for_a_registry_that_is_away_while_it_sets_up(postgres, tmp_path, make_desk, monkeypatch):
    url = str(postgres.migrated())
    (tmp_path / "door").mkdir()
    door = Door(url, tmp_path / "door")
    with open_session(url, tmp_path / "store", create=True) as opened:
        desk: Desk = make_desk(opened, tmp_path)
        desk.open_gate()
        desk.launch(desk.order(count=3))
        (job,) = desk.jobs()
        work = queue.prepare_submission(opened.database, opened.store, job)
        work.env["CHESSREG_REGISTRY"] = door.url  # type: ignore[index]
        executor = desk.supervisor.get_executor("local")
        (handle,) = executor.submit([work]).values()

        def until(true) -> None:
            deadline = time.monotonic() + 300
            while not true():
                assert time.monotonic() < deadline, desk.said()
                assert executor.poll([handle])[handle].state == "running", desk.said()
                time.sleep(0.05)

        until(lambda: "waiting: the registry" in desk.said())
        door.open()
        until(lambda: (work.folder / "outcome.json").exists())
        assert "the registry answers again" in desk.said()
        ingest_fragments(opened.database, opened.store)
        assert sorted(row.unit for row in desk.rows(MetricPoint)) == [0, 1, 2]


def test_a_machine_of_the_same_name_and_store_path_looks_after_its_own_jobs(either_desk, monkeypatch):
    """Two machines share a registry; host name, store path and hardware are the same."""
    desk = either_desk
    monkeypatch.setattr("store.process.read_system_id", lambda: "a" * 32)
    desk.launch(desk.order(count=2))
    desk.until(lambda: desk.states() == ["running"])
    ours = desk.supervisor

    monkeypatch.setattr("store.process.read_system_id", lambda: "b" * 32)
    theirs = desk.next_supervisor()
    assert not theirs.run_once(), "it has nothing to do"
    theirs.requeue_running_jobs()
    with desk.session.database.read() as session:
        assert queue.read_own_jobs(session, desk.session.store, *queue.ACTIVE_STATES) == []
        (row,) = status.read_job_rows(session, desk.jobs())
    assert (row["state"], row["here"]) == ("running", False)
    assert list(health.find_unattended_attempts(desk.session.database, desk.session.store, "")) == []
    assert desk.states() == ["running"]

    monkeypatch.setattr("store.process.read_system_id", lambda: "a" * 32)
    desk.supervisor = ours
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"]
    assert [job.tries for job in desk.jobs()] == [1]
