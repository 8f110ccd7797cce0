"""Davis's paper as a list of specs: complete, in order, with settings that its kinds accept, and those of the paper."""

import csv
import json
import re
import shlex
import time
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from sqlalchemy import func, select

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.papers import find_paper
from chessreg.papers.cost import estimate_step_seconds
from chessreg.papers.davis.expectations import judge_best_site
from chessreg.papers.davis.matches import measure_edit_length
from chessreg.papers.expected import RESULT_TITLE
from chessreg.papers.plan import SIZE_NAMES, Request, order_steps, replace_references
from chessreg.papers.report import write_report
from chessreg.papers.work import PREPARATIONS, Work, make_request
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings
from chessreg.session import open_session

from ..conftest import random_game
from .printed import printed_commands


class Made:
    """A sweep that chose layer 1 at α 1."""

    request = Request("model", "train", "test", 8, 64, "small")
    is_rehearsal = False

    def query(self, title, step):
        rows = [
            {"type": "Random", "layers": [0], "scale": 4.0, "chosen": True},
            {"type": "Probe", "layers": [0], "scale": 2.0, "chosen": False},
            {"type": "Probe", "layers": [1], "scale": 1.0, "chosen": True},
        ]
        return type("Answer", (), {"rows": rows})

    def run_id(self, name):
        return "0" * 32

    def value(self, statement):
        return 30.0


def planned(size, layers=12, d_model=768):
    """name → (step, spec) of every run; references are placeholders, and the sweep chose layer 1 and α 1."""
    found = {}
    for step in order_steps(find_paper("davis").steps(Request("model", "train", "test", layers, d_model, size))):
        if step.kind in PREPARATIONS:
            continue
        values = step.settings(Made()) if callable(step.settings) else step.settings
        names = {name: f"run:{number:064x}" for number, name in enumerate(sorted(step.needs))}
        values = dict(replace_references(values, names))
        preset = find_kind(step.kind).preset(values.pop("preset")) if "preset" in values else {}
        found[step.name] = step, parse_settings(find_kind(step.kind).spec, preset | values)
    return found


@pytest.mark.parametrize("size", SIZE_NAMES)
@pytest.mark.parametrize("layers", [1, 2, 8, 12])
def test_every_step_has_what_it_needs_and_settings_that_its_kind_takes(size, layers):
    if layers > 1:  # the stand-in's choice is layer 1
        assert planned(size, layers, 64)
    steps = order_steps(find_paper("davis").steps(Request("model", "train", "test", layers, 64, size)))
    assert len({step.name for step in steps}) == len(steps)


