"""The batches of an epoch: which items of a corpus are in batch k, in memory that does not grow with the corpus.

Batch k of epoch e is a function of (corpus, config, e, k) alone, not of the number of processes. Up to `DRAWN_ITEMS`
items, numpy draws the epoch's permutation, which then takes at most 32 MiB. The order of a larger corpus is a keyed
permutation that is computed where it is read: an alternating Feistel network over the smallest power of two that holds
the items, applied again to results outside them (cycle walking; Black and Rogaway 2002). Imports only numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chessreg.models.corpus import Corpus, PositionCorpus
from chessreg.models.train_config import POSITION_TRAININGS, TextTraining, TrainConfig

SEED_COUNT = 2**64  # torch and numpy accept seeds below this
DRAWN_ITEMS = 1 << 22
BUCKET_ITEMS = 4096  # games that are sorted by length
SCANNED_ITEMS = 1 << 16
FEISTEL_ROUNDS = 8

Batch = list[list[int]]
"""Rows, each of one or several items."""


def make_epoch_generator(seed: int, epoch: int, *more: int) -> np.random.Generator:
    """Return the generator of an epoch. numpy accepts no negative seeds."""
    return np.random.default_rng([seed % SEED_COUNT, epoch, *more])


class EpochOrder:
    """The order of `count` items in one epoch. `random` continues after the draws that it needs."""

    def __init__(self, seed: int, epoch: int, count: int) -> None:
        self.count = count
        self.random = make_epoch_generator(seed, epoch)
        self.is_drawn = count <= DRAWN_ITEMS
        if self.is_drawn:
            self._permutation = self.random.permutation(count)
        else:
            self._keys = self.random.bit_generator.random_raw(FEISTEL_ROUNDS)

    def items(self, start: int, stop: int) -> np.ndarray:
        """Return the items at places start to stop (or the last) of the order, int64."""
        if self.is_drawn:
            return self._permutation[start:stop]
        return permute_places(np.arange(start, min(stop, self.count)), self.count, self._keys)


def permute_places(places: np.ndarray, count: int, keys: np.ndarray) -> np.ndarray:
    """Return the images int64 [n] of `places` int64 [n] under the permutation of 0 to count - 1 that `keys` uint64
    [rounds] choose. Equal on every machine."""
    bits = max(2, (count - 1).bit_length())
    images = _apply_feistel(places.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(images >= count)
    while len(outside):
        images[outside] = _apply_feistel(images[outside], bits, keys)
        outside = outside[images[outside] >= count]
    return images.astype(np.int64)


def _apply_feistel(numbers: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """Return a permutation of the numbers below 2**bits, uint64 [n]."""
    low = np.uint64(bits // 2)
    masks = np.uint64(1) << low, np.uint64(1) << np.uint64(bits - bits // 2)
    halves = [numbers & (masks[0] - np.uint64(1)), numbers >> low]
    for number, key in enumerate(keys):
        half = number % 2
        halves[half] ^= _mix_bits(halves[1 - half] ^ key) & (masks[half] - np.uint64(1))
    return halves[1] << low | halves[0]


def _mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers uint64 [n] scrambled (splitmix64's finalizer)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)


def iterate_batches(
    corpus: Corpus | PositionCorpus, config: TrainConfig, epoch: int, first_batch: int = 0
) -> Iterator[Batch]:
    """Yield the batches of one epoch from batch `first_batch` on: rows of items. A pure function of its arguments."""
    order = EpochOrder(config.draw_seed, epoch, len(corpus))
    if isinstance(config, POSITION_TRAININGS):
        return iterate_items(order, config.batch_moves, first_batch)
    assert isinstance(config, TextTraining)
    rows = max(1, config.batch_tokens // config.block_size)
    if config.packing == "stream":
        return iterate_items(order, rows, first_batch)
    if config.packing == "blocks":
        return _iterate_blocks(corpus, order, config.block_size + 1, rows, first_batch)
    cutter = _BucketCutter(corpus, config.block_size + 1, config.batch_tokens)
    return (
        _iterate_drawn_buckets(cutter, order, first_batch)
        if order.is_drawn
        else _iterate_buckets(cutter, order, config, epoch, first_batch)
    )


def iterate_items(order: EpochOrder, size: int, first_batch: int = 0) -> Iterator[Batch]:
    """Yield batches of `size` items, each in its own row, from batch `first_batch` on."""
    for start in range(first_batch * size, order.count, size):
        yield order.items(start, start + size)[:, None].tolist()


def _iterate_blocks(
    corpus: Corpus | PositionCorpus, order: EpochOrder, limit: int, size: int, first_batch: int
) -> Iterator[Batch]:
    """Yield batches of `size` rows, each of the fewest items that have `limit` tokens. A last row with fewer tokens is
    dropped."""
    number, rows = 0, list[np.ndarray]()
    remaining_items = np.zeros(0, np.int64)  # items of a row that is not full yet
    for place in range(0, order.count, SCANNED_ITEMS):
        items = np.concatenate([remaining_items, order.items(place, place + SCANNED_ITEMS)])
        ends = np.cumsum(corpus.compute_lengths(items))
        row_ends = (np.searchsorted(ends, np.append(0, ends[:-1]) + limit) + 1).tolist()  # where a row from i ends
        start = 0
        while start < len(items) and (stop := row_ends[start]) <= len(items):
            rows.append(items[start:stop])
            start = stop
            if len(rows) == size:
                if number >= first_batch:
                    yield [row.tolist() for row in rows]
                number, rows = number + 1, []
        remaining_items = items[start:]
    if rows and number >= first_batch:
        yield [row.tolist() for row in rows]


class _BucketCutter:
    """Cuts buckets of games into batches of games of similar length, padded to at most `batch_tokens` tokens."""

    def __init__(self, corpus: Corpus | PositionCorpus, limit: int, batch_tokens: int) -> None:
        self.corpus, self.limit, self.batch_tokens = corpus, limit, batch_tokens

    def cut(self, items: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Return the items in order of length, and where each batch begins in them."""
        lengths = self.corpus.compute_lengths(items)
        by_length = np.argsort(lengths, kind="stable")
        widths = np.minimum(lengths[by_length], self.limit)
        starts, start = [], 0
        while start < len(items):
            starts.append(start)
            most = max(1, self.batch_tokens // max(1, int(widths[start])))  # of games as short as the first
            token_counts = widths[start : start + most] * np.arange(1, min(most, len(items) - start) + 1)
            start += max(1, int(np.searchsorted(token_counts, self.batch_tokens, "right")))
        return items[by_length], starts


def _iterate_drawn_buckets(cutter: _BucketCutter, order: EpochOrder, first_batch: int) -> Iterator[Batch]:
    """Yield the batches of all buckets in a drawn order."""
    games, starts = [], [np.zeros(0, np.int64)]
    for place in range(0, order.count, BUCKET_ITEMS):
        items, batch_starts = cutter.cut(order.items(place, place + BUCKET_ITEMS))
        games.append(items)
        starts.append(np.array(batch_starts) + place)
    every, edges = np.concatenate(games), np.append(np.concatenate(starts), order.count)
    for number in order.random.permutation(len(edges) - 1)[first_batch:].tolist():
        yield every[edges[number] : edges[number + 1], None].tolist()


def _iterate_buckets(
    cutter: _BucketCutter, order: EpochOrder, config: TrainConfig, epoch: int, first_batch: int
) -> Iterator[Batch]:
    """Yield the batches of one epoch from number `first_batch`, one bucket after the other, in a drawn order within
    each bucket.
    """
    number = 0
    for bucket, place in enumerate(range(0, order.count, BUCKET_ITEMS)):
        games, starts = cutter.cut(order.items(place, place + BUCKET_ITEMS))
        if number + len(starts) > first_batch:
            edges = [*starts, len(games)]
            permutation = make_epoch_generator(config.draw_seed, epoch, bucket).permutation(len(starts))
            for batch in permutation[max(0, first_batch - number) :].tolist():
                yield games[edges[batch] : edges[batch + 1], None].tolist()
        number += len(starts)
