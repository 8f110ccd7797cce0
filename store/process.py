"""Which process is which: on this machine, on another one with the same name, after a restart, in another container.

A process is known by host name, installation (`system_id`), boot, number and start time. A host name alone proves
nothing: two machines may share one, and so may two containers of one machine, which number processes separately.
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
    """A process of any machine. Fields are None or empty where its machine does not tell."""

    host: str
    system_id: str | None
    boot_id: str
    pid: int
    started: float | None

    @classmethod
    def of(cls, record: Any) -> ProcessId | None:
        """Read the fields of a JSON object; return None unless they are all there with their types."""
        if not isinstance(record, dict):
            return None
        host, system, boot = record.get("host"), record.get("system_id"), record.get("boot_id")
        pid, started = record.get("pid"), record.get("started")
        texts = isinstance(host, str) and isinstance(boot, str) and (system is None or isinstance(system, str))
        if not texts or not isinstance(pid, int) or not (started is None or isinstance(started, (int, float))):
            return None
        return cls(str(host), system, str(boot), pid, started)

    def record(self) -> dict[str, Any]:
        """Return the fields as a JSON object, with the time now as `since`."""
        return {**asdict(self), "since": datetime.now(UTC).isoformat(timespec="seconds")}

    def is_gone(self) -> bool | None:
        """True if it surely ended, False if it runs, None if this machine cannot tell."""
        if not is_this_machine(self.host, self.system_id):
            return None
        here, there = boot_id(), self.boot_id
        if there == here:
            started = pid_start(self.pid)
            return None if started is None and is_hidden(self.pid) else started != self.started
        if there.partition(".")[0] == here.partition(".")[0]:
            return None  # another container of this boot
        return True if self.system_id is not None else None  # an earlier boot, or another machine of that name


def identify_process(pid: int) -> ProcessId:
    """The process of this machine that has this number now."""
    return ProcessId(socket.gethostname(), system_id(), boot_id(), pid, pid_start(pid))


def this_process() -> ProcessId:
    """This process."""
    return identify_process(os.getpid())


def is_this_machine(host: str, system: str | None) -> bool:
    """Whether a host name and a `system_id` are this machine's. Either alone may be shared with another machine."""
    return host == socket.gethostname() and system == system_id()


def machine_name() -> str:
    """This machine's host name and the beginning of its `system_id`, as a part of a file name."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40] or "unnamed"
    system = system_id()
    return f"{host}-{system[:8]}" if system else host


@lru_cache(maxsize=1)
def boot_id() -> str:
    """A text that is new at every boot, and differs between containers that number their processes separately."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip().replace("-", "")[:16]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # macOS
        import psutil

        return f"boot-{psutil.boot_time():.0f}"


@lru_cache(maxsize=1)
def system_id() -> str | None:
    """A digest of this installation's id, which outlives its boots; None if it has no id.

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


def pid_start(pid: int) -> float | None:
    """When a process of this machine started (Linux: seconds since boot), or None when it is gone or a zombie.

    A process id is used again; with the boot and this it is not mistaken. The wall clock plays no part on Linux.
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
    """Whether another user's process has this number and /proc does not show it (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except OSError:
        return False
    return False
