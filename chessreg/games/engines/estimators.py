"""Rating estimators: ratings from games between players, with intervals by resampling games.

An estimator is a registered function over a batch of counts: row 0 is the observed games, the other rows are bootstrap
resamples, so that every estimator has intervals. Ratings are Elo: a difference of 400 is an expected score of 10/11.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from chessreg.named import NameRegistry
from chessreg.noise import Stream, generator

WIN, DRAW, LOSS = 0, 1, 2
ELO_SCALE = math.log(10) / 400
MAX_ELO_DISTANCE = 6000.0  # Elo beyond the anchors where every search ends
MAX_ITERATIONS = 60


@dataclass(frozen=True)
class Pool:
    """Games between numbered players.

    `first`, `second` int64 [game]; `outcome` int64 [game], WIN, DRAW or LOSS of `first`; `cluster` int64 [game]: games
    of one opening, which are resampled together. `anchors`: player → its known rating.
    """

    players: tuple[str, ...]
    first: np.ndarray
    second: np.ndarray
    outcome: np.ndarray
    cluster: np.ndarray
    anchors: Mapping[int, float]


@dataclass(frozen=True)
class PairCounts:
    """Results by pair of players.

    `pairs` int64 [pair, 2]; `results` float64 [sample, pair, 3]: wins of the pair's first player, draws, losses. Sample
    0 is the observed games, the others are resamples.
    """

    players: int
    pairs: np.ndarray
    results: np.ndarray
    anchors: Mapping[int, float]

    @property
    def samples(self) -> int:
        """The number of samples, including the observed games."""
        return len(self.results)

    def select_anchored_opponents(self, player: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a player's anchored opponents: (ratings float64 [opponent], results float64 [sample, opponent, 3], own
        wins first)."""
        ratings, results = [], []
        for place, (one, other) in enumerate(self.pairs.tolist()):
            if player in (one, other) and (opponent := other if player == one else one) in self.anchors:
                ratings.append(self.anchors[opponent])
                results.append(self.results[:, place, :: 1 if player == one else -1])
        counts = np.stack(results, axis=1) if results else np.zeros((self.samples, 0, 3))
        return np.array(ratings), counts


class Options(NamedTuple):
    """Options of estimators: points per draw, step and start of the sequential estimators, and the seed of
    their order."""

    draw_weight: float = 0.5
    k_factor: float = 16.0
    start: float = 1300.0
    seed: int = 0


Estimator = Callable[[PairCounts, Options], np.ndarray]
"""Counts → ratings, float64 [sample, player]: infinite after only wins or losses, NaN if unknown."""

ESTIMATORS: NameRegistry[Estimator] = NameRegistry("rating estimator")
JOINT = frozenset({"bradley-terry", "davidson"})
"""Estimators that need no opponents of known rating."""
RULES = frozenset({"junkin-batched", "sequential"})
"""Estimators that follow an update rule instead of maximizing a likelihood."""


class Variant(NamedTuple):
    """An estimator with its points per draw; the joint estimators count a draw as a half."""

    estimator: str
    draw_weight: float


DRAW_WEIGHTS = (0.5, 0.0, 0.9)
"""Points per draw: the usual half, and the two values in Junkin's code."""

SIDE_BY_SIDE: tuple[Variant, ...] = (
    *(Variant(name, weight) for name in ("anchored-ml", "junkin-batched", "sequential") for weight in DRAW_WEIGHTS),
    *(Variant(name, 0.5) for name in ("bradley-terry", "davidson")),
)
"""The estimators shown side by side for one pool; the first is the headline."""


def select_pair(pool: Pool, player: int, opponent: int) -> Pool:
    """Return the games between two players only."""
    is_pair = ((pool.first == player) & (pool.second == opponent)) | (
        (pool.first == opponent) & (pool.second == player)
    )
    return replace(pool, first=pool.first[is_pair], second=pool.second[is_pair], outcome=pool.outcome[is_pair],
                   cluster=pool.cluster[is_pair])  # fmt: skip


def compute_expected_score(difference: np.ndarray) -> np.ndarray:
    """Return the expected score at a rating difference, in [0, 1]."""
    score: np.ndarray = 1 / (1 + np.exp(np.clip(-ELO_SCALE * difference, -700, 700)))
    return score


