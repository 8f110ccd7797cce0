"""`chessreg import`: bring in what others made."""

from __future__ import annotations

from pathlib import Path

import click

from chessreg.cli.base import Home, json_option, pass_home
from chessreg.cli.results import results


@click.group("import")
def import_() -> None:
    """Bring in what others made: a checkpoint, or results."""


@import_.command()
@click.argument("source", required=False, metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option("--reference", is_flag=True, help="The model that comes with chessreg, instead of a file.")
@click.option("--name", help="What to call the checkpoint.")
@click.option("--tokenizer", default="pgn-char-32", show_default=True, help="What the model reads.")
@click.option(
    "--trained-on",
    multiple=True,
    metavar="DATASET",
    help="A dataset it was trained on; may be given several times.  [default: unknown]",
)
@json_option
@pass_home
def checkpoint(
    home: Home, source: Path | None, reference: bool, name: str | None, tokenizer: str, trained_on: tuple[str, ...]
) -> None:
    """Import a model: a nanoGPT ckpt.pt, or a Hugging Face folder with a GPT-2.

    It is converted to safetensors and compared, logit by logit, with the original's own weights. A file that would
    execute code is refused, never run. The same weights are recognised.

    \b
    Example: chessreg import checkpoint ckpt.pt --name karvonen-8
    """
    from chessreg.cli.checkpoint import tell
    from chessreg.jobs import checkpoints

    if reference == (source is not None):
        raise click.UsageError("give a file or folder, or --reference")
    session = home.session()
    if source is None:
        made = checkpoints.import_reference(session.database, session.store, name or "reference")
    else:
        made = checkpoints.import_checkpoint(
            session.database, session.store, source, name=name, tokenizer=tokenizer, trained_on=trained_on or None
        )
    tell(home, made)


import_.add_command(results)
