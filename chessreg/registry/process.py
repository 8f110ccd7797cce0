"""Which process is which: boot, process id and start time together name one for ever."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def boot_id() -> str:
    """A text that is new at every boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # macOS
        import psutil

        return f"boot-{psutil.boot_time():.0f}"


def pid_start(pid: int) -> float | None:
    """When a process of this machine started (Linux: seconds since boot), or None when it is gone or a zombie.

    A process id is used again; with the boot and this it is not mistaken. The wall clock plays no part on Linux.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None
