"""Executors: run attempts at jobs. Each has exactly four methods: submit, poll, cancel and logs.

Order, dependencies, retries and ingest belong to the supervisor (`scheduling.supervisor`), the only caller of
executors. An executor starts `Submission.argv`, a complete command, and reports its state. It does not use kinds, the
registry or results. `tests/scheduling/executors/test_conformance.py` specifies the behavior of every executor.
"""

from __future__ import annotations

import importlib
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from chessreg.errors import BadInputError
from chessreg.named import NameRegistry
from chessreg.registry.causes import Cause

EXECUTORS: NameRegistry[str] = NameRegistry("executor", "--on local, slurm:PROFILE, ray:ADDRESS")
"""Executor name in `--on` → its class, which is called with the text after the colon."""
EXECUTORS["local"] = "chessreg.scheduling.executors.local:LocalExecutor"
EXECUTORS["slurm"] = "chessreg.scheduling.executors.slurm:SlurmExecutor"
EXECUTORS["ray"] = "chessreg.scheduling.executors.ray:RayExecutor"


@dataclass(frozen=True)
class ResourceNeeds:
    """The resources that one shard needs."""

    device: str = "auto"  # execution option: auto (a GPU if available), cpu, cuda, cuda:N
    threads: int = 0  # execution option; 0: the machine's cores divided by `shards`
    shards: int = 1  # number of shards that run in parallel
    share_gpu: bool = False  # whether it may share a GPU with other sharing jobs
    gpu_memory: float = 0.0  # free GiB required; 0: nine tenths of an exclusive GPU, none of a shared one
    devices: int = 1  # execution option: GPUs that one shard uses together, on each of its machines
    nodes: int = 1  # execution option: machines that one shard uses together


def require_one_node(needs: ResourceNeeds) -> None:
    """Raise BadInputError for a shard on several machines, which only Slurm provides."""
    if needs.nodes > 1:
        raise BadInputError(f"--nodes {needs.nodes} requires Slurm", "chessreg launch … --on slurm")


@dataclass(frozen=True)
class Submission:
    """One attempt at one job, ready to start."""

    job_id: UUID
    group_id: UUID  # submissions of one group may become one job array
    argv: tuple[str, ...]
    folder: Path  # the job's folder in the store
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)  # added to the executor's environment
    needs: ResourceNeeds = ResourceNeeds()
    name: str = "chessreg"  # for job lists of other systems, such as "probe 3f2a1c 0/4"

    @property
    def log(self) -> Path:
        """The file to which the command's output is appended."""
        return self.folder / "log.txt"


class Placement(NamedTuple):
    """The place that a cluster's scheduler has given a submission, for display. Empty texts are unknown."""

    job: str  # the scheduler's job id
    partition: str = ""
    node: str = ""  # nodes, separated as the scheduler does
    reason: str = ""  # why it waits, in the scheduler's words
    starts_at: str = ""  # expected start: ISO 8601, UTC


class SubmissionStatus(NamedTuple):
    """The state of a submission as its executor sees it.

    `cause` and `message` add details to the exit code: KILLED by a signal, OOM, PREEMPTED, WALLTIME, LOST. The
    supervisor reads the worker's own report (`outcome.json` in its folder). `placement` is set while a submission waits
    or runs in a cluster.
    """

    state: Literal["waiting", "running", "ended"]
    exit_code: int | None = None  # 128 + N after signal N
    cause: Cause | None = None
    message: str | None = None
    placement: Placement | None = None


def get_exit_status(code: int) -> SubmissionStatus:
    """Return the status for an exit code. A negative code is a signal number."""
    if code >= 0:
        return SubmissionStatus("ended", code, Cause.FINISHED if code == 0 else Cause.FAILED)
    name = signal.Signals(-code).name
    if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return SubmissionStatus("ended", 128 - code, Cause.KILLED, f"killed by {name}")
    return SubmissionStatus("ended", 128 - code, Cause.FAILED, f"ended by {name}")


class Executor(Protocol):
    """The interface of executors. It is used from one thread of one process; a new object on the same store must
    continue.

    The constructor raises BadInputError or NotFoundError, with a command that helps, if the executor cannot work on
    this machine. `chessreg launch` calls it before anything is queued.
    """

    def submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """Start the submissions that fit, in this order, and return job id → handle. The others must be submitted again
        later.

        With a handle, any later process can poll, cancel and find the logs. The supervisor passes the shards of one
        launch at a time. Raises ChessregError if they can never start; the jobs then fail with its message.
        """
        ...

    def poll(self, handles: Collection[str]) -> dict[str, SubmissionStatus]:
        """Return handle → status. Polling again gives the same result.

        A submission that no longer exists has ended with cause LOST. A handle is left out while its status is unknown
        (the batch system does not respond): no response does not prove that a job has ended.
        """
        ...

    def cancel(self, handle: str) -> None:
        """Ask a submission to end (SIGTERM first), and force it after a delay. Called until `poll` reports the end.

        Does nothing for a submission that has ended.
        """
        ...

    @staticmethod
    def logs(handle: str) -> Path | None:
        """Return the log file of a handle, or None. Must work without the cluster and its tools."""
        ...


def open_executor(on: str) -> Executor:
    """Return the executor that `--on` names: `local`, `slurm:PROFILE`, `ray`, `ray:ADDRESS`.

    Raises the errors of its class, and BadInputError for a colon without a value.
    """
    word, colon, rest = on.partition(":")
    if word in EXECUTORS and colon and not rest.strip():
        raise BadInputError(f"--on {word}: requires a value after the colon", f"--on {word}; {EXECUTORS.example}")
    executor: Executor = load_executor_class(word)(rest)
    return executor


def load_executor_class(on: str) -> type[Any]:
    """Return the class of the executor that `on` names. Raises NotFoundError for an unknown one."""
    module, _, name = EXECUTORS[on.partition(":")[0]].partition(":")
    executor_class: type[Any] = getattr(importlib.import_module(module), name)
    return executor_class
