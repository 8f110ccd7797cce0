"""Jobs from queue to end: shards, deaths, retries, dependencies, room, memory. Every worker is a real process."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import tables
from chessreg.registry.identity import make_uuid
from chessreg.registry.tables import AttemptState, Cause
from chessreg.scheduling import queue
from chessreg.scheduling.launch import ExpectedInputs, Order, combine_grid, plan_orders
from chessreg.scheduling.status import find_log


def units_done(desk) -> int:
    return len(desk.rows(tables.UnitRange))


def test_shards_side_by_side_make_one_run_with_every_row_once(desk):
    desk.launch(desk.order(count=10, shards=3))
    assert [(job.shard, job.shards, str(job.state)) for job in desk.jobs()] == [(n, 3, "queued") for n in range(3)]
    desk.until(lambda: units_done(desk) == 6)
    assert len(desk.pids()) == 3, "all at once"
    (twice,) = desk.launch(desk.order(count=10, name="squares"))
    assert (twice.status, len(desk.jobs())) == ("already_queued", 3)
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"] * 3
    assert sorted((row.unit, row.value) for row in desk.rows(tables.MetricPoint)) == [(n, n * n) for n in range(10)]
    (run,) = desk.rows(tables.Run)
    assert run.completed_at is not None
    attempts = desk.rows(tables.Attempt)
    assert sorted(attempt.units_done for attempt in attempts) == [3, 3, 4]
    assert {attempt.job_id for attempt in attempts} == {job.id for job in desk.jobs()}
    assert {(attempt.executor, attempt.execution_options["granted_threads"]) for attempt in attempts} == {("local", 1)}
    assert all("complete" in Path(attempt.log).read_text() for attempt in attempts)
    (again,) = desk.launch(desk.order(count=10))
    assert (again.status, again.missing, len(desk.jobs())) == ("complete", 0, 3)


def test_a_killed_shard_is_told_soon_and_a_retry_does_only_what_is_missing(desk):
    desk.launch(desk.order(count=10, shards=2))
    desk.until(lambda: units_done(desk) == 4)
    job, other = desk.jobs()
    (victim,) = [a for a in desk.rows(tables.Attempt) if a.job_id == job.id]
    os.kill(victim.pid, signal.SIGKILL)
    assert desk.until(lambda: desk.jobs()[0].ended_at) < 90  # a promise that is not kept takes two minutes
    job, other = desk.jobs()
    assert (job.cause, job.message) == (Cause.KILLED, "killed by SIGKILL")
    (attempt,) = [a for a in desk.rows(tables.Attempt) if a.job_id == job.id]
    assert (attempt.state, attempt.cause, attempt.exit_code) == (AttemptState.KILLED, Cause.KILLED, 137)
    assert other.ended_at is None, "the other shard goes on"

    before = {(r.start, r.stop): r.attempt_id for r in desk.rows(tables.UnitRange)}
    with desk.session.database.write() as sql:
        assert [j.id for j in queue.retry_jobs(sql, queue.find_jobs(sql, job.id.hex))] == [job.id]
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished", "finished"]
    assert sorted(row.unit for row in desk.rows(tables.MetricPoint)) == list(range(10))
    after = {(r.start, r.stop): r.attempt_id for r in desk.rows(tables.UnitRange)}
    assert before.items() <= after.items()
    assert sorted(a.units_done for a in desk.rows(tables.Attempt) if a.job_id == job.id) == [2, 3]
    assert [j.tries for j in desk.jobs()] == [2, 1]


def test_a_cancelled_job_keeps_its_units_and_a_queued_one_never_starts(desk):
    desk.launch(desk.order(count=5, name="long"))
    desk.until(lambda: units_done(desk) == 2)
    desk.launch(desk.order(count=6, how={"threads": os.cpu_count()}, name="behind"))
    with desk.session.database.write() as sql:
        assert len(queue.cancel_jobs(sql, queue.find_jobs(sql, "behind"))) == 1
        assert len(queue.cancel_jobs(sql, queue.find_jobs(sql, "long"))) == 1
    desk.finish()
    assert [(job.cause, job.message) for job in desk.jobs()] == [
        (Cause.KILLED, "cancelled"),
        (Cause.KILLED, "cancelled before it started"),
    ]
    log = find_log(desk.session.store, desk.jobs()[0])
    assert log is not None
    assert log.read_text().rstrip().endswith("== stopped on request")
    (attempt,) = desk.rows(tables.Attempt)
    assert (attempt.state, attempt.cause, attempt.exit_code) == (AttemptState.KILLED, Cause.KILLED, 130)
    assert units_done(desk) == len(desk.rows(tables.MetricPoint)) == 2


def test_a_cancelled_job_that_is_retried_before_it_has_ended_resumes(desk):
    desk.launch(desk.order(count=5, name="long"))
    desk.until(lambda: units_done(desk) == 2)
    with desk.session.database.write() as sql:
        jobs = queue.find_jobs(sql, "long")
        assert queue.retry_jobs(sql, jobs) == [], "it is active"
        queue.cancel_jobs(sql, jobs)
        assert queue.retry_jobs(sql, jobs) == jobs
    desk.until(lambda: desk.jobs()[0].tries == 2)
    (job,) = desk.jobs()
    assert (job.message, job.cancel, "retry" in job.detail) == ("again after: cancelled", False, False)
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"]
    assert sorted(a.units_done for a in desk.rows(tables.Attempt)) == [2, 3]


def test_a_failure_is_never_shown_finished_and_keeps_its_cause_and_exit_code(desk):
    desk.launch(desk.order("Summed", count=3, engine_dies=True))
    desk.until(lambda: desk.jobs()[0].ended_at)
    job = desk.jobs()[0]
    assert job.cause is Cause.ENGINE_DIED
    assert job.message.startswith("RuntimeError: the engine does not answer (your kind summed raised it: ")
    (attempt,) = desk.rows(tables.Attempt)
    assert (attempt.state, attempt.cause, attempt.exit_code) == (AttemptState.FAILED, Cause.ENGINE_DIED, 1)
    with desk.session.database.read() as sql:  # its reduce will not come
        waits = queue.find_unmet_dependencies(sql, queue.find_jobs(sql, desk.jobs()[1].id.hex)[0])
    assert waits == [("1 of 1 shards", False)]
    assert not desk.supervisor.run_once(), "nothing is left to hope for"


def test_the_reduce_runs_once_after_all_shards(desk):
    desk.open_gate()
    desk.launch(desk.order("Summed", count=6, shards=2))
    desk.finish()
    assert desk.states() == ["finished"] * 3
    points = {(row.name, row.unit): row.value for row in desk.rows(tables.MetricPoint)}
    assert points["sum", 6] == sum(n * n for n in range(6))
    assert desk.rows(tables.Run)[0].completed_at is not None


def test_out_of_memory_halves_the_batch_once_and_says_so(desk):
    desk.open_gate()
    desk.launch(desk.order(count=2, memory=2), desk.order(count=2, memory=1))
    desk.until(lambda: any((job.message or "").startswith("out of memory") for job in desk.jobs()))
    assert "out of memory: again with batch_numbers 2" in {job.message for job in desk.jobs()}
    desk.finish()
    enough, too_little = desk.jobs()
    assert (enough.cause, enough.tries) == (Cause.FINISHED, 2)
    assert (too_little.cause, too_little.tries) == (Cause.OOM, 2)
    tries = sorted((a for a in desk.rows(tables.Attempt) if a.job_id == enough.id), key=lambda attempt: attempt.id)
    assert [(a.cause, a.execution_options["batch_numbers"]) for a in tries] == [(Cause.OOM, 4), (Cause.FINISHED, 2)]
    assert len({a.run_id for a in tries}) == 1, "the hash stays"


def test_priority_and_room_decide_the_order_and_what_can_never_have_room_fails(desk):
    desk.open_gate()
    desk.supervisor.executors["local"].slots.cores = 1
    desk.launch(desk.order(count=2, name="late"))
    desk.launch(desk.order(count=3, name="urgent", priority=5))
    desk.launch(desk.order(count=4, name="never"))
    with desk.session.database.write() as sql:  # as from a machine that had one; a launch here would be refused
        job = sql.scalars(select(tables.Job)).all()[-1]
        job.detail = {**job.detail, "execution_options": {**job.detail["execution_options"], "device": "cuda:7"}}
    desk.finish()
    late, urgent, never = desk.jobs()
    assert urgent.started_at < late.started_at
    attempts = sorted(desk.rows(tables.Attempt), key=lambda attempt: attempt.started_at)
    assert attempts[0].ended_at <= attempts[1].started_at, "one core, one at a time"
    assert (never.cause, never.tries) == (Cause.FAILED, 0)
    assert "no GPU" in never.message


def test_the_next_supervisor_finds_what_the_last_one_left(desk):
    desk.launch(desk.order(count=6, shards=2))
    desk.until(lambda: units_done(desk) == 4)
    desk.next_supervisor()  # the first has ended: nothing was handed over
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished", "finished"]
    assert len(desk.rows(tables.Attempt)) == 2
    assert sorted(row.unit for row in desk.rows(tables.MetricPoint)) == list(range(6))


def test_a_worker_that_its_supervisor_did_not_live_to_note_is_not_started_twice(desk):
    desk.launch(desk.order(count=4))
    work = queue.prepare_submission(desk.session.database, desk.session.store, desk.jobs()[0])
    desk.supervisor.get_executor("local").submit([work])  # and here the supervisor dies
    desk.next_supervisor()
    desk.until(lambda: units_done(desk) == 2)
    (first,) = desk.pids()
    desk.until(lambda: json.loads(desk.jobs()[0].handle or "{}").get("pid") == first)  # the second found the lock held
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"]
    assert len(desk.rows(tables.Attempt)) == 1


def test_a_stopped_supervisor_leaves_its_jobs_in_the_queue(desk):
    desk.launch(desk.order(count=4))
    desk.until(lambda: units_done(desk) == 2)
    desk.supervisor.stopping = True
    desk.supervisor.run()
    assert (desk.states(), desk.pids(), units_done(desk)) == (["queued"], [], 2)
    desk.next_supervisor()
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"]
    assert len(desk.rows(tables.MetricPoint)) == 4


def test_a_registry_that_does_not_answer_stops_no_worker_and_loses_nothing(desk, monkeypatch):
    from chessreg.errors import RegistryError
    from chessreg.scheduling import supervisor

    desk.launch(desk.order(count=4))
    desk.until(lambda: units_done(desk) == 2)

    def down(*_: object) -> None:
        raise RegistryError("the registry does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "ingest_fragments", down)
        desk.open_gate()
        deadline = time.monotonic() + 300
        outcome = queue.get_job_folder(desk.session.store, desk.jobs()[0]) / "outcome.json"
        while not outcome.exists():  # it completes its work meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(RegistryError):
            desk.supervisor.run_once()
        assert [str(a.state) for a in desk.rows(tables.Attempt)] == ["running"]
        assert units_done(desk) == 2
    desk.finish()
    assert desk.states() == ["finished"]
    assert len(desk.rows(tables.MetricPoint)) == 4


# -- before queueing --------------------------------------------------------------------------------------------------


def test_a_grid_of_too_many_cells_is_refused_before_it_is_made() -> None:
    with pytest.raises(BadInputError, match="100,000,000,000,000 cells are more"):
        combine_grid({name: list(range(100)) for name in "abcdefg"})


def test_a_sweep_is_one_group_of_which_only_missing_cells_run(desk):
    from chessreg.runs.kind import find_kind

    desk.open_gate()
    desk.session.run(find_kind(desk.gated).spec(count=4), kind=desk.gated)
    planned = desk.launch(*(desk.order(count=n) for n in (3, 4, 5, 3)))
    assert [each.status for each in planned] == ["queued", "complete", "queued"]
    assert len({job.group_id for job in desk.jobs()}) == 1
    assert {queue.format_job_title(job) for job in desk.jobs()} == {"gated count=3", "gated count=5"}
    desk.finish()
    assert sorted(run.spec["count"] for run in desk.rows(tables.Run)) == [3, 4, 5]
    assert len(desk.rows(tables.Attempt)) == 3


def test_nothing_is_queued_when_one_of_several_cannot_be_done(desk):
    from chessreg.experiments.probe import Probe, ProbeSpec

    good = desk.order(count=3)
    with pytest.raises(NotFoundError, match="nowhere"):
        desk.launch(good, Order(Probe(), ProbeSpec(cache="nowhere"), Probe.options()))
    with pytest.raises(NotFoundError, match="executor"):
        desk.launch(good, desk.order(count=4, on="moon"))
    with pytest.raises(BadInputError, match="named"):
        desk.launch(desk.order(count=3, name="a"), desk.order(count=4, name="a"))
    assert desk.jobs() == []


# -- one job's output is another's input ------------------------------------------------------------------------------


def test_what_follows_waits_for_what_it_names_and_then_finds_it(desk):
    desk.open_gate()
    desk.launch(desk.order(count=6, shards=2, name="fresh"), desk.order("Doubled", of="fresh", name="twice"))
    first, _, third = desk.jobs()
    assert third.detail["after"] == [first.spec_hash]
    with desk.session.database.read() as sql:
        assert queue.find_unmet_dependencies(sql, sql.get(tables.Job, third.id)) == [
            (f"gated {first.run_id.hex[-6:]}", True)
        ]
    # one that is launched later may name it too, before there is a run of that name
    later = desk.order("Doubled", of="fresh", seed=1)
    (planned,) = plan_orders([later], desk.session.database, desk.session.store)
    assert (planned.after, planned.units) == ((first.spec_hash,), None)
    desk.finish()
    assert desk.states() == ["finished"] * 3
    values = {(row.name, row.unit): row.value for row in desk.rows(tables.MetricPoint)}
    assert [values["doubled", unit] for unit in range(6)] == [2 * unit * unit for unit in range(6)]
    (made,) = [run for run in desk.rows(tables.Run) if run.id == first.run_id]
    assert desk.jobs()[2].started_at >= made.completed_at


def test_a_job_whose_input_failed_is_blocked_until_that_is_retried(desk):
    from chessreg.scheduling import status

    desk.open_gate()
    desk.launch(desk.order(count=2, name="fresh"), desk.order("Doubled", of="fresh", name="twice"))
    with desk.session.database.write() as sql:
        queue.cancel_jobs(sql, queue.find_jobs(sql, "fresh"))

    def state() -> str:
        with desk.session.database.read() as sql:
            return status.read_job_rows(sql, queue.find_jobs(sql, "twice"))[0]["state"]

    assert state() == "blocked"
    assert not desk.supervisor.run_once(), "a supervisor does not stay up for it"
    with desk.session.database.write() as sql:
        assert len(queue.retry_jobs(sql, queue.find_jobs(sql, "fresh"))) == 1
    assert state() == "waiting"
    desk.finish()
    assert desk.states() == ["finished", "finished"]


@pytest.fixture
def small_world(world, tmp_path, make_desk):
    """A copy of the small world, with a desk."""
    import shutil

    from chessreg.session import open_session

    shutil.copytree(world, tmp_path / "world")
    with open_session(str(tmp_path / "world" / "registry.db"), tmp_path / "world" / "store") as opened:
        yield make_desk(opened, tmp_path)


def test_an_input_whose_bytes_are_elsewhere_is_fetched_or_refused_with_the_command_that_helps(small_world):
    import shutil

    from chessreg.experiments.cache import Cache, CacheSpec

    desk = small_world
    with desk.session.database.read() as sql:
        digest = sql.scalars(select(tables.Checkpoint.artifact)).one()
    order = Order(Cache(), CacheSpec(checkpoint="reference", dataset="sample:test", max_sites=4), Cache.options())
    database, store = desk.session.database, desk.session.store
    shutil.rmtree(store.path(digest))
    plan_orders([order], database, store)
    assert store.exists(digest), "the store that this one was copied from is within reach, and known"
    shutil.rmtree(store.path(digest))
    with database.write() as sql:
        sql.execute(delete(tables.ArtifactLocation).where(tables.ArtifactLocation.digest == digest))
    with pytest.raises(NotFoundError, match="no location of its bytes is known") as refused:
        desk.launch(order)
    assert digest[:6] in refused.value.message
    with desk.session.database.write() as sql:  # box1 has it, and this machine knows
        here = sql.scalars(select(tables.Machine)).first()
        values = {c.key: getattr(here, c.key) for c in tables.Machine.__table__.columns}
        box1 = tables.Machine(**values | {"id": make_uuid("ab" * 32), "host": "box1"})
        sql.add(box1)
        sql.flush()
        sql.merge(
            tables.ArtifactLocation(digest=digest, uri="/elsewhere", machine_id=box1.id, verified_at=here.last_seen)
        )
    with pytest.raises(NotFoundError, match=r"is only on box1.*run chessreg push \w+ .*there"):
        desk.launch(order)
    assert desk.jobs() == []


def test_a_cache_may_name_the_checkpoint_of_a_training_that_has_not_begun(small_world):
    from chessreg.experiments.cache import Cache, CacheSpec
    from chessreg.experiments.train import Train
    from chessreg.experiments.vector import Vector
    from tests.specs import train_spec, vector_spec

    desk = small_world
    training = train_spec(
        architecture="gpt2", datasets=("sample:fit",), n_layer=1, n_head=1, n_embd=8, steps=2, batch_tokens=1024
    )
    train = Order(Train(), training, Train.options(device="cpu", threads=1), (), "tiny")
    cache = Order(
        Cache(), CacheSpec(checkpoint="tiny", dataset="sample:test", max_sites=4), Cache.options(device="cpu")
    )
    made, waits = desk.launch(train, cache)
    assert waits.spec.checkpoint == f"run:{made.spec_hash}/checkpoint"
    assert waits.after == (made.spec_hash,)
    with pytest.raises(NotFoundError, match="not begun"):
        desk.session.inputs.reference("run:train", "tiny")
    with pytest.raises(BadInputError, match="train run, not a cache run"):
        desk.launch(Order(Vector(), vector_spec(source="contrastive", cache="tiny"), Vector.options()))
    expected = ExpectedInputs(desk.session.database, desk.session.store)
    expected.of_launch = {"tuned": ("finetune", "f" * 64), "fitted": ("probe", "e" * 64)}
    assert expected.reference("checkpoint", "tuned") == f"run:{'f' * 64}/checkpoint"
    with pytest.raises(BadInputError, match="fitted is a probe run, which makes no checkpoint"):
        expected.reference("checkpoint", "fitted")
