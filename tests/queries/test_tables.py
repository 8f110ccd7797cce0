"""The other tables of the catalogue, with rows whose numbers are known beforehand."""

import pytest

from chessreg.queries import run_query
from chessreg.queries.ask import query_rows_behind


def test_probe_accuracy_is_counted_over_all_squares_by_layer_and_split(database, make):
    checkpoint = make.checkpoint("reference")
    scores = {
        (0, "validation"): [(64, 48), (64, 40)],
        (1, "validation"): [(64, 60), (64, 62)],
        (0, "test"): [(64, 32), (128, 64, {"majority": 96, "exact": 1, "positions": 2})],
        (1, "test"): [(64, 63), (128, 127)],
    }
    make.probe(checkpoint, scores, name="board")
    rows = run_query(database, "probe accuracy by layer").rows
    assert [(r["split"], r["layer"], r["n_games"], r["n"], r["chosen"]) for r in rows] == [
        ("test", 0, 2, 192, False),
        ("test", 1, 2, 192, True),
        ("validation", 0, 2, 128, False),
        ("validation", 1, 2, 128, True),
    ]
    assert [r["accuracy"] for r in rows] == pytest.approx([50, 100 * 190 / 192, 100 * 88 / 128, 100 * 122 / 128])
    assert rows[0]["majority"] == pytest.approx(75)  # of the games that say
    assert rows[0]["boards"] == pytest.approx(50)
    assert (rows[1]["majority"], rows[0]["layers_tried"], rows[0]["run"]) == (None, 2, "board")
    assert rows[1]["accuracy_low"] < rows[1]["accuracy"] < rows[1]["accuracy_high"] < 100


def test_skill_stands_beside_what_game_length_and_source_alone_say(database, make):
    def game(correct, vote, **baselines):
        named = {"length_class": 0, "source_class": 0, "majority_class": 0} | baselines
        return (8, correct, {"positions": 8, "exact": correct, "game_class": 1, "vote_class": vote, "unseen": 2,
                             "unseen_correct": 1, **named})  # fmt: skip

    scores = {(0, "test"): [game(6, 1), game(2, 0, length_class=1), game(8, 1, source_class=1), game(4, 1)]}
    make.probe(make.checkpoint("a"), scores, label="skill", layers=(0,))
    [row] = run_query(database, "probe accuracy by layer").rows
    assert (row["accuracy"], row["by_game"], row["unseen"]) == (62.5, 75, 50)
    assert (row["length"], row["source"], row["majority"]) == (25, 25, 0)
    best = run_query(database, "best probe layers").rows[0]
    assert (best["accuracy"], best["length"], best["source"], best["minus_majority"]) == (62.5, 25, 25, 62.5)


def test_games_not_squares_are_resampled(database, make):
    """Accuracy that differs between games only: the width follows the number of games."""
    scores = {(0, "test"): [(64, 64), (64, 32)] * 8}
    make.probe(make.checkpoint("a"), scores, layers=(0,))
    [row] = run_query(database, "probe accuracy").rows
    assert row["accuracy"] == 75
    assert 4 < row["accuracy_high"] - row["accuracy"] < 16  # 1.96 * 25 / sqrt(16) = 12; of squares it would be 2.7


def test_an_untrained_twin_stands_beside_its_model(database, make):
    scores = {(0, "test"): [(64, 60)]}
    zebra = make.checkpoint("zebra")
    twin = make.checkpoint("alpha", source_format="random-init", parent_id=zebra.id)
    other = make.checkpoint("middle")
    for checkpoint in (twin, other, zebra):
        make.probe(checkpoint, scores, layers=(0,))
    rows = run_query(database, "probe accuracy").rows
    assert [(r["checkpoint"], r["twin_of"]) for r in rows] == [("middle", None), ("zebra", None), ("alpha", "zebra")]


