"""What estimators work on: pools of games and counts of their results; their registry; intervals by resampling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chessreg.named import Registry
from chessreg.noise import generator

WIN, DRAW, LOSS = 0, 1, 2
SCALE = math.log(10) / 400
FAR = 6000.0  # Elo beyond the anchors: no search goes further
STEPS = 60


@dataclass(frozen=True)
class Pool:
    """Games between numbered players. `first`, `second` int64 [game]; `outcome` int64 [game], WIN, DRAW or LOSS of
    `first`; `cluster` int64 [game]: games of one opening are drawn together. `anchors`: player → its known rating."""

    players: tuple[str, ...]
    first: np.ndarray
    second: np.ndarray
    outcome: np.ndarray
    cluster: np.ndarray
    anchors: Mapping[int, float]


@dataclass(frozen=True)
class Counts:
    """Results by pair of players. `pairs` int64 [pair, 2]; `results` float64 [sample, pair, 3]: wins of the first of
    the pair, draws, losses. Sample 0 is what was played, the others are resamples."""

    players: int
    pairs: np.ndarray
    results: np.ndarray
    anchors: Mapping[int, float]

    @property
    def samples(self) -> int:
        return len(self.results)

    def against_anchors(self, player: int) -> tuple[np.ndarray, np.ndarray]:
        """Of one player: the ratings of its anchored opponents, float64 [opponent], and its results against each,
        float64 [sample, opponent, 3] with its own wins first."""
        ratings, results = [], []
        for place, (one, other) in enumerate(self.pairs.tolist()):
            if player in (one, other) and (opponent := other if player == one else one) in self.anchors:
                ratings.append(self.anchors[opponent])
                results.append(self.results[:, place, :: 1 if player == one else -1])
        found = np.stack(results, axis=1) if results else np.zeros((self.samples, 0, 3))
        return np.array(ratings), found


class Options(NamedTuple):
    """What estimators are told: points of a draw, step and start of the updating ones, and a seed for their order."""

    draw_weight: float = 0.5
    k_factor: float = 16.0
    start: float = 1300.0
    seed: int = 0


Estimator = Callable[[Counts, Options], np.ndarray]
"""Counts → ratings, float64 [sample, player]: infinite where all was won or lost, NaN where nothing is known."""

ESTIMATORS: Registry[Estimator] = Registry("rating estimator")
JOINT = frozenset({"bradley-terry", "davidson"})
"""Those that need no opponents of known rating."""


def expected(difference: np.ndarray) -> np.ndarray:
    """Expected score at this rating difference."""
    found: np.ndarray = 1 / (1 + np.exp(np.clip(-SCALE * difference, -700, 700)))
    return found


def rated(counts: Counts) -> list[int]:
    return [player for player in range(counts.players) if player not in counts.anchors]


def unknown(counts: Counts) -> np.ndarray:
    found = np.full((counts.samples, counts.players), np.nan)
    for player, rating in counts.anchors.items():
        found[:, player] = rating
    return found


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
