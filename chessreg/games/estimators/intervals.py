"""From a pool to every player's rating with its interval, by resampling clusters of games."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chessreg.games.estimators.base import ESTIMATORS, FAR, LOSS, SCALE, STEPS, Counts, Options, Pool, expected
from chessreg.noise import generator

CONFIDENCE = 0.95


class Rated(NamedTuple):
    """A player's rating with its 95 % interval. At a score of 0 or 1 only one end is known and `rating` is None."""

    rating: float | None
    low: float | None
    high: float | None


def rate(pool: Pool, name: str, options: Options, resamples: int, key: Sequence[int | str] = ()) -> list[Rated]:
    """Every player's rating, in the pool's order. The interval is that of the resamples; the bound of a player that won
    or lost everything is the rating at which that would happen in 1 of 20 pools.

    Raises NotFoundError for an unknown estimator.
    """
    function = ESTIMATORS[name]
    counts = resampled(pool, resamples, key)
    ratings = function(counts, options)
    return [_with_interval(counts, ratings, player, options) for player in range(len(pool.players))]


def resampled(pool: Pool, resamples: int, key: Sequence[int | str]) -> Counts:
    """Counts of what was played and of `resamples` bootstrap samples of its clusters."""
    low, high = np.minimum(pool.first, pool.second), np.maximum(pool.first, pool.second)
    outcome = np.where(pool.first <= pool.second, pool.outcome, LOSS - pool.outcome)
    pairs, pair = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
    cells = 3 * pair.ravel() + outcome
    order = np.lexsort((cells, pool.cluster))
    edges = np.flatnonzero(np.diff(pool.cluster[order])) + 1
    alike = Counter(tuple(part.tolist()) for part in np.split(cells[order], edges))
    kinds = sorted(alike)
    weights = np.array([alike[kind] for kind in kinds], np.int64)
    table = np.zeros((len(kinds), 3 * len(pairs)))
    for place, kind in enumerate(kinds):
        np.add.at(table[place], list(kind), 1)
    number = int(weights.sum())
    drawn = generator("rating bootstrap", *key).multinomial(number, weights / number, size=resamples)
    results = np.concatenate([weights[None] @ table, drawn @ table])
    return Counts(len(pool.players), pairs, results.reshape(resamples + 1, len(pairs), 3), pool.anchors)


def _with_interval(counts: Counts, ratings: np.ndarray, player: int, options: Options) -> Rated:
    value = float(ratings[0, player])
    if math.isnan(value):
        return Rated(None, None, None)
    if player in counts.anchors:
        return Rated(value, None, None)
    if math.isinf(value):
        bound = _bound(counts, ratings[0], player, won=value > 0)
        return Rated(None, bound, None) if value > 0 else Rated(None, None, bound)
    known = np.sort(ratings[1:, player][~np.isnan(ratings[1:, player])])
    tail = (1 - CONFIDENCE) / 2
    if not len(known):
        return Rated(value, None, None)
    low, high = (float(known[min(int(share * len(known)), len(known) - 1)]) for share in (tail, 1 - tail))
    if low == high:  # the resamples cannot differ: from how sharply the games tell ratings apart
        spread = 1.96 * _standard_error(counts, ratings[0], player)
        low, high = value - spread, value + spread
    return Rated(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def _opponents(counts: Counts, ratings: np.ndarray, player: int) -> tuple[np.ndarray, np.ndarray]:
    """Ratings of the opponents whose rating is known, and games played against each, both [opponent]."""
    rated, games = [], []
    for (a, b), results in zip(counts.pairs.tolist(), counts.results[0], strict=True):
        if player in (a, b) and math.isfinite(opponent := ratings[b if player == a else a]):
            rated.append(opponent)
            games.append(results.sum())
    return np.array(rated), np.array(games)


def _bound(counts: Counts, ratings: np.ndarray, player: int, won: bool) -> float | None:
    """The rating at which winning (or losing) all of these games has a probability of 0.05."""
    rated, games = _opponents(counts, ratings, player)
    if not len(rated):
        return None
    low, high = rated.min() - FAR, rated.max() + FAR
    for _ in range(STEPS):
        middle = (low + high) / 2
        chance = expected(middle - rated) if won else expected(rated - middle)
        likely = float((games * np.log(chance)).sum()) > math.log(1 - CONFIDENCE)
        low, high = (low, middle) if likely == won else (middle, high)
    return float((low + high) / 2)


def _standard_error(counts: Counts, ratings: np.ndarray, player: int) -> float:
    rated, games = _opponents(counts, ratings, player)
    mean = expected(ratings[player] - rated)
    information = float((games * mean * (1 - mean)).sum()) * SCALE**2
    return 1 / math.sqrt(information) if information > 0 else 0.0
