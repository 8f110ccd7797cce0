"""`tmp/`: where everything is written before one rename makes it visible, and what crashed writers left there.

A staging name is `<kind>~<host>~<pid>~<random>`, so that a left-over says whose it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from store.errors import StoreError
from store.files import explained, safe_name

DAY = 86_400.0
_ALIVE_FOR = 7 * DAY  # after this long without a write, a living process of that number is taken for a stranger


@dataclass(frozen=True)
class Staging:
    """A file or folder in `tmp/`; `age` is seconds since its newest write."""

    path: Path
    kind: str
    host: str
    pid: int
    age: float


def hostname() -> str:
    """This machine's name, with only characters that a file name can hold."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename) or "unnamed"


def staging_path(tmp: Path, kind: str) -> Path:
    """A fresh path in `tmp/` for this process; nothing is created."""
    return tmp / f"{safe_name('kind', kind)}~{hostname()}~{os.getpid()}~{os.urandom(8).hex()}"


def staged_kind(path: Path) -> str:
    """The kind that a staging path was made for."""
    parts = path.name.split("~")
    if len(parts) != 4:
        raise StoreError(f"{path} is not a staging folder of this store", "make one with store.stage(kind)")
    return parts[0]


def stale(tmp: Path, older_than: float = DAY) -> list[Staging]:
    """What lies in `tmp/` unwritten for `older_than` seconds and has no living owner on this machine; oldest first."""
    here, now, found = hostname(), time.time(), []
    for path in tmp.iterdir():
        parts = path.name.split("~")
        if len(parts) != 4 or not parts[2].isdigit():
            continue
        kind, host, pid = parts[0], parts[1], int(parts[2])
        age = now - _newest(path)
        if age >= older_than and not (host == here and _alive(pid) and age < _ALIVE_FOR):
            found.append(Staging(path, kind, host, pid, age))
    return sorted(found, key=lambda staging: -staging.age)


def clean(tmp: Path, older_than: float = DAY) -> list[Staging]:
    """Remove what `stale` lists and return it."""
    found = stale(tmp, older_than)
    with explained("clean the staging folder"):
        for staging in found:
            discard(staging.path)
    return found


def discard(path: Path) -> None:
    """Remove a staging file or folder; what somebody else removed meanwhile is no error."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class WriterLock:
    """An exclusive lock in `tmp/` that ends with its holder, however that dies. Refused at once, never waited for.

    On file systems without locks nothing is held: the rename at publication still lets only the first writer win.
    """

    def __init__(self, tmp: Path, name: str) -> None:
        self._path = tmp / f"{name}.lock"
        self._handle = -1
        with explained(f"lock {name}"):
            while not self._acquire(name):
                pass

    def _acquire(self, name: str) -> bool:
        import fcntl

        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise StoreError(f"{name} is being written by {holder}", "wait for it, or stop that process") from None
        except OSError:  # no locks here
            os.close(handle)
            return True
        try:  # the last holder may have removed the file between our open and our lock: then we hold nothing
            if not os.path.samestat(os.fstat(handle), os.stat(self._path)):
                raise FileNotFoundError
        except FileNotFoundError:
            os.close(handle)
            return False
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {hostname()}\n".encode(), 0)
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock back; more than once is fine."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._handle)
            self._handle = -1


def _newest(path: Path) -> float:
    newest = 0.0
    with contextlib.suppress(FileNotFoundError):
        newest = path.lstat().st_mtime
        for parent, folders, names in os.walk(path):
            for name in (*folders, *names):
                with contextlib.suppress(FileNotFoundError):
                    newest = max(newest, (Path(parent) / name).lstat().st_mtime)
    return newest


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
