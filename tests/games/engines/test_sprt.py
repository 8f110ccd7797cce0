"""The sequential test: its ratio against another calculation, its error rates by simulation, and its texts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.games.engines.sprt import (
    COLOR_PAIR_VALUES,
    DIFFERENCE_VALUES,
    Sprt,
    compute_log_likelihood_ratio,
    parse_stop,
)


def best_of_three(counts, mean):
    """Highest log-likelihood of outcomes -1, 0, 1 with this mean: the share of 0 alone is free, and searched for."""
    low, high = 0.0, 1 - abs(mean)

    def likelihood(middle):
        shares = ((1 - middle - mean) / 2, middle, (1 - middle + mean) / 2)
        return sum(n * math.log(max(share, 1e-300)) for n, share in zip(counts, shares, strict=True))

    for _ in range(200):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        low, high = (one, high) if likelihood(one) < likelihood(other) else (low, other)
    return likelihood(low)


@pytest.mark.parametrize("counts", [(10, 80, 12), (30, 5, 41), (3, 300, 1), (100, 1, 1), (7, 7, 7)])
@pytest.mark.parametrize("bounds", [(-0.05, 0.05), (0.0, 0.1), (-0.3, -0.25)])
def test_the_ratio_is_that_of_the_best_distributions_with_either_mean(counts, bounds):
    low, high = bounds
    expected = best_of_three(counts, high) - best_of_three(counts, low)
    assert compute_log_likelihood_ratio(counts, (-1, 0, 1), low, high) == pytest.approx(expected, abs=1e-6)


def test_with_many_pairs_it_is_that_of_a_normal_mean():
    counts = [1200, 2600, 4900, 2800, 1300]
    values, n = np.array(DIFFERENCE_VALUES), sum(counts)
    mean = values @ counts / n
    variance = (values - mean) ** 2 @ counts / n
    normal = n * 0.02 * (2 * mean - 0.0) / (2 * variance)
    assert compute_log_likelihood_ratio(counts, DIFFERENCE_VALUES, -0.01, 0.01) == pytest.approx(normal, rel=0.01)


@pytest.mark.parametrize("values", [COLOR_PAIR_VALUES, DIFFERENCE_VALUES])
def test_pairs_that_are_all_alike_have_a_finite_ratio(values):
    for place in range(5):
        counts = [0] * 5
        counts[place] = 400
        found = Sprt(-0.05, 0.05).decision(counts, values)
        assert found == ("low", "low", "", "high", "high")[place]
    assert compute_log_likelihood_ratio([0] * 5, values, -0.05, 0.05) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("values", "shares"), [(COLOR_PAIR_VALUES, (2, 1, 2, 1, 2)), (DIFFERENCE_VALUES, (1, 1, 9, 1, 1))]
)
@pytest.mark.parametrize("mean", [-0.2, 0.2])
def test_it_errs_no_more_often_than_it_says(values, shares, mean):
    """Pairs drawn with a mean at one of the bounds: the other is accepted in about 5 % of 400 matches."""
    tilt = np.linspace(-20, 20, 20001)[:, None] * np.array(values)
    weights = np.exp(tilt) * np.array(shares)
    weights /= weights.sum(1, keepdims=True)
    drawn = weights[np.abs(weights @ np.array(values) - mean).argmin()]
    random, test, wrong, pairs = np.random.default_rng(0), Sprt(-0.2, 0.2), 0, 0
    for _ in range(400):
        counts, decided = [0] * 5, ""
        while not decided:
            counts[random.choice(5, p=drawn)] += 1
            decided = test.decision(counts, values)
        wrong += decided == ("high" if mean < 0 else "low")
        pairs += sum(counts)
    assert wrong <= 0.05 * 400 + 2.5 * math.sqrt(400 * 0.05 * 0.95)
    assert pairs / 400 < 30


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("sprt:-0.05,0.05", "sprt:-0.05,0.05"),
        ("SPRT: -.05, +.050", "sprt:-0.05,0.05"),
        ("sprt:0,0.1,0.05,0.05", "sprt:0,0.1"),
        ("sprt:0,0.1,0.01,0.2", "sprt:0,0.1,0.01,0.2"),
        ("sprt:-0.00001,0.1234567", "sprt:-0.00001,0.1234567"),
    ],
)
def test_a_rule_has_one_spelling(text, canonical):
    rule = parse_stop(text)
    assert rule.text == canonical
    assert parse_stop(rule.text) == rule


@pytest.mark.parametrize("text", ["none", " None "])
def test_no_rule(text):
    assert parse_stop(text) is None


@pytest.mark.parametrize(
    "text",
    ["sprt", "sprt:", "sprt:0.05", "sprt:0.05,-0.05", "sprt:0,0", "sprt:-5,5", "sprt:nan,1", "sprt:0,0.1,0,0.05",
     "sprt:0,0.1,0.6,0.05", "sprt:0,0.1,0.05", "elo:0,5", "sprt:1e9,2"],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(BadInputError) as refused:
        parse_stop(text)
    assert "sprt:-0.05,0.05" in refused.value.hint
