"""Rows for machines and their GPUs, with jobs and recent load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tui import show
from tui.columns import TableColumn, Tone, choose_state_tone
from tui.data.pages import Row

LOAD_HISTORY_SAMPLES = 60  # loads that are kept of a machine
Line = dict[str, Any]  # of the grid
FULL_MEMORY_SHARE = 0.95  # share of a memory from which it is marked
HISTORY_MIN_WIDTH_CELLS = 150  # cells of a terminal from which the last minutes are shown


class Loads:
    """The recent load of one machine, oldest first: shares of its cores, memory and GPUs."""

    def __init__(self) -> None:
        self.at: list[Any] = []
        self.shares: dict[str, list[float]] = {}

    def note(self, at: Any, load: Mapping[str, Any]) -> None:
        """Add a load reported at `at`. A load that was already added is ignored."""
        if self.at and at == self.at[-1]:
            return
        self.at = [*self.at, at][-LOAD_HISTORY_SAMPLES:]
        shares = {"CPU": compute_cpu_share(load), "memory": compute_memory_share(load)}
        shares |= {f"GPU {gpu['index']}": gpu["busy"] for gpu in load["gpus"]}
        for name, value in shares.items():
            if value is not None:
                self.shares[name] = [*self.shares.get(name, []), value][-LOAD_HISTORY_SAMPLES:]

    def draw_loads(self, name: str, width: int) -> str:
        """Return a sparkline of `width` cells, or an empty string if there are fewer than two loads."""
        shares = self.shares.get(name, [])
        return show.draw_sparkline(shares[-width:], width, 0, 1) if len(shares) > 1 else ""


def compute_memory_share(memory: Mapping[str, Any]) -> float | None:
    """Return the used share of a memory, or None if it is unknown."""
    used_bytes, total = memory["memory_used_bytes"], memory["memory_bytes"]
    return used_bytes / total if used_bytes is not None and total else None


def compute_cpu_share(load: Mapping[str, Any]) -> float:
    """Return the share of the cores that are busy."""
    return float(load["cpu"] / max(1, load["cores"]))


def format_memory_gib(memory: Mapping[str, Any]) -> str:
    used_bytes, total = memory["memory_used_bytes"], memory["memory_bytes"]
    return "" if used_bytes is None or not total else f"{used_bytes / 2**30:.0f}/{total / 2**30:.0f} GiB"


def label_tone(row: Row) -> Tone:
    return "key" if row["label"] == show.format_host(row["host"]) else "detail"


def get_busy_tone(row: Row) -> Tone:
    return "running" if row["busy"] and row["busy"] > 0.02 else "warn" if row["state"] and row["device"] else "detail"


def get_memory_tone(row: Row) -> Tone:
    return "warn" if row["memory"] is not None and row["memory"] >= FULL_MEMORY_SHARE else "queued"


def get_job_tone(row: Row) -> Tone:
    return choose_state_tone(row["state"]) if row["state"] else "good" if row["job"] == "free" else "detail"


def format_meter(value: float | None, cells: int, suffix: str = "") -> str:
    """Return a bar with its value, or an empty string if the value is unknown."""
    return "" if value is None else f"{show.draw_bar(value, cells)} {suffix or f'{100 * value:.0f} %':>4}"


def make_gpu_grid(
    machines: Sequence[Row], active_jobs: Sequence[Row], history: Mapping[str, Loads], width: int
) -> tuple[Sequence[TableColumn], list[Line]]:
    """Return columns and rows with one row per GPU: utilization, memory and job.

    `active_jobs` are job rows, `history` the recent loads by host, and `width` the cells available. A machine
    without GPUs, or without running jobs, has one row. CPU and memory of a machine follow its name.
    """
    cells = 16 if width >= HISTORY_MIN_WIDTH_CELLS else 8
    columns = (
        TableColumn("label", "machine", widest=24, tone=label_tone),
        TableColumn("device", "GPU", right=True, role="detail"),
        TableColumn("past", "last minutes", tone=get_busy_tone, role="key"),
        TableColumn("busy", "busy", text=lambda row: format_meter(row["busy"], cells), tone=get_busy_tone, whole=True),
        TableColumn("memory", "memory", text=lambda row: format_meter(row["memory"], cells, row["memory_told"]),
               tone=get_memory_tone, whole=True),
        TableColumn("job", "job", widest=40, least=16, tone=get_job_tone),
        TableColumn("ran", "elapsed", right=True, text=lambda row: show.format_seconds(row["ran"])),
        TableColumn("left", "left", right=True, text=lambda row: show.format_seconds(row["left"])),
    )  # fmt: skip
    rows = [
        line for machine in sort_machines(machines) for line in make_gpu_lines(machine, active_jobs, history, cells)
    ]
    return [c for c in columns if width >= HISTORY_MIN_WIDTH_CELLS or c.field != "past"], rows


def sort_machines(machines: Sequence[Row]) -> list[Row]:
    """Return machines with running work first, then by name, so that rows do not move when a machine checks in."""
    return sorted(machines, key=lambda row: (not row["running"], row["host"]))


def make_gpu_lines(machine: Row, active_jobs: Sequence[Row], history: Mapping[str, Loads], cells: int) -> list[Line]:
    """Return the lines of a machine: one for each GPU and for each further job, with loads and their history.

    A machine without a GPU has a line for the CPU. `cells` is the width of the meters.
    """
    host, load = machine["host"], machine["load"] if machine["running"] else None
    host_jobs = [row for row in active_jobs if row["at"] == host]
    if not load:
        return [
            {
                **make_blank_line(host, show.format_host(host)),
                "job": describe_idle_machine(machine) if not host_jobs else "",
            }
            | make_job_cells(host_jobs[:1])
        ]
    loads = history.get(host, Loads())
    total: Line = {
        "busy": compute_cpu_share(load),
        "memory": compute_memory_share(load),
        "memory_told": format_memory_gib(load),
    }
    gpus = load["gpus"]
    if not gpus:
        first_line = {
            **make_blank_line(host, show.format_host(host)),
            **total,
            "device": "cpu",
            "past": loads.draw_loads("CPU", 12),
        }
        other_lines = [
            {**make_blank_line(host, ""), "id": f"{host} {n}"} | make_job_cells([job])
            for n, job in enumerate(host_jobs[1:])
        ]
        return [first_line | make_job_cells(host_jobs[:1]), *other_lines]
    labels = [show.format_host(host)]
    if len(gpus) > 3:
        labels.append(f"{len(gpus)} × {gpus[0]['name'].removeprefix('NVIDIA ')}")
    labels += [f"CPU {format_meter(total['busy'], cells)}", f"mem {format_meter(total['memory'], cells)}"]
    by_gpu: dict[int, list[Row]] = {}  # a job on several GPUs is on the line of each
    for row in host_jobs:
        for number in row["gpus"] or (-1,):
            by_gpu.setdefault(number, []).append(row)
    rows: list[Line] = []
    for gpu in gpus:
        jobs = by_gpu.pop(gpu["index"], [])
        rows.append(
            {
                **make_blank_line(host, ""),
                "device": str(gpu["index"]),
                "busy": gpu["busy"],
                "memory": compute_memory_share(gpu),
                "memory_told": format_memory_gib(gpu),
                "past": loads.draw_loads(f"GPU {gpu['index']}", 12),
                "job": "free" if not gpu["busy"] and (compute_memory_share(gpu) or 0.0) < 0.05 else "used by others",
            }
            | make_job_cells(jobs[:1])
        )
        rows += [make_blank_line(host, "") | make_job_cells([job]) for job in jobs[1:]]
    rows += [
        {**make_blank_line(host, ""), "device": "cpu"} | make_job_cells([job])
        for jobs in by_gpu.values()
        for job in jobs
    ]
    rows += [make_blank_line(host, "") for _ in range(len(labels) - len(rows))]
    labels += [""] * (len(rows) - len(labels))
    labelled_rows = enumerate(zip(rows, labels, strict=True))
    return [{**row, "label": label, "id": f"{host} {n}"} for n, (row, label) in labelled_rows]


def count_gpus(machines: Sequence[Row], active_jobs: Sequence[Row]) -> tuple[int, int]:
    """Return how many GPUs this registry's jobs use, and how many the machines with running work have."""
    loads = {row["host"]: row["load"]["gpus"] for row in machines if row["running"] and row["load"]}
    used_gpus = {(row["at"], number) for row in active_jobs if row["at"] in loads for number in row["gpus"]}
    return len(used_gpus), sum(map(len, loads.values()))


