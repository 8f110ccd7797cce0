"""From 160 columns on a list shows a preview of the row under the cursor."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.quick import quick_first
from tui.screens.preview import Preview
from tui.widgets.board import BoardPane
from tui.widgets.table import PageTable

SHOWN = {
    "runs": ("edits", "bigram"),  # the model by its name
    "boards": ("sure", "random"),
    "queries": ("accuracy by square", "a1 to h8"),
    "data": ("games", "duplicates"),
}


@pytest.fixture(autouse=True)
def previews(same_everywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.screens.preview.WIDE_CELLS", 160)
    monkeypatch.setattr("tui.screens.preview.BOARD_WIDE_CELLS", 160)


def text(driver: Any) -> str:
    """The text of the preview."""
    left = driver.screen.query_one(Preview).region.x
    return "\n".join(line[left:] for line in driver.lines)


@pytest.mark.parametrize("room", quick_first(2, SHOWN))
async def test_a_wide_list_shows_its_row_and_a_narrow_one_does_not(drive, room: str) -> None:
    word, told = SHOWN[room]
    async with drive(size=(170, 45), start=room) as driver:
        await driver.find_row(word)
        preview = driver.screen.query_one(Preview)
        await driver.once(lambda: told in text(driver), told)
        if room == "data":
            assert "thing " not in text(driver)
        if room == "boards":
            await driver.press("shift+tab")
            await driver.once(lambda: "games game 0: " in text(driver), "a game of the dataset")
            assert " 1. " in text(driver), "its moves, in a few lines"
            await driver.press("tab")
            await driver.find_row(word)
            pane = preview.query_one(BoardPane)
            assert pane.display
            assert pane.squares.frame is not None
            await driver.press("tab")
            await driver.once(lambda: "edit: without the piece" in text(driver), "what the further texts are of")
            await driver.press("shift+tab")
            await driver.find_row(word)
        await driver.pilot.resize_terminal(150, 45)
        await driver.settle()
        assert not preview.display
        await driver.pilot.resize_terminal(160, 45)
        await driver.settle()
        await driver.once(lambda: told in text(driver), told)


@pytest.mark.slow
async def test_a_run_is_previewed_with_its_results_and_home_previews_what_its_lists_hold(
    drive, queue: Any, studied: Path
) -> None:
    """A probe with its accuracy by layer, a match with its outcomes, an edit with its conditions, a job with its log,
    a machine with its hardware."""
    seen = {
        "deep-board": ("by layer", "validation accuracy %", "●", "given settings"),
        "plain": ("by match", "won ", "lost ", "opponent", "attempts"),
        "edits": ("by condition", "clean", "random-0", "legal on modified"),
    }
    for room in ("runs", "home"):
        async with drive(studied, size=(200, 60), start=room) as driver:
            table = "#ended" if room == "home" else "PageTable"
            for name, words in seen.items():
                rows = driver.screen.query_one(table, PageTable)
                rows.focus()
                rows.move(next(n for n in range(rows.count) if (rows.row(n) or {}).get("name") == name))
                await driver.settle()
                await driver.once(lambda words=words: all(word in text(driver) for word in words), f"{room}, {name}")
            rights = [line.rstrip()[-1] for line in driver.lines[2:-3]]
            assert set(rights) <= set("│╮╯"), "nothing is drawn over the frame"
    async with drive(queue.folder, size=(200, 60), start="home") as driver:
        going = driver.screen.query_one("#going", PageTable)
        going.focus()
        await driver.once(lambda: "state " in text(driver) and "running" in text(driver), "a job")
        await driver.press("shift+tab")
        await driver.once(lambda: "processor" in text(driver), "a machine")
        ended = driver.screen.query_one("#ended", PageTable)
        ended.focus()
        ended.move(next(n for n in range(ended.count) if ended.row(n)["name"] == "broken"))
        await driver.settle()
        await driver.once(lambda: "the engine does not answer" in text(driver), "a failed job")


async def test_the_log_of_a_job_stands_beside_the_jobs(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(170, 45), start="jobs") as driver:
        await driver.find_row("broken")
        await driver.once(lambda: "the engine does not answer" in text(driver), "the log")


def test_a_name_that_the_title_of_the_preview_cuts_is_a_line_of_it():
    from rich.console import Console

    from tui.data.run_rows import RunFacts
    from tui.screens.run_preview import build_run_preview

    for name, is_cut in ("scan-seed0", False), (f"scan-{'epochs4-' * 6}seed0", True):
        run = {"name": name, "kind": "probe", "state": "complete", "tags": [], "notes": [], "invalid": "",
               "outputs": [], "tries": [], "units": 2, "done": 2}  # fmt: skip
        console = Console(width=60, record=True, file=StringIO())
        console.print(build_run_preview(RunFacts(run, {}, "", [], None), 60))
        assert (name in console.export_text().replace("\n", "").replace(" ", "")) == is_cut
