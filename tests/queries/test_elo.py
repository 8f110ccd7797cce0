"""`elo by intervention`: counts, pairs, and no pooling."""

import math
from itertools import pairwise

import pytest

from chessreg.errors import BadInputError
from chessreg.queries import run_query, run_sql
from chessreg.queries.ask import query_rows_behind
from chessreg.queries.summary import FEW_CLUSTERS_NOTE

from ..fixtures.karvonen.clusters import TABLES as CLUSTERS

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
    assert author["score"] == pytest.approx((1 + 0 + 1 + 0 + 0) / 5)
    assert (paper["unscored"], author["unscored"]) == (0, 2)  # draws, and exactly 100 centipawns, are left out
    assert (author["w"], author["d"], author["l"], author["scoring"]) == (2, 0, 3, "author-2024")
    for title in ("elo by intervention", "wins by level"):
        result = run_query(database, title)
        assert result.notes == [
            "row 1: most games are unfinished and scored by Stockfish's evaluation (column adjudicated): more may end "
            "with a higher --move-limit, as far as the model's context reaches, or, if the model scores above 0.2, "
            "against a stronger opponent (chessreg engine ladder)"
        ]
        assert [row["adjudicated"] for row in result.rows] == [4]


def test_the_advice_on_unfinished_games_is_the_same_for_every_score(database, make):
    make.play(make.checkpoint("a"), [stopped(-500)] * 9, name="weak")
    make.play(make.checkpoint("b"), [stopped(500)] * 9, name="strong")
    for title in ("elo by intervention", "wins by level"):
        notes = {note.partition(": ")[2].partition(";")[0] for note in run_query(database, title).notes}
        advice = [note for note in notes if "unfinished" in note]
        assert len(advice) == 1, notes
        assert "if the model scores above 0.2" in advice[0], title


def test_rows_of_one_color_name_the_table_that_pools_both(database, make):
    make.play(make.checkpoint("a"), [WON, LOST] * 4, color="both")
    rows = ask(database)
    assert [(row["color"], row["n"]) for row in rows] == [("black", 4), ("white", 4)]
    pooled = 'each color has a row, and both are pooled in: chessreg query "wins by level"'
    assert {row["warning"] for row in rows} == {pooled}
    [row] = run_query(database, "wins by level").rows
    assert (row["color"], row["n"]) == ("both", 8)


def test_the_table_names_the_vector_of_an_edit_and_the_seed_of_a_random_one(database, make):
    checkpoint = make.checkpoint("m")
    calm = make.vector(checkpoint, "user:calm")
    make.say("run", calm.id, "name", "calm-run")
    drawn = make.vector(checkpoint, "random:user:calm", of=calm, seed=7)
    for name, vector in ("steered", calm), ("control", drawn):
        edit = make.intervention(checkpoint, vector.source, vector=vector)
        make.play(checkpoint, [WON, LOST], name=name, intervention=edit)
    rows = {row["runs"]: row["vector"] for row in ask(database)}
    assert rows == {"steered": "calm-run", "control": f"{drawn.id.hex[-6:]} (seed 7)"}
    games = run_sql(database, "SELECT DISTINCT run FROM games ORDER BY run").table
    assert games["run"].to_pylist() == ["control", "steered"]


def test_rows_of_random_directions_are_in_the_order_of_their_seeds(database, make):
    checkpoint = make.checkpoint("m")
    skill = make.vector(checkpoint, "contrastive:skill")
    make.play(checkpoint, [DRAWN, LOST], name="plain")
    for seed in (10, 2, 7, 1, 33, 4):
        drawn = make.vector(checkpoint, "random:contrastive:skill", of=skill, seed=seed)
        edit = make.intervention(checkpoint, drawn.source, vector=drawn)
        make.play(checkpoint, [DRAWN, LOST], name=f"random-{seed}", intervention=edit)
    expected = ["plain", *(f"random-{seed}" for seed in (1, 2, 4, 7, 10, 33))]
    for title in ("elo by intervention", "wins by level", "games by termination", "unique games"):
        assert list(dict.fromkeys(row["runs"] for row in run_query(database, title).rows)) == expected, title
    expected_seeds = [{"vector_seed": seed} for seed in (1, 2, 4, 7, 10, 33)]
    asked = "SELECT DISTINCT vector_seed FROM arms WHERE vector_seed IS NOT NULL ORDER BY vector_seed"
    assert run_sql(database, asked).rows == expected_seeds


