"""What skill can be guessed from without looking at the moves: game length, source and time control.

A baseline names, for each game, what is most frequent (of ratings: the mean) among the fitted games with the same key.
That is the best that a logistic regression on the key's indicator can do on the games it was fitted on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chessreg.experiments.probe.data import ProbeData

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

LENGTH_BINS = 10
LEAST_GAMES = 5  # a key that fewer fitted games have says as much as no key


def keys(inputs: Inputs, data: ProbeData, edges: np.ndarray | None = None) -> dict[str, list[Hashable]]:
    """name → the key of each game in `data.places`. edges: of the length bins, from `length_edges`."""
    assert data.skill is not None
    games, _ = inputs.dataset(data.cache.spec.dataset)
    table = games.take(data.places, ["plies", "time_control"])
    plies = table.column("plies").to_numpy()
    control = table.column("time_control").to_pylist()
    bins = np.searchsorted(length_edges(plies) if edges is None else edges, plies)
    source = [(str(s), c) for s, c in zip(data.skill.stratum, control, strict=True)]
    return {"majority": [0] * len(plies), "length": bins.tolist(), "source": list(source)}


def length_edges(plies: np.ndarray) -> np.ndarray:
    """Inner edges of ten bins with as many games each, float64 [<= 9]."""
    return np.unique(np.quantile(plies, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]))


def guesses(fit_keys: Sequence[Hashable], fit_values: np.ndarray, keys: Sequence[Hashable], classes: int) -> np.ndarray:
    """What a key says of each game, float64 [games]: the class most frequent, or with classes 0 the mean, of the
    fitted games with that key; of all of them for a key too rare among them. fit_values: -1 or NaN counts for none."""
    known = np.isfinite(fit_values) & ((fit_values >= 0) | (classes == 0))
    table: dict[Hashable, list[float]] = {}
    for key, value, keep in zip(fit_keys, fit_values.tolist(), known.tolist(), strict=True):
        if keep:
            table.setdefault(key, []).append(value)

    def say(values: Sequence[float]) -> float:
        if classes == 0:
            return float(np.mean(values))
        return float(np.bincount(np.asarray(values, np.int64), minlength=classes).argmax())

    overall = say(fit_values[known].tolist())
    said = {key: say(values) for key, values in table.items() if len(values) >= LEAST_GAMES}
    return np.array([said.get(key, overall) for key in keys], np.float64)
