"""Classes of skill: quantile bins equal to those of pandas, strata that do not reveal the class, scales kept
separate."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.games.datasets.skill import (
    SkillRule,
    assign_bins,
    classify_skill,
    classify_time_control,
    compute_quantile_edges,
    estimate_seconds,
    find_rating_scales,
    get_rating_source,
)

pa = pytest.importorskip("pyarrow")


class Table:
    """The part of a dataset that `classify_skill` uses: columns of the games at row positions."""

    def __init__(self, white, site=None, event=None, clock=None, black=None):
        n = len(white)
        self.table = pa.table({
            "white_elo": pa.array(white, pa.int32()),
            "black_elo": pa.array(black or [1500] * n, pa.int32()),
            "site": pa.array(site or [None] * n, pa.string()),
            "event": pa.array(event or [None] * n, pa.string()),
            "time_control": pa.array(clock or [None] * n, pa.string()),
        })  # fmt: skip

    def take(self, places, columns):
        return self.table.take(pa.array(places)).select(list(columns))


def classes(table, rule=SkillRule(), scale=None, fitted=None):  # noqa: B008
    return classify_skill(table, np.arange(len(table.table)), rule, scale, fitted)


def test_quantile_bins_are_those_of_pandas_qcut():
    pandas = pytest.importorskip("pandas")
    drawn = np.random.default_rng(0).integers(800, 2400, 500).astype(float)
    for values in (drawn, np.repeat([1000.0, 1500.0, 1600.0, 2000.0], [200, 30, 30, 20])):
        binned, edges = pandas.qcut(values, 6, labels=False, retbins=True, duplicates="drop")
        assert compute_quantile_edges(values, 6).tolist() == edges.tolist()
        assert assign_bins(values, compute_quantile_edges(values, 6)).tolist() == binned.tolist()


def test_quantile_bins_by_hand():
    values = np.arange(1.0, 13.0)
    edges = compute_quantile_edges(values, 6)
    np.testing.assert_allclose(edges, [1, 1 + 11 / 6, 1 + 22 / 6, 6.5, 1 + 44 / 6, 1 + 55 / 6, 12])
    assert assign_bins(values, edges).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert assign_bins(np.array([0.9, 1.0, 12.1]), edges).tolist() == [-1, 0, -1]


def test_the_lowest_and_the_highest_sixth_are_kept_and_the_rest_is_counted():
    elo = [1000 + 10 * i for i in range(60)]
    found = classes(Table([*elo, None]))
    assert found.classes.tolist() == [0] * 10 + [-1] * 40 + [1] * 10 + [-1]
    assert found.classes.dtype == np.int8
    assert found.report.games == [10, 10]
    assert found.report.dropped == {"without white_elo": 1, "of bins not kept": 40}
    assert np.isnan(found.rating[-1])
    assert "10 / 10 games by white_elo" in str(found.report)


def test_either_side_and_any_bins():
    table = Table([1500] * 60, black=[1000 + 10 * i for i in range(60)])
    found = classes(table, SkillRule(rating="black_elo", bins=3, keep=()))
    assert found.classes.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    with pytest.raises(BadInputError, match="makes no 2 classes"):
        classes(table)


def test_fixed_bins_are_open_outside_and_closed_above():
    table = Table([900, 1550, 1551, 2050, 2051, 3000])
    found = classes(table, SkillRule(edges=(1550, 2050), strata="pooled"))
    assert found.classes.tolist() == [0, 0, -1, -1, 1, 1]


def confounded():
    """Strong games mostly from one source, weak ones mostly from the other."""
    low, high = [1000 + i for i in range(90)], [2000 + i for i in range(90)]
    elo = low[:72] + high[:18] + low[72:] + high[18:]
    site = ["https://lichess.org/a"] * 90 + [None] * 90
    return Table(elo, site=site, clock=["600+0"] * 180)


def share_by_source(found):
    counts = list(found.report.by_stratum.values())
    return [low / (low + high) for low, high in counts]


def test_bins_within_strata_make_the_class_independent_of_the_source():
    pooled = classes(confounded(), SkillRule(strata="pooled", bins=2), "lichess")
    assert max(share_by_source(pooled)) - min(share_by_source(pooled)) > 0.5
    within = classes(confounded(), SkillRule(bins=2), "lichess")
    assert share_by_source(within) == pytest.approx([0.5, 0.5])
    assert set(within.report.edges) == {"lichess.org/rapid", "unnamed/rapid"}


def test_balancing_keeps_common_edges_and_equal_numbers_in_every_stratum():
    rule = SkillRule(strata="balanced", bins=2, seed=3)
    found = classes(confounded(), rule, "lichess")
    assert share_by_source(found) == [0.5, 0.5]
    assert found.report.games == [36, 36]
    assert found.report.dropped == {"to balance the strata": 108}
    assert (found.rating[found.classes == 0] < 1500).all()
    again = classes(confounded(), rule, "lichess")
    np.testing.assert_array_equal(found.classes, again.classes)
    other = classes(confounded(), SkillRule(strata="balanced", bins=2, seed=4), "lichess")
    assert (found.classes != other.classes).any()


def test_one_stratum_alone():
    found = classes(confounded(), SkillRule(strata="lichess.org/rapid", bins=2), "lichess")
    assert set(np.flatnonzero(found.classes >= 0)) <= set(range(90))
    assert found.report.dropped == {"not of lichess.org/rapid": 90}
    with pytest.raises(BadInputError, match=r"the stratum 'lichess.org/blitz' has no games.*lichess.org/rapid \(90\)"):
        classes(confounded(), SkillRule(strata="lichess.org/blitz"), "lichess")


def test_strata_too_small_for_quantiles_are_left_out():
    table = Table([1000 + i for i in range(70)], site=["https://lichess.org/a"] * 60 + [None] * 10)
    found = classes(table, scale="lichess")
    assert found.report.dropped["of strata too small for these bins"] == 10


def test_other_games_are_put_into_the_bins_of_the_fitted_ones():
    fitted = classes(Table([1000 + 10 * i for i in range(60)])).report
    tested = classes(Table([700, 1050, 1300, 1570, 2500]), fitted=fitted)
    assert tested.classes.tolist() == [0, 0, -1, 1, 1]
    elsewhere = Table([700, 2500, 700, 2500], clock=["60+0", "60+0", None, None])
    assert classes(elsewhere, fitted=fitted).report.dropped == {"of strata not fitted on": 2}


def test_ratings_of_different_scales_are_refused_unless_asked_for():
    table = Table([1000 + i for i in range(60)] * 2, event=["chessreg generated"] * 60 + ["x"] * 60,
                  site=[None] * 60 + ["https://lichess.org/b"] * 60)  # fmt: skip
    with pytest.raises(BadInputError, match="60 games rated by lichess, 60 games rated by stockfish"):
        classes(table)
    assert classes(table, SkillRule(mixed_scales=True)).report.scales == ["lichess", "stockfish"]
    assert classes(table, SkillRule(strata="generated/no clock")).report.scales == ["stockfish"]
    assert find_rating_scales(table.table, "fide").tolist() == ["fide"] * 120


def test_the_first_games_in_total_or_of_each_class():
    found = classes(Table([1000, 2000, 1001, 1002, 2001, 1003, 2002, 2003]), SkillRule(bins=2))
    assert found.select_first(total=3).tolist() == [0, 1, 2]
    assert found.select_first(per_class=1).tolist() == [0, 1]
    assert found.select_first(total=4, per_class=2).tolist() == [0, 1, 2]
    assert found.select_first().tolist() == list(range(8))


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"keep": (0, 6)}, "cannot be kept"),
        ({"keep": (-1, 0)}, "cannot be kept"),
        ({"keep": (0,)}, "cannot be kept"),
        ({"bins": 1}, "two bins"),
        ({"edges": (1500.0,)}, "fixed edges"),
        ({"edges": (2000.0, 1500.0), "strata": "pooled"}, "must rise"),
    ],
)
def test_rules_that_make_no_classes_are_refused(rule, complaint):
    with pytest.raises(BadInputError, match=complaint):
        SkillRule(**rule)


def test_sources_and_time_controls_as_the_tags_give_them():
    assert get_rating_source("lichess.org", None) == "lichess.org"
    assert get_rating_source("?", "chessreg generated") == "generated"
    limits = ("29+0", "30+0", "179+0", "180+0", "479+0", "480+0", "1499+0", "1500+0", "180+30")
    assert [classify_time_control(t, None) for t in limits] == [
        "ultrabullet", "bullet", "bullet", "blitz", "blitz", "rapid", "rapid", "classical", "rapid",
    ]  # fmt: skip
    assert classify_time_control(None, "Rated Standard game") == "standard"
    assert classify_time_control(None, "Rated UltraBullet tournament https://lichess.org/tournament/x") == "ultrabullet"
    assert estimate_seconds("10 min") is None


@pytest.mark.slow
def test_the_shared_games_give_about_as_many_of_each_class(shared_data, tmp_path):
    from chessreg.games.datasets.build import build_dataset
    from chessreg.games.datasets.dataset import Games

    build_dataset([shared_data / "games" / "lichess-probe-test.pgn.zst"], tmp_path / "d")
    games = Games(tmp_path / "d")
    places = np.arange(len(games))
    within = classify_skill(games, places, SkillRule(), "lichess")
    low, high = within.report.games
    assert 3300 < high <= low < 4300
    shares = {k: a / (a + b) for k, (a, b) in within.report.by_stratum.items() if a + b > 600}
    assert all(abs(share - 0.5) < 0.04 for share in shares.values()), shares
    long = places[games.table(["plies"]).column("plies").to_numpy() >= 65]  # of these source and skill are confounded
    pooled = classify_skill(games, long, SkillRule(strata="pooled"), "lichess")
    spread = [a / (a + b) for a, b in pooled.report.by_stratum.values() if a + b > 600]
    assert max(spread) - min(spread) > 0.3
    balanced = classify_skill(games, long, SkillRule(strata="balanced"), "lichess")
    assert all(a == b for a, b in balanced.report.by_stratum.values())
