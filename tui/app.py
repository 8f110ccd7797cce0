"""The app: screens, database worker, colors and banner. Each screen defines its contents and the target of Enter."""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from rich.cells import cell_len
from rich.segment import Segment
from textual import work
from textual.color import Color
from textual.events import Event, Key, Paste
from textual.filter import DimFilter, LineFilter
from textual.widgets import Input

from chessreg.terminal import is_printable
from tui import show
from tui.actions import EVERYWHERE, can_write, make_bindings
from tui.board_colors import get_color_system
from tui.database_worker import DatabaseWorker
from tui.entries import ENTRIES, warm_up
from tui.host import READ_ONLY_MESSAGE, Host
from tui.model_process import ModelProcess
from tui.screens.base import AppScreen
from tui.screens.help import HelpScreen, Jump, Palette, find_jump_targets
from tui.state import RememberedState
from tui.themes import BOARD_DARK, DIM_SHARE, THEMES, make_legible
from tui.typed import Echo, TypedKeys
from tui.widgets.images import PLACEHOLDER
from tui.writes import Writes

if TYPE_CHECKING:
    from textual.dom import DOMNode
    from textual.theme import Theme
    from textual.widget import Widget

    from chessreg.session import Session
    from tui.data.query_answers import ScreenQuestion
    from tui.widgets.board import Glyphs

TICK_S = 0.5  # seconds between checks of pending calls
CHANGE_POLL_TICKS = 4  # ticks between checks for changes
INGEST_TICKS = 20  # ticks between ingests of waiting results
FILL_TIMEOUT_S = 3.0  # seconds after which the first screen counts as filled
SLOW_CALL_S = 1.0  # seconds before the banner shows a slow call
MAX_NOTICES = 20  # newest notices kept
QUIT_WRITE_TIMEOUT_S = 1.0  # seconds that quitting waits for a running write
LAST_SEEN_KEY = "left"  # key of the last visit's time
MIN_NEWS_PERIOD = timedelta(days=1)  # after a shorter absence, home still shows the runs of this period


def find_news_period(state: RememberedState) -> tuple[datetime, str]:
    """Return the time from which ended runs are news, and a phrase for it: the last visit, at least MIN_NEWS_PERIOD."""
    begin = datetime.now(UTC) - MIN_NEWS_PERIOD
    with suppress(TypeError, ValueError):
        visit = datetime.fromisoformat(state.get(LAST_SEEN_KEY))
        if visit < begin:
            return visit, f"since your last visit, {show.format_local_time(visit)}"
    return begin, "in the last day"


class PrintableFilter(LineFilter):
    """Remove control and format characters from every line, so that registry contents cannot control the terminal.

    A removed character that takes cells is replaced by question marks.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments of a line without characters that could control the terminal."""
        return [
            segment
            if segment.control or segment.text.isprintable()
            else Segment(
                "".join(c if is_printable(c) or c == PLACEHOLDER else "?" * cell_len(c) for c in segment.text),
                segment.style,
            )
            for segment in segments
        ]


PRINTABLE_FILTER = PrintableFilter()
ASCII_SIGNS = {
    sign: plain
    for plain, signs in {
        "-": "━─▬▔▃▂–—−", "> ": "🔎", "~": "…", ".": "╸┄╌·", "|": "│┃▏▕▎▌▐", ">": "›→▶»≥", "<": "←◀«≤", "^": "↑▲",
        "v": "↓▼", "#": "█▇▆■●◆", "*": "★", "!": "⚑", "=": "▅▄½", "_": "▁", "+": "┼┤├┬┴╭╮╰╯┌┐└┘✓", "x": "✗×", "d": "Δ",
        "/": "╱", "\\": "╲", "o": "○□△◇", "l": "λ",
    }.items()
    for sign in signs
}  # fmt: skip


def join_pasted_lines(text: str) -> str:
    """Join the lines of a pasted text, because a one-line field would keep only the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return text if len(lines) < 2 else " ".join(lines)


class AsciiFilter(LineFilter):
    """Replace non-ASCII characters on ASCII terminals by similar signs, letters without accents, or question marks."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments of a line with ASCII replacements of signs and lines."""
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment("".join(map(to_ascii, segment.text)), segment.style)
            for segment in segments
        ]


def to_ascii(character: str) -> str:
    """Return a character in ASCII with the same width.

    >>> "".join(map(to_ascii, "é½♞漢⠁…"))
    'e=???*~'
    """
    if character.isascii():
        return character
    if "\u2800" <= character <= "\u28ff":  # dots of a chart or of an arrow
        return "*" if character > "\u2800" else " "
    ascii_text = ASCII_SIGNS.get(character) or unicodedata.normalize("NFKD", character)[:1]
    return ascii_text if ascii_text.isascii() and ascii_text else "?" * cell_len(character)


