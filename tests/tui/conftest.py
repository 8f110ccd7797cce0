"""The app under test on a registry made by real runs. Nothing in a picture differs from machine to machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.css import match as matching
from textual.css import stylesheet
from textual.css.model import RuleSet, Selector
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.worker import WorkerCancelled

from chessreg.session import Session
from tui import registry, show
from tui.app import ChessregApp
from tui.screens.base import AppScreen

from .queues import own_queue as own_queue
from .queues import queue as queue
from .worlds import command as command
from .worlds import session as session
from .worlds import studied as studied
from .worlds import study as study
from .worlds import world as world

PATIENCE = 300.0  # seconds after which missing text is a failure
CALM = 4
NEVER = 86_400.0  # seconds: no test takes as long


@pytest.fixture(scope="session", autouse=True)
def drawn_when_asked() -> Iterator[None]:
    """Draw only when `Driver.text` or a picture needs the whole screen, because no terminal shows it.

    Parse the style sheets of all apps, which are the same, once.
    """
    parse, update = Stylesheet._parse_rules, Compositor.render_update
    parsed: dict[Any, Any] = {}
    variables: list[dict[str, str]] = []

    def parse_once(self: Stylesheet, *source: Any, **named: Any) -> Any:
        if self._variables not in variables:
            variables.append(dict(self._variables))
        key = (source, *named.items(), variables.index(self._variables))
        if key not in parsed:
            parsed[key] = parse(self, *source, **named)
        return parsed[key]

    def render_update(self: Compositor, full: bool = False, simplify: bool = False, **given: Any) -> Any:
        if full:
            return update(self, full, simplify=simplify, **given)
        self._dirty_regions.clear()
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        patch.setattr(Compositor, "render_update", render_update)
        yield


@pytest.fixture(scope="session", autouse=True)
def styled_faster() -> Iterator[None]:
    """Apply style sheets and query widgets faster, with the same result: that is a third of the work of these tests.

    A selector can only match a node that its last part matches, so check that part first. `RuleSet.__hash__` returns
    the object's identity from Python, and is called for every rule and node.
    """
    match = matching._check_selectors

    def match_last_first(selectors: list[Selector], path: list[DOMNode]) -> bool:
        return selectors[-1].check(path[-1]) and match(selectors, path)

    with pytest.MonkeyPatch.context() as patch:
        for module in (stylesheet, matching):
            patch.setattr(module, "_check_selectors", match_last_first)
        patch.setattr(RuleSet, "__hash__", object.__hash__)
        yield


@pytest.fixture
def near_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's model on a thread of the tests, which have torch already: a separate process would load it for
    seconds."""
    from chessreg.lab import worker
    from tui.model_process import ModelProcess

    opened: dict[ModelProcess, Any] = {}

    async def asked(self: ModelProcess, number: int, question: Any) -> dict[str, Any]:
        place = await self.make_environment()

        def look() -> dict[str, Any]:
            if self not in opened:
                opened[self] = worker.open_lab(place["CHESSREG_REGISTRY"], Path(place["CHESSREG_STORE"]), 1)
            try:
                return {"answer": json.loads(opened[self].ask(question).as_json())}
            except Exception as error:
                return worker.describe_worker_error(error)

        return await asyncio.to_thread(look)

    monkeypatch.setattr(ModelProcess, "_reply", asked)


@pytest.fixture(autouse=True)
def same_everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Times, hosts, ids, paths and durations with fixed fictional values, so that pictures do not depend on the
    machine. Nor do they contain anything that changes with time: check-ins of running jobs, a machine's second load."""
    if "snap_compare" in request.fixturenames:
        monkeypatch.setattr("tui.app.TICK_S", NEVER)
        monkeypatch.setattr("tui.screens.home.LOAD_SAMPLE_S", NEVER)

    def when(time: datetime | None) -> str:
        return "2026-01-02 03:04" if time else ""

    monkeypatch.setattr(show, "format_local_time", when)
    monkeypatch.setattr(show, "format_host", lambda name: "box1" if name else "")
    monkeypatch.setattr(show, "abbreviate_id", lambda id: "a1b2c3")
    monkeypatch.setattr(show, "format_seconds", lambda seconds: "" if seconds is None else "1.0 s")
    monkeypatch.setattr(show, "shorten_place", lambda text: "project/registry.db")
    monkeypatch.setattr(show, "trim_provenance", lambda text: text.partition("; query")[0])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # remembered values, and none from another tesr
    monkeypatch.setattr("textual.app.wait_for_idle", at_once)
    monkeypatch.setattr(ChessregApp, "NOTIFICATION_TIMEOUT", NEVER)  # `Driver.notices` has all of them
    monkeypatch.setattr("tui.app.SLOW_CALL_S", NEVER)  # no banner for slow operations on a busy machine
    monkeypatch.setattr("tui.screens.runs.RESULTS_DELAY_S", 0.0)
    monkeypatch.setattr("tui.screens.preview.BOARD_WIDE_CELLS", 10_000)
    monkeypatch.setattr("tui.screens.preview.WIDE_CELLS", 10_000)  # previews show ids and logs; test_preview has them


