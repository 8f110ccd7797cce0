"""The papers' numbers next to ours: a difference only if checkpoint, data and protocol are the paper's."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from chessreg.errors import NotFoundError
from chessreg.papers import find_paper
from chessreg.papers.plan import Request
from chessreg.queries import run_query
from chessreg.queries.ask import query_rows_behind
from chessreg.queries.catalogue import find_entry
from chessreg.queries.engine import open_shared_engine
from chessreg.queries.published import (
    TYPES,
    RowCondition,
    compare_with_published,
    describe_rows,
    drop_unmatched,
    has_part,
    list_published_values,
    select_matching_rows,
)
from chessreg.queries.published.recorded import read_runs_by_row
from chessreg.queries.render import render_result
from chessreg.registry import tables
from chessreg.registry.identity import hash_canonical_json, make_uuid
from tests.quick import quick_first

DESCRIBED = next(value.described_runs for value in list_published_values() if value.paper == "Karvonen 2024")
START = datetime(2026, 1, 1, tzinfo=UTC)


def published(database, name, **scope):
    rows = compare_with_published(database, run_query(database, name, **scope)).rows
    return {(r["table"], r["row"], r["column"]): r for r in rows}


def comparisons(database, query, *cell):
    """How each of our rows compares with one cell of the paper."""
    rows = compare_with_published(database, run_query(database, query)).rows
    return {row["comparison"] for row in rows if (row["table"], row["row"], row["column"]) == cell}


def test_the_papers_numbers_are_all_there():
    karvonen = [v for v in list_published_values() if v.paper == "Karvonen 2024"]
    table = {(v.table, v.row, v.column): v.value for v in karvonen}
    assert len(table) == len(karvonen) == 252
    counted = Counter(v.table for v in karvonen)
    assert counted == {
        "Table 1": 8, "Figure 3": 96, "Table 2": 8, "Table 3": 12, "Table 4": 6, "Table 5": 16, "Table 7": 4,
        "Table 8": 8, "Table 9": 52, "Figure 2": 2, "Figure 2, an earlier version": 20, "Section 2.2": 5,
        "Section 3.2": 2, "Section 4.3": 3, "Appendix D": 1, "Appendix E": 3, "Table 6": 6,
    }  # fmt: skip
    assert len({(v.paper, v.table, v.row, v.column) for v in list_published_values()}) == len(list_published_values())
    davis = Counter(
        (v.table, v.is_lost)
        for v in list_published_values()
        if v.query.startswith("probe ") and v.paper == "Davis 2026"
    )
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
        (v.query, v.row): (v.value, v.measure)
        for v in list_published_values()
        if v.paper == "Davis 2026" and v.table == "Table 2"
    }
    assert table["legal moves by phase", "our model"] == (99.9, "loose")
    assert table["perplexity", "our model"] == (None, "ppl_token")


def test_every_published_number_belongs_to_a_query_and_to_one_of_its_columns():
    for value in list_published_values():
        entry = find_entry(value.query)
        assert value.query == entry.title
        assert value.is_lost or value.measure in {c.name for c in entry.columns} | set(TYPES)


def test_every_condition_of_the_papers_binds_to_its_query_and_the_runs_behind_its_rows_can_be_asked_for(database):
    engine = open_shared_engine(database)
    for query in sorted({value.query for value in list_published_values()}):
        answer = run_query(database, query)
        assert read_runs_by_row(database, answer) == []
        ours = describe_rows(engine, answer)
        known = [value for value in list_published_values() if value.query == query and not value.is_lost]
        conditions = {"place"} | {has_part(value) for value in known}
        conditions |= {sql for v in known for each in (*v.conditions, *v.alike) for sql in (each.holds, each.otherwise)}
        assert engine.query_arrow_table(ours, f"SELECT {', '.join(sorted(conditions))} FROM result").num_rows == 0


def test_an_empty_registry_shows_the_papers_numbers_alone(database):
    rows = published(database, "board intervention legality")
    line = rows["Table 2", "8 layer with intervention", "modified board"]
    assert (line["published"], line["ours"], line["difference"]) == (90.4, None, None)
    assert line["comparison"] == "not comparable: no row of ours matches"


def test_lost_numbers_are_marked_lost(database):
    line = published(database, "elo")["Figure 2", "8 layer, Stockfish levels 0 to 9", "win rate"]
    assert line["published"] is None
    assert line["note"].startswith("lost: ")
    assert line["comparison"] == "not comparable: the paper's number is lost"


class Karvonen:
    """The paper's own runs in a registry: a tagged model, tagged games, and runs with the described settings."""

    def __init__(self, make, layers=8, *, tag=True):
        self.make, self.layers = make, layers
        self.checkpoint = make.checkpoint("reference", layers=layers, d_model=512, heads=8)
        self.dataset = make.dataset("lichess")
        if tag:
            make.say("checkpoint", self.checkpoint.id, "tag", f"karvonen-2024:{layers}-layer")
        make.say("dataset", make_uuid(self.dataset.removeprefix("dataset:")), "tag", "karvonen-2024:lichess")

    def run(self, name, **changes):
        """Keywords of a run for `make`: the described run of this model, with other values of some settings."""
        paper = DESCRIBED.run(f"{name}-{self.layers}")
        spec = {**paper.settings, **changes}
        return {"spec": self.with_references(spec), "kind_version": paper.version}

    def with_references(self, value):
        if isinstance(value, dict):
            return {key: self.with_references(each) for key, each in value.items()}
        form, _, name = str(value).partition(":")
        if form == "tag":
            return f"sha256:{self.checkpoint.artifact}"
        if form == "part":
            return f"{self.dataset}[1,0.0,0.5]"
        return self.reference(name) if form == "run" and "-" in name else value

    def reference(self, name, **changes):
        """A run with the settings of a described one, as another run names it."""
        paper = DESCRIBED.run(name)
        run = self.make.run(
            paper.kind, 1, kind_version=paper.version, spec=self.with_references({**paper.settings, **changes})
        )
        return f"run:{run.spec_hash}"

    def play(self, version="16", limit="nodes=100000", opening="standard", **changes):
        """A match without an edit, of which 100 games are here."""
        results = [{"result": "1-0"}, {"result": "0-1"}] * 50
        run = self.run("match", opening=opening, **changes)
        return self.make.play(self.checkpoint, results, opening=opening, version=version, limit=limit, **run)

    def edited(
        self, layers=(3, 4, 5, 6), scale=0.1, *, source="contrastive:white_elo", name="contrastive",
        opening="standard", vector=None, **changes,
    ):  # fmt: skip
        """Two games of a match with an edit of skill."""
        described_run = self.run(name, opening=opening)
        settings = described_run["spec"]["intervention"] | {"layers": list(layers), "scale": scale} | changes
        settings["vector"] = vector or settings["vector"]
        edit = self.make.intervention(self.checkpoint, source, layers, scale, token_mask=settings["token_mask"])
        with self.make.database.write() as sql:
            sql.get(tables.Intervention, edit.id).input_references = [settings["vector"]]
        described_run["spec"]["intervention"] = settings
        return self.make.play(
            self.checkpoint, [{"result": "1-0"}, {"result": "0-1"}], intervention=edit, opening=opening, version="16",
            limit="nodes=100000", **described_run,
        )  # fmt: skip

    def vector(self, name, summed, **changes):
        """A vector whose sides are sums over this many positions; its reference."""
        reference = self.reference(f"{name}-{self.layers}", **changes)
        id = make_uuid(reference.removeprefix("run:"))
        digest = hash_canonical_json(["vector", str(id)])
        artifact = tables.Artifact(digest=digest, kind="vector", bytes=1, state="complete", created_at=START)
        row = tables.VectorRecord(
            run_id=id, unit=0, artifact=digest, checkpoint_id=self.checkpoint.id, layer=3,
            hook_point="blocks.3.hook_resid_post", source="x", positions="dots", norm=1.0,
            detail={"positions_summed": summed},
        )  # fmt: skip
        self.make.add(artifact, row)
        return reference

    def edit(self, layers=(3, 4, 5, 6), scale=1.5, **changes):
        """A run of board edits of one state."""
        edit = self.make.intervention(self.checkpoint, "probe:piece", layers, scale)
        states = [(1, {"clean": (5, 2, 1.0, 0.5), "edit": (4, 5, 0.8, 1.0)})]
        run = self.run("edit", layers=list(layers), scale=scale, **changes)
        return self.make.edit(self.checkpoint, states, intervention=edit, **run)

    def probe(self, label="piece", train_games=10_000, **changes):
        name, n = {"piece": ("board", 2112), "skill": ("skill", 8)}[label]
        detail = {"skill": {"strata": "pooled", "edges": {}}} if label == "skill" else {}
        scores = {(5, "test"): [(n, n)], (5, "validation"): [(n, n)]}
        fit = self.run(name, **changes)
        run = self.make.probe(self.checkpoint, scores, layers=(5,), label=label, detail=detail, **fit)
        with self.make.database.write() as sql:
            sql.get(tables.ProbeRecord, (run.id, 0)).train_games = train_games
        return run


