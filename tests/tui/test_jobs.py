"""The list of jobs and the screen of one job, on a queue of real jobs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.errors import RegistryError
from chessreg.registry.tables import Cause, Job, JobState
from chessreg.runs.kind import find_kind
from chessreg.scheduling import queue as scheduling
from chessreg.scheduling.executors import Placement, SubmissionStatus
from chessreg.scheduling.launch import Order
from chessreg.scheduling.presence import Presence
from chessreg.session import open_session
from tests.quick import quick_first
from tui import show
from tui.data import job_rows
from tui.data.job_rows import LogTail, list_job_pages
from tui.screens import job as job_module
from tui.screens.job import JobScreen
from tui.screens.launch import FormScreen
from tui.widgets.bars import FilterBar
from tui.widgets.logview import LogView
from tui.widgets.table import PageTable

from .queues import Queue
from .worlds import TOY


@pytest.fixture(autouse=True)
def supervised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The supervisor of these tests goes round in this process: none is started, but that one was wanted is noted."""
    wanted: list[str] = []
    monkeypatch.setattr(Presence, "start", lambda self, url: wanted.append(url))
    return wanted


def listed(queue: Any, words: str) -> list[tuple[str, int]]:
    rows = list_job_pages(queue.session, words).read_page(0)
    return [(row["name"], row["shard"]) for row in rows]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("state:running", [("sums", 0), ("sums", 1)]),
        ("state:waiting", [("sums", 2)]),
        ("state:blocked", []),
        ("state:complete", [("checks", 0)]),
        ("state:engine", [("broken", 0)]),
        ("state:failed", [("broken", 0)]),
        ("state:ended", [("broken", 0), ("checks", 0)]),
        ("!state:ended kind:summed shard<3", [("sums", 0), ("sums", 1)]),
        ("name:sums !state:waiting", [("sums", 0), ("sums", 1)]),
        ("!kind:summed", [("broken", 0), ("checks", 0)]),
        ("kind:gated", [("broken", 0)]),
        ("on:local toy", [("checks", 0)]),
        ("on:slurm", []),
        ("tries>0 state=running", [("sums", 0), ("sums", 1)]),
        ("shard>=2 tries=0", [("sums", 2)]),
        ("state!=waiting kind=summed", [("sums", 0), ("sums", 1)]),
        ("ended>2000", [("broken", 0), ("checks", 0)]),
        ("message:engine", [("broken", 0)]),
        ("", [("sums", 0), ("sums", 1), ("sums", 2), ("broken", 0), ("checks", 0)]),
    ],
)
def test_words_narrow_the_jobs(queue: Any, words: str, found: list[tuple[str, int]]) -> None:
    assert listed(queue, words) == found


@pytest.fixture
def clustered(tmp_path: Path) -> Iterator[Queue]:
    """Two jobs that a supervisor gave to clusters: one waits in Slurm, one runs on a node of Ray; and one that Slurm
    killed, and one that a user cancelled."""
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        queue = Queue(tmp_path, session)
        toy = find_kind(TOY)
        names = ("waits", "runs", "late", "stopped")
        queue.launch(*(Order(toy, toy.spec(positions=9 + n), toy.options(), (), name) for n, name in enumerate(names)))
        start = "2126-11-26T22:30:00+00:00"
        waiting = Placement("12_3", "gpu", reason="Resources", starts_at=start)
        with session.database.write() as sql:
            jobs = {job.detail["name"]: job for job in sql.scalars(select(Job))}
            for name, on, seen in (
                ("waits", "slurm:gpu", SubmissionStatus("waiting", placement=waiting)),
                ("runs", "ray:10.0.0.1:6379", SubmissionStatus("running", placement=Placement("ab-12", node="node17"))),
            ):
                job = jobs[name]
                job.state, job.executor, job.tries = JobState.RUNNING, on, 1
                job.handle = json.dumps({"actor": "ab-12", "folder": "/nowhere"})
                scheduling.record_placement(job, scheduling.make_placement_record(seen))
            scheduling.end_job(jobs["late"], Cause.WALLTIME, "its walltime was over")
            scheduling.cancel_jobs(sql, [jobs["stopped"]])
        yield queue


