"""Changes made while the registry is locked are held, retried and dropped on request; messages are kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from textual.widgets._toast import Toast

from chessreg.registry import read, sqlite
from chessreg.session import open_session
from tui.screens.preview import Preview, RowPreview
from tui.widgets.bars import Banner, KeyBar, TopBar
from tui.widgets.table import PageTable

from .conftest import Driver


def annotations(folder: Path, name: str) -> dict[str, Any]:
    with open_session(str(folder / "registry.db"), folder / "store") as session, session.database.read() as sql:
        return read.read_run(sql, name)


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Path:
    return shutil.copytree(world, tmp_path / "own")


HOLD = """import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(registry: Path) -> Iterator[None]:
    """Another process holds the lock of writers, because a process does not lock itself out."""
    command = [sys.executable, "-S", "-c", HOLD, str(registry)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        yield
        holder.communicate()


async def test_what_is_said_while_the_registry_is_locked_is_held_and_written_later(
    drive: Any, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    async with drive(own, size=(120, 30)) as driver:
        await driver.stand_on("plain")
        with locked(own / "registry.db"):
            await driver.press("asterisk")
            await driver.once(lambda: driver.screen.query_one(TopBar).held == 1, "the held change")
            await driver.press("t")
            await driver.type("best")
            await driver.press("enter", "n")
            await driver.type("look again")
            await driver.press("enter")
            text = driver.text
            assert "! 3 not written: ^n" in text.splitlines()[0]
            await driver.press("ctrl+n")
            await driver.once(lambda: driver.text.count("not written  plain") == 3, "the three held changes")
            assert "star: " in driver.text
            assert "note look again: " in driver.text, "what was typed can be read while it is held"
            await driver.press("enter")
            await driver.until("by another writer")
            await driver.press("escape", "down", "x")
            await driver.until("Discard this change of plain: tag best?")
            await driver.press("y")
            await driver.once(lambda: driver.text.count("not written  plain") == 2, "the two held changes")
            await driver.press("q")
            await driver.until("2 changes not written yet; quitting discards them.", "Quit?")
            await driver.press("ctrl+c")
            assert driver.app.is_running
            assert "quitting discards" not in driver.text, "it says no"
        await driver.once(lambda: not driver.app.writes.waits, "the lock's end")
        await driver.press("escape")
        assert "not written" not in driver.lines[0]
        await driver.until("★ plain")
        await driver.press("enter")
        assert "starred · note: look again" in driver.lines[4]
        await driver.press("escape")
        await driver.press("ctrl+n")
        assert "starred" in driver.text, "what was told can be read again"
        assert "noted: look again" in driver.text
    told = annotations(own, "plain")
    assert (told["starred"], told["tags"], told["notes"]) == (True, [], ["look again"]), "the tag was dropped"


@pytest.mark.slow
async def test_text_of_a_registry_is_no_markup_in_toasts_previews_and_the_palette(
    app_on: Any, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, name = "see [/data/x] [@click=app.quit]hi[/]", "odd [/x]"
    monkeypatch.setattr("tui.screens.preview.WIDE_CELLS", 160)
    app = app_on(own)
    async with app.run_test(size=(170, 45), notifications=True) as pilot:
        driver = Driver(app, pilot)
        await driver.settle()
        await driver.stand_on("plain")
        await driver.press("n", *note, "enter")
        await driver.until("noted: see [/data/x]")
        assert app.query_one(Toast).render().plain.split("\n", 1)[1] == f"noted: {note}", "the title is plain"
        await driver.screen.query_one(Preview).show(RowPreview(note))
        assert "see [/data/x]" in driver.text
        monkeypatch.setattr("tui.data.palette.find_runs_by_name", lambda session, words: [(UUID(int=1), name)])
        await driver.press("ctrl+p", *"odd")
        await driver.until(f"Run {name}", f"runs show {name}")


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_a_toast_covers_no_content(app_on: Any, own: Path, size: tuple[int, int]) -> None:
    app = app_on(own)
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driver(app, pilot)
        await driver.settle()
        app.notify("/tmp/x.svg", title="saved")
        await driver.until("saved", "/tmp/x.svg")
        toast = app.query_one(Toast).region
        covered = [one for one in (*driver.screen.query(PageTable), *driver.screen.query(KeyBar))
                   if one.display and toast.overlaps(one.region)]  # fmt: skip
        assert toast.height == 2
        assert not covered
        banner = driver.screen.query_one(Banner)
        banner.set_message("the registry cannot be read " * 6, wrong=True)
        await driver.settle()
        toast = app.query_one(Toast).region
        assert banner.region.height > 1
        assert not toast.overlaps(banner.region)
        banner.clear_message()
        await driver.settle()
        assert app.query_one(Toast).region.bottom == driver.screen.query_one(KeyBar).region.y


async def test_a_name_that_is_taken_is_told_and_not_held(drive: Any, own: Path) -> None:
    async with drive(own) as driver:
        await driver.stand_on("plain")
        await driver.press("N", "ctrl+c")
        assert "Name plain" not in driver.text, "Ctrl-C leaves a question"
        await driver.press("slash", "x", "ctrl+c")
        assert driver.app.focused.id == "runs", "and a line of words"
        await driver.press("N")
        await driver.type("sure")
        await driver.press("enter")
        assert "the name 'sure' is taken" in driver.notices
        assert not driver.app.writes.waits


async def test_a_deleted_registry_says_so_in_every_room(drive: Any, own: Path) -> None:
    async with drive(own, size=(120, 30)) as driver:
        await driver.press("8")
        assert "[datasets 1]" in driver.text
        await driver.press("3")
        (own / "registry.db").rename(own / "away.db")
        for room in ("4", "3", "2", "8"):
            await driver.press(room, "r")
            assert "was deleted" in driver.text
        await driver.press("S", "enter")
        assert "no command is started" in driver.notices, "it would make another in its place"
        assert not (own / "registry.db").exists()
        (own / "away.db").rename(own / "registry.db")
        await driver.once(lambda: "was deleted" not in driver.text, "the registry again")
        await driver.press("3")
        assert "was deleted" not in driver.text, "a room that was not in sight meanwhile reads again"
        assert "cache" in driver.text


async def test_escape_clears_the_filter_before_it_leaves(drive: Any) -> None:
    async with drive() as driver:
        assert "Esc back" not in driver.lines[-1]
        await driver.press("slash")
        await driver.type("state:partial")
        await driver.press("enter")
        assert "Esc clear filter" in driver.lines[-1]
        await driver.press("escape")
        text = driver.text
        assert "8 runs (1" in text
        assert "state:partial" not in text
