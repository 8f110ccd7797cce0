"""Stop a query from another thread."""

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
POLL_INTERVAL_S = 0.05  # interval between checks of `stop`
_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


class StoppedError(ChessregError):
    """Raised if the caller no longer waits for the answer."""


@contextmanager
def stop_queries_on(stop: threading.Event) -> Iterator[None]:
    """End the queries of this thread within the block soon after `stop` is set, with StoppedError."""
    before = _STOP.set(stop)
    try:
        yield
    finally:
        _STOP.reset(before)


def wait_for_result(work: Future[T], until: float) -> T:
    """Return the result of `work`. Raises its errors, TimeoutError at the monotonic time `until`, and StoppedError."""
    stop = _STOP.get()
    while True:
        remaining_s = max(0.0, until - time.monotonic())
        try:
            return work.result(remaining_s if stop is None else min(remaining_s, POLL_INTERVAL_S))
        except TimeoutError:
            if work.done() or remaining_s <= POLL_INTERVAL_S:
                return work.result(0)
            if stop is not None and stop.is_set():
                raise StoppedError("the query was stopped") from None
