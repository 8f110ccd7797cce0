"""The boards of game texts, as a reader plays them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessreg.games.datasets.reader import get_reader


def replay_texts(texts: Sequence[str], *, cut: bool = False, name: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Return (boards int8 [positions, 64], offsets int64 [texts + 1]) of game texts; with `cut` up to a broken move."""
    boards, offsets, errors = get_reader(name).boards([text.removeprefix(";") for text in texts])
    assert cut or not errors, errors
    return boards, offsets