async def at_once(*_: float) -> None:
    """Replaces the check of the processor after every key: `settled` waits for the effects of the key."""
    await asyncio.sleep(0)


def make_app(folder: Path, **settings: Any) -> ChessregApp:
    """The app on a registry and store in this folder."""
    read_only = bool(settings.get("read_only"))

    def opener() -> Session:
        return registry.open_tui_session(f"sqlite:///{folder / 'registry.db'}", folder / "store", read_only)

    settings.setdefault("start", "runs")
    return ChessregApp(opener, str(folder / "registry.db"), **settings)


def unpainted(screen: Screen[Any]) -> bool:
    """Whether something is still to be laid out or drawn: Textual does that by a timer, 60 times a second."""
    return any(
        part._layout_required or part._repaint_required or part._scroll_required
        for part in screen.walk_children(with_self=True)
    ) or bool(screen._dirty_widgets)


async def wait_until_no_task_runs() -> None:
    """Wait until no task of the event loop can run: all wait for a message, a timer, a thread or a process."""
    ready, calm = asyncio.get_running_loop()._ready, 0  # type: ignore[attr-defined]
    while calm < CALM:
        await asyncio.sleep(0)
        calm = 0 if ready else calm + 1


async def settled(pilot: Pilot[Any]) -> None:
    """Wait for the workers, and for everything they lead to: order, page, picture. Never for a fixed time.

    The app has settled when no worker runs, nothing is left to draw, and every part of the screen has handled its
    messages since. If it does not settle within PATIENCE, the test fails and names the worker.
    """
    handled, screen = False, None
    try:
        async with asyncio.timeout(PATIENCE):
            while pilot.app.is_running:
                await wait_until_no_task_runs()
                reading = [worker for worker in pilot.app.workers if not worker.is_finished]
                moved, screen = pilot.app.screen is not screen, pilot.app.screen
                if reading:
                    handled = False
                    with suppress(WorkerCancelled):  # a newer reading took its place
                        await pilot.app.workers.wait_for_complete(reading)
                elif moved or unpainted(screen) or pilot.app.typed_keys.under_way:
                    handled = False
                    await pilot._wait_for_screen()  # parts that are idle afterwards ask to be drawn
                    screen._on_timer_update()  # draws now, where Textual draws 60 times a second
                    await asyncio.sleep(0.002)
                elif handled:
                    break
                else:
                    await pilot._wait_for_screen()
                    handled = True
    except TimeoutError:
        pytest.fail(
            f"the app does not settle; it waits for {[*pilot.app.workers]} and {pilot.app.database.find_oldest_call()}"
        )


