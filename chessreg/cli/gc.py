"""`chessreg gc`: bytes that nothing needs any more."""

from __future__ import annotations

from dataclasses import asdict

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh

DAYS = 7.0


@click.command()
@click.option("--remove", is_flag=True, help="Move them into the store's bin; without it they are only listed.")
@click.option("--restore", is_flag=True, help="Take back what is in the bin.")
@click.option("--empty", is_flag=True, help="Remove for good what has been in the bin for --days.")
@click.option("--days", default=DAYS, show_default=True, help="How long the bin keeps things.")
@json_option
@pass_home
def gc(home: Home, remove: bool, restore: bool, empty: bool, days: float) -> None:
    """List bytes that nothing registered needs: leftovers, and what only archived things refer to. Never rows.

    What is removed goes into a bin, from which `--restore` takes it back; `--empty` ends that.

    \b
    Example: chessreg gc --remove
    """
    from chessreg.entities import gc as collector
    from chessreg.errors import BadInputError

    if remove + restore + empty > 1:
        raise BadInputError("--remove, --restore and --empty exclude each other", "give one of them")
    database = fresh(home)
    store = home.session().store
    if empty:
        click.echo(f"{collector.empty(store, days * collector.DAY):,} bytes are gone for good", err=True)
        return
    if restore:
        rows = collector.restore(store)
        done = "are back"
    else:
        rows = collector.find(database, store)
        if remove:
            collector.remove(store, rows)
        done = f"are in the bin; it keeps them {days:g} days or more" if remove else "could go: chessreg gc --remove"
    emit(home, [asdict(row) for row in rows], ["what", "why", "bytes", "path"])
    click.echo(f"{len(rows)} things, {sum(row.bytes for row in rows):,} bytes, {done}", err=True)
