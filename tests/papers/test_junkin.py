"""Junkin's paper: steps that fit together, settings that their kinds take, and the small paper from end to end."""

from __future__ import annotations

import csv
import time
from dataclasses import replace

import chess
import pytest
from sqlalchemy import func, select

from chessreg.cli.root import run_command_line
from chessreg.encodings.prompts import TEMPLATES
from chessreg.entities.adding import add_dataset
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.train import AnyTraining, check_architecture
from chessreg.papers import find_paper
from chessreg.papers.expected import RESULT_TITLE, make_column_judge
from chessreg.papers.junkin import sizes
from chessreg.papers.junkin.expectations import judge_fall_with_rating
from chessreg.papers.plan import SIZE_NAMES, Request, RequestedLanguageModel, order_steps, replace_references
from chessreg.papers.report import write_report
from chessreg.papers.work import PREPARATIONS, Work, make_request
from chessreg.queries.published import list_published_values
from chessreg.queries.published.paper_runs import PaperComparison, RecordedRun, World
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings
from chessreg.session import open_session
from tests.conftest import PUZZLES, write_games
from tests.language_models import bring_in
from tests.papers.printed import printed_commands


def asked(size, puzzles="puzzles"):
    return Request("", "train", "test", 0, 0, size, positions="positions", puzzles=puzzles)


def of_unknown_games(size):
    return Request("", "", "", 0, 0, size, positions="positions", puzzles="puzzles", without_games="none is named")


class Counted:
    """The steps for a twin of games that took `tokens` tokens per decision."""

    def __init__(self, tokens):
        self.tokens = tokens

    def run_id(self, step):
        return "0" * 32

    def value(self, statement):
        return self.tokens


def planned(size, made=None, request=None):
    """name → spec of every run; references are placeholders."""
    found = {}
    for step in order_steps(find_paper("junkin").steps(request or asked(size))):
        if step.kind not in PREPARATIONS:
            names = {name: f"run:{number:064x}" for number, name in enumerate(sorted(step.needs))}
            settings = dict(step.settings(made or Counted(29 * 64)) if callable(step.settings) else step.settings)
            preset = find_kind(step.kind).preset(settings.pop("preset")) if "preset" in settings else {}
            found[step.name] = parse_settings(
                find_kind(step.kind).spec, preset | dict(replace_references(settings, names))
            )
    return found


@pytest.mark.parametrize("size", SIZE_NAMES)
def test_every_step_has_what_it_needs_and_settings_that_its_kind_takes(size):
    specs = planned(size)
    for spec in specs.values():
        if isinstance(spec, AnyTraining):
            check_architecture(spec)
    assert all(spec.checkpoint.endswith("/checkpoint") for name, spec in specs.items() if name.startswith("accuracy-"))
    without = {step.name for step in find_paper("junkin").steps(asked(size, None))}
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
    steps = {step.name: step for step in find_paper("junkin").steps(asked(size))}
    for control in (name for name in steps if name.startswith("causal") and name.endswith("-compute")):
        games = control.replace("causal", "games").removesuffix("-at-games-compute")
        assert games in steps[control].needs
        moves = sizes.SIZES[size].batch_moves
        assert planned(size, Counted(78 * moves * 17))[control].steps == 17
        assert planned(size, Counted(5))[control].steps == 1
    assert planned("reference", Counted(5))["causal-4x128-1-at-games-compute"].steps == 1656


def test_how_far_compute_is_apart_is_told_and_decides_nothing_where_it_is_far():
    [judge] = [each.judge for each in find_paper("junkin").expectations if "equal compute" in each.quantity]
    row = {"layers": 4, "d_model": 128, "seed": 1, "legal_best": 3.0, "legal_best_low": 2.0, "legal_best_high": 4.0}
    decisions = row | {"differs": "input: position minus game", "flops": 268.0, "twin_flops": 100.0}
    near = row | {"differs": "input: position minus game, equal compute", "flops": 106.0, "twin_flops": 100.0}
    far = row | {"differs": "input: position minus game, unequal training", "flops": 114.0, "twin_flops": 100.0}
    [finding] = judge([decisions, near], None)
    assert (finding.what, finding.outcome, finding.row) == ("4x128, seed 1, +6 % compute", "met", 2)
    [finding] = judge([decisions, far], None)
    assert (finding.what, finding.outcome, finding.value) == ("4x128, seed 1, +14 % compute", "", 3.0)
    assert judge([decisions, far | {"twin_flops": None}], None) == []


