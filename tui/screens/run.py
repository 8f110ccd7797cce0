"""One run: its results, settings, attempts, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn
from tui.data.pages import PAGE_ROWS, ListPages, Pages, Row
from tui.data.result_rows import (
    TABLE_LEGENDS,
    TABLE_TITLES,
    TABLES_WITH_BOARDS,
    count_result_rows,
    list_results,
    make_result_columns,
)
from tui.data.run_rows import ATTEMPT_COLUMNS, SETTING_COLUMNS, format_headline, format_run_state, format_units
from tui.interval_bars import IntervalBars
from tui.screens.annotate import AnnotatingScreen
from tui.screens.base import PartsScreen, RunOnPage
from tui.screens.preview import WIDE_CELLS, BoardPreviewingScreen, RowPreview
from tui.widgets.bars import PaneStrip
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


class RunPane(NamedTuple):
    """A part of the run, as a table.

    A row with `narrows` opens the part of result table `behind`, filtered by these words.
    """

    title: str
    columns: Sequence[TableColumn]
    pages: Pages
    first: Sequence[Row]
    result_table: str = ""
    behind: str = ""
    rows: int | None = None
    bars: IntervalBars | None = None

    @property
    def name(self) -> str:
        return self.title if self.rows is None else f"{self.title} {self.rows:,}"


class RunView(NamedTuple):
    """A run as its screen shows it: the run's row, the panes of its tables, and its headline result."""

    run: dict[str, Any]
    panes: list[RunPane]
    answer: str


INPUT_COLUMNS = (
    TableColumn("name", "setting"),
    TableColumn("of", "input", widest=40),
    TableColumn("source_run_id", "produced by run"),
    TableColumn("digest", "digest", text=lambda row: row["digest"][:12]),
)
OUTPUT_COLUMNS = (
    TableColumn("name", "output"),
    TableColumn("unit", "unit", right=True),
    TableColumn("digest", "digest", text=lambda row: row["digest"][:12]),
)


