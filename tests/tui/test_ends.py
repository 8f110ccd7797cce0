"""`g` and Home move to the beginning, `G` and End to the end, in every list and text."""

from __future__ import annotations

from typing import Any

import pytest

from tui.actions import ACTIONS
from tui.screens.launch import FormScreen
from tui.widgets.table import PageTable

from .test_boards_room import game

ENDS = {"first": "home", "last": "end"}


def test_every_place_has_its_beginning_at_g_and_its_end_at_capital_g() -> None:
    with_ends = [a for a in ACTIONS if a.parameter in ENDS or a.method in ENDS]
    assert {action.place for action in with_ends} >= {"table", "board", "pair", "log", "form"}
    for action in with_ends:
        end = ENDS.get(action.parameter) or ENDS[action.method]
        assert action.keys == f"{end},{'g' if end == 'home' else 'G'}", action.name


@pytest.mark.parametrize(("to_end", "to_beginning"), [("G", "g"), ("end", "home")])
async def test_a_table_and_a_game(drive: Any, to_end: str, to_beginning: str) -> None:
    async with drive(size=(100, 30)) as driver:
        table = driver.screen.query_one(PageTable)
        assert table.count > 2
        await driver.press(to_end)
        assert table.current_row == table.row(table.count - 1)
        await driver.press(to_beginning)
        assert table.current_row == table.row(0)
        screen = await game(driver)
        assert len(screen.boards.views) > 2
        await driver.press(to_end)
        assert screen.frame == len(screen.boards.views) - 1
        await driver.press(to_beginning)
        assert screen.frame == 0


async def test_a_form(drive: Any, tmp_path: Any) -> None:
    async with drive(tmp_path, size=(80, 24), start="launch") as driver:
        await driver.find_row("Linear probes of the board")
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, FormScreen)
        await driver.press("G")
        assert screen.row is screen.rows[-1]
        await driver.press("g")
        assert screen.row is screen.rows[0]