def play_table_3(make, **other):
    karvonen = Karvonen(make, tag=other.pop("tag", True))
    karvonen.play(**other)
    karvonen.edited()


def test_notes_on_rows_name_the_column_with_their_numbers(database, make):
    play_table_3(make)
    result = run_query(database, "elo")
    assert "row 2: no control direction has played: --intervention.control random plays one" in result.notes
    told = compare_with_published(database, result)
    assert 2 in {row["our_row"] for row in told.rows}
    assert "our row 2: no control direction has played: --intervention.control random plays one" in told.notes
    assert not [note for note in told.notes if note.startswith(("row ", "rows "))]
    without = compare_with_published(database, result, ("Figure 2",))  # has matches without an intervention only
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
    behind = query_rows_behind(database, "elo", line["our_row"]).rows
    assert (len(behind), {row["intervention"] for row in behind}) == (100, {"none"})
    up = published(database, "elo")["Table 3", "8 layer standard", "positive"]
    assert {row["intervention"] for row in query_rows_behind(database, "elo", up["our_row"]).rows} != {"none"}
    assert (up["comparison"], up["difference"]) == ("comparable", pytest.approx(50 - 54.8))


def test_a_match_of_another_model_is_shown_but_not_compared(database, make):
    karvonen = Karvonen(make, tag=False)
    karvonen.play()
    line = published(database, "elo")["Table 3", "8 layer standard", "none"]
    assert (line["ours"], line["difference"], line["difference_low"]) == (50, None, None)
    assert line["comparison"] == "not comparable: checkpoint: not the paper's (no tag karvonen-2024:8-layer)"


