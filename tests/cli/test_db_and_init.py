"""`chessreg init` and `chessreg db`, as they are typed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.registry import migrations
from chessreg.registry.sqlite import dbapi as sqlite3
from store import Store


@pytest.fixture
def migrated_once() -> None:
    """Here every registry is made as users make it."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("CHESSREG_REGISTRY", "CHESSREG_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def chessreg(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Types a line; returns its exit status and its JSON output (on stdout, or on stderr when it failed)."""

    def go(line: str) -> tuple[int, Any]:
        status = run_command_line([*line.split(), "--json"])
        out, err = capsys.readouterr()
        return status, json.loads(out or err)

    return go


def test_init_makes_the_registry_and_the_store_of_the_folder_once(chessreg: Any, here: Path) -> None:
    status, first = chessreg("init")
    assert status == 0
    assert first["registry"] == str(here / ".chessreg" / "registry.db")
    assert Store(here / ".chessreg" / "store").root == Path(first["store"])
    assert (here / ".chessreg" / ".gitignore").read_text() == "*\n"
    (here / ".chessreg" / ".gitignore").write_text("mine\n")
    assert chessreg("init") == (0, first)
    assert (here / ".chessreg" / ".gitignore").read_text() == "mine\n"


def test_init_elsewhere_leaves_no_file_that_was_not_asked_for(chessreg: Any, here: Path) -> None:
    assert chessreg("init --registry reg.db --store big")[0] == 0
    assert {path.name for path in here.iterdir()} >= {"reg.db", "big"}
    assert not (here / ".chessreg").exists()
    assert not (here / ".gitignore").exists()


def test_the_store_lies_beside_the_registry_wherever_that_is(
    chessreg: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "lab").mkdir()
    for line in ("init --registry lab/registry.db", "init --registry lab"):
        _, said = chessreg(line)
        assert (said["registry"], said["store"]) == (str(here / "lab" / "registry.db"), str(here / "lab" / "store"))
    monkeypatch.setenv("CHESSREG_REGISTRY", str(here / "lab"))
    assert chessreg("init")[1]["store"] == str(here / "lab" / "store")
    assert chessreg("runs list")[0] == 0
    monkeypatch.delenv("CHESSREG_REGISTRY")
    chessreg("init")
    assert chessreg(f"init --registry {here}")[1]["registry"] == str(here / ".chessreg" / "registry.db")
    assert {path.name for path in here.iterdir()} == {"lab", ".chessreg"}


def test_status_says_how_the_schema_stands_and_makes_nothing(chessreg: Any, here: Path) -> None:
    status, said = chessreg("db status")
    assert (status, said["hint"]) == (3, "chessreg init")
    assert list(here.iterdir()) == []
    chessreg("init")
    head = migrations.get_head_revision()
    status, said = chessreg("db status")
    assert (status, said["state"], said["current"], said["head"]) == (0, "equal", head, head)
    with closing(sqlite3.connect(".chessreg/registry.db", isolation_level=None)) as connection:
        connection.execute("UPDATE chessreg_version SET version_num = '9999'")
    status, said = chessreg("db status")
    assert (status, said["state"]) == (1, "unknown")
    status, said = chessreg("db upgrade")
    assert (status, said["hint"]) == (1, "pip install -U chessreg, or make a new registry with chessreg init")


def test_upgrade_makes_a_registry_and_says_what_it_did(chessreg: Any, here: Path) -> None:
    head = migrations.get_head_revision()
    assert chessreg("db upgrade --registry r.db") == (
        0,
        {"registry": str(here / "r.db"), "before": None, "schema": head},
    )
    assert chessreg("db upgrade --registry r.db")[1]["before"] == head


def test_upgrade_of_a_foreign_database_wants_to_be_told(chessreg: Any, here: Path) -> None:
    with closing(sqlite3.connect("theirs.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE studies (id INTEGER)")
    status, said = chessreg("db upgrade --registry theirs.db")
    assert status == 1
    assert "--shared" in said["hint"]
    assert chessreg("db upgrade --shared --registry theirs.db")[0] == 0


def test_backup_copies_the_registry(chessreg: Any, here: Path) -> None:
    chessreg("init")
    status, said = chessreg("db backup")
    assert status == 0
    assert Path(said["backup"]).parent == here / ".chessreg" / "backups"
    assert said["bytes"] == Path(said["backup"]).stat().st_size
    assert chessreg("db backup --to copy.db")[1]["backup"] == "copy.db"
    assert migrations.read_schema_status("copy.db").state == "equal"
    status, said = chessreg("db backup --to copy.db")
    assert (status, said["error"]) == (1, "copy.db exists already")
    assert chessreg("db backup --to no/where.db")[0] == 1


@pytest.mark.parametrize("line", ["db status", "db backup", "db upgrade", "init"])
def test_a_file_of_something_else_is_bad_input(chessreg: Any, here: Path, line: str) -> None:
    (here / "notes.txt").write_text("my notes, quite long ones")
    status, said = chessreg(f"{line} --registry notes.txt")
    assert status == 4
    assert said["error"] == f"the registry {here / 'notes.txt'} is not a SQLite database"


def test_a_server_that_does_not_answer_is_named_without_the_password(chessreg: Any) -> None:
    status, said = chessreg("db status --registry postgresql://me:hunter2@localhost:1/x")
    assert status == 1
    assert "me:***@localhost:1/x does not answer" in said["error"]
    assert "hunter2" not in json.dumps(said)


def test_an_emptied_bin_is_told_to_scripts_and_a_time_to_come_is_refused(chessreg: Any) -> None:
    assert chessreg("init")[0] == 0
    assert chessreg("gc --empty") == (0, {"bytes": 0})
    status, said = chessreg("gc --days -1")
    assert status != 0
    assert "-1" in said["error"]
