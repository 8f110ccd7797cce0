"""Runs submissions on this machine, each in its own process group and session, on slots of GPUs and cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from chessreg.cgroups import count_oom_kills
from chessreg.errors import BadInputError, ChessregError
from chessreg.registry.causes import Cause
from chessreg.registry.machine import query_gpus
from chessreg.scheduling.executors import (
    ResourceNeeds,
    Submission,
    SubmissionStatus,
    get_exit_status,
    require_one_node,
)
from store.files import parse_json
from store.process import get_process_start, read_boot_id

GIB_BYTES = float(2**30)
KILL_GRACE_S = 20.0  # from SIGTERM to SIGKILL, so that a batch can finish


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU in GiB. `index` follows the PCI bus, as with CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    total: float  # GiB
    free: float  # GiB


def read_gpus() -> list[GpuMemory]:
    """Return the GPUs of this machine that report their memory."""
    return [
        GpuMemory(
            gpu["index"], gpu["memory_bytes"] / GIB_BYTES, (gpu["memory_bytes"] - gpu["memory_used_bytes"]) / GIB_BYTES
        )
        for gpu in query_gpus()
        if gpu["memory_bytes"] is not None and gpu["memory_used_bytes"] is not None
    ]


class LocalExecutor:
    """Runs processes on this machine. Handles contain pid, start time and boot, so a reused pid is never mistaken."""

    def __init__(
        self,
        argument: str = "",
        *,
        read_gpu_memory: Callable[[], list[GpuMemory]] = read_gpus,
        grace: float = KILL_GRACE_S,
    ) -> None:
        if argument:
            raise BadInputError(f"--on local accepts no value after a colon, not {argument!r}", "--on local")
        self.slots = MachineSlots(count_cores())
        self._read_gpu_memory, self._grace = read_gpu_memory, grace
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._end_statuses: dict[str, SubmissionStatus] = {}
        self._cancel_times: dict[str, float] = {}  # handle → when SIGTERM was sent
        self._oom_kills = count_oom_kills()

    # -- interface ------------------------------------------------------------------------------------------------

    def submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """Start the submissions that have a free slot on this machine, and return job id → handle."""
        handles: dict[UUID, str] = {}
        gpu_readings = self._read_gpu_memory() if any(work.needs.device != "cpu" for work in works) else []
        for work in works:
            slot = self.slots.find(work.needs, gpu_readings)
            if slot is not None:
                handles[work.job_id] = self._start_process(work, slot)
        return handles

    def poll(self, handles: Collection[str]) -> dict[str, SubmissionStatus]:
        return {handle: self._end_statuses.get(handle) or self._read_status(handle) for handle in handles}

    def cancel(self, handle: str) -> None:
        """Send SIGTERM to the process, and SIGKILL to its group when called again after the grace period."""
        process = _parse_handle(handle)
        if handle in self._end_statuses or process is None or not _is_alive(process):
            return
        now = time.monotonic()
        first_cancel_s = self._cancel_times.setdefault(handle, now)
        with suppress(ProcessLookupError):
            if now == first_cancel_s:
                os.kill(process["pid"], signal.SIGTERM)  # only the leader, since dead children look like faults
            elif now - first_cancel_s > self._grace:
                os.killpg(process["pid"], signal.SIGKILL)

    @staticmethod
    def logs(handle: str) -> Path | None:
        process = _parse_handle(handle)
        path = Path(process["log"]) if process else None
        return path if path and path.exists() else None

    # -- implementation -------------------------------------------------------------------------------------------

    def _start_process(self, work: Submission, slot: ResourceSlot) -> str:
        """Start the command of `work` with the resources of `slot`, and return its handle.

        Raises ChessregError if the program cannot be started.
        """
        work.folder.mkdir(parents=True, exist_ok=True)
        try:
            with work.log.open("ab") as log:
                child = subprocess.Popen(
                    work.argv,
                    cwd=work.cwd,
                    env={**os.environ, **work.env, **slot.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            message = f"cannot start {work.argv[0]} in {work.cwd}: {error.strerror}"
            raise ChessregError(message, "check the folder and the Python") from error
        handle = make_process_handle(child.pid, work.log, slot)
        self._children[handle] = child
        self.slots.take(handle, slot)
        return handle

    def _read_status(self, handle: str) -> SubmissionStatus:
        """Return the status of a process. When it has ended, kill the rest of its process group."""
        process = _parse_handle(handle)
        if process is None:
            return SubmissionStatus("ended", None, Cause.LOST, "its handle cannot be read")
        child = self._children.get(handle)
        if child is not None:
            if not has_exited(child):
                return SubmissionStatus("running")
            kill_group(child.pid)
            return self._end(handle, self._judge_exit(child.wait()))
        if _is_alive(process):
            if not self.slots.has_slots_of(handle):  # started by an earlier supervisor
                self.slots.take(handle, ResourceSlot(tuple(process["gpus"]), process["threads"], process["shared"]))
            return SubmissionStatus("running")
        if (
            process["boot"] == read_boot_id() and get_process_start(process["pid"]) is None
        ):  # otherwise the pid was reused
            kill_group(process["pid"])
        return self._end(handle, SubmissionStatus("ended", None, Cause.LOST, "its process has ended"))

    def _end(self, handle: str, status: SubmissionStatus) -> SubmissionStatus:
        """Record the final status of a process, give its resources back, and return the status."""
        self.slots.give_back(handle)
        self._children.pop(handle, None)
        self._cancel_times.pop(handle, None)
        self._end_statuses[handle] = status
        return status

    def _judge_exit(self, code: int) -> SubmissionStatus:
        """Return the status of an exit code. SIGKILL while the kernel ran out of memory counts as OOM."""
        if code == -signal.SIGKILL and (now := count_oom_kills()) > self._oom_kills:
            self._oom_kills = now
            return SubmissionStatus("ended", 128 - code, Cause.OOM, "the kernel killed it: out of memory")
        return get_exit_status(code)


def has_exited(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended, without reaping it, so that its pid and process group are not reused yet."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def make_process_handle(pid: int, log: Path, slot: ResourceSlot) -> str:
    """Return the handle of a running process of this machine."""
    handle = {
        "pid": pid,
        "started": get_process_start(pid),
        "boot": read_boot_id(),
        "log": str(log),
        "gpus": slot.gpus,
        "threads": slot.threads,
        "shared": slot.is_shared,
    }
    return json.dumps(handle)


def _parse_handle(handle: str) -> dict[str, Any] | None:
    """Return the fields of a handle, or None if it is invalid."""
    try:
        process: dict[str, Any] = parse_json(handle)
        has_all_fields = {"pid", "started", "boot", "log", "gpus", "threads", "shared"} <= process.keys()
        return (
            process if has_all_fields and isinstance(process["pid"], int) and isinstance(process["log"], str) else None
        )
    except (ValueError, AttributeError):
        return None


def _is_alive(process: dict[str, Any]) -> bool:
    start_time = process["started"]
    return (
        start_time is not None and process["boot"] == read_boot_id() and get_process_start(process["pid"]) == start_time
    )


def kill_group(leader: int) -> None:
    """Kill the remaining processes in the session of a dead leader, such as an engine that it started."""
    import psutil

    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if process.pid != leader and os.getsid(process.pid) == leader:
                os.kill(process.pid, signal.SIGKILL)


def adopt_worker(process: dict[str, Any], log: Path) -> str:
    """Return a handle for a worker that another supervisor started, from its `process.json`. Its slot is unknown."""
    adopted_process = {key: process[key] for key in ("pid", "started")}
    return json.dumps(
        {**adopted_process, "boot": process["boot_id"], "log": str(log), "gpus": [], "threads": 1, "shared": False}
    )


# -- slots: allocation of GPUs and cores ------------------------------------------------------------------------------


EXCLUSIVE_MEMORY_FRACTION = 0.9  # of a GPU's memory that must be free for exclusive use


@dataclass(frozen=True)
class ResourceSlot:
    """The resources given to one submission: GPUs by index, possibly none, and CPU threads."""

    gpus: tuple[int, ...]
    threads: int
    is_shared: bool = False

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that limit a process to this slot."""
        gpu_list = ",".join(map(str, self.gpus))
        threads = str(self.threads)
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": gpu_list,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "CHESSREG_THREADS": threads,  # used as --threads by the worker, and recorded
            "CHESSREG_GPU": gpu_list,
        }


