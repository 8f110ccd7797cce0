"""Dialogs: typed text is not lost, and the footer has the keys that work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from textual.events import Paste
from textual.widgets import Input

from chessreg.session import open_session
from tests.quick import quick_first
from tui.screens.dialogs import Prompt
from tui.screens.files import FilesScreen
from tui.widgets.bars import FilterBar


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Path:
    return shutil.copytree(world, tmp_path / "own")


def typed(driver: Any) -> str:
    assert isinstance(driver.app.screen, Prompt)
    return driver.app.screen.query_one(Input).value


@pytest.mark.parametrize("key", quick_first(1, ["t", "n", "I"]))
async def test_what_was_typed_of_a_run_is_offered_again_until_it_is_written(drive: Any, own: Path, key: str) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press(key)
        await driver.type("long text")
        await driver.press("escape")
        await driver.stand_on("sure")
        await driver.press(key)
        assert typed(driver) == "", "of another run"
        await driver.press("escape")
        await driver.stand_on("plain")
        await driver.press(key)
        assert typed(driver) == "long text"
        await driver.press("end")
        await driver.type("er")
        await driver.press("enter")
        assert "long texter" in driver.notices
        await driver.press(key)
        assert typed(driver) == "", "it is written"
        await driver.press("escape")


async def test_a_name_that_cannot_be_one_stays_in_its_dialog_and_a_taken_one_is_offered_again(
    drive: Any, own: Path
) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.stand_on("toy")
        await driver.press("N")
        with open_session(str(own / "registry.db"), own / "store") as session, session.database.write() as sql:
            sql.execute(text("UPDATE run SET version = version"))  # holding the registry delays no answer
            await driver.type("no/name")
            await driver.press("enter")
            assert typed(driver) == "no/name"
            assert "cannot be a name" in driver.text
        await driver.press("ctrl+u")
        await driver.type("plain")
        await driver.press("enter")
        assert "the name 'plain' is taken" in driver.notices
        await driver.press("N")
        assert typed(driver) == "plain"
        await driver.type("quick")
        await driver.press("enter")
        assert "quick" in driver.text


async def test_a_path_that_is_not_there_and_parts_that_are_refused_are_offered_again(
    drive: Any, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drive(own, start="data", size=(120, 40)) as driver:

        async def refused(*_: Any) -> tuple[int, str, str]:
            return 4, "", "error: shares of more than 1"

        monkeypatch.setattr(driver.app.model, "run_command", refused)
        await driver.press("A", "e", "ctrl+u")
        await driver.type(str(own / "gmaes.pgn"))
        await driver.press("enter")
        assert isinstance(driver.screen, FilesScreen)
        await driver.press("e")
        assert typed(driver) == str(own / "gmaes.pgn")
        await driver.press("escape", "escape", "S", "ctrl+u")
        await driver.type("a=0.8,b=0.8")
        await driver.press("enter")
        assert "shares of more than 1" in driver.notices
        await driver.press("S")
        assert typed(driver) == "a=0.8,b=0.8"


async def test_lines_that_are_pasted_into_a_line_are_all_there(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        await driver.press("n")
        driver.app.post_message(Paste("one\n  two\r\n\nthree\n"))
        await driver.settle()
        assert typed(driver) == "one two three"
        await driver.press("escape", "slash")
        driver.app.post_message(Paste("kind:play \nplain"))
        await driver.settle()
        assert driver.screen.query_one(FilterBar).value == "kind:play plain"


async def test_the_footer_under_a_dialog_has_its_keys(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 40)) as driver:
        before = driver.lines[-1]
        assert "q quit" in before
        await driver.press("t")
        assert driver.lines[-1].split() == ["Enter", "confirm", "Esc", "cancel"]
        driver.app.reload_screens()
        await driver.settle()
        assert "quit" not in driver.lines[-1], "also after the list was read again"
        await driver.press("escape")
        assert driver.lines[-1] == before
        await driver.stand_on("toy", "sure", mark=True)
        await driver.press("slash")
        await driver.type("toy")
        await driver.press("enter", "z")
        assert driver.lines[-1].split() == ["y", "yes", "n", "no"]
        await driver.press("n")
        assert "q quit" in driver.lines[-1]


@pytest.mark.parametrize("key", quick_first(1, ["asterisk", "t", "z", "A"]))
async def test_read_only_says_once_why_a_key_that_writes_does_nothing(drive: Any, own: Path, key: str) -> None:
    async with drive(own, read_only=True, size=(120, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press("slash")
        await driver.type("t*z")
        assert driver.notices == ""
        await driver.press("escape", key)
        assert driver.notices == "--read-only: nothing was changed"
