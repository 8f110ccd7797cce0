"""Home: running and waiting jobs, machine load, and runs that ended since the last visit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual import events, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import Static

from tui import show
from tui.actions import TABLE, Action, make_bindings
from tui.columns import TONE_SIGNS, TableColumn, Tone, choose_state_tone
from tui.data.machine_rows import Loads, count_gpus, make_gpu_grid, make_machine_table
from tui.data.pages import PAGE_ROWS, ListPages, Row
from tui.screens.jobs import (
    MACHINE,
    ON,
    SHARD,
    UNITS,
    JobActionsScreen,
    format_waiting_reason,
    get_job_name,
    preview_job,
)
from tui.screens.preview import WIDTH_PERCENT, PreviewingScreen, RowPreview
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from uuid import UUID

    from chessreg.session import Session
    from tui.data.job_rows import Curve, HomeSnapshot

WIDE_CELLS, HIGH_LINES = 110, 32  # minimum for two columns or the GPU grid; for tiles and the GPU grid


def format_run_result(row: Mapping[str, Any]) -> str:
    """Return the result of a complete run. For other runs, return how and why the run ended."""
    if row["cause"] != "complete":
        cause, message = row["cause"].replace("_", " "), row["message"] or ""
        return message if message.startswith(cause) else ": ".join(filter(None, [cause, message]))
    return show.format_measured_value(row["answer"]) if row.get("answer") else ""


def format_measure(row: Mapping[str, Any]) -> str:
    return row["answer"]["measure"].removesuffix(" %") if row.get("answer") else ""


def format_change(row: Mapping[str, Any]) -> str:
    return show.format_signed_change(row["answer"]) if row.get("answer") else ""


def format_baseline(row: Mapping[str, Any]) -> str:
    return row["answer"]["than"] or "" if row.get("answer") else ""


def format_sample_size(row: Mapping[str, Any]) -> str:
    """Return the number of games or states behind the result, such as `50 games`. Empty without a result."""
    return row["answer"]["sample"] if row.get("answer") else ""


def choose_result_tone(row: Mapping[str, Any]) -> Tone:
    return "value" if row["cause"] == "complete" else choose_state_tone(row["cause"])


def choose_change_tone(row: Mapping[str, Any]) -> Tone:
    """Return good or bad if the interval of the change excludes 0, otherwise detail.

    Losses have no interval, because a lower loss is better.
    """
    answer = row.get("answer") or {}
    low, high = answer.get("change_low"), answer.get("change_high")
    if low is None or high is None or low <= 0 <= high:
        return "detail"
    return "good" if low > 0 else "bad"


def format_progress(row: Mapping[str, Any]) -> str:
    """Return the progress of a running job, or the reason why it waits."""
    if row["state"] == "running":
        return f"{show.draw_bar(row['progress'])} {show.format_percent(row['progress'])}"
    return format_waiting_reason(row) or row["state"]


def format_time_left(row: Mapping[str, Any]) -> str:
    """Return the remaining time of a running job, or the expected start of a waiting one."""
    if row["seconds_left"] is not None:
        return show.format_seconds(row["seconds_left"])
    return "" if row["starts_in"] is None else f"in {show.format_seconds(row['starts_in'])}"


def make_sign_column(field: str) -> TableColumn:
    """Return a column with only the sign of a state."""
    tone = lambda row: choose_state_tone(row[field])
    return TableColumn(field, "", text=lambda row: TONE_SIGNS.get(tone(row), ""), tone=tone, role="key", least=1)


NAME = TableColumn("name", "name", text=get_job_name, widest=28, least=12, role="key")
KIND = TableColumn("kind", "kind", widest=16, role="detail")
ACTIVE_COLUMNS = (
    make_sign_column("state"),
    NAME,
    TableColumn("progress", "progress", text=format_progress, least=15, widest=16,
           tone=lambda row: choose_state_tone(row["state"])),
    TableColumn("left", "left", text=format_time_left, right=True),
    TableColumn("doing", "message", text=lambda row: row["doing"] or row["message"] or "", widest=60, least=20,
           role="detail"),
    SHARD,
    UNITS,
    TableColumn("rate", "pace", text=lambda row: show.format_rate(row["rate"]), right=True, role="detail"),
    KIND,
    MACHINE,
    ON,
)  # fmt: skip
ENDED_COLUMNS = (
    make_sign_column("cause"),
    NAME,
    TableColumn("outcome", "result", text=format_run_result, widest=44, least=20, tone=choose_result_tone, role="value",
           stays=True),
    TableColumn("change", "Δ", text=format_change, tone=choose_change_tone, role="value", whole=True),
    TableColumn("than", "to", text=format_baseline, widest=20, role="detail"),
    TableColumn("sample", "sample", text=format_sample_size, right=True, role="detail"),
    TableColumn("measure", "measure", text=format_measure, widest=30, role="detail"),
    TableColumn("seconds", "took", text=lambda row: show.format_seconds(row["seconds"]), whole=True, role="detail"),
    TableColumn("ended_at", "ended", least=16, role="detail"),
    KIND,
    replace(UNITS, role="detail"),
    MACHINE,
)  # fmt: skip
LOAD_SAMPLE_S = 5.0
FIRST_COMMANDS = {"demo": ["demo"], "model": ["import", "checkpoint", "--reference", "--name", "reference"]}
FIRST_KEYS = {  # by the first missing noun
    "dataset": ("A  games or positions from a file", "D  the demo", "M  the bundled model"),
    "checkpoint": ("A  a model from a file", "M  the bundled model", "8  data: split the games, or add more"),
    "run": ("3  launch: cache, then probe; or play", "8  data: datasets, models, probes and vectors", "D  the demo"),
}


def find_missing_noun(counts: Mapping[str, int]) -> str:
    """Return the first noun that an empty registry needs: dataset, checkpoint or run."""
    return next((noun for noun in ("dataset", "checkpoint") if not counts[noun]), "run")


def format_first_keys(counts: Mapping[str, int]) -> str:
    """Return the keys for the first steps in a registry without runs."""
    lines = "\n".join(f"    {line}" for line in FIRST_KEYS[find_missing_noun(counts)])
    return f"\n\nOr press a key here:\n\n{lines}"


class HomeScreen(JobActionsScreen, PreviewingScreen):
    """Machines, running and waiting jobs, ended runs, and in wide terminals a preview of the selected row.

    Tab moves between the lists. Enter opens the selected row.
    """

    place = "home"
    crumb = "home"
    AUTO_FOCUS = "#going"
    BINDINGS = make_bindings("home")
    DEFAULT_CSS = """
    HomeScreen > #overview, HomeScreen #curves { text-wrap: nowrap; text-overflow: ellipsis; }
    HomeScreen > #tiles { height: 3; padding: 0 1; display: none; }
    HomeScreen.-high > #tiles { display: block; }
    HomeScreen.-high > #overview { display: none; }
    HomeScreen .tile { width: 1fr; height: 3; margin-right: 1; padding: 0 1; background: $surface; color: $text-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    HomeScreen #running { border-left: thick $text-primary; }
    HomeScreen #waiting { border-left: thick $text-secondary; }
    HomeScreen #failed { border-left: thick $text-error; }
    HomeScreen #complete { border-left: thick $text-success; }
    HomeScreen #last { border-left: thick $edge; margin-right: 0; width: 2fr; }
    HomeScreen > #machines { height: auto; }
    HomeScreen > #work { height: 1fr; layout: vertical; overflow: hidden; }
    HomeScreen.-columns > #work { layout: horizontal; }
    HomeScreen #left { height: auto; width: 1fr; }
    HomeScreen.-columns #left { height: 1fr; }
    HomeScreen #ended { height: 1fr; width: 1fr; }
    HomeScreen #going { height: auto; }
    HomeScreen.-columns #going { height: 1fr; }
    HomeScreen #curves {
        height: auto; padding: 0 1; border: round $edge; border-title-color: $foreground; border-title-style: bold;
        background: $surface;
    }
    HomeScreen.-empty > #tiles, HomeScreen.-empty > #machines, HomeScreen.-empty > #work { display: none; }
    """

    at_home: HomeSnapshot | None = None

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, Loads] = {}
        self.answers: dict[tuple[UUID, Any], Row | None] = {}  # results by run and end time, each read once

    def on_mount(self) -> None:
        self.set_interval(LOAD_SAMPLE_S, self.sample_loads)

    @work(group="sample", exclusive=True)
    async def sample_loads(self) -> None:
        """Record the load of the machines, also while another screen is shown."""
        from tui.data.job_rows import list_loads

        try:
            rows = await self.app.database.ask("reading the loads", list_loads)
        except Exception as error:  # the poll for changes reports the error
            self.log.warning(error)
            return
        for row in rows:
            self.history.setdefault(row["host"], Loads()).note(row["load_at"], row["load"])
        if self.is_current and self.query("#machines"):
            self.show_machines()

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield Static("", id="nothing", markup=False)
        with Horizontal(id="tiles"):
            for name in TILES:
                yield Static("", id=name, classes="tile", markup=False)
        yield PageTable(id="machines", title="Machines", folds=False, counts=False)
        with Container(id="work"):
            with Vertical(id="left"):
                yield PageTable(ACTIVE_COLUMNS, id="going", title="Running and waiting",
                                empty="no job is running: ^l launches an experiment")  # fmt: skip
                yield Static("", id="curves", markup=False)
            yield PageTable(ENDED_COLUMNS, id="ended", empty="no run has ended since: 4 shows all runs, 2 all jobs")

    async def fill(self) -> None:
        since = self.app.since

        def read_home(session: Session) -> HomeSnapshot:
            from tui.data.job_rows import load_home  # in the thread: half a second of imports

            return load_home(session, since)

        state = await self.ask("reading jobs and runs", read_home)
        if state is None:
            return
        self.at_home = state
        self.set_class(not state.counts["run"] and not state.active_jobs and not state.ended_jobs, "-empty")
        self.update_overview()
        if self.has_class("-empty"):
            from tui.screens.runs import format_first_steps

            keys = "" if self.app.read_only else format_first_keys(state.counts)
            self.query_one("#nothing", Static).update(format_first_steps(state.counts) + keys)
        first_time = not self.query_one("#going", PageTable).loaded
        for name, columns, rows in (
            ("#going", ACTIVE_COLUMNS, state.active_jobs),
            ("#ended", ENDED_COLUMNS, state.ended_jobs),
        ):
            table = self.query_one(name, PageTable)
            table.show(ListPages(rows), rows[:PAGE_ROWS], columns=columns, keep=table.loaded)
        failed_count = sum(row["failed"] for row in state.ended_jobs)
        failure_text = f" · ✗ {failed_count} failed: ! opens its log ·" if failed_count else ""
        self.query_one("#ended", PageTable).set_title(f"Ended {self.app.since_told}{failure_text}")
        self.resize_lists()
        await self.show_answers(state)
        if first_time and not state.active_jobs and state.ended_jobs:
            self.set_focus(self.query_one("#ended"))
        self.relabel()

    async def show_answers(self, state: HomeSnapshot) -> None:
        """Add the results of ended runs, which may take a while to compute."""
        from chessreg.registry.measures import NEWEST_ENDED_RUNS
        from tui.data.job_rows import load_run_answers

        keys = {(row["run_id"], row["ended_at"]) for row in state.ended_jobs[:NEWEST_ENDED_RUNS]}
        unread_ids = list({run_id for run_id, at in keys if (run_id, at) not in self.answers})
        if unread_ids:
            answers = await self.ask("reading results", lambda session: load_run_answers(session, unread_ids))
            if answers is None:
                return
            self.answers |= {key: answers[key[0]] for key in keys if key[0] in answers}
        rows = [{**row, "answer": self.answers.get((row["run_id"], row["ended_at"]))} for row in state.ended_jobs]
        self.query_one("#ended", PageTable).show(ListPages(rows), rows[:PAGE_ROWS], columns=ENDED_COLUMNS, keep=True)
        self.update_overview()

    def on_resize(self, event: events.Resize) -> None:
        self.resize_lists()

    @property
    def lists_width(self) -> int:
        """The width of the lists in cells, without the preview."""
        width = self.size.width
        return width if width < self.min_width_cells else width * (100 - WIDTH_PERCENT) // 100

    def resize_lists(self) -> None:
        """Size the lists. Machines and running jobs get the lines they need, at most half of the screen.

        The lists are side by side if there is room and no preview.
        """
        if self.at_home is None or not self.is_mounted:
            return
        width = self.lists_width
        columns = width == self.size.width >= WIDE_CELLS
        self.set_class(columns, "-columns")
        self.query_one("#last").display = width == self.size.width  # the preview shows it
        self.set_class(self.size.height >= HIGH_LINES, "-high")
        self.show_machines()
        list_cells = width // 2 if columns else width
        curves = draw_curves(self.at_home.curves, 6 if self.size.height >= 40 else 2, list_cells - 6)
        self.query_one("#curves", Static).update(curves)
        self.query_one("#curves", Static).border_title = "Training"
        self.query_one("#curves").display = bool(curves.plain) and self.size.height >= HIGH_LINES
        active_table = self.query_one("#going", PageTable)
        lines = max(2, len(self.at_home.active_jobs) + 1) + 2  # heading and frame
        min_lines = min(lines, self.size.height // 4 + 1)
        idle = not self.at_home.active_jobs and bool(self.at_home.ended_jobs)  # leave no part of the screen empty
        active_table.display = not idle
        self.query_one("#left").display = not idle or bool(curves.plain)
        active_table.styles.height = None if columns else min_lines
        if columns and curves.plain:
            active_table.styles.height = "1fr"

    def show_machines(self) -> None:
        """Show one line per GPU if they fit, otherwise one line per machine."""
        if self.at_home is None or not self.is_mounted:
            return
        table, state = self.query_one("#machines", PageTable), self.at_home
        max_lines = self.size.height // 2 - 6
        width = self.lists_width
        columns, rows = make_gpu_grid(state.machines, state.active_jobs, self.history, width)
        if not self.has_class("-high") or width < WIDE_CELLS or len(rows) > max_lines:
            columns, rows = make_machine_table(state.machines, state.active_jobs, width)
        columns = [column for column in columns if any(column.format_cell(row) for row in rows)]
        max_lines = max(2, max_lines) if self.has_class("-high") else 4
        table.show(ListPages(rows), rows[:PAGE_ROWS], columns=columns, keep=True)
        table.styles.height = min(len(rows), max_lines) + 3
        table.display = bool(rows) and not self.has_class("-empty")
        used_gpus, every = count_gpus(state.machines, state.active_jobs)
        gpu_note = f" · {used_gpus} of {show.format_count(every, 'GPU')} in use" if every else ""
        hidden_count = len(rows) - min(len(rows), max_lines)
        more = f" · {len(rows) - hidden_count} of {len(rows)} lines" if hidden_count else ""
        table.set_title(f"Machines{gpu_note}{more}")

    def command(self) -> str:
        return f"chessreg status --since {self.app.since:%Y-%m-%dT%H:%M}"

    # -- actions --------------------------------------------------------------------------------------------------

    @property
    def table(self) -> PageTable:
        """The focused list."""
        return self.focused if isinstance(self.focused, PageTable) else self.query_one("#going", PageTable)

    @property
    def previewed_table(self) -> PageTable:
        return self.table

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        """Return the preview of a machine, of an active or failed job, or of a complete run."""
        if "device" in row:
            from tui.screens.machine import format_machine_facts, read_machine

            machine = await self.ask("reading the machine", lambda session: read_machine(session, row["host"]))
            return machine and RowPreview(format_machine_facts(machine[0]), title=show.format_host(row["host"]))
        if row["id"] is not None and row.get("cause") != "complete":
            return await preview_job(self, row)
        from tui.screens.run_preview import read_run_preview

        return await read_run_preview(self, row["run_id"], get_job_name(row))

    @property
    def selected_row(self) -> Mapping[str, Any] | None:
        row = self.table.current_row if self.table.id != "machines" else None
        return row if row is not None and row["id"] is not None else None

    def can_offer(self, action: Action) -> bool:
        if action.place == "home" and action.method == "begin":
            return self.has_class("-empty") and super().can_offer(action)
        if (action.method == "other" or action.place == TABLE) and self.has_class("-empty"):
            return False
        if action.place == "home" and action.method == "failure":
            return self.failure is not None and super().can_offer(action)
        if action.place == "home" and action.method in ("cancel", "retry"):
            if self.table.id == "machines":
                return False
            is_ended_list = self.table.id == "ended"
            row = self.selected_row
            if row is None or is_ended_list is not (action.method == "retry"):
                return False
            return (not is_ended_list or row["cause"] != "complete") and super().can_offer(action)
        return super().can_offer(action)

    def action_other(self, way: str) -> None:
        tables = [table for table in self.query(PageTable) if table.display]
        self.set_focus(tables[(tables.index(self.table) + int(way)) % len(tables)])
        self.relabel()

    def action_launch(self) -> None:
        self.app.action_go("launch")

    @property
    def failure(self) -> Row | None:
        """The run that failed last, or None."""
        ended_rows = self.at_home.ended_jobs if self.at_home is not None else ()
        return next((row for row in ended_rows if row["failed"]), None)

    def action_failure(self) -> None:
        if (row := self.failure) is not None:
            self.open_row(row)

    def action_begin(self, noun: str) -> None:
        """Run the command for the first step `noun` in an empty registry."""
        if not self.has_class("-empty"):
            return
        if noun == "model":
            self.begin(FIRST_COMMANDS[noun])
            return
        if noun == "demo":
            from tui.screens.dialogs import Confirm

            def make_demo(yes: bool | None) -> None:
                if yes:
                    self.begin(FIRST_COMMANDS["demo"])

            self.app.push_screen(
                Confirm("Run the demo in this registry? It uses all cores for a few minutes."), make_demo
            )
        elif self.at_home is not None:
            from tui.screens.files import import_picked_file
            from tui.screens.things import IMPORT_COMMANDS

            missing_noun = find_missing_noun(self.at_home.counts)
            import_picked_file(self, *IMPORT_COMMANDS["checkpoint" if missing_noun == "checkpoint" else "dataset"])

    @work(group="begin")
    async def begin(self, command: list[str]) -> None:
        """Run a chessreg command in the background and report its last line when it ends. One command at a time."""
        if self.busy:
            self.notify(f"chessreg {self.busy} is still running", severity="warning")
            return
        if self.app.refuse_while_lost():
            return
        self.busy = shlex.join(command)
        self.update_overview()
        self.notify(f"chessreg {self.busy}", title="started; this screen updates")
        try:
            status, output, err = await self.app.model.run_command(command)
        finally:
            self.busy = ""
            self.update_overview()
        last_line = next((line for line in reversed(f"{output}\n{err}".splitlines()) if line.strip()), "")
        message = f"{'failed' if status else 'done'}: chessreg {shlex.join(command)}"
        self.notify(last_line, title=message, severity="error" if status else "information")

    def update_overview(self) -> None:
        """Show the counts in tiles or in one line, and the command that this app started."""
        if self.at_home is not None and self.is_attached:
            note = f" · running: chessreg {self.busy}" if self.busy else ""
            line = Text(format_home_overview(self.at_home) + note, no_wrap=True, overflow="ellipsis")
            self.query_one("#overview", Static).update(line)
            newest_answer = next(
                (row for row in self.query_one("#ended", PageTable).source_rows if row.get("answer")), None
            )
            for name, lines in build_tiles(self.at_home, newest_answer, self.app.since_told).items():
                text = Text("\n", no_wrap=True, overflow="ellipsis").join(
                    Text(line, style="bold" if n == 1 else "") for n, line in enumerate(lines)
                )
                self.query_one(f"#{name}", Static).update(text)

    busy = ""

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.relabel()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.open_row(event.row)

    def open_row(self, row: Row) -> None:
        """Open the machine, job or run of a row."""
        if "device" in row:
            from tui.screens.machine import MachineScreen

            self.app.push_screen(MachineScreen(row["host"], self.history.setdefault(row["host"], Loads())))
        elif row["id"] is not None:
            self.app.open("job", row["id"], get_job_name(row))
        else:
            self.app.open("run", row["run_id"], get_job_name(row))


def format_home_overview(state: HomeSnapshot) -> str:
    """Return the line of counts: running and pending jobs, runs that ended by cause, and all runs."""
    causes = [row["cause"] for row in state.ended_jobs]
    counts_by_end = {how: causes.count(how) for how in ("complete", "cancelled", "interrupted")}
    counts = [
        f"{state.jobs['running'] + state.foreground:,} running",
        f"{state.jobs['waiting']:,} pending",
        f"{counts_by_end.pop('complete')} complete",
        f"{sum(row['failed'] for row in state.ended_jobs)} failed",
        *(f"{number} {how}" for how, number in counts_by_end.items() if number),
        f"{show.format_count(state.counts['run'], 'run')} in all",
    ]
    return " · ".join(counts)


TILES = ("running", "waiting", "failed", "complete", "last")


def build_tiles(state: HomeSnapshot, newest_answer: Row | None, since: str) -> dict[str, tuple[str, str, str]]:
    """Return three lines for each tile: its title, its count and a detail."""
    running_jobs = [row for row in state.active_jobs if row["state"] in ("running", "cancelling")]
    waiting_jobs = [row for row in state.active_jobs if row["state"] not in ("running", "cancelling")]
    failed_jobs = [row for row in state.ended_jobs if row["failed"]]
    hosts = {row["at"] for row in running_jobs if row["at"]}
    soonest_start = min((row["starts_in"] for row in waiting_jobs if row["starts_in"] is not None), default=None)
    complete = sum(row["cause"] == "complete" for row in state.ended_jobs)
    last_result = ("last result", "", "none yet")
    if newest_answer is not None:
        change_text = (
            f"Δ {format_change(newest_answer)} to {format_baseline(newest_answer)}"
            if format_change(newest_answer)
            else ""
        )
        last_result = (
            f"last result: {format_measure(newest_answer)}",
            f"{get_job_name(newest_answer)}  {show.format_measured_value(newest_answer['answer'])}",
            change_text,
        )
    return {
        "running": ("running", f"● {state.jobs['running'] + state.foreground:,}",
                    f"on {show.format_count(len(hosts), 'machine')}" if hosts
                    else "" if state.active_jobs else "^l launches"),
        "waiting": ("pending", f"○ {state.jobs['waiting']:,}",
                    "" if soonest_start is None else f"next in {show.format_seconds(soonest_start)}"),
        "failed": ("failed", f"✗ {len(failed_jobs):,}", "! opens the log" if failed_jobs else since),
        "complete": ("complete", f"✓ {complete:,}", f"{show.format_count(state.counts['run'], 'run')} in all"),
        "last": last_result,
    }  # fmt: skip


def draw_curves(curves: Sequence[Curve], most: int, width: int) -> Text:
    """Draw one line per running training: its name, first value, curve and last value."""
    text = Text(no_wrap=True, overflow="ellipsis")
    name_cells = max((len(curve.run) for curve in curves[:most]), default=0)
    for curve in curves[:most]:
        values = [value for _, value in curve.points]
        if not values:
            continue
        step, last_value = curve.points[-1]
        begin = f" {curve.metric.replace('_', ' ')} {values[0]:.4g} "
        end = f" {last_value:.4g} at step {step:,}"
        cells = min(100, width - name_cells - len(begin) - len(end))
        text.append("\n" if text.plain else "").append(curve.run.ljust(name_cells), style="bold")
        text.append(f"{begin}{show.draw_sparkline(values, cells) if cells > 3 else '…'}{end}")
    return text