class MachineSlots:
    """The cores and GPUs of this machine and their holders. Cores are allocated only to submissions without a GPU."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._taken_slots: dict[str, ResourceSlot] = {}

    def find(self, needs: ResourceNeeds, gpus: Sequence[GpuMemory]) -> ResourceSlot | None:
        """Return a free slot, or None if the submission must wait. `gpus` is the current state of this machine's GPUs.

        Raises BadInputError if this machine can never provide one.
        """
        require_one_node(needs)
        wants_gpu = needs.device.startswith("cuda")
        if wants_gpu and not gpus:
            raise BadInputError(f"this machine has no GPU for --device {needs.device}", "--device cpu")
        if needs.device == "cpu" or not gpus:
            return self._find_cpu_slot(needs)
        _, _, number = needs.device.partition(":")
        if number and int(number) not in {gpu.index for gpu in gpus}:
            raise BadInputError(f"this machine has no GPU {number}", f"it has {len(gpus)}, counted from 0")
        largest_memory = max(gpu.total for gpu in gpus if not number or gpu.index == int(number))
        if needs.gpu_memory > largest_memory:
            raise BadInputError(
                f"no GPU of this machine has {needs.gpu_memory:g} GiB", f"the largest has {largest_memory:.0f} GiB"
            )
        if needs.devices > len(gpus):
            raise BadInputError(f"this machine has {len(gpus)} GPUs for --devices {needs.devices}", "lower --devices")
        free = [gpu.index for gpu in sorted(gpus, key=lambda gpu: -gpu.free) if self._is_gpu_sufficient(gpu, needs)]
        if number:
            free = [index for index in free if index == int(number)]
        if len(free) < needs.devices:
            return None
        indices = tuple(sorted(free[: needs.devices]))
        return ResourceSlot(indices, self._count_threads(needs, len(gpus) // needs.devices), needs.share_gpu)

    def take(self, holder: str, slot: ResourceSlot) -> None:
        self._taken_slots[holder] = slot

    def give_back(self, holder: str) -> None:
        self._taken_slots.pop(holder, None)

    def has_slots_of(self, holder: str) -> bool:
        return holder in self._taken_slots

    def _is_gpu_sufficient(self, gpu: GpuMemory, needs: ResourceNeeds) -> bool:
        slots_on_gpu = [slot for slot in self._taken_slots.values() if gpu.index in slot.gpus]
        if slots_on_gpu and not (needs.share_gpu and all(slot.is_shared for slot in slots_on_gpu)):
            return False
        needed_memory = needs.gpu_memory or (0.0 if needs.share_gpu else EXCLUSIVE_MEMORY_FRACTION * gpu.total)
        return gpu.free >= needed_memory

    def _find_cpu_slot(self, needs: ResourceNeeds) -> ResourceSlot | None:
        threads = self._count_threads(needs, needs.shards)
        used_threads = sum(slot.threads for slot in self._taken_slots.values() if not slot.gpus)
        return ResourceSlot((), threads) if used_threads + threads <= self.cores else None

    def _count_threads(self, needs: ResourceNeeds, side_by_side: int) -> int:
        return min(needs.threads or max(1, self.cores // max(side_by_side, 1)), self.cores)
