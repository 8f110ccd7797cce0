"""Which jobs a reference means."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import update

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names, tables
from chessreg.registry.identity import make_id
from chessreg.registry.tables.types import get_utc_now
from chessreg.scheduling import queue, supervisor
from chessreg.scheduling.executors import open_executor
from chessreg.scheduling.launch import ExpectedInputs
from chessreg.scheduling.status import find_log
from chessreg.scheduling.supervisor import log_line


def test_a_runs_name_goes_before_the_end_of_a_jobs_id(desk):
    desk.launch(desk.order(count=1, name="e4"), desk.order(count=2, name="other"))
    wanted, other = desk.jobs()
    ending = UUID(hex=other.id.hex[:-6] + "facade")
    with desk.session.database.write() as sql:
        sql.execute(update(tables.Job).where(tables.Job.id == other.id).values(id=ending))
        names.add_annotation(sql, "checkpoint", make_id(), "name", "fac-ade")

    with desk.session.database.read() as sql:
        assert [job.id for job in queue.find_jobs(sql, "e4")] == [wanted.id]
        assert [job.id for job in queue.find_jobs(sql, "facade")] == [ending]
        with pytest.raises(NotFoundError, match="job 'ade' was not found"):
            queue.find_jobs(sql, "ade")
    expected = ExpectedInputs(desk.session.database, desk.session.store)
    assert expected._find_expected_run("run", "fac-ade") is not None
    assert expected._find_expected_run("checkpoint", "fac-ade") is None


def test_a_jobs_id_that_ends_as_a_run_is_called_is_not_cancelled(desk):
    desk.launch(desk.order(count=1, name="fac-ade"), desk.order(count=2))
    wanted, other = desk.jobs()
    with desk.session.database.write() as sql:
        ending = UUID(hex=other.id.hex[:-6] + "facade")
        sql.execute(update(tables.Job).where(tables.Job.id == other.id).values(id=ending))
        assert [job.id for job in queue.cancel_jobs(sql, queue.find_jobs(sql, "fac-ade"))] == [wanted.id]


HOSTILE = "x\n== finished\x1b]52;c;aGk=\x07\u2028$(touch pwned)"


def test_a_title_is_one_line_whatever_the_row_says(desk, capsys):
    desk.launch(desk.order(count=1))
    (job,) = desk.jobs()
    job.detail = {**job.detail, "differs": HOSTILE}
    assert queue.format_job_title(job).isprintable()
    assert "$(touch pwned)" in queue.format_job_title(job), "it is shown, not changed"
    log_line(f"cannot start it: {HOSTILE}")
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("folder", [None, 7, "relative", "", "/a\0b", ["/tmp"]])
def test_a_job_whose_folder_is_no_path_fails_alone_in_a_line(desk, folder):
    desk.launch(desk.order(count=1))
    desk.launch(desk.order(count=2))
    with desk.session.database.write() as sql:
        bad = sql.get_one(tables.Job, desk.jobs()[0].id)
        bad.detail = {**bad.detail, "folder": folder}
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["failed", "finished"]
    assert "is not an absolute path" in desk.jobs()[0].message


def test_a_log_that_only_a_row_names_is_read_if_it_is_called_as_that_jobs_is(desk, tmp_path):
    desk.launch(desk.order(count=1))
    (job,) = desk.jobs()
    job.executor, store = "local", desk.session.store
    private = tmp_path / "id_rsa"
    private.write_text("private")
    moved = tmp_path / "moved" / queue.get_job_folder(store, job).relative_to(store.root) / "log.txt"
    moved.parent.mkdir(parents=True)
    moved.write_text("a log")
    for path, answer in ((private, None), (moved, moved)):
        job.handle = json.dumps(
            {"pid": 1, "started": 1, "boot": "x", "log": str(path), "gpus": [], "threads": 1, "shared": False}
        )
        assert open_executor("local").logs(job.handle) == path
        assert find_log(store, job) == answer


def test_a_folder_whose_name_is_not_utf8_queues_nothing(desk):
    desk.folder = Path(os.fsdecode(b"/home/user/caf\xe9"))
    with pytest.raises(BadInputError, match=r"caf\\udce9' is not UTF-8") as caught:
        desk.launch(desk.order(count=2))
    assert len(caught.value.message) < 100
    assert desk.jobs() == []


def test_the_numbers_of_a_long_run_are_stored_once(desk, monkeypatch):
    started = []
    monkeypatch.setattr(supervisor, "LONG_RUN_UNITS", 3)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda command, **options: started.append((command, options["env"])))
        desk.supervisor.store_numbers()
        assert started == []
        now = get_utc_now()
        with desk.session.database.write() as sql:
            sql.add(
                tables.Run(id=make_id(), kind="play", version=1, spec={}, spec_hash="a" * 64, explicit=[], units=3,
                           created_at=now, completed_at=now)
            )  # fmt: skip
        desk.supervisor.store_numbers()
        desk.supervisor.store_numbers()
    [(command, environment)] = started
    assert environment["CHESSREG_REGISTRY"] == desk.session.database.reference
    subprocess.run(command, env=environment, check=True)
