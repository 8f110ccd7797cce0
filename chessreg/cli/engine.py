"""`chessreg engine`: opponents."""

from __future__ import annotations

from typing import Any

import click

from chessreg.cli.base import Group, Home, add_json_option, pass_home, print_output
from chessreg.errors import NotFoundError


@click.group(cls=Group)
def engine() -> None:
    """Engines and the ladder of opponents."""


@engine.command("list")
@add_json_option
@pass_home
def list_(home: Home) -> None:
    """List the engines that played or evaluated in this registry, and the Stockfish of this machine.

    \b
    Example: chessreg engine list
    """
    from chessreg.cli.base import open_with_waiting_results
    from chessreg.registry import read, tables

    stockfish = describe_installed_stockfish()
    with open_with_waiting_results(home).read() as session:
        rows = [
            {
                **read.get_row_values(row),
                "here": row.binary_sha256 is None
                or bool(stockfish and row.binary_sha256 == stockfish["binary_sha256"]),
            }
            for row in session.query(tables.Engine).order_by(
                tables.Engine.name, tables.Engine.version, tables.Engine.id
            )
        ]
    if stockfish and not any(row["binary_sha256"] == stockfish["binary_sha256"] for row in rows):
        rows.append({"id": None, **stockfish, "here": True})
    print_output(home, rows, ["id", "name", "version", "binary_sha256", "here"])
    if stockfish is None:
        click.echo("Stockfish is not installed: chessreg doctor", err=True)


@engine.command()
@add_json_option
@pass_home
def ladder(home: Home) -> None:
    """List the opponents from weakest to strongest. Measure a model at levels where it scores 0.2 to 0.8.

    For a weak model, +random=SHARE after any Stockfish draws that share of its moves at random. Any share below 1
    is accepted, not only those in the list. Elo is known for Stockfish's levels 0 to 19, measured at 120 s + 1 s per
    game. No rating of weaker opponents is published, and `chessreg run rating` estimates it from games.

    \b
    Example: chessreg run play --checkpoint reference --opponent stockfish:0@nodes=10
             chessreg run play --checkpoint reference --opponent stockfish:-1+random=0.6
    """
    from chessreg.games.engines.opponents import LADDER, get_engine_rating

    stockfish = describe_installed_stockfish()
    rows = [
        {
            "opponent": spec.text,
            "name": spec.name,
            "level": spec.level,
            "limit": spec.limit.text if spec.limit else None,
            "elo": get_engine_rating(spec),
            "available": stockfish is not None or not spec.needs_process,
        }
        for spec in LADDER
    ]
    print_output(home, rows)
    click.echo(
        "weaker or in between: +random=SHARE after any Stockfish, such as stockfish:-1+random=0.6; elo is known for "
        "Stockfish levels 0 to 19 only",
        err=True,
    )
    if stockfish is None:
        click.echo("Stockfish is not installed: chessreg doctor", err=True)


def describe_installed_stockfish() -> dict[str, Any] | None:
    """Return the Stockfish of this machine as a row of `engine`, or None."""
    from chessreg.games.engines.opponents import identify_engine

    try:
        engine = identify_engine()
    except NotFoundError:
        return None
    return {
        "name": engine.name,
        "version": engine.version,
        "binary_sha256": engine.sha256,
        "options": dict(engine.options),
    }