def test_engines_that_evaluated_games_of_one_row_or_of_a_comparison_are_noted(database, make):
    checkpoint = make.checkpoint("a")
    edit = make.intervention(checkpoint)
    evaluators = [{"evaluator_engine_ids": [make.engine(version).hex]} for version in ("15.1", "17.1")]
    games = [WON, stopped(250)]
    make.play(checkpoint, games, name="old")  # does not record its evaluator
    make.play(checkpoint, games, name="one", detail=evaluators[0])
    make.play(checkpoint, games, name="edited", detail=evaluators[1], intervention=edit)
    make.play(checkpoint, [WON, LOST], name="decided", detail=evaluators[0], level=3)
    make.play(checkpoint, [WON, LOST], name="decided-too", detail=evaluators[1], level=3)
    both, text = "Stockfish 15.1, Stockfish 17.1", "different engines evaluated positions of these games"
    assert ask(database, run=["old"])[0]["evaluator"] is None
    plain, edited, decided = ask(database)
    assert [row["evaluator"] for row in (plain, edited, decided)] == ["Stockfish 15.1", "Stockfish 17.1", both]
    assert text not in plain["warning"]
    assert f"{text} and of those compared with them: {both}" in edited["warning"]
    assert decided["warning"] is None  # no game was scored by an evaluation
    make.play(checkpoint, games, name="two", detail=evaluators[1])
    assert f"{text}: {both}" in ask(database)[0]["warning"]
    assert f"{text}: {both}" in run_query(database, "wins by level").rows[0]["warning"]
    assert f"{text}: {both}" in run_query(database, "causes of no skill effect").rows[0]["warning"]
    ends = {
        (row["opponent"], row["intervention"], row["termination"]): (row["evaluator"], row["warning"])
        for row in run_query(database, "games by termination").rows
        if row["termination"] == "move_limit" or row["warning"] is not None
    }
    assert [*ends.values()] == [(both, f"{text}: {both}"), ("Stockfish 17.1", None)]


def test_that_no_game_was_drawn_or_no_draw_evaluated_is_told_where_draws_are_asked_for(database, make):
    make.play(make.checkpoint("a"), [WON, LOST], name="decided")
    make.play(make.checkpoint("b"), [WON, DRAWN], name="drawn")
    assert run_query(database, "draws by evaluation", run=["decided"]).notes == ["none of 2 games was drawn"]
    [note] = run_query(database, "draws by evaluation", run=["drawn"]).notes
    assert note.startswith("drawn games: 1, none of them evaluated")


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


@pytest.mark.slow
def test_an_unrelated_match_moves_no_interval(database, make):
    checkpoint = make.checkpoint("m")
    edit = make.intervention(checkpoint, scale=0.1)
    make.play(checkpoint, [WON, LOST, DRAWN] * 20)
    make.play(checkpoint, [LOST, LOST, DRAWN, WON] * 15, intervention=edit)

    def cells():
        ends = ("score", "delta_score", "delta_elo", "score_played")
        rows = [row for row in ask(database) if row["checkpoint"] == "m" and row["level"] == 0]
        return [{name + end: row[name + end] for name in ends for end in ("", "_low", "_high")} for row in rows]

    before = cells()
    make.play(make.checkpoint("a"), [WON] * 7)  # comes first in the table
    make.play(checkpoint, [WON, LOST] * 30, level=3)
    other = make.intervention(checkpoint, scale=-3)
    make.play(checkpoint, [LOST, WON, DRAWN] * 20, intervention=other)  # on the same openings
    after = cells()
    assert [row for row in after if row in before] == before
    assert len(after) == len(before) + 1


def test_compare_says_what_the_query_says(database, make):
    from chessreg.queries.compare import compare_runs

    checkpoint = make.checkpoint("m")
    edit = make.intervention(checkpoint, scale=-2)
    make.play(checkpoint, [WON, LOST, DRAWN] * 20, name="plain")
    make.play(checkpoint, [LOST, LOST, DRAWN, WON] * 15, intervention=edit, name="edited")
    metric = next(m for m in compare_runs(database, ["plain", "edited"]).metrics if m.name == "score")
    for row, value in zip(ask(database), metric.values, strict=True):
        assert tuple(value) == pytest.approx((row["score"], row["score_low"], row["score_high"]), abs=1e-6)
    ends = tuple(ask(database)[1]["delta_score" + end] for end in ("", "_low", "_high"))
    assert tuple(metric.differences[1]) == pytest.approx(ends, abs=1e-6)