def test_probe_runs_of_other_settings_are_not_pooled_and_totals_do_not_count_twice(database, make):
    from chessreg.registry import tables

    checkpoint = make.checkpoint("a")
    run = make.probe(checkpoint, {(0, "test"): [(64, 60)]}, layers=(0,))
    make.probe(checkpoint, {(0, "test"): [(64, 10)]}, layers=(0,))
    make.add(tables.Score(run_id=run.id, unit=0, split="test", item=-1, attempt_id=run.attempt_id, n=64, correct=60))
    assert sorted(r["accuracy"] for r in run_query(database, "probe accuracy").rows) == [100 * 10 / 64, 100 * 60 / 64]
    assert len(query_rows_behind(database, "probe accuracy", 1)) == 1


def edits(make, name="edits"):
    checkpoint = make.checkpoint("reference")
    edit = make.intervention(checkpoint, "probe:piece", (5,), 1.5)
    control = make.intervention(checkpoint, "random", (5,), 1.5)
    states = [
        (7, {"clean": (5, 2, 0.99, 0.40), "edit": (4, 5, 0.80, 0.90), "random-0": (5, 2, 0.98, 0.41)}),
        (7, {"clean": (5, 1, 0.97, 0.30), "edit": (5, 4, 0.90, 0.70), "random-0": (5, 1, 0.96, 0.31)}),
        (9, {"clean": (4, 3, 0.95, 0.50), "edit": (3, 5, 0.60, 1.00), "random-0": (4, 2, 0.94, 0.48)}),
    ]
    return make.edit(checkpoint, states, intervention=edit, control=control, name=name)


def test_legality_on_both_boards_by_condition_with_deltas_to_clean(database, make):
    edits(make)
    clean, edit, random = run_query(database, "board intervention legality").rows
    assert [r["condition"] for r in (clean, edit, random)] == ["clean", "edit", "random"]
    assert [r["intervention"] for r in (clean, edit, random)] == ["none", "probe:piece L5 x1.5", "random L5 x1.5"]
    assert {(r["states"], r["unique_states"], r["games"], r["samples"], r["checkpoint"]) for r in (clean, edit)} == {
        (3, 2, 2, 15, "reference")
    }
    assert clean["original"] == pytest.approx(100 * 14 / 15)
    assert edit["modified"] == pytest.approx(100 * 14 / 15)
    assert edit["exact_original"] == pytest.approx(100 * (0.8 + 0.9 + 0.6) / 3)
    assert edit["exact_modified"] == pytest.approx(100 * (0.9 + 0.7 + 1.0) / 3)
    assert edit["delta_original"] == pytest.approx(100 * (12 - 14) / 15)
    assert edit["delta_modified"] == pytest.approx(100 * (14 - 6) / 15)
    assert edit["delta_exact"] == pytest.approx(100 * (2.6 - 1.2) / 3)
    assert edit["delta_exact_low"] <= edit["delta_exact"] <= edit["delta_exact_high"]
    assert (clean["delta_modified"], random["delta_exact"]) == (None, pytest.approx(0))
    assert edit["greedy_modified"] == 100


def test_an_edit_beside_its_controls_and_each_position_once(database, make):
    checkpoint = make.checkpoint("reference")
    edit = make.intervention(checkpoint, "probe:piece", (5,), 1.5)
    control = make.intervention(checkpoint, "random", (5,), 1.5)
    first = {"clean": (5, 1, 0.9, 0.2), "edit": (4, 5, 0.8, 0.9), "random-0": (5, 1, 0.9, 0.2)}
    again = {"clean": (5, 1, 0.9, 0.2), "edit": (4, 3, 0.8, 0.9), "random-0": (5, 2, 0.9, 0.2)}
    make.edit(checkpoint, [(7, first), (7, again), (9, first)], intervention=edit, control=control)
    _, row, random = run_query(database, "karvonen table 8").rows
    assert (row["layer"], row["layers"], row["scale"], row["edits_tried"]) == (5, [5], 1.5, 1)
    assert (row["states"], row["unique_states"]) == (3, 2)  # here a position is identified by its game
    assert row["modified"] == pytest.approx(100 * 13 / 15)
    assert row["unique_modified"] == 100
    assert row["minus_random"] == pytest.approx(100 * (13 - 4) / 15)
    assert (row["minus_shuffled"], random["minus_random"]) == (None, None)


