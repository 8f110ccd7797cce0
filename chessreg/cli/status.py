"""`chessreg status`: what runs now, everywhere, and what has ended since."""

from __future__ import annotations

from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.cli.jobs import duration, shown

GOING = {"title": "what", "name": "name", "status": "state", "done": "done", "units": "units", "pace": "pace",
         "executor": "on", "host": "host", "why": ""}  # fmt: skip
ENDED = {"ended_at": "ended", "title": "what", "name": "name", "cause": "how", "done": "done", "units": "units",
         "took": "took", "host": "host", "message": ""}  # fmt: skip


@click.command()
@click.option("--since", default="1d", show_default=True, help="A date, or how long ago: 12h, 7d, 2w.")
@json_option
@pass_home
def status(home: Home, since: str) -> None:
    """Say what runs now, here and elsewhere, how busy the machines are, and what finished or broke since.

    \b
    Example: chessreg status --since 12h
    """
    from chessreg.cli.machines import busy
    from chessreg.registry import read as listing
    from chessreg.registry.moment import moment
    from chessreg.scheduling import status as job_status

    after = moment(since)
    with fresh(home).read() as session:
        going, ended = job_status.going(session), job_status.ended(session, after)
        machines = listing.machines(session)
    if home.json:
        emit(home, {"going": going, "machines": machines, "since": after, "ended": ended})
        return
    if going:
        emit(home, [shown(row) for row in going], GOING)
        for row in machines:
            if row["load"]:
                click.echo(f"{row['host']}: {busy(row['load'])}")
        click.echo()
    else:
        click.echo("nothing runs\n", err=True)
    if ended:
        emit(home, [told(row) for row in ended], ENDED)
    else:
        click.echo(f"nothing has ended since {after:%Y-%m-%d %H:%M} UTC", err=True)


def told(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people."""
    took = "" if row["seconds"] is None else duration(row["seconds"])
    return {**row, "took": took, "message": (row["message"] or "").splitlines()[0][:80] if row["message"] else ""}
