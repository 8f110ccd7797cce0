"""`chessreg doctor`: missing parts, and the commands that install them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import stat
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.registry.sqlite import dbapi as sqlite3


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Types `chessreg doctor`; returns the exit status and the checks by name."""
    monkeypatch.chdir(tmp_path)
    for name in ("CHESSREG_REGISTRY", "CHESSREG_STORE", "CHESSREG_STOCKFISH"):
        monkeypatch.delenv(name, raising=False)

    def go(line: str = "") -> tuple[int, dict[str, dict[str, str]]]:
        status = run_command_line(["doctor", *line.split(), "--json"])
        return status, {check["check"]: check for check in json.loads(capsys.readouterr().out)}

    return go


def test_in_a_new_folder_it_says_how_to_begin_and_makes_nothing(doctor: Any, tmp_path: Path) -> None:
    _, checks = doctor()
    assert (checks["schema"]["state"], checks["schema"]["hint"]) == ("optional", "chessreg init")
    assert checks["registry"]["state"] == checks["disk"]["state"] == checks["packages"]["state"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_registry_that_is_well_is_said_to_be(doctor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_command_line(["init"])
    capsys.readouterr()
    _, checks = doctor()
    assert {checks[name]["state"] for name in ("registry", "schema", "store")} == {"ok"}


def test_a_store_that_is_gone_is_told_where_something_was_in_it(
    doctor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command_line(["init"])
    shutil.rmtree(tmp_path / ".chessreg" / "store")
    capsys.readouterr()
    assert doctor()[1]["store"]["state"] == "ok"
    run_command_line(["import", "checkpoint", "--reference=fen"])
    shutil.rmtree(tmp_path / ".chessreg" / "store")
    capsys.readouterr()
    status, checks = doctor()
    assert status == 1
    assert "is gone, and 1 artifacts with it" in checks["store"]["detail"]


@pytest.mark.slow
def test_a_file_of_others_among_fragments_is_told_and_stops_nothing(
    doctor: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command_line(["init"])
    run_command_line(["import", "checkpoint", "--reference=fen", "--name", "fen"])
    store = tmp_path / ".chessreg" / "store"
    for name in ("zz.jsonl.zst", "zz (1).1.2.jsonl.zst"):
        (store / "fragments" / "incoming" / name).write_text("junk")
    (weights,) = store.rglob("model.safetensors")
    weights.chmod(0o600)
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    assert run_command_line(["checkpoint", "list"]) == 0
    assert run_command_line(["recover", "--list"]) == 0
    capsys.readouterr()
    run_command_line(["doctor", "--digests", "--json"])
    details = [check["detail"] for check in json.loads(capsys.readouterr().out)]
    assert sum("is not a fragment of a run" in detail for detail in details) == 2
    assert any("model.safetensors" in detail for detail in details)


@pytest.mark.parametrize(("level", "state"), [("FULL", "ok"), ("NORMAL", "optional")])
def test_what_a_commit_promises_is_said(
    level: str, state: str, doctor: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHESSREG_SYNCHRONOUS", level)
    run_command_line(["init"])
    capsys.readouterr()
    _, checks = doctor()
    assert checks["durability"]["state"] == state
    assert f"synchronous={level}" in checks["durability"]["detail"]


def test_missing_programs_come_with_the_command_that_installs_them(
    doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: "/usr/bin/apt-get" if name == "apt-get" else None)
    status, checks = doctor()
    assert status == 1
    for name in ("stockfish", "git"):
        assert checks[name]["state"] == "missing"
        assert checks[name]["hint"].endswith(f"apt-get install {name}")
    assert checks["tmux"]["state"] == "optional"


def test_another_schema_is_named_with_the_command_that_mends_it(
    doctor: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command_line(["init"])
    capsys.readouterr()
    with closing(sqlite3.connect(".chessreg/registry.db", isolation_level=None)) as connection:
        connection.execute("UPDATE chessreg_version SET version_num = '9999'")
    status, checks = doctor()
    assert status == 1
    assert (checks["schema"]["state"], checks["schema"]["hint"]) == ("broken", "pip install -U chessreg")


def test_a_full_disk_and_a_network_file_system_are_told(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chessreg.cli.doctor.FREE_BYTES", 2**70)
    monkeypatch.setenv("CHESSREG_NETWORK_FILESYSTEM", "1")
    status, checks = doctor()
    assert status == 1
    assert checks["disk"]["state"] == "broken"
    assert "one process at a time writes" in checks["file system"]["detail"]


@pytest.mark.parametrize("mode", [0o755, 0o2775])
def test_what_everybody_can_read_is_told_with_the_command(
    doctor: Any, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place, whose = Path(folder) / "old", "o" if mode & stat.S_ISGID else "go"
        Path(folder).chmod(0o755)
        place.mkdir()
        assert run_command_line(["init", "--registry", str(place)]) == 0
        capsys.readouterr()
        line = f"--registry {place}"
        assert doctor(line)[1]["registry"]["state"] == "ok"
        place.chmod(mode)
        (place / "registry.db").chmod(0o644)
        (place / "store").chmod(mode)
        _, checks = doctor(line)
        for name, path in (("registry", place / "registry.db"), ("store", place / "store")):
            assert checks[name]["state"] == "optional"
            assert checks[name]["hint"] == f"chmod -R {whose}-rwx {path}"
        (Path(folder)).chmod(0o700)
        assert doctor(line)[1]["registry"]["state"] == "ok"


def test_a_server_that_does_not_answer_is_a_finding_not_a_failure(doctor: Any) -> None:
    status, checks = doctor("--registry postgresql://me:hunter2@localhost:1/x")
    assert status == 1
    assert "does not answer" in checks["registry"]["detail"]
    assert "hunter2" not in json.dumps(checks)
    assert checks["disk"]["state"] == "ok"


def test_what_was_found_before_a_check_broke_is_kept() -> None:
    from chessreg.cli.doctor import Check, run_checks
    from chessreg.errors import BadInputError

    def look(home: Any) -> Any:
        yield Check("one", "missing", "not here", "")
        raise BadInputError("it broke")

    assert [(check.check, check.state) for check in run_checks(look, None)] == [("one", "missing"), ("look", "broken")]  # type: ignore[arg-type]


def test_optional_packages_have_a_command_that_works_in_this_environment(
    doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    absent = {"ray", "peft"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name in absent else there(name, *of))
    _, checks = doctor()
    assert checks["ray"]["hint"].startswith(f"{sys.executable} -m pip install ")
    assert checks["peft"]["hint"] == f"{sys.executable} -m pip install 'peft<1,>=0.18'"
    absent.add("pip")  # as in environments that uv makes
    _, checks = doctor()
    assert checks["peft"]["hint"] == f"uv pip install --python {sys.executable} 'peft<1,>=0.18'"
