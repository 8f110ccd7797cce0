"""Rating estimators: known values, bounds, and which players can be compared at all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chessreg.errors import NotFoundError
from chessreg.games.engines.estimators import DRAW, ESTIMATORS, LOSS, WIN, Options, Pool, estimate_ratings
from chessreg.games.engines.opponents import get_level_rating, get_opponent_rating

SWEEPS = {  # wins, draws, losses against levels 0 to 10 (Junkin 2025, the author's committed sweeps)
    "Llama April": "100,0,0 98,0,2 98,1,1 94,0,6 84,1,15 80,3,17 72,5,23 63,2,35 52,3,45 43,6,51 29,13,58",
    "Llama March": "100,0,0 98,0,2 94,0,6 87,0,13 79,1,20 74,3,23 62,3,35 46,9,45 40,5,55 32,7,61 27,10,63",
    "bidirectional 200k": "99,0,1 93,0,7 86,2,12 82,2,16 69,2,29 50,1,49 56,1,43 30,1,69 23,2,75 17,5,78 10,5,85",
    "bidirectional 600k": "37,62,1 29,67,4 23,70,7 25,72,3 12,75,13 14,72,14 12,68,20 8,58,34 4,54,42 4,40,56 1,32,67",
}
EXPECTED = {  # batched K=16 from 1300, then anchored maximum likelihood, each for draw weights 0, 0.5, 0.9
    "Llama April": (2386.26, 2464.27, 2545.19, 2556.19, 2580.99, 2600.98),
    "Llama March": (2559.72, 2571.88, 2579.29, 2448.61, 2476.40, 2498.49),
    "bidirectional 200k": (2409.12, 2449.43, 2477.76, 2256.21, 2273.56, 2287.27),
    "bidirectional 600k": (2030.77, 2508.42, 2516.37, 1451.28, 2058.79, 2496.75),
}


def pool(*results: tuple[int, int, int, int, int], players: int, anchors: dict[int, float] | None = None) -> Pool:
    """A pool from rows (first, second, wins, draws, losses)."""
    rows = [(a, b, outcome) for a, b, *times in results for outcome, n in enumerate(times) for _ in range(n)]
    first, second, outcome = np.array(rows, np.int64).T
    names = tuple(f"p{n}" for n in range(players))
    return Pool(names, first, second, outcome, np.arange(len(rows)), anchors or {})


def sweep(name: str) -> Pool:
    levels = [tuple(map(int, level.split(","))) for level in SWEEPS[name].split()]
    anchors = {level + 1: get_opponent_rating(f"stockfish:{level}@time=0.1", "levels-truncated") for level in range(11)}
    rows = [(0, level + 1, *counts) for level, counts in enumerate(levels)]
    return pool(*rows, players=12, anchors=anchors)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SWEEPS)
def test_junkins_sweeps_have_the_ratings_of_his_code(name: str) -> None:
    found = [
        estimate_ratings(sweep(name), how, Options(weight), resamples=20)[0].rating
        for how in ("junkin-batched", "anchored-ml")
        for weight in (0, 0.5, 0.9)
    ]
    assert found == pytest.approx(EXPECTED[name], abs=0.006)


def test_a_performance_against_one_level_is_elos_formula() -> None:
    games = pool((0, 1, 29, 13, 58), players=2, anchors={1: 2788.0})
    given = [estimate_ratings(games, "anchored-ml", Options(w), 20)[0].rating for w in (0, 0.5, 0.9)]
    assert given == pytest.approx([2632.5, 2684.3, 2722.6], abs=0.06)


def test_the_interval_is_about_that_of_the_normal_approximation() -> None:
    found = estimate_ratings(pool((0, 1, 200, 0, 200), players=2, anchors={1: 1500.0}), "anchored-ml", Options(), 2000)[
        0
    ]
    assert found.rating == pytest.approx(1500, abs=1e-3)
    half = 1.96 * math.sqrt(0.25 / 400) / (0.25 * math.log(10) / 400)
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == (pytest.approx(1500 - half, abs=4), pytest.approx(1500 + half, abs=4))


@pytest.mark.parametrize("how", ["anchored-ml", "bradley-terry", "davidson"])
def test_who_won_or_lost_everything_has_a_bound(how: str) -> None:
    won, lost = (
        estimate_ratings(pool((0, 1, *r), players=2, anchors={1: 1500.0}), how, Options(), 50)[0]
        for r in ((25, 0, 0), (0, 0, 25))
    )
    assert (won.rating, won.high, lost.rating, lost.low) == (None, None, None, None)
    chance = 0.05 ** (1 / 25)
    assert won.low == pytest.approx(1500 - 400 * math.log10(1 / chance - 1), abs=0.01)
    assert lost.high is not None
    assert won.low is not None
    assert won.low - 1500 == pytest.approx(1500 - lost.high, abs=1e-6)


def test_games_against_players_without_a_known_rating_leave_an_anchored_interval_alone() -> None:
    for won, lost in ((10, 0), (5, 5)):
        alone = pool((0, 1, won, 0, lost), players=2, anchors={1: 1500.0})
        more = pool((0, 1, won, 0, lost), (0, 2, 0, 0, 200), (2, 1, 5, 0, 5), players=3, anchors={1: 1500.0})
        together = [replace(one, cluster=np.zeros_like(one.cluster)) for one in (alone, more)]
        found = [estimate_ratings(one, "anchored-ml", Options(), 20)[0] for one in together]
        assert found[0].low is not None
        assert found[0] == found[1]


@pytest.mark.parametrize("how", ["junkin-batched", "sequential"])
def test_a_rule_that_always_gives_the_same_has_no_interval(how: str) -> None:
    lost = estimate_ratings(pool((0, 1, 0, 0, 20), players=2, anchors={1: 1500.0}), how, Options(), 50)[0]
    assert lost.rating is not None
    assert (lost.low, lost.high) == (None, None)


def test_joint_estimates_recover_known_ratings_through_chains() -> None:
    expected = {0: 1800.0, 1: 1600.0, 2: 1400.0}

    def played(a: int, b: int, games: int = 1000) -> tuple[int, int, int, int, int]:
        wins = round(games / (1 + 10 ** ((expected[b] - expected[a]) / 400)))
        return (a, b, wins, 0, games - wins)

    chain = pool(played(0, 1), played(1, 2), players=3, anchors={2: 1400.0})
    found = [r.rating for r in estimate_ratings(chain, "bradley-terry", Options(), 50)]
    assert found == pytest.approx([1800, 1600, 1400], abs=2)
    free = [
        r.rating for r in estimate_ratings(pool(played(0, 1), played(1, 2), players=3), "bradley-terry", Options(), 50)
    ]
    assert sum(free) == pytest.approx(0, abs=1e-3)  # type: ignore[arg-type]
    assert free[0] - free[2] == pytest.approx(400, abs=3)  # type: ignore[operator]
    anchored = estimate_ratings(chain, "anchored-ml", Options(), 50)
    assert anchored[0] == (None, None, None)  # its only opponent's rating is not known


def test_davidson_reads_draws_as_strength_near_each_other() -> None:
    drawish = pool((0, 1, 30, 60, 10), players=2, anchors={1: 1500.0})
    bradley, davidson = (
        estimate_ratings(drawish, how, Options(), 50)[0].rating for how in ("bradley-terry", "davidson")
    )
    wins_per_loss = 30 / 10  # with a fitted share of draws, the ratio of wins to losses decides
    assert davidson == pytest.approx(1500 + 400 * math.log10(wins_per_loss), abs=0.01)
    assert bradley == pytest.approx(1500 + 400 * math.log10(60 / 40), abs=0.01)


def test_groups_that_the_games_do_not_tie_together_have_no_common_scale() -> None:
    split = pool((0, 1, 5, 0, 5), (2, 3, 5, 0, 5), (3, 0, 4, 0, 0), players=5, anchors={1: 1500.0})
    found = estimate_ratings(split, "bradley-terry", Options(), 50)
    assert found[0].rating == pytest.approx(1500, abs=1e-3)
    assert (found[2].rating, found[3].rating) == (None, None)  # the anchored group never scored against them
    assert found[3].low is not None
    assert found[4] == (None, None, None)


def test_games_of_one_opening_are_drawn_together() -> None:
    one = pool((0, 1, 100, 0, 100), players=2, anchors={1: 1500.0})
    pairs = Pool(one.players, one.first, one.second, one.outcome, np.arange(200) // 20, one.anchors)
    alone, together = (estimate_ratings(p, "anchored-ml", Options(), 1000)[0] for p in (one, pairs))
    assert together.high - together.low > 3 * (alone.high - alone.low)  # type: ignore[operator]


def test_the_order_of_sequential_updates_comes_from_the_seed() -> None:
    games = pool((0, 1, 50, 10, 40), (0, 2, 30, 10, 60), players=3, anchors={1: 1500.0, 2: 1700.0})
    first, again, other = (
        estimate_ratings(games, "sequential", Options(seed=seed), 20)[0].rating for seed in (0, 0, 1)
    )
    assert first == again != other
    assert 1400 < first < 1800  # type: ignore[operator]


def test_an_unknown_estimator_and_a_second_of_one_name_are_refused() -> None:
    with pytest.raises(NotFoundError, match="rating estimator 'glicko' does not exist"):
        estimate_ratings(sweep("Llama April"), "glicko", Options(), 20)
    with pytest.raises(ValueError, match="'davidson' is registered already"):
        ESTIMATORS.named("davidson")(lambda counts, options: np.zeros(0))


def test_outcomes_are_counted_from_the_first_players_side() -> None:
    given = Pool(
        ("a", "b"), np.array([0, 1, 1]), np.array([1, 0, 0]), np.array([WIN, WIN, DRAW]), np.arange(3), {1: 1500.0}
    )
    swapped = Pool(
        ("a", "b"), np.array([0, 0, 0]), np.array([1, 1, 1]), np.array([WIN, LOSS, DRAW]), np.arange(3), {1: 1500.0}
    )
    assert (
        estimate_ratings(given, "anchored-ml", Options(), 20)[0].rating
        == estimate_ratings(swapped, "anchored-ml", Options(), 20)[0].rating
    )


def test_opponents_of_matches_have_their_levels_rating() -> None:
    assert get_opponent_rating("stockfish:1@nodes=40000") == get_level_rating(1) == 1467.6
    assert get_opponent_rating("stockfish:1@unknown", "levels-truncated") == 1467.0
    assert [get_opponent_rating(name) for name in ("stockfish:-1", "stockfish:20@time=1", "random", "gpt-4")] == [
        None
    ] * 4
    assert get_opponent_rating("stockfish:0@nodes=10+random=0.2") is None
