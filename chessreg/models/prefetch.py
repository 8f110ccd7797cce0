"""Batches prepared ahead of training by a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def prefetch(items: Iterator[T], ahead: int) -> Iterator[Iterator[T]]:
    """Yield an iterator over endless `items` of which one thread prepares the next `ahead`, in order.

    An error of `items` is raised where the item would be returned. After the block, the thread has ended.
    """
    pool = ThreadPoolExecutor(1, "batches")
    pending_items = deque(pool.submit(next, items) for _ in range(ahead))

    def take() -> Iterator[T]:
        while True:
            pending_items.append(pool.submit(next, items))
            yield pending_items.popleft().result()

    try:
        yield take()
    finally:
        pool.shutdown(cancel_futures=True)
