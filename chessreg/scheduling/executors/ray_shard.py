"""The actor that executes one submission on one node of a Ray cluster, staging data if the node lacks the store."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from chessreg.errors import get_first_line
from chessreg.registry.causes import Cause
from chessreg.scheduling.executors import Placement, SubmissionStatus, get_exit_status
from chessreg.scheduling.executors.ray_staging import NODE_STORE_VARIABLE, NodeStore, StoreActor
from chessreg.scheduling.worker import read_json_or_none

NOTE_FILE = "ray.json"
POLL_INTERVAL_S = 0.3


class ShardActor(StoreActor):
    """One submission on one node: a process in its own session, monitored by a thread of this actor."""

    def __init__(self, home: Any, work: dict[str, Any]) -> None:
        self.home, self.work = home, work
        self.child: subprocess.Popen[bytes] | None = None
        self.cancelled_at = 0.0  # when SIGTERM was sent
        self.placement = Placement(work["actor"], node=socket.gethostname())
        self.last_status = SubmissionStatus("running", placement=self.placement._replace(reason="it is being prepared"))
        self.staging: NodeStore | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def status(self) -> SubmissionStatus:
        """Return the current status."""
        return self.last_status

    def use_home(self, home: Any) -> None:
        """Read inputs and send results through this home actor from now on."""
        self.home = home
        if self.staging:
            self.staging.home = home

    def cancel(self) -> None:
        """Send SIGTERM the first time, and SIGKILL once the grace period is over."""
        now = time.monotonic()
        if not self.cancelled_at:
            self.cancelled_at = now
            if self.child:
                with suppress(ProcessLookupError):
                    os.kill(self.child.pid, signal.SIGTERM)
        elif now - self.cancelled_at > self.work["grace"] and self.child:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)

    def _run(self) -> None:
        try:
            self.last_status = self._work()
        except BaseException as error:
            self.last_status = SubmissionStatus("ended", None, Cause.FAILED, describe_remote_error(error))

    def _work(self) -> SubmissionStatus:
        """Run the command of the shard, and return its final status."""
        from chessreg.scheduling.executors.local import kill_group

        folder, argv, env = Path(self.work["folder"]), list(self.work["argv"]), dict(self.work["env"])
        note = read_json_or_none(folder / NOTE_FILE) or {}
        if NODE_STORE_VARIABLE in os.environ or note.get("actor") != self.work["actor"]:
            self.staging = NodeStore(self.home, self.work)
            folder, argv, env = self.staging.stage(lambda: bool(self.cancelled_at))
        if self.cancelled_at:
            return SubmissionStatus("ended", 143, Cause.KILLED, "cancelled before it began")
        cwd = Path(self.work["cwd"])
        with (folder / "log.txt").open("ab") as log:
            self.child = subprocess.Popen(
                argv,
                cwd=cwd if cwd.is_dir() else folder,
                env={**os.environ, **build_granted_environment(self.work["threads"]), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_actor,
            )
        if self.cancelled_at:  # during the start
            self.child.terminate()
        self.last_status = SubmissionStatus("running", placement=self.placement)
        while os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(POLL_INTERVAL_S)
            if self.staging:
                self._send()
        kill_group(self.child.pid)
        code = self.child.wait()
        while self.staging and not self._send(is_last=True):
            if self.cancelled_at and time.monotonic() - self.cancelled_at > self.work["grace"]:
                message = f"its results are still in {self.staging.root}: {self.last_status.message}"
                return SubmissionStatus("ended", code, Cause.LOST, message)
            time.sleep(1.0)
        return get_exit_status(code)

    def _send(self, is_last: bool = False) -> bool:
        """Send new data home. Return False if home did not respond; it is sent again later."""
        assert self.staging
        try:
            self.staging.send(is_last)
            return True
        except Exception as error:
            problem = f"its home machine does not respond: {describe_remote_error(error)}"
            self.last_status = SubmissionStatus(
                "running", message=problem, placement=self.placement._replace(reason=problem)
            )
            return False


def describe_remote_error(error: BaseException) -> str:
    """Return an error in one line. For an error of another actor, return its cause."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {get_first_line(cause)}"[:200]


def end_with_actor() -> None:
    """In a child process, request SIGTERM when the actor dies. Ray then reports the submission as lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG; its starting thread lives until it ends


def build_granted_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that pass the resources granted by Ray to a worker."""
    import ray

    environment = {"CHESSREG_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    gpus = ray.get_gpu_ids()
    return environment | ({"CHESSREG_GPU": ",".join(str(gpu) for gpu in gpus)} if gpus else {})
