"""Dialogs: what was typed is not lost, and the footer has the keys that work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from tui.screens.dialogs import Prompt


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Path:
    return shutil.copytree(world, tmp_path / "own")


def typed(driver: Any) -> str:
    assert isinstance(driver.app.screen, Prompt)
    return driver.app.screen.query_one(Input).value


async def test_the_footer_under_a_dialog_has_its_keys(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 40)) as driver:
        before = driver.lines[-1]
        assert "q quit" in before
        await driver.press("t")
        assert driver.lines[-1].split() == ["Enter", "do", "it", "Esc", "leave"]
        driver.app.changed()
        await driver.settle()
        assert "quit" not in driver.lines[-1], "also after the list was read again"
        await driver.press("escape")
        assert driver.lines[-1] == before
        await driver.stand_on("toy", mark=True)
        await driver.press("slash")
        await driver.type("plain")
        await driver.press("enter", "z")
        assert driver.lines[-1].split() == ["y", "yes", "n", "no"]
        await driver.press("n")
        assert "q quit" in driver.lines[-1]


@pytest.mark.parametrize("key", ["asterisk", "t", "z", "A"])
async def test_read_only_says_once_why_a_key_that_writes_does_nothing(drive: Any, own: Path, key: str) -> None:
    async with drive(own, read_only=True, size=(120, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press("slash")
        await driver.type("t*z")
        assert driver.notices == ""
        await driver.press("escape", key)
        assert driver.notices == "nothing is changed with --read-only"
