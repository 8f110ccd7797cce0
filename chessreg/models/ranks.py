"""Data-parallel training: N processes, one per device, each of which takes a share of every batch; gradients are
summed.

Rank 0 is the process of the run: only it writes states, measures and reports. The other processes have the same model
and follow it step by step. Batch k is the same for any number of processes, so losses agree to rounding, and a training
resumes with any number.

Before each step the other processes wait for rank 0's command in a key-value store, for as long as rank 0 lives. In a
collective operation, all processes compute the same step, so a short timeout shows that one of them is gone.
"""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from chessreg.errors import ChessregError, get_first_line
from chessreg.models.devices import check_device_count

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import ProcessContext

GROUP_TIMEOUT = timedelta(minutes=2)  # of a collective operation, and for the group to form
COMMAND_TIMEOUT = timedelta(days=365)  # rank 0 may measure the model for hours; its end closes the connection
READY_POLL_S = 0.05
READY_TIMEOUT = timedelta(minutes=30)  # on several machines, for every process to load the model
END_TIMEOUT_S = 5.0  # for a process to end after SIGTERM, before SIGKILL
KEPT_COMMANDS = 1000  # more than the steps that rank 0 can be ahead
MAPPED_BYTES = 1 << 16  # larger arrays are stored in files, which the processes map
NEXT_STEP, END = "step", "end"  # commands


class LostProcessError(ChessregError):
    """Raised when one of the `size` processes of a training has ended. `cause` is the attempt's cause."""

    cause = "lost"

    def __init__(self, size: int, reason: str) -> None:
        message = f"one of the {size} processes of this training has ended ({reason[:200]})"
        super().__init__(message, "resume the run: it continues from the last saved state")


@contextmanager
def explain_lost_process(size: int) -> Iterator[None]:
    """Convert RuntimeError inside the block to LostProcessError."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(size, get_first_line(error)) from error


@contextmanager
def explain_lost_collective(size: int) -> Iterator[None]:
    """Convert errors of collective operations inside the block to LostProcessError.

    Operations of a sharded model are inside its passes, whose other errors are unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise LostProcessError(size, get_first_line(error)) from error
        raise


@dataclass
class Ranks:
    """The group of processes, as seen by process `rank` of `size`."""

    rank: int
    size: int
    store: dist.Store
    commands: int = 0

    def send(self, command: str) -> None:
        """Send a command from rank 0 to all other processes."""
        self.commands += 1
        self.store.set(f"command-{self.commands}", command)
        self.store.delete_key(f"command-{self.commands - KEPT_COMMANDS}")

    def receive(self) -> str:
        """Return rank 0's next command. Raises LostProcessError if rank 0 has ended."""
        self.commands += 1
        with explain_lost_process(self.size):
            command: bytes = self.store.get(f"command-{self.commands}")
        return command.decode()

    def sum(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over all processes. Raises LostProcessError if one of them has ended."""
        with explain_lost_process(self.size):
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def find_largest(self, number: int, device: str) -> int:
        """Return the largest of the processes' numbers. Raises LostProcessError if one of them has ended."""
        largest = torch.tensor(number, device=device)
        with explain_lost_process(self.size):
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)


class Follower(Protocol):
    """The work of each process but rank 0, as a picklable function: build a trainer on `device`, return its loop."""

    def __call__(self, rank: int, device: str) -> Callable[[Ranks], None]: ...


class Leader(Protocol):
    """A training that several processes can share."""

    @property
    def device(self) -> str: ...

    @property
    def folder(self) -> Path:
        """A folder of the run that all processes can read."""

    def make_follower(self) -> Follower: ...

    def connect(self, ranks: Ranks) -> None:
        """Share all further steps with these processes."""


