"""The papers' numbers beside ours: a difference only where checkpoint, data and protocol are the paper's."""

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from chessreg.errors import NotFoundError
from chessreg.papers import find as find_paper
from chessreg.papers.plan import Request
from chessreg.queries import run_query
from chessreg.queries.ask import rows_behind
from chessreg.queries.catalogue import find
from chessreg.queries.engine import engine_of
from chessreg.queries.published import TYPES, Need, beside, described, has_part, player, values, with_ours
from chessreg.queries.published.recorded import runs_by_row
from chessreg.queries.render import rendered
from chessreg.registry import tables
from chessreg.registry.identity import canonical_digest, uuid_from_digest


def published(database, name, **scope):
    rows = beside(database, run_query(database, name, **scope)).rows
    return {(r["table"], r["row"], r["column"]): r for r in rows}


def test_the_papers_numbers_are_all_there():
    karvonen = [v for v in values() if v.paper == "Karvonen 2024"]
    table = {(v.table, v.row, v.column): v.value for v in karvonen}
    assert len(table) == len(karvonen) == 252
    counted = Counter(v.table for v in karvonen)
    assert counted == {
        "Table 1": 8, "Figure 3": 96, "Table 2": 8, "Table 3": 12, "Table 4": 6, "Table 5": 16, "Table 7": 4,
        "Table 8": 8, "Table 9": 52, "Figure 2": 2, "Figure 2, an earlier version": 20, "Section 2.2": 5,
        "Section 3.2": 2, "Section 4.3": 3, "Appendix D": 1, "Appendix E": 3, "Table 6": 6,
    }  # fmt: skip
    assert len({(v.paper, v.table, v.row, v.column) for v in values()}) == len(values())
    davis = Counter((v.table, v.lost) for v in values() if v.query.startswith("probe ") and v.paper == "Davis 2026")
    assert davis == {
        ("Table 4", True): 4, ("Table 5", True): 5, ("Table 5", False): 1, ("compositional map", False): 43,
    }  # fmt: skip
    assert table["Table 9", "16 layer, My Bishop", "F1"] == 0.998
    assert table["Table 7", "8 layer positive (layers 5-7, scale 0.6)", "win rate"] == 24.7
    assert table["Table 1", "8 layer trained", "square"] == 99.1
    assert table["Figure 3", "8 layer, layer 6", "square"] == 99.0
    assert table["Figure 3", "16 layer, layer 12", "square"] == 99.6
    assert table["Table 2", "16 layer with intervention", "modified board"] == 92.0
    assert table["Table 3", "16 layer random", "positive"] == 43.2
    assert table["Table 8", "8 layer, layer 5", "success"] == 85.5
    assert table["Section 2.2", "8 layer", "unique by move 10"] == 100
    assert table["Section 4.3", "4,000 games from random openings, positions", "read as low skill"] == 99.4


def test_what_is_left_of_davis_table_2_is_the_loose_rate():
    table = {
        (v.query, v.row): (v.value, v.measure) for v in values() if v.paper == "Davis 2026" and v.table == "Table 2"
    }
    assert table["legal moves by phase", "our model"] == (99.9, "loose")
    assert table["perplexity", "our model"] == (None, "ppl_token")


def test_every_published_number_belongs_to_a_query_and_to_one_of_its_columns():
    for value in values():
        entry = find(value.query)
        assert value.query == entry.title
        assert value.lost or value.measure in {c.name for c in entry.columns} | set(TYPES)


def test_every_condition_of_the_papers_binds_to_its_query(database):
    engine = engine_of(database)
    for query in sorted({value.query for value in values()}):
        ours = described(engine, run_query(database, query))
        known = [value for value in values() if value.query == query and not value.lost]
        conditions = {"place"} | {has_part(value) for value in known}
        conditions |= {sql for v in known for need in (*v.needs, *v.alike) for sql in (need.holds, need.otherwise)}
        assert engine.over(ours, f"SELECT {', '.join(sorted(conditions))} FROM result").num_rows == 0


def test_an_empty_registry_shows_the_papers_numbers_alone(database):
    rows = published(database, "board intervention legality")
    line = rows["Table 2", "8 layer with intervention", "modified board"]
    assert (line["published"], line["ours"], line["difference"]) == (90.4, None, None)
    assert line["comparison"] == "not comparable: nothing of ours plays this part"


