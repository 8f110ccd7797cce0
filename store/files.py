"""Files that survive a crash: fsync in the right order, digests, and OS errors in one line.

Everything is written in `tmp/` before one rename makes it visible. A staging name is
`<kind>~<machine>~<boot>~<pid>~<start>~<random>`, so that what a crashed writer left says whose it was.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from store.errors import DiskFullError, StoreError
from store.process import ProcessId, machine_name, system_id, this_process

DISK_FULL = "the disk is full"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAYS_FULL = re.compile(
    "disk is full|" + "|".join(rf"{re.escape(os.strerror(n))}|\(os error {n}\)" for n in sorted(_FULL)), re.IGNORECASE
)
_SAYS_SHORT = re.compile(r"^\d+ requested and \d+ written$|iostream error|unexpected pos \d+ vs \d+")
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_SHARED = stat.S_ISGID | stat.S_IWGRP
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


@contextlib.contextmanager
def convert_os_errors(action: str, at: Path | None = None) -> Iterator[None]:
    """Turn an OSError in the block into one StoreError: `cannot <action>: <reason> at <file>`.

    A full disk becomes a DiskFullError, whatever the library that met it raised. `at` is named where the system names
    no file. An error with a hint has its own words, and stays as it is.
    """
    try:
        yield
    except Exception as error:
        if hasattr(error, "hint"):
            raise
        if is_disk_full(error, at):
            place = find_error_file(error) or at
            where = f" at {place}" if place else ""
            hint = "free some space, then run the same command again"
            raise DiskFullError(f"cannot {action}: {DISK_FULL}{where}", Path(place or "."), hint) from error
        if not isinstance(error, OSError):
            raise
        place = error.filename or at
        where = f" at {place}" if place else ""
        hint = "check the owner and the permissions of that folder" if is_denied(error) else ""
        raise StoreError(f"cannot {action}: {describe_os_error(error)}{where}", hint) from error


def is_disk_full(error: BaseException | None, folder: Path | None = None) -> bool:
    """Whether a write failed because a disk or a quota is full.

    Only Python's own writers raise an OSError with a number. safetensors and DuckDB give the system's words, SQLite and
    torch their own, with the number or the words in an error that theirs came from. What numpy and torch say when the
    system wrote less than they asked for names no reason: then `folder`, where they wrote, is tried.
    """
    while error is not None:
        if isinstance(error, DiskFullError):
            return True
        if isinstance(error, OSError) and error.errno is not None:
            if error.errno in _FULL:
                return True
        elif _SAYS_FULL.search(text := str(error)) or (folder and _SAYS_SHORT.search(text) and not has_space(folder)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def has_space(folder: Path, size: int = 1 << 20) -> bool:
    """Whether `size` bytes can be written in a folder, or next to a file: neither a quota nor a limit of this process
    shows in the free space of a file system. True where this cannot be tried."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder if folder.is_dir() else folder.parent) as file:
            allocate_space(file, size)
    except OSError as error:
        return error.errno not in _FULL
    return True


def allocate_space(file: IO[bytes], size: int) -> None:
    """Make a file `size` bytes long, with all of its space taken: writing to a mapped page without space kills the
    process (SIGBUS).

    Raises OSError. Where the system cannot take the space (macOS), only the length is set.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        os.truncate(file.fileno(), size)


def find_error_file(error: BaseException | None) -> str | None:
    """The file that the system names in an error, or in one that it came from: of a copy, the target."""
    while error is not None:
        if isinstance(error, OSError) and (name := error.filename2 or error.filename):
            return os.fsdecode(name)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def describe_os_error(error: BaseException) -> str:
    """What an error of the system says, without the file."""
    return DISK_FULL if is_disk_full(error) else getattr(error, "strerror", None) or str(error)


def is_denied(error: BaseException | None) -> bool:
    """Whether this is the operating system's word that we may not: by mode, owner or mount."""
    return isinstance(error, OSError) and error.errno in _DENIED


def keep_private(shared_by: Path | None = None) -> None:
    """Let what this process makes from here on be its user's alone (0600, folders 0700), whatever the umask was; or
    also its group's (0660, 0770), where the folder `shared_by` is shared. For a program's beginning, not for a library.
    """
    os.umask(0o007 if shared_by is not None and is_shared(shared_by) else 0o077)


