"""`chessreg supervisor`: the process that looks after this machine's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.group()
def supervisor() -> None:
    """The process that looks after this machine's jobs: start, stop, status, run. `chessreg launch` starts it."""


def presence(home: Home) -> Any:
    from chessreg.scheduling.presence import Presence

    return Presence(home.session().store)


@supervisor.command()
@pass_home
def start(home: Home) -> None:
    """Start it in a session of its own, unless it runs. It ends by itself after five minutes without work."""
    here = presence(home)
    began = here.start(home.registry_url)
    click.echo(f"{'started' if began else 'it runs already'}: process {(here.who() or {}).get('pid')}", err=True)


@supervisor.command()
@pass_home
def stop(home: Home) -> None:
    """End it and the jobs that run on this machine; they go back to the queue, and what is complete is kept.

    The next `launch`, `retry` or `supervisor start` goes on with them.
    """
    click.echo("stopped" if presence(home).stop() else "no supervisor runs here", err=True)


@supervisor.command()
@json_option
@pass_home
def status(home: Home) -> None:
    """Say whether it runs, since when, and what is in its queue."""
    from chessreg.scheduling import queue

    here = presence(home)
    holder = here.who() or {}
    session = home.session()
    with session.database.read() as sql:
        counts = {state.value: len(queue.mine(sql, session.store, state)) for state in queue.ACTIVE}
    row = {
        "state": "running" if holder else "not running",
        "host": holder.get("host"),
        "pid": holder.get("pid") if home.json or not holder else str(holder["pid"]),
        "since": holder.get("since"),
        "log": here.log,
        "jobs_queued": counts["queued"],
        "jobs_running": counts["running"],
    }
    emit(home, row, None if home.json else ["state", "pid", "since", "jobs_queued", "jobs_running", "log"])


@supervisor.command()
@click.option("--idle", type=float, default=float("inf"), help="End after so many seconds without work.")
@pass_home
def run(home: Home, idle: float) -> None:
    """Be the supervisor in this terminal (or under systemd, tmux), until Ctrl-C."""
    import os

    from chessreg.scheduling.supervisor import main

    root = Path(home.session().store.root)
    os.environ["CHESSREG_REGISTRY"] = home.registry_url
    home.close()
    main(root, idle)
