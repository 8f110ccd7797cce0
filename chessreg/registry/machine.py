"""This machine: its hardware and software, and its load, which an attempt records at every check-in.

Nothing here imports torch: versions are read from the files of the installed packages.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from chessreg.registry.identity import hash_canonical_json, make_uuid
from store.process import get_this_process

Load = dict[str, Any]
GPU_COLUMNS = ("index", "name", "memory.total", "memory.used", "utilization.gpu")


def describe_this_machine() -> dict[str, Any]:
    """Return a row of the table `machine` for this host. The id derives from all columns except `last_seen`."""
    row = dict(_describe_machine())
    row["gpus"] = list(row["gpus"])
    return {"id": make_uuid(hash_canonical_json(row)), **row, "last_seen": datetime.now(UTC)}


@lru_cache(maxsize=1)
def _describe_machine() -> dict[str, Any]:
    import psutil

    process, (gpus, driver) = get_this_process(), _read_gpus_and_driver()
    torch, cuda = _get_torch_versions()
    return {
        "host": process.host,
        "system_id": process.system_id,
        "platform": platform.platform(),
        "cpu": _read_cpu_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": int(psutil.virtual_memory().total),
        "gpus": gpus,
        "driver": driver,
        "cuda": cuda,
        "torch": torch,
        "python": platform.python_version(),
    }


def _read_cpu_name() -> str:
    try:
        match = re.search(
            r"^(?:model name|Model|Hardware)\s*:\s*(.+)$",
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"),
            re.M,
        )
    except OSError:
        match = None
    if match:
        return match[1].strip()
    if sys.platform == "darwin":
        return _run_program(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine()


def _read_gpus_and_driver() -> tuple[list[str], str | None]:
    """Return the names of the NVIDIA GPUs in index order, and the driver's version."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    output = _run_program(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    rows = [line.split(", ") for line in output.splitlines() if ", " in line]
    return [name for name, *_ in rows], rows[0][1] if rows else None


def _get_torch_versions() -> tuple[str | None, str | None]:
    """Return the versions of torch and of the CUDA that it was built for, without importing torch."""
    module = importlib.util.find_spec("torch")
    if module is None or module.origin is None:
        return None, None
    version_file = Path(module.origin).with_name("version.py")
    text = version_file.read_text(encoding="utf-8") if version_file.exists() else ""
    versions = dict(re.findall(r"^(__version__|cuda)\b[^=\n]*= *'([^']*)'", text, re.M))
    return versions.get("__version__") or metadata.version("torch"), versions.get("cuda")


def _run_program(command: Sequence[str], timeout_s: float = 10) -> str:
    """Return the stdout of a program, or an empty text if it fails or takes longer than `timeout_s`."""
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout_s, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def read_load() -> Load:
    """Return the load of this machine. Unknown values are None.

    Keys: `cpu` (busy cores, over a tenth of a second), `cores`, `memory_bytes`, `memory_used_bytes`, and `gpus`, each
    with index, name, `memory_bytes`, `memory_used_bytes` and `busy` (0 to 1).
    """
    import psutil

    memory, cores = psutil.virtual_memory(), os.cpu_count() or 1
    return {
        "cpu": round(psutil.cpu_percent(interval=0.1) / 100 * cores, 2),
        "cores": cores,  # of the machine, like `cpu`, not of this process
        "memory_bytes": memory.total,
        "memory_used_bytes": memory.total - memory.available,  # not memory that can be freed without swapping
        "gpus": query_gpus(),
    }


def query_gpus() -> list[Load]:
    """Return the load of every NVIDIA GPU, from nvidia-smi. Empty if the program is missing or does not respond within
    5 s."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    columns = f"--query-gpu={','.join(GPU_COLUMNS)}"
    output = _run_program([program, columns, "--format=csv,noheader,nounits"], timeout_s=5)
    return [row for line in output.splitlines() if (row := parse_gpu_line(line)) is not None]


def parse_gpu_line(line: str) -> Load | None:
    """Parse one line of nvidia-smi. A value that the GPU does not report (`[N/A]`) becomes None.

    >>> parse_gpu_line("0, NVIDIA A100-SXM4-40GB, 40960, 1024, 50")["busy"]
    0.5
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(GPU_COLUMNS) or not cells[0].isdigit():
        return None

    def parse_number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    total, used_memory, busy = map(parse_number, cells[2:])
    return {
        "index": int(cells[0]),
        "name": cells[1],
        "memory_bytes": None if total is None else int(total * 2**20),
        "memory_used_bytes": None if used_memory is None else int(used_memory * 2**20),
        "busy": None if busy is None else busy / 100,
    }
