"""README says what works: its Python snippet runs, its commands exist, its folders are there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_snippet_runs_on_what_the_demo_makes(world, monkeypatch):
    monkeypatch.setenv("CHESSREG_REGISTRY", str(world / "registry.db"))
    monkeypatch.setenv("CHESSREG_STORE", str(world / "store"))
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet, names)
    names["reg"].close()
    assert names["probe"].shape == (32, 64, 13)
    assert names["residual"].shape == (len(names["ratings"]), 32)
    assert len(names["table"]) > 0


def test_every_command_that_it_shows_exists():
    from chessreg.cli.root import root

    shown = set(re.findall(r"(?:^|[\s`$])chessreg ([a-z]+(?: [a-z]+(?:-[a-z]+)*)?)", README))
    assert shown
    for words in shown:
        command: click.Command = root
        context = click.Context(root, info_name="chessreg")
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            found = command.get_command(context, word)
            assert found is not None, f"README shows chessreg {words}"
            command = found


@pytest.mark.parametrize("path", re.findall(r"^\| `([a-z/]+)` \|", README, re.MULTILINE))
def test_every_folder_that_it_names_is_there(path):
    assert (ROOT / path).is_dir()
