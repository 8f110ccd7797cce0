"""A paper as jobs: every run once, steps that depend on results after them, a failure named."""

import time

import pytest
from sqlalchemy import select

from chessreg.errors import ChessregError
from chessreg.papers.launching import PaperLauncher
from chessreg.papers.plan import Paper, Step
from chessreg.papers.work import Work
from chessreg.registry import tables
from chessreg.registry.tables import JobState
from chessreg.scheduling.presence import Presence


@pytest.fixture
def supervised(session):
    """The session's supervisor is ended when the test is over."""
    yield session
    Presence(session.store).stop()


def jobs(session):
    with session.database.read() as sql:
        found = list(sql.scalars(select(tables.Job).order_by(tables.Job.created_at)))
        sql.expunge_all()
    return found


def ended(session):
    """The jobs, once the last has ended: a run is complete a moment before its process ends."""
    deadline = time.monotonic() + 300
    while any(job.state != JobState.ENDED for job in jobs(session)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return jobs(session)


def test_a_paper_is_done_by_jobs_and_what_follows_from_results_comes_last(work, supervised, checks):
    queued = []
    assert not PaperLauncher(work, "local", queued.append).launch_steps()
    assert queued == [3, 1]  # `best` needs the results of two others
    assert [p.state for p in work.plan()] == ["complete"] * 4
    done = ended(supervised)
    assert {(str(job.cause), job.executor) for job in done} == {("finished", "local")}
    assert done[-1].run_id.hex == work.complete_steps.run_id("best")
    assert done[-1].detail["spec"]["seed"] == int(checks(work.complete_steps, "b") > checks(work.complete_steps, "a"))
    again = []
    assert not PaperLauncher(work, "local", again.append).launch_steps()
    assert (again, len(jobs(supervised))) == ([], 4)


class Still(PaperLauncher):
    """A launch whose jobs never begin."""

    def wait_for_job(self):
        raise KeyboardInterrupt


def test_every_job_is_told_how(work, session):
    told = Work(session, work.paper, work.request, {"device": "cpu", "threads": 1})
    assert Still(told, "local").launch_steps()
    assert {
        (job.detail["execution_options"]["device"], job.detail["execution_options"]["threads"]) for job in jobs(session)
    } == {("cpu", 1)}


def test_an_interrupted_launching_leaves_its_jobs_and_the_next_one_finds_them(work, session):
    assert Still(work, "local").launch_steps()
    assert [job.state for job in jobs(session)] == [JobState.QUEUED] * 3
    queued = []
    assert Still(work, "local", queued.append).launch_steps()
    assert (queued, len(jobs(session))) == ([0], 3)


def test_a_step_whose_job_failed_is_named_and_launched_again_the_next_time(work, session):
    class Failed(PaperLauncher):
        def wait_for_job(self):
            with self.work.session.database.write() as sql:
                job = sql.scalars(select(tables.Job).where(tables.Job.run_id == self.run_id("b"))).one()
                job.state, job.cause, job.message = JobState.ENDED, tables.Cause.FAILED, "no room"

    with pytest.raises(ChessregError, match="step b: its job ended as failed: no room") as caught:
        Failed(work, "local").launch_steps()
    assert caught.value.hint.startswith("chessreg logs ")
    queued = []
    assert Still(work, "local", queued.append).launch_steps()
    assert (queued, len(jobs(session))) == ([1], 4)


def test_a_step_whose_job_was_lost_is_launched_again_twice(work, session):
    class Unlucky(PaperLauncher):
        def wait_for_job(self):
            with self.work.session.database.write() as sql:
                for job in sql.scalars(select(tables.Job).where(tables.Job.run_id == self.run_id("b"))):
                    job.state, job.cause, job.message = JobState.ENDED, tables.Cause.LOST, "its process is gone"

    queued = []
    with pytest.raises(ChessregError, match="step b: its job ended as lost: its process is gone"):
        Unlucky(work, "local", queued.append).launch_steps()
    assert queued == [3, 1, 1]


def test_a_run_that_needs_another_is_launched_with_it(session, work):
    """It needs only the names of its inputs: both are queued in one round, one after the other."""
    cache = Step("cache", "cache", {"checkpoint": "sha256:" + "c" * 64, "dataset": "dataset:" + "d" * 64}, "")
    probe = Step("probe", "probe", {"cache": "@cache"}, "")
    chosen = Step("chosen", "probe", lambda made: {"cache": made.references["cache"]}, "", ("cache",))
    launching = PaperLauncher(
        Work(session, Paper("x", "", lambda request: [cache, probe, chosen], ()), work.request), "local"
    )
    launching.launched_references["cache"] = "run:" + "e" * 64
    [order] = launching.orders()
    assert (order.kind.name, order.spec.cache) == ("probe", "run:" + "e" * 64)
