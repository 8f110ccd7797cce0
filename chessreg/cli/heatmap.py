"""`chessreg heatmap`: what a probe reads of a state before and after an edit, as a figure or as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home
from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.experiments.edit.heat import Measure, Readings

FILES = "abcdefgh"


@click.command()
@click.argument("reference", metavar="STATE")
@click.option(
    "--class", "piece", metavar="LETTER", help="Piece class: P white pawn, k black king, . empty.  [default: the moved]"
)
@click.option("--layer", type=int, help="Layer of the probe, 0-based.  [default: the last that is edited]")
@click.option("--condition", help="edit, edit-3, random-0, …  [default: the first edit]")
@click.option(
    "--measure",
    type=click.Choice(["probability", "logprob", "logit"]),
    default="logprob",
    show_default=True,
    help="Of the probe's softmax, or before it.",
)
@click.option(
    "--clip", type=click.FloatRange(min=0, min_open=True), help="Clip there.  [default: 5; in the form reading 2]"
)
@click.option(
    "--form",
    type=click.Choice(["edit", "reading"]),
    default="edit",
    show_default=True,
    help="edit: before and after (Karvonen Figure 5); reading: truth, clipped, continuous (Figure 1).",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="FILE.svg or FILE.png.")
@json_option
@pass_home
def heatmap(
    home: Home,
    reference: str,
    piece: str | None,
    layer: int | None,
    condition: str | None,
    measure: Measure,
    clip: float | None,
    form: str,
    output: Path | None,
) -> None:
    """Draw what a probe reads where the move of STATE begins, in the clean and in the edited model.

    STATE is RUN:UNIT of an edit run. Without --output the numbers are printed.

    \b
    chessreg heatmap edits:7 --output figure5.svg
    chessreg heatmap edits:7 --form reading --class P --output figure1.png
    chessreg heatmap edits:7 --class N --layer 3 --condition random-0
    """
    from chessreg.entities.game import unit_reference
    from chessreg.experiments.edit import heat
    from chessreg.games.picture import check_suffix, save_heatmaps

    fresh(home)
    session = home.session()
    if output is not None:
        check_suffix(output)
    if home.json and output is not None:
        raise BadInputError("--json prints numbers, --output draws them", "give one of them")
    with session.database.read() as sql:
        run_id, unit = unit_reference(sql, reference)
    found = heat.readings(session.inputs, run_id, unit, condition, layer)
    label = found.label if piece is None else heat.class_of(piece)
    if home.json:
        emit(home, as_object(found, label, measure))
    elif output is None:
        click.echo(as_text(found, label, measure), nl=False)
    else:
        title = f"{reference}, layer {found.layer}, {found.condition}: {found.original.fen()}"
        if form == "edit":
            save_heatmaps(heat.panels(found, label, measure, clip or 5.0), output, title)
        else:
            save_heatmaps(heat.panels_of_reading(found, label, measure, clip or 2.0), output, title, columns=3)
        click.echo(f"{output}: class {heat.PIECE_CLASSES[label]} at layer {found.layer}", err=True)


def as_object(found: Readings, label: int, measure: Measure) -> dict[str, Any]:
    """Both boards' numbers by square, a1 first."""
    from chessreg.experiments.edit.heat import PIECE_CLASSES

    return {
        "fen": found.original.fen(),
        "class": PIECE_CLASSES[label],
        "square": found.square,
        "layer": found.layer,
        "condition": found.condition,
        "measure": measure,
        "clean": found.values("clean", label, measure).tolist(),
        "edited": found.values("edited", label, measure).tolist(),
    }


def as_text(found: Readings, label: int, measure: Measure) -> str:
    """Both boards' numbers, rank 8 on top."""
    from chessreg.experiments.edit.heat import WHICH

    lines = []
    for which in WHICH:
        values = found.values(which, label, measure)
        lines.append(f"{which} model, layer {found.layer}, {measure}")
        for rank in range(7, -1, -1):
            lines.append(f"{rank + 1} " + " ".join(f"{values[rank * 8 + file]:7.2f}" for file in range(8)))
        lines.append("  " + " ".join(f"{name:>7}" for name in FILES))
    return "\n".join(lines) + "\n"
