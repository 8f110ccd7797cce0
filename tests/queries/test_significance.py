"""Significance tests agree with closed forms to many digits, even if a p-value underflows a float."""

import math
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from chessreg.noise import generator
from chessreg.queries import significance
from chessreg.queries.catalogue import parse_entry
from chessreg.queries.significance import (
    Moments,
    adjust_holm,
    adjust_holm_log10,
    compute_log10_upper_tail,
    run_paired_test,
    run_welch_test,
)
from chessreg.queries.stats import Clusters
from chessreg.queries.summary import FEW, add_statistics


def exact_tail(t: int, df: int) -> float:
    """log10 P(T > t) for an even number of degrees of freedom: a finite sum (Abramowitz and Stegun, 26.7.4)."""
    with localcontext() as context:
        context.prec = 40 - int(compute_log10_upper_tail(t, df))  # digits: 40 of the tail itself
        square = Decimal(df) / (df + t * t)
        term, total = Decimal(1), Decimal(1)
        for j in range(1, df // 2):
            term *= square * (2 * j - 1) / (2 * j)
            total += term
        sine = Decimal(t) / (Decimal(df) + t * t).sqrt()
        return float(((1 - sine * total) / 2).log10())


@pytest.mark.parametrize(("t", "df"), [(1, 2), (3, 4), (12, 10), (2, 300), (40, 400), (1, 4000), (90, 2000)])
def test_the_tail_of_students_t_agrees_with_its_closed_form(t, df):
    assert compute_log10_upper_tail(t, df) == pytest.approx(exact_tail(t, df), rel=1e-11)


@pytest.mark.parametrize("t", [1e-8, 0.5, 0.999, 1.001, 7.0, 1e6])
def test_of_one_degree_of_freedom_it_is_an_arc_tangent(t):
    assert 10 ** compute_log10_upper_tail(t, 1) == pytest.approx(math.atan(1 / t) / math.pi, rel=1e-12)


def test_the_two_tails_add_up_and_tables_of_student_come_out():
    for t, df in ((0.0, 3.5), (1.3, 7.25), (2.9, 1e6)):
        assert 10 ** compute_log10_upper_tail(t, df) + 10 ** compute_log10_upper_tail(-t, df) == pytest.approx(
            1, rel=1e-13
        )
    for t, df, p in ((12.7062, 1, 0.025), (2.228139, 10, 0.025), (1.959964, 1e9, 0.025), (3.090232, 1e8, 0.001)):
        assert 10 ** compute_log10_upper_tail(t, df) == pytest.approx(p, rel=1e-5)
    assert compute_log10_upper_tail(100, 400_000) == pytest.approx(-2145, abs=10)  # a normal's tail, by far no float


def test_welch_is_the_example_of_two_samples_computed_by_hand():
    ours, base = Moments.from_values(np.array([3.0, 5, 4, 8])), Moments.from_values(np.array([1.0, 2, 2, 3, 2]))
    test = run_welch_test(ours, base)
    # Means 5 and 2, variances 14/3 and 1/2: errors 7/6 and 1/10.
    assert test.t == pytest.approx(3 / math.sqrt(7 / 6 + 0.1))
    assert test.df == pytest.approx((7 / 6 + 0.1) ** 2 / ((7 / 6) ** 2 / 3 + 0.1**2 / 4))
    assert test.p == pytest.approx(10**test.log10_p)
    assert 0.02 < test.p < 0.04
    assert significance.compute_cohens_d(ours, base) == pytest.approx(3 / math.sqrt((14 + 2) / 7))
    assert run_welch_test(base, ours).p == pytest.approx(1 - test.p)


def test_pairs_are_tested_by_their_differences():
    test = run_paired_test(Moments.from_values(np.array([1.0, 2.0, 3.0])))
    assert (test.t, test.df) == (pytest.approx(2 * math.sqrt(3)), 2)
    assert test.p == pytest.approx((1 - test.t / math.sqrt(2 + test.t**2)) / 2)


def test_what_does_not_vary_or_is_alone_has_no_test():
    flat, some = Moments.from_values(np.full(9, 0.997)), Moments.from_values(np.array([0.1, 0.2]))
    assert run_welch_test(flat, flat) is run_paired_test(flat) is significance.compute_cohens_d(flat, flat) is None
    assert (
        run_welch_test(some, Moments.from_values(np.array([1.0])))
        is run_welch_test(Moments.from_values(np.array([])), some)
        is None
    )
    assert run_welch_test(some, flat).log10_p < 0.001
    assert Moments.from_sums(9 * 0.997, 9 * 0.997**2, 9).variance == 0


def test_holm_is_a_running_maximum_and_leaves_out_what_is_missing():
    assert adjust_holm([0.01, 0.04, None, 0.03]) == [0.03, 0.06, None, 0.06]
    assert adjust_holm([0.9, 0.8]) == [1.0, 1.0]
    assert adjust_holm([1 / 1001] * 8) == [pytest.approx(8 / 1001)] * 8
    assert adjust_holm([]) == []
    assert adjust_holm_log10([-500.0, -2.0]) == [pytest.approx(-500 + math.log10(2)), -2.0]


def test_sums_of_clusters_give_what_the_values_give():
    random = generator("values of games")
    ours, base = random.random((30, 5)) + 0.4, random.random((30, 5))
    of = lambda values: {"total": values.sum(1), "squares": (values**2).sum(1), "n": np.full(30, 5.0)}
    counts = (
        of(ours) | {f"base_{k}": v for k, v in of(base).items()} | {f"d_{k}": v for k, v in of(ours - base).items()}
    )
    clusters = Clusters(counts, np.ones(30))
    names = ("total", "squares", "n", "base_total", "base_squares", "base_n")
    both = Moments.from_values(ours.ravel()), Moments.from_values(base.ravel())
    assert significance.compute_welch_log10_p(clusters, *names) == pytest.approx(run_welch_test(*both).log10_p)
    assert significance.compute_cohens_d_of_clusters(clusters, *names) == pytest.approx(
        significance.compute_cohens_d(*both)
    )
    differences = Moments.from_values((ours - base).ravel())
    wanted = run_paired_test(differences).log10_p
    assert significance.compute_paired_log10_p(clusters, "d_total", "d_squares", "d_n") == pytest.approx(wanted)


HEADER = """-- title: t
-- paper: none
-- kinds: edit
-- made by: chessreg run edit
-- columns:
--   run: a family
--   p: of a test
--   log10_p: of another
--   p_holm: corrected in its run
--   mean: with an interval
-- statistics:
--   log10_p = paired_log10_p(total, squares, n)
--   p_holm = holm(p, run)
--   mean = mean(total, n)
-- statement: base
-- statement: table
-- statement: rows
"""


def test_a_table_declares_tests_and_their_correction_by_family():
    entry = parse_entry(HEADER, Path("t.sql"))
    table = pa.table({"cell": [1, 2, 3], "run": ["a", "a", "b"], "p": [0.01, 0.03, 0.03]})
    counts = {"cell": [1, 1, 3], "total": [1.0, 3.0, 2.0], "squares": [1.0, 9.0, 4.0], "n": [1, 1, 1]}
    made = add_statistics(entry, table, pa.table(counts | {"clusters": [1, 1, 1]}))
    assert made.column_names == ["cell", "run", "p", "log10_p", "p_holm", "mean", "mean_low", "mean_high", FEW]
    assert made[FEW].to_pylist() == [1, 0, 0]  # the mean of one cluster has no interval
    assert made["p_holm"].to_pylist() == [0.02, 0.03, 0.03]
    assert made["log10_p"].to_pylist() == [pytest.approx(compute_log10_upper_tail(2, 1)), None, None]
    empty = add_statistics(entry, table.slice(3), None)
    assert [str(field.type) for field in empty.schema][3:] == ["double"] * 6


def test_the_paired_mean_difference_of_games_has_a_wider_interval_than_of_single_values():
    random = generator("clustered")
    game = random.normal(size=(60, 1)) + 0.1 * random.normal(size=(60, 7))
    from chessreg.queries import stats

    by_game = Clusters({"total": game.sum(1), "n": np.full(60, 7.0)}, np.ones(60))
    alone = Clusters({"total": game.ravel(), "n": np.ones(420)}, np.ones(420))
    wide, narrow = stats.estimate_mean(by_game, "total", "n"), stats.estimate_mean(alone, "total", "n")
    assert wide.value == pytest.approx(narrow.value)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
