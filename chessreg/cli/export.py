"""`chessreg export`: hand out what others can read."""

from __future__ import annotations

from pathlib import Path

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.group()
def export() -> None:
    """Write a checkpoint for other tools."""


@export.command()
@click.argument("reference", metavar="CHECKPOINT")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@pass_home
def checkpoint(home: Home, reference: str, folder: Path) -> None:
    """Write a checkpoint as a new Hugging Face folder: config.json and model.safetensors.

    \b
    Example: chessreg export checkpoint reference ./reference-hf
    """
    from chessreg.entities.checkpoint import export_checkpoint

    session = home.session()
    made = export_checkpoint(session.database, session.store, reference, folder)
    files = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
    emit(home, {"folder": str(made.resolve()), "files": files, "bytes": sum(files.values())}, ["folder", "bytes"])