def test_the_paper_size_is_that_of_the_paper_and_its_code():
    """Probes, autoencoders, edits and Markov tests at the paper's amounts."""
    steps = planned("paper")
    linear = [
        spec
        for name, (_, spec) in steps.items()
        if name.startswith("model-") and spec.__class__ is find_kind("probe").spec
    ]
    assert {(s.label, s.phase, s.hook_point) for s in linear} == {
        (label, phase, point)
        for label in ("piece", "color", "type") for phase in range(5)
        for point in ("blocks.*.hook_resid_pre", "blocks.*.hook_resid_post", "ln_final.hook_out")
    }  # fmt: skip
    assert {(s.label, s.batch_positions) for s in linear} == {("piece", 2000), ("color", 3000), ("type", 3000)}
    fitted = [
        (s.epochs, s.last_sites, s.learning_rate, s.schedule, s.weight_decay, s.validation, s.beta2) for s in linear
    ]
    assert set(fitted) == {(15, 5, 0.009, "cosine", 0.01, 0.05, 0.999)}
    cache = steps["model-fit"][1]
    assert (cache.games, cache.last_sites, cache.sites) == (120_133, 5, "all")
    assert cache.hook_points == ("blocks.0.hook_resid_pre", "blocks.*.hook_resid_post", "ln_final.hook_out")
    assert {step.optional for name, (step, _) in steps.items() if "-4-" in name} == {True}
    assert sum(name.startswith("twin-") and "-joint-0-blocks" in name for name in steps) == 3

    saes = [spec for name, (_, spec) in steps.items() if name.startswith("sae-") and hasattr(spec, "expansions")]
    assert {expansion for s in saes for expansion in s.expansions} == {2, 4, 8, 16}
    assert {s.tokens for s in saes} == {1_000_000_000}
    widest = {point for s in saes if 16 in s.expansions for point in s.hook_points}
    assert widest == {f"blocks.{n}.hook_resid_post" for n in range(12)} | {
        "blocks.0.hook_resid_pre",
        "ln_final.hook_out",
    }
    latents = [spec for name, (_, spec) in steps.items() if name.startswith("sae-probe-")]
    assert {(s.source, s.phase) for s in latents} == {("sae-latents", phase) for phase in range(4)}

    step, edits = steps["edits"]
    assert (edits.prefixes, edits.future, edits.future_unit) == ((4, 9, 14, 19, 24, 29, 34), 6, "plies")
    assert step.units == 7 * 71_151 >= 498_057
    assert (edits.scales, edits.layers, edits.scale_rule, edits.token_mask) == ((0.5, 1.0), (1,), "ln-final", "last")
    assert (edits.patch, edits.random_controls) == ("unit", 1)
    assert (len(edits.other_probes), len(edits.other_black_probes)) == (3, 3)
    for strength in (steps["edit-sweep"][1], steps["edit-strength"][1]):
        assert strength.scales == (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
    assert steps["edits-published-code"][1].protocol == "published-code"
    assert steps["edits-paper"][1].protocol == "paper"
    assert {steps[name][1].scales for name in ("edits-published-code", "edits-paper")} == {(0.5,)}
    assert {str(layer) for layer in range(12)} == set(steps["edits-published-code"][1].layer_sets)
    assert steps["figure-4"][1].board == "d5=. e5=p d7=p e7=."
    assert len(steps["figure-4"][1].layer_sets) == Made.request.layers  # the paper does not state which

    markov = steps["markov-placement"][1]
    assert (markov.equal, markov.games, markov.resamples) == ("placement", 200_000, 1000)
    shortest = steps["legality-shortest"][1]
    assert (shortest.games, shortest.shortest) == (100_000, True)
    assert {steps[f"perplexity-{policy}"][1].end_token for policy in ("exclude", "include")} == {"exclude", "include"}


def test_at_paper_size_one_pass_over_the_tokens_trains_the_autoencoders_of_all_sites_and_expansions():
    steps = planned("paper", 12, 768)
    [(step, spec)] = [pair for pair in steps.values() if pair[0].kind == "sae"]
    assert (step.name, spec.expansions, spec.precision) == ("sae-blocks-all", (16, 2, 4, 8), "tf32")
    assert set(spec.hook_points) == {
        "blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(12)), "ln_final.hook_out"
    }  # fmt: skip
    assert step.units == 4 * 14
    derived = {name: spec for name, (_, spec) in steps.items() if getattr(spec, "sae", None)}
    assert len(derived) == len({(s.sae, s.expansion, s.layers, s.source, s.phase, s.cache) for s in derived.values()})
    assert {(spec.expansion, name.endswith("-of-4x")) for name, spec in derived.items()} >= {(16, False), (4, True)}


def test_the_reference_size_has_what_the_issue_asks_for():
    steps = planned("reference", 8, 192)
    assert steps["edits"][0].units == 7 * 2_000
    assert {s.tokens for n, (_, s) in steps.items() if n.startswith("sae-blocks")} == {1_500_000}
    assert len(steps["sae-smaller-4"][1].hook_points) == 3
    edits, smaller = (steps[f"edits-at-code-layer{behind}"][1] for behind in ("", "-of-4x"))
    made = {
        "probe",
        "black_probe",
        "other_probes",
        "other_black_probes",
        "patch",
        "random_controls",
        "shuffled_label_controls",
    }
    assert edits.model_dump(exclude=made) == smaller.model_dump(exclude=made)  # the same cases under the same edits
    numbers = {
        name: f"run:{number:064x}"
        for step in ("edits-at-code-layer-of-4x", "early-sae-3-at-code-layer-of-4x")
        for number, name in enumerate(sorted(steps[step][0].needs))
    }
    assert {steps[name][1].sae for name in steps if name.endswith("-of-4x") and name.startswith("early-")} == {
        numbers["sae-smaller-4"]
    }
    assert steps["legality"][1].games == 1000
    assert sum(name.startswith("twin-") and name.endswith("-joint-3-blocks") for name in steps) == 3


def test_a_match_is_played_with_the_chosen_edit_and_with_a_random_one_of_its_length():
    for size in SIZE_NAMES:
        steps = planned(size, 8, 192)
        vector = steps["unseen-pieces"][1]
        assert (vector.board, vector.layers) == ("b1=. c1=. d1=. f1=. g1=.", (1,))
        plain, edited, random = (steps[f"match-{name}"][1] for name in ("none", "unseen", "random"))
        assert edited.intervention.scale == random.intervention.scale == Made().value("")
        assert (plain.intervention.vector, edited.intervention.control, random.intervention.control) == (
            None, "none", "random",
        )  # fmt: skip
        rest = {spec.model_copy(update={"intervention": None}).model_dump_json() for spec in (plain, edited, random)}
        assert len(rest) == 1


def test_a_sweep_without_the_chosen_edit_gives_no_length_rather_than_0():
    made = Made()
    made.value = lambda statement: None
    with pytest.raises(BadInputError, match="no edit of layer 1 with scale 1: it gives no length"):
        measure_edit_length(made)


def test_games_that_choose_are_none_of_those_that_are_reported():
    for size in SIZE_NAMES:
        steps = planned(size, 8, 192)
        assert {step.name for step, _ in steps.values() if step.choice} == {"edit-sweep"}
        for step, spec in steps.values():
            dataset = getattr(spec, "dataset", None)
            if step.kind in ("edit", "markov", "perplexity", "token-legality") and dataset is not None:
                every_game = {"legality-shortest": "train", "edits-published-code": "test", "edits-paper": "test"}
                wanted = "test:validation" if step.choice else "test:test"
                assert dataset == (every_game.get(step.name, wanted) if size == "paper" else wanted)
            elif step.kind in ("cache", "sae"):
                assert dataset == ("test:test" if step.name.endswith("-test") else "train")


def test_a_model_of_other_texts_is_refused_at_once(world_session):
    with pytest.raises(BadInputError, match="reference writes pgn-char-32, but the paper is about models of UCI"):
        Work(world_session, find_paper("davis"), make_request(world_session, "reference", "sample", None, "small"))


def test_other_models_are_rows_of_table_2(world_session, world, capsys):
    """The paper's own, LCB's and two of PGN text are compared."""
    asked = Request("model", "train", "test", 8, 64, "small", other_models=("lcb", "pgn"))
    steps = {step.name: step for step in find_paper("davis").steps(asked)}
    own = {step.name for step in find_paper("davis").steps(replace(asked, other_models=()))}
    assert steps.keys() - own == {
        f"{kind}-of-{name}"
        for kind in ("perplexity-exclude", "perplexity-include", "legality")
        for name in asked.other_models
    }
    assert steps["legality-of-lcb"].settings == {**steps["legality"].settings, "checkpoint": "lcb"}
    for sheet in find_paper("davis").sheets[:2]:
        assert any(
            fnmatchcase("perplexity-exclude-of-lcb", p) or fnmatchcase("legality-of-lcb", p) for p in sheet.steps
        )
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store"), "paper"]
    for words, said in (
        (["karvonen", "--checkpoint", "reference", "--beside", "reference"], "has no option --beside"),
        (["davis", "--checkpoint", "reference", "--beside", "reference"], "repeats a model"),
        (["davis", "--checkpoint", "reference", "--beside", "nobody"], "nobody"),
    ):
        assert run_command_line([*place, *words, "--dataset", "sample", "--size", "small", "--dry-run"]) != 0
        assert said in capsys.readouterr().err


def test_the_best_site_is_chosen_on_validation_games_and_reported_on_test_games():
    made = {  # points above the control: on validation games, and on test games
        "blocks.0.hook_resid_post": (9.0, 5.0),
        "ln_final.hook_out": (6.0, 10.0),
    }
    rows = [
        {"phase": 1, "positions": "white-destinations", "hook_point": point, "split": split, "twins": 3,
         "minus_untrained": value, "minus_untrained_low": value - 1, "minus_untrained_high": value + 1}
        for point, values in made.items() for split, value in zip(("validation", "test"), values, strict=True)
    ]  # fmt: skip
    [found] = judge_best_site(rows, None)
    assert (found.what, found.value, found.outcome, found.row) == (
        "white-destinations, blocks.0.hook_resid_post, 3 twins", 5.0, "missed", 2,
    )  # fmt: skip


# -- the whole small paper ------------------------------------------------------------------------------------------


TRANSPOSED = (  # two positions by two move orders each
    "e2e4 e7e5 g1f3 b8c6 f1c4 g8f6 d2d3 d7d6", "g1f3 b8c6 e2e4 e7e5 f1c4 g8f6 d2d3 d7d6",
    "d2d4 d7d5 c2c4 e7e6 b1c3 g8f6 g1f3 f8e7", "c2c4 e7e6 d2d4 d7d5 g1f3 g8f6 b1c3 f8e7",
)  # fmt: skip


def make_davis(root, openings=("",)):
    """260 random games after these openings in turn, and an untrained model of UCI squares."""
    from chessreg.entities.adding import add_dataset
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    games = [random_game(n, 44, "davis", openings[n % len(openings)]) for n in range(260)]
    (root / "games.pgn").write_text("".join(f"{game}\n\n" for game in games))
    network = make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=128, vocab_size=72), seed=5)
    save_checkpoint(network, root / "model", CheckpointInfo.from_network(network, "uci-square-72"))
    with open_session(str(root / "registry.db"), root / "store") as session:
        add_dataset(session.database, session.store, [root / "games.pgn"], name="games")
        import_checkpoint(session.database, session.store, root / "model", name="model")