@pytest.fixture
def controlled(database, make):
    """A model, an edit of scale -4, and two random and two shuffled directions in its place, as names of play runs."""
    checkpoint = make.checkpoint("m")
    skill = make.vector(checkpoint, "contrastive:white_elo")
    make.play(checkpoint, [WON] * 60, name="plain")

    def arm(name, vector, wins, scale=-4.0, **options):
        edit = make.intervention(checkpoint, vector.source, scale=scale, vector=vector)
        games = [WON if n % 10 < wins else LOST for n in range(60)]
        return make.play(checkpoint, games, intervention=edit, name=name, **options)

    arm("negative", skill, 4)
    for draw, (wins, lost) in enumerate([(9, 4), (7, 6)]):
        arm(f"random-{draw}", make.vector(checkpoint, "random:contrastive:white_elo", of=skill), wins)
        arm(f"shuffled-{draw}", make.vector(checkpoint, "shuffled:white_elo", of=skill), lost)
    return arm, skill, checkpoint


def edited(database, **options):
    [row] = [r for r in ask(database, **options) if r["intervention"] == "contrastive:white_elo L3-5 x-4"]
    return row


@pytest.mark.slow
def test_random_and_shuffled_controls_are_told_apart_over_their_draws(database, controlled):
    row = edited(database)
    assert (row["random_draws"], row["shuffled_draws"]) == (2, 2)
    assert row["minus_random"] == pytest.approx(0.4 - 0.8)
    assert row["minus_shuffled"] == pytest.approx(0.4 - 0.5)
    assert row["minus_shuffled_high"] - row["minus_shuffled_low"] >= 0.2  # the two draws are 0.4 and 0.6
    assert all(r["minus_random"] is None for r in ask(database) if r["intervention"] != row["intervention"])
    one = edited(database, run=["plain", "negative", "random-0", "shuffled-0"])
    assert (one["minus_random"], one["random_draws"]) == (pytest.approx(0.4 - 0.9), 1)


@pytest.mark.slow
def test_a_control_stands_for_one_vector_at_one_scale_and_sign(database, make, controlled):
    before = edited(database)
    arm, _, checkpoint = controlled
    arm("other-sign", make.vector(checkpoint, "random:contrastive:white_elo", of=controlled[1]), 1, scale=4.0)
    other = make.vector(checkpoint, "contrastive:black_elo")
    arm("of-another", make.vector(checkpoint, "random:contrastive:black_elo", of=other), 1)
    arm("against-another", make.vector(checkpoint, "shuffled:white_elo", of=controlled[1]), 1, level=5)
    assert edited(database) == before


def test_intervals_from_fewer_than_20_games_are_noted_once(database, make):
    checkpoint = make.checkpoint("m")
    edit = make.intervention(checkpoint)
    for level, games in enumerate((19, 20, 8, 1)):
        make.play(checkpoint, [WON, LOST] * 10, level=level, name=f"plain-{games}")
        results = [WON if n % 3 else LOST for n in range(games)]
        make.play(checkpoint, results, level=level, intervention=edit, name=f"edited-{games}")

    def is_noted(**options):
        notes = run_query(database, "elo by intervention", **options).notes
        return [note for note in notes if "fewer than 20 games" in note] == [FEW_CLUSTERS_NOTE]

    assert is_noted()
    noted = [is_noted(run=[f"plain-{games}", f"edited-{games}"]) for games in (19, 20, 8)]
    assert noted == [True, False, True]
    assert not is_noted(run=["edited-8"])  # the score of single games has an interval that is wide enough
    assert not is_noted(where="n > 19")
    assert "few_clusters" not in run_query(database, "elo by intervention").columns


def test_an_edit_without_room_to_show_is_warned_of(database, make):
    checkpoint = make.checkpoint("m")
    for level, wins in enumerate((19, 10)):  # .95 and .5 of the points
        games = [WON] * wins + [LOST] * (20 - wins)
        make.play(checkpoint, games, level=level)
        make.play(checkpoint, games, level=level, intervention=make.intervention(checkpoint))
    found = run_query(database, "elo by intervention")
    assert ["little room" in (row["warning"] or "") for row in found.rows] == [False, True, False, False]
    room = "the unedited model scores above 0.8: an edit that strengthens it has little room to show"
    assert found.notes[0] == f"row 2: {room}"


NO_CONTROL = "no control direction has played: --intervention.control random plays one"


