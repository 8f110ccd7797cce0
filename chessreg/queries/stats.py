"""Statistics, in one place for tables and plots: intervals by resampling clusters, Wilson and exact bounds, Elo.

Observations cluster (the squares of a game, the games of an opening), so clusters are resampled. Clusters with equal
counts are drawn together as one multinomial draw. Its distribution is the same as for drawing them one by one, but its
cost does not grow with their number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from chessreg.noise import Stream, generator

RESAMPLES = 2000
CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
MOST_NUMBERS_AT_ONCE = 4_000_000  # numbers drawn at once, so that many distinct clusters do not fill the memory
MOST_KINDS_DRAWN_APART = (
    400  # above this number of distinct clusters, cells with equal numbers of clusters share one set of draws
)
MOST_COLUMNS_AT_ONCE = 128  # approximate number of count columns of cells with shared draws that are resampled at once
SHARED_CLUSTERS = 40_000  # most clusters of a cell with shared draws, which take a byte each


class Estimate(NamedTuple):
    """A value and its 95 % interval; None is unknown, or unbounded on that side."""

    value: float | None
    low: float | None
    high: float | None

    def format_value(self, sign: str = "", decimals: int | None = None) -> str:
        """Return the value with its interval, as `1.2 [1.1, 1.3]` or `1.2 [≥ 1.1]`; empty without a value.

        `sign` is a sign option of format strings, such as `+`. With `decimals`, numbers are rounded to that many
        decimals, unless nothing would be left.

        >>> Estimate(-0.03043, -0.0333, -0.0275).format_value()
        '-0.03043 [-0.0333, -0.0275]'
        >>> Estimate(0.03043, 8e-05, 0.0612).format_value(decimals=3)
        '0.03 [8e-05, 0.061]'
        >>> Estimate(-0.0, -0.0, 0.5).format_value("+")  # no negative zero
        '+0 [+0, +0.5]'
        """
        if self.value is None:
            return ""
        value, low, high = (
            None if v is None else v if decimals is None else round(v, decimals) or v
            for v in (self.value, self.low, self.high)
        )
        text = f"{value:{sign}z.4g}"
        if low is None and high is None:
            return text
        ends = ["" if end is None else f"{end:{sign}z.3g}" for end in (low, high)]
        return (
            f"{text} [{', '.join(ends)}]" if all(ends) else f"{text} [{'≥ ' + ends[0] if ends[0] else '≤ ' + ends[1]}]"
        )

    def negate(self) -> Estimate:
        """Return the estimate of the negated value.

        >>> Estimate(0.25, None, 0.5).negate()
        Estimate(value=-0.25, low=-0.5, high=None)
        """
        return Estimate(*(None if number is None else -number for number in (self.value, self.high, self.low)))

    def p(self) -> float | None:
        """The two-sided p-value that a difference is 0, by a normal approximation.

        The standard deviation follows from the end of the interval on the side of 0; None without that end. For an
        interval that ends at 0, p is 0.05.

        >>> round(Estimate(0.2, 0.0, 0.5).p(), 3), Estimate(0.2, None, None).p()
        (0.05, None)
        """
        if self.value is None or (bound := self.low if self.value > 0 else self.high) is None:
            return None
        spread = abs(self.value - bound)
        return 2 * NormalDist().cdf(-Z * abs(self.value) / spread) if spread else float(self.value == 0)


UNKNOWN = Estimate(None, None, None)


class Clusters:
    """The clusters of one cell: rows of counts, and how many clusters have each.

    `counts` maps a name to float64 [kind of cluster], or to [kind of cluster, draw] if every cluster was combined with
    several draws (of a control direction, of a probe's seed, of untrained weights); NaN is missing. `weights` is int64
    [kind of cluster]. `select_counts` selects some of them. Their resamples depend only on these numbers and on `role`,
    not on the order of clusters or the cell's other counts. Separate roles give the two sides of a difference
    independent draws. `orientation` of pairs: -1 if their sides were swapped for resampling, 0 if swapping changes
    nothing.
    """

    def __init__(
        self, counts: dict[str, np.ndarray], weights: np.ndarray, role: str = "", orientation: int = 1
    ) -> None:
        self.counts = {name: np.asarray(values, np.float64) for name, values in counts.items()}
        self.weights = np.asarray(weights, np.int64)
        self.role, self.orientation = role, orientation
        self._of: dict[tuple[str, ...], Clusters] = {}

    def select_counts(self, *names: str, role: str = "") -> Clusters:
        """Return these counts of the clusters that have all of them. Equal clusters are merged and sorted.

        Four counts with one draw or none are pairs: two of one side, then two of the other. If the sides are swapped,
        the resamples are the same.
        """
        if (*names, role) not in self._of:
            parts = [array if (array := self.counts[name]).ndim == 2 else array[:, None] for name in names]
            has_values = np.all([~np.isnan(part).all(axis=1) for part in parts], axis=0)
            parts = [part[has_values][:, ~np.isnan(part[has_values]).all(axis=0)] for part in parts]
            table, weights = _merge_equal_rows(np.concatenate(parts, axis=1) + 0.0, self.weights[has_values])
            order, orientation = names, 1
            if len(names) == 4 and all(part.shape[1] == 1 for part in parts):
                swapped_rows = _merge_equal_rows(np.roll(table, 2, axis=1), weights)
                own_bytes, swapped_bytes = (
                    [array.tobytes() for array in side] for side in ((table, weights), swapped_rows)
                )
                orientation = (own_bytes < swapped_bytes) - (own_bytes > swapped_bytes)
                if orientation < 0:
                    order, (table, weights) = (*names[2:], *names[:2]), swapped_rows
            ends = np.cumsum([part.shape[1] for part in parts])[:-1]
            counts = dict(zip(order, np.split(table, ends, axis=1), strict=True))
            self._of[*names, role] = Clusters(counts, weights, role, orientation)
        return self._of[*names, role]

    @property
    def number(self) -> int:
        """The number of clusters."""
        return int(self.weights.sum())

    def sum_count(self, name: str) -> float:
        """Return the sum of a count over all clusters."""
        return math.fsum(np.nansum(self.counts[name] * self.weights[:, None], axis=1).tolist())

    def resample(self, *names: str, side: str = "") -> np.ndarray:
        """Return the totals of the counts in bootstrap samples, float64 [name, resample].

        The clusters of a resample are the same in every call. Draws are also resampled, independently of the clusters
        (the pigeonhole bootstrap: Owen 2007, Annals of Applied Statistics 1, 386): the same for all names of a call,
        and different for each `side`.
        """
        widths = [self.counts[name].shape[1] for name in names]
        parts = np.split(self._sums, np.cumsum([c.shape[1] for c in self.counts.values()])[:-1])
        sums = dict(zip(self.counts, parts, strict=True))
        random = generator(Stream.STATISTICS_DRAWS, self.key, side)
        draws_by_width = {
            w: random.multinomial(w, np.full(w, 1 / w), size=RESAMPLES).T for w in sorted({*widths} - {0, 1})
        }
        return np.stack([
            (sums[name] * draws_by_width[width] if width in draws_by_width else sums[name]).sum(axis=0)
            for name, width in zip(names, widths, strict=True)
        ])  # fmt: skip

    @cached_property
    def key(self) -> str:
        """The digest of the resampled counts, which seeds the resampling."""
        parts = [str(part.shape).encode() + part.tobytes() for part in (*self.counts.values(), self.weights)]
        return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest() + self.role

    @property
    def table(self) -> np.ndarray:
        """The counts, float64 [count column, kind of cluster], 0 for a missing draw."""
        return np.nan_to_num(np.concatenate(list(self.counts.values()), axis=1)).T

    @property
    def has_shared_draws(self) -> bool:
        """Whether cells with equal numbers of clusters share one set of draws."""
        return len(self.weights) > MOST_KINDS_DRAWN_APART and self.number <= SHARED_CLUSTERS

    @cached_property
    def _sums(self) -> np.ndarray:
        """The totals of every count column in the resamples of clusters, float64 [column, resample]. A cluster without
        a draw adds nothing to its total."""
        if self.has_shared_draws:
            return next(_sum_shared_resamples([self]))
        table = self.table
        random = generator(Stream.STATISTICS_BOOTSTRAP, self.key)
        sums = np.empty((len(table), RESAMPLES))
        for start, stop in _resample_blocks(len(self.weights)):
            draws = random.multinomial(self.number, self.weights / self.number, size=stop - start)
            sums[:, start:stop] = np.einsum("rk,nk->nr", draws.astype(np.float64), table)
        return sums


def _merge_equal_rows(table: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of float64 [row, column] sorted by value, equal rows once with their weights added."""
    if not len(table):
        return table, weights
    order = np.lexsort(table.T[::-1])
    table, weights = table[order], weights[order]
    both = np.isnan(table[1:]) & np.isnan(table[:-1])
    first = np.flatnonzero(np.r_[True, ((table[1:] != table[:-1]) & ~both).any(axis=1)])
    return table[first], np.add.reduceat(weights, first)


def _resample_blocks(width: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [start, stop) of resamples with at most MOST_NUMBERS_AT_ONCE numbers each."""
    step = max(1, MOST_NUMBERS_AT_ONCE // max(width, 1))
    return ((start, min(RESAMPLES, start + step)) for start in range(0, RESAMPLES, step))


@lru_cache(maxsize=2)
def _draw_shared_counts(number: int, role: str) -> np.ndarray:
    """Return how often each of `number` clusters is drawn in each resample, uint8 [resample, cluster]."""
    random = generator(Stream.STATISTICS_BOOTSTRAP, number, role)
    counts = np.empty((RESAMPLES, number), np.uint8)
    for row in counts:
        row[:] = np.bincount(random.integers(number, size=number), minlength=number)
    return counts


def resample_together(parts: Iterable[Clusters]) -> None:
    """Compute the resamples of many clusters in advance. For those with shared draws, this takes one matrix product per
    MOST_COLUMNS_AT_ONCE count columns, which is many times faster than one product each."""
    alike: dict[tuple[int, str], list[Clusters]] = {}
    for part in parts:
        if part.has_shared_draws:
            alike.setdefault((part.number, part.role), []).append(part)
    for group in alike.values():
        columns = np.cumsum([sum(values.shape[1] for values in part.counts.values()) for part in group])
        for _, batch in groupby(zip(columns // MOST_COLUMNS_AT_ONCE, group, strict=True), itemgetter(0)):
            members = [part for _, part in batch]
            for part, sums in zip(members, _sum_shared_resamples(members), strict=True):
                part.__dict__["_sums"] = sums  # the value of the cached property


def _sum_shared_resamples(parts: Sequence[Clusters]) -> Iterator[np.ndarray]:
    """Yield the totals of the count columns of each part in the shared resamples, float64 [column, resample]. All parts
    have the same number of clusters and the same role.

    Deviations from the mean are added in single precision: the error is below 1e-6 of the spread.
    """
    tables = [np.repeat(part.table, part.weights, axis=1) for part in parts]
    table_means = [table.mean(axis=1, keepdims=True) for table in tables]
    spread = np.concatenate([(t - mean).astype(np.float32) for t, mean in zip(tables, table_means, strict=True)]).T
    draws = _draw_shared_counts(len(spread), parts[0].role)
    sums = np.concatenate(
        [draws[start:stop].astype(np.float32) @ spread for start, stop in _resample_blocks(len(spread))]
    )
    sums_by_table = np.split(sums.T.astype(np.float64), np.cumsum([len(table) for table in tables])[:-1])
    return (part + mean * len(spread) for part, mean in zip(sums_by_table, table_means, strict=True))


def compute_wilson_interval(rate: float, n: float) -> tuple[float, float]:
    """Return the ends of Wilson's 95 % score interval for a rate (0 to 1) of n independent observations.

    >>> [round(x, 3) for x in compute_wilson_interval(0.5, 100)]
    [0.404, 0.596]
    """
    centre = (rate + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def compute_one_sided_bound(n: float) -> float:
    """Return the rate that n observations without a success exclude: 1 - 0.05^(1/n), about 3/n.

    >>> round(compute_one_sided_bound(100), 4)
    0.0295
    """
    return 1 - (1 - CONFIDENCE) ** (1 / n)


def estimate_rate(clusters: Clusters, hits: str, trials: str) -> Estimate:
    """Return the share of hits among trials (at most one hit per trial), with the interval of resampled clusters.

    `hits` and `trials` are names of counts. The share is between 0 and 1; UNKNOWN without trials. At exactly 0 or 1 the
    interval has a single end, a bound from the number of clusters. If the resamples do not vary, both ends are those of
    Wilson's interval over the clusters. If they reach 0 or 1, both are those of Wilson's interval over the effective
    number of observations, at most `trials`: that with the variance of the resamples (Franco et al. 2019, Journal of
    Survey Statistics and Methodology 7, 334).
    """
    clusters = clusters.select_counts(hits, trials)
    n = clusters.sum_count(trials) if clusters.number else 0
    if not n:
        return UNKNOWN
    value, number = clusters.sum_count(hits) / n, clusters.number
    if value <= 0:
        return Estimate(0.0, None, compute_one_sided_bound(number))
    if value >= 1:
        return Estimate(1.0, 1 - compute_one_sided_bound(number), None)
    resamples = _resample_ratios(clusters, hits, trials)
    low, high = _central_interval(resamples)
    if low == high:
        low, high = compute_wilson_interval(value, number)
    elif low <= 0 or high >= 1:
        effective = value * (1 - value) / float(np.nanvar(resamples))
        low, high = compute_wilson_interval(value, min(effective, n))
    return Estimate(value, low, high)


def estimate_rate_difference(clusters: Clusters, hits: str, trials: str, base_hits: str, base_trials: str) -> Estimate:
    """Return the share of hits among trials minus the baseline's, between -1 and 1, with its interval.

    All arguments but `clusters` are names of counts. Only clusters that have all four counts are used (pairs), and both
    sides are resampled together. Swapping the sides negates the value and the ends of the interval exactly. UNKNOWN if
    a side has no trials.
    """
    pairs = clusters.select_counts(hits, trials, base_hits, base_trials)
    if not pairs.number or not pairs.sum_count(trials) or not pairs.sum_count(base_trials):
        return UNKNOWN
    value = pairs.sum_count(hits) / pairs.sum_count(trials) - pairs.sum_count(base_hits) / pairs.sum_count(base_trials)
    resamples = _resample_ratios(pairs, hits, trials) - _resample_ratios(
        pairs, base_hits, base_trials, Stream.STATISTICS_BASE
    )
    low, high = _compute_difference_interval(pairs, resamples)
    if low == high:  # all pairs differ equally: the bound is the possible share of other pairs
        bound = compute_one_sided_bound(pairs.number)
        low, high = max(-1.0, value - bound), min(1.0, value + bound)
    return Estimate(value, low, high)


def estimate_independent_difference(ours: Clusters, base: Clusters, hits: str, trials: str) -> Estimate:
    """Return the share of hits among trials in `ours` minus that in `base`, between -1 and 1, with its interval.

    `hits` and `trials` are names of counts. The sides have different clusters and are resampled separately. UNKNOWN if
    a side has no trials.
    """
    ours, base = ours.select_counts(hits, trials), base.select_counts(hits, trials, role=Stream.STATISTICS_BASE)
    if not all(side.number and side.sum_count(trials) for side in (ours, base)):
        return UNKNOWN
    value = ours.sum_count(hits) / ours.sum_count(trials) - base.sum_count(hits) / base.sum_count(trials)
    low, high = _central_interval(_resample_ratios(ours, hits, trials) - _resample_ratios(base, hits, trials))
    if low == high:  # neither side varies: use the bound from the number of clusters
        bound = compute_one_sided_bound(min(ours.number, base.number))
        low, high = max(-1.0, value - bound), min(1.0, value + bound)
    return Estimate(value, low, high)


Cell = dict[tuple[str, str], tuple[float, float]]  # (cluster, part of it) → (hits, trials)


def build_clusters(ours: Cell, base: Cell | None = None) -> Clusters:
    """Return the clusters of a cell; with `base`, pairs of the parts of clusters in both cells."""
    names = ("hits", "trials") if base is None else ("hits", "trials", "base_hits", "base_trials")
    sums: dict[str, np.ndarray] = {}
    for key in sorted(ours if base is None else ours.keys() & base.keys()):
        counts = np.array(ours[key] if base is None else (*ours[key], *base[key]))
        sums[key[0]] = sums.get(key[0], 0) + counts
    table = np.array(list(sums.values())).reshape(len(sums), len(names)).T
    return Clusters(dict(zip(names, table, strict=True)), np.ones(len(sums), np.int64))


def estimate_cell_difference(ours: Cell, base: Cell) -> Estimate:
    """Return the difference of two rates, over their shared clusters; without shared clusters, over each side
    separately. Swapping the sides negates the value and the ends of its interval exactly."""
    pairs = build_clusters(ours, base)
    if pairs.number:
        return estimate_rate_difference(pairs, "hits", "trials", "base_hits", "base_trials")
    if sorted(ours.items()) > sorted(base.items()):
        return estimate_cell_difference(base, ours).negate()
    return estimate_independent_difference(build_clusters(ours), build_clusters(base), "hits", "trials")


def estimate_mean(clusters: Clusters, total: str, trials: str) -> Estimate:
    """Return the total per trial, an unbounded quantity, with the interval of resampled clusters.

    `total` and `trials` are names of counts. One cluster has no interval. UNKNOWN without trials.
    """
    clusters = clusters.select_counts(total, trials)
    if not clusters.number or not clusters.sum_count(trials):
        return UNKNOWN
    low, high = _compute_interval(clusters, _resample_ratios(clusters, total, trials))
    return Estimate(clusters.sum_count(total) / clusters.sum_count(trials), low, high)


def estimate_exp_mean(clusters: Clusters, total: str, trials: str) -> Estimate:
    """Return exp of `estimate_mean`, such as a perplexity. A value or an end above e^700 is None."""
    return Estimate(*(None if v is None or v > 700 else math.exp(v) for v in estimate_mean(clusters, total, trials)))


def estimate_mean_difference(
    clusters: Clusters, total: str, trials: str, base_total: str, base_trials: str
) -> Estimate:
    """Return the total per trial minus the baseline's, an unbounded quantity, with its interval.

    The arguments name counts of the clusters: `total` per `trials`, and `base_total` per `base_trials`. One cluster has
    no interval.
    """
    pairs = clusters.select_counts(total, trials, base_total, base_trials)
    if not pairs.number or not pairs.sum_count(trials) or not pairs.sum_count(base_trials):
        return UNKNOWN
    value = pairs.sum_count(total) / pairs.sum_count(trials) - pairs.sum_count(base_total) / pairs.sum_count(
        base_trials
    )
    resamples = _resample_ratios(pairs, total, trials) - _resample_ratios(
        pairs, base_total, base_trials, Stream.STATISTICS_BASE
    )
    low, high = _compute_difference_interval(pairs, resamples) if pairs.number > 1 else (None, None)
    return Estimate(value, low, high)


def estimate_median(clusters: Clusters, value: str) -> Estimate:
    """Return the median over clusters of the count named `value`, with the interval of resampled clusters.

    One cluster has no interval. UNKNOWN without clusters.
    """
    clusters = clusters.select_counts(value)
    if not clusters.number:
        return UNKNOWN
    values, weights, number = clusters.counts[value][:, 0], clusters.weights, clusters.number
    random = generator(Stream.STATISTICS_BOOTSTRAP, clusters.key)
    medians = np.empty(RESAMPLES)
    for start, stop in _resample_blocks(len(values)):
        medians[start:stop] = _compute_weighted_medians(
            values, random.multinomial(number, weights / number, size=stop - start)
        )
    low, high = _compute_interval(clusters, medians)
    return Estimate(float(_compute_weighted_medians(values, weights[None])[0]), low, high)


def _compute_weighted_medians(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the medians of ascending `values` float64 [n], weighted by each row of `weights` int64 [row, n]."""
    upto = weights.cumsum(axis=1)
    number = upto[:, -1:]
    middle = [values[(upto <= place).sum(axis=1)] for place in ((number - 1) // 2, number // 2)]
    medians: np.ndarray = (middle[0] + middle[1]) / 2
    return medians


def convert_score_to_elo(score: float) -> float:
    """Return the rating difference in Elo of an expected score strictly between 0 and 1.

    >>> round(convert_score_to_elo(0.75), 1)
    190.8
    """
    return -400 * math.log10(1 / score - 1)


def estimate_elo(score: Estimate) -> Estimate:
    """Return Elo relative to the opponent, from a score (0 to 1) with its interval.

    The value is None at a score of 0 or 1, as is an end of the interval there.
    """
    if score.value is None:
        return UNKNOWN
    value = convert_score_to_elo(score.value) if 0 < score.value < 1 else None
    low, high = (
        convert_score_to_elo(end) if end is not None and 0 < end < 1 else None for end in (score.low, score.high)
    )
    return Estimate(value, low, high)


def estimate_elo_difference(clusters: Clusters, points: str, games: str, base_points: str, base_games: str) -> Estimate:
    """Return Elo minus the baseline's on the same openings, with its interval.

    All arguments but `clusters` are names of counts; a cluster is an opening. If a score is 0 or 1, the value is None
    and only one-sided bounds are known. UNKNOWN if a side has no games.
    """
    pairs = clusters.select_counts(points, games, base_points, base_games)
    our_rate, base = estimate_rate(pairs, points, games), estimate_rate(pairs, base_points, base_games)
    if our_rate.value is None or base.value is None:
        return UNKNOWN
    if 0 < our_rate.value < 1 and 0 < base.value < 1:
        both = [
            _resample_ratios(pairs, points, games),
            _resample_ratios(pairs, base_points, base_games, Stream.STATISTICS_BASE),
        ]
        trials = [
            np.maximum(pairs.resample(name, side=side)[0], 1)
            for name, side in ((games, ""), (base_games, Stream.STATISTICS_BASE))
        ]
        # A resample without any point counts as half a point, so that its Elo is finite.
        clipped_rates = [np.clip(r, 0.5 / n, 1 - 0.5 / n) for r, n in zip(both, trials, strict=True)]
        elos = [-400 * np.log10(1 / r - 1) for r in clipped_rates]
        low, high = _compute_difference_interval(pairs, elos[0] - elos[1])
        if low == high:  # all pairs differ equally, as in `estimate_rate_difference`
            bound, half = compute_one_sided_bound(pairs.number), 0.5 / pairs.sum_count(games)
            ends = (our_rate.value - bound, our_rate.value + bound)
            low, high = (
                convert_score_to_elo(min(max(end, half), 1 - half)) - convert_score_to_elo(base.value) for end in ends
            )
        return Estimate(convert_score_to_elo(our_rate.value) - convert_score_to_elo(base.value), low, high)
    our_elo, base_elo = estimate_elo(our_rate), estimate_elo(base)
    low_end = our_elo.low - base_elo.high if our_elo.low is not None and base_elo.high is not None else None
    high_end = our_elo.high - base_elo.low if our_elo.high is not None and base_elo.low is not None else None
    return Estimate(None, low_end, high_end)


def _resample_ratios(clusters: Clusters, hits: str, trials: str, side: str = "") -> np.ndarray:
    top, bottom = clusters.resample(hits, trials, side=side)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios: np.ndarray = top / bottom
    return ratios


def _compute_difference_interval(pairs: Clusters, resamples: np.ndarray) -> tuple[float, float]:
    """Return the ends of the interval of a difference. Swapping the sides of the pairs negates them exactly."""
    if not pairs.orientation:
        resamples = np.concatenate([resamples, -resamples])
    low, high = _central_interval(resamples * (pairs.orientation or 1))
    return (low, high) if pairs.orientation >= 0 else (-high, -low)


def _compute_interval(clusters: Clusters, resamples: np.ndarray) -> tuple[float | None, float | None]:
    """Return the ends of the interval of a statistic's `resamples`, float64 [resamples].

    None for a single cluster, which shows no variation between clusters.
    """
    return _central_interval(resamples) if clusters.number > 1 else (None, None)


def _central_interval(resamples: np.ndarray) -> tuple[float, float]:
    """Return the ends of the central CONFIDENCE of the resamples as np.nanpercentile does, without its import of
    numpy.ma, which takes as long as several statements."""
    sorted_values = np.sort(resamples[~np.isnan(resamples)])
    if not len(sorted_values):
        return math.nan, math.nan
    last = len(sorted_values) - 1
    tail = last * (1 - CONFIDENCE) / 2
    low, high = np.interp([tail, last - tail], np.arange(len(sorted_values)), sorted_values)
    return float(low), float(high)