async def test_a_job_in_a_clusters_queue_waits_and_the_screens_show_what_its_scheduler_reports(
    drive, clustered: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "format_host", lambda name: name or "")
    for words, found in (
        ("state:waiting", ["waits"]),
        ("state:running", ["runs"]),
        ("machine:node17", ["runs"]),
        ("partition:gpu", ["waits"]),
        ("state:failed", ["late"]),
        ("state:cancelled", ["stopped"]),
        ("state:killed", []),
        ("state!=ended", ["runs", "waits"]),
    ):
        assert [name for name, _ in listed(clustered, words)] == found, words
    async with drive(clustered.folder, size=(160, 40)) as driver:
        await driver.go("home")
        seen = driver.screen.at_home
        assert (seen.jobs, seen.foreground) == ({"running": 1, "waiting": 1, "ended": 2}, 0)
        assert [row["name"] for row in seen.ended_jobs if row["failed"]] == ["late"]
        assert [(row["host"], row["running"]) for row in seen.machines] == [("node17", 1)], "no idle machine beside it"
        assert "node17" in driver.text
        assert any("Slurm: Resources" in line and "in 1.0 s" in line for line in driver.lines), "its reason and start"
        await driver.go("jobs")
        table = driver.screen.query_one(PageTable)
        assert [table.row(place)["name"] for place in (0, 1)] == ["runs", "waits"], "running jobs first"
        assert any("Slurm: Resources" in line and "starts in 1.0 s" in line for line in driver.lines)
        assert "4 jobs · 1 running · 1 pending · 2 ended" in driver.text
        await driver.find_row("waits")
        await driver.press("enter")
        assert driver.lines[2].strip().startswith("waiting · ")
        assert " · slurm:gpu · partition gpu · Slurm job 12_3" in driver.text
        why = "waits in Slurm: Resources, expected to start 2126-11-26 22:30 UTC"
        assert driver.text.count(why) == 2, "in the summary, and in place of a log"
        await driver.press("escape")
        await driver.find_row("node17")
        await driver.press("enter")
        assert " · ray:10.0.0.1:6379 on node17 · Ray job ab-12" in driver.text
        assert "the log is on node17" in driver.text, "and it needs neither Ray nor Slurm to say so"


def test_a_job_is_found_by_the_end_of_its_ids(queue: Any) -> None:
    job = queue.job("checks")
    for word in (f"id:{job.id.hex[-6:]}", f"launch:{job.group_id.hex[-8:]}", f"run:{job.run_id.hex}"):
        assert listed(queue, word) == [("checks", 0)]


async def test_the_list_shows_state_progress_and_why(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(200, 30)) as driver:
        await driver.go("jobs")
        assert "5 jobs · 2 running · 1 pending · 2 ended" in driver.text
        (reduce,) = [line for line in driver.lines if "reduce" in line]
        assert "waits for 2 of 2" in reduce
        running = [line for line in driver.lines if "at the gate" in line]
        assert ["━━━━━┄┄┄┄┄" in line and " 2/4 " in line for line in running] == [True, True]
        (broken,) = [line for line in driver.lines if " broken " in line]
        assert "RuntimeError: the engine does not answer (your kind gated" in broken


@pytest.mark.parametrize("word", quick_first(1, ["rate>1", "units>abc", "tries>many", "launched:soon"]))
async def test_a_word_that_is_no_filter_says_so_and_shows_no_rows(drive, queue: Any, word: str) -> None:
    async with drive(queue.folder) as driver:
        await driver.go("jobs")
        await driver.press("slash")
        await driver.type(word)
        await driver.press("enter")
        table = driver.screen.query_one(PageTable)
        assert table.count == 0
        assert ("fields are" in driver.text) is (word.startswith(("rate", "units")))
        assert driver.text.count("! ") == 1
        await driver.press("escape")
        assert table.count == 5


async def test_columns_of_jobs_are_completed(drive, queue: Any) -> None:
    async with drive(queue.folder) as driver:
        await driver.go("jobs")
        await driver.press("slash")
        await driver.type("ki")
        await driver.press("tab")
        await driver.type("gated")
        await driver.press("enter")
        assert driver.screen.query_one(FilterBar).value == "kind:gated"
        assert "1 of 5 jobs" in driver.text


