"""The app: screens, database worker, colours and the banner. Each screen knows what it shows and what Enter opens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from rich.cells import cell_len
from rich.segment import Segment
from textual import work
from textual.app import App
from textual.color import Color
from textual.events import Event, Key
from textual.filter import LineFilter

from chessreg.errors import told
from chessreg.terminal import shows
from tui import show
from tui.actions import EVERYWHERE, bindings
from tui.database_worker import DatabaseWorker
from tui.entries import ENTRIES, modes, sweep, warm_up
from tui.model_process import ModelProcess
from tui.screens.base import AppScreen
from tui.screens.help import Actions, HelpScreen, Jump, targets
from tui.state import Remembered, kept
from tui.themes import BOARD_DARK, THEMES
from tui.widgets.bars import Banner

if TYPE_CHECKING:
    from textual.theme import Theme
    from textual.widget import Widget

    from chessreg.session import Session
    from tui.widgets.board import Glyphs

TICK = 0.5  # seconds between looks at what is waited for
LOOK = 4  # ticks between looks for changes
TAKE_IN = 20  # ticks between takings in of results that wait
SWEEP = 60  # ticks between collections of old garbage
REST = 3.0  # seconds without a key before one
SLOW = 1.0  # seconds after which the banner tells
LEFT = "left"  # under which it is remembered when one looked last
FIRST_TIME = timedelta(days=1)  # so much is news to who never looked before


def last_time(remembered: Remembered) -> tuple[datetime, str]:
    """When one looked last at this registry, and how to say it."""
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(remembered.get(LEFT))
        return time, f"since you last looked, {show.when(time)}"
    return datetime.now(UTC) - FIRST_TIME, "in the last day"


class Printable(LineFilter):
    """Nothing of a registry drives the terminal: control and format characters are left out of every line drawn.

    Most take no cell; for one that does stands a question mark, so that nothing moves.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.control or segment.text.isprintable()
            else Segment("".join(c if shows(c) else "?" * cell_len(c) for c in segment.text), segment.style)
            for segment in segments
        ]


PRINTABLE = Printable()


