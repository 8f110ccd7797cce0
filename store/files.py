"""Files that survive a crash: fsync in the right order, digests, and OS errors told in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from store.errors import StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")


@contextlib.contextmanager
def explained(action: str) -> Iterator[None]:
    """Turn an OSError inside the block into one StoreError: `cannot <action>: <reason>`."""
    try:
        yield
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        reason = (error.strerror or str(error)) + where
        hint = ""
        if error.errno in _FULL:
            reason, hint = f"the disk is full{where}", "free some space, then run the same command again"
        elif error.errno in _DENIED:
            hint = "check the owner and the permissions of that folder"
        raise StoreError(f"cannot {action}: {reason}", hint) from error


def safe_name(what: str, name: str) -> str:
    """`name` itself if it can be part of a file name on any system, else StoreError."""
    if not _NAME.match(name) or len(name) > 120:
        raise StoreError(f"{what} {name!r} cannot be part of a file name", "use letters, digits, - and _")
    return name


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


def write_synced(path: Path, data: bytes) -> None:
    """Write a whole file and force it to the disk (its folder is the caller's)."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
