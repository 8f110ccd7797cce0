"""The pictures of README and docs/tui.md are those of the current demo and the current screens."""

from __future__ import annotations

import json

import pytest

from . import readme_pictures
from .readme_pictures import INPUTS, PICTURES, SNAPSHOTS, TAKEN, demo_commands, inputs_digest


@pytest.mark.parametrize("name", TAKEN)
def test_a_picture_is_as_new_as_its_demo_and_its_screen(name):
    recorded = json.loads(INPUTS.read_text())
    assert recorded.get(name) == inputs_digest(TAKEN[name]), (
        f"{name}.svg is older than the demo or the screen that it shows: run `chessreg demo`, then "
        f"`python -m tests.tui.readme_pictures {name}`, and look at the picture"
    )


def test_every_picture_is_taken_by_the_script():
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(TAKEN) == set(json.loads(INPUTS.read_text()))


@pytest.mark.parametrize("name", TAKEN)
def test_another_demo_another_size_and_another_screen_change_the_digest(name, monkeypatch, tmp_path):
    import shutil
    from dataclasses import replace

    from chessreg.cli import demo

    picture, before = TAKEN[name], inputs_digest(TAKEN[name])
    assert inputs_digest(replace(picture, size=(80, 24))) != before
    assert inputs_digest(replace(picture, steps=readme_pictures.take)) != before
    with monkeypatch.context() as patch:
        patch.setitem(demo.SIZES, "quick", demo.SIZES["small"])
        assert inputs_digest(picture) != before
    copied = shutil.copytree(SNAPSHOTS, tmp_path / "snapshots")
    folder, _, test = picture.snapshots[0].partition("/")
    (path,) = (copied / folder).glob(f"{test}[[]80x24].svg")
    path.write_text(path.read_text().replace("<rect", "<rect ", 1))
    monkeypatch.setattr(readme_pictures, "SNAPSHOTS", copied)
    assert inputs_digest(picture) != before


def test_the_commands_of_a_run_include_its_inputs():
    commands = demo_commands(("edits",))
    assert [line.split()[0] for line in commands[:2]] == ["dataset", "dataset"]
    assert any("--name reference-board" in line for line in commands)
    assert any("--name reference-fit" in line for line in commands)
    assert commands[-1].endswith("--name edits")
    assert not any("--name uci" in line for line in commands)
