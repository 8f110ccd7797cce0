"""With --read-only nothing is written: no row, and no file anywhere. Every action is tried, by its method."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.screen import ModalScreen

from chessreg.errors import RegistryError
from chessreg.registry import tables
from chessreg.registry.database import Database
from store.errors import StoreError
from tui.actions import ACTIONS, Action, can_write
from tui.app import ChessregApp
from tui.entries import ENTRIES, ScreenEntry
from tui.host import READ_ONLY_MESSAGE
from tui.model_process import ModelProcessError

from .test_actions import PLACES

PASSED = ("__pycache__", "/dev/null", "/proc/")
_written: list[str] = []  # by this process, while `recording`
_recording = False


def note_write(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recording:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in (mode or "") for letter in "wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if not writes or isinstance(path, int):
            return
    elif event not in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"):
        return
    if not any(word in str(arguments[0]) for word in PASSED):
        _written.append(f"{event} {arguments[0]}")


sys.addaudithook(note_write)  # none is ever taken away again: outside `recording` it returns at once


@contextmanager
def recording() -> Iterator[list[str]]:
    """Collect the files that this process opens for writing, makes, renames and removes."""
    global _recording
    _written.clear()
    _recording = True
    try:
        yield _written
    finally:
        _recording = False


def files(root: Path) -> dict[str, str]:
    """Every file with its content, but for the log and shared index that SQLite needs to read a registry."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def rows(registry: Path) -> list[str]:
    with Database.open(registry, create=False) as database, database.read() as session:
        return [f"{t.name} {row}" for t in tables.Base.metadata.sorted_tables for row in session.execute(t.select())]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folders, in one of which the app is started."""
    for variable in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
        (tmp_path / variable.lower()).mkdir()
    monkeypatch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR", "/tmp/chessreg-matplotlib"))
    monkeypatch.setenv("TMUX", "a server")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


WRITING = {  # place → its actions that change a row, a file or a setting: other actions must change nothing
    "everywhere": "picture",
    "messages": "drop again",
    "home": "launch begin.demo begin.data begin.model cancel retry",
    "runs": "add merge launch",
    "run": "launch",
    "merge": "merge",
    "annotate": "toggle_mark.star toggle_mark.pin toggle_mark.archive tag note name invalidate",
    "compare": "pin",
    "data": "add split",
    "thing": "verify",
    "lab": "store",
    "jobs": "launch cancel cancel.launch retry priority.1 priority.-1",
    "job": "launch cancel cancel.launch retry priority.1 priority.-1",
    "launch": "file",
    "form": "launch after_launch.cancel after_launch.retry",
    "result": "export",
}


def test_exactly_the_listed_actions_write() -> None:
    listed = {f"{place}.{name}" for place, names in WRITING.items() for name in names.split()}
    assert {action.name for action in ACTIONS if action.writes} == listed


def test_an_action_writes_unless_it_is_declared_to_read() -> None:
    assert Action("runs", "any", "x", "Any").writes
    for action in ACTIONS:
        assert can_write(PLACES[action.place], action.method) is action.writes, action.name
    for method in ("screenshot", "suspend_process", "push_screen", "no_such_method"):
        assert can_write(ChessregApp, method), "of textual's App, and in no table"
    assert not can_write(ChessregApp, "focus_next")


async def test_each_action_that_writes_is_refused_however_it_is_called(drive, world: Path, home: Path) -> None:
    before = files(home), rows(world / "registry.db")
    async with drive(world, read_only=True) as driver:
        with recording() as written:
            tried = [action for action in ACTIONS if action.writes]
            for action in tried:
                owner = PLACES[action.place]
                node = driver.app if owner is ChessregApp else owner.__new__(owner)
                driver.app.notices.clear()
                assert await driver.app.run_action(action.call, node)
                assert [notice.message for notice in driver.app.notices] == [READ_ONLY_MESSAGE], action.name
            driver.app.notices.clear()
            assert await driver.app.run_action("app.screenshot('/tmp/x.svg', '/tmp')", driver.screen)
            await driver.press("ctrl+s")
            assert [notice.message for notice in driver.app.notices] == [READ_ONLY_MESSAGE] * 2
        assert written == []
        assert len(tried) > 30
    assert (files(home), rows(world / "registry.db")) == before


async def test_what_would_write_below_an_action_is_refused_too(drive, world: Path, home: Path) -> None:
    def write(session: Any) -> None:
        with session.database.write():
            raise AssertionError("a transaction that writes has begun")

    async with drive(world, read_only=True) as driver:
        with pytest.raises(RegistryError, match="for reading only"):
            await driver.app.database.ask("writing", write)
        with pytest.raises(StoreError, match="for reading only"):
            await driver.app.database.ask("staging", lambda session: session.store.stage("x").__enter__())
        with pytest.raises(ModelProcessError, match="--read-only"):
            await driver.app.model.run_command(["demo"])
        driver.app.copy("text", "what")
        await driver.settle()
        assert driver.app.clipboard == "text", "the terminal may have it"
    assert files(home) == {}


LEAD_AWAY = ("quit", "back", "go")  # out of the app, or of a screen that is walked


def there(app: ChessregApp, screen: Any) -> bool:
    return any(screen in stack for stack in app._screen_stacks.values())


async def back_to(driver: Any, screen: Any) -> None:
    app = driver.app
    while app.screen is not screen and there(app, screen):
        if isinstance(app.screen, ModalScreen):
            app.screen.dismiss(None)
        elif screen in app.screen_stack:
            app.pop_screen()
        else:
            app.switch_mode(next(mode for mode, stack in app._screen_stacks.items() if screen in stack))
        await driver.settle()


async def walk(driver: Any, screen: Any, done: set[str], seen: set[type]) -> None:
    """Try every action of this screen, and of the screens and dialogs that these lead to; each class once.

    An action that ends a dialog ends the walk there.
    """
    app = driver.app
    seen.add(type(screen))
    for action in (action for action in ACTIONS if action.method not in LEAD_AWAY):
        nodes = [app, screen, *screen.query("*")]
        node = next((node for node in nodes if isinstance(node, PLACES[action.place])), None)
        if node is None:
            continue
        done.add(action.name)
        await app.run_action(action.call, node)
        await driver.settle()
        if app.screen is not screen and type(app.screen) not in seen:
            await walk(driver, app.screen, done, seen)
        await back_to(driver, screen)
        if app.screen is not screen:
            return


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
async def test_a_walk_through_every_action_writes_nothing(
    drive, studied: Path, queue: Any, home: Path, entry: ScreenEntry
) -> None:
    world = home / "world"
    shutil.copytree(queue.folder if entry.name == "jobs" else studied, world)
    before = files(home), rows(world / "registry.db")
    done: set[str] = set()
    async with drive(world, read_only=True, start=entry.name, size=(120, 40)) as driver:
        with recording() as written:
            await walk(driver, driver.app.screen, done, set())
    assert [line for line in written if "matplotlib" not in line] == []
    assert (files(home), rows(world / "registry.db")) == before
    assert {action.name for action in ACTIONS if action.place == entry.name and action.method not in LEAD_AWAY} <= done
