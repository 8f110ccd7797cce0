"""Executors: where tries at jobs run. Each has four verbs, submit, poll, cancel and logs, and nothing else.

Order, dependencies, retries and ingest belong to the supervisor (`scheduling.supervisor`), the only one who calls
an executor. An executor starts `Work.argv`, a complete command, and says what became of it; it knows no kinds, no
registry and no results. `tests/scheduling/executors/test_conformance.py` holds what every executor must do.
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
from chessreg.named import Registry
from chessreg.registry.tables import Cause

EXECUTORS: Registry[str] = Registry("executor", "--on local, slurm:PROFILE, ray:ADDRESS")
"""The word before the colon of `--on` → its class, called with what stands after the colon."""
EXECUTORS["local"] = "chessreg.scheduling.executors.local:LocalExecutor"
EXECUTORS["slurm"] = "chessreg.scheduling.executors.slurm:SlurmExecutor"
EXECUTORS["ray"] = "chessreg.scheduling.executors.ray:RayExecutor"


@dataclass(frozen=True)
class ResourceNeeds:
    """What one shard takes of a machine."""

    device: str = "auto"  # the execution option: auto (a GPU where there is one), cpu, cuda, cuda:N
    threads: int = 0  # the execution option; 0: the machine's cores divided by `shards`
    shards: int = 1  # how many of them are to run side by side
    share_gpu: bool = False  # may stand on a GPU with others that may
    gpu_memory: float = 0.0  # GiB that must be free on it; 0: an exclusive one wants nine tenths, a shared one nothing


@dataclass(frozen=True)
class Submission:
    """One try at one job, ready to start."""

    job_id: UUID
    group_id: UUID  # works of one group may become one array of a batch system
    argv: tuple[str, ...]
    folder: Path  # the job's, in the store; the command's output is appended to `log`
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)  # beside the executor's own environment
    needs: ResourceNeeds = ResourceNeeds()
    name: str = "chessreg"  # for lists of other systems: "probe 3f2a1c 0/4"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"


class Placement(NamedTuple):
    """Where a cluster's scheduler has put a work, for people; empty texts are not known."""

    job: str  # the scheduler's own id of it
    partition: str = ""
    node: str = ""  # that it runs on; several are separated as the scheduler does
    reason: str = ""  # why it waits, in the scheduler's words
    starts_at: str = ""  # when the scheduler expects to start it: ISO 8601, UTC


class SubmissionStatus(NamedTuple):
    """What an executor knows of a submitted work.

    `cause` and `message` say more than the exit code can: KILLED by a signal, OOM, PREEMPTED, WALLTIME, LOST. The
    worker's own word (`outcome.json` in its folder) is the supervisor's business. `placement`: of a work that waits or
    runs in a cluster.
    """

    state: Literal["waiting", "running", "ended"]
    exit_code: int | None = None  # 128 + N after signal N
    cause: Cause | None = None
    message: str | None = None
    placement: Placement | None = None


def status_of_exit(code: int) -> SubmissionStatus:
    """An exit status in words; negative: the signal."""
    if code >= 0:
        return SubmissionStatus("ended", code, Cause.FINISHED if code == 0 else Cause.FAILED)
    name = signal.Signals(-code).name
    if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return SubmissionStatus("ended", 128 - code, Cause.KILLED, f"killed by {name}")
    return SubmissionStatus("ended", 128 - code, Cause.FAILED, f"ended by {name}")


class Executor(Protocol):
    """The contract. Called from one thread of one process; a new object over the same store must carry on.

    Constructing one raises BadInputError or NotFoundError, with the command that helps, when it cannot work here;
    `chessreg launch` constructs it before anything is queued.
    """

    def submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """Start those for which there is room, in this order; returns job id → handle. The others wait their turn.

        A handle is a text with which any later process can poll, cancel and find the logs. The supervisor passes the
        shards of one launch at a time. Raises ChessregError when they can never start: those jobs fail with its words.
        """
        ...

    def poll(self, handles: Collection[str]) -> dict[str, SubmissionStatus]:
        """What became of each handle, in one go; asking again gives the same answer.

        A work that cannot be found any more has ended with cause LOST. A handle is left out when nothing is known of
        it for the moment (the batch system does not answer): silence is no proof of death.
        """
        ...

    def cancel(self, handle: str) -> None:
        """Ask it to end (SIGTERM first), and make it when it has not after a while. Called until `poll` says ended.

        Calling it for a work that has ended does nothing.
        """
        ...

    @staticmethod
    def logs(handle: str) -> Path | None:
        """Return the log file of a handle, None when there is none. Needs no cluster: a machine without its tools, or
        without the cluster, reads the log of a finished job too."""
        ...


def open_executor(on: str) -> Executor:
    """The executor that `--on` names: `local`, `slurm:PROFILE`, `ray`, `ray:ADDRESS`. Raises what its class does, and
    BadInputError for a colon with nothing after it."""
    word, colon, rest = on.partition(":")
    if word in EXECUTORS and colon and not rest.strip():
        raise BadInputError(f"--on {word}: has nothing after its colon", f"--on {word}; {EXECUTORS.example}")
    made: Executor = load_executor_class(word)(rest)
    return made


def load_executor_class(on: str) -> type[Any]:
    """Return the class of the executor that `on` names, without making one. Raises what EXECUTORS does for another."""
    module, _, name = EXECUTORS[on.partition(":")[0]].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found