async def test_typing_narrows_the_list(drive, queue: Any) -> None:
    async with drive(queue.folder) as driver:
        await driver.go("jobs")
        await driver.press("slash", *"state", "colon", *"comp", "enter")
        assert "1 of 5 jobs" in driver.text
        assert "checks" in driver.text
        assert "sums" not in driver.text


async def test_a_job_shows_its_shards_its_log_and_its_settings(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(140, 40)) as driver:
        await driver.go("jobs")
        await driver.find_row("1/2")
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, JobScreen)
        assert screen.job_id == queue.job("sums").id
        await driver.until("4/9 units stored of 3 jobs", "[log]")
        log = screen.query_one(LogView)
        path = queue.session.store.runs / queue.job("sums").run_id.hex / "jobs" / screen.job_id.hex / "log.txt"
        await driver.once(lambda: log.lines == path.read_text().splitlines(), "the whole log")  # it grows meanwhile
        await driver.press("right_square_bracket")
        assert screen.job_id == queue.job("sums", 1).id
        await driver.press("right_square_bracket")
        assert "it waits for 2 of 2 shards" in driver.text
        await driver.press("left_square_bracket", "tab")
        assert "[attempts]" in driver.text
        assert any("running" in line and "box1" in line for line in driver.lines[-6:]) or "running" in driver.text
        await driver.press("tab")
        count = next(line for line in driver.lines if line.strip("│› ").startswith("count"))
        assert count.strip("│ ").split()[-2:] == ["8", "given"]


async def test_words_are_found_in_a_log_and_its_end_is_followed(drive, queue: Any) -> None:
    job = queue.job("broken")
    path = queue.session.store.runs / job.run_id.hex / "jobs" / job.id.hex / "log.txt"
    before = path.read_text()
    with path.open("a") as file:
        file.writelines(f"line {n}{' loss' if n % 50 == 7 else ''}\n" for n in range(300))
    async with drive(queue.folder) as driver:
        await driver.go("jobs")
        await driver.find_row("broken")
        await driver.press("enter")
        await driver.until("line 299")
        screen, log = driver.screen, driver.screen.query_one(LogView)
        assert isinstance(screen, JobScreen)
        await driver.press("slash")
        await driver.type("LOSS")
        await driver.press("enter")
        assert [log.lines[n] for n in log.hits] == [f"line {n} loss" for n in (7, 57, 107, 157, 207, 257)]
        assert "6 of 6 places" in driver.text
        await driver.press("left_parenthesis", "left_parenthesis")
        assert "line 157 loss" in driver.text
        assert "stopped: G follows" in driver.text
        with path.open("a") as file:
            file.write("the end\n")
        screen.read_log()
        await driver.settle()
        assert "the end" not in driver.text
        await driver.press("G")
        assert "the end" in driver.text
        assert log.follows
        await driver.press("g")
        assert log.scroll_offset.y == 0
        assert not log.follows
    path.write_text(before)


def test_a_log_is_read_from_its_end_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.data.job_rows.INITIAL_LOG_BYTES", 25)
    path = tmp_path / "log.txt"
    tail = LogTail(path)
    assert tail.read() == ([], "", False)
    path.write_text("".join(f"line {n}\n" for n in range(10)) + "half")
    assert tail.read() == (["line 8", "line 9"], "half", True)
    with path.open("a") as file:
        file.write(" done\n10 %\r20 %\r\n\x1b[31mred\x1b[0m\tx\n")
    assert tail.read() == (["half done", "20 %", "red     x"], "", False)
    path.write_text("anew\n")
    assert tail.read() == (["anew"], "", True)


