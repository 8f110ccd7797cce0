"""Jobs: `chessreg jobs`, `job show`, `cancel`, `retry`, `wait`; `chessreg supervisor`: the process that runs them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import (
    Group,
    Home,
    add_json_option,
    add_sort_option,
    open_with_waiting_results,
    pass_home,
    print_output,
)
from chessreg.errors import ChessregError, NotFoundError
from chessreg.rows import sort_listed_rows

if TYPE_CHECKING:
    from chessreg.registry.tables import Job


LIST_HEADINGS = {"id": "job", "title": "what", "name": "name", "status": "state", "done": "done", "units": "units",
          "pace": "pace", "executor": "on", "machine": "machine", "tries": "tries", "why": ""}  # fmt: skip
POLL_SECONDS = 0.5


@click.command()
@click.argument("references", nargs=-1, metavar="[JOB]…")
@click.option("--all", "everything", is_flag=True, help="Include jobs that ended more than a day ago.")
@add_sort_option
@add_json_option
@pass_home
def jobs(home: Home, references: tuple[str, ...], everything: bool, sort: str | None) -> None:
    """List jobs, newest last: all, or those of a launch or run, by id or name.

    \b
    Example: chessreg jobs
    """
    rows = sort_listed_rows(list_job_rows(home, references, everything), sort, LIST_HEADINGS)
    print_output(home, rows if home.json else [make_readable_row(row) for row in rows], LIST_HEADINGS)
    warn_without_supervisor(home, rows)


def list_job_rows(home: Home, references: tuple[str, ...] | list[str], everything: bool = True) -> list[dict[str, Any]]:
    """Ingest waiting fragments and return the rows of the jobs that `references` name; of all jobs if it is empty.

    Without `everything`, jobs that ended more than a day ago are left out.
    """
    from datetime import timedelta

    from sqlalchemy import or_, select

    from chessreg.registry.tables import Job
    from chessreg.registry.tables.types import get_utc_now
    from chessreg.scheduling import status as stand

    with open_with_waiting_results(home).read() as session:
        if references:
            return stand.read_job_rows(session, find_named_jobs(session, references))
        query = select(Job).order_by(Job.created_at, Job.shard, Job.id)
        if not everything:
            query = query.where(or_(Job.ended_at.is_(None), Job.ended_at > get_utc_now() - timedelta(days=1)))
        return stand.read_job_rows(session, session.scalars(query).all())


def find_named_jobs(session: Any, references: tuple[str, ...] | list[str]) -> list[Job]:
    """Return the jobs of these references, each once."""
    from chessreg.scheduling import queue

    return list({job.id: job for reference in references for job in queue.find_jobs(session, reference)}.values())


def make_readable_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for display: pace, time left, and reason."""
    return {**row, "status": row["state"], "pace": format_pace(row), "why": row["why"][:80]}


def format_pace(row: dict[str, Any]) -> str:
    """`12.3/s, 4 min left`."""
    parts = []
    if row["rate"]:
        rate = row["rate"]
        parts.append(
            f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min" if rate >= 1 / 60 else f"{3600 * rate:.1f}/h"
        )
    if row["seconds_left"] is not None:
        parts.append(f"{format_duration(row['seconds_left'])} left")
    return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Return a duration in its largest fitting unit: `1.5 h`, `12 s`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def warn_without_supervisor(home: Home, rows: list[dict[str, Any]]) -> None:
    """Print a warning if jobs in `rows` are open on this machine and no supervisor is running."""
    from chessreg.scheduling.presence import Presence

    local_rows = [r for r in rows if r["here"] and r["state"] in ("queued", "waiting", "running", "cancelling")]
    if local_rows and not Presence(home.session().store).read_holder():
        click.echo(
            f"no supervisor looks after the jobs of this machine ({len(local_rows)} open): chessreg supervisor start",
            err=True,
        )


@click.group(cls=Group)
def job() -> None:
    """Show one job."""


