"""Whether this machine's supervisor is running, and starting and stopping it. There is one per store and machine.

The supervisor holds a lock on a file in the store, which is released when the process ends. The file identifies it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg import child
from chessreg.errors import ChessregError
from store.files import read_json
from store.process import ProcessId, get_machine_name, get_this_process

if TYPE_CHECKING:
    from store import Store

START_TIMEOUT_S = 60.0
MAX_START_TRIES = 5  # if another process becomes the supervisor each time


class Presence:
    """The supervisor of this host for one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.file = store.root / "supervisors" / f"{get_machine_name()}.json"
        self.log = store.root / "supervisors" / f"{get_machine_name()}.log"
        self._handle = -1

    def read_holder(self) -> dict[str, Any] | None:
        """Return the record of the running supervisor (host, pid, since, …), or None."""
        try:
            holder: dict[str, Any] = read_json(self.file)
        except (OSError, ValueError):
            return None
        process = ProcessId.from_record(holder)
        return holder if process is not None and process.is_gone() is False else None

    def hold(self) -> bool:
        """Become the supervisor. Return False if another process is."""
        self.file.parent.mkdir(exist_ok=True)
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(get_this_process().record()).encode(), 0)
        self._handle = handle
        return True

    def release(self) -> None:
        """Let another process become the supervisor."""
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1

    def start(self, registry: str, tries: int = MAX_START_TRIES) -> bool:
        """Start the supervisor in a separate session, independent of any terminal. Return False if it was running.

        Raises ChessregError with the last line of its log if it does not start, or if another machine with the same
        host name runs this store's supervisor.
        """
        if self.read_holder():
            return False
        self.file.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                child.build_python_command("chessreg.scheduling.supervisor", str(self.store.root)),
                env={**child.build_child_environment(), "CHESSREG_REGISTRY": registry},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.store.root,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.read_holder() is None:
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                last_lines = read_last_lines(self.log, 3)
                raise ChessregError(
                    f"the supervisor did not start: {last_lines or 'its log is empty'}",
                    f"less {shlex.quote(str(self.log))}",
                )
            if process.poll() == 0:  # another process was faster
                if self.read_holder() is not None:
                    return False
                if tries <= 1:
                    raise ChessregError(
                        f"another machine named {get_machine_name()} runs this store's supervisor",
                        "stop it there, or change the host name of one machine",
                    )
                return self.start(registry, tries - 1)
            time.sleep(0.02)
        return True

    def stop(self, seconds: float = 120.0) -> bool:
        """Stop the supervisor and wait for its end. Return False if none was running. Its running jobs return to the
        queue."""
        holder = self.read_holder()
        if holder is None:
            return False
        os.kill(holder["pid"], signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while self.read_holder() is not None:
            if time.monotonic() > deadline:
                raise ChessregError(
                    f"the supervisor {holder['pid']} did not end within {seconds:.0f} s",
                    f"less {shlex.quote(str(self.log))}",
                )
            time.sleep(0.05)
        return True


def read_last_lines(path: Path, lines: int) -> str:
    """Return the last `lines` lines of a log, joined into one line by ` / `. Empty if the file cannot be read."""
    try:
        log_lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join(line.strip() for line in log_lines[-lines:] if line.strip())
