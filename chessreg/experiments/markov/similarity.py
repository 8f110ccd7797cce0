"""Cosines of states within classes and within random sets of the same sizes.

The mean cosine over the pairs of m unit vectors is (‖sum‖² - m) / (m (m - 1)), so no pair is computed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from chessreg.noise import Stream, generator

COSINE_TOLERANCE = 1e-6  # cosines of float32 vectors that differ by less count as equal
ROWS_AT_ONCE = 1 << 13  # states of the random sets that are summed together; their sums stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Layout:
    """The class of each state, and the states that may be compared.

    `number` int64 [n]: the class of each, ascending. `phase` int64 [n]: equal within a class.
    """

    number: np.ndarray
    phase: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """Members of each class, int64 [classes]."""
        return np.bincount(self.number)

    @cached_property
    def phases(self) -> list[np.ndarray]:
        """The rows of the states of each phase, int64, in order of phases."""
        return [np.flatnonzero(self.phase == phase) for phase in np.unique(self.phase)]


@dataclass(frozen=True)
class Population:
    """Mean and standard deviation of the cosines of random pairs within a phase; each phase is weighted by its
    number of classes."""

    mean: float
    deviation: float


@dataclass(frozen=True, eq=False)
class SimilarityTest:
    """The test of Davis 2026, section 4.5: T is the mean over classes of the mean cosine within a class, minus the
    population's mean.

    `class_similarities` float64 [classes]; `null` float64 [resamples]: T of random sets. `d` is Cohen's d: (mean of
    `class_similarities` - mean of the population) / standard deviation of the population; None if that deviation is 0.
    """

    class_similarities: np.ndarray
    population: Population
    null: np.ndarray

    @property
    def statistic(self) -> float:
        """The statistic T: the mean cosine within the classes minus that of the reference population."""
        return float(self.class_similarities.mean()) - self.population.mean

    @property
    def exceeding_count(self) -> int:
        """Number of random groupings whose T is at least as large, within `COSINE_TOLERANCE`."""
        return int((self.null >= self.statistic - COSINE_TOLERANCE).sum())

    @property
    def d(self) -> float | None:
        """Cohen's d of the classes; None if the population's standard deviation is 0."""
        return self.statistic / self.population.deviation if self.population.deviation > COSINE_TOLERANCE else None


def normalize_states(
    states: np.ndarray, centre: bool, layout: Layout, other_states: Sequence[np.ndarray] = ()
) -> list[torch.Tensor]:
    """Return states float [n, d] as unit vectors float32; with `centre` after the mean of their phase is subtracted.

    `other_states` float [n, d] are the partners of `states`, row by row (NaN: no partner). They get the same treatment,
    with the mean of `states`. Returns one tensor for `states` and one for each of `other_states`.
    """
    unit_states = [np.array(one, np.float32) for one in (states, *other_states)]
    if centre:
        for rows in layout.phases:
            mean = states[rows].mean(axis=0, dtype=np.float64).astype(np.float32)
            for one in unit_states:
                one[rows] -= mean
    units = []
    for one in unit_states:
        norms = np.sqrt(np.einsum("nd,nd->n", one, one, dtype=np.float64))
        units.append(torch.from_numpy(one / np.where(norms > 0, norms, 1)[:, None].astype(np.float32)))
    return units


def compute_pair_means(
    units: torch.Tensor, squares: np.ndarray, sampled_rows: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Return the mean cosine over the pairs of each set, float64 [sets]; NaN for a set of one.

    units float32 [n, d] have length 1 or 0; squares float64 [n] are these lengths squared; sampled_rows int64: the
    members of the sets, set by set; sizes int64 [sets].
    """
    starts = np.cumsum(sizes) - sizes
    bags = torch.nn.functional.embedding_bag(
        torch.from_numpy(sampled_rows), units, torch.from_numpy(starts), mode="sum"
    )
    sums = bags.numpy()
    square_sums = np.add.reduceat(squares[sampled_rows], starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        pair_means: np.ndarray = (np.einsum("nd,nd->n", sums, sums) - square_sums) / (sizes * (sizes - 1))
    return pair_means


def compute_squared_lengths(units: torch.Tensor) -> np.ndarray:
    """Return the squared lengths of vectors float32 [n, d], float64 [n]."""
    squared_lengths: np.ndarray = torch.linalg.vector_norm(units, dim=1, dtype=torch.float64).square().numpy()
    return squared_lengths


def measure_population(units: torch.Tensor, layout: Layout) -> Population:
    """Return the population of all pairs of each phase.

    The mean comes from the norm of the sum of the vectors, the second moment from their Gram matrix.
    """
    first_sum = second = weight = 0.0
    for rows in layout.phases:
        if len(rows) < 2:
            continue
        phase_units = units[torch.from_numpy(rows)].double()
        pairs = len(rows) * (len(rows) - 1)
        square_sums = phase_units.square().sum(dim=1)
        classes = len(np.unique(layout.number[rows]))
        first_sum += classes * float((phase_units.sum(dim=0).square().sum() - square_sums.sum()) / pairs)
        second += classes * float(((phase_units.T @ phase_units).square().sum() - square_sums.square().sum()) / pairs)
        weight += classes
    mean = first_sum / weight
    variance = second / weight - mean * mean
    return Population(mean, float(np.sqrt(variance)) if variance > COSINE_TOLERANCE**2 else 0.0)


def deal_random_sets(layout: Layout, seed: int, resample: int, replacement: bool) -> np.ndarray:
    """Return the members of random sets of the classes' sizes, each set within its class's phase, int64 [n].

    Without `replacement` each state occurs once: the states of a phase are permuted among its classes.
    """
    random = generator(seed, Stream.MARKOV_NULL, resample)
    positions = np.empty(len(layout.number), np.int64)
    for rows in layout.phases:
        positions[rows] = random.choice(rows, len(rows)) if replacement else random.permutation(rows)
    return positions


def run_similarity_test(
    units: torch.Tensor,
    layout: Layout,
    population: Population,
    resamples: int,
    seed: int,
    replacement: bool,
) -> SimilarityTest:
    """Return the test of unit vectors float32 [n, d] against the reference population `population`.

    `layout` assigns vectors to classes. The null distribution has `resamples` random sets of these vectors, drawn with
    or without `replacement`, so p does not depend on the reference population.
    """
    sizes, every = layout.sizes, np.arange(len(layout.number))
    squares = compute_squared_lengths(units)
    class_means = compute_pair_means(units, squares, every, sizes)
    null = np.empty(resamples)
    step = max(1, ROWS_AT_ONCE // len(every))
    for low in range(0, resamples, step):
        part = range(low, min(low + step, resamples))
        random_rows = np.concatenate([deal_random_sets(layout, seed, number, replacement) for number in part])
        random_means = compute_pair_means(units, squares, random_rows, np.tile(sizes, len(part))).reshape(len(part), -1)
        null[part.start : part.stop] = random_means.mean(axis=1) - population.mean
    return SimilarityTest(class_means, population, null)


def measure_differing_pairs(units: torch.Tensor, layout: Layout, kind: np.ndarray) -> np.ndarray:
    """Return the mean cosine over the pairs of each class whose `kind` int64 [n] differs, float64 [classes]; NaN
    without one.

    The kind is the last move of a prefix.
    """
    sizes = layout.sizes
    pairs = sizes * (sizes - 1)
    squares = compute_squared_lengths(units)
    total = compute_pair_means(units, squares, np.arange(len(layout.number)), sizes) * pairs
    order = np.lexsort((kind, layout.number))
    starts = np.flatnonzero((np.diff(layout.number[order], prepend=-1) != 0) | (np.diff(kind[order], prepend=-1) != 0))
    group_sizes = np.diff(starts, append=len(order))
    inside = np.nan_to_num(compute_pair_means(units, squares, order, group_sizes)) * group_sizes * (group_sizes - 1)
    class_numbers = layout.number[order][starts]
    rest = pairs - np.bincount(class_numbers, group_sizes * (group_sizes - 1), len(sizes))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine: np.ndarray = np.where(rest > 0, (total - np.bincount(class_numbers, inside, len(sizes))) / rest, np.nan)
    return cosine


def measure_partners(units: torch.Tensor, partner_units: torch.Tensor, layout: Layout) -> np.ndarray:
    """Return the mean cosine of each class's members with their partners, float64 [classes].

    A row of `partner_units` that is NaN is no partner; a class without partners has NaN.
    """
    cosines = (units.double() * partner_units.double()).sum(dim=1).numpy()
    has_partner = np.isfinite(cosines)
    classes = len(layout.sizes)
    counts = np.bincount(layout.number[has_partner], minlength=classes)
    with np.errstate(invalid="ignore"):
        cosine: np.ndarray = np.bincount(layout.number[has_partner], cosines[has_partner], classes) / counts
    return cosine