def test_lost_numbers_are_marked_lost(database):
    line = published(database, "elo")["Figure 2", "8 layer, Stockfish levels 0 to 9", "win rate"]
    assert line["published"] is None
    assert line["note"].startswith("lost: ")
    assert line["comparison"] == "not comparable: the paper's number is lost"


def play_table_3(make, *, d_model=512, tag=True, version="16", limit="nodes=100000"):
    checkpoint = make.checkpoint("reference", d_model=d_model, heads=8)
    if tag:
        make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    games = [{"result": "1-0"}, {"result": "0-1"}] * 50
    for edit in (None, make.intervention(checkpoint, layers=(3, 4, 5, 6), scale=0.1)):
        make.play(checkpoint, games, intervention=edit, opening="standard", version=version, limit=limit)


def test_notes_on_rows_name_the_column_with_their_numbers(database, make):
    play_table_3(make)
    result = run_query(database, "elo")
    assert "row 2: no control direction has played" in result.notes
    told = beside(database, result)
    assert 2 in {row["our_row"] for row in told.rows}
    assert "our row 2: no control direction has played" in told.notes
    assert not [note for note in told.notes if note.startswith(("row ", "rows "))]
    without = beside(database, result, ("Figure 2",))  # has matches without an intervention only
    assert 2 not in {row["our_row"] for row in without.rows}
    assert not [note for note in without.notes if "no control direction" in note]


def test_a_match_under_the_papers_protocol_is_compared(database, make):
    play_table_3(make)
    line = published(database, "elo")["Table 3", "8 layer standard", "none"]
    assert line["comparison"] == "comparable"
    assert (line["published"], line["ours"], line["unit"]) == (49.6, 50, "%")
    assert line["difference"] == pytest.approx(0.4)
    assert line["difference_low"] == pytest.approx(line["ours_low"] - 49.6)
    assert line["difference_low"] < 0 < line["difference_high"]
    behind = rows_behind(database, "elo", line["our_row"]).rows
    assert (len(behind), {row["intervention"] for row in behind}) == (100, {"none"})
    up = published(database, "elo")["Table 3", "8 layer standard", "positive"]
    assert {row["intervention"] for row in rows_behind(database, "elo", up["our_row"]).rows} != {"none"}
    assert (up["comparison"], up["difference"]) == ("comparable", pytest.approx(50 - 54.8))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            {"tag": False, "d_model": 192},
            "another model (layers 8, d_model 192; the paper's is 8 x 512, not tagged here)",
        ),
        ({"version": "15.1"}, "opponent stockfish:0@nodes=100000 15.1, the paper's Stockfish 16 level 0"),
        ({"limit": "nodes=1000"}, "nodes=1000 a move, the paper's 100000 nodes"),
    ],
)
def test_another_model_engine_or_limit_is_shown_but_not_compared(database, make, other, reason):
    play_table_3(make, **other)
    line = published(database, "elo")["Table 3", "8 layer standard", "none"]
    assert (line["ours"], line["difference"], line["difference_low"]) == (50, None, None)
    assert line["comparison"] == f"not comparable: {reason}"


@pytest.mark.parametrize(
    ("protocol", "mask", "reason"),
    [
        ({}, "all", None),
        ({"policy": "retry:3"}, "all", "policy retry:3, the paper's five tries, the first at temperature 0.001"),
        (
            {"detail": {"temperatures": [1.0] * 5}},
            "all",
            "policy retry:5 (temperature 1.0), the paper's five tries, the first at temperature 0.001",
        ),
        ({"move_limit": 40}, "all", "40 moves at most, the paper's 90"),
        (
            {"stop": "sprt:-0.05,0.05 low"},
            "all",
            "it could stop early, which biases scores; the paper's played all games",
        ),
        ({}, "last", "edited tokens last, the paper's all"),
    ],
)
def test_a_match_by_other_rules_is_not_compared(database, make, protocol, mask, reason):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    edit = make.intervention(checkpoint, layers=(3, 4, 5, 6), scale=0.1, token_mask=mask)
    given = {name: protocol[name] for name in ("policy", "detail") if name in protocol}
    run = make.play(
        checkpoint, [{"result": "1-0"}, {"result": "0-1"}], intervention=edit, opening="standard", version="16",
        limit="nodes=100000", **given,
    )  # fmt: skip
    with database.write() as sql:
        sql.get(tables.Match, (run.id, 0)).move_limit = protocol.get("move_limit", 90)
    if "stop" in protocol:
        make.add(tables.Statistic(run_id=run.id, unit=0, name=protocol["stop"], attempt_id=run.attempt_id, n=12))
    line = published(database, "elo")["Table 3", "8 layer standard", "positive"]
    assert line["comparison"] == (f"not comparable: {reason}" if reason else "comparable")


