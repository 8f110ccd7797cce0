"""Board edits: a sweep over layers and scales, its best setting with controls on other games, and Figures 1 and 5:
what a board probe reads off one position, and off it before and after an edit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import select

from chessreg.entities.probe import best_layer
from chessreg.errors import BadInputError, NotFoundError
from chessreg.papers.karvonen.sizes import Size
from chessreg.papers.plan import Request, Step, Values
from chessreg.papers.work import Made
from chessreg.registry import tables

EDITS, PROBE = "edits-all", "model-board-0"
OPENED = 20  # plies: from here on a position is no opening (the paper's is after White's eleventh move)
READING_CLIP, EDIT_CLIP = 2.0, 5.0  # as in the author's notebook


def layer_sets(layers: int) -> tuple[str, ...]:
    """Every layer alone (Table 8), the middle ones together, and every second of them (the paper's range(5,15,2))."""
    low, high = max(0, layers // 2 - 1), max(1, layers - 2)
    sets = [f"{low}-{high}"] if high > low else []
    if high - low >= 4:
        sets.append("+".join(map(str, range(low, high + 1, 2))))
    return (*map(str, range(layers)), *sets)


def edits(request: Request, size: Size) -> Iterator[Step]:
    """A sweep over layers and scales on the validation games, then its best setting with controls on the test games."""
    common: Values = {"checkpoint": request.checkpoint, "probe": "@model-board-0", "min_plies": size.min_plies}
    sweep = len(layer_sets(request.layers))
    states = size.sweep_games * 5
    yield Step(
        "edit-sweep",
        "edit",
        {
            **common, "dataset": f"{request.test}:validation", "games": size.sweep_games, "per_game": 5,
            "layer_sets": layer_sets(request.layers), "scales": size.edit_scales, "controls": 0, "shuffled": 0,
            "spellings": False,
        },
        "Tables 6 and 8, Appendix D",
        ("parts",),
        units=states,
        rows={"trial": states * (1 + sweep * len(size.edit_scales)) * 6}, choice=True,
    )  # fmt: skip
    states = size.edit_games * size.edit_states
    for positions in ("all", "last"):

        def settings(made: Made, positions: str = positions) -> Values:
            return {
                **common, "probe": made.recipes["model-board-0"],
                "dataset": f"{request.test}:test", "games": size.edit_games, "per_game": size.edit_states,
                "token_mask": positions, "controls": 1, "shuffled": 1, **best_edit(made),
            }  # fmt: skip

        yield Step(
            f"edits-{positions}", "edit", settings, "Table 2", ("parts", "model-board-0", "edit-sweep"),
            units=states, rows={"trial": states * 4 * 6},
        )  # fmt: skip


def best_edit(made: Made) -> dict[str, Any]:
    """Layers and scale of the sweep's best edit: most legal texts on the modified board, then the smaller scale."""
    rows = made.query("board intervention legality", "edit-sweep").rows
    tried = [row for row in rows if row["condition"] == "edit"]
    if not tried:
        raise BadInputError("the sweep of edits has no state with a piece to take off", "a larger --size has more")
    best = max(tried, key=lambda row: (row["modified"] or 0.0, -row["scale"]))
    return {"layers": tuple(best["layers"]), "scale": best["scale"]}


# -- figures 1 and 5 ------------------------------------------------------------------------------------------


def figure_1(made: Made, path: Path) -> str:
    """White pawns: where they stand, the reading clipped, and the reading, at the layer that validation chooses."""
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
    run_id, trial = UUID(made.run_id(EDITS)), tables.Trial
    edited = select(trial.unit).where(trial.run_id == run_id, trial.condition == "edit", trial.sample == -1)
    first = edited.order_by(trial.ply < OPENED, trial.unit).limit(1)
    with made.session.database.read() as sql:
        unit = sql.scalars(first).first()
    if unit is None:
        raise NotFoundError("no state of the edits has a piece to take off", "a larger --size has more")
    return run_id, unit
