"""Data-parallel training: N processes, one per device, each of which takes a share of every batch; gradients are
summed.

Rank 0 is the process of the run: only it writes states, measures and reports. The other processes have the same model
and follow it step by step. Batch k is the same for any number of processes, so losses agree to rounding, and a training
resumes with any number.
"""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from chessreg.models.training import LostProcessError, explain_lost_process

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import ProcessContext

    from chessreg.models.training import Trainer, TrainerOptions

JOIN_TIMEOUT = timedelta(minutes=5)  # for the group to form, once every process is ready
GROUP_TIMEOUT = timedelta(hours=6)  # rank 0 may measure the model while the other processes wait
READY_POLL_S = 0.05


@contextmanager
def run_ranks(trainer: Trainer, devices: int) -> Iterator[None]:
    """Make the trainer rank 0 of `devices` processes inside the block; with 1 nothing is started.

    Raises LostProcessError if one of the processes ends.
    """
    if devices == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="chessreg-ranks-") as name:
        folder = Path(name)
        own = replace(trainer.options, devices=devices)
        write_corpus(trainer.corpus, folder)
        arguments = (folder, type(trainer), trainer.config, trainer.folder, own, torch.get_num_threads() // devices)
        followers = torch.multiprocessing.start_processes(
            follow_rank, arguments, nprocs=devices - 1, join=False, daemon=True, start_method="spawn"
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(max(1, threads // devices))
        trainer.options = own
        try:
            store = open_store(folder, own)
            wait_until_ready(followers, store, own)
            join_group(store, own)
            yield
        finally:
            torch.set_num_threads(threads)
            for process in followers.processes:
                process.terminate()
                process.join()
            if dist.is_initialized():
                dist.destroy_process_group()


def open_store(folder: Path, options: TrainerOptions) -> dist.Store:
    """Return the key-value store, a file, through which the processes find each other."""
    return dist.FileStore(str(folder / "rendezvous"), options.devices)


def wait_until_ready(followers: ProcessContext, store: dist.Store, options: TrainerOptions) -> None:
    """Wait until every other process has built its trainer. Raises LostProcessError as soon as one of them has ended.

    Forming the group does not notice such a process: it waits for it until its timeout.
    """
    keys = [ready_key(rank) for rank in range(1, options.devices)]
    while not store.check(keys):
        ended = connection.wait([process.sentinel for process in followers.processes], READY_POLL_S)
        for process, error_file in zip(followers.processes, followers.error_files, strict=True):
            if process.sentinel in ended:
                process.join()
                raise LostProcessError(options.devices, describe_end(process.exitcode, Path(error_file)))


def describe_end(exit_code: int, error_file: Path) -> str:
    """Return the error that torch wrote to `error_file` for a process, or its exit status if there is none."""
    if error_file.exists():
        traceback: str = pickle.loads(error_file.read_bytes())
        return traceback.strip().splitlines()[-1]
    return f"signal {-exit_code}" if exit_code < 0 else f"exit status {exit_code}"


def ready_key(rank: int) -> str:
    """Return the key that process `rank` sets when it can join the group."""
    return f"ready-{rank}"


def join_group(store: dist.Store, options: TrainerOptions) -> None:
    """Join the group of processes. Raises LostProcessError if the other processes do not join."""
    backend = "nccl" if options.device.startswith("cuda") else "gloo"
    with explain_lost_process(options.devices):
        dist.init_process_group(
            backend, store=store, rank=options.rank, world_size=options.devices, timeout=JOIN_TIMEOUT
        )
    dist.distributed_c10d._set_pg_timeout(GROUP_TIMEOUT)


def follow_rank(
    number: int,
    folder: Path,
    trainer_type: type[Trainer],
    config: Any,
    state: Path,
    options: TrainerOptions,
    threads: int,
) -> None:
    """Run as rank `number` + 1 until the training ends. Ends when rank 0 ends for any reason; Ctrl-C reaches only rank
    0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(max(1, threads))
    device = f"cuda:{number + 1}" if options.device.startswith("cuda") else options.device
    trainer = trainer_type(config, read_corpus(folder), state, replace(options, rank=number + 1, device=device))
    store = open_store(folder, trainer.options)
    store.set(ready_key(trainer.options.rank), "")
    join_group(store, trainer.options)
    trainer.follow()


def exit_with_parent(parent: int) -> None:
    """Exit this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def write_corpus(corpus: Any, folder: Path) -> None:
    """Write a corpus so that the other processes can map its arrays from files and share the memory."""
    arrays = {name: value for name, value in vars(corpus).items() if isinstance(value, np.ndarray)}
    for name, value in arrays.items():
        np.save(folder / f"{name}.npy", value)
    rest = {name: value for name, value in vars(corpus).items() if name not in arrays}
    (folder / "corpus.pickle").write_bytes(pickle.dumps((type(corpus), list(arrays), rest)))


def read_corpus(folder: Path) -> Any:
    """Return the corpus written by `write_corpus`."""
    kind, arrays, rest = pickle.loads((folder / "corpus.pickle").read_bytes())
    corpus = object.__new__(kind)
    vars(corpus).update(rest, **{name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays})
    return corpus
