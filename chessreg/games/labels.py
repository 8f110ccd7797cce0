"""What a probe is asked about a position: label functions from boards to classes. Registered by name.

Boards are int8 [positions, 64], squares a1, b1 … h8 (rank * 8 + file), P=1 N=2 B=3 R=4 Q=5 K=6, negative for Black.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chessreg.errors import NotFoundError


@dataclass(frozen=True)
class Label:
    """A label per square. `of`: boards int8 [positions, 64] -> classes int8 [positions, 64], 0..len(classes)-1."""

    name: str
    classes: tuple[str, ...]
    of: Callable[[np.ndarray], np.ndarray]


_labels: dict[str, Label] = {}


def register(label: Label) -> None:
    """Make a label known by its name. ValueError when the name is taken."""
    if label.name in _labels:
        raise ValueError(f"label {label.name!r} is already registered")
    _labels[label.name] = label


def names() -> list[str]:
    """All registered names, in the order of their registration."""
    return list(_labels)


def label(name: str) -> Label:
    """The label of this name. NotFoundError lists those that there are."""
    if name not in _labels:
        raise NotFoundError(f"no label {name!r}", f"known: {', '.join(_labels)}")
    return _labels[name]


def piece(boards: np.ndarray) -> np.ndarray:
    """The piece on each square, absolute colours, int8: 0 black king … 6 empty … 12 white king (Karvonen 3.1)."""
    return boards.astype(np.int8, copy=False) + np.int8(6)


PIECE_CLASSES = tuple("kqrbnp.PNBRQK")

register(Label("piece", PIECE_CLASSES, piece))