def test_language_models_are_tuned_alike_with_a_legal_list_and_without():
    """From one model, with equally many supervised moves."""
    specs = planned("reference")
    tuned = {name.removeprefix("tuned-llama-"): dict(spec) for name, spec in specs.items() if name.startswith("tuned-")}
    listed, plain = tuned["junkin-1"], tuned["junkin-small"]
    assert {name for name in listed if listed[name] != plain[name]} == {"template"}
    assert (listed["loss"], specs["language-model-llama"].loss) == ("answer", "all")
    assert {name for name in specs if name.startswith("decoding-")} == {
        f"decoding-{model}-{template}" for model in ("before-llama", "tuned-llama") for template in tuned
    }


@pytest.mark.parametrize("size", SIZE_NAMES)
def test_no_two_steps_ask_a_language_model_the_same(size):
    every = [step.settings for step in find_paper("junkin").steps(asked(size)) if step.kind == "decoding"]
    assert len({tuple(sorted(settings.items())) for settings in every}) == len(every)


def test_tunings_of_the_paper_are_those_of_table_d3_on_one_template_and_six_are_asked_before():
    specs = planned("paper")
    tuned = {name: spec for name, spec in specs.items() if name.startswith("tuned-")}
    assert {
        name: (t.steps, t.warmup_steps, t.learning_rate, t.learning_rate * t.final_fraction, t.batch_positions)
        for name, t in tuned.items()
    } == {
        "tuned-llama-junkin-1": (200_000, 2000, 8e-5, 5e-6, 8192),
        "tuned-pythia-junkin-1": (200_000, 2000, 3e-4, pytest.approx(6e-5), 2048),
    }
    assert {(t.beta1, t.beta2, t.notation, t.layout) for t in tuned.values()} == {
        (0.9, 0.95, "san", "flattened_with_slashes")
    }
    for model in ("llama", "pythia"):
        before = [spec for name, spec in specs.items() if "before" in name and f"-{model}-" in name]
        assert {TEMPLATES[f"junkin-{number}"] for number in range(1, 7)} == {spec.template for spec in before}
        assert {(spec.notation, spec.layout) for spec in before} == {("san", "flattened_with_slashes")}
        assert not any(name.startswith(f"prompts-after-{model}") for name in specs)


@pytest.mark.parametrize("size", ["small", "paper"])
def test_all_models_are_asked_one_set_of_positions_of_which_they_learned_none(size):
    specs = planned(size)
    asked_for = {
        (s.dataset, s.source_games, s.unseen_of, s.positions) for n, s in specs.items() if n.startswith("accu")
    }
    assert asked_for == {("positions:test", "test", "positions:fit", sizes.SIZES[size].positions)}
    assert {"accuracy-llama", "accuracy-pythia"} <= specs.keys()
    learned = {spec.datasets for spec in specs.values() if hasattr(spec, "datasets")}
    assert learned == {("positions:fit",)}


def test_language_models_that_are_given_are_tuned_in_place_of_those_of_initial_weights_at_their_own_rates():
    models = (
        RequestedLanguageModel("one", "llama", None, 7),
        RequestedLanguageModel("two", "gpt_neox"),
        RequestedLanguageModel("x", "gpt2", 1e-4),
    )
    own, given = ({step.name: step for step in find_paper("junkin").steps(request)}
                  for request in (asked("paper"), replace(asked("paper"), language_models=models)))  # fmt: skip
    assert [name for name in own if name.startswith("language-model")] == [
        "language-model-llama",
        "language-model-pythia",
    ]
    assert not any(name.startswith("language-model") for name in given)
    specs = planned("paper", request=replace(asked("paper"), language_models=models))
    rates = {name: specs[f"tuned-{name}-junkin-1"].learning_rate for name in ("one", "two", "x")}
    assert rates == {"one": 8e-5, "two": 3e-4, "x": 1e-4}
    assert specs["tuned-two-junkin-1"].checkpoint == specs["decoding-before-two-junkin-1"].checkpoint == "two"
    assert given["tuned-one-junkin-1"].operations > 0
    assert specs["ladder-x"].checkpoint.endswith("/checkpoint")


