"""Properties of Ray: nodes without the store, actors that die, addresses, resources that no node has."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import tables
from chessreg.registry.identity import make_id
from chessreg.registry.tables import Cause
from chessreg.runs.kind import find_kind
from chessreg.scheduling.executors import Placement, ResourceNeeds, Submission, SubmissionStatus
from chessreg.scheduling.launch import Order

from .conformance import Conformance

KIND = f"{Path(__file__).with_name('sent_kind.py')}:Sent"
SLEEP = "print('begun', flush=True); import time; time.sleep(600)"


def work(folder: Path, code: str = SLEEP, **needs: object) -> Submission:
    job = make_id()
    settings = {"device": "cpu", "threads": 1} | needs
    return Submission(
        job, job, (sys.executable, "-u", "-c", code), folder / job.hex, folder, needs=ResourceNeeds(**settings)
    )


def until(executor, handle: str, state: str = "ended") -> SubmissionStatus:
    deadline = time.monotonic() + 300
    while (seen := executor.poll([handle]).get(handle)) is None or seen.state != state:
        assert time.monotonic() < deadline, f"still {seen}"
        time.sleep(0.05)
    return seen


def test_results_come_home_from_a_node_that_has_no_store(ray_executors, ray_cluster, desk, tmp_path):
    """Two shards fill the two nodes; one of these works in a separate store. Bytes go there and come back."""
    on = f"ray:{ray_cluster.address}"
    desk.supervisor.executors[on] = ray_executors()
    (tmp_path / "words.txt").write_text("a chess game ")
    found = find_kind(KIND)
    how = found.options(device="cpu", threads=2)
    desk.launch(Order(found, found.spec(file=str(tmp_path / "words.txt")), how, ("file",), "sent", on, shards=2))
    desk.finish()
    assert desk.states() == ["finished", "finished"], desk.said() + str([job.message for job in desk.jobs()])
    assert sorted((row.unit, row.value) for row in desk.rows(tables.MetricPoint)) == [(n, 13.0) for n in range(4)]
    store = desk.session.store
    made = {row.name: (store.path(row.digest) / "copy.txt").read_text() for row in desk.rows(tables.Output)}
    assert made == {f"copy-{n}": f"a chess game {n}" for n in range(4)}

    (apart,) = (path.parent for path in ray_cluster.node_store.glob("*/store.json"))
    there = {path.name for path in apart.glob("artifacts/*/*")}
    assert len(there & {row.digest for row in desk.rows(tables.Output)}) == 2, "two were made there"
    assert len(there) == 3, "from the one that was sent there"
    assert not list((apart / "fragments" / "incoming").iterdir())
    assert not list((ray_cluster.node_store / "works").iterdir())
    uris = {row.uri for row in desk.rows(tables.ArtifactLocation)}
    assert all(str(store.path(row.digest)) in uris for row in desk.rows(tables.Output)), "the registry says: here"
    for job, attempt in zip(desk.jobs(), sorted(desk.rows(tables.Attempt), key=lambda a: a.job_id.hex), strict=True):
        said = Path(attempt.log).read_text()
        assert "== try 1 of" in said
        assert "== complete" in said
        assert (attempt.executor, attempt.execution_options["granted_threads"], job.message) == (on, 2, None)


def test_an_actor_that_dies_is_lost_and_its_process_ends(ray_executors, tmp_path):
    executor = ray_executors()
    each = work(tmp_path, "import os; print('pid', os.getpid(), flush=True); import time; time.sleep(600)")
    handle = executor.submit([each])[each.job_id]
    deadline = time.monotonic() + 300
    while "pid" not in (said := path.read_text() if (path := executor.logs(handle)) else ""):
        assert time.monotonic() < deadline
        executor.poll([handle])
        time.sleep(0.05)
    child = psutil.Process(int(said.split()[1]))
    os.kill(child.ppid(), signal.SIGKILL)
    seen = until(executor, handle)
    assert seen.cause is Cause.LOST
    child.wait(30)


def test_a_shard_whose_node_is_lost_is_lost_and_done_elsewhere(ray_executors, ray_cluster, desk, tmp_path):
    on = f"ray:{ray_cluster.address}"
    desk.supervisor.executors[on] = ray_executors()
    node = ray_cluster.cluster.add_node(num_cpus=3, object_store_memory=80_000_000)
    desk.launch(desk.order(count=4, on=on, how={"threads": 3}))  # no other node has 3 CPUs
    desk.until(lambda: len(desk.rows(tables.UnitRange)) == 2)
    ray_cluster.cluster.remove_node(node, allow_graceful=False)
    desk.finish()
    (attempt,) = desk.rows(tables.Attempt)
    assert desk.states() == ["lost"]
    assert "its node or its actor died" in desk.jobs()[0].message
    desk.open_gate()
    desk.launch(desk.order(count=4, on=on, how={"threads": 2}))
    desk.finish()
    assert desk.states() == ["lost", "finished"]
    again = next(other for other in desk.rows(tables.Attempt) if other.id != attempt.id)
    assert (attempt.run_id, again.units_done) == (again.run_id, 2), "only the missing units"


def test_a_supervisor_that_died_before_it_noted_a_shard_finds_it(ray_executors, tmp_path):
    each = work(tmp_path)
    handle = ray_executors().submit([each])[each.job_id]
    executor = ray_executors()
    assert executor.submit([each]) == {each.job_id: handle}
    executor.cancel(handle)
    until(executor, handle)
    assert ray_executors().poll([handle])[handle].state == "ended"
    again = executor.submit([each])[each.job_id]
    assert again != handle
    until(executor, again, "running")
    executor._cancel_times.clear()
    executor.cancel(again)
    until(executor, again)


def test_what_waits_for_room_is_cancelled_before_it_begins(ray_executors, tmp_path):
    executor = ray_executors()
    busy = [work(tmp_path, threads=2) for _ in range(2)]
    holding = executor.submit(busy)
    for handle in holding.values():
        until(executor, handle, "running")
    late = work(tmp_path)
    handle = executor.submit([late])[late.job_id]
    seen = executor.poll([handle])[handle]
    assert (seen.state, seen.placement.reason, seen.placement.node) == ("waiting", "all nodes are busy", "")
    (first, *_) = holding.values()
    while (running := executor.poll([first])[first]).placement.reason == "it is being prepared":
        time.sleep(0.05)
    assert running.placement == Placement(json.loads(first)["actor"], node=socket.gethostname())
    executor.cancel(handle)
    ended = until(executor, handle)
    assert (ended.cause, ended.message) == (Cause.KILLED, "cancelled before it began")
    for held in holding.values():
        executor.cancel(held)
    for held in holding.values():
        until(executor, held)


def test_what_no_node_has_is_refused(ray_executors, tmp_path):
    executor = ray_executors()
    for needs, said in (({"device": "cuda"}, "no node of this Ray has a GPU"), ({"threads": 64}, "more than 2 CPUs")):
        with pytest.raises(BadInputError, match=said):
            executor.submit([work(tmp_path, **needs)])


def test_a_wrong_address_is_one_line(monkeypatch):
    from chessreg.scheduling.executors.ray import RayExecutor

    with pytest.raises(NotFoundError, match=r"no Ray cluster responds at 127\.0\.0\.1:1"):
        RayExecutor("127.0.0.1:1")
    for wrong in ("ray://there:10001", "there"):
        with pytest.raises(BadInputError, match="not an address"):
            RayExecutor(wrong)


def test_without_ray_the_launch_is_refused(monkeypatch):
    from chessreg.scheduling.executors.ray import RayExecutor

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotFoundError, match="ray>=2"):
        RayExecutor()


class TestLikeEveryExecutor(Conformance):
    @pytest.fixture
    def make_executor(self, ray_executors):
        return ray_executors
