"""`chessreg plot`: the papers' figures from the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import Home, emit, pass_home
from chessreg.cli.query import registry, scope_options

SUFFIXES = ".svg, .png or .pdf"


@click.command()
@click.argument("name", required=False)
@click.option("--list", "list_", is_flag=True, help="List the plots.")
@click.option("--output", "--out", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help=f"Where to draw it ({SUFFIXES})  [default: the plot's name, .svg]")  # fmt: skip
@scope_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_home
def plot(
    home: Home, name: str | None, list_: bool, output: Path | None, as_json: bool, scoring: str, **scope: Any
) -> None:
    """Draw the plot NAME (title or alias, --list) of what the registry holds, with 95 % intervals.

    \b
    chessreg plot "win rate by level" --checkpoint reference
    chessreg plot "probe accuracy by layer" --output figure3.png
    """
    from chessreg.queries.catalogue import find_plot

    as_json = as_json or home.json
    if list_:
        show_list(as_json)
        return
    if name is None:
        raise click.UsageError("give the NAME of a plot; --list shows what there is")
    entry, found = find_plot(name)
    target = output or Path(f"{found.title.replace(' ', '-')}.svg")
    from chessreg.queries import plot as plots
    from chessreg.queries.ask import plotted
    from chessreg.queries.render import footer
    from chessreg.queries.scope import Scope

    plots.check_suffix(target)
    result = plotted(registry(home), entry, found, Scope.of(scope), scoring=scoring)
    plots.write(plots.draw(result, found), target)
    if as_json:
        emit(True, {"file": str(target), "plot": found.title, "query": entry.title, "points": len(result)})
        return
    for note in result.notes:
        click.echo(note, err=True)
    click.echo(footer(result), err=True)
    click.echo(str(target))


def show_list(as_json: bool) -> None:
    from chessreg.queries.catalogue import entries

    rows = [
        {"title": p.title, "aliases": list(p.aliases), "query": e.title, "x": p.x, "y": p.y, "form": p.form}
        for e in entries()
        for p in e.plots
    ]
    if as_json:
        emit(True, rows)
        return
    width = max(len(str(row["title"])) for row in rows)
    for row in sorted(rows, key=lambda row: str(row["title"])):
        click.echo(f'{row["title"]:<{width}}  {row["y"]} by {row["x"]} of "{row["query"]}"')
