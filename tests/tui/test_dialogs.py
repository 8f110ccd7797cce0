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


@pytest.mark.parametrize("key", ["asterisk", "t", "z", "A"])
async def test_read_only_says_once_why_a_key_that_writes_does_nothing(drive: Any, own: Path, key: str) -> None:
    async with drive(own, read_only=True, size=(120, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press("slash")
        await driver.type("t*z")
        assert driver.notices == ""
        await driver.press("escape", key)
        assert driver.notices == "nothing is changed with --read-only"
