"""Intervals: clusters are resampled, pairs together, and a rate of 0 or 1 has one bound."""

import math

import numpy as np
import pytest

from chessreg.noise import generator
from chessreg.queries import stats
from chessreg.queries.stats import Clusters


def clusters(**counts):
    weights = counts.pop("weights", None)
    n = len(next(iter(counts.values())))
    return Clusters({k: np.array(v, float) for k, v in counts.items()}, np.array(weights or [1] * n))


def one_by_one(hits, trials, resamples=4000):
    """The plain bootstrap: clusters drawn one at a time."""
    random = generator("plain bootstrap")
    hits, trials = np.array(hits, float), np.array(trials, float)
    drawn = random.integers(len(hits), size=(resamples, len(hits)))
    return np.percentile(hits[drawn].sum(1) / trials[drawn].sum(1), [2.5, 97.5])


def test_drawing_equal_clusters_together_gives_the_interval_of_drawing_them_one_by_one():
    random = np.random.default_rng(1)
    hits = random.integers(10, 30, 60)
    pooled, weights = np.unique(hits, return_counts=True)
    together = stats.estimate_rate(
        clusters(hits=pooled, trials=[33] * len(pooled), weights=weights.tolist()), "hits", "trials"
    )
    apart = one_by_one(hits, [33] * 60)
    assert together.value == pytest.approx(hits.sum() / (33 * 60))
    assert (together.low, together.high) == pytest.approx(apart, abs=0.004)


def test_clustered_observations_have_a_wider_interval_than_independent_ones():
    together = stats.estimate_rate(clusters(hits=[10, 0] * 20, trials=[10] * 40), "hits", "trials")
    apart = stats.estimate_rate(clusters(hits=[1, 0], trials=[1, 1], weights=[200, 200]), "hits", "trials")
    assert together.value == apart.value == 0.5
    assert together.high - together.low > 2.5 * (apart.high - apart.low)


def test_an_interval_depends_on_its_own_numbers_alone():
    random = np.random.default_rng(5)
    hits, trials = random.integers(0, 30, 60), random.integers(30, 34, 60)
    alone = stats.estimate_rate(clusters(hits=hits, trials=trials), "hits", "trials")
    order = random.permutation(60)
    other = {"base": random.random(60), "draws": random.random((60, 3))}
    beside = clusters(hits=hits[order], trials=trials[order], **other)
    assert stats.estimate_rate(beside, "hits", "trials") == alone
    pooled, weights = np.unique(np.stack([hits, trials]), axis=1, return_counts=True)
    together = clusters(hits=pooled[0], trials=pooled[1], weights=weights.tolist())
    assert stats.estimate_rate(together, "hits", "trials") == alone
    hits[0] += 1
    assert stats.estimate_rate(clusters(hits=hits, trials=trials), "hits", "trials").low != alone.low


def test_two_sides_that_are_alike_but_independent_are_drawn_apart():
    for number in (40, 500):  # a multinomial draw, and draws that all cells share
        hits = np.arange(number) % 97
        side = clusters(hits=hits, trials=[97] * number)
        apart = stats.estimate_independent_difference(side, clusters(hits=hits, trials=[97] * number), "hits", "trials")
        alone = stats.estimate_rate(side, "hits", "trials")
        assert apart.value == 0
        assert apart.high - apart.low == pytest.approx(math.sqrt(2) * (alone.high - alone.low), rel=0.1)


def test_draws_of_a_control_are_resampled_beside_openings():
    """Two control directions, of which one loses every game and one none: they give little evidence about
    directions."""
    games = 200
    halves = {"points": [0.5] * games, "games": [1] * games}
    lists = {"drawn": [[0, 1]] * games, "drawn_games": [[1, 1]] * games}
    two = stats.estimate_rate_difference(clusters(**halves, **lists), "points", "games", "drawn", "drawn_games")
    assert (two.value, two.low, two.high) == (0, -0.5, 0.5)
    flat = {"flat": [1] * games, "flat_games": [2] * games}
    pooled = stats.estimate_rate_difference(clusters(**halves, **flat), "points", "games", "flat", "flat_games")
    assert pooled.high < 0.02
    one = {"drawn": [[1]] * games, "drawn_games": [[1]] * games}
    single = stats.estimate_rate_difference(clusters(**halves, **one), "points", "games", "drawn", "drawn_games")
    assert single.high - single.low < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("games", "least", "most"), [(8, 0.88, 0.93), (20, 0.93, 0.965)])
