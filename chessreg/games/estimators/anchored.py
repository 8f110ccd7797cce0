"""Estimators that rate each player alone, against opponents of known rating."""

from __future__ import annotations

import numpy as np

from chessreg.games.estimators.base import DRAW, ESTIMATORS, FAR, STEPS, WIN, Counts, Options, expected, rated, unknown
from chessreg.noise import generator


@ESTIMATORS.named("anchored-ml")
def anchored_ml(counts: Counts, options: Options) -> np.ndarray:
    """Maximum likelihood of each player alone against opponents of known rating: the rating whose expected points are
    those that were scored. Games between players without a known rating do not count."""
    found = unknown(counts)
    for player in rated(counts):
        ratings, results = counts.against_anchors(player)
        if len(ratings):
            games = results.sum(axis=2)
            found[:, player] = solve(ratings, games, results[..., WIN] + options.draw_weight * results[..., DRAW])
    return found


def solve(ratings: np.ndarray, games: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The rating R with sum(games * expected(R - ratings)) = sum(points), by bisection; float64 [sample]."""
    total, scored = games.sum(axis=1), points.sum(axis=1)
    low = np.full(len(games), ratings.min() - FAR)
    high = np.full(len(games), ratings.max() + FAR)
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = (games * expected(middle[:, None] - ratings)).sum(axis=1) > scored
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    found = (low + high) / 2
    found[scored <= 0], found[scored >= total] = -np.inf, np.inf
    found[total == 0] = np.nan
    return found


@ESTIMATORS.named("junkin-batched")
def junkin_batched(counts: Counts, options: Options) -> np.ndarray:
    """Junkin 2025, Appendix I: from `start`, one step of `k_factor` times (points - expected points) for each opponent,
    the weakest first. Ill-conditioned beyond a few games a level: it is here to reproduce the paper's numbers."""
    found = unknown(counts)
    for player in rated(counts):
        ratings, results = counts.against_anchors(player)
        rating = np.full(counts.samples, options.start)
        for opponent in np.argsort(ratings, kind="stable"):
            games = results[:, opponent].sum(axis=1)
            points = results[:, opponent, WIN] + options.draw_weight * results[:, opponent, DRAW]
            rating = rating + options.k_factor * (points - games * expected(rating - ratings[opponent]))
        if len(ratings):
            found[:, player] = rating
    return found


@ESTIMATORS.named("sequential")
def sequential(counts: Counts, options: Options) -> np.ndarray:
    """The classical update after every game, in an order drawn from the seed; the interval has its luck in it."""
    found = unknown(counts)
    for player in rated(counts):
        ratings, results = counts.against_anchors(player)
        if not len(ratings):
            continue
        values = np.array([1.0, options.draw_weight, 0.0])
        for sample in range(counts.samples):
            times = results[sample].round().astype(np.int64)
            against = np.repeat(np.repeat(ratings, 3), times.ravel())
            points = np.repeat(np.tile(values, len(ratings)), times.ravel())
            rating = options.start
            for game in generator(options.seed, "rating order", player, sample).permutation(len(points)).tolist():
                rating += options.k_factor * (points[game] - 1 / (1 + 10 ** ((against[game] - rating) / 400)))
            found[sample, player] = rating if len(points) else np.nan
    return found
