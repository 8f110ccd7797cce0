"""Controls: directions that replace the one under test.

Every draw is keyed by the seed, the number of the draw and the state. It does not depend on batch, layer set or scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from chessreg.named import NameRegistry
from chessreg.noise import Stream, generator
from chessreg.steering.directions import EMPTY, Change, normalize_rows, scale_to_norm

# Sources of a condition other than the edit itself: other probes, the residual of a later board, and controls.
OTHER, PATCH = "other", "patch"
RANDOM, SHUFFLED = "random", "shuffled"  # a drawn direction; the direction of another piece
WRONG_LAYER, SHAM, ENCODE_DECODE = "wrong-layer", "sham", "encode-decode"

Control = Callable[[np.ndarray, int, int], np.ndarray]
"""(direction float32 [d_model], layer, seed) → the direction that replaces it, float32 [d_model]."""

CONTROLS: NameRegistry[Control] = NameRegistry("control")
"""Controls of a vector that is added at every token."""

CONTROLS.register("none", lambda direction, layer, seed: direction)


@CONTROLS.named(RANDOM)
def draw_random_like(direction: np.ndarray, layer: int, seed: int) -> np.ndarray:
    """Return a direction float32 [d_model] drawn uniformly from the sphere, with the norm of `direction`."""
    noise = generator(seed, Stream.RANDOM_DIRECTION, layer).standard_normal(direction.shape)
    return scale_to_norm(noise, float(np.linalg.norm(direction)))


def draw_random_directions(seed: int, draw: int, layer: int, units: Iterable[int], width: int) -> np.ndarray:
    """Return unit vectors drawn uniformly from the sphere, one for each unit, float32 [units, width]. They depend on
    `seed`, `draw` (the number of the control), `layer` and unit alone."""
    keys = [(seed, f"{Stream.RANDOM}-{draw}", layer, number) for number in units]
    return normalize_rows(np.stack([generator(*key).standard_normal(width) for key in keys]))


def draw_uniform_matrix_directions(
    seed: int, draw: int, layer: int, units: Iterable[int], shape: tuple[int, int]
) -> np.ndarray:
    """Return one row of a matrix [layers, d_model] of uniform numbers, divided by the norm of the whole matrix.

    The matrix is drawn for each unit, and the row is that of `layer`. The result is float32 [units, d_model], as in
    Davis's code. With 12 layers its length is about 0.29.
    """
    rows = []
    for number in units:
        values = generator(seed, f"{Stream.UNIFORM}-{draw}", number).random(shape)
        rows.append(values[layer] / np.linalg.norm(values))
    return np.stack(rows).astype(np.float32)


def shuffle_pieces(
    seed: int, draw: int, unit: int, changes: Iterable[Change], pieces: Callable[[int], Sequence[int]]
) -> list[Change]:
    """Return the changes with another piece in place of each, drawn for each state: the shuffled-label control.

    `pieces` gives the classes to draw from on a square. The piece itself is never drawn.
    """
    random, other_pieces = generator(seed, f"{Stream.SHUFFLED}-{draw}", unit), []
    for square, *classes in changes:
        draws = [
            c if c == EMPTY else int(random.choice([label for label in pieces(square) if label != c])) for c in classes
        ]
        other_pieces.append((square, draws[0], draws[1]))
    return other_pieces


def find_wrong_layer(layer: int, layers: int) -> int:
    """Return the layer that is half the model's depth away from `layer`."""
    return (layer + layers // 2) % layers
