"""A job whose disk is full waits for space. Every worker is a real process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from chessreg.registry import tables
from chessreg.registry.tables import AttemptState, Cause
from chessreg.runs.kind import find_kind
from chessreg.scheduling import queue, supervisor
from chessreg.scheduling.launch import Order
from chessreg.scheduling.supervisor import FullDisk, read_free_bytes

FILLING = f"{Path(__file__).parent.parent / 'kinds' / 'filling_kind.py'}:Filling"


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """The disk is full as long as this file exists."""
    path = tmp_path / "full"
    path.touch()
    return path


def order(full: Path, *, for_others: bool = False) -> Order:
    found = find_kind(FILLING)
    options = {"device": "cpu", "threads": 1, "full": str(full), "for_others": for_others}
    return Order(found, found.spec(), found.options(**options))


def units(desk) -> list[int]:
    return sorted(row.unit for row in desk.rows(tables.MetricPoint))


def go_round(desk, times: int) -> None:
    for _ in range(times):
        assert desk.supervisor.run_once(), "a supervisor stays up for it"


@pytest.mark.parametrize("for_others", [False, True], ids=["of arrays", "of everything"])
def test_a_job_waits_for_space_keeps_its_units_and_ends_when_there_is_some(desk, full, for_others, monkeypatch):
    monkeypatch.setattr(supervisor, "OFFER_INTERVAL_S", 0.0)
    desk.launch(order(full, for_others=for_others))
    desk.until(lambda: desk.jobs()[0].message)
    go_round(desk, 5)
    (job,) = desk.jobs()
    assert job.message.startswith("waits for space: ")
    assert f"the disk is full at {desk.session.store.root}" in job.message
    assert (str(job.state), job.cause, job.tries, units(desk)) == ("queued", None, 1, [0])
    (attempt,) = desk.rows(tables.Attempt)
    assert (attempt.state, attempt.cause) == (AttemptState.FAILED, Cause.FAILED)

    full.unlink()
    monkeypatch.setattr(supervisor, "read_free_bytes", lambda path: read_free_bytes(path) + (1 << 40))
    desk.finish()
    (job,) = desk.jobs()
    assert (job.cause, job.tries, units(desk)) == (Cause.FINISHED, 2, [0, 1, 2])


def test_a_job_that_waits_for_space_can_be_cancelled(desk, full):
    desk.launch(order(full))
    desk.until(lambda: desk.jobs()[0].message)
    with desk.session.database.write() as sql:
        assert len(queue.cancel_jobs(sql, queue.find_jobs(sql, desk.jobs()[0].id.hex))) == 1
    assert desk.states() == ["killed"]
    assert not desk.supervisor.run_once()


def test_space_is_what_was_freed_since_and_is_tried_in_the_end_where_it_does_not_show(tmp_path, monkeypatch):
    free, now = [100], [0.0]
    monkeypatch.setattr(supervisor, "read_free_bytes", lambda path: free[0])
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    disk = FullDisk(tmp_path)
    assert not disk.has_space()
    free[0] += supervisor.FREED_SPACE_BYTES - 1
    assert not disk.has_space()
    free[0] += 1
    assert disk.has_space()
    free[0] = 0
    now[0] = supervisor.FULL_DISK_TIMEOUT_S + 1
    assert disk.has_space()


def test_the_free_space_of_a_path_that_is_not_there_is_that_of_its_disk(tmp_path):
    assert read_free_bytes(tmp_path / "no" / "such" / "folder") > 0


def test_no_space_for_a_job_s_log_is_no_fault_of_the_job(desk, full, monkeypatch):
    from chessreg.errors import ChessregError

    def submit(*_: object) -> None:
        raise ChessregError("cannot start python") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    desk.launch(order(full))
    with monkeypatch.context() as patched:
        patched.setattr(desk.supervisor.get_executor("local"), "submit", submit)
        with pytest.raises(ChessregError, match="cannot start"):
            desk.supervisor.run_once()  # which `run` waits for, and tries again
    assert desk.states() == ["queued"]
