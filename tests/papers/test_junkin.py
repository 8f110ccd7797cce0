"""Junkin's paper: steps that fit together, settings that their kinds take, and the small paper from end to end."""

from __future__ import annotations

import csv
import time
from dataclasses import replace

import pytest
from sqlalchemy import func, select

from chessreg.entities.adding import add_dataset
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.train import AnyTraining, check_fit
from chessreg.papers import find
from chessreg.papers.expected import TITLE
from chessreg.papers.junkin import sizes
from chessreg.papers.junkin.expectations import falling
from chessreg.papers.plan import SIZES, Request, ordered, replaced
from chessreg.papers.report import write
from chessreg.papers.work import PREPARATIONS, Work, request
from chessreg.registry import tables
from chessreg.runs.kind import kind
from chessreg.runs.spec import settings_from
from chessreg.session import open_session
from tests.conftest import PUZZLES, write_games
from tests.language_models import bring_in


def asked(size, puzzles="puzzles"):
    return Request("", "train", "test", 0, 0, size, positions="positions", puzzles=puzzles)


class Counted:
    """What is made where a twin of games took so many tokens for each decision."""

    def __init__(self, tokens):
        self.tokens = tokens

    def run_id(self, step):
        return "0" * 32

    def value(self, statement):
        return self.tokens


def planned(size, made=None):
    """name → spec of every run; references stand for whatever they name."""
    found = {}
    for step in ordered(find("junkin").steps(asked(size))):
        if step.kind not in PREPARATIONS:
            names = {name: f"run:{number:064x}" for number, name in enumerate(sorted(step.needs))}
            settings = step.settings(made or Counted(29 * 64)) if callable(step.settings) else step.settings
            found[step.name] = settings_from(kind(step.kind).spec, replaced(settings, names))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_every_step_has_what_it_needs_and_settings_that_its_kind_takes(size):
    specs = planned(size)
    for spec in specs.values():
        if isinstance(spec, AnyTraining):
            check_fit(spec)
    assert all(spec.checkpoint.endswith("/checkpoint") for name, spec in specs.items() if name.startswith("accuracy-"))
    without = {step.name for step in find("junkin").steps(asked(size, None))}
    assert specs.keys() - without == {name for name in specs if name.startswith("puzzles-")} != set()


def test_twins_differ_in_the_mask_or_in_what_they_read_alone():
    specs = planned("reference")
    shapes = {"4x128": (1, 2), "6x192": (1,)}
    less = {name: spec for name, spec in specs.items() if name.startswith("causal") and name.endswith("-compute")}
    twins = {name: spec for name, spec in specs.items() if isinstance(spec, AnyTraining) and name not in less}
    assert less.keys() == {"causal-4x128-1-at-games-compute", "causal-6x192-1-at-games-compute"}
    for name, spec in less.items():
        whole = twins[name.removesuffix("-at-games-compute")]
        assert {field for field in dict(spec) if dict(spec)[field] != dict(whole)[field]} == {"steps"}
        assert spec.steps * 78 == pytest.approx(whole.steps * 29, rel=1e-3)
    assert twins.keys() == {
        f"{who}-{shape}-{seed}"
        for shape, seeds in shapes.items() for seed in seeds for who in ("bidirectional", "causal", "games")
    }  # fmt: skip
    for shape, seeds in shapes.items():
        for seed in seeds:
            both, causal, games = (dict(twins[f"{who}-{shape}-{seed}"]) for who in ("bidirectional", "causal", "games"))
            assert {name for name in both if both[name] != causal[name]} == {"attention"}
            assert {name for name in causal.keys() & games if causal[name] != games[name]} == {"architecture"}
            assert games.keys() - causal == {"activation", "biases", "block_size", "encoding", "game_loss"}
            assert both["heldout_steps"] % 20 == 0  # points of the curve: others are measured at its end alone
            assert both["steps"] * both["batch_moves"] == pytest.approx(2 * 569_981, rel=1e-3)  # two passes
    assert (
        len({(s.dataset, s.source_games, s.unseen_of, s.positions) for n, s in specs.items() if n.startswith("acc")})
        == 1
    )


@pytest.mark.parametrize("size", ["small", "paper"])
def test_a_control_of_equal_compute_takes_the_tokens_that_its_twin_of_games_took(size):
    steps = {step.name: step for step in find("junkin").steps(asked(size))}
    for control in (name for name in steps if name.startswith("causal") and name.endswith("-compute")):
        games = control.replace("causal", "games").removesuffix("-at-games-compute")
        assert games in steps[control].needs
        moves = sizes.SIZES[size].batch_moves
        assert planned(size, Counted(78 * moves * 17))[control].steps == 17
        assert planned(size, Counted(5))[control].steps == 1
    assert planned("reference", Counted(5))["causal-4x128-1-at-games-compute"].steps == 1656


