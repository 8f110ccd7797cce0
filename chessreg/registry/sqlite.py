"""SQLite: the choice of the library, opening of files, and durability of commits.

A commit is on disk when it returns (`synchronous=FULL`), so rows in the registry survive a power cut and their
fragments may be deleted. CHESSREG_SYNCHRONOUS=NORMAL defers this to the next checkpoint, for disks that flush slowly.

Up to version 3.51.2, two processes that write and checkpoint a write-ahead log concurrently can lose committed pages
("the WAL-reset bug", sqlite.org/wal.html). Python's own SQLite is often older, so the wheel `pysqlite3` is used if
installed. Without it, an old SQLite writes a rollback journal.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from chessreg.errors import BadInputError, RegistryError
from chessreg.registry.file_gate import get_file_gate, require_entered
from store.files import DISK_FULL, has_space, is_disk_full

if TYPE_CHECKING:
    import sqlite3 as dbapi
    from sqlite3 import Connection
else:
    try:
        from pysqlite3 import dbapi2 as dbapi
    except ImportError:
        import sqlite3 as dbapi
    Connection = dbapi.Connection

BUSY_TIMEOUT_S = 30.0
OLD_SQLITE_WARNING = (
    f"SQLite {dbapi.sqlite_version} can lose commits of a write-ahead log when two processes write at once; "
    "install a newer one with `pip install pysqlite3`"
)


def is_log_safe(version: tuple[int, ...]) -> bool:
    """Return whether this version of SQLite keeps every commit when two processes checkpoint concurrently.

    >>> [is_log_safe(v) for v in [(3, 40, 1), (3, 44, 6), (3, 50, 7), (3, 51, 2), (3, 51, 3)]]
    [False, True, True, False, True]
    """
    return version >= (3, 51, 3) or (
        version[:2] in ((3, 50), (3, 44)) and version[2:] >= {50: (7,), 44: (6,)}[version[1]]
    )


def is_write_ahead_log_used(network: bool) -> bool:
    """Return whether to use a write-ahead log: not on a network file system, and not with an unsafe SQLite version."""
    return not network and is_log_safe(dbapi.sqlite_version_info)


def make_sqlite_uri(path: Path, mode: str) -> str:
    """Return the URI with which SQLite opens a file in mode `ro`, `rw` or `rwc` (created if it does not exist)."""
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


def _open_gated(path: Path, mode: str) -> Connection:
    """Open a registry. The caller must be inside `get_file_gate(path).use_with_python()`."""
    require_entered(path)
    return _open_connection(path, mode)


def _open_connection(path: Path, mode: str) -> Connection:
    # isolation_level=None: Python must not begin transactions; SQLAlchemy gives each connection to one thread.
    connection = dbapi.connect(
        make_sqlite_uri(path, mode), uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA foreign_keys=ON")
    return connection


def open_writable(path: Path, network: bool) -> Connection:
    """Return a connection that writes, with its journal mode set."""
    connection = _open_gated(path, "rw")
    try:
        _set_journal(connection, path, network)
    except BaseException:
        connection.close()
        raise
    return connection


def read_rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a SELECT from a registry. Raises dbapi.Error if it cannot be read."""
    with get_file_gate(path).use_with_python():
        connection = _open_gated(path, "ro")
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


def check_integrity(path: Path) -> list[str]:
    """Return the problems that SQLite's own check finds in a file. Reads the whole file."""
    with get_file_gate(path).use_with_python():
        connection = _open_gated(path, "ro")
        try:
            rows = connection.execute("PRAGMA quick_check(20)").fetchall()
        except dbapi.DatabaseError as error:
            return [str(error)]
        finally:
            connection.close()
    return [row[0] for row in rows if row[0] != "ok"]


def read_synchronous_mode() -> str:
    """Return the value of CHESSREG_SYNCHRONOUS, by default FULL. Raises BadInputError for an unknown value."""
    word = os.environ.get("CHESSREG_SYNCHRONOUS", "FULL").upper()
    if word not in ("FULL", "NORMAL", "EXTRA"):
        raise BadInputError(f"CHESSREG_SYNCHRONOUS is {word!r}", "FULL, EXTRA or NORMAL")
    return word


def _set_journal(connection: Connection, path: Path, network: bool) -> None:
    """Set a write-ahead log on a local disk, or a rollback journal on a network file system or with an old SQLite.

    Changing the mode needs exclusive access, for which SQLite itself does not wait.
    """
    journal_mode = "wal" if is_write_ahead_log_used(network) else "delete"
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            if network:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # reads an existing log without shared memory
            before = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if before != journal_mode:
                connection.execute(f"PRAGMA journal_mode={journal_mode}")
            if network:
                connection.execute("PRAGMA locking_mode=NORMAL")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # releases the exclusive lock
            break
        except dbapi.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if (
        journal_mode == "delete"
        and not network
        and (before == "wal" or connection.execute("PRAGMA page_count").fetchone()[0] == 0)
    ):
        print(f"chessreg: {path} is written with a rollback journal: {OLD_SQLITE_WARNING}", file=sys.stderr)
    connection.execute(f"PRAGMA synchronous={read_synchronous_mode()}")


