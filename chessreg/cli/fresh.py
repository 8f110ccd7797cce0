"""Before runs and what they made are listed: take in what waits, and see which attempts are still alive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home

if TYPE_CHECKING:
    from chessreg.registry.database import Database


def fresh(home: Home) -> Database:
    """The registry with every waiting fragment taken in. One that cannot be written is listed as it is."""
    from chessreg.errors import ChessregError
    from chessreg.runs.ingest import ingest
    from chessreg.runs.watch import Watcher

    session, began = home.session(), time.monotonic()
    watcher = Watcher(session.store)
    try:
        ingest(session.database, session.store)
        watcher.look(session.database, began)
    except ChessregError as error:
        watcher.forget()
        click.echo(f"not up to date: {error.message}", err=True)
    return session.database
