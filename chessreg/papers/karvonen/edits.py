"""Board edits: a sweep over layers and scales, and its best setting with controls on other games."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chessreg.errors import BadInputError
from chessreg.papers.karvonen.sizes import Size
from chessreg.papers.plan import Request, Step, Values
from chessreg.papers.work import Made


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
                "positions": positions, "controls": 1, "shuffled": 1, **best_edit(made),
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