@pytest.mark.slow
async def test_a_job_is_tried_again_started_sooner_and_cancelled(drive, own_queue: Any, supervised: list[str]) -> None:
    async with drive(own_queue.folder, size=(160, 30)) as driver:
        await driver.go("jobs")
        await driver.find_row("broken")
        await driver.press("R")
        assert own_queue.job("broken").cause is None
        assert len(supervised) == 1
        await driver.find_row("broken")
        await driver.press("plus", "plus", "minus")
        assert own_queue.job("broken").priority == 1
        await driver.press("X")
        assert "Complete units are kept" in driver.text
        await driver.press("n")
        assert own_queue.job("broken").ended_at is None
        await driver.press("x")
        assert "R retries): broken (job a1b2c3)" in driver.notices
        job = own_queue.job("broken")
        assert (str(job.cause), job.message) == ("killed", "cancelled before it started")
        await driver.find_row("checks")
        assert "x cancel" not in driver.lines[-1]
        await driver.press("x")
        assert "the job had already ended" in driver.notices, "and no question is asked"
        await driver.press("R")
        assert str(own_queue.job("checks").cause) == "finished"
        await driver.find_row("broken")
        assert " cancelled " in next(line for line in driver.lines if line.startswith("│›"))
        await driver.go("home")
        (line,) = [line for line in driver.text.split("Ended in")[1].splitlines() if " broken " in line]
        assert " –  broken  cancelled before it" in line, "though what was tried before had failed"
        assert "1 complete · 0 failed · 1 cancelled" in driver.text
        assert "opens its log" not in driver.text


async def test_a_key_acts_on_the_chosen_shard_before_it_is_read_too(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(140, 40)) as driver:
        await driver.go("jobs")
        await driver.find_row("1/2")
        await driver.press("enter")
        driver.screen.action_shard("1")
        assert driver.screen.selected_row["id"] == queue.job("sums", 1).id


async def test_a_change_is_shown_at_once_and_written_in_order_though_the_page_is_left(
    drive, own_queue: Any, monkeypatch: Any
) -> None:
    """On a loaded machine, neither the job is read nor the change is written when the next key comes."""
    apply, load, go, done = job_rows.apply_to_jobs, job_module.load_job, threading.Event(), []

    def slow_apply(session: Any, do: Any, ids: Any) -> int:
        go.wait(60)
        done.append(do.__name__)
        return apply(session, do, ids)

    monkeypatch.setattr(job_rows, "apply_to_jobs", slow_apply)
    monkeypatch.setattr(job_module, "load_job", lambda *call: go.wait(60) and load(*call))
    job = own_queue.job("sums")
    async with drive(own_queue.folder, size=(120, 30)) as driver:
        await driver.go("jobs")
        driver.app.open("job", job.id, "sums")
        for method, told in (("cancel", "cancelling"), ("retry", "queued")):
            while not isinstance(driver.screen, JobScreen) or not driver.screen.query("#headline"):
                await asyncio.sleep(0.01)
            getattr(driver.screen, f"action_{method}")()
            assert str(driver.screen.query_one("#headline").render()) == f"{told} · reading the job…"
        await driver.app.action_back()
        go.set()
        await driver.settle()
        assert done == ["cancel_jobs", "retry_jobs"]
        assert "queued again once it has ended: sums" in driver.notices


async def test_a_change_of_jobs_on_a_locked_registry_is_told_as_not_done(drive, queue: Any, monkeypatch: Any) -> None:
    def locked(*_: Any) -> Any:
        raise RegistryError("the registry is locked")

    monkeypatch.setattr(job_rows, "apply_to_jobs", locked)
    async with drive(queue.folder) as driver:
        await driver.go("jobs")
        await driver.find_row("broken")
        await driver.press("R")
        assert "not done: the registry is locked" in driver.notices
        assert "retried" not in driver.text


def test_a_share_is_rounded_down_but_not_by_the_last_bit_of_a_float() -> None:
    assert [show.format_percent(share) for share in (0.29, 0.57, 0.999, 1.0)] == ["29 %", "57 %", "99 %", "100 %"]


async def test_read_only_offers_no_change(drive, queue: Any) -> None:
    async with drive(queue.folder, read_only=True) as driver:
        await driver.go("jobs")
        offered = {action.method for action in driver.screen.list_actions()}
        assert not offered & {"cancel", "retry", "priority", "launch"}
        await driver.find_row("broken")
        before = queue.job("broken")
        await driver.press("R")
        assert queue.job("broken").state == before.state


