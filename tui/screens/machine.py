"""One machine: its hardware, its load in the last minutes, and the jobs that run there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn
from tui.data.machine_rows import Loads, compute_cpu_share, compute_memory_share, format_memory_gib, format_meter
from tui.data.pages import ListPages, Row
from tui.screens.base import AppScreen
from tui.screens.jobs import PACE, PROGRESS, SHARD, STATE, UNITS, WHY, get_job_name
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.session import Session

JOB_COLUMNS = (
    TableColumn("name", "what", text=get_job_name, widest=28, least=12, role="key"),
    STATE,
    TableColumn("gpus", "device", text=lambda row: format_devices(row["gpus"]), role="key"),
    PROGRESS, PACE, UNITS, SHARD, WHY,
    TableColumn("ran", "elapsed", right=True, text=lambda row: show.format_seconds(row["ran"])),
)  # fmt: skip


class MachineScreen(AppScreen):
    """A machine and its load. Enter opens a job that runs there."""

    place = "machine"
    BINDINGS = make_bindings("machine")
    DEFAULT_CSS = """
    MachineScreen > #facts, MachineScreen > #load {
        height: auto; max-height: 14; padding: 0 1; border: round $edge; border-title-style: bold;
        border-title-color: $foreground; background: $surface;
    }
    """

    def __init__(self, host: str, loads: Loads) -> None:
        super().__init__()
        self.host, self.loads, self.crumb = host, loads, show.format_host(host)

    def body(self) -> ComposeResult:
        yield Static("", id="facts", markup=False)
        yield Static("", id="load", markup=False)
        yield PageTable(
            JOB_COLUMNS, id="jobs", title="Jobs on this machine", empty="no job of this registry runs on this machine"
        )

    async def fill(self) -> None:
        machine_view = await self.ask("reading the machine", lambda session: read_machine(session, self.host))
        if machine_view is None:
            return
        machine, rows = machine_view
        self.query_one("#facts", Static).update(format_machine_facts(machine))
        self.query_one("#facts", Static).border_title = self.crumb
        self.show_loads(machine)
        table = self.query_one("#jobs", PageTable)
        table.show(ListPages(rows), rows, columns=JOB_COLUMNS, keep=table.loaded)

    def show_loads(self, machine: Row) -> None:
        """Draw the current load of each resource and its last minutes, from 0 to full."""
        load, pane = machine["load"], self.query_one("#load", Static)
        pane.display = bool(load)
        if not load:
            return
        self.loads.note(machine["load_at"], load)
        lines = [("CPU", compute_cpu_share(load), f"{load['cpu']:.1f} of {load['cores']} cores"),
                 ("memory", compute_memory_share(load), format_memory_gib(load))]  # fmt: skip
        lines += [(f"GPU {gpu['index']}", gpu["busy"], format_memory_gib(gpu)) for gpu in load["gpus"]]
        chart_cells = max(10, min(60, self.size.width - 60))
        load_lines = [
            f"{name:<8} {format_meter(part, 12):<18} {load_text:<18} {self.loads.draw_loads(name, chart_cells)}"
            for name, part, load_text in lines
        ]
        pane.update(Text("\n".join(load_lines), no_wrap=True))
        pane.border_title = "Load of the last minutes"

    def command(self) -> str:
        return "chessreg machines"

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        row = event.row
        if row["id"] is not None:
            self.app.open("job", row["id"], get_job_name(row))
        else:
            self.app.open("run", row["run_id"], get_job_name(row))


def read_machine(session: Session, host: str) -> tuple[Row, list[Row]]:
    """Return the most recently seen machine named `host`, and the jobs that run there, by GPU."""
    from chessreg.scheduling import status
    from tui.data.job_rows import add_placements, list_hosts

    with session.database.read() as sql:
        machine = next(row for row in list_hosts(sql) if row["host"] == host)
        jobs = [row for row in add_placements(sql, status.list_active(sql)) if row["at"] == host]
    return machine, sorted(jobs, key=lambda row: (not row["gpus"], row["gpus"]))


def format_devices(gpus: Sequence[int]) -> str:
    """Return the devices of a job.

    >>> format_devices(()), format_devices((0, 1))
    ('cpu', 'GPU 0, 1')
    """
    return f"GPU {', '.join(map(str, gpus))}" if gpus else "cpu"


def format_machine_facts(machine: Row) -> Text:
    """Return the properties of a machine, one per line."""
    gpus: list[Any] = machine["gpus"]
    lines = {
        "processor": f"{machine['cpu']}, {show.format_count(machine['cores'], 'core')}" if machine["cpu"] else "",
        "memory": show.format_size(machine["memory_bytes"]) if machine["memory_bytes"] else "",
        "GPUs": ", ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)),
        "software": " · ".join(
            f"{name} {machine[key]}".lstrip()
            for name, key in (("", "platform"), ("Python", "python"), ("torch", "torch"), ("CUDA", "cuda"),
                              ("driver", "driver"))
            if machine[key]
        ),
        "runs": f"{machine['runs']:,}, seen {show.format_local_time(machine['last_seen'])}",
    }  # fmt: skip
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in lines.items():
        if value:
            text.append("\n" if text.plain else "").append(f"{name:<10} ", style="dim").append(value)
    return text
