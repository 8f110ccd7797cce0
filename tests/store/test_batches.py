"""Shuffled batches: every row once, aligned over layers, the same order for the same seed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import CorruptError, Store, StoreError
from store.arrays import ActivationArray, ArrayGroup, Batch

Write = Callable[..., tuple[Path, dict[str, np.ndarray]]]
HOOKS = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")


@pytest.fixture
def array(store: Store, write: Write) -> ActivationArray:
    for first, rows in ((0, 300), (10, 64), (20, 129)):
        write(rows, units=(first, first + 10), spec={"a": 1}, seed=first)
    return ActivationArray.from_spec(store, {"a": 1})


def rows_of(batches: Iterable[Batch]) -> list[int]:
    return [int(row) for batch in batches for row in batch.rows]


@pytest.mark.parametrize("batch_rows", [1, 50, 64, 1000])
@pytest.mark.parametrize("mix_chunks", [1, 3, 100])
def test_every_row_comes_exactly_once(array: ActivationArray, batch_rows: int, mix_chunks: int) -> None:
    batches = list(array.iter_batches(HOOKS[0], batch_rows, seed=1, mix_chunks=mix_chunks))
    assert sorted(rows_of(batches)) == list(range(493))
    assert [len(batch) for batch in batches[:-1]] == [batch_rows] * (len(batches) - 1)
    assert len(batches) == -(-493 // batch_rows)


def test_layers_are_aligned_with_their_row_numbers(array: ActivationArray) -> None:
    whole = {hook: array.read(hook) for hook in HOOKS}
    for batch in array.iter_batches(HOOKS, 40, seed=2, mix_chunks=2):
        for hook in HOOKS:
            assert batch[hook].tobytes() == whole[hook][batch.rows].tobytes()
            assert batch.float32(hook).dtype == np.float32


def test_the_order_is_a_function_of_seed_and_epoch(array: ActivationArray) -> None:
    def order(seed: int, epoch: int, prefetch: int = 2) -> list[int]:
        return rows_of(array.iter_batches(HOOKS[0], 32, seed, epoch, prefetch=prefetch))

    assert order(1, 0) == order(1, 0, prefetch=7)
    assert len({tuple(order(*key)) for key in ((1, 0), (1, 1), (2, 0), (2, 1))}) == 4


def test_rows_are_mixed_within_and_between_chunks(array: ActivationArray) -> None:
    order = np.array(rows_of(array.iter_batches(HOOKS[0], 32, seed=3)))
    assert np.mean(np.diff(order) == 1) < 0.03
    assert all(len(np.unique(batch // 64)) >= 4 for batch in np.split(order[:480], 15))


@pytest.mark.parametrize("as_mask", [True, False])
def test_only_kept_rows_come_and_other_chunks_are_not_read(
    array: ActivationArray, as_mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = np.array([5, 6, 70, 300, 492])
    mask = np.zeros(493, bool)
    mask[wanted] = True
    read: list[tuple[str, int]] = []
    original = ArrayGroup.read_chunk

    def counted(part: ArrayGroup, name: str, chunk: int) -> np.ndarray:
        read.append((name, chunk))
        return original(part, name, chunk)

    monkeypatch.setattr(ArrayGroup, "read_chunk", counted)
    batches = list(array.iter_batches(HOOKS, 2, seed=0, keep=mask if as_mask else [6, 5, 70, 300, 492, 5]))
    assert sorted(rows_of(batches)) == wanted.tolist()
    assert len(read) == 4 * len(HOOKS)


def test_the_last_small_batch_can_be_dropped(array: ActivationArray) -> None:
    batches = list(array.iter_batches(HOOKS[0], 100, seed=0, drop_last=True))
    assert [len(batch) for batch in batches] == [100] * 4


def test_bfloat16_batches_become_float32_exactly(write: Write) -> None:
    bits = np.arange(0x3F80, 0x3F80 + 64 * 16, dtype="<u2").reshape(64, 16)
    path, _ = write(64, "bfloat16", data=dict.fromkeys(HOOKS, bits))
    (batch,) = ActivationArray.open(path).iter_batches(HOOKS[0], 64, seed=0)
    assert isinstance(batch, Batch)
    floats = batch.float32(HOOKS[0])
    assert np.array_equal(floats, (bits.astype("<u4") << 16).view("<f4")[batch.rows])


def test_leaving_the_loop_early_ends_the_reading_thread(array: ActivationArray) -> None:
    batches = array.iter_batches(HOOKS[0], 10, seed=0, mix_chunks=1)
    next(batches)
    assert any(thread.name.startswith("batches") for thread in threading.enumerate())
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())


def test_bad_arguments_are_told_before_the_first_batch(array: ActivationArray) -> None:
    bad: list[dict[str, Any]] = [{"batch_rows": 0}, {"mix_chunks": 0}, {"keep": [493]}, {"hook_points": []}]
    for arguments in bad:
        with pytest.raises(StoreError):
            array.iter_batches(**{"hook_points": HOOKS, "batch_rows": 5, "seed": 0, **arguments})


def test_damage_met_by_the_reading_thread_reaches_the_caller(array: ActivationArray) -> None:
    (array.parts[1].path / "layers" / HOOKS[1] / "c.0.0").unlink()
    with pytest.raises(CorruptError, match="is missing"):
        list(array.iter_batches(HOOKS, 10, seed=0))