def test_intervals_of_differences_are_as_calibrated_as_the_guide_states(games, least, most):
    random, points, one = np.random.default_rng(0), np.array([0, 0.5, 1]), np.ones(games)
    for ours, base in (((0.45, 0.1, 0.45), (0.45, 0.1, 0.45)), ((0.6, 0.1, 0.3), (0.3, 0.1, 0.6))):
        difference, hits = points @ ours - points @ base, 0
        for _ in range(2000):
            match = {"points": random.choice(points, games, p=ours), "base": random.choice(points, games, p=base)}
            some = clusters(**match, games=one, base_games=one, weights=[1] * games)
            found = stats.estimate_rate_difference(some, "points", "games", "base", "base_games")
            hits += found.low <= difference <= found.high
        assert least <= hits / 2000 <= most


def test_one_cluster_gives_a_mean_no_interval():
    for number in (1, 2):
        some = clusters(ours=[3.0], n=[4], base=[1.0], base_n=[4], weights=[number])
        found = [stats.estimate_mean(some, "ours", "n"), stats.estimate_exp_mean(some, "ours", "n"),
                 stats.estimate_median(some, "ours"),
                 stats.estimate_mean_difference(some, "ours", "n", "base", "base_n")]  # fmt: skip
        assert [estimate.value for estimate in found] == [0.75, math.exp(0.75), 3.0, 0.5]
        assert {(estimate.low is None, estimate.high is None) for estimate in found} == {(number == 1, number == 1)}


@pytest.mark.slow
def test_intervals_over_openings_and_draws_hold_the_truth_as_often_as_they_say():
    """Directions that differ, on openings that differ: 95 % of intervals hold the difference that was put in."""
    random, held = np.random.default_rng(8), 0
    for _ in range(200):
        openings, directions = random.normal(0, 0.5, (60, 1)), random.normal(0, 0.5, (1, 12))
        drawn = openings + directions + random.normal(0, 0.5, (60, 12))
        ours = openings[:, 0] + 0.3 + random.normal(0, 0.5, 60)
        both = clusters(ours=ours, n=np.ones(60), drawn=drawn, drawn_n=np.ones((60, 12)))
        found = stats.estimate_mean_difference(both, "ours", "n", "drawn", "drawn_n")
        held += found.low <= 0.3 <= found.high
    assert 180 <= held <= 200


def test_a_draw_that_has_not_met_a_cluster_adds_nothing_there():
    nan = math.nan
    some = clusters(points=[1, 0], games=[1, 1], drawn=[[1, nan], [nan, 0]], drawn_games=[[1, nan], [nan, 1]])
    assert stats.estimate_rate_difference(some, "points", "games", "drawn", "drawn_games").value == 0
    nobody = clusters(points=[1, 0], games=[1, 1], drawn=[[nan], [nan]], drawn_games=[[nan], [nan]])
    assert stats.estimate_rate_difference(nobody, "points", "games", "drawn", "drawn_games") == stats.UNKNOWN


def test_a_rate_of_zero_or_one_has_a_bound_on_one_side_only():
    none = stats.estimate_rate(clusters(hits=[0], trials=[10], weights=[20]), "hits", "trials")
    assert (none.value, none.low) == (0, None)
    assert none.high == pytest.approx(1 - 0.05 ** (1 / 20))
    every = stats.estimate_rate(clusters(hits=[10], trials=[10], weights=[20]), "hits", "trials")
    assert (every.value, every.high) == (1, None)
    assert every.low == pytest.approx(0.05 ** (1 / 20))


