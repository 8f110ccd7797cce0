"""File operations that survive a crash: fsync in the right order, digests, and one-line messages for OS errors.

Files are written in `tmp/` and become visible by a rename. A staging name is
`<kind>~<machine>~<boot>~<pid>~<start>~<random>`, which identifies the owner of files left by a crash.
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

from store.errors import DiskFullError, LockHeldError, StoreError
from store.process import ProcessId, get_machine_name, get_this_process, read_system_id

DISK_FULL = "the disk is full"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAYS_FULL = re.compile(
    "disk is full|" + "|".join(rf"{re.escape(os.strerror(n))}|\(os error {n}\)" for n in sorted(_FULL)), re.IGNORECASE
)
_SAYS_SHORT = re.compile(r"^\d+ requested and \d+ written$|iostream error|unexpected pos \d+ vs \d+")
_DENIED_ERRNOS = {errno.EACCES, errno.EPERM, errno.EROFS}
_SHARED_MODE = stat.S_ISGID | stat.S_IWGRP
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


@contextlib.contextmanager
def convert_os_errors(action: str, at: Path | None = None) -> Iterator[None]:
    """Convert an OSError raised in the block to a StoreError: `cannot <action>: <reason> at <file>`.

    A full disk becomes a DiskFullError, whichever library reported it. `at` is the file to name if the system names
    none. Errors with a hint pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if hasattr(error, "hint"):
            raise
        if is_disk_full(error, at):
            place = find_error_file(error) or at
            place_text = f" at {place}" if place else ""
            hint = "free some space, then run the same command again"
            raise DiskFullError(f"cannot {action}: {DISK_FULL}{place_text}", Path(place or "."), hint) from error
        if not isinstance(error, OSError):
            raise
        place = error.filename or at
        place_text = f" at {place}" if place else ""
        hint = "check the owner and the permissions of that folder" if is_denied(error) else ""
        raise StoreError(f"cannot {action}: {describe_os_error(error)}{place_text}", hint) from error


def is_disk_full(error: BaseException | None, folder: Path | None = None) -> bool:
    """Return whether a write failed because a disk or a quota is full.

    Only Python's own writers raise an OSError with an errno. safetensors and DuckDB report the system's message; SQLite
    and torch report their own, with the errno or message in the cause. Short writes of numpy and torch name no reason,
    so the free space of `folder` is tested.
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
    """Return whether `size` bytes can be written in a folder or next to a file. True if this cannot be tested.

    A file is allocated, because quotas and process limits do not show in the free space of a file system.
    """
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder if folder.is_dir() else folder.parent) as file:
            allocate_space(file, size)
    except OSError as error:
        return error.errno not in _FULL
    return True


def allocate_space(file: IO[bytes], size: int) -> None:
    """Set the size of a file and allocate all of its blocks. Raises OSError.

    Without allocation, writing to a mapped page on a full disk would kill the process (SIGBUS). On macOS only the size
    is set.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        os.truncate(file.fileno(), size)


def find_error_file(error: BaseException | None) -> str | None:
    """Return the file named in an OS error or its causes (for a copy, the target), or None."""
    while error is not None:
        if isinstance(error, OSError) and (name := error.filename2 or error.filename):
            return os.fsdecode(name)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def describe_os_error(error: BaseException) -> str:
    """Return the message of an OS error without the file name."""
    return DISK_FULL if is_disk_full(error) else getattr(error, "strerror", None) or str(error)


def is_denied(error: BaseException | None) -> bool:
    """Return whether the operating system denied access, by mode, owner or mount."""
    return isinstance(error, OSError) and error.errno in _DENIED_ERRNOS


def keep_private(shared_by: Path | None = None) -> None:
    """Set the umask so that new files are accessible to this user only (0600, folders 0700).

    If the folder `shared_by` is shared, new files are accessible to its group too (0660, 0770). Call it at the start of
    a program, not in a library.
    """
    os.umask(0o007 if shared_by is not None and is_shared(shared_by) else 0o077)


