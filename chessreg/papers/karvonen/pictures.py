"""Figures 1 and 5: what a board probe reads off one position, and off it before and after an edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from chessreg.papers.work import Made

EDITS, PROBE = "edits-all", "model-board-0"
OPENED = 20  # plies: from here on a position is no opening (the paper's is after White's eleventh move)
READING_CLIP, EDIT_CLIP = 2.0, 5.0  # as in the author's notebook


def figure_1(made: Made, path: Path) -> str:
    """White pawns: where they stand, the reading clipped, and the reading, at the layer that validation chooses."""
    from chessreg.entities.probe import best_layer
    from chessreg.experiments.edit import heat
    from chessreg.games.picture import save_heatmaps

    run_id, unit = state(made)
    layer = best_layer(made.session.inputs, made.recipes[PROBE])
    found = heat.readings(made.session.inputs, run_id, unit, layer=layer)
    shown = heat.panels_of_reading(found, heat.class_of("P"), "logprob", READING_CLIP)
    save_heatmaps(shown, path, f"layer {layer}: {found.original.fen()}", columns=3)
    return f"chessreg heatmap {run_id.hex[-6:]}:{unit} --form reading --class P --layer {layer} --output {path.name}"


def figure_5(made: Made, path: Path) -> str:
    """The class of the piece that the edit takes off, and of empty squares, in the clean and in the edited model."""
    from chessreg.experiments.edit import heat
    from chessreg.games.picture import save_heatmaps

    run_id, unit = state(made)
    found = heat.readings(made.session.inputs, run_id, unit)
    shown = heat.panels(found, found.label, "logprob", EDIT_CLIP)
    save_heatmaps(shown, path, f"layer {found.layer}, {found.condition}: {found.original.fen()}")
    return f"chessreg heatmap {run_id.hex[-6:]}:{unit} --output {path.name}"


def state(made: Made) -> tuple[UUID, int]:
    """The first state of the edits that is past the opening; of a small run the first one at all.

    Raises NotFoundError when no state has an edit.
    """
    from sqlalchemy import select

    from chessreg.errors import NotFoundError
    from chessreg.registry import tables

    run_id, trial = UUID(made.run_id(EDITS)), tables.Trial
    edited = select(trial.unit).where(trial.run_id == run_id, trial.condition == "edit", trial.sample == -1)
    first = edited.order_by(trial.ply < OPENED, trial.unit).limit(1)
    with made.session.database.read() as sql:
        unit = sql.scalars(first).first()
    if unit is None:
        raise NotFoundError("no state of the edits has a piece to take off", "a larger --size has more")
    return run_id, unit