def dataset_of(make, run, tag, name="dataset"):
    """A dataset with this tag, which the run read as this field."""
    digest = canonical_digest(tag)
    artifact = tables.Artifact(digest=digest, kind="dataset", bytes=1, state="complete", created_at=run.created_at)
    row = tables.Dataset(
        id=uuid_from_digest(digest), identity=digest, artifact=digest, source="x", games=1, plies=1, duplicates=0,
        rejected=0, skipped=0, report={}, created_at=run.created_at,
    )  # fmt: skip
    link = tables.RunInput(run_id=run.id, name=name, reference=f"dataset:{digest}[1,0.0,0.5]", digest=digest)
    make.add(artifact, row, link)
    make.say("dataset", row.id, "tag", tag)


def test_edits_need_the_papers_model_games_states_and_edit(database, make):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    edit = make.intervention(checkpoint, "probe:piece", (3, 4, 5, 6), 1.5)
    run = make.edit(checkpoint, [(1, {"clean": (5, 2, 1.0, 0.5), "edit": (4, 5, 0.8, 1.0)})], intervention=edit)
    line = published(database, "karvonen table 2")
    reasons = line["Table 2", "8 layer with intervention", "modified board"]["comparison"]
    assert reasons == (
        "not comparable: other games than the paper's Lichess set (its test file is not public); "
        "1 states, the paper's 5000"
    )
    dataset_of(make, run, "karvonen-2024:lichess")
    line = published(database, "karvonen table 2")["Table 2", "8 layer with intervention", "modified board"]
    assert line["comparison"] == "not comparable: 1 states, the paper's 5000"
    single = make.intervention(checkpoint, "probe:piece", (4,), 1.5)
    make.edit(checkpoint, [(1, {"clean": (5, 2, 1.0, 0.5), "edit": (4, 3, 0.8, 1.0)})], intervention=single)
    table_8 = published(database, "karvonen table 2")["Table 8", "8 layer, layer 5", "success"]
    assert (table_8["published"], table_8["ours"], table_8["difference"]) == (85.5, 60, None)
    assert "states neither the scale" in table_8["comparison"]


def test_games_that_were_only_trained_on_are_not_those_that_are_looked_at(database, make):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    edit = make.intervention(checkpoint, "probe:piece", (3, 4, 5, 6), 1.5)
    run = make.edit(checkpoint, [(1, {"clean": (5, 2, 1.0, 0.5), "edit": (4, 5, 0.8, 1.0)})], intervention=edit)
    dataset_of(make, run, "karvonen-2024:lichess", "trained_on")
    dataset_of(make, run, "our-own")
    line = published(database, "karvonen table 2")["Table 2", "8 layer with intervention", "modified board"]
    assert "other games than the paper's Lichess set" in line["comparison"]


@pytest.mark.parametrize(("tested_on", "other"), [("our-own", True), ("karvonen-2024:lichess", False)])
def test_games_of_a_probe_are_those_that_it_was_tested_on(database, make, tested_on, other):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    cache = make.run("cache", 1)
    scores = {(5, "test"): [(2112, 2112)], (5, "validation"): [(2112, 2112)]}
    run = make.probe(checkpoint, scores, layers=(5,), spec={**TABLE_4, "test_cache": f"run:{cache.spec_hash}"})
    fitted_on = "our-own" if tested_on != "our-own" else "karvonen-2024:lichess"
    dataset_of(make, run, fitted_on)  # a probe run reads the games of both caches
    dataset_of(make, cache, tested_on)
    line = published(database, "karvonen table 1")["Table 1", "8 layer trained", "square"]["comparison"]
    assert ("other games than the paper's Lichess set" in line) == other


# -- the paper's own steps, and ours, against what the paper says of its edits ---------------------------------------


def steps(layers):
    found = find_paper("karvonen").steps(Request("model", "train", "test", layers, 512, "paper"))
    return {step.name: step.settings for step in found if not callable(step.settings)}


