"""All estimators side by side, on the author's committed sweeps (Junkin 2025)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from chessreg.errors import BadInputError
from chessreg.experiments.engine_match import EngineMatchSpec
from chessreg.experiments.imported.sweep import ImportedSweepSpec
from chessreg.experiments.rating import Rating, RatingSpec
from chessreg.experiments.rating.pool import load_rating_pool
from chessreg.games.engines.estimators import SIDE_BY_SIDE
from chessreg.queries.published import compare_with_published
from chessreg.registry import tables
from chessreg.runs.resolve import resolve_spec

APRIL = "100,0,0 98,0,2 98,1,1 94,0,6 84,1,15 80,3,17 72,5,23 63,2,35 52,3,45 43,6,51 29,13,58"
MARCH = "100,0,0 98,0,2 94,0,6 87,0,13 79,1,20 74,3,23 62,3,35 46,9,45 40,5,55 32,7,61 27,10,63"
BATCHED = {0.0: 2386.26, 0.5: 2464.27, 0.9: 2545.19}
ANCHORED = {0.0: 2556.19, 0.5: 2580.99, 0.9: 2600.98}
LEVEL_10 = {0.0: 2632.5, 0.5: 2684.3, 0.9: 2722.6}


def sweep_file(folder: Path, counts: str, first: int = 0) -> Path:
    lines = [f"{level},{results}" for level, results in enumerate(counts.split(), first)]
    path = folder / f"sweep-{first}-{len(lines)}.csv"
    path.write_text("\n".join(["level,wins,draws,losses", *lines]) + "\n")
    return path


@pytest.fixture
def imported(session, tmp_path):
    """Import a sweep under a player's name; the run's id."""

    def bring(counts: str, player: str = "llama", **settings) -> str:
        path = str(sweep_file(tmp_path, counts, settings.pop("first", 0)))
        spec = ImportedSweepSpec(file=path, players=(player,), limit="time=0.1", **settings)
        return session.run(spec).run_id.hex

    return bring


def ratings(session, *runs: str, **settings):
    spec = RatingSpec(runs=runs, estimator="all", anchors="levels-truncated", resamples=20, **settings)
    assert session.run(spec).state == "complete"
    return session.query("elo by estimator").rows


def test_the_authors_sweep_has_the_ratings_of_every_estimator(session, imported):
    rows = ratings(session, imported(APRIL, assist="author"))
    mine = [row for row in rows if row["checkpoint"] is not None]
    whole = {(row["estimator"], row["draw_weight"]): row for row in mine if row["against"] is None}
    for name, expected in (("junkin-batched", BATCHED), ("anchored-ml", ANCHORED)):
        for weight, rating in expected.items():
            assert whole[name, weight]["rating"] == pytest.approx(rating, abs=0.006)
    assert set(SIDE_BY_SIDE) == set(whole) - {("anchors' own error", 0.5)}
    error = whole["anchors' own error", 0.5]
    assert (error["rating"] - error["rating_low"], error["rating_high"] - error["rating"]) == (100, 100)
    assert error["rating"] == whole["anchored-ml", 0.5]["rating"]
    level = {row["draw_weight"]: row for row in mine if row["against"] == "stockfish:10@time=0.1"}
    for weight, rating in LEVEL_10.items():
        assert level[weight]["rating"] == pytest.approx(rating, abs=0.06)
        assert (level[weight]["w"], level[weight]["d"], level[weight]["l"], level[weight]["games"]) == (29, 13, 58, 100)
    won = [row for row in mine if row["against"] == "stockfish:0@time=0.1"]
    assert {(row["rating"], row["rating_high"], row["rating_low"] > 1900) for row in won} == {(None, None, True)}
    known = [(row["level"], row["rating"]) for row in rows if row["estimator"] == "known"]
    assert known == list(enumerate([1320, 1467, 1608, 1742, 1922, 2203, 2363, 2499, 2596, 2702, 2788]))
    assert {(row["assist"], row["origin"]) for row in mine} == {("author", "imported")}


def test_results_with_help_are_another_players_and_stand_behind_those_without(session, imported):
    helped = imported(APRIL, assist="author")
    alone = imported("40,10,50 20,10,70", assist="none")
    rows = ratings(session, helped, alone)
    headline = [row for row in rows if row["estimator"] == "anchored-ml" and row["draw_weight"] == 0.5]
    assert [(row["assist"], row["games"]) for row in headline if row["checkpoint"]] == [("none", 200), ("author", 1100)]
    assert len({row["player"] for row in headline}) == len(headline)


def test_published_ratings_stand_beside_ours_and_contradictions_have_lines_of_their_own(session, imported):
    ratings(session, imported(APRIL, assist="author"))
    rows = compare_with_published(session.database, session.query("elo by estimator")).rows
    lines = {(row["table"], row["row"]): row for row in rows}
    assert lines["section 4", "Pythia"]["comparison"] == "not comparable: the paper's number is lost"
    assert [lines["section 4", f"FEN bidirectional{again}"]["published"] for again in ("", ", again")] == [2680, 2682]
    assert lines["Table 3", "level 0"]["comparison"] == "same"
    assert lines["Table 3", "level 0, again"]["comparison"] == "differs"
    assert lines["Table 3", "level 9"]["comparison"] == "same"


def test_a_sweep_and_games_of_ours_rate_one_player_together(session, imported, tmp_path):
    """The same model's results from two sources add up, and colors and scoring choose among them."""
    low, high = imported("10,0,0 5,2,3", assist="none"), imported("1,1,8", assist="none", first=2)
    rows = ratings(session, low, high)
    assert next(r["games"] for r in rows if r["estimator"] == "anchored-ml") == 30
    spec = RatingSpec(runs=(low,), scoring="author-2024", resamples=20)
    rated = session.run(spec).run_id.hex
    [row] = [r for r in session.query("ratings").rows if r["scoring"] == "author-2024" and r["anchor"] is None]
    assert (row["games"], row["d"], row["unscored"]) == (18, 0, 2)
    with pytest.raises(BadInputError, match="no games that count"):
        session.run(RatingSpec(runs=(low,), color="white", resamples=20))
    with pytest.raises(BadInputError, match="is of kind rating, which has no games"):
        session.run(RatingSpec(runs=(low, rated), resamples=20))


