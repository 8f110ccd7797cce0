"""`elo by intervention`: what is counted, what is paired, and that nothing is pooled."""

import math
from itertools import pairwise

import pytest

from chessreg.queries import run_query
from chessreg.queries.ask import rows_behind

WON, LOST, DRAWN = {"result": "1-0"}, {"result": "0-1"}, {"result": "1/2-1/2", "termination": "stalemate"}


def stopped(cp):
    return {"result": "*", "termination": "move_limit", "adjudication_cp": cp}


def ask(database, **options):
    return run_query(database, "elo by intervention", **options).rows


def test_every_count_of_a_cell(database, make):
    forfeit = {"result": "0-1", "termination": "forfeit_illegal", "first_try_legal": 15}
    games = [WON, WON, LOST, DRAWN, forfeit, stopped(250), stopped(100), stopped(-100), stopped(-101), stopped(None)]
    games[1] = {**WON, "moves": (0).to_bytes(2, "little")}  # the same game as the first
    make.play(make.checkpoint("reference"), games, name="plain", planned=10, host="box7")
    [row] = ask(database)
    counts = {"n": 10, "planned": 10, "unique_games": 9, "w": 3, "d": 3, "l": 3, "unscored": 1, "adjudicated": 4}
    assert {name: row[name] for name in counts} == counts
    assert row["forfeits"] == 1
    assert row["score"] == pytest.approx(0.5)
    assert row["elo"] == pytest.approx(0)
    assert row["first_try_legal"] == pytest.approx(100 * 195 / 200)
    assert (row["runs"], row["machines"], row["checkpoint"]) == ("plain", "box7", "reference")
    assert (row["engine"], row["engine_version"], row["level"], row["limit"]) == ("Stockfish", "15.1", 0, "nodes=1000")


def test_the_authors_scoring_drops_draws_and_counts_balanced_stopped_games_as_lost(database, make):
    make.play(make.checkpoint("a"), [WON, LOST, DRAWN, stopped(250), stopped(100), stopped(99), stopped(-500)])
    paper, author = (ask(database, scoring=s)[0] for s in ("paper", "author-2024"))
    assert paper["score"] == pytest.approx((1 + 0 + 0.5 + 1 + 0.5 + 0.5 + 0) / 7)
    assert author["score"] == pytest.approx((1 + 0 + 1 + 0.5 + 0 + 0) / 6)
    assert (paper["unscored"], author["unscored"]) == (0, 1)
    assert (author["w"], author["d"], author["l"], author["scoring"]) == (2, 1, 3, "author-2024")


def test_black_counts_from_the_models_side(database, make):
    make.play(make.checkpoint("a"), [LOST, LOST, WON, stopped(-250), stopped(250)], color="black")
    [row] = ask(database)
    assert (row["color"], row["w"], row["d"], row["l"]) == ("black", 3, 0, 2)


def test_a_score_of_zero_or_one_is_a_bound_never_infinite(database, make):
    make.play(make.checkpoint("a"), [LOST] * 30)
    [row] = ask(database)
    assert (row["score"], row["score_low"], row["elo"], row["elo_low"]) == (0, None, None, None)
    assert row["score_high"] == pytest.approx(1 - 0.05 ** (1 / 30), abs=1e-5)
    assert row["elo_high"] == pytest.approx(-400 * math.log10(1 / row["score_high"] - 1), abs=0.01)
    make.play(make.checkpoint("b"), [WON] * 30)
    row = ask(database, checkpoint="b")[0]
    assert (row["score"], row["score_high"], row["elo"], row["elo_high"]) == (1, None, None, None)
    assert row["elo_low"] > 0


def test_deltas_are_paired_on_the_same_openings(database, make):
    checkpoint = make.checkpoint("a")
    edit = make.intervention(checkpoint, scale=0.1)
    plain = [WON, LOST] * 50
    make.play(checkpoint, plain)
    edited = [LOST if n in (0, 2, 4) else game for n, game in enumerate(plain)]
    edited += [WON] * 20  # openings that the plain model has not played: they do not count for the delta
    make.play(checkpoint, edited, intervention=edit)
    none, row = ask(database)
    assert (none["intervention"], none["delta_score"], none["delta_elo"]) == ("none", None, None)
    assert row["intervention"] == "contrastive:skill L3-5 x0.1"
    assert row["delta_score"] == pytest.approx(-0.03)
    assert -0.08 < row["delta_score_low"] < -0.03 < row["delta_score_high"] <= 0
    assert row["delta_score_high"] - row["delta_score_low"] < (row["score_high"] - row["score_low"]) / 2
    assert row["delta_elo_low"] < row["delta_elo"] < row["delta_elo_high"] <= 0


