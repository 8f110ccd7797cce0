"""Three ways to find what one can do: the palette, every key that works here, and letters that jump."""

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

from tui.actions import EVERYWHERE, Action, bindings, of
from tui.entries import ENTRIES
from tui.screens.base import AppScreen, TextScreen

if TYPE_CHECKING:
    from tui.host import Host

SECTIONS = {
    "table": "In a table", "filter": "In this line", "editor": "In the editor", "log": "In the log",
    EVERYWHERE: "Everywhere",
}  # fmt: skip
HERE = "Here"


class HelpScreen(TextScreen):
    """Keys, what they do, and the command that does the same."""

    crumb = "help"

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self.offered = actions

    def content(self) -> RenderableType:
        parts: list[RenderableType] = []
        wide, longest = self.app.size.width, max((len(action.text) for action in self.offered), default=0)
        titles = [SECTIONS.get(action.place, HERE) for action in self.offered]
        for title in dict.fromkeys(titles):
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold", no_wrap=True, width=9)
            table.add_column(width=34 if wide < 110 else 50 if wide < 150 else longest)
            table.add_column(style="dim", overflow="fold")
            for action, its in zip(self.offered, titles, strict=True):
                if its == title:
                    table.add_row(Text(action.shown_keys), Text(action.text), Text(action.command))
            parts += [Text(title, style="bold underline"), table, Text()]
        return Group(*parts, Text("At the right: the command that does or prints the same.", style="dim"))


LETTERS = "asdfghjklqwertyuiopzxcvbnm"


def targets(screen: Screen[Any]) -> dict[str, Widget]:
    """The parts of a screen that take the focus, in reading order, by letter."""
    widgets = [
        widget
        for widget in screen.query("*")
        if widget.focusable and widget.region and screen.region.overlaps(widget.region)
    ]
    widgets.sort(key=lambda widget: (widget.region.y, widget.region.x))
    return dict(zip(LETTERS, widgets, strict=False))


class Jump(ModalScreen[Widget | None]):
    """Ends with the part that was chosen, or with None."""

    BINDINGS = bindings("jump")
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
        yield Label("a letter jumps there, Esc stays", id="told")

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


MOST_RUNS = 8  # that the palette lists
HERE_FIRST, USED, MOST_USES, RUNS_LAST = 1.5, 0.1, 10, 0.2  # added to how well the words fit
USES = "palette.uses"  # under which it is remembered how often each entry was chosen


class Found(NamedTuple):
    """An entry of the palette. `key` names it where it is counted how often it was chosen."""

    key: str
    text: str
    help: str
    go: Callable[[], Awaitable[None]]
    weight: float = 0.0


