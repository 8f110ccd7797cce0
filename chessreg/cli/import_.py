"""`chessreg import`: bring in what others made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import Home, json_option, pass_home
from chessreg.cli.noun import print_rows
from chessreg.cli.results import results
from chessreg.cli.spec_options import Numbers
from chessreg.entities import entity


@click.group("import")
def import_() -> None:
    """Bring in what others made: a checkpoint, probes, vectors, results."""


@import_.command()
@click.argument("source", required=False, metavar="FILE|FOLDER", type=click.Path(path_type=Path))
@click.option("--reference", is_flag=True, help="The model that comes with chessreg, instead of a file.")
@click.option("--name", help="What to call the checkpoint.")
@click.option("--encoding", default="pgn-char-32", show_default=True, help="How chess is written for the model.")
@click.option("--tokenizer", hidden=True, help="The earlier name of --encoding.")
@click.option(
    "--trained-on",
    multiple=True,
    metavar="DATASET",
    help="A dataset it was trained on; may be given several times.  [default: unknown]",
)
@json_option
@pass_home
def checkpoint(
    home: Home,
    source: Path | None,
    reference: bool,
    name: str | None,
    encoding: str,
    tokenizer: str | None,
    trained_on: tuple[str, ...],
) -> None:
    """Import a model: a nanoGPT ckpt.pt, a TransformerLens .pth, or a Hugging Face folder with a causal model.

    GPT-2 is served fast; Llama, GPT-NeoX and others through TransformerLens. It is converted to safetensors and
    compared, logit by logit, with the original's own weights. A folded TransformerLens file stays folded: its residual
    stream is centred, as the checkpoint then says. A file that would execute code is refused, never run. The same
    weights are recognised.

    \b
    Example: chessreg import checkpoint ckpt.pt --name karvonen-8
    """
    from chessreg.cli.checkpoint import tell
    from chessreg.entities.checkpoint import import_checkpoint, import_reference

    if reference == (source is not None):
        raise click.UsageError("give a file or folder, or --reference")
    if tokenizer is not None:
        click.echo("--tokenizer is called --encoding now", err=True)
        encoding = tokenizer
    session = home.session()
    if source is None:
        made = import_reference(session.database, session.store, name or "reference")
    else:
        made = import_checkpoint(
            session.database, session.store, source, name=name, encoding=encoding, trained_on=trained_on or None
        )
    tell(home, made)


def direction_options(function: Any) -> Any:
    """The options that probes and vectors share."""
    options = [
        click.argument("paths", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path)),
        click.option("--checkpoint", metavar="CHECKPOINT", help="The model, if it is here.  [default: unknown model]"),
        click.option("--name", help="What to call the import; it goes wherever a run of ours goes."),
        click.option("--layers", type=Numbers(int), help="0-based, one a file, where neither file nor name tells."),
        click.option("--model", help="The model's own name, where neither file nor name tells."),
        click.option("--label", help="What is read off (piece, skill, …), where neither file nor name tells."),
        click.option(
            "--residual",
            type=click.Choice(["auto", "raw", "centred"]),
            default="auto",
            show_default=True,
            help="auto: centred for models called tf_lens_…",
        ),
        json_option,
        pass_home,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@import_.command()
@direction_options
def probe(home: Home, paths: tuple[Path, ...], name: str | None, **given: Any) -> None:
    """Import saved probes of one model, one file a layer, as Karvonen's code writes them.

    They stand wherever a probe run is asked for. A file that would execute code is refused, never run.

    \b
    Example: chessreg import probe tf_lens_lichess_16layers_ckpt_no_optimizer_chess_piece_probe_layer_11.pth
    """
    from chessreg.experiments.imported.directions import ImportedProbe

    run_id = bring_in(home, ImportedProbe, paths, name, given)
    with home.session().database.read() as session:
        print_rows(home, entity("probe"), entity("probe").rows(session, run_id))


@import_.command()
@direction_options
def vector(home: Home, paths: tuple[Path, ...], name: str | None, **given: Any) -> None:
    """Import saved activation vectors of one model, one file a layer, or the class difference of skill probes.

    They stand wherever a vector run is asked for. A file that would execute code is refused, never run.

    \b
    Example: chessreg import vector lichess_train_layer_12_pos_start_25_activations.pt --name caa
    """
    from chessreg.experiments.imported.directions import ImportedVector

    run_id = bring_in(home, ImportedVector, paths, name, given)
    with home.session().database.read() as session:
        print_rows(home, entity("vector"), entity("vector").rows(session, run_id))


def bring_in(home: Home, kind: Any, paths: tuple[Path, ...], name: str | None, given: dict[str, Any]) -> str:
    """Import the files as a run, and return its id."""
    from chessreg.experiments.imported.directions import spec_of

    session = home.session()
    given["residual"] = None if given["residual"] == "auto" else given["residual"]
    spec = spec_of(kind, paths, session.inputs, **given)
    how = kind.options(names=", ".join(path.name for path in paths))
    report = session.run(spec, how, name=name)
    if report.attempt_id is None:
        click.echo(f"these files are {kind.name} {report.run_id.hex[-6:]} already; nothing was added", err=True)
    return report.run_id.hex


import_.add_command(results)
