"""`chessreg cache`: activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import FilePath, Home, Numbers, add_json_option, pass_home, print_output, show_progress_line
from chessreg.cli.noun import group_of

cache = group_of("cache")


@cache.command()
@click.argument("reference", metavar="RUN")
@click.argument("folder", type=FilePath(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["datasets", "safetensors"]),
    default="datasets",
    show_default=True,
    help="datasets: a folder for datasets.load_from_disk, which SAELens trains on; safetensors: files of arrays.",
)
@click.option(
    "--hook-points", type=Numbers(str), help="Hook points to write, such as blocks.3.hook_resid_post. Left out: all."
)
@add_json_option
@pass_home
def export(home: Home, reference: str, folder: Path, format_: Any, hook_points: tuple[str, ...] | None) -> None:
    """Write the activations of a cache as a new folder that other programs read.

    There is one row per token position: the game's row in its dataset, the token, the number of plies before it, and
    the activation at each hook point. In a dataset an activation is a matrix [1, d_model], so that SAELens trains on it
    with context_size=1. Arrow has no bfloat16; a dataset then holds float32.

    \b
    Example: chessreg cache export reference-fit ./activations
             chessreg cache export reference-fit ./arrays --format safetensors
    """
    from chessreg.runs.activation_export import describe_cache, export_activations
    from chessreg.runs.activations import load_any_cache

    inputs = home.session().inputs
    activations = load_any_cache(inputs, inputs.reference("run:cache", reference))
    facts = describe_cache(inputs, activations)
    with show_progress_line("cache export", quiet=home.json) as on_progress:
        result = export_activations(activations, folder, format_, hook_points or (), facts, on_progress)
    files = {file.name: file.stat().st_size for file in sorted(result.iterdir())}
    print_output(
        home,
        {"folder": str(result.resolve()), "rows": facts["rows"], "files": files, "bytes": sum(files.values())},
        ["folder", "rows", "bytes"],
    )