def list_unanchored(counts: PairCounts) -> list[int]:
    """Return the players without an anchor."""
    return [player for player in range(counts.players) if player not in counts.anchors]


def make_ratings(counts: PairCounts) -> np.ndarray:
    """Return the anchors' ratings, NaN for all other players: float64 [sample, player]."""
    ratings = np.full((counts.samples, counts.players), np.nan)
    for player, rating in counts.anchors.items():
        ratings[:, player] = rating
    return ratings


CONFIDENCE_LEVEL = 0.95


class PlayerRating(NamedTuple):
    """A player's rating with its 95 % interval. At a score of 0 or 1, `rating` and one bound are unknown (None)."""

    rating: float | None
    low: float | None
    high: float | None


def estimate_ratings(
    pool: Pool, name: str, options: Options, resamples: int, key: Sequence[int | str] = ()
) -> list[PlayerRating]:
    """Return every player's rating, in the pool's order, with an interval from `resamples` resamples.

    The bound of a player with only wins or only losses is the rating at which that happens in 1 of 20 pools. An update
    rule whose result is constant has no interval. Raises NotFoundError for an unknown estimator.
    """
    function = ESTIMATORS[name]
    counts = resample_counts(pool, resamples, key)
    ratings = function(counts, options)
    return [_add_interval(counts, ratings, player, name) for player in range(len(pool.players))]


def resample_counts(pool: Pool, resamples: int, key: Sequence[int | str]) -> PairCounts:
    """Return the observed counts and `resamples` bootstrap samples of the clusters."""
    low, high = np.minimum(pool.first, pool.second), np.maximum(pool.first, pool.second)
    outcome = np.where(pool.first <= pool.second, pool.outcome, LOSS - pool.outcome)
    pairs, pair = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
    cells = 3 * pair.ravel() + outcome
    order = np.lexsort((cells, pool.cluster))
    edges = np.flatnonzero(np.diff(pool.cluster[order])) + 1
    copies = Counter(tuple(part.tolist()) for part in np.split(cells[order], edges))
    kinds = sorted(copies)
    weights = np.array([copies[kind] for kind in kinds], np.int64)
    table = np.zeros((len(kinds), 3 * len(pairs)))
    for place, kind in enumerate(kinds):
        np.add.at(table[place], list(kind), 1)
    number = int(weights.sum())
    resampled_counts = generator(Stream.RATING_BOOTSTRAP, *key).multinomial(number, weights / number, size=resamples)
    results = np.concatenate([weights[None] @ table, resampled_counts @ table])
    return PairCounts(len(pool.players), pairs, results.reshape(resamples + 1, len(pairs), 3), pool.anchors)


