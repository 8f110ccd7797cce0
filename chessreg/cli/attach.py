"""`chessreg attach`: jobs followed live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from chessreg.cli.base import Home, json_option, pass_home
from chessreg.cli.jobs import POLL_SECONDS, is_over, job_status, shown, warn_once


@click.command()
@click.argument("references", nargs=-1, metavar="[JOB]…")
@json_option
@pass_home
def attach(home: Home, references: tuple[str, ...]) -> None:
    """Follow jobs live: progress, rate, time left. Ctrl-C stops only the looking; the jobs go on.

    --json prints one document a line, whenever something changed. Without a JOB: all that are not over.

    \b
    Example: chessreg attach 3f2a1c
    """
    if not references:
        references = tuple(row["id"].hex for row in job_status(home, ()) if not is_over([row]))
        if not references:
            click.echo("no job waits or runs", err=True)
            return
    job_status(home, references)  # says so before anything is drawn when there is no such job
    try:
        rows = lines(home, references) if home.json or not sys.stderr.isatty() else bars(home, references)
    except KeyboardInterrupt:
        click.echo("the jobs go on; chessreg attach follows them again", err=True)
        return
    if any(row["state"] != "finished" for row in rows):
        sys.exit(1)


def changes(home: Home, references: tuple[str, ...]) -> Iterator[list[dict[str, Any]]]:
    """The rows again and again, until all is over."""
    while True:
        rows = job_status(home, references)
        yield rows
        if is_over(rows):
            return
        warn_once(home, rows)
        time.sleep(POLL_SECONDS)


def lines(home: Home, references: tuple[str, ...]) -> list[dict[str, Any]]:
    """A line for each job that changed."""
    from chessreg.cli.output import plain

    last: dict[Any, Any] = {}
    rows: list[dict[str, Any]] = []
    for rows in changes(home, references):
        for row in rows:
            seen = row["state"], row["done"], row["progress"], row["message"]
            if last.get(row["id"]) == seen:
                continue
            last[row["id"]] = seen
            if home.json:
                print(json.dumps(plain(row), ensure_ascii=False), flush=True)
            else:
                people = shown(row)
                of = f"{row['done']:,}/{row['units']:,}" if row["units"] else ""
                print(
                    " ".join(filter(None, (row["title"], row["state"], of, people["pace"], people["why"]))), flush=True
                )
    return rows


def bars(home: Home, references: tuple[str, ...]) -> list[dict[str, Any]]:
    """A bar for each job, on a screen."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}"),
        TextColumn("{task.fields[pace]}"),
        TextColumn("[dim]{task.fields[why]}"),
    )
    rows: list[dict[str, Any]] = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[Any, Any] = {}
        for rows in changes(home, references):
            for row in map(shown, rows):
                fields = {"state": row["state"], "pace": row["pace"], "why": row["why"]}
                if row["id"] not in tasks:
                    tasks[row["id"]] = progress.add_task(row["title"], total=1.0, **fields)
                progress.update(tasks[row["id"]], completed=row["progress"] or 0.0, **fields)
    return rows
