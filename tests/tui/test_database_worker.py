"""The database worker: the registry is never asked on the event loop, and a database that hangs stops nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from chessreg.errors import BadInputError
from chessreg.session import Session
from tui import registry
from tui.database_worker import DatabaseWorker, OnEventLoopError
from tui.registry import OffLoopDatabase


@pytest.fixture
def opened(tmp_path: Path):
    with registry.open_tui_session(f"sqlite:///{tmp_path / 'registry.db'}", tmp_path / "store") as session:
        yield session


async def test_the_registry_refuses_the_thread_of_the_event_loop(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'registry.db'}"
    with pytest.raises(OnEventLoopError):
        registry.open_tui_session(place, tmp_path / "store")
    session = await asyncio.to_thread(registry.open_tui_session, place, tmp_path / "store")
    for use in (session.database.read, session.database.write):
        with pytest.raises(OnEventLoopError), use():
            pass
    with pytest.raises(OnEventLoopError):
        session.database.data_version()
    with pytest.raises(OnEventLoopError):
        session.query("elo by intervention")
    with pytest.raises(OnEventLoopError):
        session.inputs.reference("dataset", "games")
    assert await asyncio.to_thread(session.database.data_version)
    session.close()


async def test_a_question_is_answered_on_another_thread_and_errors_come_back(opened: Session) -> None:
    worker = DatabaseWorker(lambda: opened)
    assert await worker.ask("who", lambda session: threading.current_thread().name) != threading.current_thread().name
    with pytest.raises(BadInputError, match="no such thing"):
        await worker.ask("fail", lambda session: (_ for _ in ()).throw(BadInputError("no such thing")))
    worker.close()


async def test_a_call_that_hangs_keeps_neither_others_nor_the_end_waiting(opened: Session) -> None:
    held = threading.Event()
    worker = DatabaseWorker(lambda: opened, threads=2)
    hanging = asyncio.ensure_future(worker.ask("counting stars", lambda session: held.wait(300)))
    async with asyncio.timeout(120):
        while worker.find_oldest_call() is None:
            await asyncio.sleep(0)
    assert await worker.ask("quick", lambda session: 7) == 7
    assert worker.find_oldest_call() is not None
    assert worker.find_oldest_call().what == "counting stars"
    began = time.monotonic()
    worker.close(seconds=0.1)
    assert time.monotonic() - began < 30
    held.set()
    assert await hanging


async def test_a_registry_that_cannot_be_opened_is_tried_again(opened: Session) -> None:
    tries = []

    def opener() -> Session:
        tries.append(1)
        if len(tries) == 1:
            raise BadInputError("not yet")
        return opened

    worker = DatabaseWorker(opener)
    with pytest.raises(BadInputError, match="not yet"):
        await worker.ask("open", lambda session: session)
    assert await worker.ask("open", lambda session: session) is opened
    worker.close()


@contextmanager
def blocked(monkeypatch: pytest.MonkeyPatch):
    """From here on every transaction waits until the block ends."""
    gate = threading.Event()
    real = OffLoopDatabase.read

    @contextmanager
    def slow(self: OffLoopDatabase):
        gate.wait(600)
        with real(self) as session:
            yield session

    monkeypatch.setattr(OffLoopDatabase, "read", slow)
    try:
        yield gate
    finally:
        gate.set()


@pytest.mark.slow
async def test_every_key_is_answered_while_the_database_is_blocked(drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.app.SLOW_CALL_S", 1.0)
    async with drive() as driver:
        app, pilot = driver.app, driver.pilot
        with blocked(monkeypatch) as gate:
            table = app.screen.query_one("PageTable")
            slowest = 0.0
            for key in ("j", "j", "k", "G", "g", "question_mark", "escape", "r", "5", "7", "4", "slash", "x", "enter"):
                began = time.monotonic()
                await pilot.press(key)
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 30, "a key waited for the database"  # the pilot itself takes 0.06 s
            await pilot.press("escape", "j")
            async with asyncio.timeout(120):
                while table.cursor != 1:
                    await pilot.pause(0.01)
                while "still " not in driver.text:  # the banner names slow operations after a second
                    await pilot.pause(0.05)
            assert "still" in driver.lines[-2]
            gate.set()
        await driver.once(lambda: "still" not in driver.text, "an answer")


async def test_no_handler_of_a_session_through_all_rooms_asks_on_the_event_loop(drive) -> None:
    """OffLoopDatabase would raise, and the app would end with it."""
    async with drive() as driver:
        await driver.press("enter", "tab", "tab", "escape", "5", "enter", "right", "escape", "7", "enter", "escape")
        await driver.press("r")
        assert isinstance(await driver.app.database.ask("kind", lambda session: session.database), OffLoopDatabase)
        assert driver.app.is_running


async def test_a_worker_ends_with_the_screen_that_it_reads_for(drive) -> None:
    async with drive() as driver:
        await driver.press("enter")
        left = driver.screen
        await driver.press("escape")
        assert driver.screen is not left
        with pytest.raises(asyncio.CancelledError):
            await left.ask("counting runs", lambda session: 7)
        assert await driver.screen.ask("counting runs", lambda session: 7) == 7
