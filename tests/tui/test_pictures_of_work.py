"""Pictures of jobs, of launching, and of the lab at 80x24 and 200x60, each with the numbers that it must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chessreg.jobs.kind import kinds
from chessreg.jobs.presence import Presence
from tui import gauge


@pytest.fixture
def subject(world: Path) -> Path:
    """The registry that pictures show."""
    return world


@pytest.fixture(autouse=True)
def same_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs go as fast everywhere, and no supervisor is started for a picture."""
    monkeypatch.setattr(gauge, "pace", lambda row: "2.0/s, 1.0 s left" if row["state"] == "running" else "")
    monkeypatch.setattr(Presence, "start", lambda self, url: None)


def test_jobs(picture: Any, queue: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("j", "j")

    words = "5 jobs · 2 running · 1 queued · 2 ended", "2/4", "0/6", "12/12", "reduce"
    picture(steps, *words, folder=queue.folder, start="jobs")


def test_a_job(picture: Any, queue: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("1/2")
        await driver.press("enter", "tab")

    picture(steps, "4/9 units of 3 jobs", "[attempts]", "at the gate", folder=queue.folder, start="jobs")


def test_kinds_to_launch(picture: Any, tmp_path: Path) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("j")

    picture(steps, *(name[:7] for name in kinds()), "Board-state edits", folder=tmp_path, start="launch")


def test_a_form(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("Linear probes of the board")
        await driver.press("enter", "p")

    picture(steps, "[preset paper]", "needed: cache", "66", "--preset paper", start="launch")


@pytest.mark.usefixtures("near_model")
def test_the_lab(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("plus")

    picture(steps, "bigram · probe board", "clean legal mass 0.", "edited legal mass 0.", "original", start="lab")
