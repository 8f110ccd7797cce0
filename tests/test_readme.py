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


def test_the_demos_matches_add_up():
    """Of every arm printed: wins, draws and losses are its games, the score is their mean, a difference is of these."""
    row = r"^ +\d+ +(\S+) +(\S.*?\S) +(\d+) +(\d+) +(\d+) +(\d+) +(0\.\d+) \[[^]]+\](?: +(\S+) \[)?"
    arms = re.findall(row, README, re.MULTILINE)
    plain = {arm[0]: float(arm[6]) for arm in arms if arm[1] == "none"}
    assert len(arms) > len(plain) > 0
    for checkpoint, _, *counts, score, difference in arms:
        n, won, drawn, lost = map(int, counts)
        assert n == won + drawn + lost
        assert won + drawn / 2 == pytest.approx(n * float(score), abs=n * 0.0006)
        assert not difference or float(difference) == pytest.approx(float(score) - plain[checkpoint], abs=0.0011)
