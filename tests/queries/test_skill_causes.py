"""`causes of no skill effect`: readings beyond the source, the model's level, and the range that opponents leave."""

from __future__ import annotations

import pytest

from chessreg.queries import run_query
from chessreg.registry import tables

EDGES = {"lichess/rapid": [800, 1400, 1600, 1700, 1800, 2000, 2600], "lichess/blitz": [700, 1350, 1, 2, 3, 2050, 2500]}
REPORT = {"skill": {"strata": "within", "edges": EDGES}}


def read(right, truth, source, vote):
    """A test game of 8 positions: the number read correctly, its class, its source's class, and the vote."""
    return (
        8,
        right,
        {"positions": 8, "game_class": truth, "source_class": source, "vote_class": vote, "majority_class": 0},
    )


@pytest.fixture
def found(make, database):
    model = make.checkpoint("model")
    games = [read(8, 1, 1, 1), read(6, 0, 1, 0), read(2, 1, 0, 0), read(8, 0, 0, 0)]
    scores = {(0, "validation"): [(8, 2)], (1, "validation"): [(8, 7)], (1, "test"): games}
    scores[0, "test"] = [read(1, 1, 0, 0)] * 4
    real = make.probe(model, scores, label="skill", detail=REPORT, name="real")
    worse = {(1, "validation"): [(8, 4)], (1, "test"): [read(4, 1, 1, 1), *games[1:3], read(0, 0, 0, 1)]}
    make.probe(model, worse, label="skill-shuffled", layers=(1,), detail=REPORT, name="dealt")
    make.probe(model, scores, label="piece")
    asked = make.run("probe-apply", 2, checkpoint=model, spec={"probe": f"run:{real.spec_hash}"}, name="asked")
    make.add(*(
        tables.Prediction(run_id=asked.id, unit=layer, attempt_id=asked.attempt_id, item=item, name=f"skill:{layer}",
                          value=float(vote),
                          detail={"layer": layer, "label": "skill", "positions": 8, "vote_class": vote})
        for layer in (0, 1) for item, vote in enumerate([0] * 19 + [layer])
    ))  # fmt: skip
    edit = make.intervention(model, "contrastive:white_elo", (1,), -1.0)
    won, lost = {"result": "1-0"}, {"result": "0-1"}
    make.play(model, [won, lost, lost, lost], level=1, name="some")
    make.play(model, [lost] * 4, level=5, name="none")
    make.play(model, [lost] * 4, level=1, intervention=edit, name="edited")
    return run_query(database, "causes of no skill effect").rows


def test_a_probe_is_beside_its_source_and_one_of_shuffled_labels_beside_both(found):
    real, dealt = (row for row in found if row["cause"] == "1 source")
    assert (real["of"], real["layer"], real["n"], real["runs"]) == ("skill, within", 1, 4, "real")
    assert (real["share"], real["baseline"], real["minus_baseline"]) == (75.0, 50.0, 25.0)
    assert real["minus_baseline_low"] <= 25.0 <= real["minus_baseline_high"]
    assert real["labels"] == "low to 1350-1400, high from 2000-2050"
    assert (dealt["of"], dealt["share"]) == ("skill-shuffled, within", pytest.approx(37.5))


@pytest.mark.slow
def test_the_models_own_games_are_read_beside_those_of_the_test(found):
    [level] = [row for row in found if row["cause"] == "2 level"]
    assert (level["layer"], level["n"], level["share"], level["says"]) == (1, 20, 95.0, "stands")
    assert level["of"] == "games, by skill, within"
    assert (level["baseline"], level["minus_baseline"]) == (75.0, None)  # other games: no pairs exist


@pytest.mark.slow
def test_an_opponent_leaves_room_where_the_unedited_model_neither_loses_nor_wins_nearly_all(found):
    shown = {
        row["runs"]: (row["share"], row["score"], row["n"], row["says"])
        for row in found
        if row["cause"] == "3 opponent"
    }
    assert shown == {"some": (None, 0.25, 4, "does not stand"), "none": (None, 0.0, 4, "stands")}
    assert {row["adjudicated"] for row in found if row["cause"] == "3 opponent"} == {0}
    assert {row["adjudicated"] for row in found if row["cause"] != "3 opponent"} == {None}


def test_adjudicated_games_of_the_unedited_model_are_counted_and_noted(make, database):
    games = [
        {"result": "1-0"},
        *({"result": "*", "termination": "move_limit", "adjudication_cp": cp} for cp in (300, 0, None)),
    ]
    make.play(make.checkpoint("model"), games)
    result = run_query(database, "causes of no skill effect")
    [row] = result.rows
    assert (row["n"], row["adjudicated"]) == (3, 2)
    assert result.notes[0] == "row 1: unfinished games are scored by Stockfish's evaluation (column adjudicated)"
