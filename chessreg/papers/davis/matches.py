"""Matches of the model, with and without an edit: its arms of `elo by intervention`.

The edit is that of one position, applied for a whole game: White's knights, bishops and queen are missing from their
initial squares. A random direction of the same length is the control.
"""

from __future__ import annotations

from collections.abc import Iterator

from chessreg.errors import BadInputError
from chessreg.papers.cost import forward
from chessreg.papers.davis.edits import CODE_SCALE, SWEEP, chosen
from chessreg.papers.davis.sizes import Size
from chessreg.papers.plan import Made, Request, Step, Values

UNSEEN = "b1=. c1=. d1=. f1=. g1=."
DIRECTION = "unseen-pieces"
TOKENS_A_GAME = 180


def matches(request: Request, size: Size) -> Iterator[Step]:
    """Yield the direction at the chosen layer, and the matches without it, with it, and with a random one."""

    def direction(made: Made) -> Values:
        return {"source": "board", "probe": "@early-joint-3", "board": UNSEEN, "layers": chosen(made)["layers"]}

    serves, probe = "Elo by intervention", "early-joint-3"
    yield Step(DIRECTION, "vector", direction, serves, (SWEEP, probe), units=1, rows={"metric_point": 2})
    common: Values = {
        "checkpoint": request.checkpoint, "games": size.match_games, "opponent": size.opponent, "policy": "legal",
        "temperatures": (0.3,), "opening": "random:6", "move_limit": size.move_limit, "adjudication": size.adjudication,
    }  # fmt: skip
    operations = forward(request, TOKENS_A_GAME * size.match_games)
    for name, control in (("none", None), ("unseen", "none"), ("random", "random")):

        def settings(made: Made, control: str | None = control) -> Values:
            if control is None:
                return common
            edit = {"vector": f"@{DIRECTION}", "scale": length(made), "control": control}
            return {**common, "intervention": edit}

        yield Step(
            f"match-{name}", "play", settings if control else common, serves,
            (SWEEP, DIRECTION) if control else (), units=size.match_games, rows={"game": size.match_games},
            operations=operations,
        )  # fmt: skip


def length(made: Made) -> float:
    """Return the mean length of the chosen edits of type Probe at one position, to three digits.

    If no edit was better than none, use the α of the author's code. Raises BadInputError if the sweep has no such edit.
    """
    best = chosen(made)
    [layer], scale = best["layers"], best["scale"] or CODE_SCALE
    mean = made.value(
        "SELECT avg(t.edit_norm) AS value FROM edits_trial AS t "
        "JOIN interventions AS i ON i.intervention_id = t.intervention_id "
        f"WHERE t.run_id = UUID '{made.run_id(SWEEP)}' AND starts_with(t.condition, 'edit') "
        f"AND i.scale = {scale} AND i.layers::VARCHAR = '[{layer}]'"
    )
    if mean is None:
        raise BadInputError(f"the sweep of edits has no edit of layer {layer} with scale {scale:g}: it gives no length")
    return float(f"{mean:.3g}")
