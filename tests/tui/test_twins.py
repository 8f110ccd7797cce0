"""A screen shows the values that its command prints: the app names the command, and both are compared, number by
number."""

from __future__ import annotations

import asyncio
import json
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.queries.catalogue import list_entries
from chessreg.rows import to_plain
from tui.data.pages import PAGE_ROWS
from tui.screens.answers import AnswerScreen
from tui.widgets.table import PageTable

ENTRIES = [("runs", 0), ("boards", 0), ("boards", 1), ("boards", 2), *(("data", tab) for tab in range(5))]


def printed(folder: Path, command: str, *more: str) -> str:
    words = shlex.split(command)
    assert words.pop(0) == "chessreg"
    place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
    with redirect_stdout(StringIO()) as said:
        assert run_command_line([*place, *words, *more]) == 0, command
    return said.getvalue()


async def shown(driver: Any) -> list[dict[str, Any]]:
    """All rows of the table, those too that are not on the screen."""
    pages = driver.screen.query_one(PageTable).source
    numbers = range(-(-pages.count // PAGE_ROWS))
    return await asyncio.to_thread(lambda: [dict(row) for number in numbers for row in pages.read_page(number)])


def together(row: dict[str, Any], fields: list[str]) -> str:
    values = {field: to_plain(row[field]) for field in fields}
    return json.dumps({field: round(v, 9) if isinstance(v, float) else v for field, v in values.items()})


@pytest.mark.parametrize(("screen", "tab"), ENTRIES)
async def test_the_rows_of_a_screen_are_those_of_its_command(drive, studied: Path, screen: str, tab: int) -> None:
    async with drive(studied, size=(160, 45), start=screen) as driver:
        await driver.press(*["tab"] * tab)
        found = json.loads(printed(studied, driver.screen.command(), "--json"))
        rows = found if isinstance(found, list) else found["rows"]
        seen = await shown(driver)
        assert seen
        # Numbers that the command prints as text or as a separate list are not compared.
        fields = [f for f in seen[0] if f in rows[0] and not isinstance(rows[0][f], (list, dict))]
        assert len(fields) > 5
        expected = sorted(together(row, fields) for row in rows)
        told = sorted(together(row, fields) for row in seen)
        if len(seen) == len(rows):
            assert told == expected
        else:  # one line a run here, one line a layer there
            assert set(told) <= set(expected)
            assert {row["run_id"].hex for row in seen} == {row["run_id"] for row in rows}


@pytest.mark.slow
async def test_every_query_of_the_catalogue_shows_the_cells_that_its_command_prints(drive, studied: Path) -> None:
    compared = 0
    async with drive(studied, size=(160, 45), start="queries") as driver:
        for entry in list_entries():
            driver.app.push_screen(AnswerScreen(entry))
            await driver.settle()
            screen = driver.screen
            assert isinstance(screen, AnswerScreen)
            lines = {
                tuple(line.split()[1:]) for line in printed(studied, screen.command()).splitlines()
            }  # after their #
            for row in await shown(driver):
                cells = " ".join(row[f"c{n}"] for n in range(sum(key[1:].isdigit() for key in row))).split()
                assert tuple(cells) in lines, entry.title
                compared += 1
            await driver.press("escape")
    assert compared > 100


async def test_jobs_are_those_of_the_command(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(160, 45), start="jobs") as driver:
        rows = json.loads(printed(queue.folder, driver.screen.command(), "--json"))
        seen = await shown(driver)
        fields = ["id", "kind", "name", "state", "shard", "shards", "units", "done", "host", "priority", "tries"]
        assert sorted(together(row, fields) for row in rows) == sorted(together(row, fields) for row in seen)
        assert len(seen) == 5
