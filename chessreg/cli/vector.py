"""`chessreg vector`: directions in the residual stream."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.errors import BadInputError, NotFoundError

LISTED = {
    "run_id": "run", "name": "name", "checkpoint": "checkpoint", "layer": "layer", "source": "source",
    "positions": "positions", "norm": "norm",
}  # fmt: skip


@click.group()
def vector() -> None:
    """Directions: list, show. `chessreg run vector` makes them."""


@vector.command("list")
@click.option("--run", "run", metavar="RUN", help="Those of one run.")
@json_option
@pass_home
def list_(home: Home, run: str | None) -> None:
    """List the directions, one line a layer.

    \b
    Example: chessreg vector list --run skill
    """
    from chessreg.jobs import listing
    from chessreg.registry import tables

    with fresh(home).read() as session:
        emit(home, listing.made(session, "vector", tables.Vector, run), LISTED)


@vector.command()
@click.argument("reference", metavar="RUN")
@click.option("--layer", type=int, help="Which of the run's directions.")
@json_option
@pass_home
def show(home: Home, reference: str, layer: int | None) -> None:
    """Show one direction: where it points, what it was made from.

    \b
    Example: chessreg vector show skill --layer 5
    """
    from chessreg.jobs import listing
    from chessreg.registry import tables

    with fresh(home).read() as session:
        rows = listing.made(session, "vector", tables.Vector, reference)
    chosen = [row for row in rows if layer is None or row["layer"] == layer]
    layers = ", ".join(str(row["layer"]) for row in rows)
    if not chosen:
        raise NotFoundError(f"{reference} has no direction of layer {layer}", f"it has {layers}")
    if len(chosen) > 1:
        raise BadInputError(f"{reference} has {len(chosen)} directions", f"choose with --layer one of {layers}")
    emit(home, chosen[0])
