"""The POSIX locks of this process on a registry, as /proc/locks lists them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chessreg.registry.file_gate import FileGate

HAS_PROC_LOCKS = Path("/proc/locks").exists()
SHARED_FIRST, SHARED_LAST = 0x40000002, 0x40000002 + 509  # bytes that SQLite's SHARED lock covers
SHM_IN_USE = 128  # byte of the shared memory that every user of a write-ahead log holds


def locks(path: Path, pid: int | None = None) -> set[tuple[int, int]]:
    """Return the first and last byte of each lock that a process (by default this one) holds on a file."""
    status, found = path.stat(), set()
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "POSIX" and int(fields[4]) == (pid or os.getpid()) and fields[5] == place:
            found.add((int(fields[6]), -1 if fields[7] == "EOF" else int(fields[7])))
    return found


def descriptors(path: Path) -> int:
    """Return the number of descriptors of this process that are open on a file."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += os.path.samestat(link.stat(), path.stat())
        except OSError:
            continue
    return found


def holds_log(path: Path, pid: int | None = None) -> bool:
    """Return whether a process holds the locks that prevent deletion of the registry's write-ahead log."""
    memory = path.with_name(path.name + "-shm")
    return (
        (SHARED_FIRST, SHARED_LAST) in locks(path, pid)
        and memory.exists()
        and (SHM_IN_USE, SHM_IN_USE) in locks(memory, pid)
    )


class LockWatch:
    """Record each moment at which SQLite had the registry open in this process without its locks.

    A loss lasts until all connections are closed. It is therefore enough to check at the end of a transaction and when
    ADBC's SQLite takes over.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.checks, self.losses = path, 0, []

    def check(self, moment: str) -> None:
        self.checks += 1
        if descriptors(self.path) and not holds_log(self.path):
            self.losses.append(moment)


@contextmanager
def watched(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LockWatch]:
    """Watch the locks during the block, and fail if one is lost."""
    watch = LockWatch(path)
    own, foreign = FileGate.use_with_python, FileGate.use_with_adbc

    @contextmanager
    def checked_own(gate: FileGate) -> Iterator[None]:
        with own(gate):
            yield
        watch.check("a transaction ended")

    @contextmanager
    def checked_foreign(gate: FileGate) -> Iterator[None]:
        watch.check("ADBC takes over")
        with foreign(gate):
            if gate._foreign.total() == 1 and descriptors(path):
                watch.losses.append("two SQLite libraries have it open")
            yield
        watch.check("ADBC has ended")

    with monkeypatch.context() as patch:
        patch.setattr(FileGate, "use_with_python", checked_own)
        patch.setattr(FileGate, "use_with_adbc", checked_foreign)
        yield watch
    watch.check("the block ended")
    assert watch.losses == []


def read_once(database: Any) -> None:
    """Leave an idle connection open, as a TUI does."""
    from sqlalchemy import text

    with database.read() as session:
        session.execute(text("SELECT count(*) FROM run")).all()
