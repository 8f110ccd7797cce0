"""Identification of processes across machines with the same name, restarts and containers.

A process is identified by host name, installation (`system_id`), boot, process id and start time. A host name alone is
not enough: two machines may share one, and so may two containers, which number their processes separately.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessId:
    """A process of any machine. Fields are None or empty if its machine does not provide them."""

    host: str
    system_id: str | None
    boot_id: str
    pid: int
    started: float | None

    @classmethod
    def from_record(cls, record: Any) -> ProcessId | None:
        """Return the process described by a JSON object, or None if a field is missing or has the wrong type."""
        if not isinstance(record, dict):
            return None
        host, system, boot = record.get("host"), record.get("system_id"), record.get("boot_id")
        pid, start_time = record.get("pid"), record.get("started")
        texts = isinstance(host, str) and isinstance(boot, str) and (system is None or isinstance(system, str))
        if not texts or not isinstance(pid, int) or not (start_time is None or isinstance(start_time, (int, float))):
            return None
        return cls(str(host), system, str(boot), pid, start_time)

    def record(self) -> dict[str, Any]:
        """Return the fields as a JSON object, with the current time as `since`."""
        return {**asdict(self), "since": datetime.now(UTC).isoformat(timespec="seconds")}

    def is_gone(self) -> bool | None:
        """Return True if the process has certainly ended, False if it is running, None if this machine cannot tell."""
        if not is_this_machine(self.host, self.system_id):
            return None
        boot_id, other_boot_id = read_boot_id(), self.boot_id
        if other_boot_id == boot_id:
            start_time = get_process_start(self.pid)
            return None if start_time is None and is_hidden(self.pid) else start_time != self.started
        if other_boot_id.partition(".")[0] == boot_id.partition(".")[0]:
            return None  # another container of this boot
        return True if self.system_id is not None else None  # an earlier boot, or another machine with the same name


def identify_process(pid: int) -> ProcessId:
    """Return the identity of the process with this id on this machine."""
    return ProcessId(socket.gethostname(), read_system_id(), read_boot_id(), pid, get_process_start(pid))


def get_this_process() -> ProcessId:
    """Return the identity of this process."""
    return identify_process(os.getpid())


def is_this_machine(host: str, system: str | None) -> bool:
    """Return whether a host name and a `read_system_id` both belong to this machine. Either alone may be shared."""
    return host == socket.gethostname() and system == read_system_id()


def get_machine_name() -> str:
    """Return this machine's host name and the beginning of its `read_system_id`, valid in a file name."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40] or "unnamed"
    system = read_system_id()
    return f"{host}-{system[:8]}" if system else host


@lru_cache(maxsize=1)
def read_boot_id() -> str:
    """Return a text that changes at every boot, and differs between containers with separate process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip().replace("-", "")[:16]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # macOS
        import psutil

        return f"boot-{psutil.boot_time():.0f}"


@lru_cache(maxsize=1)
def read_system_id() -> str | None:
    """Return a digest of the id of this installation, constant across boots, or None if it has no id.

    The id itself is confidential (man machine-id).
    """
    if sys.platform == "darwin":
        import subprocess

        with suppress(OSError, subprocess.SubprocessError):
            command = ["ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]
            run = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=10, check=True)
            if match := re.search(r'"IOPlatformUUID" = "([^"]+)"', run.stdout):
                return _hash_id(match[1])
        return None
    with suppress(OSError):
        text = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
        return _hash_id(text) if re.fullmatch("[0-9a-f]{32}", text) else None
    return None


def _hash_id(id: str) -> str:
    return hashlib.sha256(f"chessreg {id}".encode()).hexdigest()[:32]


def get_process_start(pid: int) -> float | None:
    """Return the start time of a process of this machine (Linux: seconds since boot), or None if it has ended.

    Process ids are reused; with boot and start time they are unambiguous. On Linux this is independent of the wall
    clock.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in b"ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def is_hidden(pid: int) -> bool:
    """Return whether the id belongs to another user's process that /proc does not show (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except OSError:
        return False
    return False
