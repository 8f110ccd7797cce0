"""What every screen has: its place in the table of actions, breadcrumbs, keys, a banner, and a way to ask the desk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import Worker

from tui import show
from tui.actions import EVERYWHERE, FILTER, TABLE, Action, bindings, of
from tui.data import scopes
from tui.data.pages import Pages
from tui.widgets.bars import Banner, FilterBar, KeyBar, ScopeBar, TopBar, footer
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session
    from tui.app import ChessregApp


T = TypeVar("T")


class Room(Screen[None]):
    """A screen of the app. Subclasses say their `place` and `crumb`, compose a `body`, and `fill` it."""

    place: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()  # other places of the table of actions that it has
    AUTO_FOCUS = "PageTable"
    DEFAULT_CSS = """
    Room > #bottom { dock: bottom; height: auto; }
    """
    ESCAPE_TO_MINIMIZE = False

    follows: ClassVar[bool] = True  # whether what is shown can change while one looks
    crumb: str = ""
    stale = False
    filling: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        yield TopBar()
        yield from self.body()
        with Vertical(id="bottom"):
            yield Banner()
            yield KeyBar()

    def body(self) -> ComposeResult:
        raise NotImplementedError

    async def fill(self) -> None:
        """Read what is shown. Runs in a worker: at first, after a change of the registry, and on `r`."""

    def load(self) -> None:
        """Begin to fill; what an earlier begin was still waiting for is not waited for any more."""
        self.stale = False
        self.filling = self.run_worker(self.fill, group="load", exclusive=True)

    def catch_up(self) -> None:
        """Fill again after a change of the registry, if this screen follows it: when it is in sight, and not before an
        earlier fill is done (a job that writes all the time must not keep a slow one from ending)."""
        self.stale = self.follows
        busy = self.filling is not None and not self.filling.is_finished
        if self.stale and self.is_current and not busy:
            self.load()

    @property
    def desk_app(self) -> ChessregApp:
        return cast("ChessregApp", self.app)

    # -- what is around the body ----------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.load()

    def on_screen_resume(self) -> None:
        self.relabel()
        if self.stale:
            self.catch_up()

    def relabel(self) -> None:
        """Write breadcrumbs and keys anew."""
        for keys in self.query(KeyBar):
            keys.actions = footer(self.actions())
        stack = [screen for screen in self.app.screen_stack if isinstance(screen, Room)]
        for bar in self.query(TopBar):
            bar.crumbs = ("chessreg", *(screen.crumb for screen in stack))
            bar.registry = self.desk_app.place_shown

    def actions(self) -> list[Action]:
        """What can be done here, as the focused widget and the app's settings have it."""
        if isinstance(self.focused, FilterBar):
            found = [*of(FILTER), *(a for a in of(EVERYWHERE) if a.method == "palette")]
        else:
            own = [action for place in (self.place, *self.also) for action in of(place)]
            found = [*own, *(a for a in of(TABLE) if self.query(PageTable)), *of(EVERYWHERE)]
        return [a for a in found if self.offers(a) and not (a.writes and self.desk_app.read_only)]

    def on_descendant_focus(self) -> None:
        self.relabel()

    def offers(self, action: Action) -> bool:
        """Whether an action makes sense now. Going back does not, in the first screen of a room."""
        return action.method != "back" or len(self.app.screen_stack) > 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What writes does nothing with --read-only."""
        return not (
            self.desk_app.read_only
            and any(a.writes and a.method == action for place in (self.place, *self.also) for a in of(place))
        )

    def node_of(self, action: Action) -> Widget | ChessregApp:
        """Where an action's method is."""
        if action.place == EVERYWHERE:
            return self.desk_app
        focused = self.focused
        if action.place == FILTER:
            return focused if isinstance(focused, FilterBar) else self.query(FilterBar).first()
        if action.place == TABLE:
            return focused if isinstance(focused, PageTable) else self.query(PageTable).first()
        return self

    def command(self) -> str:
        """The command that prints what is shown here."""
        return next((action.twin for action in of(self.place) if action.twin), "chessreg")

    # -- asking ---------------------------------------------------------------------------------------------------

    async def ask(self, what: str, function: Callable[[Session], T]) -> T | None:
        """What the desk answers; None when it failed, which the banner then tells.

        Ends the worker that asked when the screen has been left meanwhile: its parts go before its workers do.
        """
        try:
            answer = await self.desk_app.desk.ask(what, function)
        except Exception as error:  # told like on the command line, a fault of ours too: the rest goes on working
            self.require_shown()
            self.log.error(error)
            self.desk_app.trouble(self, error)
            return None
        self.require_shown()
        self.desk_app.all_well(self)
        return answer

    def require_shown(self) -> None:
        """Raises CancelledError when this screen is being taken away."""
        if not (self.display and self.is_attached and self.app.is_running):
            raise asyncio.CancelledError

    @work
    async def on_page_table_wanted(self, event: PageTable.Wanted) -> None:
        event.stop()
        pages: Pages = event.pages
        rows = await self.ask("reading rows", lambda session: pages.page(event.number))
        if rows is None:
            event.table.refuse(pages, event.number)
        else:
            event.table.give(pages, event.number, rows)

    def on_page_table_inspected(self, event: PageTable.Inspected) -> None:
        self.app.push_screen(Details(fields_of(event.table, event.row)))


