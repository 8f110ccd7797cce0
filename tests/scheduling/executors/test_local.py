"""Properties of this machine's executor: slots, process groups, reused process numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from chessreg.errors import BadInputError
from chessreg.registry.identity import make_id
from chessreg.registry.tables import Cause
from chessreg.scheduling.executors import ResourceNeeds, Submission
from chessreg.scheduling.executors.local import GpuMemory, LocalExecutor, MachineSlots, read_gpus
from store.process import get_process_start, read_boot_id

from .conformance import Conformance

TWO = [GpuMemory(0, 80.0, 79.0), GpuMemory(1, 80.0, 79.5)]


def work(tmp_path, code: str, **needs: object) -> Submission:
    job = make_id()
    settings = {"device": "cpu", "threads": 1} | needs
    return Submission(
        job, job, (sys.executable, "-u", "-c", code), tmp_path / job.hex, tmp_path, needs=ResourceNeeds(**settings)
    )


def place(slots: MachineSlots, needs: ResourceNeeds, gpus: list[GpuMemory], holder: str) -> int | None:
    """The GPU that it got; None when it waits."""
    slot = slots.find(needs, gpus)
    if slot is not None:
        slots.take(holder, slot)
    return slot.gpus[0] if slot else None


def test_one_work_a_gpu_the_freest_first():
    slots = MachineSlots(16)
    assert [place(slots, ResourceNeeds("auto"), TWO, name) for name in "abc"] == [1, 0, None]
    slots.give_back("a")
    assert place(slots, ResourceNeeds("auto"), TWO, "c") == 1


def test_the_gpus_of_this_machine_are_those_that_tell_their_memory(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, A100, 40960, 1024, 50'\necho '1, GB10, [N/A], [N/A], 0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert read_gpus() == [GpuMemory(0, 40.0, 39.0)]


def test_a_gpu_that_others_use_is_not_free():
    busy = [GpuMemory(0, 80.0, 40.0)]
    assert MachineSlots(16).find(ResourceNeeds("cuda"), busy) is None
    assert MachineSlots(16).find(ResourceNeeds("cuda", gpu_memory=39), busy)
    assert MachineSlots(16).find(ResourceNeeds("cuda", gpu_memory=41), busy) is None


def test_a_gpu_is_shared_only_among_those_that_may():
    slots = MachineSlots(16)
    assert place(slots, ResourceNeeds("cuda:1", share_gpu=True), TWO, "a") == 1
    assert place(slots, ResourceNeeds("cuda:1", share_gpu=True), TWO, "b") == 1
    assert place(slots, ResourceNeeds("cuda:1"), TWO, "c") is None
    assert slots.find(ResourceNeeds("cuda:1", share_gpu=True), TWO).env["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_training_on_several_devices_has_as_many_gpus():
    slots = MachineSlots(16)
    assert place(slots, ResourceNeeds("auto"), TWO, "a") == 1
    assert slots.find(ResourceNeeds("auto", devices=2), TWO) is None
    slots.give_back("a")
    both = slots.find(ResourceNeeds("auto", devices=2), TWO)
    slots.take("b", both)
    assert (both.gpus, both.threads, both.env["CUDA_VISIBLE_DEVICES"]) == ((0, 1), 16, "0,1")
    assert place(slots, ResourceNeeds("auto"), TWO, "c") is None
    assert len(slots.find(ResourceNeeds("auto", devices=2), []).gpus) == 0  # processes on the CPU


def test_cores_are_divided_over_shards_and_never_given_twice():
    slots = MachineSlots(4)
    first = slots.find(ResourceNeeds("auto", shards=2), [])
    assert (first.gpus, first.threads) == ((), 2)
    slots.take("a", first)
    slots.take("b", slots.find(ResourceNeeds("cpu", shards=2), TWO))
    assert slots.find(ResourceNeeds("cpu", threads=1), []) is None
    slots.give_back("a")
    assert slots.find(ResourceNeeds("cpu", threads=2), []).env["OMP_NUM_THREADS"] == "2"
    assert MachineSlots(2).find(ResourceNeeds("cpu", threads=64), []).threads == 2


def test_what_this_machine_can_never_give_is_refused():
    for needs, gpus in (
        (ResourceNeeds("cuda"), []),
        (ResourceNeeds("cuda:2"), TWO),
        (ResourceNeeds("auto", gpu_memory=200), TWO),
        (ResourceNeeds("cuda", devices=3), TWO),
    ):
        with pytest.raises(BadInputError):
            MachineSlots(4).find(needs, gpus)


def test_a_dead_leader_takes_its_children_with_it(tmp_path):
    executor = LocalExecutor(read_gpu_memory=list)
    code = """import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print('child', child.pid, flush=True); time.sleep(600)"""
    each = work(tmp_path, code)
    handle = executor.submit([each])[each.job_id]
    deadline = time.monotonic() + 300
    while "child" not in (said := each.log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = int(said.split()[1])
    os.kill(json.loads(handle)["pid"], signal.SIGKILL)
    while executor.poll([handle])[handle].state != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    seen = executor.poll([handle])[handle]
    assert (seen.cause, seen.exit_code) == (Cause.KILLED, 137)
    while get_process_start(child) is not None:
        assert time.monotonic() < deadline, "the child outlived its group"
        time.sleep(0.02)


def test_a_number_used_again_is_not_taken_for_the_work(tmp_path):
    mine = {"pid": os.getpid(), "started": 1.0, "log": "x", "gpus": [], "threads": 1, "shared": False}
    from store.process import read_boot_id

    handle = json.dumps({**mine, "boot": read_boot_id()})
    executor = LocalExecutor(read_gpu_memory=list)
    executor.cancel(handle)  # would end this very test
    assert executor.poll([handle])[handle].cause is Cause.LOST
    other_boot = json.dumps({**mine, "started": get_process_start(os.getpid()), "boot": "another"})
    executor.cancel(other_boot)
    assert executor.poll([other_boot])[other_boot].cause is Cause.LOST


def test_works_wait_for_room(tmp_path):
    executor = LocalExecutor(read_gpu_memory=list)
    works = [work(tmp_path, "import time; time.sleep(600)", threads=executor.slots.cores) for _ in range(2)]
    started = executor.submit(works)
    assert list(started) == [works[0].job_id]
    handle = started[works[0].job_id]
    executor.cancel(handle)
    deadline = time.monotonic() + 300
    while executor.poll([handle])[handle].state != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    later = executor.submit(works[1:])
    assert list(later) == [works[1].job_id]
    executor.cancel(later[works[1].job_id])
    while executor.poll(later.values())[later[works[1].job_id]].state != "ended":
        time.sleep(0.02)


def test_a_folder_that_is_gone_is_one_clear_error(tmp_path):
    from chessreg.errors import ChessregError

    gone = work(tmp_path, "pass")
    gone = Submission(gone.job_id, gone.group_id, gone.argv, gone.folder, tmp_path / "gone", needs=gone.needs)
    with pytest.raises(ChessregError, match="gone"):
        LocalExecutor(read_gpu_memory=list).submit([gone])


class TestLikeEveryExecutor(Conformance):
    @pytest.fixture
    def make_executor(self):
        return lambda: LocalExecutor(read_gpu_memory=list, grace=0.5)


def test_a_handle_with_the_number_of_another_process_ends_nobody():
    """Process numbers are reused, and a row may hold any: the session of a living leader does not belong to a dead
    one."""
    other = subprocess.Popen(
        ["bash", "-c", "sleep 60 & echo begun; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert other.stdout
        assert other.stdout.readline() == b"begun\n"
        fields = {"started": 1.0, "boot": read_boot_id(), "log": "/l", "gpus": [], "threads": 1, "shared": False}
        at = LocalExecutor()
        handle = json.dumps({"pid": other.pid, **fields})
        assert at.poll([handle])[handle].cause is Cause.LOST
        at.cancel(handle)
        assert len(psutil.Process(other.pid).children()) == 1
        odd = [json.dumps({"pid": pid, **fields}) for pid in ("self", None, [1])]
        assert {seen.message for seen in at.poll(odd).values()} == {"its handle cannot be read"}
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