def _add_interval(counts: PairCounts, ratings: np.ndarray, player: int, name: str) -> PlayerRating:
    """Return the rating of `player` (a number) with its interval. `ratings` [1 + resamples, players] has the estimate
    in row 0. `name` is the estimator; see `estimate_ratings`."""
    value = float(ratings[0, player])
    if math.isnan(value):
        return PlayerRating(None, None, None)
    if player in counts.anchors:
        return PlayerRating(value, None, None)
    opponents = _find_opponents(counts, ratings[0], player, name in JOINT)
    if math.isinf(value):
        bound = _find_bound(*opponents, is_win=value > 0)
        return PlayerRating(None, bound, None) if value > 0 else PlayerRating(None, None, bound)
    finite_ratings = np.sort(ratings[1:, player][~np.isnan(ratings[1:, player])])
    tail = (1 - CONFIDENCE_LEVEL) / 2
    if not len(finite_ratings):
        return PlayerRating(value, None, None)
    low, high = (
        float(finite_ratings[min(int(share * len(finite_ratings)), len(finite_ratings) - 1)])
        for share in (tail, 1 - tail)
    )
    if low == high and name in RULES:
        return PlayerRating(value, None, None)
    if low == high:  # identical resamples: use the standard error
        spread = 1.96 * _standard_error(value, *opponents)
        low, high = value - spread, value + spread
    return PlayerRating(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def _find_opponents(counts: PairCounts, ratings: np.ndarray, player: int, joint: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the ratings of a player's opponents and the number of games against each, both [opponents].

    They are the anchored opponents or, with `joint`, all with a finite rating in `ratings` [players].
    """
    if not joint:
        anchored_ratings, results = counts.select_anchored_opponents(player)
        return anchored_ratings, results[0].sum(axis=1)
    opponent_ratings, games = [], []
    for (a, b), game_count in zip(counts.pairs.tolist(), counts.results[0], strict=True):
        if player in (a, b) and math.isfinite(opponent := ratings[b if player == a else a]):
            opponent_ratings.append(opponent)
            games.append(game_count.sum())
    return np.array(opponent_ratings), np.array(games)


def _find_bound(opponent_ratings: np.ndarray, games: np.ndarray, is_win: bool) -> float | None:
    """Return the rating at which winning (losing, unless `is_win`) all games has probability 0.05; None without
    opponents. `opponent_ratings` float [n] are the opponents' ratings, and `games` int [n] the games against each."""
    if not len(opponent_ratings):
        return None
    low, high = opponent_ratings.min() - MAX_ELO_DISTANCE, opponent_ratings.max() + MAX_ELO_DISTANCE
    for _ in range(MAX_ITERATIONS):
        middle = (low + high) / 2
        chance = (
            compute_expected_score(middle - opponent_ratings)
            if is_win
            else compute_expected_score(opponent_ratings - middle)
        )
        likely = float((games * np.log(chance)).sum()) > math.log(1 - CONFIDENCE_LEVEL)
        low, high = (low, middle) if likely == is_win else (middle, high)
    return float((low + high) / 2)


def _standard_error(rating: float, opponent_ratings: np.ndarray, games: np.ndarray) -> float:
    """Return the standard error of a rating from the Fisher information of these games; 0 without information."""
    mean = compute_expected_score(rating - opponent_ratings)
    information = float((games * mean * (1 - mean)).sum()) * ELO_SCALE**2
    return 1 / math.sqrt(information) if information > 0 else 0.0


@ESTIMATORS.named("anchored-ml")
def rate_anchored_ml(counts: PairCounts, options: Options) -> np.ndarray:
    """Rate each player separately by maximum likelihood against opponents of known rating.

    The rating is the one whose expected points equal the points scored. Games between players of unknown rating do not
    count.
    """
    solved_ratings = make_ratings(counts)
    for player in list_unanchored(counts):
        ratings, results = counts.select_anchored_opponents(player)
        if len(ratings):
            games = results.sum(axis=2)
            solved_ratings[:, player] = solve_rating(
                ratings, games, results[..., WIN] + options.draw_weight * results[..., DRAW]
            )
    return solved_ratings


def solve_rating(ratings: np.ndarray, games: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the rating R with sum(games * expected_score(R - ratings)) = sum(points), by bisection;
    float64 [sample]."""
    total, points_sum = games.sum(axis=1), points.sum(axis=1)
    low = np.full(len(games), ratings.min() - MAX_ELO_DISTANCE)
    high = np.full(len(games), ratings.max() + MAX_ELO_DISTANCE)
    for _ in range(MAX_ITERATIONS):
        middle = (low + high) / 2
        above = (games * compute_expected_score(middle[:, None] - ratings)).sum(axis=1) > points_sum
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    root = (low + high) / 2
    root[points_sum <= 0], root[points_sum >= total] = -np.inf, np.inf
    root[total == 0] = np.nan
    return root


@ESTIMATORS.named("junkin-batched")
def rate_junkin_batched(counts: PairCounts, options: Options) -> np.ndarray:
    """Rate as in Junkin 2025, Appendix I.

    From `start`, one step of `k_factor` times (points - expected points) per opponent, the weakest first.
    Ill-conditioned beyond a few games per level; use it only to reproduce the paper's numbers.
    """
    ratings_by_sample = make_ratings(counts)
    for player in list_unanchored(counts):
        ratings, results = counts.select_anchored_opponents(player)
        rating = np.full(counts.samples, options.start)
        for opponent in np.argsort(ratings, kind="stable"):
            games = results[:, opponent].sum(axis=1)
            points = results[:, opponent, WIN] + options.draw_weight * results[:, opponent, DRAW]
            rating = rating + options.k_factor * (points - games * compute_expected_score(rating - ratings[opponent]))
        if len(ratings):
            ratings_by_sample[:, player] = rating
    return ratings_by_sample


@ESTIMATORS.named("sequential")
def rate_sequential(counts: PairCounts, options: Options) -> np.ndarray:
    """Rate by the classical update after every game, in an order drawn from the seed; the interval includes its
    variance."""
    ratings_by_sample = make_ratings(counts)
    for player in list_unanchored(counts):
        ratings, results = counts.select_anchored_opponents(player)
        if not len(ratings):
            continue
        values = np.array([1.0, options.draw_weight, 0.0])
        for sample in range(counts.samples):
            times = results[sample].round().astype(np.int64)
            opponent_ratings = np.repeat(np.repeat(ratings, 3), times.ravel())
            points = np.repeat(np.tile(values, len(ratings)), times.ravel())
            rating = options.start
            for game in generator(options.seed, Stream.RATING_ORDER, player, sample).permutation(len(points)).tolist():
                rating += options.k_factor * (points[game] - 1 / (1 + 10 ** ((opponent_ratings[game] - rating) / 400)))
            ratings_by_sample[sample, player] = rating if len(points) else np.nan
    return ratings_by_sample


RIDGE_WEIGHT = 1e-12  # keeps a singular system solvable if only differences are determined


@ESTIMATORS.named("bradley-terry")
def rate_bradley_terry(counts: PairCounts, options: Options) -> np.ndarray:
    """Rate all players jointly by maximum likelihood (Bradley and Terry 1952); a draw is half a win and half a loss.

    Anchors keep their ratings; without anchors the mean is 0.
    """
    return _fit_jointly(counts, with_draws=False)


@ESTIMATORS.named("davidson")
def rate_davidson(counts: PairCounts, options: Options) -> np.ndarray:
    """Rate jointly with draws as a third result whose frequency is fitted (Davidson 1970): equal players draw most
    often.

    Returns ratings float64 [sample, player].
    """
    return _fit_jointly(counts, with_draws=True)


def _fit_jointly(counts: PairCounts, with_draws: bool) -> np.ndarray:
    """Return ratings float64 [sample, player], with all players without an anchor fitted jointly.

    Newton's method with bounded steps, all samples together; `with_draws` fits the frequency of draws (Davidson's nu).
    """
    one, other = counts.pairs.T
    games = counts.results.sum(axis=2)
    points = counts.results[..., WIN] + 0.5 * counts.results[..., DRAW]
    draws = counts.results[..., DRAW].sum(axis=1)
    free = np.array(list_unanchored(counts), np.int64)
    ratings = np.zeros((counts.samples, counts.players))
    for player, rating in counts.anchors.items():
        ratings[:, player] = rating
    if counts.anchors:
        ratings[:, free] = np.mean(list(counts.anchors.values()))
    center = ratings.copy()
    ties = np.full(counts.samples, 1.0 if with_draws else 0.0)  # Davidson's nu
    place = np.full(counts.players, -1)
    place[free] = np.arange(len(free))
    for _ in range(MAX_ITERATIONS if len(free) else 0):
        strength = np.clip(ELO_SCALE * (ratings[:, one] - ratings[:, other]), -40, 40)
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
        inner = curve[:, free][:, :, free] + RIDGE_WEIGHT * np.eye(len(free))
        step = np.linalg.solve(inner, slope[:, free, None])[..., 0] / ELO_SCALE
        ratings[:, free] += np.clip(step, -400, 400)
        ratings = np.clip(ratings, center - 2 * MAX_ELO_DISTANCE, center + 2 * MAX_ELO_DISTANCE)
        if with_draws:
            predicted_points = (games * chance[DRAW]).sum(axis=1)
            ties = np.where(draws > 0, ties * draws / np.maximum(predicted_points, 1e-12), 0.0)
        if np.abs(step[np.abs(ratings[:, free] - center[:, free]) < MAX_ELO_DISTANCE]).max(initial=0) < 1e-6:
            break
    return _settle_scale(counts, ratings, games)


def _settle_scale(counts: PairCounts, ratings: np.ndarray, games: np.ndarray) -> np.ndarray:
    """Return ratings on one scale; players that games do not connect to it in both directions are infinite or NaN.

    The scale is that of the anchors, or of the largest group comparable in both directions, with mean 0.
    """
    ratings = ratings + _find_runaways(counts)
    above, lower_group = find_main_group(counts)
    inside = above & lower_group
    if not counts.anchors:
        finite = np.isfinite(ratings) & inside
        mean = np.where(finite, ratings, 0).sum(axis=1) / np.maximum(finite.sum(axis=1), 1)
        ratings -= mean[:, None]
    ratings[:, above & ~lower_group] = np.inf
    ratings[:, lower_group & ~above] = -np.inf
    ratings[:, ~above & ~lower_group] = np.nan
    with np.errstate(invalid="ignore"):  # infinity minus infinity: no drift
        drift = ratings - ratings[0]
    ratings = np.where(np.isfinite(drift) & (np.abs(drift) > MAX_ELO_DISTANCE / 2), np.copysign(np.inf, drift), ratings)
    for player in list_unanchored(counts):
        player_pairs = (counts.pairs == player).any(axis=1)
        ratings[games[:, player_pairs].sum(axis=1) == 0, player] = np.nan
    return ratings


def find_main_group(counts: PairCounts) -> tuple[np.ndarray, np.ndarray]:
    """Return (players that scored against the main group, players that it scored against), both bool [player].

    Chains of games count, and members of the group are in both. It is the anchors' group, else the one with the most
    games.
    """
    scored_against: dict[int, set[int]] = {player: set() for player in range(counts.players)}
    played_games = np.zeros(counts.players)
    for (a, b), (wins, draws, losses) in zip(counts.pairs.tolist(), counts.results[0].tolist(), strict=True):
        played_games[[a, b]] += wins + draws + losses
        if wins or draws:
            scored_against[a].add(b)
        if losses or draws:
            scored_against[b].add(a)
    for anchor in counts.anchors:  # their differences are known
        scored_against[anchor] |= counts.anchors.keys()
    lost_to: dict[int, set[int]] = {
        player: {p for p, opponents in scored_against.items() if player in opponents} for player in scored_against
    }
    best_group: tuple[float, set[int], set[int]] = (-1.0, set(), set())
    for start in list(counts.anchors)[:1] or range(counts.players):
        above, lower_group = _find_reachable(lost_to, start), _find_reachable(scored_against, start)
        if (weight := played_games[list(above & lower_group)].sum()) > best_group[0]:
            best_group = (weight, above, lower_group)
    members = np.arange(counts.players)
    return np.isin(members, list(best_group[1])), np.isin(members, list(best_group[2]))


def _find_reachable(steps: Mapping[int, set[int]], start: int) -> set[int]:
    """Return the players reachable from `start`, including `start`."""
    reachable, queue = {start}, [start]
    while queue:
        new_players = steps[queue.pop()] - reachable
        reachable |= new_players
        queue += new_players
    return reachable


def _find_runaways(counts: PairCounts) -> np.ndarray:
    """Return ±infinity for players that won (or lost) all games against the remaining players; else 0.

    Such players are removed repeatedly, because no finite rating is most likely for them. float64 [sample, player].
    """
    runaways = np.zeros((counts.samples, counts.players))
    while True:
        is_finite = np.isfinite(runaways)
        has_both = is_finite[:, counts.pairs[:, 0]] & is_finite[:, counts.pairs[:, 1]]
        results = counts.results * has_both[..., None]
        before = int(is_finite.sum())
        for player in list_unanchored(counts):
            is_first, other = counts.pairs[:, 0] == player, counts.pairs[:, 1] == player
            wins = results[:, is_first, WIN].sum(axis=1) + results[:, other, LOSS].sum(axis=1)
            losses = results[:, is_first, LOSS].sum(axis=1) + results[:, other, WIN].sum(axis=1)
            draws = results[:, is_first | other, DRAW].sum(axis=1)
            is_kept = ~is_finite[:, player] | (draws > 0) | ((wins > 0) == (losses > 0))
            runaways[:, player] = np.where(is_kept, runaways[:, player], np.where(wins > 0, np.inf, -np.inf))
        if int(np.isfinite(runaways).sum()) == before:
            return runaways
