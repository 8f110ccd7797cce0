"""The loss of moves: by arm, next to the plain model's moves from the same openings, ten moves at a time."""

import pytest

from chessreg.queries import plot, run_query
from chessreg.queries.ask import query_plot_rows, query_rows_behind
from chessreg.queries.catalogue import find_plot
from chessreg.registry import tables
from tests.quick import quick_first


@pytest.fixture
def judge(make):
    """Judges a play run: for each game the (ply, loss or None) of its moves."""

    def judged(checkpoint, games, *, intervention=None, limit="nodes=1000", match=None, **run):
        played = make.play(checkpoint, [{} for _ in games], intervention=intervention, **match or {})
        spec = {"play": f"run:{played.spec_hash}", "judge_limit": limit, "cap": 1000}
        found = make.run("move-quality", len(games), checkpoint=checkpoint, spec=spec, **run)
        detail = {"color": "white", "checkpoint_id": checkpoint.id.hex, "engine_id": make.engine().hex,
                  "intervention_id": intervention.id.hex if intervention else None}  # fmt: skip
        for unit, moves in enumerate(games):
            rows = [(-1, "game", None, detail | {"game": unit})]
            rows += [(ply, "centipawn_loss", loss, {"legal": loss is not None}) for ply, loss in moves]
            for item, name, value, more in rows:
                make.add(
                    tables.Prediction(
                        run_id=found.id, unit=unit, item=item, name=name, value=value, text="e2e4", detail=more,
                        attempt_id=found.attempt_id,
                    )
                )  # fmt: skip
        return found

    return judged


PLAIN = [[(0, 10), (2, 30), (20, 0)], [(0, 20), (2, 40), (4, None)]]
EDITED = [[(0, 110), (2, 130)], [(0, 70), (2, 90)]]


def test_mean_and_median_loss_with_what_the_edit_adds_on_the_same_openings(database, make, judge):
    model = make.checkpoint("a")
    judge(model, PLAIN, name="plain")
    judge(model, EDITED, intervention=make.intervention(model), name="edited")
    plain, edited = run_query(database, "move quality", where="moves = 'all'").rows
    assert (plain["n_games"], plain["n"], plain["illegal"], plain["runs"]) == (2, 5, 1, "plain")
    assert (plain["games_of"], plain["judge"]) == ("stockfish:0@nodes=1000, random:20, retry:5", "Stockfish 15.1")
    assert (plain["loss"], plain["median_loss"], plain["best"]) == (20, 20, 20)  # medians 10 and 30
    assert (plain["delta_loss"], edited["loss"], edited["median_loss"]) == (None, 100, 100)
    assert edited["delta_loss"] == 80
    assert edited["delta_loss_low"] <= 80 <= edited["delta_loss_high"]


@pytest.mark.parametrize("opening", quick_first(1, ["random:20", "standard"]))
def test_every_rung_of_a_ladder_is_a_row_that_is_paired_with_matches_against_its_opponent(
    database, make, judge, opening
):
    model = make.checkpoint("a")
    judge(model, [[(0, 10)], [(0, 30)], [(0, 50)], [(0, 90)]], match={"ladder": (0, 1), "opening": opening})
    edited = [[(0, 60)], [(0, 100)]]
    judge(model, edited, intervention=make.intervention(model), match={"level": 1, "opening": opening})
    rows = run_query(database, "move quality", where="moves = 'all'").rows
    assert [(row["games_of"], row["n"], row["loss"], row["delta_loss"]) for row in rows] == [
        (f"stockfish:0@nodes=1000, {opening}, retry:5", 2, 20, None),
        (f"stockfish:1@nodes=1000, {opening}, retry:5", 2, 70, None),
        (f"stockfish:1@nodes=1000, {opening}, retry:5", 2, 80, 10),
    ]


def test_ten_moves_at_a_time(database, make, judge):
    judge(make.checkpoint("a"), PLAIN)
    rows = run_query(database, "centipawn loss").rows
    assert [(r["moves"], r["n"], r["loss"]) for r in rows] == [("all", 5, 20), ("1–10", 4, 25), ("11–20", 1, 0)]
    assert [r["ply"] for r in query_rows_behind(database, "move quality", 3).rows] == [20]


@pytest.mark.slow
def test_another_judge_is_another_row(database, make, judge):
    model = make.checkpoint("a")
    judge(model, PLAIN, limit="nodes=1000")
    judge(model, EDITED, limit="nodes=10", intervention=make.intervention(model))
    rows = run_query(database, "move quality", where="moves = 'all'").rows
    assert {r["limit"] for r in rows} == {"nodes=1000", "nodes=10"}
    assert {r["delta_loss"] for r in rows} == {None}  # no plain moves under the same judge


def test_it_is_drawn(database, make, judge):
    judge(make.checkpoint("a"), PLAIN)
    for name, bars in (("move quality", 1), ("centipawn loss by move", 2)):
        entry, wanted = find_plot(name)
        [axis] = plot.draw_figure(query_plot_rows(database, entry, wanted), wanted).axes
        assert len(axis.patches) == bars
        assert axis.get_ylabel() == "loss (cp)"
