"""Home: what runs here and elsewhere, how busy the machines are, and what has ended since one last looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import Action, bindings
from tui.columns import Column
from tui.data.pages import PAGE, Listed, Row
from tui.screens.jobs import HOST, ON, PACE, PROGRESS, SHARD, STATE, UNITS, WHY, JobActionsScreen
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from tui.data.job_rows import AtHome

MACHINES, MACHINES_HIGH = 3, 8  # that are told of, in a low and in a high terminal


def called(row: Mapping[str, Any]) -> str:
    return row["name"] or row["title"]


def how(row: Mapping[str, Any]) -> str:
    """How it ended, told by a mark too."""
    return f"{'✓' if row['cause'] == 'finished' else '✗'} {row['cause'].replace('_', ' ')}"


NAME = Column("name", "what", text=called, widest=28, least=12)
KIND = Column("kind", "kind", widest=16)
GOING = (NAME, KIND, SHARD, STATE, PROGRESS, UNITS, PACE, HOST, WHY, ON)
ENDED = (
    Column("ended_at", "ended", text=lambda row: show.when(row["ended_at"]), least=16),
    NAME,
    Column("cause", "how", text=how, least=10),
    KIND,
    UNITS,
    Column("seconds", "took", text=lambda row: show.duration(row["seconds"])),
    HOST,
    Column("message", "", widest=90, least=12),
)


class HomeScreen(JobActionsScreen):
    """Two lists: Tab goes from one to the other, Enter opens the job or the run."""

    place = "home"
    crumb = "home"
    AUTO_FOCUS = "#going"
    BINDINGS = bindings("home")
    DEFAULT_CSS = """
    HomeScreen > .title { height: 1; padding: 0 1; background: $panel; color: $text-accent; text-style: bold; }
    HomeScreen > #overview { height: 1; padding: 0 1; color: $text-muted; }
    HomeScreen > #machines { height: auto; padding: 0 1; }
    HomeScreen > #nothing { height: auto; padding: 2 4; display: none; }
    HomeScreen > #ended { height: 1fr; }
    HomeScreen.-empty > #nothing { display: block; }
    HomeScreen.-empty > .title, HomeScreen.-empty > PageTable, HomeScreen.-empty > #machines { display: none; }
    """

    at_home: AtHome | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="overview", markup=False)
        yield Static("", id="nothing", markup=False)
        yield Static("Machines", classes="title", id="machines-title", markup=False)
        yield Static("", id="machines", markup=False)
        yield Static("Runs now, and waits", classes="title", markup=False)
        yield PageTable(GOING, id="going", empty="nothing runs: n launches an experiment")
        yield Static("", classes="title", id="ended-title", markup=False)
        yield PageTable(ENDED, id="ended", empty="nothing has ended since: 4 shows all runs, 2 all jobs")

    async def fill(self) -> None:
        from tui.data.job_rows import at_home

        since = self.app.since
        state = await self.ask("reading what goes on", lambda session: at_home(session, since))
        if state is None:
            return
        self.at_home = state
        self.set_class(not state.counts["run"] and not state.going and not state.ended, "-empty")
        self.query_one("#overview", Static).update(overview_line(state))
        if self.has_class("-empty"):
            from tui.screens.runs import nothing_yet

            self.query_one("#nothing", Static).update(nothing_yet(state.counts))
        first_time = not self.query_one("#going", PageTable).loaded
        for name, columns, rows in (("#going", GOING, state.going), ("#ended", ENDED, state.ended)):
            table = self.query_one(name, PageTable)
            table.show(Listed(rows), rows[:PAGE], columns=columns, keep=table.loaded)
        self.query_one("#ended-title", Static).update(f"Ended {self.app.since_told}")
        self.share_out()
        if first_time and not state.going and state.ended:
            self.set_focus(self.query_one("#ended"))
        self.relabel()

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
        text = machines_text(self.at_home.machines, most, self.size.width - 2)
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

    def on_page_table_moved(self, event: PageTable.Moved) -> None:
        self.relabel()

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        row = event.row
        if row["id"] is not None:
            self.app.open("job", row["id"], called(row))
        else:
            self.app.open("run", row["run_id"], called(row))


def overview_line(state: AtHome) -> str:
    states = [row["state"] for row in state.going]
    running = sum(state in ("running", "cancelling") for state in states)
    ended = [row["cause"] for row in state.ended]
    finished, cancelled = ended.count("finished"), ended.count("cancelled")
    counts = [
        f"{running} running",
        f"{len(states) - running} waiting",
        f"{finished} finished",
        f"{len(ended) - finished - cancelled} failed",
        *([f"{cancelled} cancelled"] if cancelled else []),
        f"{show.counted(state.counts['run'], 'run')} in all",
    ]
    return " · ".join(counts)


def machines_text(rows: Sequence[Row], most: int, width: int) -> Text:
    """A machine a line: cores, memory and each GPU as bars where something runs, else when it was seen last."""
    text = Text(no_wrap=True, overflow="ellipsis")
    wide = max((len(show.host(row["host"])) for row in rows[:most]), default=0)
    for row in rows[:most]:
        text.append("\n" if text.plain else "")
        text.append(show.host(row["host"]).ljust(wide), style="bold")
        text.append("  " + "  ".join(facts_of(row, width >= 120)))
    if len(rows) > most:
        text.append(f"\n{show.counted(len(rows) - most, 'more machine')}: chessreg machines", style="dim")
    return text


def facts_of(row: Row, roomy: bool) -> list[str]:
    load, cells = row["load"], 10 if roomy else 5
    if not row["running"]:
        return [f"idle · {show.counted(row['runs'], 'run')} · seen {show.when(row['last_seen'])}"]
    facts = [f"{row['running']} running"]
    if not load:
        return [*facts, "has not told its load yet"]
    facts.append(f"cores {show.bar(load['cpu'] / max(1, load['cores']), cells)} {load['cpu']:.1f}/{load['cores']}")
    used, total = load["memory_used_bytes"], load["memory_bytes"]
    if used is not None and total:
        facts.append(f"memory {show.bar(used / total, cells)} {used / 2**30:.0f}/{total / 2**30:.0f} GiB")
    for gpu in load["gpus"]:
        name = f"GPU {gpu['index']}" + (f" {gpu['name']}" if roomy else "")
        busy = "" if gpu["busy"] is None else f" {show.bar(gpu['busy'], cells)} {100 * gpu['busy']:.0f} %"
        used, total = gpu["memory_used_bytes"], gpu["memory_bytes"]
        taken = "" if used is None or not total else f" {used / 2**30:.0f}/{total / 2**30:.0f} GiB"
        facts.append(name + busy + taken)
    return facts
