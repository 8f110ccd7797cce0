"""Turns at a SQLite file between the two copies of SQLite in this process: Python's own, and the one inside ADBC.

File locks belong to a process, not to a library: two copies do not see each other's locks, and when one of them closes
the file, the other's locks are gone (sqlite.org/howtocorrupt.html, 2.2.1). So while the stranger reads, Python's copy
has no connection open, and the other way round. Other processes are not affected.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakMethod, WeakValueDictionary


class Turns:
    """Whose turn it is at one file. Strangers may share a turn, and so may we."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()  # thread → how many of our transactions it is in
        self._strangers: Counter[int] = Counter()
        self._waiting = 0
        self._closers: list[WeakMethod[Callable[[], None]]] = []

    def closes_with(self, close: Callable[[], None]) -> None:
        """`close` (a bound method) closes the idle connections of one of ours; it is held weakly."""
        with self._changed:
            self._closers = [held for held in self._closers if held() is not None]
            self._closers.append(WeakMethod(close))

    @contextmanager
    def ours(self) -> Iterator[None]:
        """A transaction of Python's SQLite; waits while a stranger reads or is about to."""
        me = threading.get_ident()
        with self._changed:
            if self._strangers[me]:
                raise RuntimeError("this thread reads the registry through ADBC; end that first")
            if not self._inside[me]:
                self._changed.wait_for(lambda: not self._waiting and not self._strangers.total())
            self._inside[me] += 1
        try:
            yield
        finally:
            self._leave(self._inside, me)

    @contextmanager
    def stranger(self) -> Iterator[None]:
        """The other copy's turn: waits until none of our transactions is open, and closes our connections."""
        me = threading.get_ident()
        with self._changed:
            if self._inside[me]:
                raise RuntimeError("a query inside read() or write() would wait for itself for ever")
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._inside.total())
                if not self._strangers.total():
                    for held in self._closers:
                        close = held()
                        if close is not None:
                            close()
                self._strangers[me] += 1
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            self._leave(self._strangers, me)

    def _leave(self, held: Counter[int], me: int) -> None:
        with self._changed:
            held[me] -= 1
            if not held[me]:
                del held[me]
            self._changed.notify_all()


_turns: WeakValueDictionary[Path, Turns] = WeakValueDictionary()
_lock = threading.Lock()


def turns_at(path: Path) -> Turns:
    """The turns at this file, the same for everybody in this process."""
    with _lock:
        found = _turns.get(path.resolve())
        if found is None:
            found = _turns[path.resolve()] = Turns()
        return found