ASCII_FILTER = AsciiFilter()


class ChessregApp(Host):
    """The terminal UI.

    `opener` opens the registry on a thread of the database worker. `start` is the first screen (default: the screen
    open last). `themes` and `keys` (by action name) are the user's. `typed_text` is input received before the start.
    The app exits with the error if the registry cannot be opened.
    """

    TITLE = "chessreg"
    BINDINGS = make_bindings(EVERYWHERE)
    COMMANDS: ClassVar[set[Any]] = {Palette}
    MODES: ClassVar[dict[str, Any]] = {entry.name: entry.open for entry in ENTRIES}
    DEFAULT_MODE = ENTRIES[0].name
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    AppScreen { background: $background; }
    /* in the layer of the content, which yields instead of being covered; above the key bar */
    ToastRack { layer: default; margin: 0 0 1 0; max-height: 6; }
    Toast { width: 100%; max-width: 100%; margin: 0; padding: 0 1; }
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
        plain: bool = False,
        images: type[Any] | None = None,
        keys: Mapping[str, str] | None = None,
        typed_text: str = "",
    ) -> None:
        self.saved_state = RememberedState(place, frozen=read_only)
        start = start or self.saved_state.get("room", "")
        if start in self.MODES:
            self.DEFAULT_MODE = start  # type: ignore[misc]  # textual reads it of the instance
        super().__init__()
        self.plain, self.images = plain, images
        self.pictures = images is not None  # whether boards and figures are images now
        self.keys = dict(keys or {})
        self.set_keymap(self.keys)
        self.themes = (*THEMES, *themes)
        self.database = DatabaseWorker(opener, on_answer=self.show_slow_call, held=True)
        self.model = ModelProcess(self.database, read_only)
        self.read_only = read_only
        self.glyphs = glyphs or ("outline" if self.no_color else "solid")
        self.place_shown = " · ".join(filter(None, [show.shorten_place(place), "read only" if read_only else ""]))
        self.since, self.since_told = find_news_period(self.saved_state)
        self.writes = Writes()
        self.drafts = {}
        self.typed_keys = TypedKeys(self, typed_text)
        self.followed_jobs = set()
        self.notices = deque(maxlen=MAX_NOTICES)
        self.version: str | None = None
        self.lost = False
        self._ticks = 0
        self._has_settled, self._start_time = False, time.monotonic()
        self._is_looking = self._is_ingesting = False

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = [DimFilter(DIM_SHARE) if isinstance(one, DimFilter) else one for one in super().get_line_filters()]
        return [*filters, PRINTABLE_FILTER, *([ASCII_FILTER] if self.is_ascii_only else [])]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return BOARD_DARK

    def get_css_variables(self) -> dict[str, str]:
        """Return the theme's colors, adjusted to be legible with the terminal's number of colors."""
        self.theme_variables = make_legible(
            super().get_css_variables(), self.current_theme, get_color_system(self.console.color_system)
        )
        return self.theme_variables

    def on_load(self) -> None:
        """Choose the theme before the first screen exists, so that styles are computed once."""
        for theme in self.themes:
            self.register_theme(theme)
        theme_names = {theme.name for theme in self.themes}
        theme_name = self.saved_state.get("theme", "")
        self.theme = theme_name if theme_name in theme_names else self.themes[0].name

    async def on_ready(self) -> None:
        """Load the registry's code only after the first frame, which it would delay."""
        self.database.begin()
        if self.typed_keys.waiting:
            await self.deliver_key(self.typed_keys.waiting.popleft())

    def on_mount(self) -> None:
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # redraw after the shell
        self.check_for_changes()
        self.set_interval(TICK_S, self.tick)

    async def on_event(self, event: Event) -> None:
        """Queue a key that arrives while another is being handled."""
        if isinstance(event, Key | Paste) and not event.is_forwarded:
            if not self.typed_keys.queue_key(event):
                await self.deliver_key(event)
        else:
            await super().on_event(event)

    async def deliver_key(self, key: Key | Paste) -> None:
        """Deliver the next key or pasted text to the focused widget."""
        key = self.typed_keys.split_key(key)
        if isinstance(key, Paste) and isinstance(self.typed_keys.focus(), Input):
            key = Paste(join_pasted_lines(key.text))
        await super().on_event(key)
        self.typed_keys.follow(key)

    async def on_echo(self, event: Echo) -> None:
        key = self.typed_keys.get_next_key(event)
        while key is not None:
            await self.deliver_key(key)
            key = self.typed_keys.take_next_text_key()

    async def on_unmount(self) -> None:
        self.saved_state.set(LAST_SEEN_KEY, datetime.now(UTC).isoformat())
        await self.model.close()
        self.database.close()

    @property
    def top_screen(self) -> AppScreen | None:
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, AppScreen)), None)

    # -- slow, lost, changed --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Report slow calls and periodically check the registry for changes. Background work starts once the first
        screen is filled, or after a timeout."""
        if not self._has_settled:
            worker = self.top_screen.filling if self.top_screen is not None else None
            self._has_settled = (
                worker is None or worker.is_finished or time.monotonic() - self._start_time > FILL_TIMEOUT_S
            )
            if not self._has_settled:
                self.show_slow_call()
                return
            warm_up()
        if self._ticks % INGEST_TICKS == 0 and not self.read_only:
            self.ingest_results()
        self._ticks += 1
        self.show_waiting_changes()
        self.show_slow_call()
        if self._ticks % CHANGE_POLL_TICKS == 0:
            self.continue_writing()
            if self.top_screen is not None and self.top_screen.stale:
                self.top_screen.reload_if_stale()
            if not self._is_looking:
                self.check_for_changes()

    def show_slow_call(self) -> None:
        """Show a slow call in the banner, and remove the message when the call is done."""
        if not self.is_running:
            return
        banner, oldest_call = self.find_banner(), self.database.find_oldest_call()
        if banner is None or banner.has_class("-wrong"):
            return
        if oldest_call and oldest_call.seconds > SLOW_CALL_S:
            keys = (
                f"; {show.format_count(len(self.typed_keys.waiting), 'key')} waiting for it"
                if self.typed_keys.waiting
                else ""
            )
            drops = ", Esc drops them" if keys and self.typed_keys.is_stuck else ""
            banner.set_message(f"still {oldest_call.what} … {oldest_call.seconds:.0f} s{keys}{drops}")
        elif banner.message:
            banner.clear_message()

    @work(group="look")
    async def check_for_changes(self) -> None:
        """Reload the screens if another process has changed the registry."""
        self._is_looking = True
        try:
            version = await self.database.ask("looking for changes", lambda session: session.database.data_version())
        except Exception as error:
            if self.top_screen is not None:
                self.show_failure(self.top_screen, error)
            return
        finally:
            self._is_looking = False
        self.show_slow_call()
        has_changed, self.version = version != self.version and self.version is not None, version
        if self.lost or has_changed:
            self.reload_screens()
            self.announce_ended_jobs()

    @work(group="ingest")
    async def ingest_results(self, tell: bool = False) -> None:
        """Ingest waiting results, as every listing command does. Screens update at the next check for changes.

        With `tell`, a failure is shown as a warning.
        """

        def ingest(session: Session) -> str:

            return session.bring_up_to_date()

        if self._is_ingesting:
            return
        self._is_ingesting = True
        try:
            failure = await self.database.ask("ingesting results", ingest)
        except Exception as error:  # an unreadable registry is reported by `check_for_changes`
            self.log.warning(error)
            return
        finally:
            self._is_ingesting = False
        if failure and tell:
            self.notify(f"not up to date: {failure}", severity="warning")

    @work(group="followed")
    async def announce_ended_jobs(self) -> None:
        """Announce followed jobs that have ended: a notice, a bell and a terminal notification."""
        from tui.data.job_rows import list_ended_jobs

        ids = list(self.followed_jobs)
        if not ids:
            return
        try:
            rows = await self.database.ask("reading followed jobs", lambda session: list_ended_jobs(session, ids))
        except Exception as error:  # an unreadable registry is reported by `check_for_changes`
            self.log.warning(error)
            return
        for row in rows:
            if row["id"] in self.followed_jobs:
                self.followed_jobs.discard(row["id"])
                self.report_ended_run(row)

    def report_ended_run(self, row: Mapping[str, Any]) -> None:
        """Report that a run has ended: a message, the bell, and a desktop notification (OSC 9) outside a browser."""
        name, state = row["name"] or row["title"], row["state"].replace("_", " ")
        severity = "information" if state == "complete" else "warning"
        self.notify(f"{state}: {show.format_units_done(row)} units", title=name, severity=severity)
        self.bell()
        if self._driver is not None and not self.is_web:
            notice = "".join(c for c in f"chessreg: {name} {state}" if c.isprintable())
            self._driver.write(f"\x1b]9;{notice}\x07")

    # -- writing ------------------------------------------------------------------------------------------------------

    def reload_screens(self) -> None:
        """Reload every screen that follows the registry: the visible one now, the others when they are opened."""
        for stack in self._screen_stacks.values():
            for screen in stack:
                if isinstance(screen, AppScreen):
                    screen.reload_if_stale()
        if self.lost and self.top_screen is not None:
            self.clear_banner(self.top_screen)

    # -- actions --------------------------------------------------------------------------------------------------

    def open(self, noun: str, id: UUID, name: str) -> None:
        from tui.screens.job import JobScreen
        from tui.screens.run import RunScreen
        from tui.screens.things import ThingScreen

        if noun == "run":
            self.push_screen(RunScreen(id, name))
        elif noun == "job":
            self.push_screen(JobScreen(id, name))
        else:
            self.push_screen(ThingScreen(noun, id, name))

    def open_plot(self, question: ScreenQuestion) -> None:
        from tui.screens.answers import PlotScreen
        from tui.screens.heat import HeatScreen

        self.push_screen((HeatScreen if question.entry.plots[0].form == "board" else PlotScreen)(question))

    def open_lineage(self, noun: str, id: str, name: str) -> None:
        from tui.screens.lineage import LineageScreen

        self.push_screen(LineageScreen(noun, id, name))

    def open_run_form(self, run_id: UUID, name: str) -> None:
        from tui.screens.launch import open_run_form

        if self.top_screen is not None:
            open_run_form(self.top_screen, run_id, name)

    def prompt(self, question: str, on_answer: Callable[[str | None], None]) -> None:
        from tui.screens.dialogs import Prompt

        self.push_screen(Prompt(question), on_answer)

    def action_help(self) -> None:
        if self.top_screen is not None and not isinstance(self.top_screen, HelpScreen):
            self.push_screen(HelpScreen(self.top_screen.list_keyed_actions()))

    def action_messages(self) -> None:
        from tui.screens.messages import MessagesScreen

        if not isinstance(self.top_screen, MessagesScreen):
            self.push_screen(MessagesScreen())

    async def run_action(
        self,
        action: Any,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action; in read-only mode, refuse actions that may write. All keys, palette entries and links call
        this method."""
        node, method, _ = self._parse_action(action, default_namespace or self, namespaces)
        if self.read_only and can_write(type(node), method):
            self.notify(READ_ONLY_MESSAGE, severity="warning")
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def action_palette(self) -> None:
        self.action_command_palette()

    async def action_reload(self) -> None:
        """Read the rows of the screen again."""
        if not self.read_only:
            self.ingest_results(tell=True)
        if self.top_screen is not None:
            self.top_screen.load()

    def action_copy_command(self) -> None:
        if self.top_screen is not None:
            command = self.top_screen.command()
            self.copy(command, command)

    def action_jump(self) -> None:
        screen = self.top_screen
        if screen is None or self.screen is not screen:
            return
        parts = find_jump_targets(screen)

        def focus_target(target: Widget | None) -> None:
            if target is not None:
                screen.set_focus(target)

        self.push_screen(Jump(parts), focus_target)

    def action_theme(self) -> None:
        names = [theme.name for theme in self.themes]
        place = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(place + 1) % len(names)]
        self.saved_state.set("theme", self.theme)

    def action_glyphs(self) -> None:
        from tui.screens.board_base import DrawingScreen
        from tui.widgets.board import GLYPHS

        ways = list(GLYPHS)
        place = ways.index(self.glyphs) + 1
        if self.images is not None and (self.pictures or place == len(ways)):
            self.pictures, place = not self.pictures, 0  # images come before the first text style
        self.glyphs = ways[place % len(ways)]
        if self.plain:
            self.refresh_css(animate=False)  # redraw all lines with or without the filter
            if self.top_screen is not None:
                self.top_screen.relabel()
        if isinstance(self.top_screen, DrawingScreen):
            self.top_screen.draw()

    def action_suspend(self) -> None:
        if self.is_web:
            self.notify("a page in a browser cannot be suspended", severity="warning")
        else:
            self.action_suspend_process()

    def action_picture(self) -> None:
        path = self.save_screenshot()
        self.notify(path, title="saved")

    async def action_quit(self) -> None:
        """Quit after pending changes are written or dropped, and ask before stopping a running command."""
        until = time.monotonic() + QUIT_WRITE_TIMEOUT_S
        while self.writes.waits and not self.writes.blocked_writes and time.monotonic() < until:
            await asyncio.sleep(TICK_S / 20)
        lost_texts = []
        if self.writes.waits:
            number = show.format_count(len(self.writes.waits), "change")
            lost_texts.append(f"{number} not written yet; quitting discards them.")
        if self.model.commands:
            lost_texts.append(f"Still running; quitting kills: {show.join_words(self.model.commands)}.")
        if not lost_texts:
            self.exit()
            return
        from tui.screens.dialogs import Confirm

        def handle_answer(yes: bool | None) -> None:
            if yes:
                self.exit()

        self.push_screen(Confirm(f"{' '.join(lost_texts)} Quit?"), handle_answer)
