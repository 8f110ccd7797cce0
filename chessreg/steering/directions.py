"""Directions read off fitted probes: of pieces on squares, of changes of a board, and of classes of skill.

The weights of a probe are float32 [d_model, squares, classes]. The classes of boards are 0 black king … 6 empty … 12
white king.
"""

from __future__ import annotations

from collections.abc import Sequence

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.datasets.labels import PIECE_CLASSES, parse_board_changes
from chessreg.runs.fitted import Direction

EMPTY = PIECE_CLASSES.index(".")
PIECES = tuple(label for label in range(len(PIECE_CLASSES)) if label != EMPTY)

Change = tuple[int, int, int]
"""A square, the class of its present occupant, and the class of its new occupant."""


def classify_piece(piece: chess.Piece | None) -> int:
    """Return the class of the occupant of a square, 0 to 12; EMPTY for None."""
    return EMPTY if piece is None else EMPTY + piece.piece_type * (1 if piece.color else -1)


def normalize_rows(vectors: np.ndarray) -> np.ndarray:
    """Return `vectors` float [n, d] with each row divided by its norm, float32."""
    unit_vectors: np.ndarray = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
    return unit_vectors


def scale_to_norm(direction: np.ndarray, norm: float) -> np.ndarray:
    """Return a direction float32 [d_model] scaled to `norm`. Raises BadInputError for the zero vector."""
    current_norm = np.linalg.norm(direction.astype(np.float64))
    if not current_norm > 0:
        raise BadInputError("a direction of norm 0 cannot be scaled", "choose classes whose directions differ")
    return (direction.astype(np.float64) * (norm / current_norm)).astype(np.float32)


def find_known_pieces(weight: np.ndarray, square: int) -> list[int]:
    """Return the classes of the pieces for which a probe has a direction on a square.

    Differences of means have no direction for a piece that was rarely observed there.
    """
    return [label for label in PIECES if weight[:, square, label].any()]


def compute_piece_directions(
    weight: np.ndarray, squares: Sequence[int], labels: Sequence[int], piece: float, blank: float
) -> np.ndarray:
    """Return piece · p - blank · b, normalized, float32 [states, d_model] (Karvonen 2024, section 4.2).

    p is the direction in `weight` [d_model, 64, 13] of the class in `labels` on the state's square, and b that of the
    empty square. The weights are used as fitted, even where the probe reads centred residuals.
    """
    blend = piece * weight[:, list(squares), list(labels)] - blank * weight[:, list(squares), EMPTY]
    return normalize_rows(blend.T)


def compute_change_directions(
    weight: np.ndarray, changes: Sequence[Sequence[Change]], piece: float, blank: float, remove_class_mean: bool = False
) -> np.ndarray:
    """Return the appearing classes minus the disappearing ones, normalized, float32 [boards, d_model].

    weight float32 [d_model, 64, 13]. A piece counts with coefficient `piece`, the empty square with `blank` (0: it is
    ignored, as in Davis's code). For one removed piece the result is the negative of
    `compute_piece_directions`. A row is zero where the probe has no direction for one of the classes.
    `remove_class_mean` first subtracts the mean of the square's classes.
    """
    if remove_class_mean:
        has_direction = np.linalg.norm(weight, axis=0, keepdims=True) > 0
        weight = np.where(has_direction, weight - weight.mean(axis=2, keepdims=True), 0.0)
    vectors = np.zeros((len(changes), len(weight)))
    for row, change in enumerate(changes):
        terms = [(square, label, sign) for square, old, new in change for label, sign in ((new, 1.0), (old, -1.0))]
        scaled_vectors = [
            sign * (blank if label == EMPTY else piece) * weight[:, square, label]
            for square, label, sign in terms
            if (blank if label == EMPTY else piece)
        ]
        if all(term.any() for term in scaled_vectors):
            vectors[row] = np.sum(scaled_vectors, axis=0)
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: np.ndarray = (vectors / np.where(size > 0, size, 1.0)).astype(np.float32)
    return units


def compute_board_direction(weight: np.ndarray, board: str) -> Direction:
    """Return the direction along which a board probe reads `board`, such as `d1=. e5=p`, float32 [d_model], not
    normalized.

    It is the sum over the named squares of the class's direction minus the mean of the square's classes. Adding one
    vector to all classes of a square does not change a softmax.
    """
    centred_weight = weight - weight.mean(axis=2, keepdims=True)
    parts = [centred_weight[:, square, PIECE_CLASSES.index(piece)] for square, piece in parse_board_changes(board)]
    return Direction(cast_float32(np.sum(parts, axis=0)))


def compute_class_difference(weight: np.ndarray, side: str = "both") -> Direction:
    """Return highest class minus lowest of a skill probe's weights [d_model, 1, classes] (Karvonen 2024, section 4.1).

    `side` "high" returns the highest class alone, and "low" the negative of the lowest class. Adding either should
    raise skill (Appendix C). For a probe that predicts the rating [d_model, 1, 1], return the direction of rising
    rating. The result is not normalized. Raises BadInputError for a probe of 64 squares, and for one side of a rating
    probe.
    """
    if weight.ndim != 3 or weight.shape[1] != 1:
        raise BadInputError(
            f"a probe of shape {list(weight.shape)} does not have a single class difference",
            "give a skill probe, or name squares of a board probe: --board d1=.",
        )
    if weight.shape[2] == 1:
        if side != "both":
            raise BadInputError(f"a probe that predicts a rating has no {side} class", "leave out --side")
        return Direction(cast_float32(weight[:, 0, 0]))
    low, high = weight[:, 0, 0], weight[:, 0, -1]
    vector = {"both": high - low, "high": high, "low": -low}[side]
    return Direction(cast_float32(vector), cast_float32(high), cast_float32(low))


def cast_float32(values: np.ndarray) -> np.ndarray:
    """Return the values as float32."""
    return values.astype(np.float32)