class Palette(Provider):
    """Finds what one can do here and in every other room, rooms, runs, queries, kinds to launch and themes. What fits
    the words best comes first, what is done here and what was chosen often before the rest."""

    reading: asyncio.Task[list[Found]] | None = None  # of queries and kinds

    @property
    def home(self) -> Host:
        return cast("Host", self.app)

    async def startup(self) -> None:
        """Begin to read queries and kinds. Does not await them: when another letter is typed, Textual cancels this
        together with the search that waits for it, and the palette would find nothing."""
        self.reading = asyncio.create_task(self.read_listed())

    async def shutdown(self) -> None:
        if self.reading is not None:
            self.reading.cancel()

    async def read_listed(self) -> list[Found]:
        """Return the entries of all queries and kinds; none where the registry cannot be read."""
        from tui.data import palette

        try:
            queries, kinds = await self.home.database.ask("reading what can be found", palette.known)
        except Exception:  # the banner of the screen below reports it
            return []
        return [
            *(self.query(entry) for entry in queries),
            *(self.kind(name, reference, summary) for name, reference, summary in kinds),
        ]

    async def listed(self) -> list[Found]:
        """Return the entries of all queries and kinds. A search that is cancelled does not cancel their reading."""
        return [] if self.reading is None else await asyncio.shield(self.reading)

    def here(self) -> Iterator[Found]:
        """The actions of this screen."""
        if isinstance(self.screen, AppScreen):
            for action in self.screen.keyed_actions():
                if action.method != "palette":
                    yield Found(action.name, action.text, keys_and_command(action), run(action, self.screen))

    def elsewhere(self) -> Iterator[Found]:
        """Those of the other rooms: one goes there first. What changes something is not done at once: its key is shown,
        for the row that one then chooses."""
        mine = self.screen.place if isinstance(self.screen, AppScreen) else ""
        for entry in ENTRIES:
            for action in self.home.keyed(of(entry.name)) if entry.name != mine else ():
                if action.short or not action.writes:
                    text = f"{entry.name}: {action.text}"
                    yield Found(action.name, text, keys_and_command(action), self.there(entry.name, action))

    def there(self, room: str, action: Action) -> Callable[[], Awaitable[None]]:
        async def go() -> None:
            await self.home.switch_mode(room)
            self.home.back_to(1)
            screen = self.home.top_screen
            if not isinstance(screen, AppScreen):
                return
            if action.writes:
                self.home.notify(f"{action.shown_key} does it of the row that you stand on", title=action.text)
                return
            if screen.filling is not None:
                with suppress(WorkerCancelled, WorkerFailed):
                    await screen.filling.wait()
            await self.home.run_action(action.call, default_namespace=screen.node_of(action))

        return go

    def query(self, entry: Any) -> Found:
        async def go() -> None:
            from tui.screens.answers import AnswerScreen

            await self.home.switch_mode("queries")
            await self.home.push_screen(AnswerScreen(entry))

        return Found(f"query:{entry.title}", f"Query: {entry.title}", f'chessreg query "{entry.title}"', go)

    def kind(self, name: str, reference: str, summary: str) -> Found:
        async def go() -> None:
            from tui.screens.launch import LaunchScreen

            await self.home.switch_mode("launch")
            self.home.back_to(1)
            if isinstance(self.home.top_screen, LaunchScreen):
                self.home.top_screen.open(reference, asks=True)

        return Found(f"launch:{name}", f"Launch {name}: {summary}", f"chessreg launch {reference}", go)

    def themes(self) -> Iterator[Found]:
        for name in self.home.available_themes:

            async def go(name: str = name) -> None:
                self.home.theme = name
                self.home.remembered.set("theme", name)

            yield Found(f"theme:{name}", f"Theme: {name}", "colors", go)

    async def runs(self, words: str) -> list[Found]:
        from tui.data import palette

        try:
            named = await self.home.database.ask("looking for runs", lambda session: palette.runs(session, words))
        except Exception:
            return []
        return [self.run_of(id, name) for id, name in named[:MOST_RUNS]]

    def run_of(self, id: UUID, name: str) -> Found:
        async def go() -> None:
            self.home.open("run", id, name)

        return Found(f"run:{id.hex}", f"Run {name}", f"chessreg runs show {name}", go, -RUNS_LAST)

    def uses(self, found: Found) -> int:
        return int(self.home.remembered.get(USES, {}).get(found.key, 0))

    def counted(self, found: Found) -> Callable[[], Awaitable[None]]:
        """Do it, and count that it was chosen."""

        async def go() -> None:
            uses = dict(self.home.remembered.get(USES, {}))
            uses[found.key] = uses.get(found.key, 0) + 1
            self.home.remembered.set(USES, uses)
            await found.go()

        return go

    async def discover(self) -> Hits:
        """Without words: what one can do here, and after it what was chosen most elsewhere."""
        here = list(self.here())
        keys = {found.key for found in here}
        others = [
            found for found in (*self.elsewhere(), *await self.listed()) if self.uses(found) and found.key not in keys
        ]
        for found in [*here, *sorted(others, key=self.uses, reverse=True)[:MOST_RUNS]]:
            yield DiscoveryHit(Content(found.text), self.counted(found), text=found.text, help=plain(found.help))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        here = {found.key: found._replace(weight=HERE_FIRST) for found in self.here()}
        others = [f for f in (*self.elsewhere(), *await self.listed(), *self.themes()) if f.key not in here]
        for found in (*here.values(), *others, *await self.runs(query)):
            score = max(matcher.match(found.text), matcher.match(found.help))
            if score > 0:
                used = USED * min(self.uses(found), MOST_USES)
                yield Hit(
                    score + exactness(query, found.text) + found.weight + used,
                    Content(found.text) if "[" in found.text else matcher.highlight(found.text),
                    self.counted(found),
                    text=found.text,
                    help=plain(found.help),
                )


def plain(help: str) -> str:
    """A help text that textual reads no markup in: it leaves a text of its own kind as it is."""
    return cast(str, Content(help))


def exactness(words: str, text: str) -> float:
    """More for an entry that is, begins with, or has the words as they are, than for their letters somewhere."""
    wanted, lowered = words.lower().strip(), text.lower()
    if lowered == wanted:
        return 9.0
    if lowered.startswith(wanted):
        return 6.0
    return 4.0 if wanted in lowered else 2.0 if all(word in lowered for word in wanted.split()) else 0.0


def run(action: Action, screen: AppScreen) -> Callable[[], Awaitable[None]]:
    async def go() -> None:
        await screen.app.run_action(action.call, default_namespace=screen.node_of(action))

    return go


def keys_and_command(action: Action) -> str:
    return f"{action.shown_keys}    {action.command}".rstrip()