def vector(make, checkpoint, summed, **spec):
    """A run that made a vector whose sides are sums over so many positions; its reference."""
    run = make.run("vector", 1, spec=spec)
    digest = canonical_digest(["vector", str(run.id)])
    artifact = tables.Artifact(digest=digest, kind="vector", bytes=1, state="complete", created_at=run.created_at)
    row = tables.Vector(
        run_id=run.id, unit=0, artifact=digest, checkpoint_id=checkpoint.id, hook_point="blocks.3.hook_resid_post",
        layer=3, source="contrastive:white_elo", positions="dots", norm=1.0, detail={"positions_summed": summed},
    )  # fmt: skip
    make.add(artifact, row)
    return f"run:{run.spec_hash}"


def match_of(make, checkpoint, settings, reference, source):
    """Two games of a match as this step of the plan plays them; `reference`: of the vector."""
    given = settings["intervention"]
    edit = make.intervention(checkpoint, source, given["layers"], given["scale"])
    with make.database.write() as sql:
        sql.get(tables.Intervention, edit.id).input_references = [reference]
    limit = settings["opponent"].partition("@")[2]
    make.play(
        checkpoint, [{"result": "1-0"}, {"result": "0-1"}], intervention=edit, opening=settings["opening"],
        version="16", limit=limit,
    )  # fmt: skip


