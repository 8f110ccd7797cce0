"""The jobs: running, waiting and ended. They can be cancelled, retried and reprioritized."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import Action, list_place_actions, make_bindings
from tui.columns import TableColumn, choose_state_tone, format_state
from tui.data.pages import PAGE_ROWS, ListPages, Pages, Row
from tui.screens.base import AppScreen
from tui.screens.dialogs import Confirm
from tui.screens.preview import PreviewingScreen, RowPreview, build_fields_table
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session


def get_job_name(row: Mapping[str, Any]) -> str:
    """Return the name of a job or run, or its title if it has no name."""
    return row["name"] or row["title"]


def format_job_crumb(row: Mapping[str, Any]) -> str:
    """Return the name of a job and its shard. A title already contains the shard."""
    return f"{row['name']} {format_shard(row)}".rstrip() if row["name"] else row["title"]


def format_job_reference(row: Mapping[str, Any]) -> str:
    """Return an unambiguous description of a job: its name or kind, and the id shown in the list."""
    return f"{row['name'] or row['kind']} (job {show.abbreviate_id(row['id'])})"


class JobActionsScreen(AppScreen):
    """A screen with a selected job (`selected_row`). Its rows show a requested change before the registry has it."""

    def __init__(self) -> None:
        super().__init__()
        self.changing = asyncio.Lock()  # changes are written in the order of the keys

    @property
    def selected_row(self) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def can_offer(self, action: Action) -> bool:
        if action.place == self.place and action.method in ("cancel", "retry", "priority"):
            if (row := self.selected_row) is None:
                return False
            has_ended = row.get("ended_at") is not None
            is_whole_launch = action.parameter == "launch"  # other jobs of the launch may still be active
            if action.method == "priority" and "priority" not in row:
                return False
            if action.method == "retry" and not has_ended:
                return bool(row["state"] == "cancelling")
            if action.method == "cancel" and has_ended and not is_whole_launch:
                return False
        return super().can_offer(action)

    def action_cancel(self, whole: str = "") -> None:
        """Cancel the job, which a retry takes back, or ask and cancel every job of its launch."""
        if (row := self.selected_row) is None:
            return
        if not whole and row.get("ended_at") is not None:
            self.notify("the job had already ended", severity="warning")
        elif not whole:
            self._cancel(row, False, True)
        else:
            question = f"Cancel every job of the launch of {format_job_reference(row)}? Complete units are kept."
            self.app.push_screen(Confirm(question), partial(self._cancel, row, True))

    def _cancel(self, row: Mapping[str, Any], whole: bool, yes: bool | None) -> None:
        """Cancel the job of `row`, or with `whole` its launch, if the user answered yes."""
        from chessreg.scheduling import queue

        if yes:
            (retry,) = self.app.apply_keys_to([a for a in list_place_actions(self.place) if a.method == "retry"])
            message = f"cancelled (complete units are kept, {retry.shown_key} retries)"
            changes = {"state": "cancelling", "ended_at": None}
            self.change(changes, message, "the job had already ended", queue.cancel_jobs, row, whole)

    def action_retry(self) -> None:
        from chessreg.scheduling import queue

        refusal = "the job is complete or still active, or another launch of its run is active"
        if (row := self.selected_row) is None:
            return
        if row["state"] == "complete":
            self.notify(refusal, severity="warning")
        else:
            message = "queued again" + (" once it has ended" if row["state"] == "cancelling" else "")
            self.change({"state": "queued", "ended_at": None}, message, refusal, queue.retry_jobs, row)

    def action_priority(self, by: str) -> None:
        from chessreg.scheduling.queue import set_priority

        if (row := self.selected_row) is not None:
            do = partial(set_priority, by=int(by))
            changes = {"priority": row["priority"] + int(by)}
            self.change(changes, f"priority {int(by):+d}", "only the priority of queued jobs can be changed", do, row)

    def change(
        self,
        shown_row: Mapping[str, Any],
        done_text: str,
        nothing: str,
        do: Callable[..., Any],
        row: Mapping[str, Any],
        is_whole: bool = False,
    ) -> None:
        """Show the values `shown_row` of the job now, and apply `do` to it or to its whole launch.

        The change is written even if this screen is closed meanwhile.
        """
        self.acknowledge(row, shown_row)
        self.app.run_worker(
            cast(Any, partial(self.write_change, done_text, nothing, do, row, is_whole)), group="change"
        )

    def acknowledge(self, row: Mapping[str, Any], shown_row: Mapping[str, Any]) -> None:
        """Show these values in the row of a job until it is read again."""
        if isinstance(row, dict):
            row |= shown_row
        for table in self.query(PageTable):
            table.refresh()
        self.relabel()

    def reload_if_stale(self) -> None:
        """Reload after a change of the registry, unless a requested change is still being written."""
        if not self.changing.locked():
            super().reload_if_stale()

    async def write_change(
        self, done_text: str, nothing: str, do: Callable[..., Any], row: Mapping[str, Any], is_whole: bool
    ) -> None:
        """Call `do(sql, jobs)` for the job of `row` or, if `is_whole`, its whole launch, and reload.

        The notice is `done_text` with the number of changed jobs, or `nothing` if none changed.
        """
        from tui.data import job_rows

        def apply_change(session: Any) -> int:
            ids: list[UUID] = job_rows.list_launch_jobs(session, row["id"]) if is_whole else [row["id"]]
            return job_rows.apply_to_jobs(session, do, ids)

        async with self.changing:
            number = await self.change_registry("changing jobs", apply_change)
        if number:
            self.notify(
                f"{done_text}: {format_job_reference(row) if number == 1 else show.format_count(number, 'job')}"
            )
        elif number is not None:
            self.notify(nothing, severity="warning")
        if self.is_attached and not self.changing.locked():
            self.load()


class JobPage(NamedTuple):
    """A page of jobs, and the number of jobs by state."""

    counts: dict[str, int]
    pages: Pages
    number: int
    rows: Sequence[Row]


def format_shard(row: Mapping[str, Any]) -> str:
    """Return the shard of a job, such as `2/4`. Empty for a launch of one shard."""
    if row["shard"] == row["shards"]:
        return "reduce"
    return f"{row['shard'] + 1}/{row['shards']}" if row["shards"] > 1 else ""


def format_waiting_reason(row: Mapping[str, Any]) -> str:
    """Return in a few words why a job has not started. Empty for a job that runs or has ended."""
    if row["state"] == "waiting" and row.get("reason"):
        return f"{row['executor'].partition(':')[0].capitalize()}: {row['reason']}"
    if awaited_jobs := row.get("after") or row["waits_for"]:
        return f"{'blocked by' if row['state'] == 'blocked' else 'after'} {', '.join(awaited_jobs)}"
    if row["state"] in ("queued", "waiting", "blocked"):
        return row.get("why") or ("no free slot" if row["state"] == "queued" else row["state"])
    return ""


ID = TableColumn("id", "job", text=lambda row: show.abbreviate_id(row["id"]), role="detail")
SHARD = TableColumn("shard", "shard", text=format_shard, least=6)
STATE = TableColumn(
    "state",
    "state",
    text=lambda row: format_state(row["state"]),
    tone=lambda row: choose_state_tone(row["state"]),
    least=11,
    role="key",
)
PROGRESS = TableColumn(
    "progress",
    "progress",
    text=lambda row: format_waiting_reason(row) or show.draw_bar(row["progress"]),
    widest=16,
    least=10,
    tone=lambda row: choose_state_tone(row["state"]),
)
UNITS = TableColumn("done", "stored", right=True, text=show.format_units_done)
PACE = TableColumn("pace", "pace", text=show.format_job_pace, whole=True, role="detail")
ON = TableColumn("executor", "on", role="detail")
MACHINE = TableColumn("machine", "machine", text=lambda row: show.format_host(row["machine"]), widest=20, role="detail")
PRIORITY = TableColumn("priority", "priority", right=True)
TRIES = TableColumn("tries", "tries", right=True)
WHY = TableColumn(
    "why",
    "message",
    widest=70,
    least=30,
    tone=lambda row: "bad" if choose_state_tone(row["state"]) == "bad" else "detail",
)
COLUMNS = (
    ID,
    TableColumn("kind", "kind", widest=16),
    TableColumn("name", "name", text=lambda row: row["name"] or row["differs"], widest=28, role="key"),
    SHARD, STATE, PROGRESS, UNITS, PACE, WHY, ON, MACHINE, PRIORITY, TRIES,
    TableColumn("created_at", "launched",
                least=16, role="detail"),
)  # fmt: skip


FILTER_SUGGESTIONS = (
    "state:", "kind:", "name:", "on:", "machine:", "partition:", "message:", "launch:", "run:", "id:", "shard:",
    "tries>", "priority>", "launched>", "started>", "ended>",
    "state:running", "state:queued", "state:waiting", "state:blocked", "state:ended", "state:complete",
    "state:failed", "state:cancelled",
)  # fmt: skip


class JobsScreen(JobActionsScreen, PreviewingScreen):
    """All jobs, running ones first. Enter opens one and follows it."""

    place = "jobs"
    finds = False
    crumb = "jobs"
    BINDINGS = make_bindings("jobs")

    filter_text = ""
    _shown_text: str | None = ""

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield FilterBar("state:running  kind:probe  on:slurm  machine:box1  tries>1  launch:3f2a1c  !word", id="filter",
                        offered_words=FILTER_SUGGESTIONS)  # fmt: skip
        yield Static(NO_JOBS_TEXT, id="nothing", markup=False)
        empty = "no job matches the filter; Esc clears it"
        yield PageTable(COLUMNS, id="jobs", title="Jobs", empty=empty)

    async def fill(self) -> None:
        filter_text, table = self.filter_text, self.query_one(PageTable)
        keep_cursor = table.loaded and filter_text == self._shown_text
        number = table.cursor // PAGE_ROWS if keep_cursor else 0
        page = await self.ask("reading the jobs", lambda session: read_job_page(session, filter_text, number))
        if page is None:
            if self.refused:  # do not keep rows that match earlier words
                self._shown_text = None
                table.show(ListPages([]), [], columns=COLUMNS)
            return
        self._shown_text = filter_text
        self.query_one("#overview", Static).update(format_jobs_overview(page))
        self.set_class(not any(page.counts.values()), "-empty")
        first_rows = page.rows if page.number * PAGE_ROWS < max(1, page.pages.count) else None
        table.show(page.pages, first_rows, columns=COLUMNS, keep=keep_cursor, number=page.number)
        self.relabel()

    async def build_preview(self, row: Row) -> RowPreview | None:
        return await preview_job(self, row)

    def command(self) -> str:
        return "chessreg jobs --all"

    @property
    def selected_row(self) -> Mapping[str, Any] | None:
        return self.query_one(PageTable).current_row

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.relabel()  # the available actions depend on the state of the job

    def action_launch(self) -> None:
        row = self.query_one(PageTable).current_row
        if row is None:
            self.app.action_go("launch")
        else:
            self.app.open_run_form(row["run_id"], format_job_crumb(row))

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        self.filter_text = event.text
        self.load()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.app.open("job", event.row["id"], format_job_crumb(event.row))


async def preview_job(screen: AppScreen, row: Mapping[str, Any]) -> RowPreview | None:
    """Return the state of a job and the end of its log, or the reason why it has no log."""
    from tui.data.job_rows import read_log_end

    id, lines = row["id"], max(10, screen.size.height - 12)
    end = await screen.ask("reading the log", lambda session: read_log_end(session, id, lines))
    if end is None:
        return None
    cause = row.get("cause")
    labels = {
        "state": row.get("state") or cause,
        "pace": "" if cause else show.format_job_pace(row),
        "why": row.get("why") or row["message"],
    }
    facts = build_fields_table(labels)
    log = Text("\n".join(end), no_wrap=True, overflow="ellipsis")
    return RowPreview(Group(facts, Text(""), log), title=row["title"])


NO_JOBS_TEXT = """\
No job was launched yet. A job is an experiment that continues after this terminal is closed.

    3                         the launch screen: a form for every kind
    $ chessreg launch --help  the same in a shell

A run in the foreground (chessreg run) is not a job. It is listed among the runs."""


def read_job_page(session: Session, filter_text: str, number: int) -> JobPage:
    """Read the counts of jobs and the page `number` of those that match the filter."""
    from tui.data.job_rows import count_jobs, list_job_pages

    pages = list_job_pages(session, filter_text)
    return JobPage(count_jobs(session), pages, number, pages.read_page(number))


def format_jobs_overview(page: JobPage) -> str:
    """Return the line of counts: jobs that match of all jobs, by state."""
    counts = page.counts
    total = counts["running"] + counts["waiting"] + counts["ended"]
    jobs_text = show.format_count(total, "job")
    if page.pages.count != total:
        jobs_text = f"{page.pages.count:,} of {jobs_text}"
    states = [f"{counts['running']:,} running", f"{counts['waiting']:,} pending", f"{counts['ended']:,} ended"]
    return f"{jobs_text} · {' · '.join(states)}"
