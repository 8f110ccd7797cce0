"""Stopping a question from another thread than the one that asks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from chessreg.errors import ChessregError

T = TypeVar("T")
LOOK = 0.05  # seconds between looks whether to stop
_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


class StoppedError(ChessregError):
    """The caller does not wait for the answer any more."""


@contextmanager
def stopped_by(stop: threading.Event) -> Iterator[None]:
    """What this thread asks inside ends soon after `stop` is set, with StoppedError."""
    before = _STOP.set(stop)
    try:
        yield
    finally:
        _STOP.reset(before)


def awaited(work: Future[T], until: float) -> T:
    """What `work` gives. Raises what it raises, TimeoutError when it is `until` by the monotonic clock, and
    StoppedError."""
    stop = _STOP.get()
    while True:
        left = max(0.0, until - time.monotonic())
        try:
            return work.result(left if stop is None else min(left, LOOK))
        except TimeoutError:
            if work.done() or left <= LOOK:
                return work.result(0)
            if stop is not None and stop.is_set():
                raise StoppedError("the query was stopped") from None