@pytest.mark.parametrize("layers", [8, 16])
def test_the_papers_own_matches_are_compared_with_each_of_its_cells(database, make, layers):
    checkpoint = make.checkpoint("paper", layers=layers, d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", f"karvonen-2024:{layers}-layer")
    made = {
        "@skill-paper": (vector(make, checkpoint, 8), "contrastive:white_elo"),
        "@skill-of-probe-paper": (vector(make, checkpoint, 1), "probe:skill"),
        "@skill-of-probe-high": (vector(make, checkpoint, 1, side="high"), "probe:skill"),
    }
    for name, settings in steps(layers).items():
        if name.startswith(("table-3-", "table-7-random-", "appendix-c-high-random-")) and "intervention" in settings:
            match_of(make, checkpoint, settings, *made[settings["intervention"]["vector"]])
    rows = beside(database, run_query(database, "elo"), ("Table 3", "Table 7")).rows
    alone = "not comparable: the high class alone, the paper's high minus low"
    assert sum(row["comparison"] == alone for row in rows) == 4  # both readings of two
    edited = [row for row in rows if row["ours"] is not None and row["comparison"] != alone]
    cells = {(row["table"], row["row"], row["column"]) for row in edited}
    of_model = {(v.table, v.row, v.column) for v in values() if f"{layers} layer" in v.row and v.column != "none"}
    assert cells == {cell for cell in of_model if cell[0] in ("Table 3", "Table 7")}
    assert {row["comparison"] for row in edited} == {"comparable"}
    assert len(edited) == 12  # both readings of 4 cells of Table 3 and of 2 of Table 7


def test_a_mean_stands_for_an_eighth_of_its_scale_and_other_edits_are_not_compared(database, make):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    mean = vector(make, checkpoint, 1)
    protocol = {"opponent": "stockfish:0@nodes=100000", "opening": "standard"}
    for layers, scale in (((3, 4, 5, 6), 0.8), ((3, 4, 5, 6), 0.1), ((3, 4, 5), 0.8)):
        edit = {"intervention": {"layers": layers, "scale": scale}, **protocol}
        match_of(make, checkpoint, edit, mean, "contrastive:white_elo")
    rows = beside(database, run_query(database, "elo"), ("Table 3",)).rows
    said = {row["comparison"] for row in rows if (row["row"], row["column"]) == ("8 layer standard", "positive")}
    assert said == {
        "comparable",
        "not comparable: scale 0.0125, the paper's 0.1",
        "not comparable: layers 3-5, the paper's 3-6 or 4-6",
    }


@pytest.mark.parametrize("layers", [8, 16])
def test_the_papers_own_board_edits_lack_nothing_but_states(database, make, layers):
    checkpoint = make.checkpoint("paper", layers=layers, d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", f"karvonen-2024:{layers}-layer")
    planned = {name: s for name, s in steps(layers).items() if name.startswith(("table-2-", "appendix-c-blank"))}
    games = make.dataset("lichess_test")
    make.say("dataset", uuid_from_digest(games[8:]), "tag", "karvonen-2024:lichess")
    for name, settings in planned.items():
        edit = make.intervention(checkpoint, "probe:piece", settings["layers"], settings["scale"])
        with database.write() as sql:
            sql.get(tables.Intervention, edit.id).detail = {"piece": 1.0, "blank": settings.get("blank", 0.0)}
        counts = {"clean": (5, 2, 1.0, 0.5), "edit": (4, 5, 0.8, 1.0)}
        run = make.edit(checkpoint, [(1, counts)], intervention=edit, name=name)
        make.add(tables.RunInput(run_id=run.id, name="dataset", reference=f"{games}[1,0.0,0.5]", digest=games[8:]))
    rows = beside(database, run_query(database, "karvonen table 2"), ("Table 2",)).rows
    edited = [r for r in rows if r["row"] == f"{layers} layer with intervention" and r["column"] == "modified board"]
    said = Counter(row["comparison"] for row in edited)
    blank = {text for text in said if "takes off the piece alone" in text}
    assert said["not comparable: 1 states, the paper's 5000"] == len(planned) / 2 == sum(said[text] for text in blank)


TABLE_4 = {
    "learning_rate": 0.001, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.99, "epochs": 5, "schedule": "constant",
    "normalize_activations": False,
}  # fmt: skip


@pytest.mark.parametrize(("games", "fitted"), [(10_001, True), (9_899, False)])
def test_probes_fitted_on_as_many_games_within_one_percent_are_the_papers(database, make, games, fitted):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    scores = {(5, "test"): [(2112, 2112)], (5, "validation"): [(2112, 2112)]}
    run = make.probe(checkpoint, scores, layers=(5,), spec=TABLE_4)
    with database.write() as sql:
        sql.get(tables.Probe, (run.id, 0)).train_games = games
    dataset_of(make, run, "karvonen-2024:lichess")
    line = published(database, "karvonen table 1")["Table 1", "8 layer trained", "square"]["comparison"]
    lacking = "" if fitted else f"fitted on {games} games, the paper's on 10000; "
    assert line == f"not comparable: {lacking}tested on 1 games, the paper's on 10000"
    rows = published(database, "karvonen table 4")
    said = {row: rows["Table 4", row, "value"]["comparison"] for row in ("training games", "learning rate", "beta 2")}
    assert said == {"training games": "same" if fitted else "differs", "learning rate": "same", "beta 2": "same"}


def test_settings_of_another_fit_differ_and_its_accuracy_is_not_compared(database, make):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.probe(
        checkpoint, {(5, "test"): [(64, 64)], (5, "validation"): [(64, 64)]}, layers=(5,), spec={"learning_rate": 0.01}
    )
    result = beside(database, run_query(database, "karvonen table 4"))
    line = next(row for row in result.rows if row["row"] == "learning rate")
    assert (line["comparison"], line["difference"]) == ("differs", pytest.approx(0.009))
    assert "1 of 6 settings are the same as the paper's" in result.notes
    table_1 = published(database, "karvonen table 1")["Table 1", "8 layer trained", "square"]["comparison"]
    assert "not fitted as in Table 4 (learning rate 0.01, epochs unknown)" in table_1


@pytest.mark.parametrize(
    ("label", "positions", "strata", "spec", "reason"),
    [
        ("piece", 33, None, {}, ""),
        ("piece", 22, None, {}, "; 22.0 positions a game, the paper's 33"),
        (
            "piece",
            33,
            None,
            {"schedule": "linear"},
            "; not fitted as in Table 4 (learning rate 0.001 linear, epochs 5.0)",
        ),
        ("skill", 8, "pooled", {}, ""),
        ("skill", 8, "within", {}, "; classes of skill within, the paper's pooled"),
        ("skill", 33, "pooled", {}, "; 33.0 positions a game, the paper's 8"),
    ],
)
def test_probes_of_other_positions_classes_or_steps_are_not_the_papers(
    database, make, label, positions, strata, spec, reason
):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    n = positions * (64 if label == "piece" else 1)
    detail = {"skill": {"strata": strata, "edges": {}}} if strata else {}
    run = make.probe(
        checkpoint, {(5, "test"): [(n, n)], (5, "validation"): [(n, n)]}, layers=(5,), label=label, detail=detail,
        spec={**TABLE_4, **spec},
    )  # fmt: skip
    with database.write() as sql:
        sql.get(tables.Probe, (run.id, 0)).train_games = 10_000
    dataset_of(make, run, "karvonen-2024:lichess")
    column = {"piece": "square", "skill": "Elo"}[label]
    for query, cell in (
        ("karvonen table 1", ("Table 1", "8 layer trained")),
        ("probe accuracy", ("Figure 3", "8 layer, layer 6")),
    ):
        said = published(database, query)[*cell, column]["comparison"].removeprefix("not comparable: ").split("; ")
        assert set(said) == {"tested on 1 games, the paper's on 10000", *reason.split("; ")[1:]}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"temperature": 1.0, "king": "skip"}, ""),
        ({"temperature": 0.5, "king": "skip"}, "temperature 0.5, king skip, the paper's 1.0 and no move of the king; "),
        (
            {"temperature": 1.0, "king": "include"},
            "temperature 1.0, king include, the paper's 1.0 and no move of the king; ",
        ),
    ],
)
def test_texts_that_are_drawn_otherwise_are_not_the_papers(database, make, settings, reason):
    checkpoint = make.checkpoint("paper", d_model=512, heads=8)
    make.say("checkpoint", checkpoint.id, "tag", "karvonen-2024:8-layer")
    edit = make.intervention(checkpoint, "probe:piece", (3, 4, 5, 6), 1.5)
    states = [(1, {"clean": (5, 2, 1.0, 0.5), "edit": (4, 5, 0.8, 1.0)})]
    dataset_of(make, make.edit(checkpoint, states, intervention=edit, spec=settings), "karvonen-2024:lichess")
    line = published(database, "karvonen table 2")["Table 2", "8 layer with intervention", "modified board"]
    assert line["comparison"] == f"not comparable: {reason}1 states, the paper's 5000"


