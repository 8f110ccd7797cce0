"""Protects the POSIX locks that SQLite holds in this process.

A process loses all its locks on a file when it closes any descriptor of that file (sqlite.org/howtocorrupt.html, 2.2).
Another process may then delete the write-ahead log while this process still writes to it, and committed data is lost.
This leads to three rules:

1. Only SQLite opens a registry that this process has open. Other code uses `stat`; SQLite checks the header; raw copies
are made by another process; and a user's path that leads to the registry is refused.

2. This process contains two SQLite libraries, Python's and ADBC's. Neither knows the other's locks, and each drops them
when it closes the file. `FileGate` lets only one of them have a file open at a time.

3. A forked child must not inherit connections, because its SQLite would count the parent's locks as its own. Idle
connections are closed before a fork, and a file in use at that moment cannot be opened by the child.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakMethod, WeakValueDictionary

from chessreg.errors import BadInputError
from store.files import make_file

FileKey = tuple[int, int]  # device and inode
FILE_SUFFIXES = ("", "-wal", "-shm", "-journal")


class FileGate:
    """Admits one SQLite library at a time to a file. Connections of the same library may share the file.

    Other processes are not affected.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._own_counts: Counter[int] = Counter()  # thread → its open transactions through Python's SQLite
        self._foreign: Counter[int] = Counter()  # thread → its open reads through ADBC's
        self._waiting_count = 0

    @contextmanager
    def use_with_python(self) -> Iterator[None]:
        """Use the file through Python's SQLite. Blocks while ADBC reads it or waits for it. May be nested."""
        thread = threading.get_ident()
        with self._change:
            if self._foreign[thread]:
                raise RuntimeError("this thread reads the registry through ADBC; end that first")
            if not self._own_counts[thread]:
                self._change.wait_for(lambda: not self._waiting_count and not self._foreign.total())
            self._own_counts[thread] += 1
        try:
            yield
        finally:
            self._leave(self._own_counts, thread)

    @contextmanager
    def use_with_adbc(self) -> Iterator[None]:
        """Use the file through ADBC's SQLite. Waits for open transactions to end, then closes idle connections."""
        thread = threading.get_ident()
        with self._change:
            if self._own_counts[thread]:
                raise RuntimeError("a query inside read() or write() would deadlock")
            self._waiting_count += 1
            try:
                self._change.wait_for(lambda: not self._own_counts.total())
                if not self._foreign.total():
                    close_idle_connections()
                self._foreign[thread] += 1
            finally:
                self._waiting_count -= 1
                self._change.notify_all()
        try:
            yield
        finally:
            self._leave(self._foreign, thread)

    def is_entered(self) -> bool:
        """Return whether this thread is inside `use_with_python()`."""
        return self._own_counts[threading.get_ident()] > 0

    def is_used(self) -> bool:
        """Return whether any thread is inside `use_with_python()` or `use_with_adbc()`."""
        return bool(self._own_counts.total() or self._foreign.total())

    def _leave(self, counts: Counter[int], me: int) -> None:
        with self._change:
            counts[me] -= 1
            if not counts[me]:
                del counts[me]
            self._change.notify_all()


_guard = threading.Lock()  # protects the variables below
_gates: WeakValueDictionary[FileKey, FileGate] = WeakValueDictionary()
_users: list[tuple[Path, WeakMethod[Callable[[], None]]]] = []  # registry path, function that closes idle connections
_in_use: set[FileKey] = set()  # files in use when a fork begins
_inherited_files: set[FileKey] = set()  # files that this process's parent was using when it forked


def get_file_gate(path: Path) -> FileGate:
    """Return the gate of the file that `path` leads to. All names of one file share one gate.

    Raises RuntimeError in a forked child whose parent was using the file at the moment of the fork.
    """
    key = get_file_key(path)
    with _guard:
        if key is None:
            return FileGate()  # a missing file cannot be open
        if key in _inherited_files:
            raise RuntimeError(f"{path} was in use when this process was forked; start processes with 'spawn' instead")
        gate = _gates.get(key)
        if gate is None:
            gate = _gates[key] = FileGate()
        return gate


def require_entered(path: Path) -> None:
    """Raise RuntimeError unless this thread is inside `get_file_gate(path).use_with_python()`.

    Every connection must be opened there.
    """
    if get_file_key(path) is not None and not get_file_gate(path).is_entered():
        raise RuntimeError(f"{path} is opened outside its FileGate")


def create_file(path: Path) -> None:
    """Create an empty file (see `make_file`) while no thread can have it open. Raises OSError."""
    with _guard:
        make_file(path)


def register_user(path: Path, close: Callable[[], None]) -> None:
    """Record that `path` is in use by the owner of `close`, a bound method that closes its idle connections."""
    with _guard:
        _users[:] = [user for user in _users if user[1]() is not None]
        _users.append((path, WeakMethod(close)))


def close_idle_connections() -> None:
    """Close every idle connection of this process, whichever registry it belongs to."""
    for _, reference in list(_users):
        close = reference()
        if close is not None:
            close()


def list_registry_file_keys(registry: Path) -> set[FileKey]:
    """Return the keys of a registry's existing files: database, write-ahead log, shared memory and journal."""
    keys = (get_file_key(registry.with_name(registry.name + suffix)) for suffix in FILE_SUFFIXES)
    return {key for key in keys if key is not None}


def open_file_keys() -> set[FileKey]:
    """Return the keys of all files of the registries that this process uses. Only SQLite may open these files."""
    return set().union(*(list_registry_file_keys(registry) for registry, close in list(_users) if close() is not None))


def refuse_registry(path: Path) -> None:
    """Raise BadInputError if `path`, under any name, is a file of a registry that this process uses."""
    if get_file_key(path) in open_file_keys():
        raise BadInputError(f"{path} belongs to the open registry", "name another file")


def get_file_key(path: Path) -> FileKey | None:
    """Return the device and inode that `path` leads to, or None if no such file exists."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    return status.st_dev, status.st_ino


def _before_fork() -> None:
    _guard.acquire()  # no thread enters a gate until the fork is over
    _in_use.update(key for key, gate in _gates.items() if gate.is_used())
    close_idle_connections()


def _after_fork_in_parent() -> None:
    _in_use.clear()
    _guard.release()


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _inherited_files.update(_in_use)
    _in_use.clear()
    _gates.clear()  # their conditions may be held by threads that do not exist here


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
