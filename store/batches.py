"""Shuffled batches of activations: chunks in random order, mixed in a buffer and read ahead in a thread.

Each row is read once per epoch, and chunks without kept rows are not read. The order depends only on (seed, epoch) and
on the layout of the array on disk.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from store.array_format import decode_float32


@dataclass(frozen=True)
class Batch:
    """Aligned rows of one or more hook points: `rows` are row numbers int64 [n], `layers[hook point]` is [n,
    d_model]."""

    rows: np.ndarray
    layers: dict[str, np.ndarray]
    dtype: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, hook_point: str) -> np.ndarray:
        return self.layers[hook_point]

    def float32(self, hook_point: str) -> np.ndarray:
        """Return the activations of one hook point as float32, exactly."""
        return decode_float32(self.layers[hook_point], self.dtype)


Columns = list[np.ndarray]  # row numbers, then one array per hook point, all of the same length


def read_ahead(load: object, order: list[tuple[int, int, int, np.ndarray]], prefetch: int) -> Iterator[Columns]:
    """Yield `load(*entry)` for each entry of `order`, in order. A thread loads up to `prefetch` entries ahead."""
    assert callable(load)
    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    futures: deque[Future[Columns]] = deque()
    try:
        for entry in order:
            futures.append(pool.submit(load, *entry))
            if len(futures) > prefetch:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:  # also when the caller leaves the loop early
        pool.shutdown(wait=True, cancel_futures=True)


def mix_rows(chunks: Iterator[Columns], capacity: int, generator: np.random.Generator) -> Iterator[Columns]:
    """Yield rows in random order through a buffer of `capacity` rows. Once it is full, new rows replace random ones."""
    pool: Columns = []
    row_count = 0
    for columns in chunks:
        if not pool:
            pool = [np.empty((capacity, *column.shape[1:]), column.dtype) for column in columns]
        room = min(capacity - row_count, len(columns[0]))
        if room:
            for pool_column, column in zip(pool, columns, strict=True):
                pool_column[row_count : row_count + room] = column[:room]
            row_count += room
        count = len(columns[0]) - room
        if count:
            places = generator.choice(capacity, count, replace=False)
            yield [pool_column[places] for pool_column in pool]
            for pool_column, column in zip(pool, columns, strict=True):
                pool_column[places] = column[room:]
    places = generator.permutation(row_count)
    if row_count:
        yield [pool_column[places] for pool_column in pool]


def cut_into_batches(pieces: Iterator[Columns], batch_rows: int, drop_last: bool) -> Iterator[Columns]:
    """Yield batches of `batch_rows` rows from pieces of any length."""
    pending: list[Columns] = []
    count = 0
    for piece in pieces:
        low = 0
        while low < len(piece[0]):
            high = min(len(piece[0]), low + batch_rows - count)
            pending.append([column[low:high] for column in piece])
            count += high - low
            low = high
            if count == batch_rows:
                yield _join_pieces(pending)
                pending, count = [], 0
    if pending and not drop_last:
        yield _join_pieces(pending)


def _join_pieces(parts: list[Columns]) -> Columns:
    return parts[0] if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def make_batch_generator(*key: int) -> np.random.Generator:
    """Return a random generator that depends only on `key`."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