def is_shared(folder: Path) -> bool:
    """Whether what is made in this folder is for its group too: it has the setgid bit and the group may write in it
    (`chmod 2770`). Of a folder that is not there yet, what the folder above it says.
    """
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return place.stat().st_mode & _SHARED == _SHARED
    return False


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for its user alone, or shared if the one above is.

    Raises OSError.
    """
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                folder.chmod(0o2770 if is_shared(folder.parent) else 0o700)
    path.mkdir(exist_ok=True)  # raises for a file


def make_file(path: Path) -> None:
    """Make an empty file for its user alone, or shared if its folder is; one that is there stays as it is."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(handle, 0o660 if is_shared(path.parent) else 0o600)
        finally:
            os.close(handle)


def safe_name(what: str, name: str) -> str:
    """`name` itself if it can be part of a file name on any system, else StoreError."""
    if not _NAME.match(name) or len(name) > 120:
        raise StoreError(f"{what} {name!r} cannot be part of a file name", "use letters, digits, - and _")
    return name


def safe_path(path: object) -> str:
    """`path` itself if it can be a file's below some folder on any system, else StoreError.

    Its parts are apart by `/`. None is empty, `.` or `..`, begins with a dash or is longer than 255 bytes; none has a
    colon, a backslash, a control character, or anything that is not in NFC.
    """
    import unicodedata

    parts = path.split("/") if isinstance(path, str) else [""]
    for part in parts:
        wrong = part in ("", ".", "..") or part.startswith("-") or not part.isprintable() or set(part) & set(":\\")
        if wrong or len(part.encode(errors="replace")) > 255 or unicodedata.normalize("NFC", part) != part:
            raise StoreError(f"{path!a} cannot be the path of a file in a store", "name it with letters, digits, . - _")
    return "/".join(parts)


def fsync_path(path: Path) -> None:
    """Force one file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Force every file below `folder` to the disk, then the folders, the deepest first, then `folder` itself."""
    from concurrent.futures import ThreadPoolExecutor

    folders, files = [], []
    for parent, _, names in os.walk(folder, topdown=False):
        folders.append(Path(parent))
        files += [Path(parent) / name for name in names]
    with ThreadPoolExecutor(4) as pool:  # file systems commit what waits together at once
        list(pool.map(fsync_path, files))
    for path in folders:
        fsync_path(path)


def sha256_file(path: Path, *, from_disk: bool = False) -> str:
    """sha256 of a file, in hex. `from_disk` first drops the cached pages, so that what the disk holds is read.

    The file must have been synced before; where the system cannot drop pages (macOS) the cache is read.
    """
    import hashlib

    with open(path, "rb") as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replace_file(path: Path, aside: Path) -> Iterator[IO[bytes]]:
    """A file to write into: `aside`, in the same folder. At the end of the block it is forced to the disk and renamed
    to `path`. After an error, `path` is as it was and the space of `aside` is free again.

    Raises StoreError, DiskFullError.
    """
    try:
        with convert_os_errors(f"write {path.name}", path):
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that the user has named, whole or not at all; its mode follows the umask. Raises OSError."""
    import tempfile

    if path.exists() and not path.is_file():  # a device or a pipe, which must not be replaced
        path.write_bytes(data)
        return
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(aside, 0o666 & ~mask)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also if it is nested too deeply for Python's reader."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError, and ValueError as `parse_json`."""
    return parse_json(path.read_bytes())


