"""What every screen has: a place in the table of actions, breadcrumbs, keys, a banner, a way to ask the registry."""

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
from tui.data.pages import Pages
from tui.widgets.bars import Banner, FilterBar, KeyBar, PaneStrip, TopBar, footer
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session
    from tui.app import ChessregApp


T = TypeVar("T")


class AppScreen(Screen[None]):
    """A screen of the app. Subclasses say their `place` and `crumb`, compose a `body`, and `fill` it."""

    place: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()  # other places of the table of actions that it has
    AUTO_FOCUS = "PageTable"
    DEFAULT_CSS = """
    AppScreen > #bottom { dock: bottom; height: auto; }
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
    def app(self) -> ChessregApp:  # type: ignore[override]
        """The app, as what it is."""
        return cast("ChessregApp", super().app)

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
        stack = [screen for screen in self.app.screen_stack if isinstance(screen, AppScreen)]
        for bar in self.query(TopBar):
            bar.crumbs = ("chessreg", *(screen.crumb for screen in stack))
            bar.registry = self.app.place_shown

    def actions(self) -> list[Action]:
        """What can be done here, as the focused widget and the app's settings have it."""
        if isinstance(self.focused, FilterBar):
            actions = [*of(FILTER), *(a for a in of(EVERYWHERE) if a.method == "palette")]
        else:
            own = [action for place in (self.place, *self.also) for action in of(place)]
            actions = [*own, *(a for a in of(TABLE) if self.query(PageTable)), *of(EVERYWHERE)]
        return [a for a in actions if self.offers(a) and not (a.writes and self.app.read_only)]

    def on_descendant_focus(self) -> None:
        self.relabel()

    def offers(self, action: Action) -> bool:
        """Whether an action makes sense now. Going back does not, in the first screen of a mode."""
        return action.method != "back" or len(self.app.screen_stack) > 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What writes does nothing with --read-only."""
        return not (
            self.app.read_only
            and any(a.writes and a.method == action for place in (self.place, *self.also) for a in of(place))
        )

    def node_of(self, action: Action) -> Widget | ChessregApp:
        """Where an action's method is."""
        if action.place == EVERYWHERE:
            return self.app
        focused = self.focused
        if action.place == FILTER:
            return focused if isinstance(focused, FilterBar) else self.query(FilterBar).first()
        if action.place == TABLE:
            return focused if isinstance(focused, PageTable) else self.query(PageTable).first()
        return self

    def command(self) -> str:
        """The command that prints what is shown here."""
        return next((action.command for action in of(self.place) if action.command), "chessreg")

    # -- asking ---------------------------------------------------------------------------------------------------

    async def ask(self, what: str, function: Callable[[Session], T]) -> T | None:
        """What the function returns of the registry; None when it raised, which the banner then tells.

        Ends the worker that asked when the screen has been left meanwhile: its parts go before its workers do.
        """
        try:
            answer = await self.app.database.ask(what, function)
        except Exception as error:  # told like on the command line, a fault of ours too: the rest goes on working
            self.require_shown()
            self.log.error(error)
            self.app.trouble(self, error)
            return None
        self.require_shown()
        self.app.all_well(self)
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

    def action_filter(self) -> None:
        self.query(FilterBar).first().open()

    def on_filter_bar_left(self) -> None:
        self.leave_filter()

    def leave_filter(self) -> None:
        """Give the keys back to the list. Textual calls the handlers of all base classes: subclasses override this."""
        tables = self.query(PageTable)
        self.set_focus(tables.first() if tables else None)

    def on_page_table_inspected(self, event: PageTable.Inspected) -> None:
        self.app.push_screen(FieldsScreen(fields_of(event.table, event.row)))


def fields_of(table: PageTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """All of a row by name. Cells of text (c0, c1, …) go by their heading, and give way to the value of that name."""
    cells = {column.heading: column.of(row) for column in table.columns if column.field in row}
    values = {name: value for name, value in row.items() if not (name[0] == "c" and name[1:].isdigit())}
    named = {name.replace("_", " ") for name in values}
    headed = {heading: text for heading, text in cells.items() if heading not in named}
    return headed | values if "c0" in row else values


class PartsScreen(AppScreen):
    """A screen in parts that a PaneStrip names. Subclasses say with `show_part` what is shown of the chosen one."""

    def show_part(self, keep: bool = False) -> None:
        raise NotImplementedError

    def choose_part(self, place: int) -> None:
        self.query_one(PaneStrip).place = place
        self.show_part()

    def action_pane(self, way: str) -> None:
        strip = self.query_one(PaneStrip)
        if strip.names:
            self.choose_part((strip.place + int(way)) % len(strip.names))

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose_part(event.place)


class TextScreen(AppScreen):
    """Text on a screen of its own. Subclasses say it with `content`."""

    place = "page"
    follows = False
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS = bindings("page")
    DEFAULT_CSS = """
    TextScreen VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; }
    TextScreen VerticalScroll > Static { height: auto; }
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


class FieldsScreen(TextScreen):
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
