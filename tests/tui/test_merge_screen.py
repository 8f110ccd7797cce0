"""Merging another registry from the terminal UI: picked, previewed with its conflicts, merged by the command."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.session import open_session
from tui.model_process import ModelProcess
from tui.screens.files import FilesScreen
from tui.screens.merge import MergeScreen
from tui.screens.runs import RunsScreen
from tui.widgets.table import PageTable

from .test_tasks import Keys
from .worlds import TOY, same_code


@pytest.fixture
def own(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, on which the app's commands run in this process."""
    folder = Path(shutil.copytree(world, tmp_path / "own"))

    async def run_command(self: ModelProcess, words: Sequence[str]) -> tuple[int, str, str]:
        place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]

        def run() -> tuple[int, str, str]:
            with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
                status = run_command_line([*place, *words])
            return status, out.getvalue(), err.getvalue()

        return await asyncio.to_thread(run)

    monkeypatch.setattr(ModelProcess, "run_command", run_command)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another machine's folder: its toy has a result that differs from that of the world, and there is a new run."""
    home = tmp_path / "gpubox" / ".chessreg"
    home.mkdir(parents=True)
    with same_code(), open_session(str(home / "registry.db"), home / "store", create=True) as session:
        toy = find_kind(TOY)
        session.run(toy.spec(positions=12), kind=TOY, name="toy")
        session.run(toy.spec(positions=3, seed=7), kind=TOY, name="elsewhere")
        with session.database.write() as sql:
            sql.query(tables.Score).filter(tables.Score.unit == 1).update({"n": 2})
    return home.parent


async def test_another_registry_is_picked_previewed_and_merged(drive: Any, own: Path, other: Path) -> None:
    async with drive(own, size=(120, 30)) as driver:
        press = Keys(driver)
        await press("M")
        assert isinstance(driver.screen, FilesScreen)
        await driver.find_row("gpubox")
        assert "registry" in next(line for line in driver.lines if "gpubox" in line)
        await press("enter")
        assert isinstance(driver.screen, MergeScreen)
        await driver.until("1 new run")
        assert "0 runs with more units" in driver.text
        table = driver.screen.query_one(PageTable)
        rows = [(row["run"], row["change"], row["conflicts"]) for row in map(table.row, range(table.count))]
        assert sorted(rows) == [
            ("elsewhere", "new, 3/3 units", 0),
            ("toy", "no new units", 1),
        ]
        await press("tab")
        row = table.row(0)
        assert (row["run"], row["table_name"], row["here"], row["there"]) == ("toy", "score", "n 1", "n 2")
        await press("M")
        assert isinstance(driver.screen, RunsScreen)
        await driver.until("9 runs")
        assert "elsewhere" in driver.text
        press.told("merge another registry")
    with open_session(str(own / "registry.db"), own / "store") as session, session.database.read() as sql:
        assert sql.query(tables.Conflict).count() == 1


async def test_a_folder_without_a_registry_is_not_merged(drive: Any, own: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    async with drive(own, size=(120, 30)) as driver:
        await driver.press("M")
        await driver.find_row("empty")
        await driver.press("space")
        await driver.until("not merged:", "holds neither a registry.db")
        await driver.press("M")
        assert isinstance(driver.screen, MergeScreen), "there is nothing to merge"