def fields_of(table: PageTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """All of a row by name. Cells of text (c0, c1, …) go by their heading, and give way to the value of that name."""
    cells = {column.heading: column.of(row) for column in table.columns if column.field in row}
    values = {name: value for name, value in row.items() if not (name[0] == "c" and name[1:].isdigit())}
    named = {name.replace("_", " ") for name in values}
    shown = {heading: text for heading, text in cells.items() if heading not in named}
    return shown | values if "c0" in row else values


class PageScreen(Room):
    """Text on a screen of its own. Subclasses say it with `content`."""

    place = "page"
    follows = False
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS = bindings("page")
    DEFAULT_CSS = """
    PageScreen VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; }
    PageScreen VerticalScroll > Static { height: auto; }
    """

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.content())

    def content(self) -> RenderableType:
        raise NotImplementedError

    def action_scroll_text(self, way: str) -> None:
        scroll = self.query_one(VerticalScroll)
        step = scroll.size.height - 1 if "page" in way else 1
        scroll.scroll_relative(y=-step if way.startswith("-") else step, animate=False)


class Details(PageScreen):
    """Field and value, nothing shortened."""

    def __init__(self, fields: Mapping[str, Any], crumb: str = "fields") -> None:
        super().__init__()
        self.fields, self.crumb = fields, crumb

    def content(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self.fields.items():
            table.add_row(Text(name.replace("_", " ")), Text(show.full(value)))
        return table


SCOPE = "queries.scope"  # under which it is remembered


class Scoped(Room):
    """A screen with a ScopeBar. What it says narrows every query of the registry until it is changed."""

    BINDINGS = bindings("scoped")

    @property
    def scope(self) -> str:
        words: str = self.desk_app.remembered.get(SCOPE, "")
        return words

    _scope_shown = ""

    def on_screen_resume(self) -> None:
        """Another screen may have changed the scope meanwhile."""
        if self.is_mounted and self._scope_shown != self.scope:
            self.load()

    async def offer_words(self) -> None:
        """Show the scope that is set, and have the names ready that it may be completed with."""
        bar, self._scope_shown = self.query_one(ScopeBar), self.scope
        if not bar.has_focus:
            bar.set_words(self.scope)
        if not bar.words_offered.known:
            bar.words_offered.known = await self.ask("reading the names", scopes.offered) or []

    def action_scope(self) -> None:
        self.query_one(ScopeBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        from chessreg.errors import BadInputError

        try:
            scopes.options(event.words)
        except BadInputError as error:
            self.desk_app.trouble(self, error)
            return
        self.desk_app.remembered.set(SCOPE, event.words or None)
        self.load()

    def on_filter_bar_left(self) -> None:
        tables = self.query(PageTable)
        self.set_focus(tables.first() if tables else None)