def test_the_ladder_of_the_reference_is_that_of_its_results():
    specs, steps = planned("reference"), {step.name: step for step in find_paper("junkin").steps(asked("reference"))}
    assert {name for name in specs if name.startswith("ladder-")} == {"ladder-bidirectional", "ladder-causal"}
    for name in ("ladder-bidirectional", "ladder-causal"):
        spec = specs[name]
        assert (len(spec.ladder), spec.color, spec.assist) == (17, "both", "none")
        assert spec.temperatures == (0.001,)  # of the author's first attempt
        assert spec.evaluate_draws == "nodes=10000"  # or `draws by evaluation` has no rows
        assert steps[name].units == 17 * spec.games
        assert steps[name].engine_seconds > 0
    assert (specs["ratings"].estimator, steps["ratings"].units) == ("all", 11 + 3 * 11)
    assert "ratings-games-white" not in specs


@pytest.mark.parametrize(("size", "rungs", "games"), [("small", 12, 2), ("paper", 11, 1000)])
def test_all_four_models_of_the_paper_play_its_ladder_by_its_rules(size, rungs, games):
    specs, steps = planned(size), {step.name: step for step in find_paper("junkin").steps(asked(size))}
    players = {"ladder-llama", "ladder-pythia", "ladder-bidirectional", "ladder-games"}
    assert {name for name in specs if name.startswith("ladder-")} == players | {"ladder-causal"}
    published = find_kind("play").preset("junkin-2025")
    for name in players:
        spec = specs[name]
        own = {setting: getattr(spec, setting) for setting in published if setting not in ("ladder", "games")}
        assert own == {setting: published[setting] for setting in own}
        assert (spec.color, spec.policy, spec.games, len(spec.ladder)) == ("both", "retry:6", games, rungs)
        assert f"preset junkin-2025, {games:,} games a level, both colors" in steps[name].purpose
        assert steps[name].units == rungs * games
    if size == "paper":
        assert {specs[name].ladder for name in players} == {tuple(f"stockfish:{level}@time=0.1" for level in range(11))}
    assert steps["ratings"].needs == players | {"ladder-causal"}
    assert (specs["ratings"].color, specs["ratings-games-white"].color) == ("both", "white")
    assert steps["ratings-games-white"].needs == {"ladder-games"}


WITHOUT_BOOK = ["opening standard, the paper's book", "book none, the paper has one"]
MADE = {
    "llama": "tuned-llama-junkin-1",
    "pythia": "tuned-pythia-junkin-1",
    "fen-bidirectional": "bidirectional-8x512-1",
    "fen-causal": "causal-8x512-1",
    "pgn": "games-8x512-1",
}


@pytest.mark.parametrize(
    ("run", "step", "differences"),
    [
        ("ladder-llama", "ladder-llama", WITHOUT_BOOK),
        ("ladder-pythia", "ladder-pythia", WITHOUT_BOOK),
        ("ladder-fen", "ladder-bidirectional", WITHOUT_BOOK),
        ("ladder-pgn", "ladder-games", WITHOUT_BOOK),
        ("ladder-pgn-white", "ladder-games", ["color both, the paper's white", *WITHOUT_BOOK]),
        ("rating", "ratings", []),
        ("rating-white", "ratings-games-white", []),
        ("decoding-llama", "decoding-tuned-llama-junkin-1", []),
        ("accuracy-llama", "accuracy-llama", ["unseen_of positions:fit, the paper's none"]),
        ("accuracy-fen", "accuracy-bidirectional-8x512-1", ["unseen_of positions:fit, the paper's none"]),
        ("accuracy-causal", "accuracy-causal-8x512-1", ["unseen_of positions:fit, the paper's none"]),
        ("accuracy-pgn", "accuracy-games-8x512-1", ["unseen_of positions:fit, the paper's none"]),
    ],
)
def test_the_paper_size_has_the_published_settings_but_for_what_is_not_published(run, step, differences):
    """The plan against the description of every published number that a plan can have."""
    described = next(value.described_runs for value in list_published_values() if value.paper == "Junkin 2025")
    tags = {f"@{name}/checkpoint": frozenset({f"junkin-2025:{tag}"}) for tag, name in MADE.items()}
    tags |= dict.fromkeys(("positions", "positions:test"), frozenset({"junkin-2025:chessbench"}))
    comparison = PaperComparison(described, World(lambda reference: None, lambda name: tags.get(name, frozenset())))
    [planned_step] = [each for each in find_paper("junkin").steps(asked("paper")) if each.name == step]
    settings = dict(planned_step.settings)
    step_kind = find_kind(planned_step.kind)
    preset = step_kind.preset(settings.pop("preset")) if "preset" in settings else {}
    spec = parse_settings(step_kind.spec, preset | settings).model_dump(mode="json")
    ours = RecordedRun(step_kind.name, step_kind.version, spec)
    assert sorted(comparison.list_differences(ours, described.run(run))) == sorted(differences)