def test_an_interval_never_reaches_zero_or_one_and_never_has_no_width():
    few = stats.estimate_rate(clusters(hits=[0, 1], trials=[1, 1], weights=[5, 1]), "hits", "trials")
    assert 0 < few.low < few.value < few.high < 1
    alike = stats.estimate_rate(clusters(hits=[0.5], trials=[1], weights=[10]), "hits", "trials")
    assert alike.low == pytest.approx(stats.compute_wilson_interval(0.5, 10)[0])
    assert alike.high == pytest.approx(stats.compute_wilson_interval(0.5, 10)[1])


def test_nothing_observed_is_unknown():
    assert stats.estimate_rate(clusters(hits=[], trials=[]), "hits", "trials") == stats.UNKNOWN
    assert stats.estimate_elo(stats.UNKNOWN) == stats.UNKNOWN


def test_elo_of_a_score_and_of_its_bounds():
    assert stats.convert_score_to_elo(0.5) == 0
    assert stats.convert_score_to_elo(10 / 11) == pytest.approx(400)
    lost = stats.estimate_elo(stats.estimate_rate(clusters(hits=[0], trials=[1], weights=[30]), "hits", "trials"))
    assert lost.value is None
    assert lost.low is None
    assert lost.high == pytest.approx(-400 * math.log10(1 / (1 - 0.05 ** (1 / 30)) - 1))


def test_a_paired_difference_is_narrower_than_one_of_independent_matches():
    # Each opening is won by both or lost by both, but for two where only the edited model loses.
    pairs = clusters(points=[1, 0, 0], games=[1, 1, 1], base=[1, 0, 1], base_games=[1, 1, 1], weights=[50, 48, 2])
    paired = stats.estimate_rate_difference(pairs, "points", "games", "base", "base_games")
    assert paired.value == pytest.approx(-0.02)
    assert -0.06 < paired.low < paired.value < paired.high <= 0
    alone = stats.estimate_rate(clusters(points=[1, 0], games=[1, 1], weights=[50, 50]), "points", "games")
    assert paired.high - paired.low < (alone.high - alone.low) / 2


def test_swapped_sides_negate_a_difference_and_its_interval_exactly():
    random, names = np.random.default_rng(6), ("points", "games", "base", "base_games")
    for number in (2, 5, 8, 700):  # 700: draws that all cells share
        for _ in range(20 if number < 700 else 1):
            sides = random.integers(0, 3 if number < 700 else 60, (2, number)) / 2
            pairs = clusters(points=sides[0], games=[1] * number, base=sides[1], base_games=[1] * number)
            swapped = clusters(points=sides[1], games=[1] * number, base=sides[0], base_games=[1] * number)
            for estimate in (stats.estimate_rate_difference, stats.estimate_mean_difference):
                assert estimate(pairs, *names) == estimate(swapped, *names).negate()


def test_a_difference_uses_only_clusters_that_both_have():
    nan = math.nan
    some = clusters(points=[1, 0], games=[1, 1], base=[0, nan], base_games=[1, nan], weights=[10, 90])
    assert stats.estimate_rate_difference(some, "points", "games", "base", "base_games").value == 1
    nobody = clusters(points=[1.0], games=[1], base=[nan], base_games=[nan])
    assert stats.estimate_rate_difference(nobody, "points", "games", "base", "base_games") == stats.UNKNOWN


def test_pairs_that_all_differ_by_the_same_still_have_a_width():
    pairs = clusters(points=[1, 0], games=[1, 1], base=[1, 0], base_games=[1, 1], weights=[15, 15])
    same = stats.estimate_rate_difference(pairs, "points", "games", "base", "base_games")
    assert (same.value, -same.low, same.high) == (
        0,
        stats.compute_one_sided_bound(30),
        stats.compute_one_sided_bound(30),
    )
    in_elo = stats.estimate_elo_difference(pairs, "points", "games", "base", "base_games")
    assert in_elo.value == 0
    assert (
        in_elo.high == pytest.approx(stats.convert_score_to_elo(0.5 + stats.compute_one_sided_bound(30))) == -in_elo.low
    )


