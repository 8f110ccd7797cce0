"""Significance tests and effect sizes from sums: Welch, paired t, Cohen's d, and Holm's correction.

A p-value of 10^-400 is not a float, so tests return its base-10 logarithm. Tests need only sums, sums of squares and
counts, which a query adds up per cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from chessreg.queries.stats import Clusters

ROUNDING_SHARE = 1e-13  # a variance below this share of the mean square is rounding error
LOG_10 = math.log(10)


class Moments(NamedTuple):
    """The number of values, their mean, and their unbiased variance (NaN for fewer than two)."""

    n: float
    mean: float
    variance: float

    @classmethod
    def from_values(cls, values: np.ndarray) -> Moments:
        """Return the moments of values float [n], NaN without values."""
        values = np.asarray(values, np.float64)
        n = len(values)
        if n < 2:
            return cls(n, float(values.mean()) if n else math.nan, math.nan)
        return cls(n, float(values.mean()), _clip_rounding_error(float(values.var(ddof=1)), float((values**2).mean())))

    @classmethod
    def from_sums(cls, total: float, squares: float, n: float) -> Moments:
        """Return the moments of n values with this sum and this sum of squares."""
        if n < 2:
            return cls(n, total / n if n else math.nan, math.nan)
        mean = total / n
        return cls(n, mean, _clip_rounding_error((squares - n * mean * mean) / (n - 1), squares / n))

    @classmethod
    def from_clusters(cls, clusters: Clusters, total: str, squares: str, n: str) -> Moments:
        """Return the moments of all values of the clusters, from the counts with these names.

        `total` is the sum of a cluster's values, `squares` the sum of their squares, and `n` their number.
        """
        counts = clusters.select_counts(total, squares, n)
        return (
            cls.from_sums(counts.sum_count(total), counts.sum_count(squares), counts.sum_count(n))
            if counts.number
            else cls.from_sums(0, 0, 0)
        )


def _clip_rounding_error(variance: float, mean_square: float) -> float:
    """Return the variance, 0 if it is only rounding error."""
    return variance if variance > ROUNDING_SHARE * mean_square else 0.0


class TTest(NamedTuple):
    """Student's t, its degrees of freedom, and the base-10 logarithm of the one-sided p-value (H1: the mean is larger).

    `p` can underflow to 0; the logarithm does not.
    """

    t: float
    df: float
    log10_p: float

    @property
    def p(self) -> float:
        return 10.0**self.log10_p


def run_welch_test(ours: Moments, base: Moments) -> TTest | None:
    """Return Welch's test that our mean is larger than the baseline's, for independent samples (Davis 2026, section
    4.8).

    None if a side has fewer than two values, or neither side varies.
    """
    if ours.n < 2 or base.n < 2:
        return None
    our_error, base_error = ours.variance / ours.n, base.variance / base.n
    error = our_error + base_error
    if error <= 0:
        return None
    df = error * error / (our_error * our_error / (ours.n - 1) + base_error * base_error / (base.n - 1))
    t = (ours.mean - base.mean) / math.sqrt(error)
    return TTest(t, df, compute_log10_upper_tail(t, df))


def run_paired_test(differences: Moments) -> TTest | None:
    """Return the paired t test that the mean difference is larger than 0.

    None for fewer than two differences, or if all are equal.
    """
    if differences.n < 2 or differences.variance <= 0:
        return None
    t = differences.mean / math.sqrt(differences.variance / differences.n)
    return TTest(t, differences.n - 1, compute_log10_upper_tail(t, differences.n - 1))


def compute_cohens_d(ours: Moments, base: Moments) -> float | None:
    """Return the difference of the means in pooled standard deviations (Cohen 1988, 2.5), or None if nothing varies."""
    if ours.n < 2 or base.n < 2:
        return None
    pooled_variance = ((ours.n - 1) * ours.variance + (base.n - 1) * base.variance) / (ours.n + base.n - 2)
    return (ours.mean - base.mean) / math.sqrt(pooled_variance) if pooled_variance > 0 else None


def adjust_holm(p: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values of one family of tests, in the given order; None is not a member.

    The k-th smallest of m p-values is multiplied by m - k + 1 and raised to at least the one before it (Holm 1979).

    >>> adjust_holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    return _adjust_stepwise(p, lambda value, remaining_tests: min(1.0, value * remaining_tests))


def adjust_holm_log10(log10_p: Sequence[float | None]) -> list[float | None]:
    """Return `adjust_holm` of base-10 logarithms, for p-values that underflow."""
    return _adjust_stepwise(log10_p, lambda value, remaining_tests: min(0.0, value + math.log10(remaining_tests)))


def _adjust_stepwise(p: Sequence[float | None], correct: Callable[[float, int], float]) -> list[float | None]:
    """Return each p corrected for the number of remaining tests, smallest first, as a running maximum."""
    order = sorted((value, place) for place, value in enumerate(p) if value is not None)
    adjusted_p: list[float | None] = [None] * len(p)
    largest = -math.inf
    for rank, (value, place) in enumerate(order):
        largest = max(largest, correct(value, len(order) - rank))
        adjusted_p[place] = largest
    return adjusted_p


def compute_log10_upper_tail(t: float, df: float) -> float:
    """Return log10 P(T > t) of Student's t with `df` degrees of freedom, also if the probability underflows.

    Uses the continued fraction of the incomplete beta function (DLMF 8.17.22), to ten digits for df up to a million.

    >>> round(compute_log10_upper_tail(0.0, 5), 6), round(10 ** compute_log10_upper_tail(2.228138852, 10), 6)
    (-0.30103, 0.025)
    """
    if t < 0:
        return math.log1p(-math.exp(compute_log10_upper_tail(-t, df) * LOG_10)) / LOG_10
    a, b, square = df / 2, 0.5, t * t / df
    x = 1 / (1 + square)
    front = a * -math.log1p(square) + b * (math.log(square) - math.log1p(square) if square else -math.inf)
    front += _log_half_step(a) - math.lgamma(b)
    if x < (a + 1) / (a + b + 2):
        return (front - math.log(a) + math.log(_evaluate_beta_fraction(a, b, x)) - math.log(2)) / LOG_10
    other = math.exp(front - math.log(b) + math.log(_evaluate_beta_fraction(b, a, square * x)))
    return math.log((1 - other) / 2) / LOG_10


def _log_half_step(a: float) -> float:
    """Return log Γ(a + 1/2) - log Γ(a), for large a by its series, because the difference of large logarithms loses
    digits."""
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)


def _evaluate_beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function by Lentz's method, x < (a + 1) / (a + b + 2)."""
    smallest = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or smallest)
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or smallest)
            c = 1 + term / c or smallest
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def compute_welch_log10_p(clusters: Clusters, total: str, squares: str, n: str, *base: str) -> float | None:
    """Return the base-10 logarithm of p in `run_welch_test`, or None without a test.

    `total`, `squares` and `n` name the counts with the sum, the sum of squares and the number of our values. `base`
    names the same three counts of the baseline's.
    """
    test = run_welch_test(Moments.from_clusters(clusters, total, squares, n), Moments.from_clusters(clusters, *base))
    return test.log10_p if test else None


def compute_paired_log10_p(clusters: Clusters, total: str, squares: str, n: str) -> float | None:
    """Return the base-10 logarithm of p in `run_paired_test`, or None without a test.

    `total`, `squares` and `n` name the counts with the sum, the sum of squares and the number of the differences.
    """
    test = run_paired_test(Moments.from_clusters(clusters, total, squares, n))
    return test.log10_p if test else None


def compute_cohens_d_of_clusters(clusters: Clusters, total: str, squares: str, n: str, *base: str) -> float | None:
    """Return Cohen's d, or None if nothing varies.

    `total`, `squares` and `n` name the counts of the group, and `base` the same three of the baseline, as in
    `compute_welch_log10_p`.
    """
    return compute_cohens_d(Moments.from_clusters(clusters, total, squares, n), Moments.from_clusters(clusters, *base))
