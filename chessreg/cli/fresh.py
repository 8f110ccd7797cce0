"""Before runs and what they made are listed: take in what waits, and see which attempts are still alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home

if TYPE_CHECKING:
    from chessreg.registry.database import Database


def fresh(home: Home) -> Database:
    """The registry with every waiting fragment taken in. One that cannot be written is listed as it is."""
    from chessreg.errors import ChessregError
    from chessreg.jobs.ingest import ingest
    from chessreg.jobs.runner import mark_dead

    session = home.session()
    try:
        ingest(session.database, session.store)
        mark_dead(session.database)
    except ChessregError as error:
        click.echo(f"not up to date: {error.message}", err=True)
    return session.database
