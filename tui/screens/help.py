"""The command palette, the list of keys, and jump letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label
from textual.worker import WorkerCancelled, WorkerFailed

from tui.actions import EVERYWHERE, Action, list_place_actions, make_bindings
from tui.entries import ENTRIES
from tui.screens.base import AppScreen, TextScreen

if TYPE_CHECKING:
    from tui.host import Host

SECTION_TITLES = {
    "table": "In a table", "filter": "In this line", "editor": "In the editor", "log": "In the log",
    EVERYWHERE: "Everywhere",
}  # fmt: skip
HERE_TITLE = "Here"


class HelpScreen(TextScreen):
    """The keys, their effect, and the equivalent command."""

    crumb = "help"

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self.offered_actions = actions

    def make_content(self) -> RenderableType:
        parts: list[RenderableType] = []
        screen_cells, longest_text = (
            self.app.size.width,
            max((len(action.text) for action in self.offered_actions), default=0),
        )
        titles = [SECTION_TITLES.get(action.place, HERE_TITLE) for action in self.offered_actions]
        for title in dict.fromkeys(titles):
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold", no_wrap=True, width=9)
            table.add_column(width=34 if screen_cells < 110 else 50 if screen_cells < 150 else longest_text)
            table.add_column(style="dim", overflow="fold")
            for action, action_title in zip(self.offered_actions, titles, strict=True):
                if action_title == title:
                    table.add_row(Text(action.shown_keys), Text(action.text), Text(action.command))
            parts += [Text(title, style="bold underline"), table, Text()]
        return Group(*parts, Text("On the right: the equivalent command.", style="dim"))


JUMP_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


def find_jump_targets(screen: Screen[Any]) -> dict[str, Widget]:
    """Return the visible focusable widgets by letter, in reading order."""
    widgets = [
        widget
        for widget in screen.query("*")
        if widget.focusable and widget.region and screen.region.overlaps(widget.region)
    ]
    widgets.sort(key=lambda widget: (widget.region.y, widget.region.x))
    return dict(zip(JUMP_LETTERS, widgets, strict=False))


class Jump(ModalScreen[Widget | None]):
    """A dialog that returns the selected widget, or None."""

    BINDINGS = make_bindings("jump")
    DEFAULT_CSS = """
    Jump { background: $background 40%; }
    Jump > .letter { width: auto; height: 1; padding: 0 1; background: $accent; color: $background; text-style: bold; }
    Jump > #told { dock: bottom; width: 100%; height: 1; padding: 0 1; background: $panel; color: $foreground; }
    """

    def __init__(self, parts: dict[str, Widget]) -> None:
        super().__init__()
        self.parts = parts

    def compose(self) -> ComposeResult:
        for letter, widget in self.parts.items():
            label = Label(letter, classes="letter")
            label.absolute_offset = Offset(widget.region.x, widget.region.y)
            yield label
        yield Label("a letter jumps there, Esc cancels", id="told")

    def on_mount(self) -> None:
        for label in self.query(".letter"):
            label.styles.position = "absolute"
            label.styles.offset = cast(Offset, label.absolute_offset)

    def on_key(self, event: events.Key) -> None:
        if event.character and event.character in self.parts:
            event.stop()
            self.dismiss(self.parts[event.character])

    def action_leave(self) -> None:
        self.dismiss(None)


MAX_PALETTE_RUNS = 8
HERE_WEIGHT, USE_WEIGHT, MAX_COUNTED_USES, RUN_PENALTY = 1.5, 0.1, 10, 0.2  # added to the match score
USES_KEY = "palette.uses"  # how often each entry was chosen


class PaletteEntry(NamedTuple):
    """An entry of the palette. `key` identifies it in the usage counts."""

    key: str
    text: str
    help: str
    go: Callable[[], Awaitable[None]]
    weight: float = 0.0


class Palette(Provider):
    """Searches actions, screens, runs, queries, kinds and themes.

    Entries are ordered by match. Actions of the current screen and frequently chosen entries come first.
    """

    reading: asyncio.Task[list[PaletteEntry]] | None = None  # reads queries and kinds

    @property
    def home(self) -> Host:
        return cast("Host", self.app)

    async def startup(self) -> None:
        """Start reading queries and kinds in a task.

        Not awaited here, because Textual cancels this coroutine when the user types another letter.
        """
        self.reading = asyncio.create_task(self.read_listed())

    async def shutdown(self) -> None:
        if self.reading is not None:
            self.reading.cancel()

    async def read_listed(self) -> list[PaletteEntry]:
        """Return the entries of all queries and kinds. Empty if the registry cannot be read."""
        from tui.data import palette

        try:
            queries, kinds = await self.home.database.ask("reading queries and kinds", palette.list_palette_entries)
        except Exception:
            return []
        return [
            *(self.make_query_entry(entry) for entry in queries),
            *(self.make_kind_entry(name, reference, summary) for name, reference, summary in kinds),
        ]

    async def list_catalogue_entries(self) -> list[PaletteEntry]:
        """Return the entries of all queries and kinds. Cancelling a search does not cancel the read."""
        return [] if self.reading is None else await asyncio.shield(self.reading)

    def iterate_screen_entries(self) -> Iterator[PaletteEntry]:
        """Yield the actions of the current screen."""
        if isinstance(self.screen, AppScreen):
            for action in self.screen.list_keyed_actions():
                if action.method != "palette":
                    yield PaletteEntry(
                        action.name,
                        action.text,
                        format_keys_and_command(action),
                        make_action_runner(action, self.screen),
                    )

    def iterate_other_entries(self) -> Iterator[PaletteEntry]:
        """Yield the actions of the other main screens, which switch to that screen first.

        Actions that write are not run. Their key is shown, because the user must select a row first.
        """
        own_place = self.screen.place if isinstance(self.screen, AppScreen) else ""
        for entry in ENTRIES:
            for action in self.home.apply_keys_to(list_place_actions(entry.name)) if entry.name != own_place else ():
                if action.short or not action.writes:
                    text = f"{entry.name}: {action.text}"
                    yield PaletteEntry(
                        action.name, text, format_keys_and_command(action), self.make_place_runner(entry.name, action)
                    )

    def make_place_runner(self, room: str, action: Action) -> Callable[[], Awaitable[None]]:
        """Return a function that opens a screen and runs its action. It only names the key of an action that writes."""

        async def open_and_run() -> None:
            await self.home.switch_mode(room)
            self.home.return_to(1)
            screen = self.home.top_screen
            if not isinstance(screen, AppScreen):
                return
            if action.writes:
                self.home.notify(f"{action.shown_key} applies it to the selected row", title=action.text)
                return
            if screen.filling is not None:
                with suppress(WorkerCancelled, WorkerFailed):
                    await screen.filling.wait()
            await self.home.run_action(action.call, default_namespace=screen.find_node(action))

        return open_and_run

    def make_query_entry(self, entry: Any) -> PaletteEntry:
        """Return the entry that opens a query of the catalogue."""

        async def open_query() -> None:
            from tui.screens.answers import AnswerScreen

            await self.home.switch_mode("queries")
            await self.home.push_screen(AnswerScreen(entry))

        return PaletteEntry(
            f"query:{entry.title}", f"Query: {entry.title}", f'chessreg query "{entry.title}"', open_query
        )

    def make_kind_entry(self, name: str, reference: str, summary: str) -> PaletteEntry:
        """Return the entry that opens the launch form of a kind."""
        page_run = self.screen.run_on_page if isinstance(self.screen, AppScreen) else None

        async def open_form() -> None:
            from tui.screens.launch import LaunchScreen

            await self.home.switch_mode("launch")
            self.home.return_to(1)
            if isinstance(self.home.top_screen, LaunchScreen):
                self.home.top_screen.open(reference, asks=True, on_page=page_run)

        return PaletteEntry(f"launch:{name}", f"Launch {name}: {summary}", f"chessreg launch {reference}", open_form)

    def make_theme_entries(self) -> Iterator[PaletteEntry]:
        """Yield the entries that set and remember a theme."""
        for name in self.home.available_themes:

            async def set_theme(name: str = name) -> None:
                self.home.theme = name
                self.home.saved_state.set("theme", name)

            yield PaletteEntry(f"theme:{name}", f"Theme: {name}", "colors", set_theme)

    async def find_run_entries(self, words: str) -> list[PaletteEntry]:
        """Return the entries of at most MAX_PALETTE_RUNS runs whose names match. Empty after any error."""
        from tui.data import palette

        try:
            run_names = await self.home.database.ask(
                "looking for runs", lambda session: palette.find_runs_by_name(session, words)
            )
        except Exception:
            return []
        return [self.make_run_entry(id, name) for id, name in run_names[:MAX_PALETTE_RUNS]]

    def make_run_entry(self, id: UUID, name: str) -> PaletteEntry:
        """Return the entry that opens a run."""

        async def open_run() -> None:
            self.home.open("run", id, name)

        return PaletteEntry(f"run:{id.hex}", f"Run {name}", f"chessreg runs show {name}", open_run, -RUN_PENALTY)

    def count_uses(self, entry: PaletteEntry) -> int:
        return int(self.home.saved_state.get(USES_KEY, {}).get(entry.key, 0))

    def make_counting_runner(self, entry: PaletteEntry) -> Callable[[], Awaitable[None]]:
        """Return a function that runs an entry and counts its use."""

        async def run_and_count() -> None:
            uses = dict(self.home.saved_state.get(USES_KEY, {}))
            uses[entry.key] = uses.get(entry.key, 0) + 1
            self.home.saved_state.set(USES_KEY, uses)
            await entry.go()

        return run_and_count

    async def discover(self) -> Hits:
        """Yield the actions of this screen, then the most used other entries, when no text is typed."""
        screen_entries = list(self.iterate_screen_entries())
        keys = {entry.key for entry in screen_entries}
        other_entries = [
            entry
            for entry in (*self.iterate_other_entries(), *await self.list_catalogue_entries())
            if self.count_uses(entry) and entry.key not in keys
        ]
        for entry in [*screen_entries, *sorted(other_entries, key=self.count_uses, reverse=True)[:MAX_PALETTE_RUNS]]:
            yield DiscoveryHit(
                Content(entry.text), self.make_counting_runner(entry), text=entry.text, help=disable_markup(entry.help)
            )

    async def search(self, query: str) -> Hits:
        """Yield the entries that match, scored by match, exactness, place and earlier uses."""
        matcher = self.matcher(query)
        screen_entries = {entry.key: entry._replace(weight=HERE_WEIGHT) for entry in self.iterate_screen_entries()}
        other_entries = [
            f
            for f in (*self.iterate_other_entries(), *await self.list_catalogue_entries(), *self.make_theme_entries())
            if f.key not in screen_entries
        ]
        for entry in (*screen_entries.values(), *other_entries, *await self.find_run_entries(query)):
            score = max(matcher.match(entry.text), matcher.match(entry.help))
            if score > 0:
                use_weight = USE_WEIGHT * min(self.count_uses(entry), MAX_COUNTED_USES)
                yield Hit(
                    score + compute_exactness(query, entry.text) + entry.weight + use_weight,
                    Content(entry.text) if "[" in entry.text else matcher.highlight(entry.text),
                    self.make_counting_runner(entry),
                    text=entry.text,
                    help=disable_markup(entry.help),
                )


def disable_markup(help: str) -> str:
    """Return a help text in which Textual does not parse markup."""
    return cast(str, Content(help))


def compute_exactness(words: str, text: str) -> float:
    """Return a higher score the more literally `text` contains `words`."""
    query, lowercase = words.lower().strip(), text.lower()
    if lowercase == query:
        return 9.0
    if lowercase.startswith(query):
        return 6.0
    return 4.0 if query in lowercase else 2.0 if all(word in lowercase for word in query.split()) else 0.0


def make_action_runner(action: Action, screen: AppScreen) -> Callable[[], Awaitable[None]]:
    """Return a function that runs an action on a screen."""

    async def run_action() -> None:
        await screen.app.run_action(action.call, default_namespace=screen.find_node(action))

    return run_action


def format_keys_and_command(action: Action) -> str:
    return f"{action.shown_keys}    {action.command}".rstrip()
