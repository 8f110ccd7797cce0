"""From 160 columns on a list shows beside it what the row under the cursor holds."""

from __future__ import annotations

from typing import Any

import pytest

from tui.screens.preview import Preview
from tui.widgets.board import BoardPane

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
    """What stands in the preview."""
    left = driver.screen.query_one(Preview).region.x
    return "\n".join(line[left:] for line in driver.lines)


@pytest.mark.parametrize("room", SHOWN)
async def test_a_wide_list_shows_its_row_and_a_narrow_one_does_not(drive, room: str) -> None:
    word, told = SHOWN[room]
    async with drive(size=(170, 45), start=room) as driver:
        await driver.find_row(word)
        preview = driver.screen.query_one(Preview)
        await driver.once(lambda: told in text(driver), told)
        if room == "boards":
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


async def test_the_log_of_a_job_stands_beside_the_jobs(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(170, 45), start="jobs") as driver:
        await driver.find_row("broken")
        await driver.once(lambda: "the engine does not answer" in text(driver), "the log")
