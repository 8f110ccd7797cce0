"""`chessreg paper` and `chessreg plot` as they are typed."""

from pathlib import Path

import pytest

from chessreg.papers import karvonen
from chessreg.papers.plan import Paper, Sheet, Step
from chessreg.papers.work import Work
from tests.conftest import PUZZLES

TOY = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")


def test_papers_are_listed(here):
    [row] = [row for row in here.json("paper", "list") if row["name"] == "karvonen"]
    assert "Table 1: probe accuracy, best layer" in row["sheets"]
    assert here("paper", "list") == 0
    assert "Karvonen 2024" in here.out


def test_what_is_missing_is_told_before_anything_is_done(here):
    before = here.state()
    assert here("paper", "karvonen", "--dataset", "games") == 2
    assert "--checkpoint" in here.err
    assert here("paper", "karvonen", "--checkpoint", "nothing", "--dataset", "games") == 3
    assert here.err.startswith("error: checkpoint 'nothing' was not found")
    assert here("paper", "karvonnen", "--checkpoint", "x") == 3
    assert "did you mean karvonen?" in here.err
    for option, value, message in (
        ("--device", "", "is not a device"),
        ("--device", "cuda:7", "cuda:7 does not exist"),
        ("--on", "", "executor '' does not exist"),
        ("--on", "moon", "executor 'moon' does not exist"),
        ("--output", "", "'--output': the name of the file is empty"),
        ("--save", " ", "'--save': the name of the file is empty"),
    ):
        assert here("paper", "karvonen", "--checkpoint", "x", "--dataset", "y", "--dry-run", option, value) in (2, 3, 4)
        assert message in here.err
    assert here.state() == before


def test_positions_that_name_no_game_leave_out_models_of_games_in_one_line(here):
    """As ChessBench's bags: every other model is planned, with the ladder of the paper."""
    (here.folder / "puzzles.csv").write_text(PUZZLES)
    assert here("dataset", "add", "puzzles.csv", "--name", "puzzles") == 0, here.err
    words = ("paper", "junkin", "--position-dataset", "puzzles", "--size", "paper", "--dry-run")
    plan = {step["step"]: step for step in here.json(*words)["steps"]}
    assert here.err == (
        "models of games (games-*, and the steps that need them) are left out: no position of puzzles names its game\n"
    )
    assert not any("games" in name for name in plan)
    for model in ("llama", "pythia", "bidirectional"):
        assert plan[f"ladder-{model}"]["units"] == 11_000
        assert "preset junkin-2025, 1,000 games a level, both colors" in plan[f"ladder-{model}"]["serves"]
    assert here("paper", "junkin", "--position-dataset", "puzzles", "--test", "puzzles", "--dry-run") == 4
    assert "--test needs --dataset" in here.err
    assert here(*words, "--language-model", "nothing") == 3
    assert here(*words, "--language-model", "nothing=fast") == 4
    assert "'fast' is not a learning rate" in here.err


@pytest.fixture
def toys(monkeypatch, here):
    """The paper's name, but toys for runs; and a model and games that it can name."""
    steps = [
        Step("a", TOY, {"positions": 4}, "Table 1", engine_seconds=90.0),  # and nothing that multiplies
        Step("b", TOY, {"positions": 3, "seed": 1}, "Table 2", ("a",)),
    ]
    sheets = (Sheet("table-1", "Table 1: nothing", "best probe layers"),)
    monkeypatch.setattr(karvonen, "PAPER", Paper("karvonen", "Toys", lambda request: steps, sheets))
    assert here("dataset", "add", "--sample", "--name", "sample") == 0, here.err
    assert here("import", "checkpoint", "--reference", "--name", "reference") == 0, here.err
    return ["paper", "karvonen", "--checkpoint", "reference", "--dataset", "sample", "--size", "small"]


def test_a_plan_a_run_and_a_run_again(here, toys, monkeypatch):
    plan = here.json(*toys, "--dry-run")
    assert [(s["step"], s["state"], s["units"]) for s in plan["steps"]] == [("a", "ready", 4), ("b", "waiting", 0)]
    assert plan["totals"]["cpu_seconds"] == plan["steps"][0]["cpu_seconds"] == 90.0
    assert not (here.folder / "papers").exists()
    assert here(*toys) == 0, here.err
    folder = here.folder / "papers" / plan["tag"]
    assert here.out.strip() == str(Path("papers") / plan["tag"] / "index.md")
    assert {"index.md", "table-1.md", "table-1.csv", "table-1-published.csv"} <= {p.name for p in folder.iterdir()}
    assert here(*toys) == 0
    assert "[2/2] b" in here.err
    assert here.err.count("is complete") == 2
    assert here.json(*toys, "--report", "--output", "elsewhere")["folder"] == "elsewhere"
    assert here(*toys, "--first", "nothing") == 3
    assert here.err.startswith("error: 'nothing' matches no step")
    assert here.json(*toys, "--first", "b", "--save", "done.zip")["complete"] == 2
    assert here(*toys, "--load", "done.zip", "--report") == 0
    assert "0 new results of 0 runs from done.zip" in here.err
    assert here(*toys, "--load", "done.zip", "--dry-run") == 4
    assert here.err.startswith("error: --load changes the registry")
    assert here(*toys, "--dry-run", "--save", "again.zip") == 4
    assert here.err.startswith("error: --dry-run, --save and --report exclude each other")
    assert not (here.folder / "again.zip").exists()

    def stopped(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # Ctrl-C where no run is at work
        patched.setattr(Work, "run_steps", stopped)
        assert here(*toys) == 130
        assert here.err.splitlines()[-1] == "interrupted: complete units are kept; the same command resumes"
    assert here(*toys[:5], "sample:test", *toys[6:]) == 4
    assert here.err.startswith("error: --dataset sample:test is a part")


def test_plots_are_listed_and_refused(here):
    titles = {row["title"] for row in here.json("plot", "--list")}
    assert {"win rate by level", "probe accuracy by layer", "score by intervention", "board edits"} <= titles
    assert here("plot") == 2
    assert here("plot", "scoer by intervntion") == 3
    assert here.err.splitlines()[1].startswith('hint: did you mean "score by intervention"')
    assert here("plot", "win rate by level", "--output", "x.gif") == 4
    assert here("plot", "win rate by level") == 4
    assert "nothing to plot" in here.err
    assert not list(here.folder.glob("*.svg"))