def test_the_games_that_a_rating_rests_on_are_told_beside_all_that_were_played(session, tmp_path):
    """Of 30 games, 20 against a level of known rating."""
    path = tmp_path / "both.csv"
    path.write_text("-2,9,0,1\n0,0,0,20\n")
    run = session.run(ImportedSweepSpec(file=str(path), players=("model",))).run_id.hex
    rows = [row for row in ratings(session, run) if row["player"].startswith("model")]
    counted = {row["estimator"]: (row["counted"], row["games"], row["w"]) for row in rows if row["draw_weight"] == 0.5}
    assert counted["anchored-ml"] == counted["junkin-batched"] == counted["sequential"] == (20, 30, 9)
    assert counted["bradley-terry"] == (30, 30, 9)
    assert counted["performance"] == (20, 20, 0)
    assert {row["counted"] for row in ratings(session, run) if row["estimator"] == "known"} == {None}


def test_an_engine_is_one_player_whichever_side_of_a_match_it_is(session):
    common = {"games": 4, "opening": "random:6", "adjudication": "none"}
    sides = (("capture", "random"), ("random", "capture"))
    runs = [session.run(EngineMatchSpec(player=one, opponent=other, **common)).run_id.hex for one, other in sides]
    session.run(RatingSpec(runs=runs, estimator="davidson", anchors="none", resamples=20))
    assert {row["player"]: row["games"] for row in session.query("ratings").rows} == {"capture": 8, "random": 8}