@contextmanager
def run_ranks(leader: Leader, devices: int) -> Iterator[None]:
    """Make the training rank 0 of `devices` processes inside the block; with 1 nothing is started.

    In a process that torchrun started, the group is that of torchrun, with `devices` processes per machine.

    Raises LostProcessError if one of the processes ends or stops responding, and BadInputError for more GPUs than
    this machine has.
    """
    if is_started_by_torchrun():
        with lead_torchrun_group(leader):
            yield
        return
    if devices == 1:
        yield
        return
    if leader.device.startswith("cuda"):
        check_device_count(leader.device, devices)
    with tempfile.TemporaryDirectory(prefix="chessreg-ranks-") as name, share_threads(devices) as threads:
        folder = Path(name)
        write_follower(leader.make_follower(), folder)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        arguments = (folder, store.port, devices, leader.device, threads)
        followers = torch.multiprocessing.start_processes(
            follow_rank, arguments, nprocs=devices - 1, join=False, daemon=True, start_method="spawn"
        )
        try:
            wait_until_ready(followers, store, devices)
            ranks = Ranks(0, devices, store)
            join_group(ranks, leader.device)
            leader.connect(ranks)
            with end_followers(ranks):
                yield
        except LostProcessError as error:
            if reason := find_reason(followers):
                raise LostProcessError(devices, reason) from error
            raise
        finally:
            end_processes(followers)
            if dist.is_initialized():
                dist.destroy_process_group()


@contextmanager
def end_followers(ranks: Ranks) -> Iterator[None]:
    """Signal the other processes to end after the block, except if one of them is lost."""
    try:
        yield
    except LostProcessError:
        raise
    except BaseException:
        with suppress(RuntimeError):
            ranks.send(END)
        raise
    ranks.send(END)


@contextmanager
def share_threads(devices: int) -> Iterator[int]:
    """Set this process's threads to its share during the block; yields their number."""
    threads = torch.get_num_threads()
    share = max(1, threads // devices)
    torch.set_num_threads(share)
    try:
        yield share
    finally:
        torch.set_num_threads(threads)


def wait_until_ready(followers: ProcessContext, store: dist.Store, size: int) -> None:
    """Wait until every other process has built its trainer. Raises LostProcessError as soon as one of them has ended.

    Forming the group does not notice such a process: it waits for it until its timeout.
    """
    keys = [ready_key(rank) for rank in range(1, size)]
    while not store.check(keys):
        if connection.wait([process.sentinel for process in followers.processes], READY_POLL_S):
            raise LostProcessError(size, find_reason(followers) or "it ended before the first step")


def find_reason(followers: ProcessContext) -> str | None:
    """Return why the first process that failed has ended: its error, or its exit status. None: all of them live."""
    ended_sentinels = connection.wait([process.sentinel for process in followers.processes], 1.0)
    for process in followers.processes:
        if process.sentinel in ended_sentinels:  # it closes while the process ends, before there is an exit status
            process.join(1.0)
    for process, error_file in zip(followers.processes, followers.error_files, strict=True):
        if Path(error_file).exists():
            traceback: str = pickle.loads(Path(error_file).read_bytes())
            return traceback.strip().splitlines()[-1]
        if process.exitcode:
            code = process.exitcode
            return f"signal {-code}" if code < 0 else f"exit status {code}"
    return None


def end_processes(followers: ProcessContext) -> None:
    """End the other processes, also those that are stopped or hang."""
    for process in followers.processes:
        process.terminate()
    for process in followers.processes:
        process.join(END_TIMEOUT_S)
        process.kill()
        process.join()


def ready_key(rank: int) -> str:
    """Return the key that process `rank` sets when it can join the group."""
    return f"ready-{rank}"


def join_group(ranks: Ranks, device: str) -> None:
    """Join the group of processes. Raises LostProcessError if the other processes do not join."""
    backend = "nccl" if device.startswith("cuda") else "gloo"
    with explain_lost_process(ranks.size):
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", ranks.store),
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=GROUP_TIMEOUT,
        )
    ranks.store.set_timeout(COMMAND_TIMEOUT)


def follow_rank(number: int, folder: Path, port: int, size: int, device: str, threads: int) -> None:
    """Run as rank `number` + 1 of `size` processes until the training ends, or rank 0 ends for any reason.

    `folder` holds the pickled follower, and `port` is that of rank 0's store on this machine. Ctrl-C reaches only rank
    0.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(threads)
    rank = number + 1
    if device.startswith("cuda"):
        device = f"cuda:{rank}"
        torch.cuda.set_device(device)
    follow = read_follower(folder)(rank, device)
    ranks = Ranks(rank, size, dist.TCPStore("127.0.0.1", port, is_master=False))
    ranks.store.set(ready_key(rank), "")
    join_group(ranks, device)
    follow(ranks)


def exit_with_parent(parent: int) -> None:
    """Exit this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