def test_how_far_compute_is_apart_is_told_and_decides_nothing_where_it_is_far():
    [judge] = [each.judge for each in find("junkin").expectations if "equal compute" in each.quantity]
    row = {"layers": 4, "d_model": 128, "seed": 1, "legal_best": 3.0, "legal_best_low": 2.0, "legal_best_high": 4.0}
    decisions = row | {"differs": "input: position minus game", "flops": 268.0, "twin_flops": 100.0}
    near = row | {"differs": "input: position minus game, equal compute", "flops": 106.0, "twin_flops": 100.0}
    far = row | {"differs": "input: position minus game, unequal training", "flops": 114.0, "twin_flops": 100.0}
    [finding] = judge([decisions, near], None)
    assert (finding.what, finding.outcome, finding.row) == ("4x128, seed 1, +6 % compute", "met", 2)
    [finding] = judge([decisions, far], None)
    assert (finding.what, finding.outcome, finding.value) == ("4x128, seed 1, +14 % compute", "open", 3.0)
    assert judge([decisions, far | {"twin_flops": None}], None) == []


@pytest.mark.parametrize("size", SIZES)
def test_language_models_are_tuned_alike_with_a_legal_list_and_without(size):
    """From one model, with as many supervised moves; no two steps ask the same."""
    specs = planned(size)
    tuned = {name.removeprefix("tuned-"): dict(spec) for name, spec in specs.items() if name.startswith("tuned-")}
    listed, plain = tuned["junkin-1"], tuned["junkin-small"]
    assert {name for name in listed if listed[name] != plain[name]} == {"template"}
    assert (listed["loss"], specs["language-model"].loss) == ("answer", "all")
    every = [step.settings for step in find("junkin").steps(asked(size)) if step.kind == "decoding"]
    assert len({tuple(sorted(settings.items())) for settings in every}) == len(every)
    assert {name for name in specs if name.startswith("decoding-")} == {
        f"decoding-{model}-{template}" for model in ("before", "tuned") for template in tuned
    }


def test_a_language_model_that_is_given_is_tuned_in_place_of_one_of_initial_weights():
    own, given = ({step.name: step for step in find("junkin").steps(request)}
                  for request in (asked("paper"), replace(asked("paper"), language_model="llama")))  # fmt: skip
    assert own.keys() - given.keys() == {"language-model"}
    assert {step.operations > 0 for step in own.values() if step.kind == "finetune"} == {True}
    assert {step.operations for step in given.values() if step.kind == "finetune"} == {0}, "its weights are not known"
    changed = {name for name in given if given[name] != own[name]}
    assert {name for name in changed if "tuned-" in name} == {
        f"tuned-{name}" for name in sizes.SIZES["paper"].templates
    }
    for name in changed:
        assert given[name].settings == {**own[name].settings, "checkpoint": "llama"}
        assert own[name].settings["checkpoint"] == "@language-model/checkpoint"


@pytest.mark.parametrize(("size", "rungs"), [("small", 2), ("reference", 17), ("paper", 11)])
def test_the_ladder_has_levels_without_help_and_ratings_where_a_rung_has_one(size, rungs):
    specs, steps = planned(size), {step.name: step for step in find("junkin").steps(asked(size))}
    for name in ("ladder-bidirectional", "ladder-causal"):
        spec = specs[name]
        assert (len(spec.ladder), spec.color, spec.assist) == (rungs, "both", "none")
        assert spec.temperatures == (0.001,)  # of the author's first attempt
        assert spec.evaluate_draws == "nodes=10000"  # or `draws by evaluation` has no rows
        assert steps[name].units == rungs * spec.games
        assert steps[name].operations > 0
        assert (steps[name].engine_seconds > 0) == (size != "small"), "the small ladder has no engine"
    assert ("ratings" in specs) == (size != "small")
    if "ratings" in specs:
        assert steps["ratings"].needs >= {"ladder-bidirectional", "ladder-causal"}
        assert (specs["ratings"].estimator, steps["ratings"].units) == ("all", 11 + 3 * 11)


def make_junkin(root):
    """Games with decisions and puzzles, and a registry that has them."""
    (root / "decisions.csv").write_text("fen,best,played,game,ply\n")
    write_games(root, "games", range(120))
    (root / "puzzles.csv").write_text(PUZZLES)
    with open_session(str(root / "registry.db"), root / "store") as session:
        for file, name in (("games.pgn", "games"), ("decisions.csv", "decisions"), ("puzzles.csv", "puzzles")):
            add_dataset(session.database, session.store, [root / file], name=name)