def make_blank_line(host: str, label: str) -> Line:
    """Return a line of the table of machines with empty cells."""
    return {
        "id": f"{host} ", "host": host, "label": label, "device": "", "busy": None, "memory": None, "memory_told": "",
        "past": "", "job": "", "state": "", "ran": None, "left": None,
    }  # fmt: skip


def make_job_cells(jobs: Sequence[Row]) -> Line:
    """Return the cells that describe the job of a row."""
    if not jobs:
        return {}
    (job,) = jobs
    return {
        "job": f"● {job['name'] or job['title']}",
        "state": job["state"],
        "left": job["seconds_left"],
        "ran": job.get("ran"),
    }


def describe_idle_machine(machine: Row) -> str:
    if machine["running"]:
        return f"{machine['running']} running, not checked in yet"
    return f"idle · {show.format_count(machine['runs'], 'run')} · seen {show.format_local_time(machine['last_seen'])}"


def make_machine_table(
    machines: Sequence[Row], active_jobs: Sequence[Row], width: int
) -> tuple[Sequence[TableColumn], list[Line]]:
    """Return columns and rows with one row per machine: GPU utilization, memory, CPU and jobs."""
    cells = 8 if width >= 100 else 5
    columns = (
        TableColumn("label", "machine", widest=20, least=6, role="key"),
        TableColumn("gpus", "GPUs", tone=get_busy_tone, whole=True),
        TableColumn("device", "used", right=True, role="detail"),
        TableColumn(
            "memory", "memory", text=lambda row: format_meter(row["memory"], cells), tone=get_memory_tone, whole=True
        ),
        TableColumn("busy", "CPU", text=lambda row: format_meter(row["busy"], cells), tone=get_busy_tone, whole=True),
        TableColumn("job", "jobs", widest=60, least=10, tone=get_job_tone),
    )
    rows: list[Line] = []
    for machine in sort_machines(machines):
        host, load = machine["host"], machine["load"] if machine["running"] else None
        jobs = [row for row in active_jobs if row["at"] == host]
        row = {**make_blank_line(host, show.format_host(host)), "gpus": "", "id": host}
        names = ", ".join(f"● {job['name'] or job['title']}" for job in jobs)
        row["job"], row["state"] = names or describe_idle_machine(machine), "running" if jobs else ""
        if load:
            row |= {"busy": compute_cpu_share(load), "memory": compute_memory_share(load)}
            gpus = load["gpus"]
            row["gpus"] = "".join(show.draw_sparkline([gpu["busy"] or 0.0], 1, 0, 1) for gpu in gpus)
            used_count = len({number for job in jobs for number in job["gpus"]} & {gpu["index"] for gpu in gpus})
            row["device"] = f"{used_count} of {len(gpus)}" if gpus else ""
        rows.append(row)
    return columns, rows