def open_readable(path: Path, copies: RegistryCopies) -> Connection:
    """Return a read-only connection, to a private copy of the registry if the file cannot be locked."""
    connection = _open_gated(path, "ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    except dbapi.DatabaseError as error:
        # Reading a write-ahead log needs a shared index file, which cannot be created here. immutable=1 would silently
        # ignore the log, but a copy of both files contains all committed rows.
        connection.close()
        if not isinstance(error, dbapi.OperationalError) or "locked" in str(error):
            raise
        try:
            return copies.connect(path)
        except (OSError, subprocess.SubprocessError) as failure:
            place = copies.remove()
            if is_disk_full(failure) or not has_space(Path(tempfile.gettempdir())):  # cp reports only an exit status
                problem = f"{DISK_FULL} at {place or tempfile.gettempdir()}, where its copy would be written"
                raise RegistryError(
                    f"the registry {path} cannot be locked, and {problem}",
                    "free some space there, or set TMPDIR to another folder",
                ) from failure
            raise error from None


class RegistryCopies:
    """Private copies of registries that cannot be read in place."""

    def __init__(self) -> None:
        self.folder: str | None = None

    def get_copy(self, path: Path) -> Path:
        """Return the copy that is read in place of `path`, or `path`."""
        return Path(self.folder) / path.name if self.folder else path

    def connect(self, path: Path) -> Connection:
        """Open a fresh copy of the database and its log. Prints a message to stderr the first time."""
        is_copied = self.folder is not None
        self.remove()
        self.folder = tempfile.mkdtemp(prefix="chessreg-")
        copy = self.get_copy(path)
        for suffix in ("", "-wal", "-journal"):
            if (source := path.with_name(path.name + suffix)).exists():
                # In another process: closing the file here would drop the locks of open connections (file_gate).
                words = ["cp", "--", str(source), str(copy.with_name(copy.name + suffix))]
                subprocess.run(words, check=True, capture_output=True)
        if not is_copied:
            print(f"chessreg: {path} cannot be locked: reading a copy of its current state", file=sys.stderr)
        connection = _open_connection(copy, "rw")
        connection.execute("PRAGMA query_only=ON")
        return connection

    def remove(self) -> str | None:
        """Remove the copy. Return the folder that held it, or None."""
        folder, self.folder = self.folder, None
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        return folder


# -- network file systems ----------------------------------------------------------------------------------------------

MOUNTS_FILE = Path("/proc/mounts")
NETWORK_FILE_SYSTEMS = frozenset(
    (
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "davfs",
            "davfs2",
            "gfs",
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "mfs",
        ),
        *("ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "s3fs", "smb2", "smb3", "smbfs"),
        *("sshfs", "vboxsf", "webdav", "wekafs"),
    )
)


def find_network_file_system(path: Path, mounts: Path = MOUNTS_FILE) -> str | None:
    """Return the type of the network file system that holds `path`, or None for a local one. `path` need not exist.

    CHESSREG_NETWORK_FILESYSTEM=1 or 0 overrides the detection, for types that chessreg does not know.
    """
    setting = os.environ.get("CHESSREG_NETWORK_FILESYSTEM")
    if setting is not None:
        return "network" if setting not in ("", "0") else None
    kind = _file_system_type(path.resolve(), mounts)
    name = kind.removeprefix("fuse.").removeprefix("fuse")
    return kind if name in NETWORK_FILE_SYSTEMS else None


def _file_system_type(path: Path, mounts: Path) -> str:
    """Return the type of the mount that holds `path`: the one with the longest folder, and of equal ones the last."""
    best_length, file_system = -1, ""
    for folder, kind in _read_mounts(mounts):
        if path.is_relative_to(folder) and len(folder.parts) >= best_length:
            best_length, file_system = len(folder.parts), kind
    return file_system


def _read_mounts(mounts: Path) -> list[tuple[Path, str]]:
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # macOS
        import psutil

        return [(Path(part.mountpoint), part.fstype) for part in psutil.disk_partitions(all=True)]
    fields = [line.split(" ") for line in lines]
    return [(Path(_unescape_mount(f[1])), f[2]) for f in fields if len(f) > 2]


def _unescape_mount(text: str) -> str:
    r"""Decode octal escapes of /proc/mounts, such as \040 for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
