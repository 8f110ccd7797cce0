"""CONTRIBUTING.md and ARCHITECTURE.md say what works: every worked example is run, every path is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chessreg.cli import chessreg
from chessreg.registry import tables
from chessreg.runs.kind import kind

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))


def test_there_is_an_example_of_each():
    assert list(EXAMPLES) == [
        "centre_kind.py", "centre_kind.sql", "encoding.py", "adapter.py", "tests/entities/toy_entity.py",
    ]  # fmt: skip


@pytest.fixture
def centre(tmp_path: Path) -> str:
    path = tmp_path / "centre_kind.py"
    path.write_text(EXAMPLES["centre_kind.py"])
    return str(path)


def test_the_kind_runs_resumes_and_draws(session, centre):
    found = kind(centre)
    report = session.run(found.spec(games=6), kind=centre, name="six")
    assert (report.state, report.units) == ("complete", 6)
    assert session.run(found.spec(games=6), kind=centre).attempt_id is None
    (view,) = found.board_views({"fen": "8/8/8/8/4P3/8/8/K1k5 w - - 0 1"}, session.inputs)
    assert view.squares is not None


def test_the_query_shows_what_the_kind_made(session, centre):
    Path(centre).with_suffix(".sql").write_text(EXAMPLES["centre_kind.sql"])
    found = kind(centre)
    session.run(found.spec(games=30, plies=6), kind=centre, name="thirty")
    (row,) = session.query("pawns in the centre").rows
    with session.database.read() as sql:
        scores = sql.query(tables.Score).all()
    assert (row["run"], row["n"]) == ("thirty", 30)
    assert row["there"] == pytest.approx(100 * sum(score.correct for score in scores) / 30)
    assert row["there_low"] <= row["there"] <= row["there_high"]
    listed = CliRunner().invoke(chessreg, ["--registry", session.database.url, "query", "--list"])
    assert "pawns in the centre" in listed.output
    asked = CliRunner().invoke(chessreg, ["--registry", session.database.url, "query", "pawns in the centre", "--json"])
    assert json.loads(asked.output)["rows"][0]["run"] == "thirty"


def test_a_file_in_the_folder_is_all_that_an_encoding_and_an_adapter_need(tmp_path):
    """In a copy of chessreg, of links, with the two files in their folders."""
    copy, added = tmp_path / "chessreg", {"encodings": "encoding.py", "models/adapters": "adapter.py"}
    for folder in ("", "models", *added):
        (copy / folder).mkdir(exist_ok=True)
        for path in (ROOT / "chessreg" / folder).iterdir():
            if not (copy / folder / path.name).exists() and str(Path(folder, path.name)) not in {"models", *added}:
                (copy / folder / path.name).symlink_to(path)
    for folder, name in added.items():
        (copy / folder / "of_mine.py").write_text(EXAMPLES[name])
    script = (
        "from chessreg.encodings import encoding; from chessreg.models.adapters import adapter\n"
        "print(encoding('uci-square-by-rank').size, adapter('linear').__name__)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["71", "Linear"], done.stderr


@pytest.mark.slow
def test_the_encoding_fulfils_the_contract(tmp_path):
    """In a process of its own, where it is registered before the conformance suite asks what there is."""
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
        model = scope["Linear"](32, 16, 64).untrained(3)  # type: ignore[operator]
        save_checkpoint(model, tmp_path, CheckpointInfo.of(model, "pgn-char-32"))
        loaded = LanguageModel.load(tmp_path)
        tokens = torch.tensor([[15, 6, 4, 27, 9]])
        assert torch.equal(loaded.network(tokens), model(tokens))
        assert (loaded.adapter, loaded.n_layers, loaded.d_model) == ("linear", 1, 16)
        session = loaded.session(1)
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
