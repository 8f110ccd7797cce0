"""Requirements on every executor: start a command, report its outcome correctly, end it on request, keep its output.

A new executor: a class of `Conformance` in its own file of tests, with a fixture `make_executor`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from chessreg.registry.identity import make_id
from chessreg.registry.tables import Cause
from chessreg.scheduling.executors import Executor, ResourceNeeds, Submission, SubmissionStatus

Make = Callable[[], Executor]
SLEEP = "import time; print('begun', flush=True); time.sleep(600)"
PATIENCE = 300.0


def start(executor: Executor, work: Submission) -> str:
    handles = executor.submit([work])
    assert set(handles) == {work.job_id}
    return handles[work.job_id]


def until(executor: Executor, handle: str, state: str = "ended") -> SubmissionStatus:
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = executor.poll([handle]).get(handle)
        if seen is not None and seen.state == state:
            return seen
        assert seen is None or seen.state != "ended", f"it ended: {seen}"
        assert time.monotonic() < deadline, f"still {seen} after {PATIENCE:.0f} s"
        time.sleep(0.05)


def until_said(executor: Executor, handle: str, text: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        path = executor.logs(handle)
        said = path.read_text() if path else ""
        if text in said:
            return said
        assert time.monotonic() < deadline, f"it never said {text!r}: {said!r}"
        time.sleep(0.02)


class Conformance:
    @pytest.fixture
    def make_executor(self) -> Make:
        """Makes one executor object after another over the same machines, as supervisors that follow each other do."""
        raise NotImplementedError

    @pytest.fixture
    def work(self, tmp_path: Path) -> Callable[..., Submission]:
        """A work that runs this Python code."""

        def make(code: str, **settings: object) -> Submission:
            job = make_id()
            argv = (sys.executable, "-u", "-c", code)
            values = {"needs": ResourceNeeds(device="cpu", threads=1), "env": {}, "group_id": job} | settings
            return Submission(job, argv=argv, folder=tmp_path / job.hex, cwd=tmp_path, **values)  # type: ignore[arg-type]

        return make

    def test_a_work_ends_with_what_it_said_and_its_exit_code(self, make_executor: Make, work):
        executor = make_executor()
        good = start(executor, work("print('to stdout'); import sys; print('to stderr', file=sys.stderr)"))
        seen = until(executor, good)
        assert (seen.exit_code, seen.cause) == (0, Cause.FINISHED)
        said = until_said(executor, good, "to stderr")
        assert "to stdout" in said
        bad = until(executor, start(executor, work("raise SystemExit(7)")))
        assert (bad.exit_code, bad.cause) == (7, Cause.FAILED)

    def test_a_work_gets_its_folder_environment_and_a_session_of_its_own(self, make_executor: Make, work, tmp_path):
        executor = make_executor()
        code = "import os; print(os.getcwd(), os.environ['OF_THE_WORK'], os.getsid(0) != int(os.environ['SESSION']))"
        handle = start(executor, work(code, env={"OF_THE_WORK": "a b", "SESSION": str(os.getsid(0))}))
        assert until(executor, handle).exit_code == 0
        until_said(executor, handle, f"{tmp_path} a b True")

    def test_asking_again_after_the_end_gives_the_same_answer(self, make_executor: Make, work):
        executor = make_executor()
        handle = start(executor, work("raise SystemExit(3)"))
        first = until(executor, handle)
        assert executor.poll([handle, handle]) == {handle: first}

    def test_a_killed_work_is_seen_soon_with_its_signal(self, make_executor: Make, work):
        executor = make_executor()
        handle = start(executor, work("import os; print(f'pid {os.getpid()} sleeps'); import time; time.sleep(600)"))
        pid = int(until_said(executor, handle, "sleeps").split("pid")[1].split()[0])
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        seen = until(executor, handle)
        assert time.monotonic() - killed < 90  # a promise that is not kept takes two minutes
        assert seen.exit_code in (128 + signal.SIGKILL, None)
        assert seen.cause in (Cause.KILLED, Cause.LOST)

    def test_cancel_asks_first_and_then_insists(self, make_executor: Make, work):
        executor = make_executor()
        code = """import signal, sys, time
def end(*_): print('asked', flush=True); sys.exit(130)
signal.signal(signal.SIGTERM, end); print('begun', flush=True); time.sleep(600)"""
        polite = start(executor, work(code))
        until_said(executor, polite, "begun")
        executor.cancel(polite)
        seen = until(executor, polite)
        assert seen.exit_code == 130 or seen.cause is Cause.KILLED
        until_said(executor, polite, "asked")
        executor.cancel(polite)  # does nothing any more

        deaf = start(executor, work("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP))
        until_said(executor, deaf, "begun")
        deadline = time.monotonic() + PATIENCE
        while executor.poll([deaf])[deaf].state != "ended":
            assert time.monotonic() < deadline, "it would not end"
            executor.cancel(deaf)
            time.sleep(0.05)
        assert executor.poll([deaf])[deaf].cause in (Cause.KILLED, Cause.LOST)

    def test_the_next_executor_carries_on_with_a_handle(self, make_executor: Make, work):
        handle = start(make_executor(), work(SLEEP))
        following = make_executor()
        until(following, handle, "running")
        until_said(following, handle, "begun")
        following.cancel(handle)
        assert until(following, handle).state == "ended"

    def test_an_unknown_handle_is_lost(self, make_executor: Make):
        executor = make_executor()
        assert executor.poll(["nonsense"])["nonsense"].cause is Cause.LOST
        executor.cancel("nonsense")
        assert executor.logs("nonsense") is None

    def test_shards_of_one_launch_are_told_apart(self, make_executor: Make, work):
        executor = make_executor()
        group = UUID(int=5)
        works = [work(f"print('shard', {n}); raise SystemExit({n})", group_id=group) for n in range(3)]
        handles: dict[UUID, str] = {}
        deadline = time.monotonic() + PATIENCE
        while len(handles) < 3:  # without room for all, they wait for each other
            handles |= executor.submit([w for w in works if w.job_id not in handles])
            executor.poll(list(handles.values()))
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert [until(executor, handles[w.job_id]).exit_code for w in works] == [0, 1, 2]
        for number, each in enumerate(works):
            until_said(executor, handles[each.job_id], f"shard {number}")