class ChessregApp(App[Exception | None]):
    """`opener` opens the registry, on a thread of the database worker. `start` is the first screen; without one it is
    the screen that was open last. `themes` are the user's own.

    Ends with the error when the registry cannot be opened at all.
    """

    TITLE = "chessreg"
    BINDINGS = bindings(EVERYWHERE)
    COMMANDS: ClassVar[set[Any]] = {Actions}
    MODES: ClassVar[dict[str, Any]] = modes()
    DEFAULT_MODE = ENTRIES[0].name
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    AppScreen { background: $background; }
    """

    def __init__(
        self,
        opener: Callable[[], Session],
        place: str = "",
        *,
        read_only: bool = False,
        glyphs: Glyphs | None = None,
        start: str = "",
        themes: Sequence[Theme] = (),
    ) -> None:
        self.remembered = Remembered(place, frozen=read_only)
        start = start or self.remembered.get("room", "")
        if start in self.MODES:
            self.DEFAULT_MODE = start  # type: ignore[misc]  # textual reads it of the instance
        super().__init__()
        self.themes = (*THEMES, *themes)
        self.database = DatabaseWorker(opener, answered=self.tell_slow)
        self.model = ModelProcess(self.database)
        self.read_only = read_only
        self.glyphs: Glyphs = glyphs or ("outline" if self.no_color else "solid")
        self.place_shown = " · ".join(filter(None, [show.place(place), "read only" if read_only else ""]))
        self.since, self.since_told = last_time(self.remembered)
        self.version: str | None = None
        self.lost = False
        self._ticks, self._sweep_at, self._keyed = 0, SWEEP, 0.0
        self._looking = self._taking_in = False

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), PRINTABLE]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return BOARD_DARK

    def on_mount(self) -> None:
        for theme in self.themes:
            self.register_theme(theme)
        known = {theme.name for theme in self.themes}
        chosen = self.remembered.get("theme", "")
        self.theme = chosen if chosen in known else self.themes[0].name
        self.look()
        self.set_interval(TICK, self.tick)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key):
            self._keyed = time.monotonic()
        await super().on_event(event)

    async def on_unmount(self) -> None:
        self.remembered.set(LEFT, datetime.now(UTC).isoformat())
        await self.model.close()
        self.database.close()

    @property
    def top_screen(self) -> AppScreen | None:
        """The screen that is looked at, below a palette."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, AppScreen)), None)

    # -- slow, lost, changed --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Tell what takes long; now and then look whether the registry has changed."""
        if self._ticks % TAKE_IN == 0 and not self.read_only:
            self.take_in()
        self._ticks += 1
        if self._ticks >= self._sweep_at and time.monotonic() - self._keyed > REST:
            self._sweep_at = self._ticks + SWEEP
            sweep()
        self.tell_slow()
        if self._ticks % LOOK == 0:
            if self.top_screen is not None and self.top_screen.stale:
                self.top_screen.catch_up()
            if not self._looking:
                self.look()

    def tell_slow(self) -> None:
        """Say in the banner what has been waited for too long, and take it away when it has come."""
        if not self.is_running:
            return
        banner, waiting = self.banner(), self.database.waiting()
        if banner is None or banner.has_class("-wrong"):
            return
        if waiting and waiting.seconds > SLOW:
            banner.say(f"still {waiting.what} … {waiting.seconds:.0f} s; every key works meanwhile")
        elif banner.words:
            banner.hush()

    def banner(self) -> Banner | None:
        screen = self.top_screen
        return screen.query(Banner).first() if screen is not None and screen.query(Banner) else None

    @work(group="look")
    async def look(self) -> None:
        """Has another process written? Then what is shown is read again."""
        self._looking = True
        try:
            version = await self.database.ask("looking for changes", lambda session: session.database.data_version())
        except Exception as error:
            if self.top_screen is not None:
                self.trouble(self.top_screen, error)
            return
        finally:
            self._looking = False
        self.tell_slow()
        if self.version is None:
            warm_up()
        changed, self.version = version != self.version and self.version is not None, version
        if self.lost or changed:
            self.changed()

    @work(group="take in")
    async def take_in(self, tell: bool = False) -> None:
        """Take in results that wait, as every listing command does. What is shown follows by the look for changes."""
        from tui.registry import take_in

        if self._taking_in:
            return
        self._taking_in = True
        try:
            why_not = await self.database.ask("taking in results", take_in)
        except Exception as error:  # a registry that cannot be opened or read: the look for changes tells it
            self.log.warning(error)
            return
        finally:
            self._taking_in = False
        if why_not and tell:
            self.notify(f"not up to date: {why_not}", severity="warning")

    def changed(self) -> None:
        """Every screen that follows the registry reads again: the one in sight now, the others when they are seen."""
        for stack in self._screen_stacks.values():
            for screen in stack:
                if isinstance(screen, AppScreen):
                    screen.catch_up()
        if self.lost and self.top_screen is not None:
            self.all_well(self.top_screen)

    def trouble(self, screen: AppScreen, error: Exception) -> None:
        """Say in the banner what went wrong. A registry that cannot be opened at all ends the program."""
        from chessreg.registry.engines import RegistryError

        if not self.database.opened and not isinstance(error, RegistryError):
            self.exit(error)
            return
        message, hint, _ = told(error)
        self.lost = self.lost or isinstance(error, RegistryError)
        again = "; asked again every 2 s" if isinstance(error, RegistryError) else ""
        for banner in screen.query(Banner):
            banner.say(message + (f" ({hint}{again})" if hint else again), wrong=True)

    def all_well(self, screen: AppScreen) -> None:
        self.lost = False
        for banner in screen.query(Banner):
            banner.hush()

    # -- actions --------------------------------------------------------------------------------------------------

    def open(self, noun: str, id: UUID, called: str) -> None:
        """The screen of a run, a job, or any other thing of the registry."""
        from tui.screens.job import JobScreen
        from tui.screens.run import RunScreen
        from tui.screens.things import ThingScreen

        if noun == "run":
            self.push_screen(RunScreen(id, called))
        elif noun == "job":
            self.push_screen(JobScreen(id, called))
        else:
            self.push_screen(ThingScreen(noun, id, called))

    def open_lineage(self, noun: str, id: str, called: str) -> None:
        """The lineage of a thing."""
        from tui.screens.lineage import LineageScreen

        self.push_screen(LineageScreen(noun, id, called))

    def action_go(self, name: str) -> None:
        self.switch_mode(name)
        self.remembered.set("room", name)

    async def action_back(self) -> None:
        """Its end is not awaited: who asks may be a part of the screen that goes, and would wait for its own end."""
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def action_help(self) -> None:
        if self.top_screen is not None and not isinstance(self.top_screen, HelpScreen):
            self.push_screen(HelpScreen(self.top_screen.actions()))

    def action_palette(self) -> None:
        self.action_command_palette()

    async def action_reload(self) -> None:
        if not self.read_only:
            self.take_in(tell=True)
        if self.top_screen is not None:
            self.top_screen.load()

    def action_copy_command(self) -> None:
        if self.top_screen is not None:
            command = self.top_screen.command()
            self.copy(command, command)

    @work(group="copy")
    async def copy(self, text: str, what: str) -> None:
        """Copy by the terminal (OSC 52), into a file, and into tmux. The notice says `what` was copied."""
        from asyncio import to_thread

        self.copy_to_clipboard(text)
        path = await to_thread(kept, text)
        self.notify(f"{what}\nalso in {show.place(str(path))}" if path else what, title="copied")

    def action_jump(self) -> None:
        screen = self.top_screen
        if screen is None or self.screen is not screen:
            return
        parts = targets(screen)

        def go(chosen: Widget | None) -> None:
            if chosen is not None:
                screen.set_focus(chosen)

        self.push_screen(Jump(parts), go)

    def action_theme(self) -> None:
        names = [theme.name for theme in self.themes]
        place = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(place + 1) % len(names)]
        self.remembered.set("theme", self.theme)

    def action_glyphs(self) -> None:
        from tui.screens.board_base import DrawingScreen
        from tui.widgets.board import GLYPHS

        ways = list(GLYPHS)
        self.glyphs = ways[(ways.index(self.glyphs) + 1) % len(ways)]
        if isinstance(self.top_screen, DrawingScreen):
            self.top_screen.draw()

    def action_picture(self) -> None:
        path = self.save_screenshot()
        self.notify(path, title="saved")

    async def action_quit(self) -> None:
        self.exit()
