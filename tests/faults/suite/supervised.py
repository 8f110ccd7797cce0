"""A supervisor as an actor, whose shards are forks too: the real loop, the real worker, real pids and signals."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors import Fault, Moments, arm, leave, limit, talk_to
from homes import Home

from chessreg.scheduling import supervisor, worker
from chessreg.scheduling.executors import Submission
from chessreg.scheduling.executors.local import LocalExecutor, ResourceSlot, make_process_handle

IDLE = 0.15
NOT_BEGUN = 3


class Forked:
    """The part of a child's interface that LocalExecutor needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkingExecutor(LocalExecutor):
    """The local executor; its works are forks of the supervisor instead of fresh interpreters."""

    def __init__(self, let_go: Callable[[], None], fault: Fault | None, victim: int, moments: Moments) -> None:
        super().__init__(read_gpu_memory=list, grace=5.0)
        self.slots.cores = 4
        self._let_go, self._fault, self._victim, self._moments = let_go, fault, victim, moments

    def _start_process(self, work: Submission, slot: ResourceSlot) -> str:
        order = worker.read_json_or_none(work.folder / "work.json") or {}
        fault = self._fault if order["shard"] == self._victim and order["try"] == 1 else None
        self._let_go()  # no connection to a database is taken over into another process
        pid = os.fork()
        if not pid:
            _work(work, slot, fault, self._moments)
        handle = make_process_handle(pid, work.log, slot)
        self._children[handle] = Forked(pid)  # type: ignore[assignment]
        self.slots.take(handle, slot)
        return handle


def _work(work: Submission, slot: ResourceSlot, fault: Fault | None, moments: Moments) -> None:
    code = 1
    try:
        os.setsid()
        os.closerange(3, 1024)  # as Popen does: the supervisor's lock is the supervisor's
        limit(resource.RLIM_INFINITY)
        os.environ.update({**work.env, **slot.env})
        os.chdir(work.cwd)
        talk_to(work.log)
        sys.argv = list(work.argv[2:])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        if fault:
            arm(fault, moments)
        code = worker.main(Path(work.argv[-1]))
    finally:
        leave(code)


def supervise(
    home: Home, fault: Fault | None = None, victim: int = -1, moments: Moments | None = None, cold: bool = False
) -> int:
    """Be the supervisor of this home until there is nothing to do. A fault strikes the first try of shard `victim`.

    `cold`: works are started as they are outside these rounds.
    """
    os.environ["CHESSREG_REGISTRY"] = home.url
    os.environ["OMP_NUM_THREADS"] = "1"
    supervisor.LOOP_INTERVAL_S, supervisor.OFFER_INTERVAL_S, supervisor.RETRY_PAUSE_S = 0.02, 0.1, 0.05
    supervisor.FULL_DISK_TIMEOUT_S = 0.2  # a full disk of one process does not show in its free space
    made: list[supervisor.Supervisor] = []
    real = supervisor.Supervisor

    def make(*given: Any, **named: Any) -> supervisor.Supervisor:
        made.append(real(*given, **named))
        return made[-1]

    def let_go() -> None:
        made[-1].database.reader.dispose()
        made[-1].database._writer.dispose()

    def executor(on: str) -> LocalExecutor:
        if cold:
            return LocalExecutor(read_gpu_memory=list, grace=5.0)
        return ForkingExecutor(let_go, fault, victim, moments or Moments())

    supervisor.Supervisor, supervisor.open_executor = make, executor  # type: ignore[misc, assignment]
    try:
        return supervisor.main(home.folder / "store", IDLE)
    except Exception:
        if made:
            raise
        return NOT_BEGUN  # no room, or no database, from the first moment on: the starting process reports it
