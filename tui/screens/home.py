"""Home: what runs here and elsewhere, how busy the machines are, and what has ended since one last looked."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import TABLE, Action, bindings
from tui.columns import Column
from tui.data.pages import PAGE, Listed, Row
from tui.screens.jobs import MACHINE, ON, PACE, PROGRESS, SHARD, STATE, UNITS, WHY, JobActionsScreen, called
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from uuid import UUID

    from chessreg.session import Session
    from tui.data.job_rows import AtHome, Curve

MACHINES, MACHINES_HIGH = 3, 8  # that are shown, in a low and in a high terminal


def cause(row: Mapping[str, Any]) -> str:
    """How it ended, with a mark too."""
    return f"{'✓' if row['cause'] == 'finished' else '✗'} {row['cause'].replace('_', ' ')}"


def result(row: Mapping[str, Any]) -> str:
    """What came of it."""
    return show.answer(row["answer"]) if row.get("answer") else ""


NAME = Column("name", "what", text=called, widest=28, least=12)
KIND = Column("kind", "kind", widest=16)
GOING = (NAME, KIND, SHARD, STATE, PROGRESS, UNITS, PACE, MACHINE, WHY, ON)
ENDED = (
    Column("ended_at", "ended", text=lambda row: show.when(row["ended_at"]), least=16),
    NAME,
    Column("cause", "how", text=cause, least=10),
    Column("answer", "result", text=result, widest=60, least=20),
    KIND,
    UNITS,
    Column("seconds", "took", text=lambda row: show.duration(row["seconds"]), whole=True),
    MACHINE,
    Column("message", "message", widest=90, least=30),
)


class HomeScreen(JobActionsScreen):
    """Two lists: Tab goes from one to the other, Enter opens the job or the run."""

    place = "home"
    crumb = "home"
    AUTO_FOCUS = "#going"
    BINDINGS = bindings("home")
    DEFAULT_CSS = """
    HomeScreen > .title { height: 1; padding: 0 1; background: $panel; color: $text-accent; text-style: bold; }
    HomeScreen > #machines, HomeScreen > #curves { height: auto; padding: 0 1; }
    HomeScreen > #ended { height: 1fr; }
    HomeScreen.-empty > .title, HomeScreen.-empty > #machines { display: none; }
    """

    at_home: AtHome | None = None

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, Loads] = {}
        self.answers: dict[tuple[UUID, Any], Row | None] = {}  # of what has ended, by run and moment: read once

    def on_mount(self) -> None:
        self.set_interval(SAMPLE, self.sample)

    @work(group="sample", exclusive=True)
    async def sample(self) -> None:
        """Note the machines' loads, also while another screen is looked at."""
        from tui.data.job_rows import loads

        try:
            rows = await self.app.database.ask("reading the loads", loads)
        except Exception as error:  # the look for changes tells what is wrong
            self.log.warning(error)
            return
        for row in rows:
            self.history.setdefault(row["host"], Loads()).note(row["load_at"], row["load"])
        if self.is_current:
            self.share_out()

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield Static("", id="nothing", markup=False)
        yield Static("Machines", classes="title", id="machines-title", markup=False)
        yield Static("", id="machines", markup=False)
        yield Static("Runs now, and waits", classes="title", markup=False)
        yield PageTable(GOING, id="going", empty="nothing runs: ^l launches an experiment")
        yield Static("", id="curves", markup=False)
        yield Static("", classes="title", id="ended-title", markup=False)
        yield PageTable(ENDED, id="ended", empty="nothing has ended since: 4 shows all runs, 2 all jobs")

    async def fill(self) -> None:
        since = self.app.since

        def look(session: Session) -> AtHome:
            from tui.data.job_rows import at_home  # on the worker's thread: at a start this is half a second of code

            return at_home(session, since)

        state = await self.ask("reading what goes on", look)
        if state is None:
            return
        self.at_home = state
        self.set_class(not state.counts["run"] and not state.going and not state.ended, "-empty")
        self.tell_overview()
        if self.has_class("-empty"):
            from tui.screens.runs import nothing_yet

            keys = "" if self.app.read_only else KEYS
            self.query_one("#nothing", Static).update(nothing_yet(state.counts) + keys)
        first_time = not self.query_one("#going", PageTable).loaded
        for name, columns, rows in (("#going", GOING, state.going), ("#ended", ENDED, state.ended)):
            table = self.query_one(name, PageTable)
            table.show(Listed(rows), rows[:PAGE], columns=columns, keep=table.loaded)
        failed = sum(row["failed"] for row in state.ended)
        wrong = f" · ✗ {failed} failed: ! opens its log" if failed else ""
        self.query_one("#ended-title", Static).update(f"Ended {self.app.since_told}{wrong}")
        self.share_out()
        await self.show_answers(state)
        if first_time and not state.going and state.ended:
            self.set_focus(self.query_one("#ended"))
        self.relabel()

    async def show_answers(self, state: AtHome) -> None:
        """Add the results of what has ended: games and scores are counted for them, which may take a while."""
        from chessreg.registry.measures import ANSWERED
        from tui.data.job_rows import answers

        wanted = {(row["run_id"], row["ended_at"]) for row in state.ended[:ANSWERED]}
        unknown = list({run_id for run_id, at in wanted if (run_id, at) not in self.answers})
        if unknown:
            found = await self.ask("reading results", lambda session: answers(session, unknown))
            if found is None:
                return
            self.answers |= {key: found[key[0]] for key in wanted if key[0] in found}
        rows = [{**row, "answer": self.answers.get((row["run_id"], row["ended_at"]))} for row in state.ended]
        self.query_one("#ended", PageTable).show(Listed(rows), rows[:PAGE], columns=ENDED, keep=True)

    def on_resize(self) -> None:
        self.share_out()

    def share_out(self) -> None:
        """Give machines and what runs the lines that they need, at most half of the screen; the rest is for what has
        ended."""
        if self.at_home is None or not self.is_mounted:
            return
        half = max(3, self.size.height // 2 - 4)
        self.query_one("#going").styles.height = min(max(3, len(self.at_home.going) + 1), half)
        most = MACHINES_HIGH if self.size.height >= 40 else MACHINES
        text = machines_text(self.at_home.machines, most, self.size.width - 2, self.history)
        curves = curves_text(self.at_home.curves, 6 if self.size.height >= 40 else 2, self.size.width - 2)
        self.query_one("#curves", Static).update(curves)
        self.query_one("#curves").display = bool(curves.plain)
        self.query_one("#machines", Static).update(text)
        self.query_one("#machines-title").display = self.query_one("#machines").display = bool(text.plain)

    def command(self) -> str:
        return f"chessreg status --since {self.app.since:%Y-%m-%dT%H:%M}"

    # -- actions --------------------------------------------------------------------------------------------------

    @property
    def table(self) -> PageTable:
        """The list that has the focus."""
        return self.focused if isinstance(self.focused, PageTable) else self.query_one("#going", PageTable)

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        row = self.table.current
        return row if row is not None and row["id"] is not None else None

    def offers(self, action: Action) -> bool:
        if action.place == "home" and action.method == "begin":
            return self.has_class("-empty") and super().offers(action)
        if (action.method == "other" or action.place == TABLE) and self.has_class("-empty"):
            return False
        if action.place == "home" and action.method == "failure":
            return self.failure is not None and super().offers(action)
        if action.place == "home" and action.method in ("cancel", "retry"):
            ended = self.table.id == "ended"
            row = self.chosen
            if row is None or ended is not (action.method == "retry"):
                return False
            return (not ended or row["cause"] != "finished") and super().offers(action)
        return super().offers(action)

    def action_other(self) -> None:
        self.set_focus(self.query_one("#going" if self.table.id == "ended" else "#ended"))
        self.relabel()

    def action_launch(self) -> None:
        self.app.action_go("launch")

    @property
    def failure(self) -> Row | None:
        """What failed last."""
        ended = self.at_home.ended if self.at_home is not None else ()
        return next((row for row in ended if row["failed"]), None)

    def action_failure(self) -> None:
        if (row := self.failure) is not None:
            self.open_row(row)

    def action_begin(self, what: str) -> None:
        """Do what an empty registry needs first, by the command that does it."""
        if not self.has_class("-empty"):
            return
        if what == "model":
            self.begin(BEGINNINGS[what])
            return
        from tui.screens.dialogs import Confirm, Prompt

        if what == "demo":

            def answered(yes: bool | None) -> None:
                if yes:
                    self.begin(BEGINNINGS["demo"])

            self.app.push_screen(Confirm("Run the demo here? It takes all cores for some minutes."), answered)
            return

        def chosen(path: str | None) -> None:
            if path is not None:
                self.begin(["dataset", "add", os.path.expanduser(path), "--name", "games"])

        hint = "PGN, CSV, Parquet or positions; compressed ones too. Enter adds it as `games`, Esc leaves it"
        self.app.push_screen(Prompt("Add games or positions from the file", hint=hint), chosen)

    @work(group="begin")
    async def begin(self, command: list[str]) -> None:
        if self.busy:
            self.notify(f"chessreg {self.busy} is still at work", severity="warning")
            return
        if self.app.refused_while_lost():
            return
        self.busy = shlex.join(command)
        self.tell_overview()
        self.notify(f"chessreg {self.busy}", title="begun; this screen follows")
        try:
            status, out, err = await self.app.model.run_command(command)
        finally:
            self.busy = ""
            self.tell_overview()
        last = next((line for line in reversed(f"{out}\n{err}".splitlines()) if line.strip()), "")
        ended = f"{'failed' if status else 'done'}: chessreg {shlex.join(command)}"
        self.notify(last, title=ended, severity="error" if status else "information")

    def tell_overview(self) -> None:
        """Count in one line what goes on, and name the command that was begun here."""
        if self.at_home is not None and self.is_attached:
            begun = f" · at work: chessreg {self.busy}" if self.busy else ""
            self.query_one("#overview", Static).update(overview_line(self.at_home) + begun)

    busy = ""

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.relabel()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.open_row(event.row)

    def open_row(self, row: Row) -> None:
        if row["id"] is not None:
            self.app.open("job", row["id"], called(row))
        else:
            self.app.open("run", row["run_id"], called(row))


def overview_line(state: AtHome) -> str:
    ended = [row["cause"] for row in state.ended]
    well = {how: ended.count(how) for how in ("finished", "cancelled", "interrupted")}
    counts = [
        f"{state.jobs['running'] + state.foreground:,} running",
        f"{state.jobs['waiting']:,} waiting",
        f"{well.pop('finished')} finished",
        f"{sum(row['failed'] for row in state.ended)} failed",
        *(f"{number} {how}" for how, number in well.items() if number),
        f"{show.counted(state.counts['run'], 'run')} in all",
    ]
    return " · ".join(counts)


HISTORY, SAMPLE = 60, 5.0  # loads that are kept of a machine, and seconds between looks at them
BEGINNINGS = {"demo": ["demo"], "model": ["import", "checkpoint", "--reference", "--name", "reference"]}
KEYS = """

The same from here:

    D  the demo
    A  games or positions of a file
    M  the bundled model"""


class Loads:
    """The load that a machine reported in the last minutes, oldest first: shares of its cores, memory and GPUs."""

    def __init__(self) -> None:
        self.at: list[Any] = []
        self.shares: dict[str, list[float]] = {}

    def note(self, at: Any, load: Mapping[str, Any]) -> None:
        """Add a load that was reported at this time; one that is known already is left out."""
        if self.at and at == self.at[-1]:
            return
        self.at = [*self.at, at][-HISTORY:]
        used, total = load["memory_used_bytes"], load["memory_bytes"]
        shares = {"cores": load["cpu"] / max(1, load["cores"]), "memory": used / total if used and total else None}
        shares |= {f"GPU {gpu['index']}": gpu["busy"] for gpu in load["gpus"]}
        for name, share in shares.items():
            if share is not None:
                self.shares[name] = [*self.shares.get(name, []), share][-HISTORY:]

    def drawn(self, name: str, width: int) -> str:
        """The last minutes in so many cells; empty before there are two loads."""
        shares = self.shares.get(name, [])
        return f" {show.sparks(shares[-width:], width, 0, 1)}" if len(shares) > 1 else ""


def curves_text(curves: Sequence[Curve], most: int, width: int) -> Text:
    """A line for each running training: its name, its metric as a curve, where it began and what it has come to."""
    text = Text(no_wrap=True, overflow="ellipsis")
    wide = max((len(curve.run) for curve in curves[:most]), default=0)
    for curve in curves[:most]:
        values = [value for _, value in curve.points]
        if not values:
            continue
        text.append("\n" if text.plain else "")
        text.append(curve.run.ljust(wide), style="bold")
        metric, (step, last) = curve.metric.replace("_", " "), curve.points[-1]
        cells = max(8, min(60, width - wide - len(metric) - 44))
        text.append(f"  {metric}  {values[0]:.4g} {show.sparks(values, cells)} {last:.4g} at step {step:,}")
    return text


def machines_text(
    rows: Sequence[Row], most: int, width: int, history: Mapping[str, Loads] = MappingProxyType({})
) -> Text:
    """A machine a line: cores, memory and each GPU as bars where something runs, with the last minutes where there is
    room; else when it was seen last."""
    text = Text(no_wrap=True, overflow="ellipsis")
    wide = max((len(show.host(row["host"])) for row in rows[:most]), default=0)
    for row in rows[:most]:
        text.append("\n" if text.plain else "")
        text.append(show.host(row["host"]).ljust(wide), style="bold")
        text.append("  " + "  ".join(facts_of(row, width >= 120, history.get(row["host"]))))
    if len(rows) > most:
        text.append(f"\n{show.counted(len(rows) - most, 'more machine')}: chessreg machines", style="dim")
    return text


def facts_of(row: Row, roomy: bool, minutes: Loads | None = None) -> list[str]:
    load, cells = row["load"], 10 if roomy else 5

    def past(name: str) -> str:
        return minutes.drawn(name, 20) if minutes is not None and roomy else ""

    if not row["running"]:
        return [f"idle · {show.counted(row['runs'], 'run')} · seen {show.when(row['last_seen'])}"]
    facts = [f"{row['running']} running"]
    if not load:
        return [*facts, "has not told its load yet"]
    busy_cores = show.bar(load["cpu"] / max(1, load["cores"]), cells)
    facts.append(f"cores {busy_cores} {load['cpu']:.1f}/{load['cores']}{past('cores')}")
    used, total = load["memory_used_bytes"], load["memory_bytes"]
    if used is not None and total:
        gibibytes = f"{used / 2**30:.0f}/{total / 2**30:.0f} GiB"
        facts.append(f"memory {show.bar(used / total, cells)} {gibibytes}{past('memory')}")
    for gpu in load["gpus"]:
        name = f"GPU {gpu['index']}" + (f" {gpu['name']}" if roomy else "")
        busy = "" if gpu["busy"] is None else f" {show.bar(gpu['busy'], cells)} {100 * gpu['busy']:.0f} %"
        used, total = gpu["memory_used_bytes"], gpu["memory_bytes"]
        taken = "" if used is None or not total else f" {used / 2**30:.0f}/{total / 2**30:.0f} GiB"
        facts.append(name + busy + taken + past(f"GPU {gpu['index']}"))
    return facts
