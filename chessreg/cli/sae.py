"""`chessreg sae`: sparse autoencoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import FilePath, Home, add_json_option, pass_home, print_output
from chessreg.cli.noun import group_of, make_click_options
from chessreg.entities import load_entity

sae = group_of("sae")


@sae.command()
@click.argument("reference", metavar="RUN")
@click.argument("folder", type=FilePath(path_type=Path))
@click.option(
    "--layout",
    type=click.Choice(["saelens", "dictionary_learning"]),
    default="saelens",
    show_default=True,
    help="The program that will load the SAE.",
)
@add_json_option
@pass_home
def export(home: Home, reference: str, folder: Path, layout: Any, **choice: Any) -> None:
    """Write one SAE as a new folder for SAELens or dictionary_learning.

    SAELens reads cfg.json and sae_weights.safetensors, dictionary_learning config.json and ae.pt.

    `SAE.load_from_disk(FOLDER)` of SAELens and `load_dictionary(FOLDER, "cpu")` of dictionary_learning then compute the
    same latents. The scale of the residual is multiplied into the weights. An imported SAE that is exported in its own
    layout gets the same tensors, bit for bit.

    \b
    Example: chessreg sae export skill-sae --layer 3 ./sae-3
    """
    from chessreg.experiments.sae.stored import export_sae

    inputs = home.session().inputs
    result = export_sae(inputs, inputs.reference("run:sae", reference), folder, layout, **choice)
    files = {file.name: file.stat().st_size for file in sorted(result.iterdir())}
    print_output(
        home, {"folder": str(result.resolve()), "files": files, "bytes": sum(files.values())}, ["folder", "bytes"]
    )


export.params[2:2] = make_click_options(load_entity("sae").show_options)