def test_an_elo_difference_is_finite_or_a_bound():
    pairs = clusters(points=[1, 0, 0.5], games=[1] * 3, base=[0, 0.5, 0], base_games=[1] * 3, weights=[30, 20, 10])
    both = stats.estimate_elo_difference(pairs, "points", "games", "base", "base_games")
    assert both.value == pytest.approx(stats.convert_score_to_elo(35 / 60) - stats.convert_score_to_elo(10 / 60))
    assert both.low < both.value < both.high
    lost = clusters(points=[0, 0], games=[1, 1], base=[1, 0], base_games=[1, 1], weights=[30, 30])
    bound = stats.estimate_elo_difference(lost, "points", "games", "base", "base_games")
    assert (bound.value, bound.low) == (None, None)
    assert math.isfinite(bound.high)
    assert bound.high < 0


def test_many_distinct_clusters_give_what_one_block_of_draws_gives(monkeypatch):
    random = np.random.default_rng(3)
    hits, trials = random.integers(0, 50, 300), [50] * 300
    whole = stats.estimate_rate(clusters(hits=hits, trials=trials), "hits", "trials")
    monkeypatch.setattr(stats, "MOST_NUMBERS_AT_ONCE", 300 * 7)  # seven resamples at once
    assert stats.estimate_rate(clusters(hits=hits, trials=trials), "hits", "trials") == pytest.approx(whole)


def test_a_median_is_of_clusters_and_its_interval_of_resampled_ones():
    three = clusters(value=[30, 10, 20], weights=[1, 1, 1])
    assert stats.estimate_median(three, "value").value == 20
    assert stats.estimate_median(clusters(value=[30, 10], weights=[1, 3]), "value").value == 10
    assert (
        stats.estimate_median(clusters(value=[30, 10], weights=[2, 2]), "value").value == 20
    )  # between the middle two
    assert stats.estimate_median(clusters(value=[math.nan], weights=[5]), "value") == stats.UNKNOWN
    spread = stats.estimate_median(clusters(value=list(range(101)), weights=[1] * 101), "value")
    # The median of 101 is within 1.96 / 2 of the root of 101 places around the middle one.
    assert (spread.value, spread.low, spread.high) == (50, pytest.approx(40, abs=2), pytest.approx(60, abs=2))


def test_both_ends_of_an_interval_that_reaches_one_are_of_one_method():
    """Of 400 games with 50 turns, one has 5 illegal turns: the bootstrap reaches 1, and Wilson's ends are both near."""
    clusters = stats.Clusters({"hits": np.array([50.0, 45.0]), "trials": np.array([50.0, 50.0])}, np.array([399, 1]))
    found = stats.estimate_rate(clusters, "hits", "trials")
    assert found.value == pytest.approx(1 - 5 / 20000)
    assert found.low < found.value < found.high < 1
    assert found.low > 0.998, "400 equal games would give 0.99"
    one_of_ten = stats.Clusters({"hits": np.array([1.0, 0.0]), "trials": np.array([1.0, 1.0])}, np.array([1, 9]))
    found = stats.estimate_rate(one_of_ten, "hits", "trials")
    low, high = stats.compute_wilson_interval(0.1, 10)
    assert found[1:] == pytest.approx((low, high), abs=0.02)


def test_clusters_resampled_together_have_the_intervals_of_each_alone(monkeypatch):
    random = np.random.default_rng(2)
    cells = [
        {"total": random.random(n), "trials": random.integers(1, 9, n), "base": random.random(n)}
        for n in (500, 500, 700, 500, 20)
    ]
    monkeypatch.setattr(stats, "MOST_COLUMNS_AT_ONCE", 4)
    alone = [stats.estimate_mean_difference(clusters(**cell), "total", "trials", "base", "trials") for cell in cells]
    made = [clusters(**cell) for cell in cells]
    stats.resample_together(each.select_counts("total", "trials", "base", "trials") for each in made)
    shared = [each.select_counts("total", "trials", "base", "trials") for each in made[:-1]]
    assert all("_sums" in each.__dict__ for each in shared)
    together = [stats.estimate_mean_difference(each, "total", "trials", "base", "trials") for each in made]
    assert np.array(together) == pytest.approx(np.array(alone), rel=1e-5)
