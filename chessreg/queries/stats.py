"""Statistics, in one place for tables and plots: intervals by resampling clusters, Wilson and exact bounds, Elo.

Observations cluster (the squares of a game, the games of an opening), so clusters are what is resampled. Clusters with
equal counts are drawn together: a bootstrap sample of them is one multinomial draw, exactly as if they had been drawn
one by one, whose cost does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from chessreg.noise import generator

RESAMPLES = 2000
CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
BLOCK = 4_000_000  # numbers drawn at once, so that many distinct clusters do not fill the memory
SHARED = 400  # more distinct clusters than these take draws that are made once for all cells with as many clusters
SHARED_CLUSTERS = 40_000  # as far as these draws fit the memory: a byte each


class Estimate(NamedTuple):
    """A value and its 95 % interval; None is unknown, or unbounded on that side."""

    value: float | None
    low: float | None
    high: float | None

    def written(self, sign: str = "") -> str:
        """The value with its interval, as `1.2 [1.1, 1.3]`; a bound on one side alone is written as such."""
        if self.value is None:
            return ""
        text = f"{self.value:{sign}.4g}"
        if self.low is None and self.high is None:
            return text
        low = "" if self.low is None else f"{self.low:{sign}.3g}"
        high = "" if self.high is None else f"{self.high:{sign}.3g}"
        return f"{text} [{low}, {high}]" if low and high else f"{text} [{'≥ ' + low if low else '≤ ' + high}]"


UNKNOWN = Estimate(None, None, None)


class Clusters:
    """The clusters of one cell: distinct rows of counts, and how many clusters have them.

    `counts` maps a name to float64 [kind of cluster]; `weights` is int64 [kind of cluster]. Rows must come in a fixed
    order: the draws follow from it and from `key`.
    """

    def __init__(self, counts: dict[str, np.ndarray], weights: np.ndarray, key: Sequence[int | str] = ()) -> None:
        self.counts = {name: np.asarray(values, np.float64) for name, values in counts.items()}
        self.weights = np.asarray(weights, np.int64)
        self.key = tuple(key)
        self._sums: dict[tuple[str, ...], np.ndarray] = {}

    def known(self, *names: str) -> Clusters:
        """The clusters in which none of these counts is missing (for pairs: those that both sides have)."""
        keep = np.ones(len(self.weights), bool)
        for name in names:
            keep &= ~np.isnan(self.counts[name])
        if keep.all():
            return self
        return Clusters({n: v[keep] for n, v in self.counts.items()}, self.weights[keep], (*self.key, "paired"))

    @property
    def number(self) -> int:
        return int(self.weights.sum())

    def total(self, name: str) -> float:
        return math.fsum((self.counts[name] * self.weights).tolist())

    def resampled(self, *names: str) -> np.ndarray:
        """Totals of the counts in bootstrap samples, float64 [name, resample]: the same draws for every name."""
        missing = tuple(n for n in names if (n,) not in self._sums)
        if missing:
            for name, row in zip(missing, self._draw(missing), strict=True):
                self._sums[(name,)] = row
        return np.stack([self._sums[(name,)] for name in names])

    def _draw(self, names: Sequence[str]) -> np.ndarray:
        table = np.stack([self.counts[name] for name in names])
        if len(self.weights) > SHARED and self.number <= SHARED_CLUSTERS:
            return _sums_of_shared(np.repeat(table, self.weights, axis=1))
        random = generator("bootstrap", *self.key)  # starts over: every call sees the same samples
        kinds, number = len(self.weights), self.number
        sums = np.empty((len(names), RESAMPLES))
        for start, stop in _blocks(kinds):
            drawn = random.multinomial(number, self.weights / number, size=stop - start)
            sums[:, start:stop] = np.einsum("rk,nk->nr", drawn.astype(np.float64), table)
        return sums


def _blocks(width: int) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of resamples, each of at most BLOCK numbers."""
    step = max(1, BLOCK // max(width, 1))
    return ((start, min(RESAMPLES, start + step)) for start in range(0, RESAMPLES, step))


@lru_cache(maxsize=2)
def _shared_draws(number: int) -> np.ndarray:
    """How often each of `number` clusters is drawn in each resample, uint8 [resample, cluster]."""
    random = generator("bootstrap", number)
    drawn = np.empty((RESAMPLES, number), np.uint8)
    for row in drawn:
        row[:] = np.bincount(random.integers(number, size=number), minlength=number)
    return drawn


def _sums_of_shared(table: np.ndarray) -> np.ndarray:
    """Totals of `table` float64 [name, cluster] in the shared resamples, float64 [name, resample].

    What differs from the mean is added up in single precision: the sums differ from exact ones by less than 1e-6 of
    their spread.
    """
    means = table.mean(axis=1, keepdims=True)
    spread = (table - means).astype(np.float32).T
    draws = _shared_draws(table.shape[1])
    sums = np.concatenate([draws[start:stop].astype(np.float32) @ spread for start, stop in _blocks(table.shape[1])])
    return sums.T.astype(np.float64) + means * table.shape[1]


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Wilson's score interval for a rate of n independent observations.

    >>> [round(x, 3) for x in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    centre = (rate + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def one_sided(n: float) -> float:
    """The rate that n observations without a single success rule out: 1 - 0.05^(1/n), about 3/n.

    >>> round(one_sided(100), 4)
    0.0295
    """
    return 1 - (1 - CONFIDENCE) ** (1 / n)


def rate(clusters: Clusters, hits: str, trials: str) -> Estimate:
    """Share of hits among trials, each trial at most one hit; the interval from resampled clusters.

    At exactly 0 or 1 the bound is one-sided (the other end is None), from the number of clusters. When the resamples do
    not vary or reach 0 or 1, Wilson's interval over the clusters stands in.
    """
    clusters = clusters.known(hits, trials)
    n = clusters.total(trials) if clusters.number else 0
    if not n:
        return UNKNOWN
    value, number = clusters.total(hits) / n, clusters.number
    if value <= 0:
        return Estimate(0.0, None, one_sided(number))
    if value >= 1:
        return Estimate(1.0, 1 - one_sided(number), None)
    low, high = _percentiles(_ratios(clusters, hits, trials))
    safe_low, safe_high = wilson(value, number)
    if low == high:
        low, high = safe_low, safe_high
    return Estimate(value, safe_low if low <= 0 else low, safe_high if high >= 1 else high)


def difference(clusters: Clusters, hits: str, trials: str, base_hits: str, base_trials: str) -> Estimate:
    """Share minus share of a baseline, over the clusters that both have, resampled together."""
    pairs = clusters.known(hits, trials, base_hits, base_trials)
    if not pairs.number or not pairs.total(trials) or not pairs.total(base_trials):
        return UNKNOWN
    value = pairs.total(hits) / pairs.total(trials) - pairs.total(base_hits) / pairs.total(base_trials)
    resamples = _ratios(pairs, hits, trials) - _ratios(pairs, base_hits, base_trials)
    low, high = _percentiles(resamples)
    if low == high:  # every pair differs by the same: one that does not can still be this frequent
        bound = one_sided(pairs.number)
        low, high = max(-1.0, value - bound), min(1.0, value + bound)
    return Estimate(value, low, high)


def difference_of_independent(ours: Clusters, base: Clusters, hits: str, trials: str) -> Estimate:
    """Share minus share of a baseline that has other clusters: each is resampled by itself."""
    ours, base = ours.known(hits, trials), base.known(hits, trials)
    if not all(side.number and side.total(trials) for side in (ours, base)):
        return UNKNOWN
    value = ours.total(hits) / ours.total(trials) - base.total(hits) / base.total(trials)
    low, high = _percentiles(_ratios(ours, hits, trials) - _ratios(base, hits, trials))
    if low == high:  # neither varies: as in `difference`, what so few clusters cannot rule out
        bound = one_sided(min(ours.number, base.number))
        low, high = max(-1.0, value - bound), min(1.0, value + bound)
    return Estimate(value, low, high)


def mean(clusters: Clusters, total: str, trials: str) -> Estimate:
    """Total per trial, a quantity without bounds; the interval from resampled clusters."""
    clusters = clusters.known(total, trials)
    if not clusters.number or not clusters.total(trials):
        return UNKNOWN
    low, high = _percentiles(_ratios(clusters, total, trials))
    return Estimate(clusters.total(total) / clusters.total(trials), low, high)


def mean_difference(clusters: Clusters, total: str, trials: str, base_total: str, base_trials: str) -> Estimate:
    """Mean minus mean of a baseline, over the clusters that both have, resampled together."""
    pairs = clusters.known(total, trials, base_total, base_trials)
    if not pairs.number or not pairs.total(trials) or not pairs.total(base_trials):
        return UNKNOWN
    value = pairs.total(total) / pairs.total(trials) - pairs.total(base_total) / pairs.total(base_trials)
    low, high = _percentiles(_ratios(pairs, total, trials) - _ratios(pairs, base_total, base_trials))
    return Estimate(value, low, high)


def median(clusters: Clusters, value: str) -> Estimate:
    """Median over clusters of a value that each has once; the interval from resampled clusters."""
    clusters = clusters.known(value)
    if not clusters.number:
        return UNKNOWN
    order = np.argsort(clusters.counts[value], kind="stable")
    values, weights = clusters.counts[value][order], clusters.weights[order]
    random, number = generator("bootstrap", *clusters.key), clusters.number
    found = np.empty(RESAMPLES)
    for start, stop in _blocks(len(values)):
        found[start:stop] = _medians(values, random.multinomial(number, weights / number, size=stop - start))
    low, high = _percentiles(found)
    return Estimate(float(_medians(values, weights[None])[0]), low, high)


def _medians(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The median of ascending `values` float64 [n], each as often as a row of `weights` int64 [row, n] says."""
    upto = weights.cumsum(axis=1)
    number = upto[:, -1:]
    middle = [values[(upto <= place).sum(axis=1)] for place in ((number - 1) // 2, number // 2)]
    found: np.ndarray = (middle[0] + middle[1]) / 2
    return found


def elo(score: float) -> float:
    """Rating difference that this expected score stands for; the score lies strictly between 0 and 1.

    >>> round(elo(0.75), 1)
    190.8
    """
    return -400 * math.log10(1 / score - 1)


def elo_of(score: Estimate) -> Estimate:
    """Elo against the opponent, from a score with its interval. At 0 or 1 only the bound is known."""
    if score.value is None:
        return UNKNOWN
    value = elo(score.value) if 0 < score.value < 1 else None
    low, high = (elo(end) if end is not None and 0 < end < 1 else None for end in (score.low, score.high))
    return Estimate(value, low, high)


def elo_difference(clusters: Clusters, points: str, games: str, base_points: str, base_games: str) -> Estimate:
    """Elo minus Elo of a baseline on the same openings. At a score of 0 or 1 only a bound on one side."""
    pairs = clusters.known(points, games, base_points, base_games)
    ours, base = rate(pairs, points, games), rate(pairs, base_points, base_games)
    if ours.value is None or base.value is None:
        return UNKNOWN
    if 0 < ours.value < 1 and 0 < base.value < 1:
        both = [_ratios(pairs, points, games), _ratios(pairs, base_points, base_games)]
        trials = [_ratios_of(pairs, games), _ratios_of(pairs, base_games)]
        # A resample that happens to hold no win at all counts as half a point, so that its Elo is finite.
        clipped = [np.clip(r, 0.5 / n, 1 - 0.5 / n) for r, n in zip(both, trials, strict=True)]
        elos = [-400 * np.log10(1 / r - 1) for r in clipped]
        low, high = _percentiles(elos[0] - elos[1])
        if low == high:  # every pair differs by the same, as in `difference`
            bound, half = one_sided(pairs.number), 0.5 / pairs.total(games)
            ends = (ours.value - bound, ours.value + bound)
            low, high = (elo(min(max(end, half), 1 - half)) - elo(base.value) for end in ends)
        return Estimate(elo(ours.value) - elo(base.value), low, high)
    mine, theirs = elo_of(ours), elo_of(base)
    low_end = mine.low - theirs.high if mine.low is not None and theirs.high is not None else None
    high_end = mine.high - theirs.low if mine.high is not None and theirs.low is not None else None
    return Estimate(None, low_end, high_end)


def _ratios(clusters: Clusters, hits: str, trials: str) -> np.ndarray:
    top, bottom = clusters.resampled(hits, trials)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = top / bottom
    return found


def _ratios_of(clusters: Clusters, trials: str) -> np.ndarray:
    return np.maximum(clusters.resampled(trials)[0], 1.0)


def _percentiles(resamples: np.ndarray) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(resamples, [tail, 100 - tail])
    return float(low), float(high)
