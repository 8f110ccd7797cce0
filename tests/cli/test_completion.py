"""Completion in the shells: the candidates after Tab, their latency, and that completion changes nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from chessreg.cli.completion import (
    KINDS,
    NOUNS,
    SHELLS,
    TIME_LIMIT_S,
    complete_names,
    find_expected_noun,
    list_kind_names,
    read_names,
)
from chessreg.registry.place import resolve_place
from chessreg.runs.kind import load_kinds
from chessreg.runs.spec import FILE_NOUNS, describe_settings

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
PLACE = ".chessreg/registry.db"
NAMES = "SELECT value FROM annotation_now WHERE word = 'name'"

LOAD_BASH = 'eval "$(chessreg completion bash)"\n'
ASK_BASH = """
COMP_WORDS=({words})
COMP_CWORD={last}
COMPREPLY=()
_chessreg_completion chessreg
printf "%s\\n" "${{COMPREPLY[*]}}"
"""


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH whose `chessreg` is this tree's."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "chessreg"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m chessreg.cli "$@"\n')
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def shell(command: list[str], path: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def offered(path: str, folder: Path, *lines: str) -> list[list[str]]:
    """The candidates that one bash offers for the last word of each line."""
    script = LOAD_BASH
    for line in lines:
        words = line.split(" ")
        script += ASK_BASH.format(words=" ".join(map(shlex.quote, words)), last=len(words) - 1)
    return [line.split() for line in shell(["bash", "--norc", "-c", script], path, folder).splitlines()]


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_bash_completes_commands_options_and_names(here: Any, path: str) -> None:
    assert here("run", TOY, "--positions", "2", "--name", "first-run") == 0, here.err
    before = files(here.folder)
    expected = {
        "chessreg chec": ["checkpoint"],
        "chessreg runs unm": ["unmark"],
        "chessreg runs show ": ["first-run"],
        "chessreg query elo-by-int": ["elo-by-intervention"],
        "chessreg run move-acc": ["move-accuracy"],
        "chessreg run probe --weight-": ["--weight-decay"],
    }
    assert dict(zip(expected, offered(path, here.folder, *expected), strict=True)) == expected
    assert files(here.folder) == before


@pytest.mark.parametrize("name", SHELLS)
def test_each_shell_accepts_its_script(name: str, path: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    script = tmp_path / "script"
    script.write_text(shell(["chessreg", "completion", name], path, tmp_path))
    assert "_CHESSREG_COMPLETE" in script.read_text()
    shell([name, "-n", str(script)], path, tmp_path)


def test_fish_and_zsh_are_offered_names(here: Any, path: str) -> None:
    assert here("run", TOY, "--positions", "2", "--name", "first-run") == 0, here.err
    for name, words in (("zsh", "chessreg runs show "), ("fish", "chessreg runs show ")):
        variables = f"COMP_WORDS='{words}' COMP_CWORD={3 if name == 'zsh' else ''} _CHESSREG_COMPLETE={name}_complete"
        assert "first-run" in shell(["sh", "-c", f"{variables} chessreg"], path, here.folder)


def test_fish_completes_a_line(here: Any, path: str) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    assert here("run", TOY, "--positions", "2", "--name", "first-run") == 0, here.err
    script = "source (chessreg completion fish | psub); complete -C 'chessreg runs show '"
    assert shell(["fish", "--no-config", "-c", script], path, here.folder) == "first-run\n"


def test_an_empty_variable_of_the_script_changes_nothing(path: str, tmp_path: Path) -> None:
    assert shell(["env", "_CHESSREG_COMPLETE=", "chessreg", "--version"], path, tmp_path).startswith("chessreg ")


def test_every_option_that_takes_a_name_completes_names_of_its_noun() -> None:
    wrong = []
    for name, kind in load_kinds().items():
        for setting in (*describe_settings(kind.spec), *describe_settings(kind.options)):
            noun = "" if setting.noun in FILE_NOUNS else setting.noun.removeprefix("run:")
            found = find_expected_noun(["run", name, setting.flag])
            if found != noun and not (found == "run" and noun in KINDS):
                wrong.append((name, setting.flag, noun, found))
    assert not wrong


def test_every_kind_is_offered_without_importing_it() -> None:
    assert list_kind_names() == sorted(load_kinds())
    code = "import sys; from chessreg.cli import completion as c; c.list_kind_names(); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("noun", sorted(NOUNS))
def test_names_of_every_noun_are_read(here: Any, noun: str) -> None:
    """The SELECTs fit the tables: an error in one would be silent."""
    from contextlib import closing

    from chessreg.cli.completion import connect_read_only, make_name_statements

    statements = list(make_name_statements(noun))
    assert statements
    with closing(connect_read_only(resolve_place(PLACE))) as connection:
        for statement in statements:
            assert connection.execute(statement).fetchall() == []


def test_a_list_is_completed_at_its_last_name(here: Any) -> None:
    assert here("run", TOY, "--positions", "2", "--name", "first-run") == 0, here.err
    items = complete_names(["run", "rating", "--runs"], "other,fir")
    assert items is not None
    assert [item.value for item in items] == ["other,first-run"]


def test_without_a_registry_nothing_is_offered_or_created(tmp_path: Path, path: str) -> None:
    lines = "chessreg runs show ", "chessreg --registry nowhere runs show "
    assert offered(path, tmp_path, *lines) == [[], []]
    assert files(tmp_path) == []


def test_names_in_the_log_of_an_open_registry_are_read(here: Any) -> None:
    with sqlite3.connect(here.folder / PLACE) as connection:  # keeps the log
        connection.execute("PRAGMA journal_mode=WAL")
        assert here("run", TOY, "--positions", "2", "--name", "first-run") == 0, here.err
        assert read_names(resolve_place(PLACE), [NAMES]) == ["first-run"]


def test_a_locked_registry_or_a_server_that_is_away_offers_nothing_in_time(here: Any) -> None:
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS value FROM n WHERE i < 0"
    with sqlite3.connect(here.folder / PLACE, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        for reference, statement in ((PLACE, NAMES), (PLACE, slow), ("postgresql://nobody@192.0.2.1/none", NAMES)):
            began = time.monotonic()
            assert read_names(resolve_place(reference), [statement]) == []
            assert time.monotonic() - began < 4 * TIME_LIMIT_S


@pytest.mark.slow
def test_a_file_with_a_kind_is_not_run_to_complete_its_options(tmp_path: Path, path: str) -> None:
    (tmp_path / "kind.py").write_text("open('loaded', 'w')\n")
    lines = [f"chessreg {command} ./kind.py --" for command in ("run", "launch")]
    assert offered(path, tmp_path, *lines) == [[], []]
    assert files(tmp_path) == [str(tmp_path / "kind.py")]


def test_flags_are_not_followed_by_names() -> None:
    """`noun_after` reads words alone, so an option called after a noun must take a name."""
    from chessreg.cli.root import COMMANDS

    for name in ("lab", "uci", "query", "plot", "board", "heatmap", "import"):
        command = COMMANDS[name].load()
        commands = command.commands.values() if isinstance(command, click.Group) else [command]
        for parameter in (parameter for each in commands for parameter in each.params):
            if isinstance(parameter, click.Option) and any(find_expected_noun([option]) for option in parameter.opts):
                assert not parameter.is_flag, parameter.opts