@job.command()
@click.argument("reference", metavar="JOB")
@add_json_option
@pass_home
def show(home: Home, reference: str) -> None:
    """Show a job in full: its settings, the jobs that it waits for, and every attempt.

    \b
    Example: chessreg job show 3f2a1c
    """
    from chessreg.runs.kind import list_effective_settings
    from chessreg.runs.spec import flatten_settings, format_value
    from chessreg.scheduling import status as stand

    with open_with_waiting_results(home).read() as session:
        details = [stand.read_full_row(session, each) for each in find_named_jobs(session, [reference])]
    if home.json:
        print_output(home, details[0] if len(details) == 1 else details)
        return
    for place, row in enumerate(details):
        if place:
            click.echo()
        columns = ["id", "title", "name", "state", "done", "units", "executor", "machine", "partition",
                   "scheduler_job", "priority", "tries", "why", "host", "group_id", "run_id", "created_at",
                   "started_at", "ended_at", "folder"]  # fmt: skip
        print_output(home, row, columns)
        click.echo("\nsettings")
        values = list_effective_settings(row["kind"], row["spec"]) | flatten_settings(row["execution_options"])
        print_output(home, [{"setting": path, "value": format_value(value)} for path, value in values.items()])
        if row["attempts"]:
            click.echo("\nattempts")
            attempts = [{**each, "state": each["end"]} for each in row["attempts"]]
            print_output(
                home, attempts, ["id", "state", "exit_code", "host", "started_at", "ended_at", "units_done", "message"]
            )


def has_no_open_job(rows: list[dict[str, Any]]) -> bool:
    from chessreg.scheduling.status import FINAL_STATES

    return all(row["state"] in FINAL_STATES for row in rows)


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@add_json_option
@pass_home
def cancel(home: Home, references: tuple[str, ...]) -> None:
    """Cancel queued and running jobs. Complete units are kept, and `retry` queues the jobs again.

    \b
    Example: chessreg cancel 3f2a1c
    """
    from chessreg.scheduling import queue

    jobs = change_jobs(home, references, queue.cancel_jobs)
    print_changed_jobs(home, jobs, "cancelled", "none of these jobs was queued or running")


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@add_json_option
@pass_home
def retry(home: Home, references: tuple[str, ...]) -> None:
    """Queue ended, incomplete jobs again. Complete units are skipped. A job that is being cancelled is queued again
    once it has ended.

    \b
    Example: chessreg retry 3f2a1c
    """
    from chessreg.scheduling import queue

    jobs = change_jobs(home, references, queue.retry_jobs)
    error = "none of these jobs ended incomplete, or another launch of their runs is active"
    print_changed_jobs(home, jobs, "queued again", error)


def change_jobs(home: Home, references: tuple[str, ...], do: Any) -> list[str]:
    """Apply `do` to the jobs and start a supervisor if one is needed; return the ids of the changed jobs."""
    from chessreg.scheduling.presence import Presence
    from store.process import is_this_machine

    with open_with_waiting_results(home).write() as session:
        jobs = do(session, find_named_jobs(session, references))
        ids = [each.id.hex for each in jobs]
        is_local = any(is_this_machine(each.host, each.system_id) for each in jobs)
    if is_local:
        Presence(home.session().store).start(home.registry_reference)
    return ids


def print_changed_jobs(home: Home, ids: list[str], verb: str, nothing: str) -> None:
    """Print the jobs with these ids, each after the word `verb`; without ids, print `nothing`."""
    rows = list_job_rows(home, ids) if ids else []
    if home.json:
        print_output(home, rows)
    for row in rows:
        click.echo(f"{verb}: {row['title']} ({row['id'].hex[-6:]})", err=True)
    if not ids:
        click.echo(nothing, err=True)


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="Stop waiting after this many seconds. Left out: wait until the jobs end.",
)
@add_json_option
@pass_home
def wait(home: Home, references: tuple[str, ...], timeout: float | None) -> None:
    """Wait until jobs have ended. Exit status 0 when all are complete, 1 when one failed or cannot begin.

    \b
    Example: chessreg wait fit && chessreg query "probe accuracy by layer"
    """
    wait_until_over(home, references, timeout, home.json)


