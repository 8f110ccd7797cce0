"""The jobs: what runs, what waits, what has ended, narrowed by words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.app import ComposeResult
from textual.widgets import Static

from tui import gauge, show
from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import PAGE, Pages, Row
from tui.screens.changing import ChangesJobs
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


class Found(NamedTuple):
    counts: dict[str, int]
    pages: Pages
    number: int
    rows: Sequence[Row]


def why(row: Mapping[str, Any]) -> str:
    """What it does, waits for, or failed on."""
    if row["waits_for"]:
        return f"waits for {', '.join(row['waits_for'])}"
    return (row["doing"] if row["state"] == "running" else row["message"]) or ""


def part(row: Mapping[str, Any]) -> str:
    """Which of a launch's shards: 2/4."""
    if row["shard"] == row["shards"]:
        return "reduce"
    return f"{row['shard'] + 1}/{row['shards']}" if row["shards"] > 1 else ""


ID = Column("id", "job", text=lambda row: show.short(row["id"]))
SHARD = Column("shard", "shard", text=part, least=6)
STATE = Column("state", "state", least=10)
PROGRESS = Column("progress", "progress", text=lambda row: gauge.bar(row["progress"]), least=10)
UNITS = Column("done", "units", right=True, text=gauge.done)
PACE = Column("pace", "pace", text=gauge.pace, least=10)
ON = Column("executor", "on")
HOST = Column("host", "machine", text=lambda row: show.host(row["host"]), widest=20)
PRIORITY = Column("priority", "priority", right=True)
TRIES = Column("tries", "tries", right=True)
WHY = Column("why", "", text=why, widest=70, least=12)

COLUMNS = (
    ID,
    Column("kind", "kind", widest=16),
    Column("name", "name", widest=28),
    SHARD, STATE, PROGRESS, UNITS, PACE, WHY, ON, HOST, PRIORITY, TRIES,
    Column("created_at", "launched", text=lambda row: show.when(row["created_at"]), least=16),
)  # fmt: skip


class JobsScreen(ChangesJobs):
    """All jobs: those that run first. Enter opens one, live."""

    place = "jobs"
    crumb = "jobs"
    BINDINGS = bindings("jobs")
    DEFAULT_CSS = """
    JobsScreen > #overview { height: 1; padding: 0 1; color: $text-muted; }
    JobsScreen > #nothing { height: auto; padding: 2 4; display: none; }
    JobsScreen.-empty > #nothing { display: block; }
    JobsScreen.-empty > PageTable { display: none; }
    """

    words = ""
    _shown_words = ""

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield FilterBar("state:running  kind:probe  on:slurm  host:box1  name:fit  launch:3f2a1c  !word", id="filter")
        yield Static(NOTHING, id="nothing", markup=False)
        yield PageTable(COLUMNS, id="jobs", empty="no job fits these words; Esc in the filter (/) clears them")

    async def fill(self) -> None:
        words, table = self.words, self.query_one(PageTable)
        keep = table.loaded and words == self._shown_words
        number = table.cursor // PAGE if keep else 0
        found = await self.ask("reading the jobs", lambda session: read(session, words, number))
        if found is None:
            return
        self._shown_words = words
        self.query_one("#overview", Static).update(overview_line(found))
        self.set_class(not any(found.counts.values()), "-empty")
        first = found.rows if found.number * PAGE < max(1, found.pages.count) else None
        table.show(found.pages, first, columns=COLUMNS, keep=keep, number=found.number)
        self.relabel()

    def command(self) -> str:
        return "chessreg jobs --all"

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        return self.query_one(PageTable).current

    def action_filter(self) -> None:
        self.query_one(FilterBar).open()

    async def action_launch(self) -> None:
        await self.app.run_action("room('launch')")

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.words = event.words
        self.load()

    def on_filter_bar_left(self) -> None:
        self.set_focus(self.query_one(PageTable))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.desk_app.open("job", event.row["id"], event.row["title"])


NOTHING = """\
No job was launched yet: an experiment that outlives this terminal.

    3                         the launch room: a form for every kind
    $ chessreg launch --help  the same in a shell

A run in the foreground (chessreg run) is no job: it is among the runs."""


def read(session: Session, words: str, number: int) -> Found:
    from tui.data.jobs import counts, jobs

    pages = jobs(session, words)
    return Found(counts(session), pages, number, pages.page(number))


def overview_line(found: Found) -> str:
    counts = found.counts
    total = sum(counts.values())
    shown = show.counted(total, "job")
    if found.pages.count != total:
        shown = f"{found.pages.count:,} of {shown}"
    told = [f"{counts['running']:,} running", f"{counts['queued']:,} queued", f"{counts['ended']:,} ended"]
    return f"{shown} · {' · '.join(told)}"
