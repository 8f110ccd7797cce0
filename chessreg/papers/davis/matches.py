"""Matches of the model, with and without an edit: its arms of `elo by intervention`.

The edit is that of one position, applied for a whole game: White's knights, bishops and queen are missing from their
initial squares. A random direction of the same length is the control.
"""

from __future__ import annotations

from collections.abc import Iterator

from chessreg.errors import BadInputError
from chessreg.papers.cost import count_forward_operations
from chessreg.papers.davis.edits import CODE_SCALE, SWEEP_STEP, get_chosen_edit
from chessreg.papers.davis.sizes import DavisSize
from chessreg.papers.plan import CompleteSteps, Request, Step, Values

UNSEEN_PIECES = "b1=. c1=. d1=. f1=. g1=."
DIRECTION_STEP = "unseen-pieces"
TOKENS_PER_MATCH_GAME = 180


def plan_davis_matches(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield the direction at the chosen layer, and the matches without it, with it, and with a random one."""

    def direction(steps: CompleteSteps) -> Values:
        return {
            "source": "board",
            "probe": "@early-joint-3",
            "board": UNSEEN_PIECES,
            "layers": get_chosen_edit(steps)["layers"],
        }

    serves, probe = "Elo by intervention", "early-joint-3"
    yield Step(DIRECTION_STEP, "vector", direction, serves, (SWEEP_STEP, probe), units=1, rows={"metric_point": 2})
    common_values: Values = {
        "checkpoint": request.checkpoint, "games": size.match_games, "opponent": size.opponent, "policy": "legal",
        "temperatures": (0.3,), "opening": "random:6", "move_limit": size.move_limit, "adjudication": size.adjudication,
    }  # fmt: skip
    operations = count_forward_operations(request, TOKENS_PER_MATCH_GAME * size.match_games)
    for name, control in (("none", None), ("unseen", "none"), ("random", "random")):

        def settings(steps: CompleteSteps, control: str | None = control) -> Values:
            if control is None:
                return common_values
            edit = {"vector": f"@{DIRECTION_STEP}", "scale": measure_edit_length(steps), "control": control}
            return {**common_values, "intervention": edit}

        yield Step(
            f"match-{name}", "play", settings if control else common_values, serves,
            (SWEEP_STEP, DIRECTION_STEP) if control else (), units=size.match_games, rows={"game": size.match_games},
            operations=operations,
        )  # fmt: skip


def measure_edit_length(steps: CompleteSteps) -> float:
    """Return the mean length of the chosen edits of type Probe at one position, to three digits.

    If no edit was better than none, use the α of the author's code. Raises BadInputError if the sweep has no such edit.
    """
    best_settings = get_chosen_edit(steps)
    [layer], scale = best_settings["layers"], best_settings["scale"] or CODE_SCALE
    mean = steps.value(
        "SELECT avg(t.edit_norm) AS value FROM edits_trial AS t "
        "JOIN interventions AS i ON i.intervention_id = t.intervention_id "
        f"WHERE t.run_id = UUID '{steps.run_id(SWEEP_STEP)}' AND starts_with(t.condition, 'edit') "
        f"AND i.scale = {scale} AND i.layers::VARCHAR = '[{layer}]'"
    )
    if mean is None:
        if steps.is_rehearsal:
            return scale
        raise BadInputError(f"the sweep of edits has no edit of layer {layer} with scale {scale:g}: it gives no length")
    return float(f"{mean:.3g}")
