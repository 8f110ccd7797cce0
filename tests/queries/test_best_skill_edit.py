"""`best skill edit`: chosen on even openings, reported on odd ones, and never among edits that broke the model."""

from __future__ import annotations

import pytest

from chessreg.queries import run_query

WON, LOST = {"result": "1-0"}, {"result": "0-1"}


@pytest.fixture
def contest(database, make):
    """Plays edits of one vector: scale → wins of ten on even openings, of ten on odd ones, and extra columns."""
    checkpoint = make.checkpoint("m")

    def play(arms, unedited=(5, 5, {}), **protocol):
        for scale, (even, odd, more) in {None: unedited, **arms}.items():
            games = [(WON if n // 2 % 10 < (odd if n % 2 else even) else LOST) | more for n in range(20)]
            edit = scale and make.intervention(checkpoint, scale=scale)
            make.play(checkpoint, games, intervention=edit, **protocol)
        return run_query(database, "best skill edit").rows

    return play


def test_the_best_on_even_openings_is_reported_on_odd_ones(contest):
    [row] = contest({-1.0: (3, 4, {}), -2.0: (2, 9, {})})
    assert (row["goal"], row["scale"], row["tried"], row["qualified"]) == ("negative", -2.0, 2, 2)
    assert (row["chosen_score"], row["score"], row["delta_score"], row["n"]) == (0.2, 0.9, pytest.approx(0.4), 10)


def test_an_edit_that_lost_or_won_every_game_is_not_chosen(contest):
    down, up = contest({-1.0: (3, 3, {}), -4.0: (0, 0, {}), 1.0: (6, 6, {}), 4.0: (10, 10, {})})
    assert (down["scale"], down["qualified"], up["scale"], up["qualified"]) == (-1.0, 1, 1.0, 1)


def test_from_the_standard_position_both_colors_have_games_to_choose_on_and_to_report_on(database, make):
    """White has the games of even number, Black the others: the games of each color are counted separately."""
    checkpoint = make.checkpoint("m")
    for scale in (None, -1.0, -2.0):
        edit = scale and make.intervention(checkpoint, scale=scale)
        games = [WON if n % 3 else LOST for n in range(24)]
        make.play(checkpoint, games, intervention=edit, color="both", opening="standard")
    rows = run_query(database, "best skill edit").rows
    assert [(row["color"], row["tried"], row["qualified"], row["n"]) for row in rows] == [
        ("black", 2, 2, 6), ("white", 2, 2, 6)
    ]  # fmt: skip
    assert [row["delta_score"] for row in rows] == [0, 0]


@pytest.mark.parametrize(("unedited", "floor"), [(200, 98.0), (160, 78.0)])
def test_an_edit_that_makes_the_model_write_illegal_moves_is_not_chosen(contest, unedited, floor):
    """The paper's 98 %, or two points below the model's own where that is lower; of 200 turns."""
    legal = {"turns": 200}
    just = {**legal, "first_try_legal": int(2 * floor)}
    below = {**legal, "first_try_legal": int(2 * floor) - 1}
    [row] = contest({-1.0: (4, 4, just), -4.0: (1, 1, below)}, (5, 5, {**legal, "first_try_legal": unedited}))
    assert (row["scale"], row["qualified"], row["legality_floor"], row["legality"]) == (-1.0, 1, floor, floor)


def test_of_the_policy_legal_the_mass_of_legal_moves_counts(contest):
    def mass(value):
        return {"detail": {"legal_mass": value}}

    [row] = contest({-1.0: (4, 4, mass(0.85)), -4.0: (1, 1, mass(0.4))}, (5, 5, mass(0.86)), policy="legal")
    assert (row["scale"], row["legality_floor"]) == (-1.0, pytest.approx(84))


def test_where_no_edit_qualifies_none_is_chosen_and_that_is_said(contest):
    [row] = contest({-1.0: (0, 0, {}), -4.0: (0, 0, {})}, (0, 1, {}))
    assert (row["intervention"], row["scale"], row["tried"], row["qualified"], row["n"]) == ("none", None, 2, 0, 0)
    assert row["score"] is None


def test_a_contest_whose_games_different_engines_evaluated_has_a_note(contest, make):
    stopped = {"result": "*", "termination": "move_limit", "adjudication_cp": 0}
    details = [{"evaluator_engine_ids": [make.engine(version).hex]} for version in ("15.1", "17.1")]
    first, both = (contest({-1.0: (3, 4, stopped), -2.0: (2, 9, {})}, detail=detail) for detail in details)
    assert [row["warning"] for row in first] == [None]
    note = "different engines evaluated positions of the compared games: Stockfish 15.1, Stockfish 17.1"
    assert [row["warning"] for row in both] == [note]
