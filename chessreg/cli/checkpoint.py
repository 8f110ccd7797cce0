"""`chessreg checkpoint`: models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.export import checkpoint as export_command
from chessreg.cli.words import add_words

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.entities.checkpoints import Registered

LISTED = {
    "id": "id", "name": "name", "architecture": "architecture", "layers": "layers", "d_model": "d model",
    "heads": "heads", "parameters": "parameters", "residual": "residual", "tokenizer": "tokenizer",
    "tokens_seen": "tokens seen", "source_format": "source",
}  # fmt: skip


@click.group()
def checkpoint() -> None:
    """Models: list, show, export."""


def tell(home: Home, made: Registered) -> None:
    """Print the checkpoint that was registered, or was there already."""
    with home.session().database.read() as session:
        row = described(session, made.id.hex)
    if not made.created:
        called = row["name"] or made.id.hex[-6:]
        click.echo(f"these weights are checkpoint {called} already; nothing was added", err=True)
    emit(home, {**row, "created": made.created}, [*LISTED, "max_logit_difference"])


def described(session: Session, reference: str) -> dict[str, Any]:
    """A checkpoint's row, with the names of its parent and training datasets, and how exact its import was."""
    from chessreg.registry import names, tables
    from chessreg.registry import read as listing

    row = listing.entity(session, "checkpoint", tables.Checkpoint, reference)
    verified, source = row["detail"].get("verified") or {}, row["detail"].get("source") or {}
    datasets = {
        identity: names.name_of(session, "dataset", id) or id.hex[-6:]
        for id, identity in session.query(tables.Dataset.id, tables.Dataset.identity)
    }
    trained_on = row["training_datasets"]
    return {
        **row,
        "max_logit_difference": verified.get("max_logit_difference"),
        "source_file": source.get("file"),
        "source_sha256": source.get("sha256"),
        "fetched_from": (row["detail"].get("fetched") or {}).get("url"),
        "parent": names.name_of(session, "checkpoint", row["parent_id"]) if row["parent_id"] else None,
        "first_try_legal": listing.first_try_legal(session, row["artefact"]),
        "trained_on": None if trained_on is None else [datasets.get(recipe[8:72], recipe) for recipe in trained_on],
    }


@checkpoint.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those in the archive.")
@json_option
@pass_home
def list_(home: Home, everything: bool) -> None:
    """List the checkpoints.

    \b
    Example: chessreg checkpoint list
    """
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    with home.session().database.read() as session:
        rows = listing.entities(session, "checkpoint", tables.Checkpoint)
    emit(home, [row for row in rows if everything or not row["archived"]], LISTED)


@checkpoint.command()
@click.argument("reference", metavar="CHECKPOINT")
@json_option
@pass_home
def show(home: Home, reference: str) -> None:
    """Show a checkpoint: its shape, what it was trained on, where it comes from, how well its import was verified.

    \b
    Example: chessreg checkpoint show reference --json
    """
    with home.session().database.read() as session:
        row = described(session, reference)
    if not home.json:
        row["tags"] = " ".join(row["tags"])
        row["trained_on"] = "unknown" if row["trained_on"] is None else ", ".join(row["trained_on"]) or "nothing"
    hidden = ("detail", "training_datasets", "parent_id", "notes", "archived", "invalid")
    emit(home, row, [key for key in row if key not in hidden])


@checkpoint.command()
@click.argument("reference", metavar="CHECKPOINT")
@click.option("--name", help="What to call the twin.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of its weights.")
@json_option
@pass_home
def twin(home: Home, reference: str, name: str | None, seed: int) -> None:
    """Register an untrained model of the same shape: the baseline that probes are compared with.

    \b
    Example: chessreg checkpoint twin reference --name untrained --seed 0
    """
    from chessreg.entities import checkpoints

    session = home.session()
    tell(home, checkpoints.random_twin(session.database, session.store, reference, name=name, seed=seed))


checkpoint.add_command(export_command, "export")
add_words(checkpoint, "checkpoint")