def test_twins_have_layers_above_the_first_where_alone_a_mask_makes_a_difference():
    assert all(shape.n_layer > 1 for size in sizes.SIZES.values() for shape in size.shapes)


def test_puzzles_of_which_none_is_solved_are_held_against_what_is_expected():
    def rated(rating, n, first, low, high):
        return {"run": "ab12cd", "rating": rating, "n": n, "first": first, "first_low": low, "first_high": high}

    rows = [
        rated("all", 60, 4.0, 1.0, 9.0),
        rated("400–799", 30, 0.0, None, 9.0),
        rated("2400–2799", 30, 8.0, 2.0, 20.0),
    ]
    [finding] = falling(rows, None)
    assert (finding.value, finding.low, finding.high) == (-8.0, -20.0, pytest.approx(-8 + (9**2 + 6**2) ** 0.5))
    assert finding.outcome == "not decided"


def test_positions_that_are_games_and_datasets_that_are_not_there_are_refused(tmp_path):
    make_junkin(tmp_path)
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        for option, named in {
            "--position-dataset": {"positions": "games"},
            "--puzzle-dataset": {"positions": "decisions", "puzzles": "games"},
            "--dataset": {"dataset": "decisions", "positions": "decisions"},
            "--test": {"test": "puzzles", "positions": "decisions"},
        }.items():
            with pytest.raises(BadInputError, match=f"{option} .* is a dataset of"):
                request(session, None, **{"dataset": "games", "size": "small", **named})
        with pytest.raises(NotFoundError, match="nothing"):
            request(session, None, "games", None, "small", positions="nothing")
        bring_in(session, "fen-77", "causal-fen-encoder", tmp_path / "fen")
        other = request(session, None, "games", None, "small", positions="decisions", language_model="fen")
        with pytest.raises(BadInputError, match="fen-77"):
            Work(session, find("junkin"), other)
        no_puzzles = request(session, None, "games", None, "small", positions="decisions", puzzles="decisions")
        with pytest.raises(BadInputError, match="none of these positions has a solution"):
            Work(session, find("junkin"), no_puzzles)
        others = request(session, None, "games", None, "small", positions="puzzles")
        with pytest.raises(BadInputError, match="none of these games has one of the positions"):
            Work(session, find("junkin"), others)
        work = Work(session, find("junkin"), request(session, None, "games", None, "small", positions="decisions"))
        states = {planned.step.name: planned.state for planned in work.plan()}
        assert (states["parts"], states["causal-2x32-1"]) == ("ready", "waits")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_small_paper_goes_on_where_it_was_killed_and_writes_every_table(tmp_path, spawn):
    make_junkin(tmp_path)
    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    words = ["paper", "junkin", "--dataset", "games", "--position-dataset", "decisions", "--puzzle-dataset", "puzzles"]
    process = spawn([*place, *words, "--size", "small", "--threads", "1", "--output", str(tmp_path / "never")])
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        asked_for = request(session, None, "games", None, "small", None, "decisions", "puzzles")
        work = Work(session, find("junkin"), asked_for, {"threads": 1})

        def complete():
            with session.database.read() as sql:
                return sql.scalar(select(func.count()).where(tables.Run.completed_at.is_not(None)))

        while process.is_alive() and complete() < 4:
            time.sleep(0.1)
        process.kill()
        process.join()
        work.plan()
        before = dict(work.references)
        assert not work.do()
        assert len(before) >= 4
        assert before.items() <= work.references.items()
        assert work.over
        written = write(work, tmp_path / "tables")
    sheets = [sheet.title for sheet in work.paper.sheets if sheet.file != "elo"]  # no rung of this ladder has a rating
    assert [each.title for each in written] == [*sheets, TITLE]
    assert all(each.files and each.rows for each in written)
    lines = list(csv.DictReader((tmp_path / "tables" / "reference-result.csv").open()))
    assert {line["quantity"] for line in lines} == {each.quantity for each in work.paper.expectations}
    [compute] = [line for line in lines if "equal compute" in line["quantity"]]
    apart = float(compute["what"].rpartition(", ")[2].removesuffix(" % compute"))
    assert abs(apart) <= 17, "half of one step in three: these games are of a few moves"
    assert compute["outcome"] != "not run"
    published = (tmp_path / "tables" / "move-accuracy-published.csv").read_text()
    assert "another model (2 x 32; the paper's is 8 x 512)" in published
    assert "lost" in published
    index = (tmp_path / "tables" / "index.md").read_text()
    assert index.startswith("# Junkin")
    assert "Positions decisions, puzzles puzzles; fitted on games" in index
    assert "the models are trained on fit" in index
    assert "Size small leaves out: Ratings by every estimator." in index
    assert "- no plot: there is nothing to plot for 'wins by level': it shows rows with level >= 0" in index