# -- processes that torchrun starts, on several machines ---------------------------------------------------------------


FOLLOWER_KEY = "follower"  # the folder of the follower, or nothing if the run ends without one


def is_started_by_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def lead_torchrun_group(leader: Leader) -> Iterator[None]:
    """Make the training rank 0 of the processes that torchrun started, inside the block."""
    store, rank, size = next(dist.rendezvous("env://"))
    ranks = Ranks(rank, size, store)
    for old_folder in leader.folder.glob("ranks-*"):  # of an attempt that was killed
        shutil.rmtree(old_folder, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix="ranks-", dir=leader.folder) as name,
        share_threads(int(os.environ["LOCAL_WORLD_SIZE"])),
    ):
        write_follower(leader.make_follower(), Path(name))
        store.set(FOLLOWER_KEY, name)
        try:
            with explain_lost_process(size):
                store.wait([ready_key(other) for other in range(1, size)], READY_TIMEOUT)
            join_group(ranks, leader.device)
            leader.connect(ranks)
            with end_followers(ranks):
                yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def release_torchrun_group() -> None:
    """End the other processes that torchrun started if rank 0 ends without having led them."""
    store, _, _ = next(dist.rendezvous("env://"))
    store.compare_set(FOLLOWER_KEY, "", "")


def follow_torchrun_group(threads: int, device: str) -> None:
    """Follow rank 0, until it ends, as the process whose number torchrun set. `device`: cpu, or auto and cuda for the
    GPU with its number on this machine."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 decides when to stop
        signal.signal(number, signal.SIG_IGN)
    store, rank, size = next(dist.rendezvous("env://"))
    store.set_timeout(COMMAND_TIMEOUT)
    name = store.get(FOLLOWER_KEY).decode()
    if not name:
        return
    torch.set_num_threads(max(1, threads // int(os.environ["LOCAL_WORLD_SIZE"])))
    if device != "cpu" and torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    else:
        device = "cpu"
    follow = read_follower(Path(name))(rank, device)
    ranks = Ranks(rank, size, store)
    store.set(ready_key(rank), "")
    join_group(ranks, device)
    follow(ranks)


# -- the follower as files --------------------------------------------------------------------------------------------


class ArrayPickler(pickle.Pickler):
    """Writes large arrays to files of `folder`, which all processes map instead of holding copies. Arrays that are
    mapped already are written as the place in their file."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self.folder, self.arrays = folder, dict[int, np.ndarray]()

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """Return the file of a large array, written once, or the place of a memory map. None: pickle the value."""
        if isinstance(value, np.memmap) and value.filename and isinstance(value.base, mmap.mmap):
            return value.filename, value.dtype, value.offset, value.shape
        if not isinstance(value, np.ndarray) or value.nbytes < MAPPED_BYTES or value.dtype.hasobject:
            return None
        name = f"{id(value)}.npy"
        if id(value) not in self.arrays:
            self.arrays[id(value)] = value  # keeps the id from being used again
            np.save(self.folder / name, value)
        return (name,)


class ArrayUnpickler(pickle.Unpickler):
    """Reads the objects that ArrayPickler writes."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self.folder = folder

    def persistent_load(self, pid: tuple[Any, ...]) -> np.ndarray:
        """Return the array at `pid` as a read-only memory map."""
        name, *mapping = pid
        if mapping:
            from store.corpora import disable_read_ahead

            dtype, offset, shape = mapping
            return disable_read_ahead(np.memmap(name, dtype, "r", offset, shape))
        array: np.ndarray = np.load(self.folder / name, mmap_mode="r")
        return array


FOLLOWER_FILE = "follower.pickle"


def write_follower(follower: Follower, folder: Path) -> None:
    """Write a follower to a folder, for `read_follower`."""
    with (folder / FOLLOWER_FILE).open("wb") as file:
        ArrayPickler(file, folder).dump(follower)


def read_follower(folder: Path) -> Follower:
    """Return the follower written by `write_follower`."""
    with (folder / FOLLOWER_FILE).open("rb") as file:
        follower: Follower = ArrayUnpickler(file, folder).load()
    return follower