class RunScreen(AnnotatingScreen, PartsScreen, BoardPreviewingScreen):
    """A run in parts. Tab selects the next part. Enter on a result shows its board."""

    place = "run"
    BINDINGS = make_bindings("run")
    DEFAULT_CSS = """
    RunScreen > #headline { height: auto; max-height: 2; padding: 0 1; text-style: bold; display: none; }
    RunScreen > #summary { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    RunScreen > #annotations { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, run_id: UUID, name: str) -> None:
        super().__init__()
        self.run_id, self.crumb = run_id, name
        self.view: RunView | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="headline", markup=False)
        yield Static("", id="summary", markup=False)
        yield Static("", id="annotations", markup=False)
        yield PaneStrip()
        yield PageTable(id="part", empty="this part is empty")

    async def fill(self) -> None:
        view = await self.ask("reading the run", lambda session: read_run_view(session, self.run_id))
        if view is None:
            return
        before = self.pane
        self.view = view
        self.crumb = view.run["name"] or self.crumb
        self.relabel()
        headline = self.query_one("#headline", Static)
        headline.display = bool(view.answer)
        headline.update(view.answer)
        self.query_one("#summary", Static).update(format_run_summary(view.run))
        annotations = self.query_one("#annotations", Static)
        annotations.update(format_marks_and_note(view.run))
        annotations.display = bool(format_marks_and_note(view.run))
        strip = self.query_one(PaneStrip)
        names = [pane.name for pane in view.panes]
        place = next((n for n, pane in enumerate(view.panes) if before and pane.title == before.title), 0)
        strip.names, strip.place = tuple(names), place
        self.show_part(keep=before is not None)

    @property
    def pane(self) -> RunPane | None:
        return self.view.panes[self.query_one(PaneStrip).place] if self.view else None

    def show_part(self, keep: bool = False) -> None:
        if (pane := self.pane) is not None:
            table = self.query_one(PageTable)
            is_cursor_valid = keep and table.cursor < max(1, len(pane.first))
            table.set_title(pane.title, TABLE_LEGENDS.get(pane.result_table, ""))
            table.show(pane.pages, pane.first, columns=pane.columns, keep=is_cursor_valid, bars=pane.bars)
            chosen_place = next((place for place, row in enumerate(pane.first) if row.get("chosen")), 0)
            if chosen_place and not is_cursor_valid:
                table.move(chosen_place)
            self.schedule_preview()

    @property
    def has_boards(self) -> bool:
        """Whether the rows of the part have boards."""
        return self.pane is not None and self.pane.result_table in TABLES_WITH_BOARDS

    @property
    def has_previews(self) -> bool:
        """Whether a pane is shown: boards of a row or, in wide terminals, the run itself next to a short table."""
        return self.has_boards or (self.pane is not None and self.size.width >= WIDE_CELLS)

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        """Return the boards of a row, or the results, given settings and attempts of the run."""
        if self.has_boards:
            return await super().build_preview(row)
        from tui.screens.run_preview import read_run_preview

        return await read_run_preview(self, self.run_id, self.crumb)

    @property
    def run_on_page(self) -> RunOnPage | None:
        run = self.view.run if self.view else None
        return RunOnPage(run["kind"], run["name"] or self.run_id.hex[-6:]) if run else None

    def command(self) -> str:
        return f"chessreg runs show {show.abbreviate_id(self.run_id)}"

    def get_selected_rows(self) -> tuple[str, dict[UUID, str]]:
        return "run", {self.run_id: self.crumb}

    def action_launch(self) -> None:
        self.app.open_run_form(self.run_id, self.crumb)

    def action_lineage(self) -> None:
        self.app.open_lineage("run", self.run_id.hex, self.crumb)

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        pane = self.pane
        if pane is None:
            return
        if event.row.get("narrows"):
            self.open_rows_behind(pane.behind, event.row["narrows"])
        elif pane.result_table in TABLES_WITH_BOARDS:
            from tui.screens.boards import BoardScreen

            self.app.push_screen(BoardScreen(pane.pages, event.place, event.row))
        elif event.row.get("source_run_id"):
            made_by = event.row["source_run_id"]
            self.app.push_screen(RunScreen(made_by, f"run {show.abbreviate_id(made_by)}"))
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))

    def open_rows_behind(self, result_table: str, words: str) -> None:
        """Show the rows of a result table that match `words`."""
        panes = self.view.panes if self.view else []
        place = next((n for n, pane in enumerate(panes) if pane.result_table == result_table), None)
        if place is not None:
            self.choose_part(place)
            self.call_after_refresh(self.narrow_to, self.query_one(PageTable), words)


def read_run_view(session: Session, run_id: UUID) -> RunView:
    """Read all parts of a run."""
    from sqlalchemy import select

    from chessreg.entities.run import format_typed_reference
    from chessreg.registry import read, tables
    from chessreg.runs.kind import list_effective_settings
    from chessreg.runs.spec import describe_source
    from tui.data import run_summary

    with session.database.read() as sql:
        run = read.read_run(sql, run_id.hex)
        result_tables = sql.scalar(
            select(tables.KindRecord.result_tables).where(
                tables.KindRecord.name == run["kind"], tables.KindRecord.version == run["version"]
            )
        )
        answer = format_headline(sql, run_id)
        effective = {
            path: format_typed_reference(sql, value) if isinstance(value, str) else value
            for path, value in list_effective_settings(run["kind"], run["spec"]).items()
        }
        input_rows = [{**row, "of": format_typed_reference(sql, row["reference"])} for row in run["inputs"]]
        inputs = list({(row["name"], row["of"]): row for row in input_rows}.values())  # of several digests one
        summary_table, metrics = run_summary.summarize_run(sql, run_id), run_summary.tabulate_metrics(sql, run_id)
    panes = [
        RunPane(s.title, s.columns, ListPages(s.rows), s.rows[:PAGE_ROWS], behind=s.result_table, bars=s.bars)
        for s in summary_table
    ]
    single_panes = [pane for pane in panes if len(pane.first) == 1]  # the headline shows these single values
    panes = [pane for pane in panes if pane not in single_panes]
    for result_table, count in count_result_rows(session, run_id, result_tables or ()).items():
        if result_table == "metric_point" and metrics.rows:
            panes.append(RunPane(metrics.title, metrics.columns, ListPages(metrics.rows), metrics.rows[:PAGE_ROWS]))
            continue
        pages = list_results(session, result_table, run_id)
        first_rows = pages.read_page(0)
        columns = make_result_columns(result_table, first_rows)
        panes.append(RunPane(TABLE_TITLES[result_table], columns, pages, first_rows, result_table, rows=count))
    settings = [
        {
            "setting": path,
            "value": show.format_full_value(value),
            "source": describe_source(path, run["explicit"]),
        }
        for path, value in effective.items()
    ]
    panes.append(RunPane("settings", SETTING_COLUMNS, ListPages(settings), settings[:PAGE_ROWS]))
    for title, its_columns, rows in (
        ("attempts", ATTEMPT_COLUMNS, run["tries"]),
        ("inputs", INPUT_COLUMNS, inputs),
        ("outputs", OUTPUT_COLUMNS, run["outputs"]),
    ):
        panes.append(RunPane(title, its_columns, ListPages(rows), rows[:PAGE_ROWS], rows=len(rows)))
    panes += single_panes
    return RunView(run, panes, answer)


def format_run_summary(run: Mapping[str, Any]) -> Text:
    """Return one line about the run, the most important facts first."""
    facts = [
        f"{run['kind']} (version {run['version']})",
        format_run_state(run),
        f"{format_units(run)} units",
        show.format_local_time(run["created_at"]),
        show.format_host(run["host"]),
        f"id {show.abbreviate_id(run['id'])}",
    ]
    text = Text(" · ".join(filter(None, facts)))
    text.highlight_words([format_run_state(run)], style="bold")
    return text


def format_marks_and_note(run: Mapping[str, Any]) -> str:
    """Return the marks, tags and newest note of a run; empty if it has none."""
    annotations = [mark for mark in ("starred", "pinned", "archived") if run[mark]]
    if run["tags"]:
        annotations.append(f"tags {' '.join(run['tags'])}")
    if run["invalid"]:
        annotations.append(f"invalid: {run['invalid']}")
    if run["conflicts"]:
        annotations.append(show.format_count(run["conflicts"], "conflicting row"))
    annotations += [f"note: {note}" for note in run["notes"][-1:]]
    return " · ".join(annotations)