def warned(database, **options):
    """The warnings of the edit, without the one that its direction has not played with the opposite sign."""
    told = edited(database, **options)["warning"].split("; ")
    if not options:
        assert told.pop() == (
            "the same direction has not played with the opposite sign: repeat it with the negated scale"
        )
    return told


@pytest.mark.slow
def test_an_edit_is_warned_of_what_has_not_played_beside_it(database, make, controlled):
    arm, skill, checkpoint = controlled
    few_random = (
        "fewer than 5 random directions have played, so their interval is too narrow: "
        "--intervention.control random --intervention.control-seed N plays one more"
    )
    few_shuffled = (
        "fewer than 5 directions of shuffled labels have played, so their interval is too narrow: "
        "run vector --source shuffled --of VECTOR --seed N makes one more"
    )
    filtered = "no random direction is in this selection; the table without filters has those that have played"
    assert warned(database, run=["negative"]) == ["the unedited model is not in this selection", filtered]
    room = "the unedited model scores above 0.8: an edit that strengthens it has little room to show"
    assert warned(database) == [room, few_random, few_shuffled]
    assert warned(database, checkpoint=["m"], partial=True)[:-1] == [room, few_random, few_shuffled]
    assert warned(database, run=["plain", "negative", "random-0"]) == [
        room, "no direction of shuffled labels is in this selection",
        "fewer than 5 random directions are in this selection, so their interval is too narrow",
    ]  # fmt: skip
    assert warned(database, run=["plain", "negative", "shuffled-0"]) == [
        room, filtered,
        "fewer than 5 directions of shuffled labels are in this selection, so their interval is too narrow",
    ]  # fmt: skip
    for draw in range(2, 5):
        arm(f"random-{draw}", make.vector(checkpoint, "random:contrastive:white_elo", of=skill), 5)
        arm(f"shuffled-{draw}", make.vector(checkpoint, "shuffled:white_elo", of=skill), 5)
    assert warned(database) == [room]
    arm("positive", skill, 0, scale=4.0)
    assert edited(database)["warning"] == room
    rows = {row["runs"]: row["warning"] for row in run_query(database, "elo by intervention").rows}
    assert rows["positive"] == f"{room}; every game was lost, so Elo has only a bound; {NO_CONTROL}"
    assert {rows[name] for name in rows if name.startswith(("random", "shuffled"))} == {room}


def test_a_vector_without_labels_needs_no_control_of_shuffled_labels(database, make):
    checkpoint = make.checkpoint("m")
    own = make.vector(checkpoint, "user:calm")
    for name, vector in ("steered", own), ("random", make.vector(checkpoint, "random:user:calm", of=own)):
        edit = make.intervention(checkpoint, vector.source, vector=vector)
        make.play(checkpoint, [WON, LOST] * 10, intervention=edit, name=name)
    rows = {row["runs"]: row["warning"] for row in run_query(database, "elo by intervention").rows}
    assert "fewer than 5 random directions" in rows["steered"]
    assert "shuffled" not in rows["steered"]


@pytest.mark.slow
def test_a_narrow_table_keeps_the_differences_from_the_controls(database, controlled):
    from chessreg.queries.render import format_table

    result = run_query(database, "elo by intervention", run=["plain", "negative", "random-0"])
    *_, hidden = table = format_table(result, 100).splitlines()
    assert {"delta", "elo"} <= set(" ".join(table[:3]).split())
    assert "-0.500 [" in "".join(table)  # minus the random direction
    assert hidden.startswith("not shown:")
    assert "delta_" not in hidden.replace("delta_elo", "")
    assert "minus_" not in hidden
    assert " score," in hidden


@pytest.mark.slow
def test_compare_shows_an_edit_beyond_the_controls_of_the_table_with_its_notes(database, controlled):
    from chessreg.queries.compare import compare_runs

    found = compare_runs(database, ["plain", "negative"])
    row = edited(database)
    for control in ("random", "shuffled"):
        metric = next(m for m in found.metrics if m.name == f"score, minus 2 {control} directions")
        ends = tuple(row[f"minus_{control}{end}"] for end in ("", "_low", "_high"))
        assert [tuple(v) for v in metric.values] == [(None,) * 3, ends]
    assert found.notes == [f"negative: {text}" for text in row["warning"].split("; ")]
    assert "negative: fewer than 5 random directions" in "".join(found.notes)


