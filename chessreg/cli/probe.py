"""`chessreg probe`: probes, ours and those of others."""

from __future__ import annotations

from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.errors import BadInputError, NotFoundError

LISTED = {
    "run_id": "run", "name": "name", "model": "model", "layer": "layer", "label": "label",
    "positions": "positions", "train_games": "games", "epochs": "epochs", "norm": "norm",
    "validation_accuracy": "validation", "test_accuracy": "test",
}  # fmt: skip


@click.group()
def probe() -> None:
    """Probes: list, show. `chessreg run probe` makes them, `chessreg import probe` brings others' in."""


def with_model(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of probes or vectors with `model`: its checkpoint's name or id, or that it is unknown and what it was."""
    for row in rows:
        row["model"] = row["checkpoint"] or (row["checkpoint_id"] and row["checkpoint_id"].hex[-6:])
        if row["model"] is None:
            row["model"] = f"unknown: {row['detail'].get('model') or 'not told'}"
    return rows


@probe.command("list")
@click.option("--run", "run", metavar="RUN", help="Those of one run.")
@json_option
@pass_home
def list_(home: Home, run: str | None) -> None:
    """List the probes, one line a layer, with their accuracy on held-out games.

    \b
    Example: chessreg probe list --run reference-board
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        emit(home, with_model(listing.probes(session, run)), LISTED)


@probe.command()
@click.argument("reference", metavar="RUN")
@click.option("--layer", type=int, help="Which of the run's probes.  [default: the best on the validation games]")
@click.option("--square", metavar="SQUARE", help="The norm of each class's direction on this square.")
@json_option
@pass_home
def show(home: Home, reference: str, layer: int | None, square: str | None) -> None:
    """Show one probe: what it reads from where, what it was fitted on, how often it is right, and the norm of each
    class's direction (of a board: the mean over its squares).

    \b
    Example: chessreg probe show reference-board --layer 5 --square e2
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        rows = with_model(listing.probes(session, reference))
    chosen = [row for row in rows if layer is None or row["layer"] == layer]
    if not chosen:
        raise NotFoundError(
            f"{reference} has no probe of layer {layer}", f"it has {', '.join(str(r['layer']) for r in rows)}"
        )
    row = max(chosen, key=lambda row: (row["validation_accuracy"] or 0.0, -row["layer"]))
    row["norms"], row["cosines"] = directions(home, row, square)
    emit(home, row, [key for key in row if key not in ("detail", "norms", "cosines", "checkpoint", "checkpoint_id")])
    if row["norms"] and not home.json:
        where = f" on {square}" if square else ""
        click.echo(f"norm of each class{where}: " + ", ".join(f"{c} {n:.4f}" for c, n in row["norms"].items()))
        for pair, value in row["cosines"].items():
            click.echo(f"cosine of {pair}: {value:.4f}")


def directions(home: Home, row: dict[str, Any], square: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Norms of a probe's directions by class, and cosines between the classes of one that has two.

    Nothing of a probe whose bytes are not here.
    """
    import numpy as np

    from chessreg.entities.probe import load_probe
    from chessreg.entities.vector import cosine

    inputs = home.session().inputs
    try:
        weight = load_probe(inputs, inputs.recipe("run:probe", row["run_id"].hex), row["layer"]).weight
    except NotFoundError as error:
        click.echo(f"no norms: {error.message}", err=True)
        return {}, {}
    squares, names = weight.shape[1], class_names(row["label"], weight.shape[2])
    if square is not None:
        import chess

        if squares != 64 or square not in chess.SQUARE_NAMES:
            told = "reads no squares" if squares != 64 else f"has no square {square!r}"
            raise BadInputError(f"this probe {told}", "squares are a1 to h8, of probes of the board")
        weight = weight[:, [chess.parse_square(square)]]
    norms = np.linalg.norm(weight, axis=0).mean(0)
    cosines = {}
    if weight.shape[1:] == (1, 2):
        cosines[f"{names[0]} and {names[1]}"] = cosine(weight[:, 0, 0], weight[:, 0, 1])
    return dict(zip(names, map(float, norms), strict=True)), cosines


def class_names(label: str, classes: int) -> list[str]:
    """What the classes of a label are called; of skill the lowest and the highest."""
    from chessreg.games import labels

    known = labels.label(label).classes if label in labels.LABELS else ()
    if len(known) == classes:
        return list(known)
    return ["low", "high"] if label == "skill" and classes == 2 else [str(number) for number in range(classes)]
