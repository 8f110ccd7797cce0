"""`chessreg status`: running jobs and runs on all machines, and those that ended recently."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from chessreg.cli.base import Home, add_json_option, add_sort_option, open_with_waiting_results, pass_home, print_output
from chessreg.cli.jobs import (
    POLL_SECONDS,
    format_duration,
    has_no_open_job,
    list_job_rows,
    make_readable_row,
    start_supervisor_if_needed,
)
from chessreg.entities.display import format_measured_value, format_signed_change
from chessreg.rows import sort_listed_rows
from chessreg.terminal import make_visible, wrap_drawing_stream

ACTIVE_HEADINGS = {"title": "what", "name": "name", "status": "state", "done": "done", "units": "units",
        "pace": "pace", "executor": "on", "machine": "machine", "why": ""}  # fmt: skip
ENDED_HEADINGS = {"ended_at": "ended", "title": "what", "name": "name", "cause": "how", "answer": "result",
        "done": "done", "units": "units", "took": "took", "machine": "machine", "message": ""}  # fmt: skip


@click.command()
@click.option("--since", default="1d", show_default=True, help="A date, or how long ago: 12h, 7d, 2w.")
@add_json_option
@pass_home
def status(home: Home, since: str) -> None:
    """Show running jobs and runs on all machines, the load of the machines, and recently ended jobs.

    \b
    Example: chessreg status --since 12h
    """
    from chessreg.registry import measures, read
    from chessreg.registry.run_filter import parse_moment
    from chessreg.scheduling import status as job_status

    start_time = parse_moment(since)
    with open_with_waiting_results(home).read() as session:
        active_jobs, ended_jobs = job_status.list_active(session), job_status.list_ended(session, start_time)
        machines = read.list_machines(session)
        answers = measures.compare_with_earlier(
            session, [row["run_id"] for row in ended_jobs[: measures.NEWEST_ENDED_RUNS]]
        )
    ended_jobs = [{**row, "answer": answers.get(row["run_id"])} for row in ended_jobs]
    if home.json:
        print_output(home, {"going": active_jobs, "machines": machines, "since": start_time, "ended": ended_jobs})
        return
    if active_jobs:
        print_output(home, [make_readable_row(row) for row in active_jobs], ACTIVE_HEADINGS)
        for row in machines:
            if row["load"]:
                click.echo(f"{row['host']}: {format_load(row['load'])}")
        click.echo()
    else:
        click.echo("nothing runs\n", err=True)
    if ended_jobs:
        print_output(home, [make_ended_row(row) for row in ended_jobs], ENDED_HEADINGS)
    else:
        click.echo(f"nothing has ended since {start_time:%Y-%m-%d %H:%M} UTC", err=True)


def make_ended_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for display."""
    duration = "" if row["seconds"] is None else format_duration(row["seconds"])
    answer = "" if row["answer"] is None else format_result(row["answer"])
    return {
        **row,
        "answer": answer,
        "took": duration,
        "message": (row["message"] or "").splitlines()[0][:80] if row["message"] else "",
    }


def format_result(answer: dict[str, Any]) -> str:
    """Format a run's result and its difference from the previous run of its kind.

    >>> format_result({"measure": "test %", "value": 93.256, "change": 1.5})
    'test 93.3 % (+1.5)'
    """
    change = "" if answer["change"] is None else f" ({format_signed_change(answer)})"
    return f"{answer['measure'].removesuffix(' %')} {format_measured_value(answer)}{change}"


@click.command()
@add_sort_option
@add_json_option
@pass_home
def machines(home: Home, sort: str | None) -> None:
    """List the machines that ran something: host, processor, GPUs, driver, versions, and when they were last seen.

    A host whose GPU or PyTorch changed is listed once for each. A busy machine also shows its load.

    \b
    Example: chessreg machines
    """
    from chessreg.registry import read

    with open_with_waiting_results(home).read() as session:
        rows = sort_listed_rows(read.list_machines(session), sort)
    if not home.json:
        rows = [
            {
                **row,
                "memory": f"{row['memory_bytes'] / 2**30:.0f} GiB",
                "gpus": format_gpus(row["gpus"]),
                "busy": format_load(row["load"]),
            }
            for row in rows
        ]
    print_output(home, rows, {"host": "host", "cpu": "processor", "cores": "cores", "memory": "memory", "gpus": "GPUs",
                      "driver": "driver", "torch": "torch", "runs": "runs", "running": "running", "busy": "load",
                      "last_seen": "last seen"})  # fmt: skip


