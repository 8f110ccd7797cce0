"""Base classes of the screens: breadcrumbs, key bar, banner, filtering, sorting and registry reads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast
from uuid import UUID

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.worker import Worker

from chessreg.errors import BadInputError
from tui import show
from tui.actions import EVERYWHERE, FILTER, TABLE, Action, list_place_actions, make_bindings
from tui.columns import is_numeric_field
from tui.data.pages import ListPages, Pages, count_rows_to
from tui.data.table_filter import View, list_column_names, list_filter_names
from tui.widgets.bars import Banner, FilterBar, FindBar, KeyBar, PaneStrip, TopBar, choose_footer_actions
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session
    from tui.host import Host


T = TypeVar("T")
RELOAD = "again"  # name of workers that reload the rows already shown
LIST_PLACES = ("runs", "data")
ROW_METHODS = ("mark", "unmark", "compare", "lineage", "launch", "rows", "split")  # actions that need a row


class RunOnPage(NamedTuple):
    """The run of a page: its kind, and its name or short id."""

    kind: str
    name: str


class AppScreen(Screen[None]):
    """A screen of the app. Subclasses set `place` and `crumb`, compose a `body`, and read its data in `fill`."""

    place: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()  # further places in the table of actions
    AUTO_FOCUS = "PageTable"
    DEFAULT_CSS = """
    AppScreen { overflow: hidden; }
    AppScreen > #bottom { dock: bottom; height: auto; }
    AppScreen > #overview { height: 1; padding: 0 1; color: $text-muted; }
    AppScreen > #nothing { height: auto; padding: 2 4; display: none; }
    AppScreen.-empty > #nothing { display: block; }
    AppScreen.-empty > PageTable { display: none; }
    """
    ESCAPE_TO_MINIMIZE = False

    follows: ClassVar[bool] = True  # whether the screen reloads when the registry changes
    finds: ClassVar[bool] = True  # whether / narrows its tables
    sorts: ClassVar[bool] = True  # whether > sorts its tables
    keeps_filter: ClassVar[bool] = True  # whether the filter stays while another main screen is open
    crumb: str = ""
    stale = False
    refused = False  # whether the last input was invalid
    filling: Worker[None] | None = None
    filled = False  # whether it has been filled once, or could not be filled
    successor: Screen[Any] | None = None  # the screen that takes its place

    def compose(self) -> ComposeResult:
        yield TopBar()
        if self.finds:
            yield FindBar()
        yield from self.body()
        with Vertical(id="bottom"):
            yield Banner()
            yield KeyBar()

    def body(self) -> ComposeResult:
        """Yield the widgets between the top bar and the footer."""
        raise NotImplementedError

    async def fill(self) -> None:
        """Read the data and show it.

        Runs in a worker when the screen opens, after a change of the registry, and on `r`.
        """

    def load(self, name: str = "") -> None:
        """Start a worker that fills the screen, and cancel an earlier one.

        `name` is RELOAD if the rows already shown are read again.
        """
        self.stale = False
        self.filling = self.run_worker(self.fill_if_shown, name=name, group="load", exclusive=True)

    def run_exclusive(self, task: Callable[[], Coroutine[Any, Any, None]], group: str, name: str = "") -> None:
        """Run `task` in a worker and cancel the other workers of its group.

        The worker creates the coroutine, so a worker that is cancelled before it starts leaves no unawaited coroutine.
        """
        self.run_worker(cast(Any, task), name=name, group=group, exclusive=True)

    async def fill_if_shown(self) -> None:
        """Fill the screen unless it was closed before the worker started.

        Textual removes the widgets of a closed screen before it cancels its workers.
        """
        self.require_shown()
        await self.fill()
        self.filled = True

    def replace_with(self, screen: Screen[Any]) -> None:
        """Show `screen` in place of this one: now, or when this screen is on top again. Keys wait for it."""
        self.successor = screen
        self.app.call_later(self.show_successor)

    async def show_successor(self) -> None:
        """Show the screen that takes the place of this one, unless a dialog or another screen is on top."""
        if self.successor is not None and self.is_current:
            await self.app.switch_screen(self.successor)

    def reload_if_stale(self) -> None:
        """Reload after a change of the registry, if this screen follows changes.

        Waits until the screen is visible and an earlier load has finished. A job that writes continuously must not keep
        restarting a slow load.
        """
        self.stale = self.stale or self.follows
        is_busy = self.filling is not None and not self.filling.is_finished
        if self.stale and self.is_current and not is_busy:
            self.load(RELOAD)

    @property
    def app(self) -> Host:  # type: ignore[override]
        """The running app."""
        return cast("Host", super().app)

    # -- top bar, key bar and actions -----------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.load()

    def on_screen_suspend(self) -> None:
        self.call_later(self.relabel)  # the dialog is on the stack by then

    def on_screen_resume(self) -> None:
        if self.successor is not None:
            self.app.call_later(self.show_successor)
        self.relabel()
        if self.stale:
            self.reload_if_stale()

    def relabel(self) -> None:
        """Update the breadcrumbs and the key bar."""
        dialog = getattr(self.app.screen, "place", "") if isinstance(self.app.screen, ModalScreen) else ""
        for keys in self.query(KeyBar):
            keys.actions = choose_footer_actions(
                self.app.apply_keys_to(list_place_actions(dialog)) if dialog else self.list_keyed_actions()
            )
        stack = [screen for screen in self.app.screen_stack if isinstance(screen, AppScreen)]
        for bar in self.query(TopBar):
            bar.room = self.app.current_mode
            bar.crumbs = ("chessreg", *(screen.crumb for screen in stack))
            bar.registry = self.app.place_shown
            bar.held, bar.at_work = len(self.app.writes.blocked_writes), self.app.running_command

    @property
    def run_on_page(self) -> RunOnPage | None:
        """The run that this screen is the page of. A form opened from here takes it as an input."""
        return None

    def list_keyed_actions(self) -> list[Action]:
        """Return the available actions with the user's custom keys."""
        return self.app.apply_keys_to(self.list_actions())

    def list_actions(self) -> list[Action]:
        """Return the actions available for the focused widget and the settings of the app."""
        if isinstance(self.focused, FilterBar):
            taken_keys = [
                replace(a, short=self.focused.leads) if a.method == "leave" else a
                for a in list_place_actions(FILTER)
                if a.method != "complete" or self.focused.suggester is not None
            ]
            actions = [*taken_keys, *(a for a in list_place_actions(EVERYWHERE) if a.method == "palette")]
        else:
            own_actions = [action for place in (self.place, *self.also) for action in list_place_actions(place)]
            actions = [
                *own_actions,
                *(list_place_actions(TABLE) if self.query(PageTable) else ()),
                *list_place_actions(EVERYWHERE),
            ]
            if self.filtering is not None:
                actions = [replace(a, short="clear filter") if a.method == "back" else a for a in actions]
        if self.has_no_rows:
            actions = [a for a in actions if not self.is_row_needed(a)]
        return [a for a in actions if self.can_offer(a) and not (a.writes and self.app.read_only)]

    @property
    def has_no_rows(self) -> bool:
        """Whether all tables are empty even without a filter."""
        tables = self.query(PageTable)
        return (
            self.filtering is None
            and bool(tables)
            and all(table.loaded and table.whole is not None and not table.whole.count for table in tables)
        )

    def is_row_needed(self, action: Action) -> bool:
        """Return whether an action has no effect without a row."""
        if action.method == "filter":
            return self.has_class("-empty")  # otherwise the filter may find archived rows
        is_row_action = action.place == "annotate" or action.method in ROW_METHODS
        return action.place == TABLE or (self.place in LIST_PLACES and is_row_action)

    had_no_rows = False

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        if self.has_no_rows is not self.had_no_rows:
            self.had_no_rows = not self.had_no_rows
            self.relabel()
        self.show_match_count(event.table)

    def show_match_count(self, table: PageTable) -> None:
        """Show the number of matching rows in the find bar."""
        if table is self.narrowed_table:
            for bar in self.query(FindBar):
                bar.match_text = table.count_text

    def on_descendant_focus(self) -> None:
        self.relabel()

    @property
    def filtering(self) -> FilterBar | None:
        """The filter bar that hides rows, or None."""
        return next((bar for bar in self.query(FilterBar) if bar.hides and bar.display and bar.value), None)

    def step_back(self) -> bool:
        """Clear the filter instead of leaving the screen. Return whether there was a filter."""
        if (bar := self.filtering) is None:
            return False
        bar.action_clear_words()
        self.relabel()
        return True

    def can_offer(self, action: Action) -> bool:
        """Return whether an action is available now. Going back is not, on the first screen of a mode."""
        if action.place == TABLE and action.method in ("find", "sort"):
            return self.finds if action.method == "find" else self.sorts
        below = [screen for screen in self.app.screen_stack if isinstance(screen, AppScreen)]  # ignore dialogs
        return action.method != "back" or len(below) > 1 or self.filtering is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the `/` key while text is typed."""
        named_actions = [
            a for place in (self.place, *self.also) for a in list_place_actions(place) if a.method == action
        ]
        return not (isinstance(self.focused, Input) and any(a.first and a.keys == "slash" for a in named_actions))

    def find_node(self, action: Action) -> Widget | Host:
        """Return the widget or app that implements an action."""
        if action.place == EVERYWHERE:
            return self.app
        focused_widget = self.focused
        if action.place == FILTER:
            return focused_widget if isinstance(focused_widget, FilterBar) else self.query(FilterBar).first()
        if action.place == TABLE:
            return focused_widget if isinstance(focused_widget, PageTable) else self.query(PageTable).first()
        return self

    def command(self) -> str:
        """Return the shell command that prints the data of this screen."""
        return next((action.command for action in list_place_actions(self.place) if action.command), "chessreg")

    # -- reading --------------------------------------------------------------------------------------------------

    async def ask(self, description: str, function: Callable[[Session], T], once: bool = False) -> T | None:
        """Run `function` on the database worker and return its result, or None if it raised.

        The banner shows the error until a later call succeeds. With `once` (an export, a launch) a notice shows the
        error instead, because the call is not repeated.

        Raises CancelledError if the screen was closed in the meantime. Textual removes its widgets before it cancels
        its workers.
        """
        try:
            answer = await self.app.database.ask(description, function)
        except Exception as error:  # any error is shown; the app keeps running
            self.require_shown()
            self.log.error(error)
            self.refused = isinstance(error, BadInputError)
            for table in self.query(PageTable):
                table.fail()
            if once:
                self.app.notify_failure("done", description, error)
            else:
                self.app.show_failure(self, error)
            return None
        self.require_shown()
        self.app.clear_banner(self)
        return answer

    async def change_registry(self, description: str, function: Callable[[Session], T]) -> T | None:
        """Like `ask` with `once`, for a worker of the app: the change is made even if this screen is closed."""
        try:
            return await self.app.database.ask(description, function)
        except Exception as error:  # any error is shown; the app keeps running
            self.log.error(error)
            self.app.notify_failure("done", description, error)
            return None

    def require_shown(self) -> None:
        """Raise CancelledError if this screen is being closed."""
        if not (self.display and self.is_attached and self.app.is_running):
            raise asyncio.CancelledError

    @work(group="page")
    async def on_page_table_wanted(self, event: PageTable.Wanted) -> None:
        event.stop()
        pages: Pages = event.pages
        rows = await self.ask("reading rows", lambda session: pages.read_page(event.number))
        if rows is None:
            event.table.refuse(pages, event.number)
        else:
            event.table.accept_page(pages, event.number, rows)

    @work
    async def on_page_table_counting(self, event: PageTable.Counting) -> None:
        event.stop()
        pages = event.pages
        more = await self.ask("counting rows", lambda session: pages.count_more())
        event.table.grow(pages, bool(more))
        self.show_match_count(event.table)
        if event.table.source is pages:
            self.count_rows(pages)

    def count_rows(self, pages: Pages) -> None:
        """Called when more rows of a table of this screen have been counted."""

    # -- filtering and sorting ------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.query(FilterBar).first().open()

    def on_page_table_act(self, event: PageTable.Act) -> None:
        event.stop()
        if event.what == "reset":
            for bar in self.query(FindBar) if self.narrowed_table is event.table else ():
                bar.set_text("")
        elif event.what == "find":
            self.find(event.table)
        elif event.what == "sort":
            if self.sorts:
                self.sort_table(event.table, event.way)
        else:
            self.ask_number(event.table)

    narrowed_table: PageTable | None = None  # the table that the find bar narrows

    def find(self, table: PageTable) -> None:
        """Open the find bar for `table`, or the filter of screens without a find bar."""
        if not self.finds:
            if self.query(FilterBar):
                self.action_filter()
            return
        bar, rows = self.query_one(FindBar), [row for n in range(20) if (row := table.row(n)) is not None]
        numbers = {c.field for c in table.columns if c.right or is_numeric_field(c.field, rows)}
        bar.columns.known_names = [
            name + (">" if any(c.field in numbers for c in table.columns if name in list_column_names(c)) else ":")
            for name in list_filter_names(table.columns)
        ]
        if table is not self.narrowed_table or bar.value != table.view.text:
            bar.set_text(table.view.text)
        self.narrowed_table = table
        bar.open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        if isinstance(event.bar, FindBar) and self.narrowed_table is not None:
            table = self.narrowed_table
            table.view = replace(table.view, text=event.text)
            table.narrow()

    def narrow_to(self, table: PageTable, words: str) -> None:
        """Narrow `table` as if `words` had been typed into the find bar. Esc clears them."""
        self.narrowed_table = table
        self.query_one(FindBar).set_text(words)
        table.view = replace(table.view, text=words)
        table.narrow()
        self.relabel()

    def sort_table(self, table: PageTable, way: int) -> None:
        """Sort by the next visible column (`way` is not 0) or reverse the order (`way` is 0).

        After the last column the list returns to its original order.
        """
        fields = list(dict.fromkeys(column.field for column in table.shown_columns if column.heading))
        view = table.view
        if not way:
            if view.sort:
                table.sort_by(view.sort, not view.descending)
            else:
                self.notify("the list is in its default order; > sorts by a column")
        elif view.sort in fields:
            place = fields.index(view.sort) + 1
            table.sort_by(fields[place] if place < len(fields) else "")
        elif fields:
            table.sort_by(fields[0])

    def on_page_table_head_clicked(self, event: PageTable.HeadClicked) -> None:
        if self.sorts:
            view, field = event.table.view, event.column.field
            event.table.sort_by(field, view.sort == field and not view.descending)

    def ask_number(self, table: PageTable) -> None:
        """Ask for a row number and move the cursor there."""

        def move_to_row(text: str | None) -> None:
            digits = (text or "").replace(",", "").strip()
            if digits.isdecimal() and digits.isascii():
                table.move(min(int(digits[:18]), table.count) - 1)
                self.set_focus(table)
            elif digits:
                self.notify(f"{text} is not a row number", severity="warning")

        self.app.prompt(f"Go to row (1 to {table.count:,}):", move_to_row)

    def on_page_table_narrow(self, event: PageTable.Narrow) -> None:
        event.stop()
        name = RELOAD if event.keep else ""
        self.run_exclusive(partial(self.narrow, event), f"narrow {event.table.id}", name)

    def narrow_pages(self, all_pages: Pages, view: View) -> Pages:
        """Return the rows of `all_pages` that match `view`."""
        return all_pages.narrow(view)

    async def narrow(self, event: PageTable.Narrow) -> None:
        """Read the matching rows and show them."""
        table, all_pages, view, cursor = event.table, event.whole, event.table.view, event.table.cursor

        def filter_pages(session: Session) -> tuple[Pages, Any]:
            pages = self.narrow_pages(all_pages, view)
            if event.keep:
                count_rows_to(pages, cursor)
            return pages, pages.read_page(0)

        found_pages = await self.ask("filtering the rows", filter_pages)
        if found_pages is not None and table.view == view:
            table.show_narrowed(all_pages, *found_pages, event.keep)
        elif found_pages is None and self.refused and table.view == view:
            table.show_narrowed(all_pages, ListPages([]), [], False)  # do not keep rows that match earlier words

    def on_filter_bar_left(self) -> None:
        self.leave_filter()

    def leave_filter(self) -> None:
        """Return the focus to the table.

        Subclasses override this method, because Textual calls the event handlers of all base classes.
        """
        tables = self.query(PageTable)
        self.set_focus(self.narrowed_table or (tables.first() if tables else None))
        self.relabel()  # an empty screen sends no focus event

    def on_top_bar_chosen(self, event: TopBar.Chosen) -> None:
        """Handle a click on a mode, a breadcrumb or the count of unwritten changes."""
        if event.room:
            self.app.action_go(event.room)
        elif event.depth is None:
            self.app.action_messages()
        else:
            self.app.return_to(event.depth)

    def on_page_table_inspected(self, event: PageTable.Inspected) -> None:
        self.app.push_screen(FieldsScreen(collect_row_fields(event.table, event.row)))


def collect_row_fields(table: PageTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values of `row` by name.

    Cells `c0`, `c1`, … are named after their column headings. A value of the same name takes precedence.
    """
    cells = {column.heading: column.format_cell(row) for column in table.columns if column.field in row}
    values = {name: value for name, value in row.items() if not (name[0] == "c" and name[1:].isdigit())}
    names = {name.replace("_", " ") for name in values}
    headed_cells = {heading: text for heading, text in cells.items() if heading not in names}
    return headed_cells | values if "c0" in row else values


