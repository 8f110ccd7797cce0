"""Where a model computes: the device and thread settings of a run."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from chessreg.errors import BadInputError


def count_usable_cores() -> int:
    """CPU cores that this process may use: those it is bound to, or fewer by OMP_NUM_THREADS."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(bound, int(limit)) if limit.isdigit() and int(limit) else bound


def count_idle_cores() -> int:
    """Of these, how many other work leaves idle, by the last minute's load; at least 1.

    For short work that somebody waits for: threads that wait for a busy core made it ten times slower.
    """
    return max(1, count_usable_cores() - round(os.getloadavg()[0]))


def check_threads(threads: int) -> None:
    """Raise BadInputError for more threads than this machine has cores."""
    there = os.cpu_count() or 1
    if threads > there:
        raise BadInputError(f"--threads {threads} is more than this machine's {there} cores", "0: all that are granted")


def check_device(device: str) -> None:
    """Raise BadInputError when a device is not on this machine. Imports torch only for a GPU."""
    if device in ("auto", "cpu"):
        return
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit() and len(number) < 4)):
        raise BadInputError(f"--device {device!r} is no device", "auto, cpu, cuda or cuda:N")
    import torch

    if int(number or 0) >= (count := torch.cuda.device_count()):
        raise BadInputError(
            f"--device {device}: there is no device {device}", f"this machine has {count} CUDA devices; use cpu"
        )


def check_device_count(device: str, devices: int) -> None:
    """Raise BadInputError for more processes than there are CUDA devices, or cores where the device is a CPU."""
    if devices == 1:
        return
    if ":" in device:
        raise BadInputError(f"--devices {devices} goes with --device cuda, not {device}", "leave out the number")
    import torch

    gpus = torch.cuda.device_count()
    on_gpus = device == "cuda" or (device == "auto" and gpus > 0)
    there = gpus if on_gpus else os.cpu_count() or 1
    if devices > there:
        what = "CUDA devices" if on_gpus else "cores"
        raise BadInputError(f"--devices {devices}: this machine has {there} {what}", f"--devices {max(there, 1)}")


def release_memory() -> None:
    """Give the memory of a finished run back to the system, for processes that do many runs one after the other.

    The command line lets the garbage collector look for reference cycles seldom, and glibc keeps what is freed: a
    process that played forty matches grew to 10 GB.
    """
    gc.collect(1)  # what the run made is young; to look through all that was imported takes 0.15 s
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Numbers below 1e-38 are 0 meanwhile. Softmax and Adam make many, and a product with them takes a hundred times as
    long."""
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """In the block, CUDA devices may round the factors of float32 matrix products to TF32, or may not."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def prepare_device(device: str = "auto", threads: int = 0) -> str:
    """Set this process's threads (0: as many as it may use) and return the device's name, `auto` resolved.

    Raises BadInputError when the device is not there.
    """
    check_device(device)
    import torch

    torch.set_num_threads(threads or count_usable_cores())
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