def format_load(load: dict[str, Any] | None) -> str:
    """Return the load of a machine as its attempts reported it: busy cores, then each GPU with its memory."""
    if not load:
        return ""
    parts = [f"{load['cpu']:.1f} of {load['cores']} cores"]
    for gpu in load["gpus"]:
        work = "" if gpu["busy"] is None else f"{100 * gpu['busy']:.0f} %, "
        used_bytes, total = gpu["memory_used_bytes"], gpu["memory_bytes"]
        memory_text = "" if used_bytes is None or total is None else f"{used_bytes / 2**30:.0f}/{total / 2**30:.0f} GiB"
        parts.append(f"GPU {gpu['index']} {work}{memory_text}".rstrip(", "))
    return "; ".join(parts)


def format_gpus(names: list[Any]) -> str:
    """Format the GPUs, equal ones together: 4 × NVIDIA A100."""
    counts = {str(name): names.count(name) for name in names}
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())


@click.command()
@click.argument("references", nargs=-1, metavar="[JOB]…")
@add_json_option
@pass_home
def attach(home: Home, references: tuple[str, ...]) -> None:
    """Follow jobs live: progress, rate, time left. Ctrl-C detaches, and the jobs continue.

    --json prints one document per line after each change. Without JOB, all jobs that have not ended are followed.

    \b
    Example: chessreg attach 3f2a1c
    """
    if not references:
        references = tuple(row["id"].hex for row in list_job_rows(home, ()) if not has_no_open_job([row]))
        if not references:
            click.echo("no job waits or runs", err=True)
            return
    list_job_rows(home, references)  # fails for an unknown job before anything is drawn
    try:
        rows = (
            print_changes(home, references)
            if home.json or not sys.stderr.isatty()
            else draw_status_bars(home, references)
        )
    except KeyboardInterrupt:
        click.echo("the jobs continue; chessreg attach follows them again", err=True)
        return
    if any(row["state"] != "complete" for row in rows):
        sys.exit(1)


def watch_rows(home: Home, references: tuple[str, ...]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows repeatedly, until all jobs have ended."""
    while True:
        rows = list_job_rows(home, references)
        yield rows
        if has_no_open_job(rows):
            return
        start_supervisor_if_needed(home, rows)
        time.sleep(POLL_SECONDS)


def print_changes(home: Home, references: tuple[str, ...]) -> list[dict[str, Any]]:
    """Print a line for each job that changed."""
    from chessreg.rows import to_plain

    last_states: dict[Any, Any] = {}
    rows: list[dict[str, Any]] = []
    for rows in watch_rows(home, references):
        for row in rows:
            state = row["state"], row["done"], row["progress"], row["message"]
            if last_states.get(row["id"]) == state:
                continue
            last_states[row["id"]] = state
            if home.json:
                print(json.dumps(to_plain(row), ensure_ascii=False), flush=True)
            else:
                readable = make_readable_row(row)
                progress = f"{row['done']:,}/{row['units']:,}" if row["units"] else ""
                print(
                    " ".join(filter(None, (row["title"], row["state"], progress, readable["pace"], readable["why"]))),
                    flush=True,
                )
    return rows


def draw_status_bars(home: Home, references: tuple[str, ...]) -> list[dict[str, Any]]:
    """Draw a bar for each job."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TextColumn("{task.fields[pace]}", markup=False),
        TextColumn("{task.fields[why]}", style="dim", markup=False),
    )
    rows: list[dict[str, Any]] = []
    with Progress(*columns, console=Console(file=wrap_drawing_stream(sys.stderr))) as progress:
        tasks: dict[Any, Any] = {}
        for rows in watch_rows(home, references):
            for row in map(make_readable_row, rows):
                fields = {"state": row["state"], "pace": row["pace"], "why": make_visible(row["why"] or "")}
                if row["id"] not in tasks:
                    tasks[row["id"]] = progress.add_task(make_visible(row["title"]), total=1.0, **fields)
                progress.update(tasks[row["id"]], completed=row["progress"] or 0.0, **fields)
    return rows
