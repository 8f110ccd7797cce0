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
from tui.data.results import WITH_BOARDS
from tui.screens.families import TITLES, columns_of
from tui.screens.room import Room
from tui.screens.run_columns import state, units
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
    family: str = ""


class Shown(NamedTuple):
    run: dict[str, Any]
    panes: list[Pane]


SETTINGS = (
    Column("setting", "setting"),
    Column("value", "value", widest=90),
    Column("source", "given or default"),
)
ATTEMPTS = (
    Column("started_at", "started", text=lambda row: show.when(row["started_at"]), least=16),
    Column("state", "state"),
    Column("cause", "cause"),
    Column("units_done", "units", right=True),
    Column("took", "took", right=True, text=lambda row: took(row)),
    Column("host", "machine", text=lambda row: show.host(row["host"])),
    Column("executor", "executor"),
    Column("message", "message", widest=60),
)
INPUTS = (
    Column("name", "setting"),
    Column("recipe", "recipe", widest=40),
    Column("source_run_id", "made by run"),
    Column("digest", "digest", text=lambda row: row["digest"][:12]),
)
OUTPUTS = (
    Column("name", "output"),
    Column("unit", "unit", right=True),
    Column("digest", "digest", text=lambda row: row["digest"][:12]),
)


def took(row: Mapping[str, Any]) -> str:
    return show.duration((row["ended_at"] - row["started_at"]).total_seconds()) if row["ended_at"] else ""


class RunScreen(Room):
    """A run in parts; Tab goes from one to the next. Enter on a result shows its board."""

    place = "run"
    BINDINGS = bindings("run")
    DEFAULT_CSS = """
    RunScreen > #summary { height: auto; max-height: 4; padding: 0 1; }
    """

    def __init__(self, run_id: UUID, called: str) -> None:
        super().__init__()
        self.run_id, self.crumb = run_id, called
        self.shown: Shown | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="summary", markup=False)
        yield PaneStrip()
        yield PageTable(id="part", empty="this part is empty")

    async def fill(self) -> None:
        shown = await self.ask("reading the run", lambda session: read(session, self.run_id))
        if shown is None:
            return
        before = self.pane
        self.shown = shown
        self.query_one("#summary", Static).update(summary(shown.run))
        strip = self.query_one(PaneStrip)
        names = [pane.name for pane in shown.panes]
        place = next((n for n, pane in enumerate(shown.panes) if before and pane.columns is before.columns), None)
        if place is None:
            place = next((n for n, p in enumerate(shown.panes) if before and p.family and p.family == before.family), 0)
        strip.names, strip.place = tuple(names), place
        self.show_pane(keep=before is not None)

    @property
    def pane(self) -> Pane | None:
        return self.shown.panes[self.query_one(PaneStrip).place] if self.shown else None

    def show_pane(self, keep: bool = False) -> None:
        if (pane := self.pane) is not None:
            table = self.query_one(PageTable)
            here = keep and table.cursor < max(1, len(pane.first))
            table.show(pane.pages, pane.first, columns=pane.columns, keep=here)

    def command(self) -> str:
        return f"chessreg runs show {show.short(self.run_id)}"

    def action_pane(self, way: str) -> None:
        strip = self.query_one(PaneStrip)
        if strip.names:
            strip.place = (strip.place + int(way)) % len(strip.names)
            self.show_pane()

    def action_lineage(self) -> None:
        self.desk_app.open_lineage("run", self.run_id.hex, self.crumb)

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.query_one(PaneStrip).place = event.place
        self.show_pane()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        pane = self.pane
        if pane is None:
            return
        if pane.family in WITH_BOARDS:
            from tui.screens.board import BoardScreen

            self.app.push_screen(BoardScreen(pane.pages, event.place, event.row))
        elif event.row.get("source_run_id"):
            made_by = event.row["source_run_id"]
            self.app.push_screen(RunScreen(made_by, f"run {show.short(made_by)}"))
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))


def read(session: Session, run_id: UUID) -> Shown:
    """Everything that the screen shows, in one go."""
    from sqlalchemy import select

    from chessreg.registry import read, tables
    from tui.data.results import families_of, results

    with session.database.read() as sql:
        run = read.run(sql, run_id.hex)
        families = sql.scalar(
            select(tables.KindRecord.families).where(
                tables.KindRecord.name == run["kind"], tables.KindRecord.version == run["version"]
            )
        )
    panes = []
    for family, count in families_of(session, run_id, families or ()).items():
        pages = results(session, family, run_id)
        first = pages.page(0)
        panes.append(Pane(f"{TITLES[family]} {count:,}", columns_of(family, first), pages, first, family))
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
    return Shown(run, panes)


def summary(run: Mapping[str, Any]) -> Text:
    """Two lines or three: what the run is and how it stands, then what is said of it."""
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
    told = []
    if run["tags"]:
        told.append(f"tags {' '.join(run['tags'])}")
    if run["invalid"]:
        told.append(f"invalid: {run['invalid']}")
    if run["conflicts"]:
        told.append(show.counted(run["conflicts"], "conflicting row"))
    told += [f"note: {note}" for note in run["notes"][-1:]]
    return text + Text("\n" + " · ".join(told)) if told else text
