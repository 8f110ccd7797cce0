"""What is subtracted: the probe's direction for the piece on its square, or a control in its place.

Every function gives unit vectors float32 [state, d_model], one for each removal, for one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chessreg.experiments.edit.kind import EditSpec
from chessreg.experiments.edit.states import Removal
from chessreg.named import Registry
from chessreg.noise import generator

EMPTY = 6
PIECES = tuple(label for label in range(13) if label != EMPTY)

Control = Callable[[EditSpec, np.ndarray, int, Sequence[Removal], int], np.ndarray]
"""(spec, probe float32 [d_model, 64, 13], layer, removals, number of the draw) → float32 [state, d_model]."""

CONTROLS: Registry[Control] = Registry("control")


def piece(spec: EditSpec, weight: np.ndarray, removals: Sequence[Removal], labels: Sequence[int]) -> np.ndarray:
    """piece · p - blank · b, normalised (Karvonen specification 6.2); p for these classes, b for the empty square.

    The probe is normalised as it is, also where its residuals are centred (2.3 there).
    """
    squares = [removed.square for removed in removals]
    blend = spec.piece * weight[:, squares, list(labels)] - spec.blank * weight[:, squares, EMPTY]
    return unit(blend.T)


@CONTROLS.named("random")
def random(spec: EditSpec, weight: np.ndarray, layer: int, removals: Sequence[Removal], draw: int) -> np.ndarray:
    """A direction drawn uniformly from the sphere for each state and layer: the same one at every scale."""
    keys = [(spec.seed, f"random-{draw}", layer, removed.state.unit) for removed in removals]
    return unit(np.stack([generator(*key).standard_normal(len(weight)) for key in keys]))


@CONTROLS.named("shuffled")
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
