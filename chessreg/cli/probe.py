"""`chessreg probe`: fitted probes."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.errors import NotFoundError

LISTED = {
    "run_id": "run", "name": "name", "checkpoint": "checkpoint", "layer": "layer", "label": "label",
    "positions": "positions", "train_games": "games", "epochs": "epochs", "norm": "norm",
    "validation_accuracy": "validation", "test_accuracy": "test",
}  # fmt: skip


@click.group()
def probe() -> None:
    """Probes: list, show. `chessreg run probe` makes them."""


@probe.command("list")
@click.option("--run", "run", metavar="RUN", help="Those of one run.")
@json_option
@pass_home
def list_(home: Home, run: str | None) -> None:
    """List the probes, one line a layer, with their accuracy on held-out games.

    \b
    Example: chessreg probe list --run reference-board
    """
    from chessreg.jobs import listing

    with fresh(home).read() as session:
        emit(home, listing.probes(session, run), LISTED)


@probe.command()
@click.argument("reference", metavar="RUN")
@click.option("--layer", type=int, help="Which of the run's probes.  [default: the best on the validation games]")
@json_option
@pass_home
def show(home: Home, reference: str, layer: int | None) -> None:
    """Show one probe: what it reads from where, what it was fitted on, how often it is right.

    \b
    Example: chessreg probe show reference-board --layer 5
    """
    from chessreg.jobs import listing

    with fresh(home).read() as session:
        rows = listing.probes(session, reference)
    chosen = [row for row in rows if layer is None or row["layer"] == layer]
    if not chosen:
        raise NotFoundError(
            f"{reference} has no probe of layer {layer}", f"it has {', '.join(str(r['layer']) for r in rows)}"
        )
    row = max(chosen, key=lambda row: (row["validation_accuracy"] or 0.0, -row["layer"]))
    emit(home, row, [key for key in row if key != "detail"])
