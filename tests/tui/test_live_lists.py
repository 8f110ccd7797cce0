"""Keys apply to the visible row or runs, whatever another process writes and a filter hides."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from chessreg.registry import names, read, tables
from chessreg.registry.identity import hash_canonical_json, make_uuid
from chessreg.registry.tables.types import get_utc_now
from chessreg.session import open_session
from tests.quick import quick_first
from tui.data.pages import PAGE_ROWS
from tui.screens.dialogs import Prompt
from tui.widgets.table import PageTable


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Path:
    return shutil.copytree(world, tmp_path / "own")


def run_of(folder: Path, name: str) -> dict[str, Any]:
    with open_session(str(folder / "registry.db"), folder / "store") as session, session.database.read() as sql:
        return read.read_run(sql, name)


def newcomers(folder: Path, number: int = 1) -> None:
    """Runs that another process has just finished."""
    now, rows = get_utc_now() + timedelta(hours=1), []
    with open_session(str(folder / "registry.db"), folder / "store") as session, session.database.write() as sql:
        for n in range(number):
            spec_hash = hash_canonical_json({"newcomer": n})
            rows.append(
                {
                    "id": make_uuid(spec_hash), "kind": "play", "version": 1, "spec": {"n": n},
                    "spec_hash": spec_hash, "explicit": [], "units": 4, "created_at": now + timedelta(seconds=n),
                    "completed_at": now,
                }
            )  # fmt: skip
        sql.execute(insert(tables.Run), rows)
        for n, row in enumerate(rows):
            names.add_annotation(sql, "run", row["id"], "name", f"newcomer{n}")


async def follow(driver: Any) -> None:
    driver.app.check_for_changes()
    await driver.settle()


def current(driver: Any) -> str:
    return driver.screen.query_one(PageTable).current_row["name"]


@pytest.mark.parametrize(
    ("key", "field", "text", "value"),
    quick_first(1, [("t", "tags", "WRONG", ["WRONG"]), ("n", "notes", "odd", ["odd"]),
                    ("I", "invalid", "leak", "leak"), ("N", "name", "second", "second")]),
)  # fmt: skip
async def test_a_line_is_written_of_the_run_that_its_dialog_names(
    drive: Any, own: Path, key: str, field: str, text: str, value: Any
) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.press("g")
        named = current(driver)
        before = run_of(own, named)
        await driver.press(key)
        assert isinstance(driver.app.screen, Prompt)
        assert named in driver.app.screen.question
        newcomers(own)
        await follow(driver)
        await driver.type(text)
        await driver.press("enter")
        assert run_of(own, before["id"].hex)[field] == value
        assert run_of(own, "newcomer0")[field] in ([], None, "newcomer0")


async def test_the_cursor_stays_on_its_run_while_others_are_added(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.stand_on("sure")
        newcomers(own)
        await follow(driver)
        assert "newcomer0" in driver.text
        assert current(driver) == "sure"
        await driver.press("asterisk")
        assert current(driver) == "sure"
        assert run_of(own, "sure")["starred"]
        await driver.press("z")  # a row that disappears leaves the cursor at its place
        assert run_of(own, "sure")["archived"]
        assert current(driver) not in ("sure", "newcomer0")


@pytest.mark.slow
async def test_the_cursor_stays_on_its_run_over_the_end_of_a_page(drive: Any, own: Path) -> None:
    with open_session(str(own / "registry.db"), own / "store") as session, session.database.read() as sql:
        there = len(read.read_run_rows(sql))
    newcomers(own, 2 * PAGE_ROWS - there)
    async with drive(own, size=(120, 40)) as driver:
        table = driver.screen.query_one(PageTable)
        table.move(PAGE_ROWS - 1)
        await driver.settle()
        name = current(driver)
        with open_session(str(own / "registry.db"), own / "store") as session, session.database.write() as sql:
            spec_hash = hash_canonical_json({"last": 1})
            sql.execute(
                insert(tables.Run),
                {
                    "id": make_uuid(spec_hash), "kind": "play", "version": 1, "spec": {}, "spec_hash": spec_hash,
                    "explicit": [], "units": 4, "created_at": get_utc_now() + timedelta(days=1), "completed_at": None,
                },
            )  # fmt: skip
        await follow(driver)
        assert (table.cursor, current(driver)) == (PAGE_ROWS, name)
        assert table.scroll_offset.y <= PAGE_ROWS <= table.scroll_offset.y + table.visible_rows


# -- marked runs that a filter hides ----------------------------------------------------------------------------------


async def filter_for(driver: Any, words: str) -> None:
    await driver.press("slash")
    await driver.type(words)
    await driver.press("enter")


async def test_marked_runs_that_the_filter_hides_are_changed_after_a_yes_only(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.stand_on("toy", "sure", mark=True)
        await filter_for(driver, "plain")
        assert "(2 not in this list)" in driver.lines[1]
        await driver.press("n")
        assert "Note about plain:" in driver.text, "the run that is seen: no marked one is"
        await driver.press("escape")
        await filter_for(driver, "toy")
        assert "(1 not in this list)" in driver.lines[1]
        await driver.press("z")
        assert "Archive toy and sure" in driver.text
        assert "Not in this list: 1 of 2 marked runs" in driver.text
        await driver.press("n")
        assert not run_of(own, "toy")["archived"]
        await driver.press("z", "y")
        assert [run_of(own, name)["archived"] for name in ("toy", "sure", "plain")] == [True, True, False]


async def test_no_question_is_asked_of_marked_runs_that_are_shown(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.stand_on("toy", "sure", mark=True)
        await filter_for(driver, "!plain")
        assert "not in this list" not in driver.text
        await driver.press("z")
        assert all(run_of(own, name)["archived"] for name in ("toy", "sure"))
        assert "(2 not in this list)" in driver.lines[1]  # the archive is out of sight


async def test_a_name_is_that_of_the_run_under_the_cursor_whatever_is_marked(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 40)) as driver:
        await driver.stand_on("toy", "sure", mark=True)
        await driver.stand_on("plain")
        await driver.press("N")
        assert "Name plain:" in driver.text
        await driver.type("quick")
        await driver.press("enter")
        assert current(driver) == "quick"


async def test_a_narrow_screen_tells_how_many_runs_are_marked(drive: Any, own: Path) -> None:
    async with drive(own, size=(80, 24)) as driver:
        await driver.stand_on("plain", mark=True)
        assert "marked: plain" in driver.lines[1]
        await driver.stand_on("cache-fit", "cache-test", "board", mark=True)
        assert "4 marked" in driver.lines[1]
        await filter_for(driver, "plain")
        assert "4 marked (3 not in this list)" in driver.lines[1]
        await driver.pilot.resize_terminal(160, 24)
        await driver.settle()
        assert "marked: plain (baseline) against cache-fit" in driver.lines[1]
