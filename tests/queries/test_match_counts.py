"""Elo and the sequential test of bare counts, against the values of fastchess and of independent formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.queries.match_counts import MatchCounts, make_elo_test, score_of_elo


@pytest.mark.parametrize(
    ("counts", "bounds", "expected"),
    [
        # losses, draws, wins; the ratios are those that fastchess's own tests expect of these counts
        ((21184, 40708, 21404), (0.5, 2.5), -1.57),
        ((57030, 106593, 57433), (0, 2), -2.59),
        ((223, 9863, 21279, 10037, 246), (0.5, 2.5), -3.07),
        ((871, 26175, 55983, 26678, 821), (0, 2), -4.98),
    ],
)
def test_log_likelihood_ratios_are_those_of_fastchess(counts, bounds, expected):
    assert MatchCounts(counts).log_likelihood_ratio(*bounds) == pytest.approx(expected, abs=0.011)


def test_elo_and_its_interval_follow_from_the_normal_mean_of_the_results():
    match = MatchCounts((90, 60, 120))
    results = np.repeat([0.0, 0.5, 1.0], (90, 60, 120))
    half = 1.959964 * results.std() / math.sqrt(270)
    score = match.score()
    assert (score.value, score.low, score.high) == pytest.approx(
        (results.mean(), results.mean() - half, results.mean() + half)
    )
    elo = match.elo()
    assert [score_of_elo(value) for value in elo] == pytest.approx(list(score))
    assert match.compute_normalized_elo() == pytest.approx((results.mean() - 0.5) / results.std() * 347.4356, rel=1e-4)


def test_pairs_of_independent_games_have_the_interval_of_games():
    win, draw, loss = 0.4, 0.2, 0.4
    pairs = np.array([loss**2, 2 * loss * draw, 2 * loss * win + draw**2, 2 * draw * win, win**2]) * 10_000
    paired, single = MatchCounts(tuple(pairs.round().astype(int))), MatchCounts((8000, 4000, 8000))
    assert paired.games == single.games == 20_000
    assert paired.score() == pytest.approx(single.score())
    assert paired.compute_normalized_elo() == pytest.approx(single.compute_normalized_elo())
    # With the same score, pairs that always split have a smaller variance.
    assert MatchCounts((0, 10, 9980, 10, 0)).deviation < paired.deviation


@pytest.mark.parametrize(("counts", "side"), [((0, 0, 20), "low"), ((20, 0, 0), "high")])
def test_only_a_bound_is_known_if_all_games_ended_alike(counts, side):
    elo = MatchCounts(counts).elo()
    assert elo.value is None
    assert getattr(elo, side) is not None
    assert MatchCounts(counts).compute_normalized_elo() is None
    assert MatchCounts(counts).superiority() is None


@pytest.mark.parametrize("counts", [(), (1,), (1, 2), (1, 2, 3, 4), (0, 0, 0), (-1, 2, 3), (1,) * 6])
def test_other_counts_are_refused(counts):
    with pytest.raises(BadInputError):
        MatchCounts(counts)


@pytest.mark.parametrize(("low", "high"), [(5, 5), (5, 0), (-500, 0), (0, 500), (math.nan, 1)])
def test_bounds_out_of_order_are_refused(low, high):
    with pytest.raises(BadInputError):
        make_elo_test(low, high)
