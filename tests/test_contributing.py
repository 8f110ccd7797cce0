"""CONTRIBUTING.md and ARCHITECTURE.md are correct: every worked example is run, every path exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from click.testing import CliRunner

from chessreg.cli import chessreg
from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.probe_apply import ApplySpec
from chessreg.models.decoding.session import DecodingSession
from chessreg.registry import tables
from chessreg.runs.kind import find_kind

from .conftest import world_game

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))


def test_there_is_an_example_of_each():
    assert list(EXAMPLES) == [
        "centre_kind.py", "mobility_kind.py", "mlp_probe.py", "centre_kind.sql", "encoding.py", "adapter.py",
        "tests/entities/toy_entity.py",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kind") / "centre_kind.py"
    path.write_text(EXAMPLES["centre_kind.py"])
    return str(path)


def test_the_kind_reads_games_resumes_and_draws(world_session, centre):
    session, found = world_session, find_kind(centre)
    spec = found.spec(dataset="sample", games=6, plies=2)
    report = session.run(spec, kind=centre, name="six")
    assert (report.state, report.units) == ("complete", 6)
    assert session.run(spec, kind=centre).attempt_id is None
    with session.database.read() as sql:
        scores = sql.query(tables.Score).filter_by(run_id=report.run_id).order_by(tables.Score.item).all()
    for score in scores:
        board = chess.Board()
        for move in [*world_game(score.item).mainline_moves()][:2]:
            board.push(move)
        assert score.detail["fen"] == board.fen()
        assert score.correct == ("P" in {str(board.piece_at(square)) for square in (chess.E4, chess.D4)})
    (view,) = found.board_views(scores[0].detail, session.inputs)
    assert view.squares is not None


def test_a_kind_of_probe_is_scored_listed_applied_and_edited_with_as_a_linear_one(world_session, tmp_path):
    session, file = world_session, tmp_path / "mlp_probe.py"
    file.write_text(EXAMPLES["mlp_probe.py"])
    found = find_kind(str(file))
    settings = {"cache": "reference-fit", "test_cache": "reference-test", "learning_rate": 0.003, "layers": (1,)}
    report = session.run(found.spec(**settings, hidden=8), kind=str(file), name="mlp")
    assert report.state == "complete"
    (row,) = (
        row for row in session.query("best probe layers").rows if (row["runs"], row["selected_on"]) == ("mlp", "test")
    )
    assert (row["probe"], row["layer"]) == ("mlp-probe", 1)
    applied = session.run(ApplySpec(probe="mlp", cache="reference-test"))
    with session.database.read() as sql:
        made, again = (
            sql.query(tables.Score).filter_by(run_id=run, split="test").order_by(tables.Score.item).all()
            for run in (report.run_id, applied.run_id)
        )
    assert [each.correct for each in made] == [each.correct for each in again] != []
    probe = session.probe("mlp", layer=1)
    residual = torch.randn(3, probe.weight.shape[0])
    hidden = torch.relu(residual @ torch.from_numpy(probe.tensors["w1"]) + torch.from_numpy(probe.tensors["b1"]))
    expected = (hidden @ torch.from_numpy(probe.tensors["w2"])).view(3, 64, 13)
    torch.testing.assert_close(probe.reader()(residual), expected)
    edited = session.run(EditSpec(checkpoint="reference", probe="mlp", dataset="sample:test", games=2, per_game=1))
    assert (edited.state, edited.units) == ("complete", 2)


def test_the_query_shows_what_the_kind_made(world_session, centre):
    session = world_session
    Path(centre).with_suffix(".sql").write_text(EXAMPLES["centre_kind.sql"])
    found = find_kind(centre)
    report = session.run(found.spec(dataset="sample", games=30, plies=6), kind=centre, name="thirty")
    (row,) = (row for row in session.query("pawns in the centre").rows if row["run"] == "thirty")
    with session.database.read() as sql:
        scores = sql.query(tables.Score).filter_by(run_id=report.run_id).all()
    assert (row["run"], row["n"]) == ("thirty", 30)
    assert row["there"] == pytest.approx(100 * sum(score.correct for score in scores) / 30)
    assert row["there_low"] <= row["there"] <= row["there_high"]
    listed = CliRunner().invoke(chessreg, ["--registry", session.database.reference, "query", "--list"])
    assert "pawns in the centre" in listed.output
    asked = CliRunner().invoke(
        chessreg, ["--registry", session.database.reference, "query", "pawns in the centre", "--json"]
    )
    assert "thirty" in {row["run"] for row in json.loads(asked.output)["rows"]}


@pytest.fixture
def mobility(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a chessreg command on the kind with a tagged spec; returns its exit status, stdout and stderr."""
    path = tmp_path / "mobility_kind.py"
    path.write_text(EXAMPLES["mobility_kind.py"])

    def typed(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        where = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
        status = run_command_line([*where, *(str(path) if word == "KIND" else word for word in words)])
        return status, *capsys.readouterr()

    return typed


def test_a_tagged_spec_of_a_users_kind_shows_and_takes_the_settings_of_one_variant(mobility):
    _, shown, _ = mobility("run", "KIND", "--help")
    assert "  games   the games of a dataset\n  random  games of random moves\n" in shown
    settings = shown.partition("settings of every start")[2]
    assert "--plies" in settings
    assert "--positions" not in settings
    _, shown, _ = mobility("run", "KIND", "--start", "random", "--help")
    settings = shown.partition("settings of --start random")[2]
    assert "--positions" in settings
    assert "--dataset" not in settings
    for words, error in (
        ([], "--start: one of games, random"),
        (["--start", "random", "--dataset", "sample"], "--dataset belongs to --start games, not to random"),
        (["--start", "games"], "--dataset: field required"),
    ):
        status, _, told = mobility("run", "KIND", *words)
        assert (status, told.splitlines()[0]) == (4, f"error: {error}")


def test_a_tagged_spec_runs_is_read_back_swept_and_queried(mobility, tmp_path, world_session):
    status, out, told = mobility("run", "KIND", "--start", "games", "--dataset", "sample", "--games", "6", "--json")
    assert status == 0, told
    run = json.loads(out)["run_id"]
    assert mobility("run", "KIND", "--start", "games", "--dataset", "sample", "--games", "6", "--plies", "8")[0] == 0
    assert mobility("reproduce", run, "--rerun")[0] == 0
    (tmp_path / "spec.toml").write_text('start = "random"\npositions = 3\n')
    status, out, _ = mobility("run", "KIND", "--spec", str(tmp_path / "spec.toml"), "--json")
    assert (status, json.loads(out)["done"]) == (0, 3)
    asked = "select start, positions, games, count(*) as n from mobility_run group by all order by start"
    status, out, told = mobility("query", "--sql", asked, "--format", "csv")
    assert (status, out.split()) == (0, ["start,positions,games,n", "games,,6,1", "random,3,,1"]), told
    grid = ["--grid", "start=random|games", "--dry-run", "--json"]
    status, out, told = mobility("launch", "KIND", "--grid", "plies=2|4", "--start", "random", "--dry-run", "--json")
    assert [row["units"] for row in json.loads(out)["runs"]] == [10, 10], told
    _, _, told = mobility("launch", "KIND", "--positions", "3", *grid)
    assert "--positions belongs to --start random, not to games" in told


def test_the_form_of_a_tagged_spec_has_the_fields_of_the_chosen_variant(tmp_path):
    from tui.data.launch_form import Form

    path = tmp_path / "mobility_kind.py"
    path.write_text(EXAMPLES["mobility_kind.py"])
    form = Form(find_kind(str(path)), str(path))
    spec_fields = lambda: [one.path for one in form.fields if one.part == "spec"]
    assert spec_fields() == ["start", "seed", "replicate", "plies"]
    assert form.check().errors == {"start": "it is required"}
    form.set_text("start", "random")
    form.set_text("positions", "4")
    assert spec_fields() == ["start", "seed", "replicate", "plies", "positions"]
    assert form.check().spec.positions == 4
    form.set_text("start", "games")
    assert "positions" not in spec_fields()
    assert form.check().errors == {"dataset": "it is required"}
    assert "--positions" not in form.command()
    assert form.explicit_names == ("start",)
    form.set_text("start", "random|games")  # each run of a sweep has its own variant
    assert form.check().general == ["dataset: it is required"]
    form.set_text("start", "random")
    assert form.text("positions") == "4"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            'start: Literal["games"] = Field(',
            'start: Literal["games"] = Field("games", ',
            "start of OfGames has a default",
        ),
        (
            "class OfRandomPlay(Mobility):",
            "class OfRandomPlay(Mobility):\n    games: str = ''",
            "games is a number",
        ),
        ("OfGames | OfRandomPlay", "OfGames | Mobility", "the tag start of Mobility is missing"),
        ("OfGames | OfRandomPlay, Field", "int | str, Field", "neither a subclass of Spec nor a discriminated union"),
        (
            'Annotated[OfGames | OfRandomPlay, Field(discriminator="start")]',
            "OfGames | OfRandomPlay",
            "neither a subcl",
        ),
    ],
)
def test_a_tagged_spec_that_cannot_work_is_refused_with_the_reason(tmp_path, before, after, message):
    path = tmp_path / "mobility_kind.py"
    assert before in EXAMPLES["mobility_kind.py"]
    path.write_text(EXAMPLES["mobility_kind.py"].replace(before, after))
    with pytest.raises(BadInputError, match=message):
        find_kind(str(path))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run Python in a checkout, of links, that has the two files in their folders; returns stdout."""
    root, added = tmp_path_factory.mktemp("clone"), {"encodings": "encoding.py", "models/adapters": "adapter.py"}
    for name in ("store", "tui", "alembic", "migrations"):
        (root / name).symlink_to(ROOT / name)
    for folder in ("", "models", *added):
        (root / "chessreg" / folder).mkdir(exist_ok=True)
        for path in (ROOT / "chessreg" / folder).iterdir():
            if str(Path(folder, path.name)) not in {"models", *added}:
                (root / "chessreg" / folder / path.name).symlink_to(path)
    for folder, name in added.items():
        (root / "chessreg" / folder / "of_mine.py").write_text(EXAMPLES[name])

    def python(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return python


def test_a_file_in_the_folder_is_all_that_an_encoding_needs(clone):
    code = "from chessreg.encodings import get_encoding; print(get_encoding('uci-square-by-rank').size)"
    assert clone("-c", code) == "71\n"


@pytest.mark.slow
def test_a_file_in_the_folder_is_all_that_a_model_needs_to_be_imported_cached_and_asked(clone, world, tmp_path):
    clone(
        "-c",
        "from pathlib import Path; from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint\n"
        "from chessreg.models.adapters import get_adapter\n"
        "model = get_adapter('linear')(32, 16, 256).make_untrained(3)\n"
        f"save_checkpoint(model, Path({str(tmp_path / 'linear')!r}), CheckpointInfo.of(model, 'pgn-char-32'))",
    )

    def told(*words: str) -> dict[str, Any]:
        where = ("--registry", str(world / "registry.db"), "--store", str(world / "store"), "--json")
        return json.loads(clone("-m", "chessreg.cli", *words, *where))

    told("import", "checkpoint", str(tmp_path / "linear"), "--name", "linear")
    row = told("checkpoint", "show", "linear")
    assert (row["architecture"], row["layers"], row["heads"], row["source_format"]) == ("linear", 1, None, "chessreg")
    assert row["max_logit_difference"] < 1e-4
    games = ("--checkpoint", "linear", "--dataset", "sample:test", "--games", "2")
    assert told("run", "cache", *games, "--max-sites", "4")["state"] == "complete"
    assert told("run", "legality", *games, "--every", "8")["state"] == "complete"


@pytest.mark.slow
def test_the_encoding_fulfils_the_contract(tmp_path):
    """In a separate process, in which it is registered before the conformance suite lists the encodings."""
    (tmp_path / "example_encoding.py").write_text(EXAMPLES["encoding.py"])
    (name,) = re.findall(r'UciSquare\("([\w-]+)"', EXAMPLES["encoding.py"])
    suite = "tests/encodings/test_conformance.py"
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import example_encoding, pytest\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {suite!r}, '-k', {name!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d{2,} passed", done.stdout)


def test_the_adapter_is_saved_loaded_and_decodes(tmp_path):
    import torch

    from chessreg.models.adapters import ADAPTERS
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
    from chessreg.models.language_model import LanguageModel

    scope: dict[str, object] = {"__name__": "adapter_example"}
    try:
        exec(EXAMPLES["adapter.py"], scope)
        model = scope["Linear"](32, 16, 64).make_untrained(3)  # type: ignore[operator]
        save_checkpoint(model, tmp_path, CheckpointInfo.from_network(model, "pgn-char-32"))
        loaded = LanguageModel.load(tmp_path)
        tokens = torch.tensor([[15, 6, 4, 27, 9]])
        assert torch.equal(loaded.network(tokens), model(tokens))
        assert (loaded.adapter, loaded.n_layers, loaded.d_model) == ("linear", 1, 16)
        session = DecodingSession(loaded, 1)
        session.feed([[15, 6, 4]])
    finally:
        ADAPTERS.pop("linear", None)


def test_the_entity_is_the_one_that_its_tests_put_through_everything():
    assert EXAMPLES["tests/entities/toy_entity.py"] == (ROOT / "tests" / "entities" / "toy_entity.py").read_text()


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_that_is_named_is_there(name):
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
    named = set(
        re.findall(r"`((?:chessreg|store|tui|tests|runs|queries|scheduling|registry|cli|experiments)/[\w/.]*)`", text)
    )
    assert len(named) > 10 or name == "CONTRIBUTING.md"
    missing = [path for path in sorted(named) if not ((ROOT / path).exists() or (ROOT / "chessreg" / path).exists())]
    assert missing == ["chessreg/entities/lens.py"] * (name == "CONTRIBUTING.md")
