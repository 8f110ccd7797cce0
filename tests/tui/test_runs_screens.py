"""The runs: sorting, columns, filters by field and by letters, marks and words, each against the core."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.registry import read, run_filter
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.data.pages import JoinedPages, is_counted
from tui.screens.dialogs import Prompt
from tui.screens.runs import ColumnsScreen
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable


def shown(driver: Any) -> list[Any]:
    table = driver.screen.query_one(PageTable)
    return [row["id"] for place in range(table.count) if (row := table.row(place)) is not None]


def found(session: Session, words: str, sort: str = run_filter.NEWEST_FIRST) -> list[Any]:
    with session.database.read() as sql:
        return run_filter.find_runs(sql, words, sort)


async def type_words(driver: Any, words: str) -> None:
    await driver.type(words)


WORDS = (
    "kind:probe", "spec.epochs:2", "~dpbrd", "!kind:toy since:1d", "since:2020-01-01", "units>=9 kind:toy",
    "created>2020 state:complete", "kind=cache", "starred:no tries>0",
)  # fmt: skip


@pytest.mark.parametrize("words", quick_first(3, WORDS))
async def test_filters_show_what_the_command_finds(drive, study: Session, studied: Path, words: str) -> None:
    async with drive(studied, size=(160, 40)) as driver:
        await driver.press("slash")
        await type_words(driver, words)
        await driver.press("enter")
        expected = found(study, words)
        assert len(expected) > 0
        assert shown(driver) == expected
        await driver.press("y")
        assert driver.app.clipboard.startswith("chessreg runs list ")
        assert words.split()[0] in driver.app.clipboard


async def test_a_word_that_is_no_filter_says_so_shows_no_rows_and_columns_are_completed(drive, studied: Path) -> None:
    async with drive(studied, size=(160, 40)) as driver:
        table = driver.screen.query_one(PageTable)
        every = table.count
        await driver.press("slash")
        await driver.type("elo>abc")
        await driver.press("enter")
        assert (table.count, "runs have no field 'elo'" in driver.text) == (0, True)
        await driver.press("escape")
        assert (table.count, "no 'elo'" in driver.text) == (every, False)
        await driver.press("slash")
        await driver.type("crea")
        await driver.press("tab")
        await driver.type("2020 state:par")
        await driver.press("tab")
        assert driver.screen.query_one(FilterBar).value == "created>2020 state:partial"


async def test_runs_that_are_looked_at_a_few_at_a_time_are_all_there_in_the_end(
    drive, studied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("STRETCH", 1), ("PAUSES", 1)):
        monkeypatch.setattr(JoinedPages, name, value)
    async with drive(studied, size=(120, 40)) as driver:
        table = driver.screen.query_one(PageTable)
        every = table.count
        await driver.press("slash")
        await driver.type("kind:cache")
        await driver.press("enter")
        await driver.once(lambda: is_counted(table.source), "the count")
        await driver.until(f"4 of {every} runs")
        await driver.once(lambda: all(table.row(n) for n in range(4)), "the rows")
        assert [table.row(n)["kind"] for n in range(table.count)] == ["cache"] * 4


async def test_any_column_sorts_and_turns_round(drive, study: Session, studied: Path) -> None:
    async with drive(studied, size=(160, 40)) as driver:
        assert "created ▼" in driver.head
        assert "machine" not in driver.head  # the same in all rows
        await driver.press("greater_than_sign")
        assert "tries ▲" in driver.head
        await driver.press("greater_than_sign")
        assert "name ▲" in driver.head
        assert shown(driver) == found(study, "", "name")
        await driver.press("less_than_sign")
        assert "name ▼" in driver.head
        assert shown(driver) == found(study, "", "-name")
        await driver.press("y")
        assert driver.app.clipboard == "chessreg runs list --sort -name"
        await driver.pilot.click(PageTable, offset=(driver.lines[3].index("kind"), 1))
        await driver.press()
        assert shown(driver) == found(study, "", "kind")


async def test_settings_and_metrics_become_columns(drive, study: Session, studied: Path) -> None:
    async with drive(studied, size=(200, 50)) as driver:
        await driver.press("C")
        assert isinstance(driver.screen, ColumnsScreen)
        for column in ("spec.learning_rate", "metric.loss"):
            await driver.find_row(column)
            await driver.press("space")
        await driver.find_row("machine")
        await driver.press("space", "escape")
        head = driver.head.split()
        assert {"learning_rate", "loss"} <= set(head)
        assert "machine" not in head
        with study.database.read() as sql:
            rows = {row["name"]: row for row in read.list_runs(sql)}
            loss = run_filter.read_last_metrics(sql, [rows["train-1"]["id"]], ["loss"])[rows["train-1"]["id"]]["loss"]
        line = next(line for line in driver.lines if " train-1 " in line)
        assert f"{loss:.4g}" in line.split()
        assert str(rows["train-1"]["spec"]["learning_rate"]) in line.split()
        driver.screen.sort_by("metric.loss")
        await driver.press()
        assert shown(driver) == found(study, "", "metric.loss")


async def test_a_column_is_put_further_to_the_left(drive, studied: Path) -> None:
    async with drive(studied, size=(160, 40)) as driver:
        await driver.press("C")
        await driver.find_row("kind of experiment")
        await driver.press("K", "escape")
        head = driver.head.split()
        assert head.index("kind") == head.index("name") - 1


async def test_words_order_and_columns_are_there_again_the_next_time(drive, studied: Path) -> None:
    async with drive(studied, size=(150, 40)) as driver:
        await driver.press("C")
        await driver.find_row("machine of the last attempt")
        await driver.press("space", "escape", "slash")
        await type_words(driver, "kind:probe")
        await driver.press("enter", "greater_than_sign")
        before = driver.lines[1:8]
    async with drive(studied, size=(150, 40)) as driver:
        assert driver.lines[1:8] == before
        assert "name ▲" in driver.text
        assert "machine" not in driver.text
        assert "3 of " in driver.text


@pytest.mark.slow
async def test_columns_alone_are_there_again_too(drive, studied: Path) -> None:
    async with drive(studied, size=(150, 40)) as driver:
        assert "machine" in driver.screen.columns
        await driver.press("C")
        await driver.find_row("machine of the last attempt")
        await driver.press("space", "escape")
        assert "machine" not in driver.screen.columns
    async with drive(studied, size=(150, 40)) as driver:
        assert "machine" not in driver.screen.columns
        driver.screen.sort = "metric.a; b"
        assert driver.screen.command() == "chessreg runs list --sort 'metric.a; b'"


# -- words, in a separate registry ------------------------------------------------------------------------------------


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Path:
    shutil.copytree(world, tmp_path / "own")
    return tmp_path / "own"


def said(folder: Path, name: str) -> dict[str, Any]:
    with open_session(str(folder / "registry.db"), folder / "store") as session, session.database.read() as sql:
        return read.read_run(sql, name)


async def test_stars_tags_notes_and_pins_are_what_the_command_line_says(drive, own: Path) -> None:
    async with drive(own, size=(160, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press("space")
        await driver.stand_on("sure")
        await driver.press("space")
        assert "marked: plain (baseline) against sure" in driver.lines[1]
        await driver.press("asterisk")
        await driver.press("t")
        assert isinstance(driver.app.screen, Prompt)
        assert "Tag 2 runs (plain and sure):" in driver.text
        await type_words(driver, "match")
        await driver.press("enter")
        assert "★ plain" in driver.text
        for name in ("plain", "sure"):
            assert said(own, name)["starred"]
            assert said(own, name)["tags"] == ["match"]
        assert not said(own, "toy")["starred"]
        await driver.press("slash")
        await type_words(driver, "starred tag:mat")
        await driver.press("enter")
        assert "2 of 8 runs" in driver.text
        await driver.press("u")
        assert "marked" not in driver.lines[1]
        await driver.stand_on("plain")
        await driver.press("n")
        await type_words(driver, "odd")
        await driver.press("enter", "B", "t")
        await type_words(driver, "-match")
        await driver.press("enter")
        row = said(own, "plain")
        assert (row["notes"], row["pinned"], row["tags"]) == (["odd"], True, [])
        assert run_command_line(["--registry", str(own / "registry.db"), "runs", "unpin", "plain"]) == 0


@pytest.mark.slow
async def test_a_run_and_a_probe_are_annotated_on_their_own_pages(drive, own: Path) -> None:
    async with drive(own, size=(160, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press("enter", "asterisk", "n")
        await type_words(driver, "odd")
        await driver.press("enter", "N")
        await type_words(driver, "first")
        await driver.press("enter")
        assert "starred · note: odd" in driver.text
        assert "runs › first" in driver.way
        assert said(own, "first")["starred"]
        await driver.press("8", "tab", "tab", "tab", "enter", "t")
        await type_words(driver, "-good")
        await driver.press("enter", "t")
        await type_words(driver, "good")
        await driver.press("enter")
        assert "good" in driver.lines[3]
        assert said(own, "board")["tags"] == ["good"]


async def test_a_wrong_run_makes_what_rests_on_it_stale_until_it_is_taken_back(drive, own: Path) -> None:
    async with drive(own, size=(160, 40)) as driver:
        await driver.stand_on("board")
        await driver.press("I")
        await type_words(driver, "leak")
        await driver.press("enter")
        assert said(own, "board")["invalid"] == "leak"
        assert said(own, "edits")["stale"]
        assert "complete (invalid)" in driver.text
        assert "complete (stale)" in driver.text
        await driver.press("I")
        await type_words(driver, "-")
        await driver.press("enter")
        assert said(own, "board")["invalid"] is None
        assert "(stale)" not in driver.text


async def test_what_is_archived_is_out_of_sight_and_comes_back(drive, own: Path) -> None:
    async with drive(own, size=(160, 40)) as driver:
        await driver.stand_on("toy")
        await driver.press("z")
        assert said(own, "toy")["archived"]
        assert "7 of 8 runs" in driver.text
        assert said(own, "toy")["id"] not in shown(driver)
        await driver.press("slash")
        await type_words(driver, "archived")
        await driver.press("enter", "z")
        assert not said(own, "toy")["archived"]


async def test_a_name_that_is_taken_is_refused_in_a_notice_that_reads_do_not_remove(drive, own: Path) -> None:
    async with drive(own, size=(160, 40)) as driver:
        await driver.stand_on("toy")
        await driver.press("N")
        await type_words(driver, "plain")
        await driver.press("enter")
        driver.app.reload_screens()
        await driver.settle()
        assert "not written: the name 'plain' is taken" in driver.notices
        assert said(own, "toy")["name"] == "toy"


async def test_read_only_says_nothing_of_anything(drive, own: Path) -> None:
    async with drive(own, read_only=True, size=(160, 40)) as driver:
        await driver.stand_on("plain")
        await driver.press("asterisk", "B", "t")
        assert not isinstance(driver.app.screen, Prompt)
        row = said(own, "plain")
        assert not row["starred"]
        assert not row["pinned"]