async def test_a_waiting_job_lends_its_settings_to_another_launch(drive, own_queue: Any) -> None:
    """Also before it starts, when its run is not in the registry."""
    own_queue.launch(own_queue.order("Gated", "patient", count=3))
    async with drive(own_queue.folder) as driver:
        await driver.go("jobs")
        await driver.find_row("patient")
        for keys in (["ctrl+l"], ["escape", "enter", "ctrl+l"]):  # from the list, and from the job's page
            await driver.press(*keys)
            assert isinstance(driver.screen, FormScreen)
            assert driver.screen.form.typed_texts == {"count": "3"}
            assert "the form has the settings of" in driver.notices


async def test_a_job_is_seen_to_finish(drive, own_queue: Any) -> None:
    """The gate opens."""
    async with drive(own_queue.folder, size=(160, 40)) as driver:
        await driver.go("jobs")
        await driver.find_row("1/2")
        await driver.press("enter")
        await driver.until("4/9 units")
        own_queue.gate.touch()
        await asyncio.to_thread(own_queue.until, lambda: own_queue.job("sums", 2).ended_at)
        driver.app.check_for_changes()
        await driver.until("9/9 units", "complete")
        assert driver.screen.query_one("#shards", PageTable).count == 3


async def test_no_job_yet(drive, tmp_path: Path) -> None:
    async with drive(tmp_path) as driver:
        await driver.go("jobs")
        assert "No job was launched yet" in driver.text
        assert "chessreg launch --help" in driver.text


async def test_a_failed_job_shows_the_line_of_its_log_and_results_are_one_key_away(drive, queue: Any) -> None:
    from tui.data.job_rows import find_failure_reason

    async with drive(queue.folder, size=(140, 40)) as driver:
        await driver.go("jobs")
        await driver.find_row("broken")
        await driver.press("enter")
        assert "RuntimeError: the engine does not answer" in driver.screen.query_one("#headline").render().plain
        await driver.press("escape")
        await driver.find_row("checks")
        await driver.press("enter", "shift+tab")
        assert "[results]" in driver.text
        assert driver.screen.query_one("#part", PageTable).count == 12
    log = queue.folder / "why.txt"
    log.write_text("step 1\nTraceback (most recent call last):\n  File x\nValueError: no\nbye\n")
    assert find_failure_reason(log, "") == "ValueError: no"
    assert find_failure_reason(log, "your kind raised ValueError: no") == "", "it is said already"
    log.write_bytes(b"\xff\xfe torch.OutOfMemoryError: CUDA\r\n")
    assert find_failure_reason(log, "") == "" or "OutOfMemoryError" in find_failure_reason(log, "")
    assert find_failure_reason(queue.folder / "nowhere.txt", "") == ""


async def test_the_end_of_a_followed_job_is_told_wherever_one_is(drive, own_queue: Any, monkeypatch: Any) -> None:
    async with drive(own_queue.folder, size=(140, 40)) as driver:
        rung: list[bool] = []
        written: list[str] = []
        monkeypatch.setattr(driver.app, "bell", lambda: rung.append(True))
        monkeypatch.setattr(driver.app._driver, "write", written.append)
        await driver.go("jobs")
        await driver.find_row("1/2")
        await driver.press("enter", "escape", "4")
        own_queue.gate.touch()
        await asyncio.to_thread(own_queue.until, lambda: own_queue.job("sums").ended_at)
        await driver.once(lambda: rung, "the bell")
        assert "complete: 4/4 units" in driver.notices
        assert "\x1b]9;chessreg: sums complete\x07" in written, "the terminal's own notification"


async def test_a_job_that_is_being_cancelled_is_retried_once_it_has_ended(drive: Any, own_queue: Any) -> None:
    async with drive(own_queue.folder, size=(120, 40), start="jobs") as driver:
        await driver.find_row("1/2")
        await driver.press("x")
        assert own_queue.job("sums").cancel
        await driver.find_row("1/2")
        assert " cancelling " in driver.text
        assert "R retry" in driver.lines[-1]
        await driver.press("R")
        assert "queued again once it has ended" in driver.notices
        assert own_queue.job("sums").detail["retry"]
        await driver.press("x")
        assert "retry" not in own_queue.job("sums").detail, "the last key counts"
