"""The order of the data: unchanged up to DRAWN_ITEMS items, a computed permutation above, batches by number."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chessreg.models import epochs
from chessreg.models.corpus import Corpus, PositionCorpus, RowReader
from chessreg.models.epochs import EpochOrder, iterate_batches, make_epoch_generator, permute_places
from chessreg.models.prefetch import prefetch
from chessreg.models.train_config import POSITION_TRAININGS, PositionTraining, TextTraining, TrainConfig
from chessreg.models.training import Trainer, TrainerOptions

CONFIG = TextTraining(n_layer=2, n_head=2, n_embd=32, block_size=31, batch_tokens=310, warmup_steps=5, seed=3,
                      learning_rate=5e-3, steps=12)  # fmt: skip
POSITIONS = PositionTraining(n_layer=1, n_head=2, n_embd=16, batch_moves=64)
PACKINGS = ("blocks", "games", "stream", "positions")
LOSSES = {  # of steps 5, 10 and 12 on 60 games, from the version before corpora were mapped from files
    "blocks": [3.25751, 2.57205, 2.28404],
    "games": [3.25255, 2.55668, 2.24413],
    "stream": [3.2561, 2.58041, 2.27178],
}


def make_corpus(games: int) -> Corpus:
    """Games that can be learnt: `;` and a run that counts up from a random start."""
    rng = np.random.default_rng(0)
    rows = [np.r_[15, (rng.integers(20) + np.arange(rng.integers(8, 60))) % 12] for _ in range(games)]
    return Corpus(np.concatenate(rows).astype(np.uint8), np.r_[0, np.cumsum([len(r) for r in rows])])


def make_data(packing: Any, items: int) -> tuple[Corpus | PositionCorpus, Any]:
    if packing == "positions":
        return PositionCorpus(np.zeros((items, 77), np.uint8), np.zeros(items, np.int16)), POSITIONS
    config = replace(CONFIG, packing=packing)
    made = make_corpus(items)
    return (made.stream(config.block_size) if packing == "stream" else made), config


def list_earlier_batches(corpus: Corpus | PositionCorpus, config: TrainConfig, epoch: int) -> list[list[list[int]]]:
    """The batches of an epoch as the version before this module made them, one Python list for each item."""
    lengths = corpus.compute_lengths(np.arange(len(corpus)))
    rng = make_epoch_generator(config.draw_seed, epoch)
    order = rng.permutation(len(lengths))
    if isinstance(config, POSITION_TRAININGS):
        return [order[i : i + config.batch_moves, None].tolist() for i in range(0, len(order), config.batch_moves)]
    assert isinstance(config, TextTraining)
    limit = config.block_size + 1
    size = max(1, config.batch_tokens // config.block_size)
    if config.packing == "stream":
        return [order[i : i + size, None].tolist() for i in range(0, len(order), size)]
    if config.packing == "blocks":
        rows: list[list[int]] = [[]]
        filled = 0
        for game in order.tolist():
            rows[-1].append(game)
            filled += int(lengths[game])
            if filled >= limit:
                rows.append([])
                filled = 0
        rows.pop()
        return [rows[i : i + size] for i in range(0, len(rows), size)]
    batches: list[list[list[int]]] = []
    for start in range(0, len(order), 4096):
        bucket = sorted(order[start : start + 4096].tolist(), key=lambda g: int(lengths[g]))
        batch: list[list[int]] = []
        for game in bucket:
            if batch and min(int(lengths[game]), limit) * (len(batch) + 1) > config.batch_tokens:
                batches.append(batch)
                batch = []
            batch.append([game])
        batches.append(batch)
    return [batches[i] for i in rng.permutation(len(batches))]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("items", [1, 37, 9000])
def test_batches_of_a_small_corpus_are_those_of_earlier_versions(
    packing: str, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "SCANNED_ITEMS", 500)  # rows continue from one scan to the next
    data, config = make_data(packing, items)
    for epoch, batch_size in ((0, 310), (3, 64), (4, 2000)):
        tried = replace(config, batch_tokens=batch_size) if packing != "positions" else config
        expected = list_earlier_batches(data, tried, epoch)
        assert list(iterate_batches(data, tried, epoch)) == expected
        for first in (1, len(expected) // 2, len(expected), len(expected) + 5):
            assert list(iterate_batches(data, tried, epoch, first)) == expected[first:]


def test_a_stream_drops_the_rest_of_every_thousand_games() -> None:
    data = make_corpus(2500)
    cut = data.stream(31)
    edges = data.offsets[[0, 1000, 2000, 2500]]
    spans = [data.tokens[start : stop - (stop - start) % 31] for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(cut.row(range(len(cut)), 10**9), np.concatenate(spans))


@pytest.mark.parametrize("packing", ["blocks", "games", "stream"])
def test_losses_are_those_of_earlier_versions(packing: str, tmp_path: Path) -> None:
    data, config = make_data(packing, 60)
    for ahead in (0, 3):
        trainer = Trainer(
            config, data, tmp_path / str(ahead), TrainerOptions(log_steps=5, autocast=False, micro_tokens=160)
        )
        trainer.prefetched_batches = ahead
        losses: list[float] = []
        trainer.run(lambda point: losses.append(point.loss))  # noqa: B023
        assert losses == pytest.approx(LOSSES[packing], abs=2e-4)  # other CPUs differ in the last digits


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_large_corpus_has_every_item_once_and_batches_by_number(
    packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "DRAWN_ITEMS", 100)
    data, config = make_data(packing, 9000)
    batches = list(iterate_batches(data, config, 1))
    items = [item for batch in batches for row in batch for item in row]
    assert len(items) == len(set(items))
    assert len(items) == len(data) if packing != "blocks" else len(items) > 0.99 * len(data)
    assert batches != list(iterate_batches(data, config, 2))
    assert batches != list(iterate_batches(data, replace(config, seed=8), 1))
    for first in (0, 7, len(batches) // 2, len(batches) - 1, len(batches)):
        assert list(itertools.islice(iterate_batches(data, config, 1, first), 3)) == batches[first : first + 3]
    if packing == "games":
        lengths = data.compute_lengths(np.arange(len(data)))
        for batch in batches:
            longest = max(min(int(lengths[row[0]]), config.block_size + 1) for row in batch)
            assert len(batch) == 1 or longest * len(batch) <= config.batch_tokens
        means = [np.mean([lengths[row[0]] for row in batch]) for batch in batches]
        assert means != sorted(means)


@pytest.mark.parametrize("count", [2, 3, 5, 64, 1000, 4097, 65_535])
def test_the_keyed_order_is_a_permutation(count: int) -> None:
    keys = np.random.default_rng(count).bit_generator.random_raw(epochs.FEISTEL_ROUNDS)
    images = permute_places(np.arange(count), count, keys)
    assert sorted(images.tolist()) == list(range(count))


def test_the_keyed_order_is_the_same_on_every_machine_and_looks_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "DRAWN_ITEMS", 10)
    order = EpochOrder(1337, 0, 10**6).items(0, 10**6)
    assert order[:6].tolist() == [644431, 455489, 327151, 349993, 750309, 776129]
    assert np.array_equal(EpochOrder(1337, 0, 10**6).items(999_000, 2_000_000), order[999_000:])
    other = EpochOrder(1337, 1, 10**6).items(0, 10**6)
    for first, second in (
        (order, np.arange(10**6)),
        (order[1:], order[:-1]),
        (order, other),
        (order[::2], order[1::2]),
    ):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.005  # five standard deviations
    cells = np.bincount(order[:100_000] // 10_000, minlength=100)  # the position of the first tenth
    assert ((cells - 1000) ** 2 / 900).sum() < 170  # chi-squared of 99 degrees: 134 at 1 %, for hypergeometric counts
    assert 0 < (order == np.arange(10**6)).sum() + (other == order).sum() < 20


def test_rows_of_a_mapped_array_are_those_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, array in enumerate((rng.integers(0, 9, (500, 77), np.uint8), rng.integers(0, 999, 500, np.int16))):
        np.save(tmp_path / f"{number}.npy", array)
        mapped = RowReader(np.load(tmp_path / f"{number}.npy", mmap_mode="r"))
        items = rng.integers(0, 500, 100)
        for reader in (mapped, pickle.loads(pickle.dumps(RowReader(array)))):
            assert np.array_equal(reader.take(items), array[items])
            assert np.array_equal(reader.read(17, 450), array[17:450])
            assert reader.take(items).dtype == array.dtype
            assert reader.take(items[:0]).shape == array[:0].shape


def count_up(until: int = 10**9, pause_s: float = 0.0) -> Iterator[int]:
    for number in range(until):
        time.sleep(pause_s)
        yield number


def test_a_prefetched_iterator_keeps_the_order_and_stays_ahead() -> None:
    made: list[int] = []

    def record() -> Iterator[int]:
        for number in count_up():
            made.append(number)
            yield number

    before = threading.active_count()
    with prefetch(record(), 3) as items:
        assert list(itertools.islice(items, 5)) == [0, 1, 2, 3, 4]
        deadline = time.monotonic() + 10
        while len(made) < 8 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert made == list(range(8))
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_prefetching_ends_with_the_block_on_every_error(error: type[BaseException]) -> None:
    before = threading.active_count()

    def fail() -> None:
        with prefetch(count_up(pause_s=0.01), 4) as items:
            next(items)
            raise error

    with pytest.raises(error):
        fail()
    assert threading.active_count() == before


def test_an_error_of_preparation_is_raised_at_its_item() -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    with prefetch(broken(), 4) as items:
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(items)