@pytest.mark.parametrize(
    ("other", "reason"),
    quick_first(2, [
        ({"version": "15.1"}, "engine_version 15.1, the paper's 16"),
        (
            {"opponent": "stockfish:0@nodes=1000"},
            "opponent stockfish:0@nodes=1000, the paper's stockfish:0@nodes=100000",
        ),
        ({"policy": "retry:3"}, "policy retry:3, the paper's retry:5"),
        ({"temperatures": [1.0] * 5}, "temperatures 1.0,1.0,1.0,1.0,1.0, the paper's 0.001,0.201,0.401,0.5,0.5"),
        ({"move_limit": 40}, "move_limit 40, the paper's 90"),
        ({"stop": "sprt:-0.05,0.05"}, "stop sprt:-0.05,0.05, the paper's none"),
        ({"games": 100}, "games 100, the paper's 5000"),
    ]),
)  # fmt: skip
def test_a_match_under_other_rules_is_shown_but_not_compared(other, reason, database, make):
    run = Karvonen(make).play(**other)
    line = published(database, "elo", run=[run.id.hex])["Table 3", "8 layer standard", "none"]
    assert (line["ours"], line["difference"], line["difference_low"]) == (50, None, None)
    assert line["comparison"] == f"not comparable: {reason}"


@pytest.mark.slow
def test_another_edit_of_skill_is_not_compared(database, make):
    karvonen, reasons = Karvonen(make), set()
    for changes, reason in (
        ({}, ""),
        ({"token_mask": "last"}, "intervention.token_mask last, the paper's all"),
        ({"layers": (3, 4, 5)}, "layers 3-5, the paper's 3-6 or 4-6"),
        ({"scale": 0.2}, "scale 0.2, the paper's 0.1"),
    ):
        karvonen.edited(**changes)
        reasons.add(f"not comparable: {reason}" if reason else "comparable")
    assert comparisons(database, "elo", "Table 3", "8 layer standard", "positive") == reasons


