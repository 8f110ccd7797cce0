"""`chessreg vector`: directions in the residual stream."""

from __future__ import annotations

from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.cli.probe import with_model
from chessreg.errors import BadInputError, NotFoundError

LISTED = {
    "run_id": "run", "name": "name", "model": "model", "layer": "layer", "source": "source",
    "positions": "positions", "games": "games", "norm": "norm", "norm_high": "norm high", "norm_low": "norm low",
}  # fmt: skip


@click.group()
def vector() -> None:
    """Directions: list, show. `chessreg run vector` makes them, `chessreg import vector` brings others' in."""


def with_norms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of vectors with their model, the games that they contrast, and the norms of the two sides."""
    for row in with_model(rows):
        detail = row["detail"]
        sides = [detail.get(f"games_{side}") for side in ("high", "low")]
        row["games"] = None if None in sides else sum(sides)
        row |= {name: detail.get(name) for name in ("norm_high", "norm_low")}
    return rows


@vector.command("list")
@click.option("--run", "run", metavar="RUN", help="Those of one run.")
@json_option
@pass_home
def list_(home: Home, run: str | None) -> None:
    """List the directions, one line a layer.

    \b
    Example: chessreg vector list --run skill
    """
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    with fresh(home).read() as session:
        emit(home, with_norms(listing.made(session, "vector", tables.Vector, run)), LISTED)


@vector.command()
@click.argument("reference", metavar="RUN")
@click.option("--layer", type=int, help="Which of the run's directions.")
@click.option("--against", metavar="RUN", help="Another vector run: the cosine in every layer that both have.")
@json_option
@pass_home
def show(home: Home, reference: str, layer: int | None, against: str | None) -> None:
    """Show one direction: what it was made from, its norms, its cosines with others of its layer and model.

    \b
    Example: chessreg vector show skill --layer 5
    """
    from chessreg.entities import vector as vectors
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    with fresh(home).read() as session:
        rows = with_norms(listing.made(session, "vector", tables.Vector, reference))
    inputs = home.session().inputs
    recipe = inputs.recipe("run:vector", rows[0]["run_id"].hex)
    if against is not None:
        both = vectors.of_run(inputs, recipe, inputs.recipe("run:vector", against))
        if not both:
            raise BadInputError(f"{reference} and {against} have no layer in common", "chessreg vector list")
        emit(home, [{"layer": number, "cosine": value} for number, value in both.items()])
        return
    chosen = [row for row in rows if layer is None or row["layer"] == layer]
    layers = ", ".join(str(row["layer"]) for row in rows)
    if not chosen:
        raise NotFoundError(f"{reference} has no direction of layer {layer}", f"it has {layers}")
    if len(chosen) > 1:
        raise BadInputError(f"{reference} has {len(chosen)} directions", f"choose with --layer one of {layers}")
    row = chosen[0]
    try:
        row["cosines"] = vectors.cosines(inputs, recipe, row["layer"])
    except NotFoundError as error:
        row["cosines"] = []
        click.echo(f"no cosines: {error.message}", err=True)
    emit(home, row, [key for key in row if key not in ("detail", "cosines", "checkpoint", "checkpoint_id")])
    for other in [] if home.json else row["cosines"][:10]:
        click.echo(f"cosine {other['cosine']:+.4f}  {other['name'] or other['run_id'].hex[-6:]}, {other['source']}")