@pytest.mark.parametrize("size", SIZE_NAMES)
def test_positions_of_unknown_games_leave_out_the_models_of_games_alone(size):
    """ChessBench's bags name no game."""
    specs, known = planned(size, request=of_unknown_games(size)), planned(size)
    left_out = {name for name in known.keys() - specs.keys() if not name.startswith("accuracy-")}
    assert {name for name in left_out if not name.endswith("-at-games-compute")} == {
        name for name in known if name.startswith(("games-", "ladder-games", "ratings-games"))
    }
    for spec in specs.values():
        given = {name: value for name, value in dict(spec).items() if name.endswith("source_games") and value}
        assert given == {}
    assert {"ladder-bidirectional", "ladder-causal"} <= specs.keys()
    assert any(name.startswith("tuned-") for name in specs)
    [line] = find_paper("junkin").remarks(of_unknown_games(size))
    assert line == "models of games (games-*, and the steps that need them) are left out: none is named"
    assert find_paper("junkin").remarks(asked(size)) == []


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


def test_a_difference_that_rests_on_one_position_is_not_decided():
    """More than one resample in forty holds no position that differs: the interval ends at 0, for any bound."""
    judge = make_column_judge(lambda row, made: True, lambda row: "", "delta", minimum=None, maximum=0.0)
    both = make_column_judge(lambda row, made: True, lambda row: "", "delta", minimum=-3.0, maximum=1.0)
    one = {"delta": -0.3, "delta_low": -1.0, "delta_high": 0.0}
    many = {"delta": -0.3, "delta_low": -0.5, "delta_high": -0.1}
    none = {"delta": 0.0, "delta_low": -0.2, "delta_high": 0.2}
    assert [judge([row], None)[0].outcome for row in (one, many, none)] == ["not decided", "met", "not decided"]
    assert [both([row], None)[0].outcome for row in (one, many, none)] == ["not decided", "met", "met"]


def test_a_list_of_legal_moves_is_judged_only_against_a_model_that_was_tuned_without():
    """At the sizes of one tuning the quantity is not run, and so not missed."""
    [judge] = [
        one.judge for one in find_paper("junkin").expectations if one.quantity.startswith("legal list minus none")
    ]
    row = {
        "legal_list": True,
        "prompt": "junkin-1",
        "list_legal": None,
        "list_legal_low": None,
        "list_legal_high": None,
    }
    assert judge([row], None) == []
    [finding] = judge([row | {"list_legal": 20.0, "list_legal_low": 15.0, "list_legal_high": 25.0}], None)
    assert finding.outcome == "met"


