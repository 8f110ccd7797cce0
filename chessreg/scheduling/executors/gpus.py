"""The NVIDIA GPUs of this machine and how much of their memory is free."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

GIB = float(2**30)


@dataclass(frozen=True)
class Gpu:
    """One GPU as it is now. `index` follows the PCI bus, as CUDA_DEVICE_ORDER=PCI_BUS_ID counts."""

    index: int
    total: float  # GiB
    free: float  # GiB


def read_gpus() -> list[Gpu]:
    """Every GPU, by NVML through pynvml where it is installed, else by nvidia-smi; none where there is neither."""
    try:
        return _by_nvml()
    except ImportError:
        return _by_nvidia_smi()


def _by_nvml() -> list[Gpu]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
            found.append(Gpu(index, memory.total / GIB, memory.free / GIB))
        return found
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _by_nvidia_smi() -> list[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=index,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(",") for line in said.splitlines()]
    return [
        Gpu(int(row[0]), float(row[1]) / 1024, float(row[2]) / 1024)
        for row in rows
        if len(row) == 3 and all(cell.strip().replace(".", "", 1).isdigit() for cell in row)
    ]
