"""`chessreg cache`: activation caches."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh

LISTED = {
    "run_id": "run", "name": "name", "checkpoint": "checkpoint", "rows": "rows", "d_model": "d model", "dtype": "dtype",
    "hook_points": "hook points", "bytes": "bytes",
}  # fmt: skip


@click.group()
def cache() -> None:
    """Activation caches: list, show, verify. `chessreg run cache` makes them."""


@cache.command("list")
@json_option
@pass_home
def list_(home: Home) -> None:
    """List the activation caches, one line a run.

    \b
    Example: chessreg cache list
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        rows = listing.caches(session)
    shown = rows if home.json else [{**row, "hook_points": span(row["hook_points"])} for row in rows]
    emit(home, shown, LISTED)


@cache.command()
@click.argument("reference", metavar="RUN")
@json_option
@pass_home
def show(home: Home, reference: str) -> None:
    """Show one cache, with the groups of arrays that it is joined from.

    \b
    Example: chessreg cache show reference-fit
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        (row,) = listing.caches(session, reference)
    emit(home, row, [key for key in row if key != "groups"])
    if not home.json:
        for group in row["groups"]:
            click.echo(f"units {group['start']}–{group['stop'] - 1}  {group['rows']:,} rows  {group['path']}")


@cache.command()
@click.argument("reference", metavar="RUN")
@json_option
@pass_home
def verify(home: Home, reference: str) -> None:
    """Read every byte of a cache again and compare it with what was published.

    \b
    Example: chessreg cache verify reference-fit
    """
    from chessreg.entities.cache import verify_cache

    session = home.session()
    found = verify_cache(session.database, session.store, reference)
    emit(home, found, ["run_id", "groups", "rows", "bytes", "seconds"])
    click.echo("every byte is as it was published", err=True)


def span(hook_points: list[str]) -> str:
    """Hook points in a table's cell: the first and the last."""
    return hook_points[0] if len(hook_points) == 1 else f"{hook_points[0]} … {hook_points[-1]} ({len(hook_points)})"
