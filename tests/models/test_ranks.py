"""A training on several processes is the training on one, to rounding; it resumes with any number, and ends whole."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from chessreg.child import build_child_environment
from chessreg.errors import BadInputError
from chessreg.models import ranks
from chessreg.models.branches import BranchTrainer
from chessreg.models.devices import check_device_count
from chessreg.models.ranks import FOLLOWER_FILE, GROUP_TIMEOUT, LostProcessError, follow_rank, run_ranks
from chessreg.models.train_config import TextTraining
from chessreg.models.training import Trainer, TrainerOptions, TrainPoint
from chessreg.runs.attempt import classify_failure

from .test_branches import BRANCHED, branched
from .test_training import CONFIG, HOW, corpus

SHORT = replace(CONFIG, steps=20)


def losses(
    folder: Path,
    devices: int,
    until: int = SHORT.steps,
    config: TextTraining = SHORT,
    options: TrainerOptions = HOW,
) -> list[float]:
    """Train up to step `until` and return the losses of the whole curve, nats per token."""
    trainer = Trainer(config, corpus(), folder, options)
    with run_ranks(trainer, devices):
        trainer.run(lambda point: None, corpus(20), 20, lambda: trainer.step >= until)
    return [loss for point in trainer.curve for loss in (point.loss, point.heldout_loss) if loss is not None]


def test_losses_are_those_of_one_process_also_when_the_number_changes(tmp_path: Path) -> None:
    alone = losses(tmp_path / "one", 1)
    assert len(alone) == 5
    losses(tmp_path / "mixed", 2, until=7)
    losses(tmp_path / "mixed", 1, until=12)
    assert losses(tmp_path / "mixed", 2) == pytest.approx(alone, abs=1e-5)
    assert followers() == []


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_three_processes_train_as_one(optimizer: str, tmp_path: Path) -> None:
    config = replace(SHORT, optimizer=optimizer)
    assert losses(tmp_path / "three", 3, config=config) == pytest.approx(
        losses(tmp_path / "one", 1, config=config), abs=1e-4
    )


@pytest.mark.slow
def test_branches_are_shared_as_rows_are(tmp_path: Path) -> None:
    curves = []
    for devices in (1, 2):
        trainer = BranchTrainer(BRANCHED, branched(), tmp_path / str(devices), HOW)
        with run_ranks(trainer, devices):
            trainer.run(lambda point: None)
        curves.append([point.loss for point in trainer.curve])
    assert curves[1] == pytest.approx(curves[0], abs=1e-5)


def followers(pid: int | None = None) -> list[psutil.Process]:
    return [c for c in psutil.Process(pid).children() if "spawn_main" in " ".join(c.cmdline())]


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_training_which_then_resumes(tmp_path: Path) -> None:
    trainer = Trainer(SHORT, corpus(), tmp_path, HOW)

    def kill(point: TrainPoint) -> None:
        trainer.save()
        [follower] = followers()
        os.kill(follower.pid, signal.SIGKILL)
        follower.wait(20)

    with pytest.raises(LostProcessError, match="one of the 2 processes of this training has"), run_ranks(trainer, 2):
        trainer.run(kill)
    assert trainer.step == HOW.log_steps
    again = Trainer(SHORT, corpus(), tmp_path, HOW)
    assert again.step == HOW.log_steps
    again.run(lambda point: None)
    assert [p.loss for p in again.curve] == pytest.approx(losses(tmp_path / "one", 1)[:-1], abs=1e-5)


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_training_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "GROUP_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(ranks, "END_TIMEOUT_S", 0.5)
    trainer = Trainer(SHORT, corpus(), tmp_path, HOW)

    def stop(point: TrainPoint) -> None:
        os.kill(followers()[0].pid, signal.SIGSTOP)

    began = time.monotonic()
    with pytest.raises(LostProcessError, match=r"(?i)time"), run_ranks(trainer, 2):
        trainer.run(stop)
    assert time.monotonic() - began < 60
    assert trainer.step == HOW.log_steps
    assert followers() == []


@pytest.mark.slow
def test_the_others_wait_for_the_first_longer_than_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower has its own GROUP_TIMEOUT, so this one is shortened where it is used: in both processes."""
    monkeypatch.setattr(ranks, "follow_rank", follow_with_short_timeout)
    monkeypatch.setattr(ranks, "GROUP_TIMEOUT", timedelta(seconds=3))
    trainer = Trainer(SHORT, corpus(), tmp_path, HOW)
    with run_ranks(trainer, 2):
        trainer.run(lambda point: time.sleep(5 if point.step == HOW.log_steps else 0))
    assert trainer.step == SHORT.steps


def follow_with_short_timeout(*arguments: Any) -> None:
    ranks.GROUP_TIMEOUT = timedelta(seconds=3)
    follow_rank(*arguments)


