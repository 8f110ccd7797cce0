"""One job: its shards side by side, and the log, attempts and settings of the selected shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from chessreg.registry.run_state import FAILURES
from chessreg.runs.spec import describe_source
from chessreg.scheduling import status
from chessreg.scheduling.status import FINAL_STATES
from tui import show
from tui.actions import FILTER, TABLE, Action, list_place_actions, make_bindings
from tui.data.job_rows import LogTail, load_job
from tui.data.pages import ListPages
from tui.data.result_rows import TABLES_WITH_BOARDS, make_result_columns
from tui.data.run_rows import ATTEMPT_COLUMNS, SETTING_COLUMNS
from tui.screens.base import PartsScreen, RunOnPage
from tui.screens.jobs import (
    ID,
    MACHINE,
    PACE,
    PRIORITY,
    PROGRESS,
    SHARD,
    STATE,
    TRIES,
    UNITS,
    WHY,
    JobActionsScreen,
    format_job_crumb,
    format_shard,
)
from tui.widgets.bars import FilterBar, FindBar, PaneStrip
from tui.widgets.logview import LogView
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from tui.data.job_rows import JobView

SHARD_COLUMNS = (SHARD, ID, STATE, PROGRESS, UNITS, PACE, WHY, MACHINE, TRIES, PRIORITY)
LOG_POLL_S = 0.5
PANES = ("log", "attempts", "settings", "results")
LOG_PANE = 0


class JobScreen(JobActionsScreen, PartsScreen):
    """A job that is followed live. [ and ] select a shard, Tab the log, attempts, settings or results."""

    place = "job"
    AUTO_FOCUS = "LogView"
    BINDINGS = make_bindings("job")
    DEFAULT_CSS = """
    JobScreen > #headline { height: auto; max-height: 2; padding: 0 1; text-style: bold; }
    JobScreen > #headline.-wrong { color: $text-error; }
    JobScreen > #summary { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    JobScreen > #shards { height: auto; max-height: 7; display: none; }
    JobScreen.-several > #shards { display: block; }
    JobScreen.-tall > #shards { max-height: 20; }
    JobScreen > #part { display: none; }
    JobScreen.-table > #part { display: block; }
    JobScreen.-table > LogView { display: none; }
    """

    def __init__(self, job_id: UUID, name: str) -> None:
        super().__init__()
        self.job_id, self.crumb = job_id, name
        self.view: JobView | None = None
        self.tail: LogTail | None = None
        self._reading = False
        self.placeholder_row: dict[str, Any] = {"id": job_id, "name": name, "state": "queued"}  # until the job is read

    def body(self) -> ComposeResult:
        yield Static("", id="headline", markup=False)
        yield Static("", id="summary", markup=False)
        yield PageTable(SHARD_COLUMNS, id="shards", title="Shards")
        yield PaneStrip()
        yield FilterBar(
            "words to find in the log; ) goes to the next match, ( to the previous one", id="words", hides=False
        )
        yield LogView(id="log")
        yield PageTable(id="part", empty="nothing yet")

    def on_mount(self) -> None:
        self.query_one(PaneStrip).names = PANES
        self.set_interval(LOG_POLL_S, self.read_log)

    def on_resize(self) -> None:
        self.set_class(self.size.height >= 40, "-tall")

    async def fill(self) -> None:
        view = await self.ask("reading the job", lambda session: load_job(session, self.job_id))
        if view is None:
            return
        self.view = view
        if view.job["state"] not in FINAL_STATES:
            self.app.follow(view.job["id"])
        headline = self.query_one("#headline", Static)
        headline.update(format_job_progress(view))
        headline.set_class(view.job["state"] in FAILURES, "-wrong")
        self.query_one("#summary", Static).update(format_job_summary(view))
        self.set_class(len(view.shards) > 1, "-several")
        shards = self.query_one("#shards", PageTable)
        shards.show(ListPages(view.shards), view.shards, columns=SHARD_COLUMNS, keep=True)
        shards.styles.height = len(view.shards) + 3  # heading and frame
        place = next((n for n, row in enumerate(view.shards) if row["id"] == self.job_id), 0)
        if not shards.view.is_active:
            shards.move(place)
        self.follow_log(view)
        self.show_part(keep=True)
        self.relabel()
        self.read_log()
        if self.changing.locked() and self.selected_row is not None:  # read before the change is written
            self.acknowledge(self.selected_row, self.requested_change)

    requested_change: Mapping[str, Any] = {}  # values of the last requested change

    def acknowledge(self, row: Mapping[str, Any], shown_row: Mapping[str, Any]) -> None:
        """Show these values in the row and the headline of a job until it is read again."""
        self.requested_change = shown_row
        if self.view is not None:
            self.view.job.update(shown_row)
        progress_text = (
            format_job_progress(self.view) if self.view is not None else f"{shown_row['state']} · reading the job…"
        )
        for headline in self.query("#headline").results(Static):
            headline.update(progress_text)
        super().acknowledge(row, shown_row)

    # -- the log --------------------------------------------------------------------------------------------------

    def follow_log(self, view: JobView) -> None:
        """Follow the log of the selected shard, unless it is followed already."""
        log = self.query_one(LogView)
        if view.log is None:
            self.tail = None
            log.clear(view.why_no_log)
        elif self.tail is None or self.tail.path != view.log:
            self.tail = LogTail(view.log)
            log.clear("the log is empty so far")

    def read_log(self) -> None:
        if self.tail is not None and not self._reading and self.is_current:
            self._read_log(self.tail)

    @work(group="log")
    async def _read_log(self, tail: LogTail) -> None:
        """Append the new lines of the log. Clear it first if the file began again."""
        self._reading = True
        try:
            chunk = await self.ask("reading the log", lambda session: tail.read())
        finally:
            self._reading = False
        if chunk is None or tail is not self.tail:
            return
        log = self.query_one(LogView)
        if chunk.is_replaced and log.lines:
            log.clear("the log is empty so far")
        log.add(chunk.lines, chunk.partial_line)
        self.label_log()

    def label_log(self) -> None:
        """Show the search hits and whether the log follows its end."""
        log, strip = self.query_one(LogView), self.query_one(PaneStrip)
        facts = [f"{log.hit + 1} of {show.format_count(len(log.hits), 'place')}" if log.search_text else ""]
        facts.append("" if log.follows else "stopped: G follows")
        log.border_title = cast(str, Content(" · ".join(filter(None, ["Log", *facts]))))
        title = " · ".join(filter(None, ["log", *facts]))
        if strip.names[:1] != (title,):
            strip.names = (title, *PANES[1:])

    def on_log_view_changed(self) -> None:
        self.label_log()

    def action_find(self) -> None:
        if self.query_one(PaneStrip).place != LOG_PANE:
            self.find(self.query_one("#part", PageTable))
        else:
            self.query_one("#words", FilterBar).open()

    def action_hit(self, way: str) -> None:
        self.query_one(LogView).step_hit(int(way))

    def on_filter_bar_typed(self, event: FilterBar.Typed) -> None:
        if not isinstance(event.bar, FindBar):
            self.query_one(LogView).search(event.text)

    def leave_filter(self) -> None:
        if self.query_one(PaneStrip).place != LOG_PANE:
            super().leave_filter()
        else:
            self.set_focus(self.query_one(LogView))

    # -- the other parts ------------------------------------------------------------------------------------------

    def show_part(self, keep: bool = False) -> None:
        strip, table = self.query_one(PaneStrip), self.query_one("#part", PageTable)
        self.set_class(strip.place > 0, "-table")
        if self.view is None:
            return
        job = self.view.job
        table.set_title(PANES[strip.place])
        if PANES[strip.place] == "results":
            if self.view.results is None:
                table.show(ListPages([]), [], columns=ATTEMPT_COLUMNS, keep=keep)
            else:
                name, pages, first_rows = self.view.results
                table.show(pages, first_rows, columns=make_result_columns(name, first_rows), keep=keep)
        elif PANES[strip.place] == "attempts":
            table.show(ListPages(job["attempts"]), job["attempts"][:200], columns=ATTEMPT_COLUMNS, keep=keep)
        elif PANES[strip.place] == "settings":
            rows = [
                {
                    "setting": path,
                    "value": show.format_full_value(value),
                    "source": describe_source(path, job["explicit"]),
                }
                for path, value in self.view.settings.items()
            ]
            table.show(ListPages(rows), rows, columns=SETTING_COLUMNS, keep=keep)

    def choose_part(self, place: int) -> None:
        super().choose_part(place)
        self.set_focus(self.query_one("#part" if place else "#log"))
        self.relabel()

    def action_shard(self, way: str) -> None:
        if self.view is not None and len(self.view.shards) > 1:
            ids = [row["id"] for row in self.view.shards]
            self.choose(ids[(ids.index(self.job_id) + int(way)) % len(ids)])

    def choose(self, job_id: UUID) -> None:
        """Select another shard of the same run."""
        if self.view is not None and job_id != self.job_id:
            self.job_id = job_id
            self.crumb = next(format_job_crumb(row) for row in self.view.shards if row["id"] == job_id)
            self.relabel()
            self.load()

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        row = event.table.current_row if event.table.id == "shards" and event.table.has_focus else None
        if row is not None:
            self.choose(row["id"])

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        if event.table.id == "shards":
            self.choose_part(LOG_PANE)
        elif event.row.get("result_table") in TABLES_WITH_BOARDS and event.table.source is not None:
            from tui.screens.boards import BoardScreen

            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))

    # -- the job --------------------------------------------------------------------------------------------------

    @property
    def selected_row(self) -> Mapping[str, Any] | None:
        """The selected shard, also while it or its log is read."""
        if self.view is None:
            return self.placeholder_row
        shards = self.view.shards
        return next((row for row in shards if row["id"] == self.job_id), None)

    @property
    def run_on_page(self) -> RunOnPage | None:
        job = self.view.job if self.view else None
        return RunOnPage(job["kind"], job["name"] or job["run_id"].hex[-6:]) if job else None

    def command(self) -> str:
        return f"chessreg attach {show.abbreviate_id(self.job_id)}"

    def action_launch(self) -> None:
        if self.view is not None:
            self.app.open_run_form(self.view.job["run_id"], self.crumb)

    @work(group="run")
    async def action_run(self) -> None:
        """Open the run of the job, if it has started."""
        from chessreg.registry.tables import Run

        if self.view is None:
            return
        job = self.view.job

        def has_begun(session: Any) -> bool:
            with session.database.read() as sql:
                return sql.get(Run, job["run_id"]) is not None

        exists = await self.ask("looking for the run", has_begun)
        if exists:
            self.app.open("run", job["run_id"], job["name"] or f"run {show.abbreviate_id(job['run_id'])}")
        elif exists is not None:
            self.notify("its run has not started", severity="warning")

    def list_actions(self) -> list[Action]:
        all_actions = super().list_actions()
        if isinstance(self.focused, FilterBar):
            return [a for a in all_actions if a.place in (FILTER, "everywhere")]
        if isinstance(self.focused, LogView):
            return [
                a
                for a in [*list_place_actions(self.place), *list_place_actions("log")]
                if a in all_actions or a.place == "log"
            ] + [a for a in all_actions if a.place == "everywhere"]
        log = self.query_one(PaneStrip).place == LOG_PANE
        return [a for a in all_actions if a.method != "find" or (a.place == self.place) is log]

    def can_offer(self, action: Action) -> bool:
        if self.view is not None and action.place == "job" and action.method == "shard":
            return len(self.view.shards) > 1
        return super().can_offer(action)

    def find_node(self, action: Action) -> Any:
        if action.place == "log":
            return self.query_one(LogView)
        if action.place == TABLE and not isinstance(self.focused, PageTable):
            return self.query_one("#part", PageTable)
        return super().find_node(action)


def format_job_progress(view: JobView) -> str:
    """Return the state of a job, the progress of its run, and why it waits or failed."""
    job, every = view.job, [row for row in view.shards if row["units"]]
    total, done_units = sum(row["units"] for row in every), sum(row["done"] for row in every)
    parts = [job["state"].replace("_", " ")]
    if total:
        running_units = [row["progress"] * row["units"] for row in every if row["progress"] is not None]
        share = sum(running_units) / total
        jobs_text = f" of {show.format_count(len(view.shards), 'job')}" if len(view.shards) > 1 else ""
        parts.append(f"{show.draw_bar(share, 20)} {show.format_percent(share)}")
        parts.append(f"{done_units:,}/{total:,} units stored{jobs_text}")
    parts += [job["why"] if job["why"] != job["state"] else "", view.reason]
    return " · ".join(filter(None, parts))


def format_job_summary(view: JobView) -> str:
    """Return the identity of a job and where it runs."""
    job = view.job
    facts = [
        job["kind"],
        job["name"] or "",
        f"job {show.abbreviate_id(job['id'])}",
        f"shard {format_shard(job)}" if format_shard(job) else "",
        f"{show.format_units_done(job)} units" if job["units"] else "",
        show.format_job_pace(job),
        f"{job['executor']} on {show.format_host(job['machine'])}" if job["machine"] else job["executor"],
        f"partition {job['partition']}" if job["partition"] else "",
        f"{status.get_scheduler_name(job)} job {job['scheduler_job']}" if job["scheduler_job"] else "",
        f"priority {job['priority']}" if job["priority"] else "",
    ]
    return " · ".join(filter(None, facts))
