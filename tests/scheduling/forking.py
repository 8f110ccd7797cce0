"""The local executor with workers that are forks: seconds less than an interpreter that imports everything again."""

from __future__ import annotations

import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

from chessreg.scheduling import worker
from chessreg.scheduling.executors import Submission, SubmissionStatus
from chessreg.scheduling.executors.local import LocalExecutor, ResourceSlot, kill_group, make_process_handle

from ..forked import FORKED


def do(folder: Path, cwd: Path, env: dict[str, str], log: Path) -> None:
    """The work of `python -m chessreg.scheduling.worker`, in a separate session."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.exit(worker.main(folder / "work.json"))


class ForkingExecutor(LocalExecutor):
    """Real processes with real pids in separate sessions. Tests of executors and of `launch` begin interpreters."""

    def __init__(self) -> None:
        super().__init__(read_gpu_memory=list, grace=1.0)
        self.slots.cores = 4  # also on a machine with one
        self._forks: dict[str, BaseProcess] = {}

    def _start_process(self, work: Submission, slot: ResourceSlot) -> str:
        work.folder.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, **work.env, **slot.env}
        fork = FORKED.Process(target=do, args=(work.folder, work.cwd, env, work.log))
        fork.start()
        assert fork.pid
        handle = make_process_handle(fork.pid, work.log, slot)
        self._forks[handle] = fork
        self.slots.take(handle, slot)
        return handle

    def _read_status(self, handle: str) -> SubmissionStatus:
        fork = self._forks.get(handle)
        if fork is None:  # of an earlier supervisor
            return super()._read_status(handle)
        if fork.exitcode is None:
            return SubmissionStatus("running")
        assert fork.pid
        kill_group(fork.pid)
        return self._end(handle, self._judge_exit(fork.exitcode))
