"""Pictures of jobs, of launching, and of the lab at 80x24 and 200x60, each with the numbers that it must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chessreg.registry import read
from chessreg.runs.kind import load_kinds
from chessreg.scheduling.presence import Presence
from chessreg.session import Session
from tui import show

LOAD = {
    "cores": 16, "cpu": 6.0, "memory_bytes": 64 * 2**30, "memory_used_bytes": 24 * 2**30,
    "gpus": [{"index": 0, "name": "A100", "busy": 0.87, "memory_bytes": 40 * 2**30, "memory_used_bytes": 30 * 2**30}],
}  # fmt: skip


@pytest.fixture
def subject(world: Path) -> Path:
    """The registry that pictures show."""
    return world


@pytest.fixture(autouse=True)
def same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs go as fast everywhere, on a machine as busy; no supervisor is started for a picture."""
    machines = read.list_machines
    monkeypatch.setattr(read, "list_machines", lambda sql: [{**row, "load": LOAD} for row in machines(sql)])
    monkeypatch.setattr(show, "format_rate", lambda a_second: "2.0/s" if a_second else "")
    monkeypatch.setattr(Presence, "start", lambda self, url: None)


def test_home(picture: Any, queue: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("tab")

    words = "● sums", "0 of 1 GPU in use", "38 %", "✗", "engine died", "3 runs in all"
    picture(steps, *words, folder=queue.folder, start="home")


def test_home_where_nothing_runs(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("j")

    with session.database.read() as sql:
        rows = read.list_runs(sql)
    ended = [row["name"] for row in rows if row["state"] == "complete"]
    words = f"{show.format_count(len(rows), 'run')} in all", "^l launch", "idle"
    picture(steps, *words, *ended, start="home")


def test_jobs(picture: Any, queue: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("j", "j")

    words = "5 jobs · 2 running · 1 pending · 2 ended", "2/4", "0/6", "12/12", "reduce"
    picture(steps, *words, folder=queue.folder, start="jobs")


def test_a_job(picture: Any, queue: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("1/2")
        await driver.press("enter", "tab")

    picture(steps, "4/9 units stored of 3 jobs", "[attempts]", "at the gate", folder=queue.folder, start="jobs")


def test_kinds_to_launch(picture: Any, tmp_path: Path) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("j")

    first = sorted(load_kinds(), key=lambda name: (name.startswith("imported-"), name))[:18]
    picture(steps, *(name[:7] for name in first), "Board edits", folder=tmp_path, start="launch")


def test_a_form(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("Linear probes of the board")
        await driver.press("enter", "p", "pagedown", "pagedown", "pagedown")

    picture(steps, "[preset paper]", "required: cache", "batch_games             2", "--preset paper", start="launch")


@pytest.mark.trained
@pytest.mark.usefixtures("near_model")
def test_the_lab(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("plus")

    picture(steps, "bigram · probe board", "clean legal mass 0.", "edited legal mass 0.", "original", start="lab")
