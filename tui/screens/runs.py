"""The first screen: every run, newest first, narrowed by words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import bindings
from tui.data.pages import PAGE, Pages, Row
from tui.screens.room import Room
from tui.widgets.columns import Column
from tui.widgets.filterbar import FilterBar
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


class Found(NamedTuple):
    counts: dict[str, int]
    pages: Pages
    number: int
    rows: Sequence[Row]


def state(row: Mapping[str, Any]) -> str:
    return f"{row['state']} (invalid)" if row["invalid"] else str(row["state"])


def units(row: Mapping[str, Any]) -> str:
    return f"{row['done']:,}/{row['units']:,}"


COLUMNS = (
    Column("short", "id", text=lambda row: show.short(row["short"])),
    Column("name", "name", widest=28, least=12),
    Column("kind", "kind", widest=16),
    Column("state", "state", text=state),
    Column("done", "units", right=True, text=units),
    Column("created_at", "created", text=lambda row: show.when(row["created_at"]), least=16),
    Column("host", "machine", text=lambda row: show.host(row["host"]), widest=20),
    Column("attempts", "tries", right=True),
    Column("tags", "tags", text=lambda row: " ".join(row["tags"])),
)


class RunsScreen(Room):
    """All runs. Enter opens one."""

    place = "runs"
    crumb = "runs"
    BINDINGS = bindings("runs")
    DEFAULT_CSS = """
    RunsScreen > #overview { height: 1; padding: 0 1; color: $text-muted; }
    RunsScreen > #nothing { height: auto; padding: 2 4; display: none; }
    RunsScreen.-empty > #nothing { display: block; }
    RunsScreen.-empty > PageTable { display: none; }
    """

    words = ""

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield FilterBar("kind:probe  state:partial  machine:box1  tag:best  !word  archived", id="filter")
        yield Static("", id="nothing", markup=False)
        yield PageTable(COLUMNS, id="runs", empty="no run fits these words; Esc in the filter (/) clears them")

    async def fill(self) -> None:
        words, table = self.words, self.query_one(PageTable)
        keep = table.loaded and words == self._shown_words
        number = table.cursor // PAGE if keep else 0
        found = await self.ask("reading the runs", lambda session: read(session, words, number))
        if found is None:
            return
        self._shown_words = words
        self.query_one("#overview", Static).update(overview_line(found))
        self.set_class(not found.counts["run"], "-empty")
        if not found.counts["run"]:
            self.query_one("#nothing", Static).update(nothing_yet(found.counts))
        first = found.rows if found.number * PAGE < max(1, found.pages.count) else None
        table.show(found.pages, first, columns=COLUMNS, keep=keep, number=found.number)

    _shown_words = ""

    def command(self) -> str:
        kind = next((w.removeprefix("kind:") for w in self.words.split() if w.startswith("kind:")), "")
        return f"chessreg runs list --kind {kind}" if kind else "chessreg runs list"

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.words = event.words
        self.load()

    def on_filter_bar_left(self) -> None:
        self.set_focus(self.query_one(PageTable))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.run import RunScreen

        self.app.push_screen(
            RunScreen(event.row["id"], event.row["name"] or f"{event.row['kind']} {show.short(event.row['short'])}")
        )


def read(session: Session, words: str, number: int) -> Found:
    from tui.data.overview import overview
    from tui.data.runs import runs

    pages = runs(session, words)
    return Found(overview(session), pages, number, pages.page(number))


def overview_line(found: Found) -> str:
    counts = found.counts
    shown = show.counted(counts["run"], "run")
    if found.pages.count != counts["run"]:
        shown = f"{found.pages.count:,} of {shown}"
    unfinished = f" ({counts['unfinished']:,} not complete)" if counts["unfinished"] else ""
    return (
        f"{shown}{unfinished} · {show.counted(counts['dataset'], 'dataset')}"
        f" · {show.counted(counts['checkpoint'], 'checkpoint')}"
    )


def nothing_yet(counts: Mapping[str, int]) -> str:
    from tui.data.overview import next_steps

    missing, commands = next_steps(dict(counts))
    lines = "\n".join(f"    $ {command}" for command in commands)
    return f"{missing} What to type next, in another terminal:\n\n{lines}\n\nThis screen follows by itself."