def complete(session):
    """How many runs are complete."""
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).where(tables.Run.completed_at.is_not(None)))


@pytest.fixture(scope="module")
def davis(tmp_path_factory):
    root = tmp_path_factory.mktemp("davis")
    make_davis(root)
    return root


def test_a_dry_run_counts_the_games_that_are_there_and_says_which_are_too_few(davis, capsys):
    """260 games: half to fit, a tenth to choose, two fifths to test (104 before the parts are made)."""
    place = ["--registry", str(davis / "registry.db"), "--store", str(davis / "store"), "paper", "davis"]
    words = [*place, "--checkpoint", "model", "--dataset", "games", "--size", "paper", "--dry-run"]
    assert run_command_line([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    steps = {step["step"]: step for step in plan["steps"]}
    full = {step.name: step for step in find_paper("davis").steps(Request("model", "games", "games", 2, 32, "paper"))}
    assert (steps["legality"]["units"], full["legality"].units) == (104, 120_000)
    assert steps["edits"]["rows"]["trial"] == 104 * 7 * 15  # its games are named though its settings follow
    probe = steps["model-joint-0-blocks"]
    assert probe["units"] == full["model-joint-0-blocks"].units == 2  # layers
    assert probe["rows"]["score"] <= full["model-joint-0-blocks"].rows["score"] / 900
    assert "games:test has 104 games, fewer than the 200,000 that this size reads" in plan["too_few_games"]
    rate = 1e9
    whole = sum(estimate_step_seconds(step, rate) or 0 for step in full.values())
    assert sum(step["cpu_seconds"] or 0 for step in plan["steps"]) < whole / 50
    assert run_command_line([*words, "--only", "legality"]) == 0
    assert "games:test has 104 games, fewer than the 120,000" in capsys.readouterr().err


def test_tens_of_millions_of_trials_are_a_matter_for_postgresql(davis, capsys, monkeypatch):
    from chessreg.cli import paper as command

    place = ["--registry", str(davis / "registry.db"), "--store", str(davis / "store"), "paper", "davis"]
    words = [*place, "--checkpoint", "model", "--dataset", "games", "--size", "paper", "--dry-run"]
    assert run_command_line(words) == 0
    assert "PostgreSQL" not in capsys.readouterr().err
    monkeypatch.setattr(command, "MANY_TRIALS", 50_000)
    assert run_command_line(words) == 0
    assert re.search(r"trials need about \d+ GB in SQLite; PostgreSQL is faster", capsys.readouterr().err)


@pytest.mark.slow
def test_every_command_that_the_report_prints_runs_as_printed(davis, capsys):
    place = ["--registry", str(davis / "registry.db"), "--store", str(davis / "store")]
    tables_of = davis / "tables"
    only = [word for step in ("legality", "perplexity-exclude") for word in ("--only", step)]
    words = ["paper", "davis", "--checkpoint", "model", "--dataset", "games", "--size", "small"]
    assert run_command_line([*place, *words, *only, "--output", str(tables_of)]) == 0
    printed = set()
    for page in tables_of.glob("*.md"):
        printed |= set(re.findall(r"(?m)^ {4}(chessreg .+)$", page.read_text()))
    assert {command.split()[1] for command in printed} == {"query", "paper"}
    for command in sorted(printed):
        _, *arguments = shlex.split(command.replace("--rows N", "--rows 1"))
        dry = ["--dry-run"] if arguments[0] == "paper" and "--report" not in arguments else []
        where = ["--output", str(tables_of)] if arguments[0] == "paper" else []
        assert run_command_line([*place, *arguments, *dry, *where]) == 0, (command, capsys.readouterr().err)
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_small_paper_goes_on_where_it_was_killed_and_writes_every_table_and_figure(tmp_path, spawn, monkeypatch):
    make_davis(tmp_path, TRANSPOSED)
    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    asked = ["paper", "davis", "--checkpoint", "model", "--dataset", "games", "--size", "small", "--threads", "1"]
    process = spawn([*place, *asked, "--output", str(tmp_path / "never")])
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        work = Work(
            session, find_paper("davis"), make_request(session, "model", "games", None, "small"), {"threads": 1}
        )
        while process.is_alive() and complete(session) < 12:
            time.sleep(0.2)
        process.kill()
        process.join()
        work.plan()
        before = dict(work.references)
        assert not work.run_steps()
        assert len(before) >= 12
        assert before.items() <= work.references.items()
        assert {name.split("-")[2] for name in work.refusal_reasons} == {"4"}  # promotions: a handful of positions
        assert work.is_finished
        written = write_report(work, tmp_path / "tables")
    assert [each.title for each in written] == [
        *(sheet.title for sheet in work.paper.sheets), *(picture.title for picture in work.paper.pictures),
        RESULT_TITLE,
    ]  # fmt: skip
    assert all(each.files and (each.rows is None or each.rows) for each in written)
    for each in written:
        for file in each.files:
            assert (tmp_path / "tables" / file).stat().st_size
    index = (tmp_path / "tables" / "index.md").read_text()
    refused = [line.split(" | ") for line in index.splitlines() if " | refused | " in line]
    assert {line[0].split("-")[2] for line in refused} == {"4"}
    assert all(line[3].startswith("Tables 4 and 5: ") for line in refused)
    assert "fit and test 0 of" in index
    lines = list(csv.DictReader((tmp_path / "tables" / "reference-result.csv").open()))
    assert {line["quantity"] for line in lines} == {each.quantity for each in work.paper.expectations}
    assert {line["outcome"] for line in lines} <= {"met", "missed", "not decided", ""}
    published = (tmp_path / "tables" / "protocols-published.csv").read_text()
    assert "checkpoint: not the paper's (no tag davis-2026:gpt)" in published
    monkeypatch.chdir(tmp_path)  # some commands write a picture into the working directory
    commands = list(printed_commands(tmp_path / "tables"))
    assert {"query", "paper"} <= {words[0] for words in commands}
    queried = {word for words in commands if words[0] == "query" for word in words}
    assert {sheet.query for sheet in work.paper.sheets} <= queried
    for words in commands:
        assert run_command_line([*place, *words]) == 0, words


def test_probes_are_planned_about_as_long_as_they_take():
    """CPU seconds on a machine of 98 Gflop/s, of the reference size: of latents they had been planned thirty times."""
    steps = {s.name: s for s in find_paper("davis").steps(Request("model", "train", "test", 8, 192, "reference"))}
    measured = {"early-sae-1": 42, "early-sae-1-at-code-layer-of-4x": 17, "early-cd-1": 9, "early-joint-1": 84}
    for name, took in measured.items():
        assert took / 2 < estimate_step_seconds(steps[name], 98e9) < 2 * took, name
