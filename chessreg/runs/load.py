"""How busy a machine is: its cores, its memory, each GPU. An attempt tells it with every check-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

Load = dict[str, Any]
GPU_COLUMNS = ("index", "name", "memory.total", "memory.used", "utilization.gpu")


def load() -> Load:
    """This machine now: `cpu` (processes that run or want to, over one minute), `cores`, `memory_bytes`,
    `memory_used_bytes`, and for each of `gpus` its index, name, `memory_bytes`, `memory_used_bytes`, `busy` (0 to 1).

    What cannot be told is None.
    """
    total, used = memory()
    return {
        "cpu": round(os.getloadavg()[0], 2),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": total,
        "memory_used_bytes": used,
        "gpus": gpus(),
    }


def memory(file: Path = Path("/proc/meminfo")) -> tuple[int | None, int | None]:
    """Bytes of memory, and how many are taken: what the kernel could not hand out without swapping."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(value.split()[0]) * 1024
    if len(found) < 2:
        return None, None
    return found["MemTotal"], found["MemTotal"] - found["MemAvailable"]


def gpus() -> list[Load]:
    """Every NVIDIA GPU, as nvidia-smi tells; none where there is no such program, or it does not answer in time."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(GPU_COLUMNS)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [row for line in said.splitlines() if (row := gpu(line)) is not None]


def gpu(line: str) -> Load | None:
    """One line of nvidia-smi; `[N/A]` stands for what this GPU does not tell.

    >>> gpu("0, NVIDIA A100-SXM4-40GB, 40960, 1024, 50")["busy"]
    0.5
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(GPU_COLUMNS) or not cells[0].isdigit():
        return None

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    total, used, busy = map(number, cells[2:])
    return {
        "index": int(cells[0]),
        "name": cells[1],
        "memory_bytes": None if total is None else int(total * 2**20),
        "memory_used_bytes": None if used is None else int(used * 2**20),
        "busy": None if busy is None else busy / 100,
    }
