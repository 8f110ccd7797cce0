"""`chessreg lab`: one position, clean and edited, without storing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home
from chessreg.cli.run import Numbers
from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.lab.question import Position, StoredState


@click.command()
@click.argument("state", metavar="[STATE]", required=False)
@click.option("--condition", help="Of STATE: edit, edit-3, random-0, …  [default: the first edit]")
@click.option("--checkpoint", help="The model.")
@click.option("--moves", default="", help="The position: moves in SAN or UCI, or a FEN near the start.")
@click.option("--probe", help="A piece probe: its boards are shown, and its direction is subtracted.")
@click.option("--vector", help="A vector run: its directions are added instead.")
@click.option("--layers", type=Numbers(int), default="", help="0-based.  [default: the probe's best, the vector's all]")
@click.option("--scale", type=float, default=1.5, show_default=True, help="How strongly the model is edited.")
@click.option("--positions", type=click.Choice(["last", "all"]), default="last", show_default=True)
@click.option("--layer", type=int, help="Of which layer the probe's boards are shown.  [default: the last edited]")
@click.option("--top", type=click.IntRange(min=0), default=5, show_default=True, help="So many moves of each.")
@json_option
@pass_home
def lab(
    home: Home,
    state: str | None,
    condition: str | None,
    checkpoint: str | None,
    moves: str,
    probe: str | None,
    vector: str | None,
    layers: tuple[int, ...],
    scale: float,
    positions: str,
    layer: int | None,
    top: int,
) -> None:
    """Look at one position with the clean and with the edited model: what the probe reads, moves, legal move mass.

    STATE is RUN:UNIT of an edit run; or give --checkpoint and --moves. `chessreg run edit --moves …` stores an edit.

    \b
    chessreg lab --checkpoint reference --probe reference-board --moves "e4 e5 Nf3" --scale 2
    chessreg lab edits:7 --condition random-0
    """
    from chessreg.entities.game import unit_reference
    from chessreg.lab.answer import as_text
    from chessreg.lab.model import Lab
    from chessreg.lab.question import Position, StoredState
    from chessreg.models.devices import prepare

    database = fresh(home)
    question: Position | StoredState
    if state is not None:
        if checkpoint or moves or probe or vector or layers:
            raise BadInputError("STATE has its own model, moves and edit", "leave out the other options")
        with database.read() as session:
            run_id, unit = unit_reference(session, state)
        question = StoredState(run=run_id.hex, unit=unit, condition=condition)
    elif checkpoint is None:
        raise BadInputError("which model?", "chessreg lab --checkpoint NAME, or RUN:UNIT of an edit run")
    else:
        question = Position.of(
            checkpoint=checkpoint, moves=moves, probe=probe, vector=vector, layers=layers, scale=scale,
            positions=positions,
        )  # fmt: skip
    prepare("cpu")
    answer = Lab(home.session().inputs).ask(question)
    if home.json:
        emit(home, answer.summary())
    else:
        click.echo(as_text(answer, layer, top), nl=False)