def test_adjudicated_games_of_a_rated_player_are_counted_and_noted(session):
    common = {"games": 4, "opening": "random:6", "adjudication": "none"}
    sides = (("capture", "random"), ("random", "capture"))
    rated, other = [session.run(EngineMatchSpec(player=one, opponent=other, **common)).run_id for one, other in sides]
    stopped = {"result": "*", "termination": "move_limit", "adjudication_cp": 300}
    with session.database.write() as sql:
        some = (tables.Game.run_id == other) | (tables.Game.unit < 3)
        sql.execute(update(tables.Game).where(some).values(**stopped))
    spec = RatingSpec(runs=[rated.hex], estimator="davidson", anchors="none", resamples=20)
    session.run(spec)
    table = session.query("ratings")
    assert {row["player"]: row["adjudicated"] for row in table.rows} == {"capture": 3, "random": 3}
    assert "most games are unfinished and scored by Stockfish's evaluation" in " ".join(table.notes)


@pytest.mark.slow
def test_games_from_one_line_of_a_short_book_are_drawn_together(session, tmp_path):
    book = tmp_path / "lines.tsv"
    book.write_text("name\tpgn\nking\t1. e4\nqueen\t1. d4 d5\n")
    for opening, clusters in ((f"book:{book}", 2), ("standard", 6), ("random:20", 6)):
        match = EngineMatchSpec(player="capture", opponent="random", games=6, opening=opening, adjudication="none")
        run = session.run(match).run_id.hex
        spec = RatingSpec(runs=(run,), estimator="davidson", anchors="none", resamples=20)
        pool = load_rating_pool(resolve_spec(Rating(), spec, session.inputs).spec, session.inputs).pool
        assert len(set(pool.cluster.tolist())) == clusters


def test_counts_that_no_sweep_has_are_refused(session, imported):
    run = imported("5,2,3")
    with session.database.write() as sql:
        sql.execute(update(tables.MetricPoint).where(tables.MetricPoint.name == "wins").values(value=1e15))
    with pytest.raises(BadInputError, match=r"reports 1e\+15 wins against stockfish:0@time=0.1"):
        session.run(RatingSpec(runs=(run,), resamples=20))


def test_all_estimators_need_an_opponent_of_known_rating(session, tmp_path):
    path = tmp_path / "random.csv"
    path.write_text("-2,3,0,7\n")
    run = session.run(ImportedSweepSpec(file=str(path), players=("model",))).run_id.hex
    with pytest.raises(BadInputError, match="all needs opponents of known rating"):
        session.run(RatingSpec(runs=(run,), estimator="all"))


@pytest.mark.slow
def test_the_authors_own_sweeps_are_comparable(session, imported):
    """By the bytes of his committed files: each number of one is that of its sweep, and of no other."""
    april, march = imported(APRIL, assist="author"), imported(MARCH, "earlier", assist="author")
    for run, table in ((april, "April"), (march, "March")):
        lines = compare_with_published(session.database, session.query("wins by level", run=run)).rows
        comparable = [line for line in lines if line["comparison"] == "comparable"]
        assert {line["table"] for line in comparable} == {f"sweep: Llama, {table} 2025"}
        assert len(comparable) == 33
        assert {line["difference"] for line in comparable} == {0.0}
    rows = ratings(session, march)
    [line] = [
        line
        for line in compare_with_published(
            session.database, session.query("elo by estimator", run=rows[0]["run"])
        ).rows
        if line["comparison"] == "comparable"
    ]  # fmt: skip
    assert (line["table"], line["row"], line["published"]) == ("figure of ratings, code of March 2025", "Llama", 2579)
    assert line["difference"] == pytest.approx(0.29)


@pytest.mark.slow
def test_the_authors_counts_by_other_rules_are_not_comparable(session, imported):
    run = imported(MARCH, assist="none")
    told = compare_with_published(session.database, session.query("wins by level", run=run)).rows
    [why] = {
        line["comparison"] for line in told
        if line["table"] == "sweep: Llama, March 2025" and line["row"] == "level, 3" and line["column"] == "won"
        and line["ours"] is not None
    }  # fmt: skip
    assert why == "not comparable: assist none, the paper's author"
