"""The device and thread settings of a run."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from chessreg.errors import BadInputError


def count_usable_cores() -> int:
    """Return the CPU cores that this process may use: its CPU affinity, or fewer if OMP_NUM_THREADS is set."""
    usable_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(usable_cores, int(limit)) if limit.isdigit() and int(limit) else usable_cores


def count_idle_cores() -> int:
    """Return how many of the usable cores are idle, by the last minute's load; at least 1.

    Use it for short interactive work: threads that waited for busy cores made such work ten times slower.
    """
    return max(1, count_usable_cores() - round(os.getloadavg()[0]))


def check_threads(threads: int) -> None:
    """Raise BadInputError for more threads than this machine has cores."""
    available_cores = os.cpu_count() or 1
    if threads > available_cores:
        raise BadInputError(
            f"--threads {threads} is more than this machine's {available_cores} cores", "0: all that are granted"
        )


def check_device(device: str) -> None:
    """Raise BadInputError for a device that this machine lacks. Imports torch only for a GPU."""
    if device in ("auto", "cpu"):
        return
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit() and len(number) < 4)):
        raise BadInputError(f"--device {device!r} is not a device", "auto, cpu, cuda or cuda:N")
    import torch

    if int(number or 0) >= (count := torch.cuda.device_count()):
        raise BadInputError(f"--device {device} does not exist", f"this machine has {count} CUDA devices; use cpu")


def check_device_count(device: str, devices: int) -> None:
    """Raise BadInputError for more processes than CUDA devices, or than cores if the device is a CPU."""
    if devices == 1:
        return
    if ":" in device:
        raise BadInputError(f"--devices {devices} requires --device cuda, not {device}", "leave out the number")
    import torch

    gpus = torch.cuda.device_count()
    on_gpus = device == "cuda" or (device == "auto" and gpus > 0)
    available_devices = gpus if on_gpus else os.cpu_count() or 1
    if devices > available_devices:
        unit = "CUDA devices" if on_gpus else "cores"
        raise BadInputError(
            f"--devices {devices}: this machine has {available_devices} {unit}",
            f"--devices {max(available_devices, 1)}",
        )


def release_memory() -> None:
    """Return the memory of a finished run to the system, in processes that execute many runs.

    The command line runs the garbage collector seldom, and glibc keeps freed memory: a process that played forty
    matches grew to 10 GB.
    """
    gc.collect(1)  # the run's objects are young; a full collection takes 0.15 s
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Treat numbers below 1e-38 as 0 inside the block.

    Softmax and Adam create many, and products with them take a hundred times as long.
    """
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def set_tf32_products(is_allowed: bool) -> Iterator[None]:
    """Allow or forbid CUDA devices to round the factors of float32 matrix products to TF32 inside the block."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def avoid_cudnn_attention() -> Iterator[None]:
    """Keep attention off cuDNN inside the block, for passes whose lengths change from one to the next.

    PyTorch prefers it for half precision with a mask on Hopper GPUs, and it builds a plan for every new length: on an
    H200, a token took 50 to 270 ms instead of 3 to 5 ms (tests/gpu/results).
    """
    import torch

    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def prepare_device(device: str = "auto", threads: int = 0) -> str:
    """Set this process's threads (0: all usable cores) and return the device's name, with `auto` resolved.

    Raises BadInputError for a device that this machine lacks.
    """
    check_device(device)
    import torch

    torch.set_num_threads(threads or count_usable_cores())
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
