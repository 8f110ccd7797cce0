"""`chessreg checkpoint`: models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, NameText, add_json_option, pass_home, print_output
from chessreg.cli.noun import get_headings, group_of
from chessreg.cli.transfer import checkpoint as export_command
from chessreg.entities import load_entity
from chessreg.entities.checkpoint import list_import_warnings, read_checkpoint
from chessreg.registry import names

if TYPE_CHECKING:
    from chessreg.entities.checkpoint import RegisteredCheckpoint

checkpoint = group_of("checkpoint")
SEED = click.IntRange(-(2**63), 2**63 - 1)  # as torch takes it
LIST_HEADINGS = get_headings(load_entity("checkpoint"))
CHECK_COLUMNS = ("max_logit_difference", "import_loss", "import_entropy", "import_legal", "vocabulary")


def print_checkpoint(home: Home, checkpoint: RegisteredCheckpoint, note: str | None = None) -> None:
    """Print a checkpoint that this command or an earlier one registered. `note` is the text of a note that was added to
    it, or None."""
    with home.session().database.read() as session:
        row, names_text = (
            read_checkpoint(session, checkpoint.id.hex),
            names.describe_names(session, "checkpoint", checkpoint.id),
        )
    if not checkpoint.is_new:
        change = "only the note was added" if note else "nothing was added"
        click.echo(f"these weights are already checkpoint {names_text}; {change}", err=True)
    if home.json:
        print_output(home, {**row, "created": checkpoint.is_new})
    else:
        output = load_entity("checkpoint").make_output(row)
        assert isinstance(output.fields, dict)
        headings = LIST_HEADINGS | {name: output.fields[name] for name in CHECK_COLUMNS}
        print_output(home, {**row, **output.read_as}, headings)
    for warning in list_import_warnings(row):
        click.echo(warning, err=True)


@checkpoint.command()
@click.argument("reference", metavar="CHECKPOINT")
@click.option("--name", type=NameText(), help="Name of the new checkpoint. Left out: no name.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of its weights.")
@add_json_option
@pass_home
def twin(home: Home, reference: str, name: str | None, seed: int) -> None:
    """Register a random-init control: a model of the same shape with random weights.

    \b
    Example: chessreg checkpoint twin reference --name untrained --seed 0
    """
    from chessreg.entities.checkpoint import register_random_init_control

    session = home.session()
    print_checkpoint(
        home, register_random_init_control(session.database, session.store, reference, name=name, seed=seed)
    )


checkpoint.add_command(export_command, "export")