def test_a_process_that_is_killed_before_it_joins_ends_the_training_at_once(tmp_path: Path) -> None:
    trainer = Trainer(SHORT, corpus(), tmp_path, HOW)
    pid = os.getpid()

    def kill() -> None:
        while not (found := followers(pid)):
            time.sleep(0.01)
        found[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    began = time.monotonic()
    with pytest.raises(LostProcessError, match=r"of the 3 .* ended \(signal 9\)") as raised, run_ranks(trainer, 3):
        raise AssertionError("the group was formed")
    killer.join()
    assert time.monotonic() - began < GROUP_TIMEOUT.total_seconds()
    assert classify_failure(raised.value) == "lost"
    assert trainer.step == 0
    assert followers() == []


def test_the_error_of_a_process_that_cannot_join_is_the_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "write_follower", lambda follower, folder: (folder / FOLLOWER_FILE).write_bytes(b"."))
    trainer = Trainer(SHORT, corpus(), tmp_path, HOW)
    with pytest.raises(LostProcessError, match="UnpicklingError"), run_ranks(trainer, 2):
        raise AssertionError("the group was formed")
    assert followers() == []


@pytest.mark.slow
def test_the_others_end_when_the_first_is_killed(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        trainer = Trainer(replace(SHORT, steps=10**6), corpus(), tmp_path, HOW)
        with run_ranks(trainer, 2):
            trainer.run(lambda point: (tmp_path / "begun").touch())
        os._exit(0)
    while not (tmp_path / "begun").exists():
        time.sleep(0.1)
    [follower] = followers(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    follower.wait(20)


def test_a_follower_maps_the_arrays_of_a_corpus(tmp_path: Path) -> None:
    large, small = np.arange(20_000), np.arange(3)
    np.save(tmp_path / "mapped.npy", large + 1)
    mapped = np.load(tmp_path / "mapped.npy", mmap_mode="r")
    made = [large, large, small, mapped, mapped[5:]]
    (tmp_path / "follower").mkdir()
    ranks.write_follower(made, tmp_path / "follower")  # type: ignore[arg-type]
    read: Any = ranks.read_follower(tmp_path / "follower")
    assert all(np.array_equal(one, other) for one, other in zip(made, read, strict=True))
    assert [isinstance(one, np.memmap) for one in read] == [True, True, False, True, True]
    assert read[3].filename == tmp_path / "mapped.npy"
    assert len(list((tmp_path / "follower").glob("*.npy"))) == 2


def run_two_nodes(folder: Path, until: int, *options: str, devices: int = 1) -> list[subprocess.Popen[bytes]]:
    """Start the commands of a Slurm job on two nodes, here as two nodes of one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={devices}",
               "--max-restarts=0", "-m", "tests.models.torchrun_training", str(folder), str(until),
               *options]  # fmt: skip
    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)}
    folder.mkdir(exist_ok=True)
    return [
        subprocess.Popen(command, env={**build_child_environment(), **place, "PET_NODE_RANK": str(node)})
        for node in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ends", [(SHORT.steps,), (0, 5, 9, SHORT.steps)])
def test_two_nodes_train_as_one_process(ends: tuple[int, ...], tmp_path: Path) -> None:
    """Also after both have stopped, and after the first had nothing to do."""
    for until in ends:
        assert [node.wait(300) for node in run_two_nodes(tmp_path / "two", until)] == [0, 0]
    trainer = Trainer(SHORT, corpus(), tmp_path / "two", HOW)
    curve = [loss for point in trainer.curve for loss in (point.loss, point.heldout_loss) if loss is not None]
    assert curve == pytest.approx(losses(tmp_path / "one", 1), abs=1e-5)
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["state.pt"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_two_nodes_train_a_sharded_model_as_one_process(devices: int, tmp_path: Path) -> None:
    """FSDP2 over the processes of both nodes. The second launch continues from the first one's whole tensors."""
    for until in (7, SHORT.steps):
        nodes = run_two_nodes(tmp_path / "two", until, "fsdp", devices=devices)
        assert [node.wait(300) for node in nodes] == [0, 0]
    trainer = Trainer(SHORT, corpus(), tmp_path / "two", HOW)
    curve = [loss for point in trainer.curve for loss in (point.loss, point.heldout_loss) if loss is not None]
    assert curve == pytest.approx(losses(tmp_path / "one", 1), abs=1e-5)


def test_more_devices_than_there_are_is_refused() -> None:
    check_device_count("cpu", 1)
    with pytest.raises(BadInputError, match="this machine has"):
        check_device_count("cpu", 10_000)
    with pytest.raises(BadInputError, match="cuda:0"):
        check_device_count("cuda:0", 2)
    if not torch.cuda.is_available():
        with pytest.raises(BadInputError, match="0 CUDA devices"):
            check_device_count("cuda", 2)
