"""One run: its results, settings, attempts, what it read and what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import Listed, Pages, Row
from tui.data.result_rows import TITLES, WITH_BOARDS, columns_of, result_tables_of, results
from tui.data.run_rows import ATTEMPTS, SETTINGS, state, units
from tui.screens.annotate import AnnotatingScreen
from tui.screens.base import PartsScreen
from tui.screens.preview import BoardPreviewingScreen
from tui.widgets.bars import PaneStrip
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


class Pane(NamedTuple):
    """A part of the run: a table."""

    name: str
    columns: Sequence[Column]
    pages: Pages
    first: Sequence[Row]
    result_table: str = ""


class RunView(NamedTuple):
    run: dict[str, Any]
    panes: list[Pane]


INPUTS = (
    Column("name", "setting"),
    Column("reference", "input reference", widest=40),
    Column("source_run_id", "made by run"),
    Column("digest", "digest", text=lambda row: row["digest"][:12]),
)
OUTPUTS = (
    Column("name", "output"),
    Column("unit", "unit", right=True),
    Column("digest", "digest", text=lambda row: row["digest"][:12]),
)


class RunScreen(AnnotatingScreen, PartsScreen, BoardPreviewingScreen):
    """A run in parts; Tab goes from one to the next. Enter on a result shows its board."""

    place = "run"
    BINDINGS = bindings("run")
    DEFAULT_CSS = """
    RunScreen > #summary { height: auto; max-height: 4; padding: 0 1; }
    """

    def __init__(self, run_id: UUID, called: str) -> None:
        super().__init__()
        self.run_id, self.crumb = run_id, called
        self.view: RunView | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="summary", markup=False)
        yield PaneStrip()
        yield PageTable(id="part", empty="this part is empty")

    async def fill(self) -> None:
        view = await self.ask("reading the run", lambda session: read(session, self.run_id))
        if view is None:
            return
        before = self.pane
        self.view = view
        self.crumb = view.run["name"] or self.crumb
        self.relabel()
        self.query_one("#summary", Static).update(summary(view.run))
        strip = self.query_one(PaneStrip)
        names = [pane.name for pane in view.panes]
        place = next((n for n, pane in enumerate(view.panes) if before and pane.columns is before.columns), None)
        if place is None:
            place = next(
                (
                    n
                    for n, p in enumerate(view.panes)
                    if before and p.result_table and p.result_table == before.result_table
                ),
                0,
            )
        strip.names, strip.place = tuple(names), place
        self.show_part(keep=before is not None)

    @property
    def pane(self) -> Pane | None:
        return self.view.panes[self.query_one(PaneStrip).place] if self.view else None

    def show_part(self, keep: bool = False) -> None:
        if (pane := self.pane) is not None:
            table = self.query_one(PageTable)
            here = keep and table.cursor < max(1, len(pane.first))
            table.show(pane.pages, pane.first, columns=pane.columns, keep=here)
            self.look_ahead()

    @property
    def previews(self) -> bool:
        return self.pane is not None and self.pane.result_table in WITH_BOARDS

    def command(self) -> str:
        return f"chessreg runs show {show.short(self.run_id)}"

    def chosen(self) -> tuple[str, dict[UUID, str]]:
        return "run", {self.run_id: self.crumb}

    def action_lineage(self) -> None:
        self.app.open_lineage("run", self.run_id.hex, self.crumb)

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        pane = self.pane
        if pane is None:
            return
        if pane.result_table in WITH_BOARDS:
            from tui.screens.boards import BoardScreen

            self.app.push_screen(BoardScreen(pane.pages, event.place, event.row))
        elif event.row.get("source_run_id"):
            made_by = event.row["source_run_id"]
            self.app.push_screen(RunScreen(made_by, f"run {show.short(made_by)}"))
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))


def read(session: Session, run_id: UUID) -> RunView:
    """Everything that the screen shows, in one go."""
    from sqlalchemy import select

    from chessreg.registry import read, tables

    with session.database.read() as sql:
        run = read.run(sql, run_id.hex)
        result_tables = sql.scalar(
            select(tables.KindRecord.result_tables).where(
                tables.KindRecord.name == run["kind"], tables.KindRecord.version == run["version"]
            )
        )
    panes = []
    for result_table, count in result_tables_of(session, run_id, result_tables or ()).items():
        pages = results(session, result_table, run_id)
        first = pages.page(0)
        panes.append(
            Pane(f"{TITLES[result_table]} {count:,}", columns_of(result_table, first), pages, first, result_table)
        )
    settings = [
        {"setting": key, "value": show.full(value), "source": "default" if key in run["defaulted"] else "given"}
        for key, value in run["spec"].items()
    ]
    for name, columns, rows in (
        ("settings", SETTINGS, settings),
        (f"attempts {len(run['tries'])}", ATTEMPTS, run["tries"]),
        (f"read {len(run['inputs'])}", INPUTS, run["inputs"]),
        (f"made {len(run['outputs'])}", OUTPUTS, run["outputs"]),
    ):
        panes.append(Pane(name, columns, Listed(rows), rows[:200]))
    return RunView(run, panes)


def summary(run: Mapping[str, Any]) -> Text:
    """Two lines or three: what the run is and its state, then its annotations."""
    facts = [
        f"{run['kind']} (version {run['version']})",
        show.short(run["id"]),
        state(run),
        f"{units(run)} units",
        show.when(run["created_at"]),
        show.host(run["host"]),
    ]
    text = Text(" · ".join(filter(None, facts)))
    text.highlight_words([state(run)], style="bold")
    annotations = [mark for mark in ("starred", "pinned", "archived") if run[mark]]
    if run["tags"]:
        annotations.append(f"tags {' '.join(run['tags'])}")
    if run["invalid"]:
        annotations.append(f"invalid: {run['invalid']}")
    if run["conflicts"]:
        annotations.append(show.counted(run["conflicts"], "conflicting row"))
    annotations += [f"note: {note}" for note in run["notes"][-1:]]
    return text + Text("\n" + " · ".join(annotations)) if annotations else text