class PartsScreen(AppScreen):
    """A screen whose parts are listed in a PaneStrip. Subclasses implement `show_part`."""

    def show_part(self, keep: bool = False) -> None:
        """Show the part that is selected in the PaneStrip. `keep` keeps the cursor's row."""
        raise NotImplementedError

    def choose_part(self, place: int) -> None:
        self.query_one(PaneStrip).place = place
        self.show_part()

    def action_pane(self, way: str) -> None:
        if (place := self.query_one(PaneStrip).step(int(way))) is not None:
            self.choose_part(place)

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose_part(event.place)


class TextScreen(AppScreen):
    """A full-screen text. Subclasses return it from `make_content`."""

    place = "page"
    finds = False
    follows = False
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS = make_bindings("page")
    DEFAULT_CSS = """
    TextScreen VerticalScroll {
        padding: 0 2; scrollbar-size-vertical: 1; background: $surface; border: round $edge;
        border-title-color: $foreground; border-title-style: bold;
    }
    TextScreen VerticalScroll:focus { border: round $accent; border-title-color: $text-accent; }
    TextScreen VerticalScroll > Static { height: auto; }
    """

    def body(self) -> ComposeResult:
        with VerticalScroll() as frame:
            frame.border_title = cast(str, Content(self.crumb[:1].upper() + self.crumb[1:]))
            yield Static(self.make_content())

    def make_content(self) -> RenderableType:
        """Return the text of the screen."""
        raise NotImplementedError

    def action_scroll_text(self, way: str) -> None:
        scroll = self.query_one(VerticalScroll)
        step = scroll.size.height - 1 if "page" in way else 1
        scroll.scroll_relative(y=-step if way.startswith("-") else step, animate=False)