def test_a_mean_stands_for_an_eighth_of_its_scale(database, make):
    karvonen = Karvonen(make)
    mean = karvonen.vector("vector", 1, reduction="mean")
    for scale in (0.8, 0.1):
        karvonen.edited(scale=scale, vector=mean)
    rows = compare_with_published(database, run_query(database, "elo"), ("Table 3",)).rows
    said = {row["comparison"] for row in rows if (row["row"], row["column"]) == ("8 layer standard", "positive")}
    assert said == {"comparable", "not comparable: scale 0.0125, the paper's 0.1"}


def steps(layers):
    found = find_paper("karvonen").steps(Request("model", "train", "test", layers, 512, "paper"))
    return {step.name: step.settings for step in found if not callable(step.settings)}


@pytest.mark.slow
@pytest.mark.parametrize("layers", [8, 16])
def test_the_papers_own_matches_are_compared_with_each_of_its_cells(database, make, layers):
    karvonen = Karvonen(make, layers)
    made = {
        "@skill-paper": ("contrastive", karvonen.vector("vector", 8), "contrastive:white_elo"),
        "@skill-of-probe-paper": ("of-probe", karvonen.vector("vector-of-probe", 1), "probe:skill"),
        "@skill-of-probe-high": ("of-probe", karvonen.vector("vector-of-probe", 1, side="high"), "probe:skill"),
    }
    for name, settings in steps(layers).items():
        if name.startswith(("table-3-", "table-7-random-", "appendix-c-high-random-")) and "intervention" in settings:
            given = settings["intervention"]
            run, vector, source = made[given["vector"]]
            karvonen.edited(
                given["layers"], given["scale"], source=source, name=run, opening=settings["opening"], vector=vector
            )
    rows = compare_with_published(database, run_query(database, "elo"), ("Table 3", "Table 7")).rows
    alone = "not comparable: intervention.vector: side high, the paper's both"
    assert sum(row["comparison"] == alone for row in rows) == 4  # both readings of two
    edited = [row for row in rows if row["ours"] is not None and row["comparison"] != alone]
    cells = {(row["table"], row["row"], row["column"]) for row in edited}
    of_model = {
        (v.table, v.row, v.column) for v in list_published_values() if f"{layers} layer" in v.row and v.column != "none"
    }
    assert cells == {cell for cell in of_model if cell[0] in ("Table 3", "Table 7")}
    assert {row["comparison"] for row in edited} == {"comparable"}
    assert len(edited) == 12  # both readings of 4 cells of Table 3 and of 2 of Table 7


@pytest.mark.slow
def test_board_edits_are_compared_with_all_their_settings_and_lack_states(database, make):
    karvonen, reasons = Karvonen(make), set()
    for changes, reason in (
        ({}, ""),
        ({"token_mask": "all"}, ""),
        ({"temperature": 0.5}, "; temperature 0.5, the paper's 1.0"),
        ({"king": "include"}, "; king include, the paper's skip"),
        ({"blank": 1.0}, "; blank 1.0, the paper's 0.0"),
        ({"samples": 3}, "; samples 3, the paper's 5"),
        ({"scale_rule": "single_target"}, "; scale_rule single_target, the paper's single_scale"),
    ):
        karvonen.edit(**changes)
        reasons.add(f"not comparable: states 1, the paper's 5000{reason}")
    cell = "Table 2", "8 layer with intervention", "modified board"
    assert comparisons(database, "karvonen table 2", *cell) == reasons


@pytest.mark.slow
def test_edits_of_other_games_and_of_one_layer_are_not_compared(database, make):
    karvonen = Karvonen(make)
    karvonen.edit(dataset=make.dataset("other"))
    line = published(database, "karvonen table 2")["Table 2", "8 layer with intervention", "modified board"]
    assert line["comparison"].endswith("; dataset: not the paper's (no tag karvonen-2024:lichess)")
    karvonen.edit((4,))
    table_8 = published(database, "karvonen table 2")["Table 8", "8 layer, layer 5", "success"]
    assert (table_8["published"], table_8["ours"], table_8["difference"]) == (85.5, 100, None)
    assert table_8["comparison"].startswith("not comparable: the paper states neither the scale nor whether texts")


