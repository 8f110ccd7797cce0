"""Splits are pure functions of the move hash: no move list in two parts, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.games.datasets.dataset import DatasetPart, hash_to_unit_interval, parse_parts

GOLDEN = [0.08640648681481, 0.6173716605916715, 0.3603357024504923, 0.2603622265224984]


def hashes(number: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 2**64, number, np.uint64)


def test_no_move_hash_is_in_two_parts_and_the_union_is_whole() -> None:
    some = hashes(20_000)
    with_copies = np.concatenate([some, some[::3]])
    parts = parse_parts("train=0.7,validation=0.2,test=0.1", seed=3)
    member = np.stack([part.contains(with_copies) for part in parts.values()])
    assert (member.sum(axis=0) == 1).all()
    sets = [set(with_copies[row].tolist()) for row in member]
    assert sum(map(len, sets)) == len(set.union(*sets)) == len(set(some.tolist()))
    assert member.mean(axis=1) == pytest.approx([0.7, 0.2, 0.1], abs=0.02)


def test_the_number_of_a_hash_never_changes() -> None:
    # Written down once: a split named in an old result must always mean the same games.
    found = hash_to_unit_interval(7, np.array([0, 1, 2**64 - 1, 0x123456789ABCDEF0], np.uint64))
    assert found.tolist() == GOLDEN


def test_numbers_are_even_in_the_unit_interval_and_seeds_are_independent() -> None:
    one, other = hash_to_unit_interval(1, hashes(50_000)), hash_to_unit_interval(2, hashes(50_000))
    assert one.min() >= 0
    assert one.max() < 1
    assert np.histogram(one, 10, (0, 1))[0].std() < 150
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    # neighbouring hashes are as far apart as any others
    assert (
        abs(np.corrcoef(hash_to_unit_interval(1, np.arange(10_000, dtype=np.uint64)), np.arange(10_000))[0, 1]) < 0.05
    )


def test_negative_and_large_seeds_work() -> None:
    some = hashes(10)
    assert not np.array_equal(hash_to_unit_interval(-1, some), hash_to_unit_interval(2**70, some))


def test_parts_are_cut_in_the_order_given() -> None:
    assert parse_parts("train=0.5,test=0.5", 7) == {"train": DatasetPart(7, 0.0, 0.5), "test": DatasetPart(7, 0.5, 1.0)}
    assert parse_parts("a=0.1, b = 0.2", 0)["b"] == DatasetPart(0, 0.1, pytest.approx(0.3))


BAD = ["", "train", "train=", "=0.5", "a=0.5,a=0.5", "a=0.7,b=0.7", "a=0", "a=-1", "a=2", "a=x", "a=nan"]


@pytest.mark.parametrize("text", BAD)
def test_bad_parts_are_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_parts(text, 1)
