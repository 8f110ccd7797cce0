"""docs/exit-codes-and-json.md describes the actual behavior of commands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import Home
from chessreg.cli.noun import SWITCHES
from chessreg.cli.root import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED, root

PAGE = (Path(__file__).parents[2] / "docs" / "exit-codes-and-json.md").read_text(encoding="utf-8")
ANNOTATE = set(SWITCHES) | {undo for undo, *_ in SWITCHES.values()}
ANNOTATE |= {"name", "tag", "untag", "note", "invalidate", "unmark"}


def without_json(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            yield from without_json(command, below)
        elif not any("--json" in parameter.opts for parameter in command.params) and name not in ANNOTATE:
            yield below.command_path.removeprefix("chessreg ")


def test_the_page_lists_the_commands_without_json() -> None:
    listed = PAGE.partition("These commands have no `--json`:")[2].partition(", and the commands")[0]
    commands = without_json(root, click.Context(root, info_name="chessreg", obj=Home()))
    assert re.findall(r"`([^`]+)`", listed) == sorted(commands)


def test_commands_exit_as_the_page_says(here: Any, tmp_path: Path) -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) ", PAGE, re.MULTILINE)}
    typed = [
        (here("runs", "list"), 0),
        (here("run", "cache", "--model", "x"), 2),
        (here("runs", "show", "nothing"), 3),
        (here("--registry", tmp_path / "nowhere.db", "runs", "list"), 3),
        (here("run", "probe", "--cache", "fit", "--epochs", "-1"), 4),
    ]
    assert all(status == expected for status, expected in typed), typed
    assert codes == {*(expected for _, expected in typed), 1, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED}


def test_an_error_is_the_object_that_the_page_shows(here: Any) -> None:
    (shown,) = re.findall(r"^    (\{\"error\".*\})$", PAGE, re.MULTILINE)
    assert here("runs", "show", "nothing", "--json") == json.loads(shown)["code"]
    assert json.loads(here.err) == json.loads(shown)
    assert here("runs", "show", "nothing") == 3
    assert re.sub(r"^", "      ", here.err.strip(), flags=re.MULTILINE) in PAGE
    assert here("runs", "show", "nothing", "--hinted", "--json") == 2
    assert here.out == ""


def test_values_are_written_as_the_page_says(here: Any) -> None:
    toy = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
    assert here("run", toy, "--positions", "2") == 0, here.err
    (run,) = here.json("runs", "list")
    assert re.fullmatch(r"[0-9a-f]{32}", run["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d", run["created_at"])
    assert here("runs", "show", run["id"][-6:]) == 0
