"""`chessreg priority`: which queued jobs start first."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.cli.jobs import found, tell


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="JOB…")
@click.option("--to", type=int, metavar="N", help="The priority that they get.")
@click.option("--by", type=int, default=0, metavar="N", help="How much more than theirs now; may be negative.")
@json_option
@pass_home
def priority(home: Home, references: tuple[str, ...], to: int | None, by: int) -> None:
    """Let queued jobs start before others or after them: higher ones first. Running jobs are left alone.

    \b
    Example: chessreg priority 3f2a1c --to 5
    """
    from chessreg.scheduling.queue import prioritise

    if to is None and not by:
        raise click.UsageError("say which: --to N or --by N")
    with fresh(home).write() as session:
        ids = [job.id.hex for job in prioritise(session, found(session, references), to, by)]
    tell(home, ids, "priority changed", "none of these is queued")