def test_skipped_states_are_counted_apart(database, make):
    from chessreg.registry import tables

    run = edits(make)
    make.add(
        tables.Trial(run_id=run.id, unit=3, condition="skipped", sample=-1, attempt_id=run.attempt_id, item=9, ply=8,
                     fen="x", text="Kf1", legal_original=True, detail={"skipped": "king"}),
    )  # fmt: skip
    rows = run_query(database, "board intervention legality").rows
    assert {(r["states"], r["skipped"]) for r in rows} == {(3, 1)}


def test_the_trials_behind_a_cell(database, make):
    edits(make)
    behind = query_rows_behind(database, "karvonen table 2", 2).rows
    assert len(behind) == 18
    assert {(r["condition"], r["run"]) for r in behind} == {("edit", "edits")}
    assert [r["sample"] for r in behind[:6]] == [-1, 0, 1, 2, 3, 4]
    assert {(r["unit"], r["game"], r["ply"]) for r in behind} == {(0, 7, 4), (1, 7, 4), (2, 9, 4)}


def test_terminations_are_shares_of_an_arm(database, make):
    checkpoint = make.checkpoint("a")
    games = [{"termination": "checkmate", "plies": 30}] * 6 + [
        {"termination": "forfeit_illegal", "result": "0-1", "plies": 10, "opening_number": 0},
        {"termination": "stalemate", "result": "1/2-1/2", "plies": 90, "opening_number": 0},
    ]
    make.play(checkpoint, games, name="plain")
    make.play(checkpoint, [{}] * 2, level=3)
    rows = run_query(database, "games by termination").rows
    assert [(r["opponent"][:11], r["termination"], r["n"], r["games"], r["planned"]) for r in rows] == [
        ("stockfish:0", "checkmate", 6, 8, 8),
        ("stockfish:0", "forfeit_illegal", 1, 8, 8),
        ("stockfish:0", "stalemate", 1, 8, 8),
        ("stockfish:3", "checkmate", 2, 2, 2),
    ]
    assert [r["share"] for r in rows] == pytest.approx([75, 12.5, 12.5, 100])
    assert [(r["w"], r["d"], r["l"], r["plies"]) for r in rows[:3]] == [(6, 0, 0, 30), (0, 0, 1, 10), (0, 1, 0, 90)]
    assert rows[1]["share_low"] < 12.5 < rows[1]["share_high"]
    assert [r["unit"] for r in query_rows_behind(database, "games by termination", 3).rows] == [7]


def test_shares_of_one_arm_add_up_in_every_resample(database, make):
    """The openings without a game that ended so count too: 2 of 10 openings with one checkmate each are 20 %."""
    games = [{"termination": "checkmate" if n < 2 else "stalemate", "opening_number": n} for n in range(10)]
    make.play(make.checkpoint("a"), games)
    mate, stale = run_query(database, "games by termination").rows
    assert (mate["share"], stale["share"]) == (20, 80)
    assert mate["share_high"] == pytest.approx(100 - stale["share_low"], abs=12)  # each row has separate draws
    assert mate["share_high"] > 40


def test_legal_moves_by_ply_and_over_all(database, make):
    checkpoint, other = make.checkpoint("a"), make.checkpoint("b")
    late = [(True, None)] * 10 + [(False, 0.25)]
    make.legality(checkpoint, [late, [(True, 0.5), (False, None)]], name="held-out")
    make.legality(other, [[(True, None)]])
    edits(make)
    rows = run_query(database, "legal moves by ply", checkpoint="a").rows
    assert [(r["moves"], r["positions"], r["games"], r["run"]) for r in rows] == [
        ("all", 13, 2, "held-out"),
        ("1–10", 12, 2, "held-out"),
        ("11–20", 1, 1, "held-out"),
    ]
    assert [r["legal"] for r in rows] == pytest.approx([100 * 11 / 13, 100 * 11 / 12, 0])
    assert [r["mass"] for r in rows] == pytest.approx([37.5, 50, 25])
    assert {r["board"] for r in query_rows_behind(database, "legal moves by ply", 3, checkpoint="a").rows} == {
        "held-out:0"
    }
