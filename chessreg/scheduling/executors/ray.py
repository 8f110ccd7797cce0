"""Runs shards on the nodes of a Ray cluster, which need not share a disk with this machine.

Each submission is a detached actor, which outlives the supervisor; a Ray task would not. This machine must be a node of
the cluster.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import select
import socket
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from chessreg import child
from chessreg.errors import BadInputError, NotFoundError
from chessreg.plugins import install_command
from chessreg.registry.tables import Cause
from chessreg.scheduling.executors import Submission, SubmissionStatus, ray_cluster, require_one_node
from store.files import parse_json

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 120.0  # starting Ray takes a while
CANCEL_INTERVAL_S = 1.0


class RaySilentError(Exception):
    """Raised when Ray does not respond."""


class RayExecutor:
    """Runs submissions as actors of the Ray cluster at `HOST:PORT`.

    Without an address: of the cluster that `chessreg cluster up` started from this machine, else of this machine,
    starting Ray if necessary.
    """

    def __init__(self, argument: str = "", *, grace: float = 20.0) -> None:
        if importlib.util.find_spec("ray") is None:
            raise NotFoundError("ray is not installed", install_command("ray"))
        if "://" in argument or (argument and not argument.rpartition(":")[2].isdigit()):
            raise BadInputError(
                f"{argument!r} is not an address of a Ray cluster", "--on ray:HOST:PORT, as ray start prints"
            )
        if not argument and (cluster := ray_cluster.read_cluster()) is not None:
            argument = cluster.head
        if argument:
            require_ray_at(argument)
        self.address, self.grace = argument, grace
        self._driver: subprocess.Popen[bytes] | None = None
        self._end_statuses: dict[str, SubmissionStatus] = {}
        self._cancel_times: dict[str, float] = {}  # handle → when it was last cancelled

    # -- interface ------------------------------------------------------------------------------------------------

    def submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """Pass the submissions to Ray, and return job id → handle. Empty if Ray does not respond."""
        for work in works:
            require_one_node(work.needs)
        orders = [
            {
                "job": work.job_id.hex,
                "argv": list(work.argv),
                "folder": str(work.folder),
                "cwd": str(work.cwd),
                "env": dict(work.env),
                "device": work.needs.device,
                "threads": work.needs.threads,
                "shards": work.needs.shards,
                "share_gpu": work.needs.share_gpu,
                "devices": work.needs.devices,
                "grace": self.grace,
            }
            for work in works
        ]
        try:
            return {UUID(hex=job): handle for job, handle in self._ask("submit", orders).items()}
        except RaySilentError:
            return {}  # they are submitted again later

    def poll(self, handles: Collection[str]) -> dict[str, SubmissionStatus]:
        """Return handle → status, without the handles whose status Ray does not report now."""
        for handle in handles:
            if handle not in self._end_statuses and not is_actor_handle(handle):
                self._end_statuses[handle] = SubmissionStatus("ended", None, Cause.LOST, "its handle cannot be read")
        statuses = {handle: self._end_statuses[handle] for handle in handles if handle in self._end_statuses}
        if unanswered_handles := [handle for handle in dict.fromkeys(handles) if handle not in statuses]:
            try:
                answers = self._ask("poll", unanswered_handles)
            except RaySilentError:
                return statuses
            for handle, status in answers.items():
                statuses[handle] = status
                if status.state == "ended":
                    self._end_statuses[handle] = status
                    self._cancel_times.pop(handle, None)
        return statuses

    def cancel(self, handle: str) -> None:
        """Ask Ray to end the actor, at most once in CANCEL_INTERVAL_S. Does nothing if Ray does not respond."""
        now = time.monotonic()
        if (
            handle in self._end_statuses
            or not is_actor_handle(handle)
            or now - self._cancel_times.get(handle, -1e9) < CANCEL_INTERVAL_S
        ):
            return
        try:
            self._ask("cancel", handle)
            self._cancel_times[handle] = now
        except RaySilentError:
            pass

    @staticmethod
    def logs(handle: str) -> Path | None:
        path = Path(json.loads(handle)["folder"]) / "log.txt" if is_actor_handle(handle) else None
        return path if path and path.exists() else None

    # -- implementation -------------------------------------------------------------------------------------------

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """Call a method of the driver process and return its answer.

        Raises RaySilentError if the call fails, and BadInputError if it can never succeed.
        """
        if self._driver is None or self._driver.poll() is not None:
            self._driver = subprocess.Popen(
                child.build_python_command("chessreg.scheduling.executors.ray_driver", self.address),
                env=child.build_child_environment() | ray_cluster.build_driver_environment(self.address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._driver.stdin
        assert self._driver.stdout
        try:
            pickle.dump((verb, arguments), self._driver.stdin)
            self._driver.stdin.flush()
            if not select.select([self._driver.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                raise RaySilentError(f"no answer in {ANSWER_TIMEOUT_S:.0f} s")
            state, answer = pickle.load(self._driver.stdout)
        except (OSError, EOFError, pickle.UnpicklingError, RaySilentError) as error:
            self.close()
            raise RaySilentError(str(error)) from error
        if state == "refused":
            raise BadInputError(*answer)
        if state == "failed":
            self.close()  # the next call connects again
            raise RaySilentError(answer)
        return answer

    def close(self) -> None:
        """End the driver process. Submissions continue."""
        if self._driver is not None:
            driver, self._driver = self._driver, None
            for pipe in (driver.stdin, driver.stdout):
                if pipe:
                    try:
                        pipe.close()
                    except OSError:
                        continue
            try:
                driver.wait(30)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()


def is_actor_handle(text: str) -> bool:
    """Return whether a text is a handle of this executor."""
    try:
        return bool(parse_json(text).keys() >= {"actor", "folder"})
    except (ValueError, AttributeError):
        return False


def require_ray_at(address: str) -> None:
    """Raise NotFoundError unless a server accepts connections at `address`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise NotFoundError(
            f"no Ray cluster responds at {address}: {reason}",
            f"ray start --head on that machine, ray start --address={address} on this one",
        ) from error
