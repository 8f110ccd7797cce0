"""1,000 random groupings of the Markov test, against a loop over the pairs of each class.

    python tests/benchmarks/bench_markov.py [--classes 2000] [--width 192] [--threads 1]

The loop is the plain way: for every class of every grouping the cosine of each pair of its states. A second loop has
vectors of length 1, and one product a pair. They are timed on some groupings and scaled. Class sizes are those of 2,000
positions of real games: half of them have two move orders, the most 16.

Goal: at least 50 times faster than the loop.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import combinations

import numpy as np
import torch

from chessreg.experiments.markov.similarity import (
    Layout,
    compute_pair_means,
    compute_squared_lengths,
    deal_random_sets,
    measure_population,
    normalize_states,
    run_similarity_test,
)
from chessreg.noise import generator

SIZES = {
    2: 1051,
    3: 389,
    4: 194,
    5: 110,
    6: 60,
    7: 45,
    8: 34,
    9: 24,
    10: 20,
    11: 13,
    12: 10,
    13: 13,
    14: 5,
    15: 4,
    16: 28,
}
RESAMPLES = 1000
LOOPS = 3  # groupings that the loop is timed on


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def product(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b)


def by_pairs(
    vectors: np.ndarray, drawn: np.ndarray, sizes: list[int], alike: Callable[[np.ndarray, np.ndarray], float]
) -> list[float]:
    """Mean likeness within each set, pair by pair."""
    means, start = [], 0
    for size in sizes:
        own = drawn[start : start + size]
        pairs = combinations(own, 2)
        means.append(sum(alike(vectors[i], vectors[j]) for i, j in pairs) / (size * (size - 1) / 2))
        start += size
    return means


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=2000)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    random = generator("bench markov")
    sizes = random.permutation(np.repeat(list(SIZES), list(SIZES.values())))[: given.classes]
    layout = Layout(np.repeat(np.arange(len(sizes)), sizes), np.repeat(random.integers(2, size=len(sizes)), sizes))
    centres = random.normal(size=(len(sizes), given.width))
    states = centres[layout.number] + random.normal(size=(len(layout.number), given.width))
    (units,) = normalize_states(states.astype(np.float32), False, layout)

    began = time.process_time()
    test = run_similarity_test(units, layout, measure_population(units, layout), RESAMPLES, 0, False)
    ours = time.process_time() - began

    loops, squares = [], compute_squared_lengths(units)
    for vectors, alike in ((states.astype(np.float32), cosine), (units.numpy(), product)):
        seconds = 0.0
        for resample in range(LOOPS):
            began = time.process_time()
            drawn = deal_random_sets(layout, 0, resample, False)
            means = by_pairs(vectors, drawn, sizes.tolist(), alike)
            seconds += time.process_time() - began
            assert abs(np.mean(means) - test.population.mean - test.null[resample]) < 1e-6
            np.testing.assert_allclose(means, compute_pair_means(units, squares, drawn, layout.sizes), atol=1e-6)
        loops.append(seconds / LOOPS * RESAMPLES)

    pairs = int((sizes * (sizes - 1) // 2).sum())
    print(f"{len(sizes):,} classes of {len(layout.number):,} states of {given.width} numbers, {pairs:,} pairs")
    print(f"{RESAMPLES:,} groupings: {ours:.2f} CPU s; loops from {LOOPS} groupings:")
    for name, loop in zip(("a cosine a pair", "a product of unit vectors a pair"), loops, strict=True):
        print(f"  {name}: {loop:.0f} CPU s, {loop / ours:.0f} x")
    print(f"goal 50 x of the cosines: {'reached' if loops[0] >= 50 * ours else 'missed'}")


if __name__ == "__main__":
    main()
