"""The command itself: help, errors, exit statuses, the home."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from chessreg.cli.base import Home, LazyCommand, LazyGroup, add_json_option, pass_home, print_output
from chessreg.cli.root import COMMANDS, move_options_to_front, root, run_command_line
from chessreg.errors import BadInputError, NotFoundError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "transformer_lens", "zarr", "textual", "ray", "pyarrow", "duckdb", "matplotlib")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in ("CHESSREG_REGISTRY", "CHESSREG_STORE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Makes a function the command `chessreg try`."""

    def add(function: Callable[..., Any]) -> None:
        monkeypatch.setitem(root.commands, "try", add_json_option(click.command("try")(pass_home(function))))

    return add


def modules_after(*lines: str) -> set[str]:
    """The top-level modules that a process has imported after these command lines."""
    script = (
        "import sys\n"
        "from chessreg.cli.root import run_command_line\n"
        f"status = max(run_command_line(line.split()) for line in {lines!r})\n"
        "print('\\nMODULES', *{name.partition('.')[0] for name in sys.modules})\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("line", ["--help", "--version", "db --help", "init --help", "doctor --help"])
def test_help_and_version_import_nothing_heavy(line: str) -> None:
    loaded = modules_after(line)
    assert "click" in loaded
    assert loaded.isdisjoint({*HEAVY, "sqlalchemy", "alembic", "numpy", "rich"})


def test_opening_and_listing_a_registry_imports_nothing_heavy_once_it_is_made(here: Path) -> None:
    assert run_command_line(["init"]) == 0
    registry = here / ".chessreg" / "registry.db"
    commands = ("db status", "runs list", "runs list --sort created", "checkpoint list", "dataset list", "machines")
    loaded = modules_after(*(f"--registry {registry} {command}" for command in commands))
    assert "sqlalchemy" in loaded
    assert loaded.isdisjoint({*HEAVY, "alembic", "pydantic", "numpy", "chess"})


def test_help_takes_less_than_a_fifth_of_a_second_of_processor_time() -> None:
    def seconds() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-m", "chessreg.cli", "--help"], cwd=ROOT, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(5)) < 0.2


def test_every_command_of_the_table_that_is_there_loads_and_bears_its_name() -> None:
    context = click.Context(root)
    there = [name for name in root.list_commands(context) if name in COMMANDS]
    assert {"init", "db", "doctor"} <= set(there)
    for name in there:
        loaded = root.get_command(context, name)
        assert isinstance(loaded, click.Command)
        assert loaded.name == name


def test_a_command_whose_module_is_missing_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    group = LazyGroup("group", lazy={"ghost": LazyCommand("chessreg.cli.ghost:ghost", "Boo."), "db": COMMANDS["db"]})
    with pytest.raises(SystemExit):
        group.main(["--help"])
    out = capsys.readouterr().out
    assert "ghost" not in out
    assert COMMANDS["db"].help in out


def test_an_unknown_command_brings_those_that_come_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["doctr"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: command 'doctr' does not exist; did you mean chessreg doctor?\nhint: chessreg --help\n"
    assert run_command_line(["sql", "select 1"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: command 'sql' does not exist; did you mean chessreg query --sql?\n"
    )
    assert run_command_line(["run", "./nothing.py"]) == 3  # a file, not a misspelled command
    assert capsys.readouterr().err.endswith("nothing.py does not exist\n")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (NotFoundError("there is no run 'x'", "chessreg run list"), 3, "error: there is no run 'x'"),
        (BadInputError("a.pgn is\nno PGN"), 4, "error: a.pgn is no PGN"),
        (OSError(28, "No space left on device", "/data/x"), 1, "error: the disk is full: /data/x"),
        (OSError(122, "Disk quota exceeded", "/data/x"), 1, "error: the disk is full: /data/x"),
        (KeyError("who"), 1, "error: unexpected KeyError: 'who'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "error: out of memory"),
        (OSError(12, "Cannot allocate memory"), 1, "error: out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "error: out of memory"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(
    command: Any, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    def fail(home: Home) -> None:
        click.echo("so far")
        raise error

    command(fail)
    assert run_command_line(["try"]) == status
    out, err = capsys.readouterr()
    assert out == "so far\n"
    assert err.strip().splitlines()[0] == line
    assert "Traceback" not in err
    assert run_command_line(["try", "--json"]) == status
    said = json.loads(capsys.readouterr().err.strip())
    assert said["code"] == status
    assert said["error"]
    assert said.keys() == {"error", "hint", "code"}


def test_an_error_of_the_store_is_told_like_any_other(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from store.errors import NotInStoreError

    def fail(home: Home) -> None:
        raise NotInStoreError("digest ab is not here", "chessreg push")

    command(fail)
    assert run_command_line(["try"]) == 3
    assert capsys.readouterr().err == "error: digest ab is not here\nhint: chessreg push\n"


def test_debug_shows_where(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(home: Home) -> None:
        raise NotFoundError("nothing")

    command(fail)
    assert run_command_line(["try", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_usage_errors_are_json_too_when_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["db", "status", "--json", "--nope"]) == 2
    said = json.loads(capsys.readouterr().err)
    assert said == {"error": "chessreg db status has no option --nope", "hint": "chessreg db status --help", "code": 2}


def test_the_home_is_found_wherever_its_options_stand(
    command: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []

    def look(home: Home) -> None:
        seen.append((str(home.place.path), str(home.store_path)))

    command(look)
    for line in ("try", "--registry a.db --store s try", "try --store=s --registry a.db"):
        assert run_command_line(line.split()) == 0
    monkeypatch.setenv("CHESSREG_REGISTRY", f"sqlite:///{here}/e.db")
    assert run_command_line(["try", "--registry", "there/a.db"]) == 0
    assert run_command_line(["try"]) == 0
    monkeypatch.setenv("CHESSREG_STORE", "e")
    for line in ("try", "try --registry a.db"):
        assert run_command_line(line.split()) == 0
    expected = [
        (".chessreg/registry.db", ".chessreg/store"),
        ("a.db", "s"),
        ("a.db", "s"),
        ("there/a.db", "there/store"),
        ("e.db", "store"),
        ("e.db", "e"),
        ("a.db", "e"),
    ]
    assert seen == [(str(here / registry), str(here / store)) for registry, store in expected]
    assert move_options_to_front(["a", "--", "--debug"]) == ["a", "--", "--debug"]


def test_a_command_can_call_others_in_its_own_home(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home("own.db")
    root.main(["init", "--json"], standalone_mode=False, obj=home)
    assert json.loads(capsys.readouterr().out)["registry"] == str(here / "own.db")
    assert home.database().data_version().endswith(".0")
    root.main(["init"], standalone_mode=False, obj=home)
    assert not home.json
    home.close()


def test_rows_are_printed_as_a_table_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, datetime
    from uuid import UUID

    rows = [
        {"id": UUID(int=255), "n": 12345, "rate": 0.98765, "name": "[b]x" * 60, "at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"id": UUID(int=1), "n": 1, "rate": float("nan"), "name": None, "at": None},
    ]
    print_output(True, rows)
    said = json.loads(capsys.readouterr().out)
    assert said[0]["id"] == UUID(int=255).hex
    assert said[0]["at"] == "2026-01-01T00:00:00+00:00"
    assert said[1] == {"id": UUID(int=1).hex, "n": 1, "rate": None, "name": None, "at": None}
    print_output(False, rows, {"id": "run", "n": "games", "rate": "rate", "name": "name"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "games", "rate", "name"]
    assert lines[2].split() == ["0000ff", "12,345", "0.9877", "[b]x" * 60]  # not cut, not taken for markup
    print_output(False, [])
    assert capsys.readouterr().out == ""
    print_output(True, [])
    assert json.loads(capsys.readouterr().out) == []


SLOW = """
import sys, time, click
from chessreg.cli.root import root, run_command_line
@root.command("linger")
def wait():
    click.echo("ready", err=True)
    time.sleep(60)
@root.command("pour")
def pour():
    for n in range(100000):
        click.echo("a line of text")
sys.exit(run_command_line(sys.argv[1:]))
"""


def test_an_interrupt_ends_with_130_and_one_line() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW, "linger"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read().strip() == "interrupted"
    assert process.wait(timeout=300) == 130


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "pour"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "a line of text\n"
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(timeout=300) == 141


def test_the_module_runs_as_the_command_does() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "chessreg.cli", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"chessreg 0\.\S+\n(commit [0-9a-f]{12}.*|chessreg/ .*: sha256 [0-9a-f]{12})\n", done.stdout)
    assert time.monotonic() - began < 120