def is_shared(folder: Path) -> bool:
    """Return whether new files in this folder belong to its group too: the folder is setgid and group-writable.

    For a folder that does not exist, its nearest existing parent decides.
    """
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return place.stat().st_mode & _SHARED_MODE == _SHARED_MODE
    return False


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, private to the user, or shared if the parent is shared. Raises
    OSError."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                folder.chmod(0o2770 if is_shared(folder.parent) else 0o700)
    path.mkdir(exist_ok=True)  # raises if `path` is a file


def make_file(path: Path) -> None:
    """Create an empty file, private to the user, or shared if its folder is. An existing file is left unchanged."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(handle, 0o660 if is_shared(path.parent) else 0o600)
        finally:
            os.close(handle)


def check_safe_name(noun: str, name: str) -> str:
    """Return `name` if it can be part of a file name on any system. Raises StoreError otherwise."""
    if not _NAME.match(name) or len(name) > 120:
        raise StoreError(f"{noun} {name!r} cannot be part of a file name", "use letters, digits, - and _")
    return name


def format_safe_path(path: object) -> str:
    """Return `path` if it is a valid relative file path on any system. Raises StoreError otherwise.

    Parts are separated by `/`. A part must not be empty, `.` or `..`, begin with a dash, exceed 255 bytes, or contain a
    colon, a backslash or a control character. Parts must be in Unicode normalization form C.
    """
    import unicodedata

    parts = path.split("/") if isinstance(path, str) else [""]
    for part in parts:
        is_unsafe = part in ("", ".", "..") or part.startswith("-") or not part.isprintable() or set(part) & set(":\\")
        if is_unsafe or len(part.encode(errors="replace")) > 255 or unicodedata.normalize("NFC", part) != part:
            raise StoreError(f"{path!a} cannot be the path of a file in a store", "name it with letters, digits, . - _")
    return "/".join(parts)


def sync_path(path: Path) -> None:
    """Flush one file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush every file in `folder` to disk, then all folders, the deepest first."""
    from concurrent.futures import ThreadPoolExecutor

    folders, files = [], []
    for parent, _, names in os.walk(folder, topdown=False):
        folders.append(Path(parent))
        files += [Path(parent) / name for name in names]
    with ThreadPoolExecutor(4) as pool:  # file systems commit concurrent syncs together
        list(pool.map(sync_path, files))
    for path in folders:
        sync_path(path)


def hash_file(path: Path, *, from_disk: bool = False) -> str:
    """Return the sha256 of a file in hex. With `from_disk`, cached pages are dropped first to read the disk itself.

    The file must have been synced. Systems that cannot drop pages (macOS) read the cache.
    """
    import hashlib

    with open(path, "rb") as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replace_file(path: Path, aside: Path) -> Iterator[IO[bytes]]:
    """Yield a file object that writes to `aside`. After the block, sync it and rename it to `path`.

    `aside` must be in the folder of `path`. After an error `path` is unchanged and `aside` is removed. Raises
    StoreError, DiskFullError.
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
    """Write a user's file atomically, with a mode that follows the umask. Raises OSError."""
    import tempfile

    if path.exists() and not path.is_file():  # a device or a pipe, which must not be replaced
        path.write_bytes(data)
        return
    handle, part_path = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part_path, 0o666 & ~mask)
        os.replace(part_path, path)
    except BaseException:
        os.unlink(part_path)
        raise


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError, ValueError."""
    return parse_json(path.read_bytes())


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and flush it to disk. The caller must sync its folder."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


DAY_S = 86_400.0
STAGING_PARTS = 6


@dataclass(frozen=True)
class StagedPath:
    """A file or folder in `tmp/`. `age` is the number of seconds since its newest write."""

    path: Path
    kind: str
    machine: str  # of the process that made it: `get_machine_name`, or the host name for a lock
    pid: int
    is_gone: bool | None  # whether that process has ended; None if unknown here
    age: float


def make_staging_path(tmp: Path, kind: str) -> Path:
    """Return a new path in `tmp/` for this process. Creates nothing."""
    process = get_this_process()
    owner = f"{get_machine_name()}~{process.boot_id}~{process.pid}~{process.started}"
    return tmp / f"{check_safe_name('kind', kind)}~{owner}~{os.urandom(8).hex()}"


def get_staged_kind(path: Path) -> str:
    """Return the kind encoded in a staging path. Raises StoreError for other paths."""
    parts = path.name.split("~")
    if len(parts) != STAGING_PARTS:
        raise StoreError(f"{path} is not a staging folder of this store", "make one with store.stage(kind)")
    return parts[0]


def list_stale(tmp: Path, older_than: float = DAY_S) -> list[StagedPath]:
    """Return the paths in `tmp/` left by processes that have ended, oldest first.

    If this machine cannot tell whether the process has ended, its paths count as stale after `older_than` seconds
    without a write.
    """
    now, stagings = time.time(), []
    for path in tmp.iterdir():
        staging = _read_staging(path, now)
        if staging is not None and staging.is_gone is not False and (staging.is_gone or staging.age >= older_than):
            stagings.append(staging)
    return sorted(stagings, key=lambda staging: -staging.age)


def _read_staging(path: Path, now: float) -> StagedPath | None:
    """Return the owner and age of a path in `tmp/`, or None if it is not a staging path."""
    age = now - _find_newest_write(path)
    if path.suffix == ".lock":  # records its holder
        holder = _read_holder(path)
        if holder is None:
            return StagedPath(path, "lock", "", 0, None, age)
        return StagedPath(path, "lock", holder.host, holder.pid, holder.is_gone(), age)
    parts = path.name.split("~")
    if len(parts) != STAGING_PARTS or not parts[3].isdigit():
        return None
    kind, machine, boot, pid, start, _ = parts
    is_gone = None
    with contextlib.suppress(ValueError):
        if machine == get_machine_name():
            is_gone = ProcessId(socket.gethostname(), read_system_id(), boot, int(pid), float(start)).is_gone()
    return StagedPath(path, kind, machine, int(pid), is_gone, age)


def _read_holder(lock: Path) -> ProcessId | None:
    """Return the process recorded in a lock file, or None."""
    try:
        return ProcessId.from_record(parse_json(lock.read_bytes()[:1000]))
    except (OSError, ValueError):
        return None


def remove_staging(path: Path) -> None:
    """Remove a stale path. A lock is removed only if no process has taken it since."""
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
    """Remove a staging file or folder. It may be missing."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class WriterLock:
    """An exclusive lock in `tmp/`, released when its process ends. If it is held, the constructor raises StoreError.

    On file systems without locks nothing is locked; the rename at publication still lets only the first writer win.
    """

    def __init__(self, tmp: Path, name: str, description: str = "") -> None:
        """Take the lock `name`. Messages call the locked object `description`."""
        self._path = tmp / f"{name}.lock"
        self._handle = -1
        with convert_os_errors(f"lock {description or name}"):
            while not self._acquire(description or name):
                pass

    def _acquire(self, description: str) -> bool:
        """Lock the file. Return False if it was removed meanwhile, so the caller must try again.

        Raises LockHeldError with `description` and the process that holds the lock. Without file locks, return True.
        """
        import fcntl

        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            holder = _read_holder(self._path)
            holder_text = f"process {holder.pid} on {holder.host}" if holder else "another process"
            raise LockHeldError(
                f"{description} is being written by {holder_text}", "wait for it, or stop that process"
            ) from None
        except OSError:  # the file system has no locks
            os.close(handle)
            return True
        try:  # the last holder may have removed the file between open and lock
            if not os.path.samestat(os.fstat(handle), os.stat(self._path)):
                raise FileNotFoundError
        except FileNotFoundError:
            os.close(handle)
            return False
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(get_this_process().record()).encode(), 0)
        self._handle = handle
        return True

    def release(self) -> None:
        """Release the lock. May be called more than once."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._handle)
            self._handle = -1


def _find_newest_write(path: Path) -> float:
    """Return the time of the last change of a file or of anything in a folder, in seconds since 1970. 0 if missing."""
    newest_write = 0.0
    with contextlib.suppress(FileNotFoundError):
        newest_write = path.lstat().st_mtime
        for parent, folders, names in os.walk(path):
            for name in (*folders, *names):
                with contextlib.suppress(FileNotFoundError):
                    newest_write = max(newest_write, (Path(parent) / name).lstat().st_mtime)
    return newest_write