def format_field(name: str, value: Any) -> str:
    """Return a value of a row in full, and the evaluation of a final position also as boards show it."""
    if name != "adjudication_cp" or value is None:
        return show.format_full_value(value)
    from chessreg.games.boards.picture import format_evaluation

    return f"{value} ({format_evaluation(value)})"


INTERNAL_FIELDS = frozenset({  # fields of rows that only the screens use
    "noun", "thing", "result_table", "rank", "begins", "short", "guide", "key", "way", "again", "below", "folds",
    "folder", "fits", "narrows", "chosen", "move_hash",
})  # fmt: skip
MARK_FIELDS = ("starred", "pinned", "archived", "invalid")  # shown only if set
LONG_HEX_PATTERN = re.compile(r"[0-9a-f]{32}")


def is_id(value: Any) -> bool:
    """Return whether a value is an id or a digest, or a list of them, which readers rarely need."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_id(one) for one in value)
    return isinstance(value, UUID) or (isinstance(value, str) and LONG_HEX_PATTERN.search(value) is not None)


def list_shown_fields(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields that readers need, without empty ones and bytes; those of nested values after their name."""
    for name, value in fields.items():
        if name in INTERNAL_FIELDS or value in (None, "", [], {}, ()) or (name in MARK_FIELDS and not value):
            continue
        if isinstance(value, (bytes, memoryview)):
            continue
        words = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            inner = {key: each for key, each in value.items() if each != fields.get(key)}
            yield from list_shown_fields(inner, f"{words} ")
        elif isinstance(value, (list, tuple)) and not any(isinstance(one, (dict, list)) for one in value):
            yield words, value if is_id(value) else ", ".join(map(show.format_cell_value, value))
        else:
            yield words, value if is_id(value) else format_field(name, value)


class FieldsScreen(TextScreen):
    """Names, values and meanings of a row, without truncation. Ids and digests come last."""

    def __init__(self, fields: Mapping[str, Any], crumb: str = "fields") -> None:
        super().__init__()
        self.fields, self.crumb = fields, crumb

    def make_content(self) -> RenderableType:
        from chessreg.queries.row_columns import TEXTS

        meanings = TEXTS if "unit" in self.fields else {}  # of rows that a run made
        shown_fields = list(list_shown_fields(self.fields))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(style="dim")
        for name, value in shown_fields:
            if not is_id(value):
                table.add_row(Text(name), Text(value), Text(meanings.get(name.replace(" ", "_"), "")))
        ids = [(name, value) for name, value in shown_fields if is_id(value)]
        for place, (name, value) in enumerate(ids):
            if not place and len(ids) < len(shown_fields):
                table.add_row("", "", "")
            many = value if isinstance(value, (list, tuple)) else [value]
            table.add_row(Text(name), Text("\n".join(map(show.format_full_value, many))), "")
        return table
