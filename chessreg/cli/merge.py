"""`chessreg merge`: what another registry has, here too."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.command()
@click.argument("other")
@json_option
@pass_home
def merge(home: Home, other: str) -> None:
    """Take in the runs, results and words of another registry. A second time does nothing; nothing is counted twice.

    OTHER is a registry (a file or a URL), a folder with one (`.chessreg`, or what `chessreg push --rows` wrote), or a
    folder of fragments. Results that differ from those here are kept aside: `chessreg runs conflicts`. Bytes stay
    where they are; `chessreg pull` fetches them.

    \b
    Example: chessreg merge /mnt/gpubox/.chessreg
    """
    from chessreg.entities.merge import merge as merged

    session = home.session()
    report = merged(session.database, session.store, other)
    if home.json:
        emit(home, report.as_dict())
        return
    if not report.facts and not report.results:
        click.echo("nothing new", err=True)
    for name, count in report.facts.items():
        click.echo(f"  {count:,} {name}", err=True)
    click.echo(f"{report.results:,} new results of {report.runs:,} runs; {report.repeated:,} were here", err=True)
    if report.conflicts:
        click.echo(f"{report.conflicts:,} differ from what is here: chessreg runs conflicts", err=True)