def test_compare_prints_the_notes_of_the_table_and_pools_no_replicate(database, make):
    from chessreg.queries.compare import compare_runs

    checkpoint = make.checkpoint("m")
    skill = make.vector(checkpoint, "contrastive:skill")
    drawn = make.vector(checkpoint, "random:contrastive:skill", of=skill)
    make.play(checkpoint, [WON, stopped(250)] * 10, name="plain")
    for name, vector in ("edited", skill), ("replicate", skill), ("random", drawn):
        edit = make.intervention(checkpoint, vector.source, vector=vector)
        make.play(checkpoint, [WON, LOST] * 10 if name != "random" else [WON, WON, LOST, WON] * 5, intervention=edit,
                  name=name)  # fmt: skip
    found = compare_runs(database, ["plain", "edited", "replicate"])
    [minus] = [metric for metric in found.metrics if "direction" in metric.name]
    assert minus.name == "score, minus 1 random direction"
    assert [value.value for value in minus.values] == [None, -0.25, -0.25]
    assert "plain: unfinished games are scored by Stockfish's evaluation (column adjudicated)" in found.notes
    assert sum(note.startswith("edited, replicate: fewer than 5 random directions") for note in found.notes) == 1
    few = compare_runs(database, ["edited", make.play(checkpoint, [WON, LOST] * 4, level=3, name="short").id.hex])
    assert few.notes[0] == FEW_CLUSTERS_NOTE
    both = make.play(checkpoint, [WON, LOST] * 20, color="both", level=5, name="both")
    assert compare_runs(database, ["plain", both.id.hex]).notes == [
        "plain: unfinished games are scored by Stockfish's evaluation (column adjudicated)"
    ]


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
    make.play(checkpoint, apart, level=2, opening="standard")
    widths = [row["score_high"] - row["score_low"] for row in ask(database)]
    assert widths[1] > 2 * widths[0]
    assert widths[2] == pytest.approx(widths[0], rel=0.1)  # from the start position every game is its own


def test_a_ladder_is_paired_with_a_match_against_one_of_its_opponents(database, make):
    """Also from the standard position, where a rung's games are counted from its first."""
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [LOST] * 4 + [WON, LOST] * 2, ladder=(0, 1), opening="standard")
    edit = make.intervention(checkpoint)
    make.play(checkpoint, [LOST] * 4, intervention=edit, level=1, opening="standard")
    assert [(row["level"], row["delta_score"]) for row in ask(database)] == [(0, None), (1, None), (1, -0.5)]


@pytest.mark.parametrize(("opening", "width"), [("random:20", 14), ("standard", 31)])
def test_both_colors_of_an_opening_are_one_cluster_and_games_from_the_start_are_not(database, make, opening, width):
    """White wins both games of all pairs but two, so that the model wins one of them."""
    games = [WON, WON] * 18 + [WON, LOST] + [LOST, WON]
    make.play(make.checkpoint("a"), games, color="both", opening=opening)
    [row] = run_query(database, "wins by level").rows
    assert (row["color"], row["n"], row["win"]) == ("both", 40, 50)
    assert row["win_high"] - row["win_low"] == pytest.approx(width, rel=0.3)


def test_imported_games_that_begin_randomly_share_no_opening_with_those_of_another_run(database, make):
    """Row n of two files: their random plies are not recorded."""
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [WON, LOST] * 20, kind="imported-games", name="one")
    make.play(checkpoint, [LOST, WON] * 18 + [WON, LOST] * 2, kind="imported-games", name="other")
    [row] = ask(database)
    assert (row["n"], row["score"]) == (80, 0.5)
    assert row["score_high"] - row["score_low"] == pytest.approx(2 * 1.96 * 0.5 / 80**0.5, rel=0.1)


def test_nothing_is_pooled_that_differs(database, make):
    checkpoint = make.checkpoint("a")
    common = {"level": 0, "limit": "nodes=1000", "version": "15.1", "color": "white", "opening": "standard"}
    make.play(checkpoint, [WON] * 2, **common)
    for other in ({"level": 1}, {"limit": "time=0.1"}, {"version": "16"}, {"color": "black"}, {"opening": "random:20"},
                  {"policy": "legal"}):  # fmt: skip
        make.play(checkpoint, [WON] * 2, **(common | other))
    make.play(checkpoint, [WON] * 2, intervention=make.intervention(checkpoint, scale=2), **common)
    make.play(checkpoint, [WON] * 2, intervention=make.intervention(checkpoint, scale=-2, token_mask="last"), **common)
    rows = ask(database)
    assert [row["n"] for row in rows] == [2] * 9
    assert [r["intervention"] for r in rows if r["intervention"] != "none"] == [
        "contrastive:skill L3-5 x-2 (last token)",
        "contrastive:skill L3-5 x2",
    ]