def test_puzzles_of_which_none_is_solved_are_held_against_what_is_expected():
    def rated(rating, n, first, low, high):
        return {"run": "ab12cd", "rating": rating, "n": n, "first": first, "first_low": low, "first_high": high}

    rows = [
        rated("all", 60, 4.0, 1.0, 9.0),
        rated("400–799", 30, 0.0, None, 9.0),
        rated("2400–2799", 30, 8.0, 2.0, 20.0),
    ]
    [finding] = judge_fall_with_rating(rows, None)
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
                make_request(session, None, **{"dataset": "games", "size": "small", **named})
        with pytest.raises(NotFoundError, match="nothing"):
            make_request(session, None, "games", None, "small", positions="nothing")
        bring_in(session, "fen-77", "causal-fen-encoder", tmp_path / "fen")
        other = make_request(session, None, "games", None, "small", positions="decisions", language_models=["fen"])
        with pytest.raises(BadInputError, match="fen-77"):
            Work(session, find_paper("junkin"), other)
        no_puzzles = make_request(session, None, "games", None, "small", positions="decisions", puzzles="decisions")
        with pytest.raises(BadInputError, match="none of these positions has a solution"):
            Work(session, find_paper("junkin"), no_puzzles)
        (tmp_path / "foreign.csv").write_text(f"fen,best,game,ply\n{chess.STARTING_FEN},e2e4,zzzzzzzz,0\n")
        add_dataset(session.database, session.store, [tmp_path / "foreign.csv"], name="foreign")
        others = make_request(session, None, "games", None, "small", positions="foreign")
        with pytest.raises(BadInputError, match="none of the positions occurs in these games"):
            Work(session, find_paper("junkin"), others)
        work = Work(
            session, find_paper("junkin"), make_request(session, None, "games", None, "small", positions="decisions")
        )
        states = {planned.step.name: planned.state for planned in work.plan()}
        assert (states["positions"], states["causal-2x32-1"]) == ("ready", "waiting")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_small_paper_goes_on_where_it_was_killed_and_writes_every_table(tmp_path, spawn):
    make_junkin(tmp_path)
    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    words = ["paper", "junkin", "--dataset", "games", "--position-dataset", "decisions", "--puzzle-dataset", "puzzles"]
    process = spawn([*place, *words, "--size", "small", "--threads", "1", "--output", str(tmp_path / "never")])
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        asked_for = make_request(session, None, "games", None, "small", None, "decisions", "puzzles")
        work = Work(session, find_paper("junkin"), asked_for, {"threads": 1})

        def complete():
            with session.database.read() as sql:
                return sql.scalar(select(func.count()).where(tables.Run.completed_at.is_not(None)))

        while process.is_alive() and complete() < 4:
            time.sleep(0.1)
        process.kill()
        process.join()
        work.plan()
        before = dict(work.references)
        assert not work.run_steps()
        assert len(before) >= 4
        assert before.items() <= work.references.items()
        assert work.is_finished
        written = write_report(work, tmp_path / "tables")
    assert [each.title for each in written] == [*(sheet.title for sheet in work.paper.sheets), RESULT_TITLE]
    assert all(each.files for each in written)
    assert {each.title for each in written if not each.rows} <= {"Drawn games by their evaluation before the model's "
                                                                "last move (his repository)"}  # fmt: skip
    lines = list(csv.DictReader((tmp_path / "tables" / "reference-result.csv").open()))
    assert {line["quantity"] for line in lines} == {each.quantity for each in work.paper.expectations}
    [compute] = [line for line in lines if "equal compute" in line["quantity"]]
    apart = float(compute["what"].rpartition(", ")[2].removesuffix(" % compute"))
    assert abs(apart) <= 17, "half of one step in three: these games are of a few moves"
    assert compute["outcome"] != "not run"
    published = (tmp_path / "tables" / "move-accuracy-published.csv").read_text()
    assert "lost" in published
    asked_of = {row["checkpoint"] for row in csv.DictReader((tmp_path / "tables" / "move-accuracy.csv").open())}
    assert len(asked_of) == 6, "the twins, the control and both language models, on one set of positions"
    ours = {row["row"] for row in csv.DictReader((tmp_path / "tables" / "elo-published.csv").open()) if row["ours"]}
    assert {"Llama", "FEN bidirectional", "PGN, White only", "PGN, both colors", "Pythia"} <= ours
    index = (tmp_path / "tables" / "index.md").read_text()
    assert index.startswith("# Junkin")
    assert "Positions decisions, puzzles puzzles; fitted on games" in index
    commands = list(printed_commands(tmp_path / "tables"))
    assert {words[0] for words in commands} == {"query", "paper"}
    for words in commands:
        assert run_command_line([*place, *words]) == 0, words