def wait_until_over(home: Home, references: tuple[str, ...] | list[str], timeout: float | None, as_json: bool) -> None:
    """Wait until the jobs end, print their rows (as JSON with `as_json`), and exit with 1 unless all are complete.

    Raises ChessregError if jobs are still active after `timeout` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not has_no_open_job(rows := list_job_rows(home, references)):
        if deadline is not None and time.monotonic() > deadline:
            raise ChessregError(f"the jobs have not ended after {timeout:g} s", f"chessreg jobs {' '.join(references)}")
        start_supervisor_if_needed(home, rows)
        time.sleep(POLL_SECONDS)
    if as_json:
        print_output(True, rows)
    else:
        print_output(False, [make_readable_row(row) for row in rows], LIST_HEADINGS)
    if any(row["state"] != "complete" for row in rows):
        sys.exit(1)


def start_supervisor_if_needed(home: Home, rows: list[dict[str, Any]]) -> None:
    """Start a supervisor for jobs of this machine if none is running."""
    from chessreg.scheduling.presence import Presence

    if any(row["here"] for row in rows):
        Presence(home.session().store).start(home.registry_reference)


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@click.option("--set", "to", type=int, metavar="N", help="New priority. Left out: --by gives it.")
@click.option(
    "--by",
    type=int,
    default=0,
    metavar="N",
    help="Change of the priority, which may be negative. Left out: --set gives it.",
)
@add_json_option
@pass_home
def priority(home: Home, references: tuple[str, ...], to: int | None, by: int) -> None:
    """Set the priority of queued jobs: higher ones start first. Running jobs are not affected.

    \b
    Example: chessreg priority 3f2a1c --set 5
    """
    from chessreg.scheduling.queue import set_priority

    if to is None and not by:
        raise click.UsageError("give --set N or --by N")
    with open_with_waiting_results(home).write() as session:
        ids = [job.id.hex for job in set_priority(session, find_named_jobs(session, references), to, by)]
    print_changed_jobs(home, ids, "priority changed", "none of these is queued")


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the log until the jobs end. Ctrl-C detaches; the jobs continue."
)
@click.option("-n", "--lines", type=int, help="Show only the last N lines of each log. Left out: all lines.")
@add_json_option
@pass_home
def logs(home: Home, references: tuple[str, ...], follow: bool, lines: int | None) -> None:
    """Show the logs of jobs, including all tries. With --follow, --json prints one object per line.

    \b
    Example: chessreg logs -f 3f2a1c
    """
    files = find_log_files(home, references)
    contents = {title: path.read_bytes() for title, path in files.items()}
    texts = {title: content.decode(errors="replace").splitlines() for title, content in contents.items()}
    if lines is not None:
        texts = {title: text[-lines:] if lines else [] for title, text in texts.items()}
    if home.json and not follow:
        print_output(home, [{"job": title, "path": files[title], "lines": text} for title, text in texts.items()])
        return
    for title, text in texts.items():
        for line in text:
            print_log_line(home, title if len(files) > 1 else "", line)
    if follow:
        follow_logs(home, references, files, {title: len(content) for title, content in contents.items()})


def print_log_line(home: Home, title: str, line: str) -> None:
    """Print a line of a job's log after the job's title, or as a JSON object."""
    if home.json:
        print(json.dumps({"job": title, "line": line}, ensure_ascii=False), flush=True)
    else:
        print(f"{title}: {line}" if title else line, flush=True)


def find_log_files(home: Home, references: tuple[str, ...]) -> dict[str, Path]:
    """Return each job's title → its log. Raises NotFoundError if no job has begun, or its log is on another machine."""
    from chessreg.scheduling import queue, status

    store = home.session().store
    with open_with_waiting_results(home).read() as session:
        jobs = find_named_jobs(session, references)
        files: dict[str, Path] = {}
        for each in jobs:
            if (path := status.find_log(store, each)) is not None:
                files[f"{queue.format_job_title(each)} ({each.id.hex[-6:]})"] = path
        if not files:
            row = status.read_full_row(session, jobs[0])
            raise NotFoundError(
                f"{row['title']}: {status.explain_missing_log(row)}", f"chessreg job show {row['id'].hex[-6:]}"
            )
    return files


