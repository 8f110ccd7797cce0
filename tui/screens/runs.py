"""Every run: narrowed by words, sorted by any column, marked to be compared."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from textual.app import ComposeResult
from textual.widgets import Static

from chessreg.registry.run_filter import NEWEST_FIRST, SORTS
from tui import show
from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import PAGE, Pages, Row
from tui.screens import run_columns
from tui.screens.saying import SaysWords
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


LIST = "runs.list"  # under which words, order and columns are remembered


class Found(NamedTuple):
    counts: dict[str, int]
    pages: Pages
    number: int
    rows: Sequence[Row]


class RunsScreen(SaysWords):
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

    words = overview = ""

    def __init__(self) -> None:
        super().__init__()
        self.sort = NEWEST_FIRST
        self.columns = list(run_columns.SHOWN)
        self.marked: dict[UUID, str] = {}
        self._shown: tuple[str, str] | None = None  # words and order of the rows that are shown

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield FilterBar("kind:probe state:partial host:box tag:best since:7d spec.seed:1 ~letters !word", id="filter")
        yield Static("", id="nothing", markup=False)
        yield PageTable(self.headed(), id="runs", empty="no run fits these words; Esc in the filter (/) clears them")

    def on_mount(self) -> None:
        self.query_one(PageTable).is_marked = lambda row: row["id"] in self.marked
        kept = self.desk_app.remembered.get(LIST, {})
        self.words, self.sort = kept.get("words", ""), kept.get("sort", NEWEST_FIRST)
        self.columns = [key for key in kept.get("columns", ()) if run_columns.known(key)] or list(run_columns.SHOWN)
        self.query_one(FilterBar).set_words(self.words)

    async def fill(self) -> None:
        asked, table = (self.words, self.sort), self.query_one(PageTable)
        metrics = [key.removeprefix(run_columns.METRIC) for key in self.columns if key.startswith(run_columns.METRIC)]
        keep = table.loaded and asked == self._shown
        number = table.cursor // PAGE if keep else 0
        found = await self.ask("reading the runs", lambda session: read(session, *asked, metrics, number))
        if found is None:
            return
        self._shown = asked
        kept = {"words": self.words, "sort": self.sort, "columns": self.columns}
        self.desk_app.remembered.set(LIST, kept)
        self.overview = overview_line(found)
        self.tell_marks()
        self.set_class(not found.counts["run"], "-empty")
        if not found.counts["run"]:
            self.query_one("#nothing", Static).update(nothing_yet(found.counts))
        first = found.rows if found.number * PAGE < max(1, found.pages.count) else None
        table.show(found.pages, first, columns=self.headed(), keep=keep, number=found.number)

    def headed(self) -> list[Column]:
        """The columns, the one that the rows are sorted by with an arrow."""
        arrow = "▼" if self.sort.startswith("-") else "▲"
        sorted_by = self.sort.removeprefix("-")
        found = [run_columns.column(key) for key in self.columns]
        return [
            replace(column, heading=f"{column.heading} {arrow}") if key == sorted_by else column
            for key, column in zip(self.columns, found, strict=True)
        ]

    def command(self) -> str:
        sort = f" --sort {self.sort}" if self.sort != NEWEST_FIRST else ""
        return f"chessreg runs list {shlex.join(self.words.split())}".rstrip() + sort

    # -- words and order ------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.words = event.words
        self.load()

    def on_filter_bar_left(self) -> None:
        self.set_focus(self.query_one(PageTable))

    def sort_by(self, key: str) -> None:
        self.sort = key
        self.load()

    def action_sort(self, way: str) -> None:
        keys = [key for key in self.columns if sortable(key)]
        here = self.sort.removeprefix("-")
        place = keys.index(here) + int(way) if here in keys else 0
        self.sort_by(keys[place % len(keys)])

    def action_turn(self) -> None:
        self.sort_by(self.sort.removeprefix("-") if self.sort.startswith("-") else f"-{self.sort}")

    def on_page_table_head_clicked(self, event: PageTable.HeadClicked) -> None:
        field = event.column.field
        key = next(key for key in self.columns if run_columns.column(key).field == field)
        if sortable(key):
            self.sort_by(f"-{key}" if self.sort == key else key)

    def action_columns(self) -> None:
        table = self.query_one(PageTable)
        rows = [row for place in range(min(table.count, PAGE)) if (row := table.row(place)) is not None]
        self._choose(sorted({name for row in rows for name in settings(row["spec"])}), [row["id"] for row in rows])

    def _choose(self, names: list[str], ids: list[UUID]) -> None:
        async def choose() -> None:
            metrics = await self.ask("reading the metrics", lambda session: metrics_of(session, ids))
            screen = run_columns.ColumnsScreen(self.columns, names, metrics or [])
            await self.app.push_screen(screen)

        self.run_worker(choose(), group="columns", exclusive=True)

    def on_screen_resume(self) -> None:
        table = self.query_one(PageTable)
        if [column.field for column in table.columns] != [column.field for column in self.headed()]:
            self.load()

    # -- marks ----------------------------------------------------------------------------------------------------

    def action_mark(self) -> None:
        table = self.query_one(PageTable)
        if (row := table.current) is None:
            return
        if row["id"] in self.marked:
            del self.marked[row["id"]]
        else:
            self.marked[row["id"]] = label(row)
        table.action_cursor_down()
        self.tell_marks()

    def action_unmark(self) -> None:
        self.marked.clear()
        self.tell_marks()

    def tell_marks(self) -> None:
        names = show.listed(list(self.marked.values())[-4:]) if len(self.marked) <= 4 else f"{len(self.marked):,} runs"
        marked = f" · marked: {names}" if self.marked else ""
        self.query_one("#overview", Static).update(self.overview + marked)
        self.query_one(PageTable).refresh()

    def chosen(self) -> tuple[str, dict[UUID, str]]:
        row = self.query_one(PageTable).current
        here = {} if row is None else {row["id"]: label(row)}
        return "run", dict(self.marked) or here

    def action_compare(self) -> None:
        from tui.screens.compare import CompareScreen

        _, chosen = self.chosen()
        if chosen:
            self.app.push_screen(CompareScreen(list(chosen)))

    def action_lineage(self) -> None:
        from tui.screens.lineage import LineageScreen

        if (row := self.query_one(PageTable).current) is not None:
            self.app.push_screen(LineageScreen("run", row["id"].hex, label(row)))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.run import RunScreen

        self.app.push_screen(RunScreen(event.row["id"], label(event.row)))


def label(row: Mapping[str, Any]) -> str:
    return row["name"] or f"{row['kind']} {show.short(row['short'])}"


def sortable(key: str) -> bool:
    return key in SORTS or key not in run_columns.KNOWN


def settings(spec: Mapping[str, Any], under: str = "") -> list[str]:
    """The names of a spec's settings, those of a group after a dot."""
    found: list[str] = []
    for key, value in spec.items():
        found += settings(value, f"{under}{key}.") if isinstance(value, Mapping) else [f"{under}{key}"]
    return found


def read(session: Session, words: str, sort: str, metrics: Sequence[str], number: int) -> Found:
    from tui.data.home import overview
    from tui.data.runs import runs

    pages = runs(session, words, sort, metrics)
    return Found(overview(session), pages, number, pages.page(number))


def metrics_of(session: Session, ids: list[UUID]) -> list[str]:
    from tui.data.runs import metric_names

    return metric_names(session, ids)


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
    from tui.data.home import next_steps

    missing, commands = next_steps(dict(counts))
    lines = "\n".join(f"    $ {command}" for command in commands)
    return f"{missing} What to type next, in another terminal:\n\n{lines}\n\nThis screen follows by itself."
