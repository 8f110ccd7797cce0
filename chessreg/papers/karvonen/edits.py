"""Board edits with the paper's settings, and with settings tuned on validation games (Tables 2, 6 and 8).

Figures 1 and 5 show a board probe's readings of one position, and before and after an edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.edit.spec import PAPER, parse_layers
from chessreg.papers.cost import count_forward_operations
from chessreg.papers.karvonen.readout import TOKENS_PER_GAME, TOKENS_PER_TREE
from chessreg.papers.karvonen.settings import TARGET_LOGIT, list_published_edits
from chessreg.papers.karvonen.sizes import SIZES, KarvonenSize
from chessreg.papers.plan import CompleteSteps, Request, Step, Values
from chessreg.registry import tables
from chessreg.runs.fitted import find_best_layer

EDITS_STEP, PROBE_STEP = "edits-all", "model-board-0"
TOKEN_MASKS = ("last", "all")  # of the edited tokens
TEXTS_PER_STATE = 6  # written by an edited model: five samples and the most likely text
TOKENS_PER_TEXT = 6  # approximate, for counting operations
TEXT_RATE_SHARE = 0.4  # lowest measured share of the machine's rate; 0.5 for 180 states under four conditions
MORE_CONTROLS: Values = {
    "wrong_layer_control": True,
    "sham_control": True,
}  # in addition to random and shuffled: beyond the paper
OPENING_PLIES = 20  # the paper's position is after White's eleventh move
READING_CLIP, EDIT_CLIP = 2.0, 5.0  # as in the author's notebook


def list_layer_sets(layers: int) -> tuple[str, ...]:
    """Return the layer sets of a sweep: every layer alone, the middle layers together, and the paper's."""
    low, high = max(0, layers // 2 - 1), max(1, layers - 2)
    sets: dict[tuple[int, ...], str] = {(layer,): str(layer) for layer in range(layers)}
    if high > low:
        sets[tuple(range(low, high + 1))] = f"{low}-{high}"
    for edit in list_published_edits(6, ("board",), layers, every=True):
        sets.setdefault(edit.layers, "+".join(map(str, edit.layers)))
    return tuple(sets.values())


def count_edit_operations(request: Request, games: int, states: int, conditions: int, mask: str) -> float:
    """Return the operations of edits: each of `conditions` writes texts and measures both boards of each state. `mask`
    is the token mask; an edit of all tokens reads half a game per state."""
    tokens_read = TOKENS_PER_GAME / 2 if mask == "all" else 1
    each = TEXTS_PER_STATE * TOKENS_PER_TEXT + 2 * TOKENS_PER_TREE + tokens_read
    return count_forward_operations(request, games * TOKENS_PER_GAME + states * (1 + conditions) * each)


def plan_board_edits(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield the paper's own edits, and for each choice of tokens the best edit of a sweep."""
    yield from plan_published_edits(request, size)
    for mask in TOKEN_MASKS:
        yield from plan_tuned_edits(request, size, mask)


def plan_published_edits(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield the edits of Tables 2 and 8 and Appendices C and D, with the layers and scales of Table 6 and the paper's
    probes.

    The paper does not state the edited tokens. Its code of that date edits only the last one.
    """
    states = size.edit_games * size.edit_states
    common_values: Values = {
        **PAPER, "checkpoint": request.checkpoint, "probe": "@model-board-paper", "dataset": f"{request.test}:test",
        "games": size.edit_games, "per_game": size.edit_states, "min_plies": size.min_plies,
    }  # fmt: skip
    no_controls: Values = {"random_controls": 0, "shuffled_label_controls": 0, "spellings": False}

    def step(name: str, serves: str, conditions: int, **settings: Any) -> Step:
        rows = {"trial": states * (1 + conditions) * TEXTS_PER_STATE}
        operations = count_edit_operations(request, size.edit_games, states, conditions, settings["token_mask"])
        return Step(
            name,
            "edit",
            {**common_values, **settings},
            serves,
            ("parts",),
            units=states,
            rows=rows,
            operations=operations,
            share=TEXT_RATE_SHARE,
        )

    for edit in list_published_edits(6, ("board",), request.layers, every=size.is_full):
        for mask in TOKEN_MASKS:
            edit_values: Values = {"layers": edit.layers, "layers_label": edit.label, "token_mask": mask}
            at: Values = {**edit_values, "scale": edit.scale}
            end = f"{mask}-{edit.layer_counting}"
            yield step(f"table-2-{end}", "Table 2", 5, **at, **MORE_CONTROLS)
            if mask not in size.appendix_masks:
                continue
            yield step(f"appendix-c-blank-{end}", "Appendix C", 3, **at, blank=1.0)
            target: Values = {"scale_rule": "single_target", "scale": TARGET_LOGIT}
            yield step(f"appendix-d-target-{end}", "Appendix D", 1, **edit_values, **no_controls, **target)
            scales = size.edit_scales
            yield step(
                f"appendix-d-scales-{end}", "Appendix D", len(scales), **edit_values, **no_controls, scales=scales
            )
    scale = edit.scale
    for mask in size.appendix_masks:
        yield step(
            f"table-8-{mask}", "Table 8", request.layers, **no_controls,
            layer_sets=tuple(map(str, range(request.layers))), scales=(scale,), token_mask=mask,
        )  # fmt: skip


def plan_tuned_edits(request: Request, size: KarvonenSize, mask: str) -> Iterator[Step]:
    """Yield a sweep over layers and scales on validation games, and its best edit with controls on test games."""
    common_values: Values = {
        "checkpoint": request.checkpoint, "probe": "@model-board-0", "min_plies": size.min_plies, "token_mask": mask
    }  # fmt: skip
    sets = list_layer_sets(request.layers)
    states = size.sweep_games * 5
    yield Step(
        f"edit-sweep-{mask}", "edit",
        {
            **common_values, "dataset": f"{request.test}:validation", "games": size.sweep_games, "per_game": 5,
            "layer_sets": sets, "scales": size.edit_scales, "random_controls": 0,
            "shuffled_label_controls": 0, "spellings": False,
        },
        "Table 6, tuned here", ("parts",), units=states,
        rows={"trial": states * (1 + len(sets) * len(size.edit_scales)) * TEXTS_PER_STATE}, choice=True,
        operations=count_edit_operations(request, size.sweep_games, states, len(sets) * len(size.edit_scales), mask),
        share=TEXT_RATE_SHARE,
    )  # fmt: skip

    def settings(steps: CompleteSteps) -> Values:
        return {
            **common_values, "probe": steps.references["model-board-0"],
            "dataset": f"{request.test}:test", "games": size.edit_games, "per_game": size.edit_states,
            "random_controls": 1, "shuffled_label_controls": 1, **MORE_CONTROLS,
            **({"sae": request.sae} if request.sae else {}),
            **find_best_edit(steps, f"edit-sweep-{mask}", sets),
        }  # fmt: skip

    states = size.edit_games * size.edit_states
    yield Step(
        f"edits-{mask}", "edit", settings, "Table 2, tuned here", ("parts", "model-board-0", f"edit-sweep-{mask}"),
        units=states, rows={"trial": states * (7 if request.sae else 6) * TEXTS_PER_STATE},
        operations=count_edit_operations(request, size.edit_games, states, 6 if request.sae else 5, mask),
        share=TEXT_RATE_SHARE,
    )  # fmt: skip


def find_best_edit(steps: CompleteSteps, sweep: str, layer_sets: Sequence[str]) -> dict[str, Any]:
    """Return layers and scale of the sweep's best edit: most legal texts on the new board, then the smaller scale.

    In a rehearsal without an edit, return the last of `layer_sets`, the layers of the sweep.
    """
    rows = steps.query("board intervention legality", sweep).rows
    edit_rows = [row for row in rows if row["condition"] == "edit"]
    if not edit_rows:
        if steps.is_rehearsal:
            return {"layers": parse_layers(layer_sets[-1]), "scale": SIZES[steps.request.size].edit_scales[-1]}
        raise BadInputError(
            "the sweep of edits has no state with a removable piece",
            "use a model that plays legal moves, or a larger --size",
        )
    best_row = max(edit_rows, key=lambda row: (row["modified"] or 0.0, -row["scale"]))
    return {"layers": tuple(best_row["layers"]), "scale": best_row["scale"]}


# -- figures 1 and 5 ------------------------------------------------------------------------------------------


def draw_pawn_readings(steps: CompleteSteps, path: Path) -> str:
    """Draw the white pawns of a position: the board, the clipped reading and the reading, at the layer of best
    validation. Return the command that draws them."""
    from chessreg.experiments.edit import heat
    from chessreg.games.boards.picture import save_heatmaps

    run_id, unit = find_state_to_draw(steps)
    layer = find_best_layer(steps.session.inputs, steps.references[PROBE_STEP])
    readings = heat.load_readings(steps.session.inputs, run_id, unit, layer=layer)
    panels = heat.build_reading_panels(readings, heat.parse_piece_class("P"), "logprob", READING_CLIP)
    save_heatmaps(panels, path, f"layer {layer}: {readings.original.fen()}", columns=3)
    return f"chessreg heatmap {run_id.hex[-6:]}:{unit} --form reading --class P --layer {layer} --output {path.name}"


def draw_edit_readings(steps: CompleteSteps, path: Path) -> str:
    """Draw the readings of the removed piece's class and of empty squares, in the clean and in the edited model.

    Return the command that draws them.
    """
    from chessreg.experiments.edit import heat
    from chessreg.games.boards.picture import save_heatmaps

    run_id, unit = find_state_to_draw(steps)
    readings = heat.load_readings(steps.session.inputs, run_id, unit)
    panels = heat.build_edit_panels(readings, readings.label, "logprob", EDIT_CLIP)
    save_heatmaps(panels, path, f"layer {readings.layer}, {readings.condition}: {readings.original.fen()}")
    return f"chessreg heatmap {run_id.hex[-6:]}:{unit} --output {path.name}"


def find_state_to_draw(steps: CompleteSteps) -> tuple[UUID, int]:
    """Return run and unit of the first edited state past the opening, or of the first one at all.

    Raises NotFoundError if no state has an edit.
    """
    run_id, trial = UUID(steps.run_id(EDITS_STEP)), tables.Trial
    edited_units = select(trial.unit).where(trial.run_id == run_id, trial.condition == "edit", trial.sample == -1)
    first_unit = edited_units.order_by(trial.ply < OPENING_PLIES, trial.unit).limit(1)
    with steps.session.database.read() as sql:
        unit = sql.scalars(first_unit).first()
    if unit is None:
        raise NotFoundError(
            "no state of the edits has a removable piece", "use a model that plays legal moves, or a larger --size"
        )
    return run_id, unit
