"""The runs: filtered, sorted by any column and marked for comparison, with selectable columns."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.events import Resize
from textual.widgets import Static

from chessreg.registry.run_filter import FIELDS, NEWEST_FIRST, NUMBER_FIELDS, SORT_KEYS, TIME_FIELDS
from chessreg.registry.run_state import STATES
from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn
from tui.data import run_rows
from tui.data.pages import PAGE_ROWS, ListPages, Pages, Row, count_rows_to, is_counted
from tui.data.run_rows import (
    count_nouns,
    filter_run_ids,
    list_metric_names,
    list_run_pages,
    suggest_next_steps,
)
from tui.screens.annotate import AnnotatingScreen, ChosenRows
from tui.screens.base import AppScreen
from tui.screens.files import import_picked_file
from tui.screens.preview import PreviewingScreen, RowPreview
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


HOME_HINT = "\n\nHome has keys for the first steps: 1, then D, A or M."
RESULTS_DELAY_S = 0.15
MAX_KEPT_RESULTS = 10_000
LIST_KEY = "runs.list"


COMPARABLE_FIELDS = (*NUMBER_FIELDS, *TIME_FIELDS)
FILTER_SUGGESTIONS = (
    *(f"{field}{'>' if field in COMPARABLE_FIELDS else ':'}" for field in FIELDS),
    *(f"state:{state}" for state in (*STATES, "invalid", "stale")),
)


class RunPage(NamedTuple):
    """A page of runs."""

    pages: Pages
    number: int
    rows: Sequence[Row]
    hidden: set[UUID]  # marked runs that do not match the filter


class RunsScreen(AnnotatingScreen, PreviewingScreen):
    """All runs. Enter opens one."""

    place = "runs"
    finds = False
    crumb = "runs"
    BINDINGS = make_bindings("runs")

    filter_text = overview = ""
    counts: Mapping[str, int] = {}

    def __init__(self) -> None:
        super().__init__()
        self.sort = NEWEST_FIRST
        self.columns = list(run_rows.DEFAULT_COLUMNS)
        self.marked_runs: dict[UUID, str] = {}
        self.hidden: set[UUID] = set()  # marked runs that are not in the list
        self.results: dict[tuple[UUID, int], str] = {}  # by run and units done
        self._read_order: tuple[str, str] | None = None  # filter and order of the rows shown

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield FilterBar("kind:probe units>5 state:partial starred since:7d spec.seed:1 ~letters !word", id="filter",
                        offered_words=FILTER_SUGGESTIONS)  # fmt: skip
        yield Static("", id="nothing", markup=False)
        empty = "no run matches the filter; Esc clears it"
        yield PageTable(self.make_headed_columns(), id="runs", title="Runs", empty=empty)

    def on_mount(self) -> None:
        self.query_one(PageTable).is_marked = lambda row: row["id"] in self.marked_runs
        saved_view = self.app.saved_state.get(LIST_KEY, {})
        self.filter_text, self.sort = saved_view.get("words", ""), saved_view.get("sort", NEWEST_FIRST)
        self.columns = [key for key in saved_view.get("columns", ()) if run_rows.is_run_column(key)] or list(
            run_rows.DEFAULT_COLUMNS
        )
        self.query_one(FilterBar).set_text(self.filter_text)

    async def fill(self) -> None:
        request, table = (self.filter_text, self.sort), self.query_one(PageTable)
        metrics = [
            key.removeprefix(run_rows.METRIC_PREFIX) for key in self.columns if key.startswith(run_rows.METRIC_PREFIX)
        ]
        keep_cursor = table.loaded and request == self._read_order
        number = table.cursor // PAGE_ROWS if keep_cursor else 0
        marked_ids = list(self.marked_runs)
        page = await self.ask(
            "reading the runs", lambda session: read_run_page(session, *request, metrics, number, marked_ids)
        )
        if page is None:
            if self.refused:  # do not keep rows that match earlier words
                self._read_order = None
                table.show(ListPages([]), [], columns=self.make_headed_columns())
            return
        self._read_order, self.hidden = request, page.hidden & self.marked_runs.keys()
        saved_view = {"words": self.filter_text, "sort": self.sort, "columns": list(self.columns)}
        self.app.saved_state.set(LIST_KEY, saved_view)
        if page.pages.count:  # show the rows before the slower totals
            self.set_class(False, "-empty")
            first_rows = page.rows if page.number * PAGE_ROWS < page.pages.count else None
            table.show(page.pages, first_rows, columns=self.make_headed_columns(), keep=keep_cursor, number=page.number)
        counts = await self.ask("counting the data", count_nouns)
        if counts is None:
            return
        self.counts = counts
        self.count_rows(page.pages)
        if not page.pages.count:
            self.set_class(not counts["run"], "-empty")
            if not counts["run"]:
                self.query_one("#nothing", Static).update(
                    format_first_steps(counts) + ("" if self.app.read_only else HOME_HINT)
                )
            table.show(page.pages, page.rows, columns=self.make_headed_columns(), keep=keep_cursor)

    def make_headed_columns(self) -> list[TableColumn]:
        """Return the columns, with an arrow at the column that the rows are sorted by."""
        arrow = "▼" if self.sort.startswith("-") else "▲"
        sorted_by = self.sort.removeprefix("-")
        columns = [
            replace(run_rows.make_run_column(key), text=self.get_result)
            if key == "result"
            else run_rows.make_run_column(key)
            for key in self.columns
        ]
        return [
            replace(column, heading=f"{column.heading} {arrow}", stays=True) if key == sorted_by else column
            for key, column in zip(self.columns, columns, strict=True)
        ]

    # -- results --------------------------------------------------------------------------------------------------

    def get_result(self, row: Mapping[str, Any]) -> str:
        return self.results.get((row["id"], row["done"]), "")

    @property
    def unread_results(self) -> dict[UUID, int]:
        """The visible runs whose results are not read yet, with their number of complete units."""
        if "result" not in self.columns:
            return {}
        units_by_run = {row["id"]: row["done"] for row in self.query_one(PageTable).loaded_visible_rows}
        return {id: done_units for id, done_units in units_by_run.items() if (id, done_units) not in self.results}

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        if self.unread_results:
            self.run_exclusive(self.read_results, "results")

    async def read_results(self) -> None:
        """Read the results of the visible runs after a delay, so that a held key reads none."""
        await asyncio.sleep(RESULTS_DELAY_S)
        self.require_shown()
        if not (unread_results := self.unread_results):
            return
        ids = list(unread_results)
        results = await self.ask("reading results", lambda session: run_rows.describe_first_results(session, ids))
        if results is not None:
            if len(self.results) > MAX_KEPT_RESULTS:
                self.results.clear()
            self.results |= {(id, unread_results[id]): words for id, words in results.items()}
            self.query_one(PageTable).reorder(self.make_headed_columns())

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        """Return the result of a run and the settings that were given."""
        from tui.screens.run_preview import read_run_preview

        return await read_run_preview(self, row["id"], label_run(row))

    def command(self) -> str:
        sort = f" --sort {shlex.quote(self.sort)}" if self.sort != NEWEST_FIRST else ""
        return f"chessreg runs list {shlex.join(self.filter_text.split())}".rstrip() + sort

    # -- words and order ------------------------------------------------------------------------------------------

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.filter_text = event.text
        self.load()

    def sort_by(self, key: str) -> None:
        self.sort = key
        self.load()

    def sort_table(self, table: PageTable, way: int) -> None:
        """Sort by the next visible column, or reverse the order if `way` is 0. Sorting is done in SQL."""
        visible_fields = {column.field for column in table.shown_columns}
        keys = [
            key for key in self.columns if is_sortable(key) and run_rows.make_run_column(key).field in visible_fields
        ]
        sort_field = self.sort.removeprefix("-")
        if not way:
            self.sort_by(sort_field if self.sort.startswith("-") else f"-{sort_field}")
        else:
            self.sort_by(keys[(keys.index(sort_field) + 1) % len(keys) if sort_field in keys else 0])

    def on_page_table_head_clicked(self, event: PageTable.HeadClicked) -> None:
        event.prevent_default()
        field = event.column.field
        key = next(key for key in self.columns if run_rows.make_run_column(key).field == field)
        if is_sortable(key):
            self.sort_by(f"-{key}" if self.sort == key else key)

    def action_columns(self) -> None:
        table = self.query_one(PageTable)
        rows = [row for place in range(min(table.count, PAGE_ROWS)) if (row := table.row(place)) is not None]
        self._open_chooser(
            sorted({name for row in rows for name in list_compared_setting_names(row["spec"])}),
            [row["id"] for row in rows],
        )

    def _open_chooser(self, names: list[str], ids: list[UUID]) -> None:
        """Open the dialog that selects columns: settings `names`, and the metrics of the runs `ids`."""

        async def open_chooser() -> None:
            metrics = await self.ask("reading the metrics", lambda session: list_metric_names(session, ids))
            screen = ColumnsScreen(self.columns, names, metrics or [])
            await self.app.push_screen(screen)

        self.run_exclusive(open_chooser, "columns")

    def on_screen_resume(self) -> None:
        table = self.query_one(PageTable)
        if [column.field for column in table.columns] != [column.field for column in self.make_headed_columns()]:
            self.load()

    # -- marks ----------------------------------------------------------------------------------------------------

    def action_mark(self) -> None:
        table = self.query_one(PageTable)
        if (row := table.current_row) is None:
            return
        self.hidden.discard(row["id"])
        if row["id"] in self.marked_runs:
            del self.marked_runs[row["id"]]
        else:
            self.marked_runs[row["id"]] = label_run(row)
        table.action_cursor_down()
        self.update_marks()

    def action_add(self) -> None:
        if not self.app.read_only:
            options = (
                "--checkpoint NAME: the model in this registry; --players NAME --limit time=0.1 --opening standard"
            )
            import_picked_file(self, ("import", "results"), "published results: CSV, PGN, a training log", options)

    def action_merge(self) -> None:
        from tui.screens.merge import pick_registry

        if not self.app.read_only:
            pick_registry(self)

    def action_unmark(self) -> None:
        self.marked_runs.clear()
        self.hidden.clear()
        self.update_marks()

    def on_resize(self, event: Resize) -> None:
        self.update_marks()

    def count_rows(self, pages: Pages) -> None:
        self.overview = format_runs_overview(self.counts, pages) if self.counts else ""
        self.update_marks()

    def update_marks(self) -> None:
        """Show the overview and the marked runs: their names if they fit, otherwise their number."""
        labels = list(self.marked_runs.values())
        names = show.join_words(labels[1:]) if len(labels) <= 4 else f"{len(labels) - 1:,} runs"
        status_parts = [self.overview]
        if labels:
            hidden_text = f" ({len(self.hidden):,} not in this list)" if self.hidden else ""
            against = f" (baseline) against {names}" if names else ""
            number = f"{len(labels):,} marked{hidden_text}"
            status_parts = [f"{self.overview} · marked: {labels[0]}{against}{hidden_text}",
                    f"{self.overview} · {number}",
                    f"{number} · {self.overview}"]  # fmt: skip
        line_cells = self.size.width - 2
        self.query_one("#overview", Static).update(
            next((t for t in status_parts if cell_len(t) <= line_cells), status_parts[-1])
        )
        self.query_one(PageTable).refresh()

    def get_row_under_cursor(self) -> ChosenRows:
        row = self.query_one(PageTable).current_row
        return "run", {} if row is None else {row["id"]: label_run(row)}

    def get_selected_rows(self) -> ChosenRows:
        """Return the marked runs, or the run under the cursor if none of them is in the list."""
        return ("run", dict(self.marked_runs)) if self.marked_runs.keys() - self.hidden else self.get_row_under_cursor()

    def describe_hidden(self, things: Collection[UUID]) -> str:
        number = len(self.hidden.intersection(things))
        return f"Not in this list: {number:,} of {show.format_count(len(things), 'marked run')}" if number else ""

    def action_compare(self) -> None:
        from tui.screens.compare import CompareScreen

        if selected_runs := self.marked_runs or self.get_selected_rows()[1]:
            self.app.push_screen(CompareScreen(list(selected_runs)))

    def action_launch(self) -> None:
        if (row := self.query_one(PageTable).current_row) is not None:
            self.app.open_run_form(row["id"], label_run(row))

    def action_lineage(self) -> None:
        if (row := self.query_one(PageTable).current_row) is not None:
            self.app.open_lineage("run", row["id"].hex, label_run(row))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.app.open("run", event.row["id"], label_run(event.row))


def label_run(row: Mapping[str, Any]) -> str:
    return row["name"] or f"{row['kind']} {show.abbreviate_id(row['short'])}"


def is_sortable(key: str) -> bool:
    return key in SORT_KEYS or key not in run_rows.RUN_COLUMNS


def list_compared_setting_names(spec: Mapping[str, Any], under: str = "") -> list[str]:
    """Return the names of the settings in `spec`. Settings of a group are written `group.name`."""
    names: list[str] = []
    for key, value in spec.items():
        names += (
            list_compared_setting_names(value, f"{under}{key}.") if isinstance(value, Mapping) else [f"{under}{key}"]
        )
    return names


def read_run_page(session: Session, filter_text: str, sort: str, metrics: Sequence[str], number: int,
         marked_ids: Collection[UUID]) -> RunPage:  # fmt: skip
    """Return page `number` of the runs that match, with the marked runs that do not match."""
    pages = list_run_pages(session, filter_text, sort, metrics)
    count_rows_to(pages, number * PAGE_ROWS)
    return RunPage(
        pages, number, pages.read_page(number), set(marked_ids) - filter_run_ids(session, filter_text, marked_ids)
    )


def format_runs_overview(counts: Mapping[str, int], pages: Pages) -> str:
    """Return the line of counts: runs that match of all runs, datasets and checkpoints."""
    runs_text = show.format_count(counts["run"], "run")
    if not is_counted(pages):
        runs_text = f"{pages.count:,}… of {runs_text}"
    elif pages.count != counts["run"]:
        runs_text = f"{pages.count:,} of {runs_text}"
    unfinished_text = f" ({counts['unfinished']:,} not complete)" if counts["unfinished"] else ""
    return (
        f"{runs_text}{unfinished_text} · {show.format_count(counts['dataset'], 'dataset')}"
        f" · {show.format_count(counts['checkpoint'], 'checkpoint')}"
    )


def format_first_steps(counts: Mapping[str, int]) -> str:
    missing_text, commands = suggest_next_steps(dict(counts))
    lines = "\n".join(f"    $ {command}" for command in commands)
    return f"{missing_text} Commands to run next, in another terminal:\n\n{lines}\n\nThis screen updates automatically."


class ColumnsScreen(AppScreen):
    """Selects and orders the columns of the list of runs. Changes apply immediately."""

    place = "columns"
    crumb = "columns"
    follows = False
    BINDINGS = make_bindings("columns")

    def __init__(self, chosen_columns: list[str], settings: Sequence[str], metrics: Sequence[str]) -> None:
        super().__init__()
        self.chosen_columns, self.before = chosen_columns, list(chosen_columns)
        other_columns = [
            *run_rows.RUN_COLUMNS,
            *(run_rows.SPEC_PREFIX + name for name in settings),
            *(run_rows.METRIC_PREFIX + name for name in metrics),
        ]
        self.offered_columns = list(dict.fromkeys([*chosen_columns, *other_columns]))

    def body(self) -> ComposeResult:
        columns = (
            TableColumn("on", "shown"),
            TableColumn("key", "column", least=16),
            TableColumn("meaning", "meaning", widest=60),
        )
        yield PageTable(columns, id="columns", title="Columns", folds=False)

    async def fill(self) -> None:
        self.draw()

    def draw(self) -> None:
        rows = [
            {"on": "yes" if key in self.chosen_columns else "", "key": key, "meaning": describe_column(key)}
            for key in self.offered_columns
        ]
        self.query_one(PageTable).show(ListPages(rows), rows[:200], keep=True)

    def command(self) -> str:
        return "chessreg runs list --json"

    def action_shown(self) -> None:
        row = self.query_one(PageTable).current_row
        if row is None:
            return
        key = row["key"]
        if key not in self.chosen_columns:
            self.chosen_columns.append(key)
            self.chosen_columns.sort(key=self.offered_columns.index)
        elif len(self.chosen_columns) > 1:
            self.chosen_columns.remove(key)
        self.draw()

    def on_page_table_opened(self) -> None:
        self.action_shown()

    def action_shift(self, way: str) -> None:
        """Move the column under the cursor up or down."""
        table = self.query_one(PageTable)
        if table.view.is_active:
            self.notify("columns are ordered in the whole list: Esc clears the words, > restores its order")
            return
        old_place, new_place = table.cursor, table.cursor + int(way)
        if 0 <= new_place < len(self.offered_columns):
            self.offered_columns[old_place], self.offered_columns[new_place] = (
                self.offered_columns[new_place],
                self.offered_columns[old_place],
            )
            self.chosen_columns.sort(key=self.offered_columns.index)
            table.move(new_place)
            self.draw()


def describe_column(key: str) -> str:
    if key.startswith(run_rows.SPEC_PREFIX):
        return "setting of the run"
    return "last value of the metric" if key.startswith(run_rows.METRIC_PREFIX) else run_rows.COLUMN_MEANINGS[key]