@pytest.mark.slow
def test_games_under_other_rules_are_apart_and_say_which(database, make):
    checkpoint = make.checkpoint("m")
    usual = {"temperatures": [0.001, 0.201, 0.401, 0.5, 0.5], "context": "adjudicate", "resignation": "counts",
             "precision": "float32", "adjudication": "nodes=100000", "adjudicate_at": 0, "move_tokens": 0}  # fmt: skip
    make.play(checkpoint, [WON] * 4, detail=usual)
    make.play(checkpoint, [LOST] * 2, detail=usual | {"temperatures": [0.7] * 5, "context": "crop"})
    make.play(checkpoint, [WON] * 3, policy="legal", detail=usual | {"temperatures": [1.0]})
    make.play(checkpoint, [WON] * 2, policy="legal", detail=usual | {"temperatures": [0.3], "adjudicate_at": 90})
    rules = [None, None, "temperature 0.3, evaluated at move 90", "temperature 0.7, context crop"]
    for title in ("elo by intervention", "games by termination", "unique games"):
        found = sorted(run_query(database, title).rows, key=lambda row: row["rules"] or "")
        assert [row["rules"] for row in found] == rules
    assert [row["n"] for row in sorted(ask(database), key=lambda row: row["rules"] or "")][2:] == [2, 2]


def test_runs_of_one_protocol_and_edit_are_one_row_and_named(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [WON] * 2, name="first", host="box1")
    make.play(checkpoint, [LOST] * 3, name="again", host="box2", opening_seed=1)
    [row] = ask(database)
    assert (row["n"], row["planned"], row["runs"], row["machines"]) == (5, 5, "again, first", "box1, box2")


@pytest.mark.slow
def test_partial_runs_are_shown_on_request_with_what_was_planned(database, make):
    make.play(make.checkpoint("a"), [WON] * 3, planned=20, name="half")
    result = run_query(database, "elo")
    assert len(result) == 0
    assert result.notes == [
        "nothing to show yet; chessreg run play produces the rows of this table",
        "left out of the runs: 1 not complete (--partial shows them)",
    ]
    [row] = ask(database, partial=True)
    assert (row["n"], row["planned"]) == (3, 20)


def test_the_rows_behind_a_cell_are_its_games(database, make):
    checkpoint = make.checkpoint("a")
    make.play(checkpoint, [WON] * 2, name="plain")
    run = make.play(checkpoint, [LOST, DRAWN, WON], intervention=make.intervention(checkpoint), name="edited")
    behind = query_rows_behind(database, "elo", 2)
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


def test_a_control_in_the_reference_result_has_the_number_of_its_step(make, database):
    """Not its place among the complete ones, which changes when another one completes."""
    checkpoint = make.checkpoint("model")
    skill = make.vector(checkpoint, "contrastive:skill")
    for seed in (5, 2):
        control = make.vector(checkpoint, "random:contrastive:skill", of=skill, seed=seed)
        intervention = make.intervention(checkpoint, control.source, vector=control)
        make.play(checkpoint, [{}], intervention=intervention, name=f"random-{seed}")
    make.play(checkpoint, [{}], intervention=make.intervention(checkpoint, vector=skill), name="skill")
    rows = run_sql(database, CLUSTERS["games"]).rows
    assert sorted((row["source"], row["draw"]) for row in rows) == [("contrastive", 0), ("random", 2), ("random", 5)]


def test_rows_are_sorted_with_their_notes_and_the_games_behind_them(database, make):
    model = make.checkpoint("model")
    make.play(model, [{"result": "1-0"}], level=1, name="won")
    make.play(model, [stopped(-900)], level=2, name="lost")
    found = run_query(database, "elo by intervention", sort="score")
    assert [row["runs"] for row in found.rows] == ["lost", "won"]
    assert found.notes[0].startswith("row 1: most games are unfinished")
    assert run_query(database, "elo by intervention", sort="-score").rows[0]["runs"] == "won"
    [behind] = query_rows_behind(database, "elo by intervention", 1, sort="score").rows
    assert behind["run"] == "lost"
    with pytest.raises(BadInputError, match="column 'scroe' does not exist") as refused:
        run_query(database, "elo by intervention", sort="-scroe")
    assert refused.value.hint == "did you mean score?"