def test_other_opening_seeds_are_not_paired(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [WON, LOST])
    make.play(checkpoint, [WON, LOST], intervention=make.intervention(checkpoint), opening_seed=1)
    assert [row["delta_score"] for row in ask(database)] == [None, None]


def test_games_of_one_opening_are_one_cluster(database, make):
    checkpoint = make.checkpoint("a")
    apart = [WON, LOST] * 60
    together = [{**(WON if n % 12 < 6 else LOST), "opening_number": n // 6} for n in range(120)]
    make.play(checkpoint, apart, level=0)
    make.play(checkpoint, together, level=1)
    make.play(checkpoint, [{**game, "opening_number": 0} for game in apart], level=2, opening="standard")
    widths = [row["score_high"] - row["score_low"] for row in ask(database)]
    assert widths[1] > 2 * widths[0]
    assert widths[2] == pytest.approx(widths[0], rel=0.1)  # from the start position every game is its own


def test_nothing_is_pooled_that_differs(database, make):
    checkpoint = make.checkpoint("a")
    common = {"level": 0, "limit": "nodes=1000", "version": "15.1", "color": "white", "opening": "standard"}
    make.play(checkpoint, [WON] * 2, **common)
    for other in ({"level": 1}, {"limit": "time=0.1"}, {"version": "16"}, {"color": "black"}, {"opening": "random:20"},
                  {"policy": "legal"}):  # fmt: skip
        make.play(checkpoint, [WON] * 2, **(common | other))
    make.play(checkpoint, [WON] * 2, intervention=make.intervention(checkpoint, scale=2), **common)
    make.play(checkpoint, [WON] * 2, intervention=make.intervention(checkpoint, scale=-2, positions="last"), **common)
    rows = ask(database)
    assert [row["n"] for row in rows] == [2] * 9
    assert [r["intervention"] for r in rows if r["intervention"] != "none"] == [
        "contrastive:skill L3-5 x-2 (last token)",
        "contrastive:skill L3-5 x2",
    ]


def test_runs_of_one_protocol_and_edit_are_one_row_and_named(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [WON] * 2, name="first", host="box1")
    make.play(checkpoint, [LOST] * 3, name="again", host="box2", opening_seed=1)
    [row] = ask(database)
    assert (row["n"], row["planned"], row["runs"], row["machines"]) == (5, 5, "again, first", "box1, box2")


def test_partial_runs_are_shown_on_request_with_what_was_planned(database, make):
    make.play(make.checkpoint("a"), [WON] * 3, planned=20, name="half")
    result = run_query(database, "elo")
    assert len(result) == 0
    assert result.notes == [
        "nothing to show yet; chessreg run play makes what this table shows",
        "left out of the runs: 1 not complete (--partial shows them)",
    ]
    [row] = ask(database, partial=True)
    assert (row["n"], row["planned"]) == (3, 20)


def test_the_rows_behind_a_cell_are_its_games(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [WON] * 2, name="plain")
    run = make.play(checkpoint, [LOST, DRAWN, WON], intervention=make.intervention(checkpoint), name="edited")
    behind = rows_behind(database, "elo", 2)
    assert [(r["run"], r["unit"], r["result"], r["score"], r["run_id"]) for r in behind.rows] == [
        ("edited", 0, "0-1", 0.0, run.id.hex),
        ("edited", 1, "1/2-1/2", 0.5, run.id.hex),
        ("edited", 2, "1-0", 1.0, run.id.hex),
    ]
    assert all(a["unit"] < b["unit"] for a, b in pairwise(behind.rows))


def test_a_player_of_another_program_has_no_checkpoint_and_is_shown(database, make):
    from chessreg.registry import tables

    run = make.run("play", 1)
    make.add(
        tables.Match(run_id=run.id, number=0, player="gpt-4", opponent="random", color="white", opening="standard",
                     opening_seed=0, policy="foreign", move_limit=90, planned=1),
        make.game(run, 0),
    )  # fmt: skip
    [row] = ask(database)
    assert (row["checkpoint"], row["checkpoint_id"], row["engine"], row["level"]) == ("gpt-4", None, None, None)
