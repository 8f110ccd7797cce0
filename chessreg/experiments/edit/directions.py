"""What is subtracted: the probe's direction for the piece on its square, or a control in its place.

Every function gives unit vectors float32 [state, d_model], one for each removal, for one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chessreg.errors import NotFoundError
from chessreg.experiments.edit.kind import EditSpec
from chessreg.experiments.edit.states import Removal
from chessreg.noise import generator

EMPTY = 6
PIECES = tuple(label for label in range(13) if label != EMPTY)

Control = Callable[[EditSpec, np.ndarray, int, Sequence[Removal], int], np.ndarray]
"""(spec, probe float32 [d_model, 64, 13], layer, removals, number of the draw) → float32 [state, d_model]."""

CONTROLS: dict[str, Control] = {}


def control(name: str) -> Callable[[Control], Control]:
    """Register a control under a name. Raises ValueError when the name is taken."""

    def add(function: Control) -> Control:
        if name in CONTROLS:
            raise ValueError(f"a control {name!r} is registered already")
        CONTROLS[name] = function
        return function

    return add


def of_control(name: str) -> Control:
    if name not in CONTROLS:
        raise NotFoundError(f"no control {name!r}", f"there are {', '.join(CONTROLS)}")
    return CONTROLS[name]


def piece(spec: EditSpec, weight: np.ndarray, removals: Sequence[Removal], labels: Sequence[int]) -> np.ndarray:
    """piece · p - blank · b, normalised (Karvonen specification 6.2); p for these classes, b for the empty square.

    The probe is normalised as it is, also where its residuals are centred (2.3 there).
    """
    squares = [removed.square for removed in removals]
    blend = spec.piece * weight[:, squares, list(labels)] - spec.blank * weight[:, squares, EMPTY]
    return unit(blend.T)


@control("random")
def random(spec: EditSpec, weight: np.ndarray, layer: int, removals: Sequence[Removal], draw: int) -> np.ndarray:
    """A direction drawn uniformly from the sphere for each state and layer: the same one at every scale."""
    keys = [(spec.seed, f"random-{draw}", layer, removed.state.unit) for removed in removals]
    return unit(np.stack([generator(*key).standard_normal(len(weight)) for key in keys]))


@control("shuffled")
def shuffled(spec: EditSpec, weight: np.ndarray, layer: int, removals: Sequence[Removal], draw: int) -> np.ndarray:
    """The same probe's direction on the same square for another piece, drawn for each state: labels permuted."""
    labels = []
    for removed in removals:
        others = [label for label in PIECES if label != removed.label]
        labels.append(int(generator(spec.seed, f"shuffled-{draw}", removed.state.unit).choice(others)))
    return piece(spec, weight, removals, labels)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its norm, float32."""
    scaled: np.ndarray = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
    return scaled
