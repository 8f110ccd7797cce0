"""`chessreg lineage`: what a thing was made from, and what was made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home

if TYPE_CHECKING:
    from rich.tree import Tree

    from chessreg.registry.lineage import Branch

COLOURS = {"invalid": "red", "stale": "yellow", "missing": "red", "failed": "red"}  # the others are cyan


@click.command()
@click.argument("reference", metavar="RUN|DATASET|CHECKPOINT")
@click.option("--up", "direction", flag_value="up", help="Only what it was made from.")
@click.option("--down", "direction", flag_value="down", help="Only what was made from it.")
@json_option
@pass_home
def lineage(home: Home, reference: str, direction: str | None) -> None:
    """Show a run, dataset or checkpoint with what it was made from and what was made from it, as a tree.

    \b
    Example: chessreg lineage reference-board
    """
    from chessreg.registry.lineage import find, tree

    with fresh(home).read() as session:
        node = find(session, reference)
        trees = {way: tree(session, node, up=way == "up") for way in ("up", "down") if direction in (None, way)}
    if home.json:
        emit(home, {way: found.as_dict() for way, found in trees.items()})
        return
    from rich.console import Console

    console = Console(highlight=False)
    for way, found in trees.items():
        console.print(f"[bold]{'made from' if way == 'up' else 'went into'}[/bold]")
        console.print(drawn(found))


def drawn(branch: Branch, onto: Tree | None = None) -> Tree:
    """The tree as rich draws it."""
    from rich.markup import escape
    from rich.tree import Tree

    facts = branch.facts
    field = f"[dim]{escape(branch.field)}:[/dim] " if branch.field not in ("", facts["kind"]) else ""
    state = "" if facts["state"] == "complete" else f" [{COLOURS.get(facts['state'], 'cyan')}]{facts['state']}[/]"
    again = " [dim]… as above[/dim]" if branch.again else ""
    text = f"{field}{facts['kind']} [bold]{escape(facts['name'] or '')}[/bold] {branch.node.id[-6:]}{state}{again}"
    at = Tree(text) if onto is None else onto.add(text)
    for inner in branch.branches:
        drawn(inner, at)
    return at
