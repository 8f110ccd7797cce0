"""Compare runs: differing settings, metrics with their differences, curves and machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn, order_by_use
from tui.data import comparison
from tui.data.annotations import toggle_annotation
from tui.data.pages import ListPages, Row
from tui.screens.base import PartsScreen
from tui.widgets.bars import PaneStrip
from tui.widgets.chart import ChartView
from tui.widgets.table import PageTable

CURVE_SCREEN_LINES = 36


class ComparePane(NamedTuple):
    """One table of a comparison."""

    name: str
    columns: Sequence[TableColumn]
    rows: Sequence[Row]


class CompareScreen(PartsScreen):
    """Compare two or more runs, or the attempts of one.

    The first run is the baseline. A pinned baseline stays the baseline until it is unpinned.
    """

    place = "compare"
    BINDINGS = make_bindings("compare")
    DEFAULT_CSS = """
    CompareScreen > #subjects { height: auto; max-height: 3; padding: 0 1; }
    CompareScreen > #curve { display: none; height: 1fr; }
    CompareScreen.-curve > #curve { display: block; }
    CompareScreen.-high.-curves > #curve { display: block; }
    CompareScreen.-curve > PageTable { display: none; }
    """

    def __init__(self, ids: Sequence[UUID]) -> None:
        super().__init__()
        self.ids, self.baseline = list(ids), ids[0]
        self.crumb = f"compare {show.format_count(len(self.ids), 'run')}"
        self.result_tables: comparison.ComparisonTables | None = None
        self.metric = ""  # of the shown curve

    def body(self) -> ComposeResult:
        yield Static("", id="subjects", markup=False)
        yield PaneStrip()
        yield PageTable(id="part", empty="nothing differs")
        with VerticalScroll(id="curve", can_focus=False):
            yield ChartView()

    async def fill(self) -> None:
        ids, baseline = self.ids, self.baseline
        result = await self.ask("comparing", lambda session: comparison.load_comparison(session, ids, baseline))
        if result is None:
            return
        keep_cursor = self.result_tables is not None
        self.result_tables = result
        self.baseline = result.ids[0]
        pin = "pinned: B unpins it" if result.pinned else "b takes the next, B pins it"
        other_labels = show.join_words(result.labels[1:])
        self.query_one("#subjects", Static).update(f"baseline {result.labels[0]} ({pin}) against {other_labels}")
        if self.metric not in result.curves:
            self.metric = max(result.curves, key=result.count_curves, default="")
        self.set_class(bool(result.curves), "-curves")
        strip = self.query_one(PaneStrip)
        strip.names = tuple(pane.name for pane in self.panes)
        strip.place = min(strip.place, len(strip.names) - 1)
        self.show_part(keep_cursor)

    @property
    def panes(self) -> list[ComparePane]:
        """The panes: differing settings, metrics, machines and curves. Empty until the comparison has been read."""
        result = self.result_tables
        if result is None:
            return []
        headings = [f"{result.labels[0]} (baseline)", *result.labels[1:]]
        values = [TableColumn(comparison.make_value_key(n), heading, widest=64) for n, heading in enumerate(headings)]
        numbers = [TableColumn(comparison.make_value_key(0), headings[0], right=True)]
        for n, label in list(enumerate(result.labels))[1:]:
            numbers.append(TableColumn(comparison.make_value_key(n), label, right=True))
            numbers.append(
                TableColumn(comparison.make_difference_key(n), f"Δ {label}", right=True, role="value", stays=True)
            )
        metric = TableColumn("metric", "metric", widest=44, least=26, ends=True)
        panes = [
            ComparePane(f"differing {len(result.differing_rows)}",
                        (TableColumn("group", "of"), TableColumn("what", "what"), *values), result.differing_rows),
            ComparePane(f"metrics {len(result.metrics)}", (metric, *numbers), result.metrics),
            ComparePane("machines", (TableColumn("what", "what"), *values), result.machines),
        ]  # fmt: skip
        return [*panes, ComparePane(f"curves {len(result.curves)}", (), ())]

    def show_part(self, keep: bool = False) -> None:
        panes = self.panes
        if not panes:
            return
        pane = panes[self.query_one(PaneStrip).place]
        self.set_class(not pane.columns, "-curve")
        if pane.columns:
            self.query_one(PageTable).set_title(pane.name.rpartition(" ")[0] or pane.name)
            self.query_one(PageTable).show(
                ListPages(pane.rows), pane.rows[:200], columns=self.order_columns(pane), keep=keep
            )
        self.draw()

    def order_columns(self, pane: ComparePane) -> list[TableColumn]:
        """Return the columns of a pane, with the differences first if not all columns fit."""
        if all(column.role != "value" for column in pane.columns):
            return list(pane.columns)
        return order_by_use(pane.columns, pane.rows, self.query_one(PageTable).column_space)

    def draw(self) -> None:
        """Draw the curve of the selected metric."""
        assert self.result_tables is not None
        self.set_class(self.size.height >= CURVE_SCREEN_LINES, "-high")
        chart = self.result_tables.curves.get(self.metric)
        self.query_one(ChartView).show(chart or comparison.make_empty_chart())

    def on_resize(self) -> None:
        if self.result_tables is not None:
            pane = self.panes[self.query_one(PaneStrip).place]
            if pane.columns:
                self.query_one(PageTable).reorder(self.order_columns(pane))
            self.draw()

    def command(self) -> str:
        order = sorted(self.ids, key=lambda id: id != self.baseline)
        option = {2: " --machines", 3: " --curves"}.get(self.query_one(PaneStrip).place, "")
        return f"chessreg compare {' '.join(show.abbreviate_id(id) for id in order)}{option}"

    # -- actions --------------------------------------------------------------------------------------------------

    def action_baseline(self) -> None:
        if self.result_tables is None or len(self.ids) < 2:
            return
        if self.result_tables.pinned:
            self.notify(f"{self.result_tables.labels[0]} is pinned: B unpins it", severity="warning")
            return
        self.baseline = self.ids[(self.ids.index(self.baseline) + 1) % len(self.ids)]
        self.load()

    def action_pin(self) -> None:
        if self.app.read_only:
            self.notify("--read-only: nothing was changed", severity="warning")
        elif self.result_tables is not None and len(self.ids) > 1:
            id, label = self.baseline, self.result_tables.labels[0]
            self.app.write(
                label,
                "pin",
                lambda sql: toggle_annotation(sql, "run", [id], "pin"),
                lambda now: "pinned" if now else "no longer pinned",
            )

    def action_curve(self, way: str) -> None:
        names = list(self.result_tables.curves) if self.result_tables is not None else []
        if names:
            self.metric = names[(names.index(self.metric) + int(way)) % len(names)]
            self.draw()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if self.result_tables is not None and event.row.get("curve"):
            self.metric = event.row["metric"]
            self.choose_part(3)
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))
