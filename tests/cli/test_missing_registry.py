"""A missing registry: reading commands create nothing and report it, adding commands create it and print its path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chessreg.cli.root import run_command_line
from chessreg.errors import ChessregError

LOOKS = [
    "runs list", "runs show zz", "runs conflicts", "run --resume zz", "status", "machines", "jobs", "job show zz",
    "logs zz", "attach", "wait zz", "cancel zz", "retry zz", "priority zz --set 3", "supervisor status", "recover",
    "dataset list", "dataset show zz", "dataset split zz --parts a=1,b=1", "checkpoint list", "cache list",
    "probe list", "vector list", "game list", "board zz", "heatmap zz", "engine list", "lineage zz", "compare zz yy",
    "reproduce zz", "invalidate zz --why x", "push zz --to there", "pull zz", "gc", "export checkpoint zz there",
    "db status", "db backup", "lab zz --moves e4", "run legality --checkpoint zz --dataset zz --dry-run",
    "runs tag zz paper", "query --sql SELECT*FROM(runs)", "plot probe-accuracy",
]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("CHESSREG_REGISTRY", "CHESSREG_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def games(folder: Path) -> str:
    """A file of one game."""
    file = folder.with_name(f"{folder.name}.pgn")
    file.write_text('[Event "?"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n')
    return str(file)


@pytest.mark.parametrize("line", LOOKS)
def test_a_command_that_looks_makes_nothing(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (["--registry", "nothere/x.db"], []):
        assert run_command_line([*line.split(), *place]) == 3
        told = capsys.readouterr()
        path = here / (place[1] if place else ".chessreg/registry.db")
        making = f"chessreg init --registry {path}" if place else "chessreg init"
        assert told.err == f"error: registry {path} does not exist\nhint: {making}\n"
        assert told.out == ""
        assert list(here.iterdir()) == []


BAD = [
    "dataset add nothere.pgn", "dataset add empty.pgn", "dataset add words.pgn", "dataset add words.csv",
    "dataset add words.parquet", "dataset add good.pgn words.pgn", "dataset add good.pgn --name abcdef",
    "dataset add good.pgn --exclude jan", "dataset add good.pgn --within jan", "dataset fetch lichess 2013-13",
    "dataset generate --games 1 --pgn good.pgn", "dataset generate --games 1 --pgn nothere/new.pgn",
    "import checkpoint nothere.pt", "import checkpoint words.pt", "import checkpoint folder",
    "import checkpoint folder --encoding morse", "import checkpoint folder --encoding prompt",
    "import checkpoint --reference --name abcdef", "import checkpoint words.pt --trained-on jan",
    "import probe nothere.pth", "import probe words.pt", "import vector words.pt",
    "import probe words.pt --checkpoint model", "import results nothere.csv", "import results words.csv",
    "import results good.pgn --checkpoint model", "fetch nobody/nothing", "merge nothere", "merge folder",
    "merge words.csv", "dataset add https://example.org/games.pgn", "import checkpoint http://example.org/model.pt",
    "import probe tensor.pth",
    "run cache --checkpoint model --dataset jan", "run imported-games --file nothere.csv",
    "run train --architecture gpt2 --datasets jan --heldout jan", "run cache",
    "launch cache --checkpoint model --dataset jan",
    "launch imported-probe --files tensor.pth --on moon", "launch imported-probe --files tensor.pth --on slurm:",
]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_bad_input_makes_no_registry(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("words.pgn", "words.csv", "words.pt", "words.parquet"):
        (here / name).write_text("Call me Ishmael.\n")
    (here / "empty.pgn").touch()
    (here / "folder").mkdir()
    torch.save(torch.zeros(1, 32, 8, 8, 13), here / "tensor.pth")  # a probe that says neither its layer nor its model
    Path(games(here)).rename(here / "good.pgn")
    before = sorted(here.iterdir())
    assert run_command_line(line.split()) in (2, 3, 4)
    told = capsys.readouterr()
    assert "made the registry" not in told.err
    assert told.out == ""
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("place", ["nothere/", "nothere", "nothere.db", "sqlite:///nothere/x.db"])
def test_however_it_is_named(
    place: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command_line(["runs", "list", "--registry", place]) == 3
    monkeypatch.setenv("CHESSREG_REGISTRY", place)
    assert run_command_line(["status"]) == 3
    assert run_command_line(["doctor"]) in (0, 1)
    assert "chessreg init --registry " in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("place", [":memory:", "sqlite:///:memory:", "sqlite://", "file:x?mode=memory", ""])
@pytest.mark.parametrize("line", ["init", "runs list", "doctor", "tui --read-only"])
def test_memory_is_no_place_for_a_registry(
    place: str, line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line([*line.split(), "--registry", place]) == 4
    assert capsys.readouterr().err.startswith("error: ")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("option", ["--registry", "--store"])
def test_a_place_that_is_given_empty_is_refused_and_an_empty_variable_is_unset(
    option: str, blank: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ("runs list", "fetch", "init"):
        assert run_command_line([*line.split(), option, blank]) == 4
        assert capsys.readouterr().err == f"error: {option} is empty\nhint: leave {option} out\n"
    assert list(here.iterdir()) == []
    for name in ("CHESSREG_REGISTRY", "CHESSREG_STORE"):
        monkeypatch.setenv(name, "")
    assert run_command_line(["init"]) == 0
    assert (here / ".chessreg" / "store" / "store.json").is_file()


def test_a_pipe_is_no_registry_and_nobody_waits_for_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(here / "pipe")
    for line in ("runs list", "init"):
        assert run_command_line([*line.split(), "--registry", "pipe"]) == 4
        assert "is not a file" in capsys.readouterr().err


def test_a_command_that_adds_makes_it_and_says_where_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add = ["dataset", "add", games(here), "--name", "sample", "--registry", "new/"]
    assert run_command_line(add) == 0
    made = f"made the registry {here / 'new' / 'registry.db'}\n"
    assert capsys.readouterr().err.count(made) == 1
    assert run_command_line(add) == 0
    assert run_command_line(["runs", "list", "--registry", "new/registry.db"]) == 0
    assert made not in capsys.readouterr().err
    assert (here / "new" / "store").is_dir()


def test_the_own_folder_made_by_a_command_that_adds_is_no_source_code(here: Path) -> None:
    assert run_command_line(["dataset", "add", games(here)]) == 0
    assert (here / ".chessreg" / ".gitignore").read_text() == "*\n"


def test_rows_are_listed_without_their_store(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["dataset", "add", games(here), "--name", "sample"]) == 0
    (here / ".chessreg" / "registry.db").rename(here / "copy.db")
    capsys.readouterr()
    assert run_command_line(["dataset", "list", "--registry", "copy.db"]) == 0
    assert "sample" in capsys.readouterr().out
    said = f"not up to date: the store {here / 'store'} does not exist\n"
    for line in (
        "runs list", "status", "jobs", "machines", "dataset list", "dataset show sample", "checkpoint list",
        "lineage sample", "game list", "query --sql SELECT*FROM(run)", "query probe-accuracy",
    ):  # fmt: skip
        assert run_command_line([*line.split(), "--registry", "copy.db"]) == 0, line
        assert capsys.readouterr().err.count(said) == 1, line
    assert run_command_line(["dataset", "verify", "sample", "--registry", "copy.db"]) == 3
    assert not (here / "store").exists()


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_screen_makes_no_store_at_a_mistyped_path(
    by: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opens:
        """The app, until it reads the registry for the first time."""

        def __init__(self, opener: Callable[[], object], *_: object, **__: object) -> None:
            self.opener = opener

        def run(self) -> Exception | None:
            try:
                self.opener()
            except ChessregError as error:
                return error
            return None

    monkeypatch.setattr("tui.app.ChessregApp", Opens)
    monkeypatch.setenv("TEXTUAL_DRIVER", "a browser")
    assert run_command_line(["init"]) == 0
    if by == "environment":
        monkeypatch.setenv("CHESSREG_STORE", str(here / "typo"))
    assert run_command_line(["tui", *(["--store", "typo"] if by == "option" else [])]) == 3
    assert f"error: the store {here / 'typo'} does not exist" in capsys.readouterr().err
    assert not (here / "typo").exists()
