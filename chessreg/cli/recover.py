"""`chessreg recover`: results that could not be taken in, and what to do with them."""

from __future__ import annotations

import time
from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.command()
@click.option("--list", "only_list", is_flag=True, help="List what waits or was set aside, and take nothing in.")
@click.option("--again", is_flag=True, help="Also try those again that were set aside as damaged or not understood.")
@json_option
@pass_home
def recover(home: Home, only_list: bool, again: bool) -> None:
    """Take in the results that wait in the store: each once, also after an outage or a crash.

    Every other command does this by itself when the registry answers; this one says what is left, and why. Exit status
    1 while something waits or is set aside.

    \b
    Example: chessreg recover --list
    """
    from chessreg.runs import ingest

    session = home.session()
    taken: dict[str, Any] = {}
    if not only_list:
        if again:
            ingest.put_back(session.store)
        taken = ingest.take_in_waiting(session.database, session.store)
    left = ingest.waiting(session.database, session.store)
    now = time.time()
    if home.json:
        emit(home, {**taken, "left": left})
    else:
        if taken:
            click.echo(f"{taken['fragments']} fragments taken in, {taken['rows']} rows", err=True)
        if left:
            shown = [{**row, "age": f"{max(now - row['created'], 0):.0f} s" if row["created"] else ""} for row in left]
            emit(home, shown, ["fragment", "state", "run", "rows", "age", "why"])
        else:
            click.echo("nothing waits", err=True)
    if left and not only_list:
        click.get_current_context().exit(1)