@pytest.mark.slow
def test_settings_of_another_fit_differ_and_its_accuracy_is_not_compared(database, make):
    Karvonen(make).probe(learning_rate=0.01, train_games=9_899)
    result = compare_with_published(database, run_query(database, "karvonen table 4"))
    said = {row["row"]: (row["comparison"], row["difference"]) for row in result.rows}
    assert said["learning rate"] == ("differs", pytest.approx(0.009))
    assert (said["training games"][0], said["beta 2"][0]) == ("differs", "same")
    assert "4 of 6 settings are the same as the paper's" in result.notes
    table_1 = published(database, "karvonen table 1")["Table 1", "8 layer trained", "square"]["comparison"]
    assert table_1 == "not comparable: n_games 1, the paper's 10000; learning_rate 0.01, the paper's 0.001"


@pytest.mark.slow
def test_probes_are_compared_with_the_settings_of_their_caches_too(database, make):
    karvonen = Karvonen(make)
    reasons = {"square": set(), "Elo": set()}
    for label, changes, cache, reason in (
        ("piece", {}, {}, ""),
        ("piece", {"schedule": "linear"}, {}, "schedule linear, the paper's constant"),
        ("piece", {}, {"max_sites": 22}, "test_cache: max_sites 22, the paper's 33"),
        ("piece", {}, {"games": 500}, "test_cache: games 500, the paper's 10000"),
        ("skill", {}, {}, ""),
        ("skill", {"skip_sites": 0}, {}, "skip_sites 0, the paper's 25"),
        ("skill", {"skill": {"strata": "within"}}, {}, "skill.strata within, the paper's pooled"),
    ):
        if "skill" in changes:
            changes["skill"] = {**DESCRIBED.run("skill-8").settings["skill"], **changes["skill"]}
        if cache:
            changes["test_cache"] = karvonen.reference("test-8", **cache)
        karvonen.probe(label, **changes)
        told = "not comparable: " + "; ".join(filter(None, ["n_games 1, the paper's 10000", reason]))
        reasons[{"piece": "square", "skill": "Elo"}[label]].add(told)
    for query, table, row in (
        ("karvonen table 1", "Table 1", "8 layer trained"),
        ("probe accuracy", "Figure 3", "8 layer, layer 6"),
    ):
        for column, wanted in reasons.items():
            assert comparisons(database, query, table, row, column) == wanted, (query, column)


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
    runs = [
        run
        for value in list_published_values()
        if value.paper == "Davis 2026" and not value.is_lost
        for run in value.paper_runs
    ]
    models = {run.settings["checkpoint"] for run in runs if run.settings.get("checkpoint")}
    assert models == {"tag:davis-2026:gpt"}


def test_a_row_that_lacks_what_a_reason_names_is_not_comparable_all_the_same(database):
    condition = RowCondition("layers = 12", "'layers ' || layers || ', the paper''s 12'")
    value = replace(list_published_values()[0], role="true", measure="mean", conditions=(condition,), alike=())
    ours = pa.table({"place": [0, 1, 2], "mean": [0.5] * 3, "checkpoint": ["m"] * 3, "layers": [12, 8, None]})
    rows = (
        open_shared_engine(database)
        .query_arrow_table(ours, select_matching_rows(0, value, ours) + " ORDER BY place")
        .to_pylist()
    )
    assert [row["reasons"] for row in rows] == [
        "", "layers 8, the paper's 12", "not recorded: a setting that the paper's number depends on",
    ]  # fmt: skip


@pytest.mark.slow
def test_for_reading_numbers_without_ours_are_left_out_and_counted(database, make):
    assert len(drop_unmatched(compare_with_published(database, run_query(database, "elo")))) == 45
    play_table_3(make)
    result = drop_unmatched(compare_with_published(database, run_query(database, "elo")))
    assert [row["table"] for row in result.rows] == [
        *["Table 3"] * 2, "Figure 2, an earlier version", *["Section 2.2"] * 2,
    ]  # fmt: skip
    assert "40 published numbers have no counterpart in this registry" in result.notes[-1]
    text = render_result(result, "table")
    assert text.startswith("paper Karvonen 2024; unit %; model reference\n")
    assert "49.6  50.0 [4" in text


def test_a_query_without_published_numbers_says_so(database):
    with pytest.raises(NotFoundError, match="no published numbers"):
        compare_with_published(database, run_query(database, "games by termination"))
