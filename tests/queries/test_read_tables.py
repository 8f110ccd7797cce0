"""Tables of readings: by ply, by square, on other games; and of evaluated games against the training set."""

import pytest

from chessreg.queries import plot, run_query
from chessreg.queries.ask import query_plot_rows, query_rows_behind
from chessreg.queries.catalogue import find_plot
from chessreg.queries.published import compare_with_published
from chessreg.registry import tables


def right(*squares, **columns):
    """One game's score row: the number of correctly read squares of 64 at each position, and the columns that state the
    plies."""
    packed = "".join(f"{s:02x}" for s in squares)
    return (64 * len(squares), sum(squares), {"positions": len(squares), "right_at": packed, **columns})


def test_accuracy_by_ply_is_decoded_from_even_and_from_uneven_plies(database, make):
    games = [right(64, 32, ply_first=0, ply_step=2), right(48, 16, ply_first=0, ply_step=2), right(8, ply_at="003")]
    scores = {(0, "validation"): [(64, 60)], (1, "validation"): [(64, 10)], (0, "test"): games,
              (1, "test"): [right(1, 1, ply_first=0, ply_step=2)]}  # fmt: skip
    make.probe(make.checkpoint("a"), scores, name="board")
    rows = run_query(database, "square accuracy by ply").rows
    assert [(r["layer"], r["ply"], r["n_games"], r["n"]) for r in rows] == [
        (0, 0, 2, 128),
        (0, 2, 2, 128),
        (0, 3, 1, 64),
    ]
    assert [r["accuracy"] for r in rows] == [87.5, 37.5, 12.5]
    assert [r["boards"] for r in rows] == [50, 0, 0]
    assert [(r["game"], r["correct"]) for r in query_rows_behind(database, "accuracy by ply", 1).rows] == [
        (0, 64),
        (1, 48),
    ]


def test_one_line_a_model_with_its_seeds_from_the_lowest_to_the_highest(database, make):
    model = make.checkpoint("reference")
    for seed, correct in enumerate((60, 50, 40)):
        make.probe(
            model, {(layer, "test"): [(64, correct + layer)] for layer in (0, 1)}, spec={"seed": seed, "epochs": 5}
        )
    for number in (0, 1):
        twin = make.checkpoint(f"twin-{number}", source_format="random-init", parent_id=model.id)
        make.probe(twin, {(0, "test"): [(64, 32)], (1, "test"): [(64, 32)]}, spec={"seed": 0, "epochs": 5})
    entry, wanted = find_plot("karvonen figure 3")
    [axis] = plot.draw_figure(query_plot_rows(database, entry, wanted), wanted).axes
    assert [c.get_label() for c in axis.containers] == ["reference", "reference, untrained"]
    line, caps, _ = axis.containers[0].lines
    assert line.get_ydata() == pytest.approx([100 * 50 / 64, 100 * 51 / 64])
    assert [list(cap.get_ydata()) for cap in caps] == [[62.5, 100 * 41 / 64], [93.75, 100 * 61 / 64]]
    assert "whiskers of means go from the lowest to the highest run" in axis.figure.get_suptitle()
    make.probe(model, {(0, "test"): [(64, 8)]}, layers=(0,), spec={"seed": 0, "epochs": 9})  # no seed of the others
    [axis] = plot.draw_figure(query_plot_rows(database, entry, wanted), wanted).axes
    assert [c.get_label() for c in axis.containers] == [
        "reference, fit 1",
        "reference, fit 2",
        "reference, untrained, fit 1",
    ]


def test_accuracy_by_square_names_the_squares(database, make):
    run = make.probe(make.checkpoint("a"), {}, layers=(3,), name="board")
    for step, value in ((0, 0.5), (63, 0.25)):
        for split in ("test", "validation"):
            make.add(
                tables.MetricPoint(
                    run_id=run.id, unit=0, name=f"{split}_square_accuracy", step=step, value=value,
                    attempt_id=run.attempt_id,
                )
            )  # fmt: skip
    rows = run_query(database, "accuracy by square", where="split = 'test'").rows
    assert [(r["layer"], r["square"], r["accuracy"]) for r in rows] == [(3, "a1", 50), (3, "h8", 25)]


@pytest.fixture
def asked(make):
    """A skill probe whose second layer validation chooses, asked about three games of one dataset's part."""
    model = make.checkpoint("reference")
    scores = {(0, "validation"): [(8, 4)], (1, "validation"): [(8, 7)]}
    fitted = make.probe(model, scores, label="skill", name="skill")
    games = make.dataset("random openings x.pgn", part=("test", 7, 0.5, 1.0))
    cache = make.run("cache", 3, spec={"dataset": f"{games}[7,0.5,1.0]"})
    spec = {"probe": f"run:{fitted.spec_hash}", "cache": f"run:{cache.spec_hash}"}
    run = make.run("probe-apply", 2, checkpoint=model, spec=spec, name="asked")
    for layer, (lowest, classes) in enumerate([((8, 1, 0), (0, 1, 1)), ((8, 6, 5), (0, 0, 1))]):
        for item, (low, vote) in enumerate(zip(lowest, classes, strict=True)):
            detail = {"layer": layer, "positions": 8, "lowest": low, "highest": 8 - low, "vote_class": vote,
                      "mean_class": 0}  # fmt: skip
            make.add(
                tables.Prediction(
                    run_id=run.id, unit=layer, item=item, name=f"skill:{layer}", attempt_id=run.attempt_id,
                    value=float(vote), detail=detail,
                )
            )  # fmt: skip
    return run


def test_skill_of_other_games_is_told_by_position_and_by_game(database, asked):
    first, second = run_query(database, "karvonen section 4.3").rows
    told = ("probe", "games_of", "n_games", "n", "checkpoint")
    assert [first[name] for name in told] == ["skill", "random openings x.pgn:test", 3, 24, "reference"]
    assert [(r["layer"], r["chosen"]) for r in (first, second)] == [(0, False), (1, True)]
    assert [r["low"] for r in (first, second)] == pytest.approx([100 * 9 / 24, 100 * 19 / 24])
    assert [r["low_by_vote"] for r in (first, second)] == pytest.approx([100 / 3, 200 / 3])
    assert (second["low_by_mean"], second["high"]) == (100, pytest.approx(100 * 5 / 24))
    assert [r["lowest"] for r in query_rows_behind(database, "skill of other games", 2).rows] == [8, 6, 5]


def test_the_papers_share_stands_beside_the_chosen_layer_in_every_unit(database, asked):
    both = compare_with_published(database, run_query(database, "skill of other games"))
    assert [round(r["ours"], 1) for r in both.rows] == [79.2, 66.7, 100]
    assert {r["published"] for r in both.rows} == {99.4}
    assert all("n_games 3, the paper's 4000" in r["comparison"] for r in both.rows)


def test_games_are_compared_with_the_training_set_where_that_is_known(database, make):
    model = make.checkpoint("a")
    same = {"training_openings": 3, "training_games": 1}
    other = {"training_openings": 2, "training_games": 0}
    new = {"training_openings": 0, "training_games": 0}
    make.play(model, [{"detail": d} for d in (same, other, new, new)] + [{"first_try_legal": 10}], name="played")
    [row] = run_query(database, "unique games").rows
    assert (row["n"], row["unique_games"], row["compared"], row["training_games"]) == (5, 5, 4, 1)
    assert (row["unique_by_10"], row["unique_at_all"], row["first_try_legal"]) == (50, 75, 90)
    assert [r["training_openings"] for r in query_rows_behind(database, "unique games", 1).rows] == [3, 2, 0, 0, None]