def write_synced(path: Path, data: bytes) -> None:
    """Write a whole file and force it to the disk (its folder is the caller's)."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


DAY_S = 86_400.0
STAGING_PARTS = 6


@dataclass(frozen=True)
class StagedPath:
    """A file or folder in `tmp/`; `age` is seconds since its newest write."""

    path: Path
    kind: str
    machine: str  # of the process that made it: `machine_name`, or the host name for a lock
    pid: int
    is_gone: bool | None  # whether that process has ended; None if this machine cannot tell
    age: float


def make_staging_path(tmp: Path, kind: str) -> Path:
    """A fresh path in `tmp/` for this process; nothing is created."""
    me = this_process()
    owner = f"{machine_name()}~{me.boot_id}~{me.pid}~{me.started}"
    return tmp / f"{safe_name('kind', kind)}~{owner}~{os.urandom(8).hex()}"


def staged_kind(path: Path) -> str:
    """The kind that a staging path was made for."""
    parts = path.name.split("~")
    if len(parts) != STAGING_PARTS:
        raise StoreError(f"{path} is not a staging folder of this store", "make one with store.stage(kind)")
    return parts[0]


def list_stale(tmp: Path, older_than: float = DAY_S) -> list[StagedPath]:
    """Return what processes that have ended left in `tmp/`, oldest first.

    If this machine cannot tell whether a process has ended, what it has not written to for `older_than` seconds.
    """
    now, stagings = time.time(), []
    for path in tmp.iterdir():
        staging = _read_staging(path, now)
        if staging is not None and staging.is_gone is not False and (staging.is_gone or staging.age >= older_than):
            stagings.append(staging)
    return sorted(stagings, key=lambda staging: -staging.age)


def _read_staging(path: Path, now: float) -> StagedPath | None:
    """Read who made something in `tmp/`; None for what is not ours."""
    age = now - _newest_write(path)
    if path.suffix == ".lock":  # of one that was killed holding it; its holder writes itself in
        holder = _read_holder(path)
        if holder is None:
            return StagedPath(path, "lock", "", 0, None, age)
        return StagedPath(path, "lock", holder.host, holder.pid, holder.is_gone(), age)
    parts = path.name.split("~")
    if len(parts) != STAGING_PARTS or not parts[3].isdigit():
        return None
    kind, machine, boot, pid, start, _ = parts
    gone = None
    with contextlib.suppress(ValueError):
        if machine == machine_name():
            gone = ProcessId(socket.gethostname(), system_id(), boot, int(pid), float(start)).is_gone()
    return StagedPath(path, kind, machine, int(pid), gone, age)


def _read_holder(lock: Path) -> ProcessId | None:
    """The process that wrote itself into a lock."""
    try:
        return ProcessId.of(parse_json(lock.read_bytes()[:1000]))
    except (OSError, ValueError):
        return None


def clean_folder(tmp: Path, older_than: float = DAY_S) -> list[StagedPath]:
    """Remove what `stale` lists and return it."""
    stagings = list_stale(tmp, older_than)
    with convert_os_errors("clean the staging folder"):
        for staging in stagings:
            remove_staging(staging.path)
    return stagings


def remove_staging(path: Path) -> None:
    """Remove something that `stale` has listed; a lock only if no process has taken it since."""
    if path.suffix == ".lock":
        _remove_lock(path)
    else:
        discard_path(path)


def _remove_lock(path: Path) -> None:
    import fcntl

    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                path.unlink()
        except BlockingIOError:
            return
        finally:
            os.close(handle)


def discard_path(path: Path) -> None:
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

    def __init__(self, tmp: Path, name: str, what: str = "") -> None:
        """`what`: what the lock is of, for messages; else its name."""
        self._path = tmp / f"{name}.lock"
        self._handle = -1
        with convert_os_errors(f"lock {what or name}"):
            while not self._acquire(what or name):
                pass

    def _acquire(self, what: str) -> bool:
        import fcntl

        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            holder = _read_holder(self._path)
            who = f"process {holder.pid} on {holder.host}" if holder else "another process"
            raise StoreError(f"{what} is being written by {who}", "wait for it, or stop that process") from None
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
        os.pwrite(handle, json.dumps(this_process().record()).encode(), 0)
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock back; more than once is fine."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._handle)
            self._handle = -1


def _newest_write(path: Path) -> float:
    newest = 0.0
    with contextlib.suppress(FileNotFoundError):
        newest = path.lstat().st_mtime
        for parent, folders, names in os.walk(path):
            for name in (*folders, *names):
                with contextlib.suppress(FileNotFoundError):
                    newest = max(newest, (Path(parent) / name).lstat().st_mtime)
    return newest
