"""Estimators: each player alone against opponents of known rating, or all players of a pool at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chessreg.games.estimators.base import (
    DRAW,
    ESTIMATORS,
    FAR,
    LOSS,
    SCALE,
    STEPS,
    WIN,
    Counts,
    Options,
    expected,
    rated,
    unknown,
)
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


RIDGE = 1e-12  # keeps a singular system solvable where only differences are determined


@ESTIMATORS.named("bradley-terry")
def bradley_terry(counts: Counts, options: Options) -> np.ndarray:
    """Maximum likelihood of all players at once (Bradley and Terry 1952); a draw is half a win and half a loss. Anchors
    keep their ratings; without any the mean is 0."""
    return _joint(counts, with_draws=False)


@ESTIMATORS.named("davidson")
def davidson(counts: Counts, options: Options) -> np.ndarray:
    """The same with draws as a third result whose frequency is fitted (Davidson 1970): equal players draw most."""
    return _joint(counts, with_draws=True)


def _joint(counts: Counts, with_draws: bool) -> np.ndarray:
    """Newton's method over all players without an anchor, a bounded step at a time, all samples together."""
    one, other = counts.pairs.T
    games = counts.results.sum(axis=2)
    points = counts.results[..., WIN] + 0.5 * counts.results[..., DRAW]
    draws = counts.results[..., DRAW].sum(axis=1)
    free = np.array(rated(counts), np.int64)
    ratings = np.zeros((counts.samples, counts.players))
    for player, rating in counts.anchors.items():
        ratings[:, player] = rating
    if counts.anchors:
        ratings[:, free] = np.mean(list(counts.anchors.values()))
    center = ratings.copy()
    ties = np.full(counts.samples, 1.0 if with_draws else 0.0)  # Davidson's nu
    place = np.full(counts.players, -1)
    place[free] = np.arange(len(free))
    for _ in range(STEPS if len(free) else 0):
        strength = np.clip(SCALE * (ratings[:, one] - ratings[:, other]), -40, 40)
        parts = np.stack([np.exp(strength / 2), np.repeat(ties[:, None], len(one), axis=1), np.exp(-strength / 2)])
        chance = parts / parts.sum(axis=0)  # [3, sample, pair]
        mean = chance[WIN] + 0.5 * chance[DRAW]
        surplus = points - games * mean
        weight = games * (chance[WIN] + 0.25 * chance[DRAW] - mean**2)
        slope = np.zeros((counts.samples, counts.players))
        curve = np.zeros((counts.samples, counts.players, counts.players))
        for pair, (a, b) in enumerate(counts.pairs.tolist()):
            slope[:, a] += surplus[:, pair]
            slope[:, b] -= surplus[:, pair]
            for i, j, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
                curve[:, i, j] += sign * weight[:, pair]
        inner = curve[:, free][:, :, free] + RIDGE * np.eye(len(free))
        step = np.linalg.solve(inner, slope[:, free, None])[..., 0] / SCALE
        ratings[:, free] += np.clip(step, -400, 400)
        ratings = np.clip(ratings, center - 2 * FAR, center + 2 * FAR)
        if with_draws:
            predicted = (games * chance[DRAW]).sum(axis=1)
            ties = np.where(draws > 0, ties * draws / np.maximum(predicted, 1e-12), 0.0)
        if np.abs(step[np.abs(ratings[:, free] - center[:, free]) < FAR]).max(initial=0) < 1e-6:
            break
    return _settled(counts, ratings, games)


def _settled(counts: Counts, ratings: np.ndarray, games: np.ndarray) -> np.ndarray:
    """Ratings on one scale: what the games do not tie to it from both sides is infinite, or unknown.

    The scale is the anchors'; without anchors it is that of the largest group whose members can be compared both ways,
    with a mean of 0.
    """
    ratings = ratings + _runaways(counts)
    above, below = main_group(counts)
    inside = above & below
    if not counts.anchors:
        finite = np.isfinite(ratings) & inside
        mean = np.where(finite, ratings, 0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
        ratings -= mean[:, None]
    ratings[:, above & ~below] = np.inf
    ratings[:, below & ~above] = -np.inf
    ratings[:, ~above & ~below] = np.nan
    with np.errstate(invalid="ignore"):  # infinity minus itself: nothing has drifted
        drift = ratings - ratings[0]
    ratings = np.where(np.isfinite(drift) & (np.abs(drift) > FAR / 2), np.copysign(np.inf, drift), ratings)
    for player in rated(counts):
        mine = (counts.pairs == player).any(axis=1)
        ratings[games[:, mine].sum(axis=1) == 0, player] = np.nan
    return ratings


def main_group(counts: Counts) -> tuple[np.ndarray, np.ndarray]:
    """Who scored, through any chain of games, against the group that carries the scale, and against whom it scored: two
    bool [player]; its members are in both. It is the anchors' group, else the one with the most games."""
    scored: dict[int, set[int]] = {player: set() for player in range(counts.players)}
    played = np.zeros(counts.players)
    for (a, b), (won, drawn, lost) in zip(counts.pairs.tolist(), counts.results[0].tolist(), strict=True):
        played[[a, b]] += won + drawn + lost
        if won or drawn:
            scored[a].add(b)
        if lost or drawn:
            scored[b].add(a)
    for anchor in counts.anchors:  # their differences are known without games
        scored[anchor] |= counts.anchors.keys()
    against: dict[int, set[int]] = {player: {p for p, them in scored.items() if player in them} for player in scored}
    best: tuple[float, set[int], set[int]] = (-1.0, set(), set())
    for start in list(counts.anchors)[:1] or range(counts.players):
        above, below = _reached(against, start), _reached(scored, start)
        if (weight := played[list(above & below)].sum()) > best[0]:
            best = (weight, above, below)
    members = np.arange(counts.players)
    return np.isin(members, list(best[1])), np.isin(members, list(best[2]))


def _reached(steps: Mapping[int, set[int]], start: int) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        fresh = steps[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


def _runaways(counts: Counts) -> np.ndarray:
    """Plus or minus infinity for players that won (or lost) every game against those who remain when such players are
    taken out: no finite rating is likeliest for them. 0 for all others; float64 [sample, player]."""
    found = np.zeros((counts.samples, counts.players))
    while True:
        left = np.isfinite(found)
        both = left[:, counts.pairs[:, 0]] & left[:, counts.pairs[:, 1]]
        results = counts.results * both[..., None]
        before = int(left.sum())
        for player in rated(counts):
            own, other = counts.pairs[:, 0] == player, counts.pairs[:, 1] == player
            won = results[:, own, WIN].sum(axis=1) + results[:, other, LOSS].sum(axis=1)
            lost = results[:, own, LOSS].sum(axis=1) + results[:, other, WIN].sum(axis=1)
            drawn = results[:, own | other, DRAW].sum(axis=1)
            held = ~left[:, player] | (drawn > 0) | ((won > 0) == (lost > 0))
            found[:, player] = np.where(held, found[:, player], np.where(won > 0, np.inf, -np.inf))
        if int(np.isfinite(found).sum()) == before:
            return found