def test_the_papers_layer_6_is_our_layer_5(database, make):
    checkpoint = make.checkpoint("a")
    make.probe(checkpoint, {(5, "test"): [(64, 64), (64, 32)], (5, "validation"): [(64, 64)]}, layers=(5,))
    rows = published(database, "probe accuracy")
    assert rows["Figure 3", "8 layer, layer 6", "square"]["ours"] == 75
    assert rows["Figure 3", "8 layer, layer 5", "square"]["ours"] is None
    table_1 = published(database, "karvonen table 1")
    assert table_1["Table 1", "8 layer trained", "square"]["ours"] == 75
    assert table_1["Table 1", "8 layer randomized", "square"]["ours"] is None


def test_one_tag_makes_a_model_davis_own_in_all_his_tables():
    runs = [run for value in values() if value.paper == "Davis 2026" and not value.lost for run in value.paper_runs]
    models = {run.settings["checkpoint"] for run in runs if run.settings.get("checkpoint")}
    assert models == {"tag:davis-2026:gpt"}


def test_a_row_that_lacks_what_a_reason_names_is_not_comparable_all_the_same(database):
    need = Need("layers = 12", "'layers ' || layers || ', the paper''s 12'")
    value = replace(values()[0], role="true", measure="mean", needs=(need,), alike=())
    ours = pa.table({"place": [0, 1, 2], "mean": [0.5] * 3, "checkpoint": ["m"] * 3, "layers": [12, 8, None]})
    rows = engine_of(database).over(ours, player(0, value, ours) + " ORDER BY place").to_pylist()
    assert [row["reasons"] for row in rows] == [
        "", "layers 8, the paper's 12", "not known here: what the paper's number depends on",
    ]  # fmt: skip


def test_for_reading_numbers_without_ours_are_left_out_and_counted(database, make):
    assert len(with_ours(beside(database, run_query(database, "elo")))) == 45
    play_table_3(make)
    result = with_ours(beside(database, run_query(database, "elo")))
    assert [row["table"] for row in result.rows] == [
        *["Table 3"] * 2, "Figure 2, an earlier version", *["Section 2.2"] * 2,
    ]  # fmt: skip
    assert "40 published numbers have nothing of ours beside them" in result.notes[-1]
    text = rendered(result, "table")
    assert text.startswith("paper Karvonen 2024; unit %; model reference\n")
    assert "49.6  50.0 [4" in text


def test_a_query_without_published_numbers_says_so(database):
    with pytest.raises(NotFoundError, match="no published numbers"):
        beside(database, run_query(database, "games by termination"))


def test_the_runs_behind_each_row_can_be_asked_for_whatever_the_query(database):
    for query in sorted({value.query for value in values()}):
        assert runs_by_row(database, run_query(database, query)) == []