class Driver:
    """The app under test: keys, and the text on the screen."""

    def __init__(self, app: ChessregApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Press keys, and let everything settle after each; without one as `settle`."""
        for key in keys:
            await self.app._press_keys([key])
            await settled(self.pilot)
        if not keys:
            await self.settle()

    async def type(self, text: str) -> None:
        """Type letters as fast as they come, and let everything settle."""
        await self.burst(*text)

    async def burst(self, *keys: str) -> None:
        """Send keys all at once, as a macro or a slow line does, and let everything settle."""
        for key in keys:
            self.app.post_message(
                Key(key if key.isalnum() else _character_to_key(key), key) if len(key) == 1 else Key(key, None)
            )
        await settled(self.pilot)

    async def go(self, name: str) -> None:
        """Go to a screen by its name."""
        self.app.action_go(name)
        await settled(self.pilot)

    async def settle(self) -> None:
        await settled(self.pilot)

    async def until(self, *words: str, seconds: float = PATIENCE) -> str:
        """The screen, once it has all these words, for changes from outside and by timers."""
        await self.once(lambda: all(word in self.text for word in words), " and ".join(words), seconds)
        return self.text

    async def once(self, true: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> None:
        """Wait until this is true, while the app runs."""
        deadline, pause = time.monotonic() + seconds, 0.02
        while not true():
            assert time.monotonic() < deadline, f"{what} did not come; the screen is\n{self.text}"
            await asyncio.sleep(pause)  # ever longer: constant drawing slows other processes down
            pause = min(1.3 * pause, 0.25)
            if self.app.is_running:
                await settled(self.pilot)

    @property
    def strips(self) -> list[Strip]:
        visible_screen_stack.set(self.app._background_screens)  # the keys that a modal screen lets through
        return self.app.screen._compositor.render_strips()

    @property
    def text(self) -> str:
        """The text on the screen, drawn completely each time."""
        strips = self.strips
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def way(self) -> str:
        """The room and the breadcrumbs to the screen."""
        from tui.widgets.bars import TopBar

        return " › ".join(self.screen.query_one(TopBar).crumbs[1:])

    @property
    def head(self) -> str:
        """The headings of the first table."""
        from tui.widgets.table import PageTable

        return "  ".join(column.heading for column in self.screen.query(PageTable).first().shown_headings)

    @property
    def notices(self) -> str:
        """The notifications of the app, which are not on the screen of a test."""
        return "\n".join(notification.message for notification in self.app._notifications)

    @property
    def screen(self) -> AppScreen:
        assert self.app.top_screen is not None
        return self.app.top_screen

    async def find_row(self, word: str) -> None:
        """Put the cursor on the first row in sight whose line has this word."""
        from tui.widgets.table import PageTable

        table = self.screen.query_one(PageTable)
        rows = [
            n for n in range(table.count) if word in " ".join(c.format_cell(table.row(n) or {}) for c in table.columns)
        ]
        assert rows, f"no row with {word!r}:\n{self.text}"
        table.move(rows[0])
        await settled(self.pilot)

    async def stand_on(self, *names: str, mark: bool = False) -> None:
        """Put the cursor on the row of this name, of each in turn, and mark it."""
        from tui.widgets.table import PageTable

        table = self.screen.query_one(PageTable)
        for name in names:
            table.move(next(n for n in range(table.count) if (table.row(n) or {}).get("name") == name))
            await (self.press("space") if mark else settled(self.pilot))


@asynccontextmanager
async def driving(app: ChessregApp, size: tuple[int, int] = (100, 30)) -> AsyncIterator[Driver]:
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        yield Driver(app, pilot)


@pytest.fixture
def drive(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`async with drive(size=(80, 24)) as driver:` on the world, or on another folder."""

    def start(folder: Path | None = None, size: tuple[int, int] = (100, 30), **settings: Any) -> Any:
        return driving(make_app(folder or request.getfixturevalue("world"), **settings), size)

    return start


@pytest.fixture
def app_on() -> Callable[..., ChessregApp]:
    return make_app


@pytest.fixture(
    params=[pytest.param((80, 24), id="80x24"), pytest.param((200, 60), id="200x60", marks=pytest.mark.slow)]
)
def picture(request: pytest.FixtureRequest, subject: Path, snap_compare: Any) -> Any:
    """`picture(steps, *words)`: do the steps, find the words on the screen, compare the picture. Of the registry that a
    file of tests has as its `subject`, or of another folder."""

    def take(
        steps: Callable[[Driver], Awaitable[Any]], *words: str, folder: Path | None = None, start: str = "runs"
    ) -> None:
        async def before(pilot: Pilot[Any]) -> None:
            await settled(pilot)
            driver = Driver(pilot.app, pilot)  # type: ignore[arg-type]
            await steps(driver)
            for word in words:
                assert word in driver.text, f"{word!r} is not in\n{driver.text}"

        app = make_app(folder or subject, start=start)
        assert snap_compare(app, terminal_size=request.param, run_before=before)

    return take