def follow_logs(home: Home, references: tuple[str, ...], files: dict[str, Path], at: dict[str, int]) -> None:
    """Print new lines of the logs until the jobs end.

    `files` are the logs by title. `at` is the byte up to which each was printed, and is updated.
    """
    over = False
    while True:
        for title, path in files.items():
            with path.open("rb") as file:
                file.seek(at[title])
                data = file.read()
            complete_lines = data if over else data[: data.rfind(b"\n") + 1]
            at[title] += len(complete_lines)
            for line in complete_lines.decode(errors="replace").splitlines():
                print_log_line(home, title if len(files) > 1 else "", line)
        if over:
            return
        over = has_no_open_job(list_job_rows(home, references))
        time.sleep(0.0 if over else POLL_SECONDS)
        for title, path in find_log_files(home, references).items():
            files.setdefault(title, path)
            at.setdefault(title, 0)


@click.group(cls=Group)
def supervisor() -> None:
    """Start, stop and show the process that runs this machine's jobs. `chessreg launch` starts it."""


def make_presence(home: Home) -> Any:
    from chessreg.scheduling.presence import Presence

    return Presence(home.session().store)


@supervisor.command()
@pass_home
def start(home: Home) -> None:
    """Start the supervisor in the background, unless it is running. It ends after five minutes without work."""
    presence = make_presence(home)
    has_started = presence.start(home.registry_reference)
    click.echo(
        f"{'started' if has_started else 'it runs already'}: process {(presence.read_holder() or {}).get('pid')}",
        err=True,
    )


@supervisor.command()
@pass_home
def stop(home: Home) -> None:
    """Stop the supervisor and the running jobs of this machine. The jobs are queued again, and complete units are kept.

    The next `launch`, `retry` or `supervisor start` resumes them.
    """
    click.echo("stopped" if make_presence(home).stop() else "no supervisor runs on this machine", err=True)


@supervisor.command()
@add_json_option
@pass_home
def status(home: Home) -> None:
    """Show the supervisor's state, its start, and the number of its jobs."""
    from chessreg.scheduling import queue
    from chessreg.scheduling.status import find_state

    presence = make_presence(home)
    holder = presence.read_holder() or {}
    session = home.session()
    with session.database.read() as sql:
        jobs = queue.read_own_jobs(sql, session.store, *queue.ACTIVE_STATES)
        running_count = sum(find_state(sql, job)[0] in ("running", "cancelling") for job in jobs)
    row = {
        "state": "running" if holder else "not running",
        "host": holder.get("host"),
        "pid": holder.get("pid") if home.json or not holder else str(holder["pid"]),
        "since": holder.get("since"),
        "log": presence.log,
        "jobs_queued": len(jobs) - running_count,
        "jobs_running": running_count,
    }
    print_output(home, row, None if home.json else ["state", "pid", "since", "jobs_queued", "jobs_running", "log"])


@supervisor.command()
@click.option(
    "--idle",
    type=float,
    default=float("inf"),
    help="Stop after this many seconds without work. Left out: run until stopped.",
)
@pass_home
def run(home: Home, idle: float) -> None:
    """Run the supervisor in this terminal (or under systemd, tmux), until Ctrl-C."""
    import os

    from chessreg.scheduling.supervisor import main

    root = Path(home.session().store.root)
    os.environ["CHESSREG_REGISTRY"] = home.registry_reference
    home.close()
    main(root, idle)
