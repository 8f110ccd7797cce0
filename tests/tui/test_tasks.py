"""What people do, each with its count of keys beyond what they type: at most six, launching 25."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tui.screens.answers import AnswerScreen, RowsScreen
from tui.screens.boards import BoardScreen
from tui.screens.compare import CompareScreen
from tui.screens.launch import FormScreen
from tui.widgets.bars import KeyBar
from tui.widgets.table import PageTable


class Keys:
    """Presses keys and counts them; what is typed is not counted."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.count = driver, 0

    async def __call__(self, *keys: str) -> str:
        self.count += len(keys)
        text: str = await self.driver.press(*keys)
        return text

    def told(self, task: str, most: int = 6) -> None:
        print(f"{task}: {self.count} keys beyond what is typed")
        assert self.count <= most


async def test_two_runs_are_compared(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        press = Keys(driver)
        await press("slash")
        await driver.type("kind:play")
        await press("enter", "space", "space", "c")
        assert isinstance(driver.screen, CompareScreen)
        assert "baseline " in driver.text
        press.told("compare two runs")


async def test_sql_is_asked_and_its_rows_are_written_to_a_file(drive: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    async with drive(size=(140, 40)) as driver:
        press = Keys(driver)
        await press("7", "e")
        driver.screen.query_one("SqlEditor").text = ""
        await driver.type("SELECT run, kind FROM runs")
        await press("f5", "w", "enter")
        assert len((tmp_path / "rows.csv").read_text().splitlines()) == 9
        press.told("SQL and export")
        await driver.press("e", "escape", "f7")
        assert "SELECT run, kind FROM runs" in driver.text
        await driver.press("enter")
        assert driver.screen.query_one("SqlEditor").text == "SELECT run, kind FROM runs"


async def test_a_form_is_found_filled_and_ready_by_the_palette(drive: Any) -> None:
    async with drive(size=(80, 24), read_only=True) as driver:
        press = Keys(driver)
        await press("ctrl+p")
        await driver.type("launch probe")
        await press("enter")
        assert isinstance(driver.screen, FormScreen)
        await press("enter")
        await driver.find_row("cache-fit")
        await press("enter")
        await driver.once(lambda: driver.screen.outlook is not None, "the plan")
        assert "ready" in driver.text
        press.told("a launch up to L, at 80×24", 24)


async def test_with_the_mouse_alone_a_query_leads_to_a_board_and_back_home(drive: Any) -> None:
    async with drive(size=(140, 40)) as driver:

        async def click(word: str, row: int | None = None) -> None:
            """Click a word on the screen."""
            lines = driver.lines
            y = next(n for n, line in enumerate(lines) if word in line) if row is None else row
            await driver.pilot.click(offset=(lines[y].index(word) + 1, y))
            await driver.settle()

        await click("7 queries", 0)
        await click("games by termination")
        if not isinstance(driver.screen, AnswerScreen):
            await click("games by termination")
        assert isinstance(driver.screen, AnswerScreen)
        table = driver.screen.query_one(PageTable)
        await driver.pilot.click(PageTable, offset=(4, 1))
        await driver.settle()
        assert isinstance(driver.screen, RowsScreen), table.count
        await driver.pilot.click(PageTable, offset=(4, 1))
        await driver.settle()
        assert isinstance(driver.screen, BoardScreen)
        assert driver.screen.query(KeyBar)
        await click("queries", 0)
        assert len(driver.app.screen_stack) == 1
        await click("chessreg", 0)
        assert "› home" in driver.lines[0]
