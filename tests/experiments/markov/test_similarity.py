"""The statistics of the Markov test agree with loops over pairs, and its p has its definition."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from chessreg.experiments.markov import similarity
from chessreg.experiments.markov.similarity import (
    Layout,
    compute_pair_means,
    deal_random_sets,
    measure_population,
    normalize_states,
    run_similarity_test,
)
from chessreg.noise import generator


def layout_of(sizes, phases=None):
    sizes = np.array(sizes)
    number = np.repeat(np.arange(len(sizes)), sizes)
    return Layout(number, np.zeros(len(number), np.int64) if phases is None else np.repeat(phases, sizes))


def states_of(layout, spread, key="states", width=12):
    """Random states; those of a class are within `spread` of its centre."""
    random = generator(key)
    centres = random.normal(size=(len(layout.sizes), width))
    return (centres[layout.number] + spread * random.normal(size=(len(layout.number), width))).astype(np.float32)


def cosine(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


MIXED = layout_of([2, 5, 3, 2, 4, 2], [0, 0, 1, 1, 0, 1])


@pytest.mark.parametrize("centre", [False, True])
def test_sums_give_what_loops_over_pairs_give(centre):
    states = states_of(MIXED, 1.0).astype(np.float64)
    (units,) = normalize_states(states, centre, MIXED)
    if centre:
        for phase in (0, 1):
            states[MIXED.phase == phase] -= states[MIXED.phase == phase].mean(axis=0)
    pairs = {k: [cosine(states[i], states[j]) for i, j in combinations(np.flatnonzero(MIXED.number == k), 2)]
             for k in range(6)}  # fmt: skip
    found = compute_pair_means(units, similarity.compute_squared_lengths(units), np.arange(18), MIXED.sizes)
    assert found == pytest.approx([np.mean(own) for own in pairs.values()], abs=1e-6)

    every = [[cosine(states[i], states[j]) for i, j in combinations(np.flatnonzero(MIXED.phase == phase), 2)]
             for phase in (0, 1)]  # fmt: skip
    mean = np.mean([np.mean(own) for own in every])  # three classes in either phase
    whole = measure_population(units, MIXED)
    assert whole.mean == pytest.approx(mean, abs=1e-6)
    squares = np.mean([np.mean(np.square(own)) for own in every])
    assert whole.deviation == pytest.approx(np.sqrt(squares - mean**2), abs=1e-6)

    kind = np.array([7, 7, 1, 1, 2, 2, 3, 5, 5, 6, 4, 4, 8, 8, 8, 8, 9, 1])
    apart = similarity.measure_differing_pairs(units, MIXED, kind)
    wanted = []
    for k in range(6):
        own = [cosine(states[i], states[j]) for i, j in combinations(np.flatnonzero(MIXED.number == k), 2)
               if kind[i] != kind[j]]  # fmt: skip
        wanted.append(np.mean(own) if own else np.nan)
    assert apart == pytest.approx(wanted, abs=1e-6, nan_ok=True)
    assert np.isnan(apart).sum() == 3


def test_partners_are_compared_with_their_members_and_have_no_say_in_the_mean():
    states = states_of(MIXED, 1.0)
    others = states_of(MIXED, 1.0, "others")
    others[[0, 1, 3]] = np.nan
    (alone,) = normalize_states(states, True, MIXED)
    units, partners = normalize_states(states, True, MIXED, [others])
    assert torch.equal(alone, units)
    found = similarity.measure_partners(units, partners, MIXED)
    mean = states[MIXED.phase == 0].mean(axis=0)
    second = [cosine(states[i] - mean, others[i] - mean) for i in (2, 4, 5, 6)]
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(np.mean(second), abs=1e-6)


def test_random_sets_keep_sizes_and_phases_and_are_the_same_for_the_same_seed():
    for replacement in (False, True):
        drawn = deal_random_sets(MIXED, 3, 17, replacement)
        assert (MIXED.phase[drawn] == MIXED.phase).all()
        assert (drawn == deal_random_sets(MIXED, 3, 17, replacement)).all()
        assert (drawn != deal_random_sets(MIXED, 3, 18, replacement)).any()
        assert (np.sort(drawn) == np.arange(18)).all() == (not replacement)


@pytest.mark.slow
def test_p_is_uniform_where_labels_are_shuffled():
    """Over many seeds, each p by chance is as frequent as its value."""
    layout = layout_of([3, 2, 4, 2, 3, 2], [0, 0, 0, 1, 1, 1])
    p = []
    for seed in range(300):
        states = states_of(layout, 0.3, f"shuffled {seed}", 6)
        labels = np.arange(len(states))
        for phase in (0, 1):
            mine = np.flatnonzero(layout.phase == phase)
            labels[mine] = generator("labels", seed, phase).permutation(mine)
        (units,) = normalize_states(states[labels], False, layout)
        p.append(
            (1 + run_similarity_test(units, layout, measure_population(units, layout), 39, seed, False).exceeding_count)
            / 40
        )
    below = np.searchsorted(np.sort(p), np.arange(1, 41) / 40 + 1e-9) / len(p)
    assert np.abs(below - np.arange(1, 41) / 40).max() < 1.63 / np.sqrt(len(p))  # Kolmogorov's bound at 1 %


@pytest.mark.parametrize("replacement", [False, True])
def test_p_is_minimal_where_the_state_is_a_function_of_the_board(replacement):
    layout = layout_of([2, 3, 2, 4] * 6)
    (units,) = normalize_states(states_of(layout, 0.05), False, layout)
    test = run_similarity_test(units, layout, measure_population(units, layout), 99, 0, replacement)
    assert test.exceeding_count == 0
    assert test.d > 2
    assert test.statistic == pytest.approx(test.class_similarities.mean() - test.population.mean)
    assert abs(test.null.mean()) < (0.25 if replacement else 0.02)


def test_d_is_nothing_on_random_states():
    layout = layout_of([2] * 300)
    (units,) = normalize_states(generator("no classes").normal(size=(600, 40)).astype(np.float32), False, layout)
    test = run_similarity_test(units, layout, measure_population(units, layout), 99, 0, False)
    assert abs(test.d) < 0.2
    assert 0 < test.exceeding_count < 99


def test_states_that_are_all_the_same_say_nothing():
    layout = layout_of([2, 2, 3])
    for centre in (False, True):
        (units,) = normalize_states(np.ones((7, 5), np.float32), centre, layout)
        test = run_similarity_test(units, layout, measure_population(units, layout), 20, 0, False)
        assert test.exceeding_count == 20
        assert test.d is None
