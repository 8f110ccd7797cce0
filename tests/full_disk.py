"""A full disk for tests: a file of this process cannot grow past a limit, and a real file system without space."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def no_space_beyond(size: int) -> Iterator[None]:
    """Let writes past `size` bytes of a file fail with EFBIG during the block (Python ignores SIGXFSZ).

    Imports write no bytecode meanwhile: Python 3.11 would leave it cut off at `size`, and fail to load it later.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(at: Path, size: int) -> Iterator[Path]:
    """Mount a file system of `size` bytes in memory at a folder. Skip the test if this process may not mount one."""
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no small file system: {error}")
    if done.returncode:
        pytest.skip(f"no small file system without root: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
