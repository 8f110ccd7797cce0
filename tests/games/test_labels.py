"""Labels of positions: the golden board of Karvonen's specification 11.2 and the classes of 3.1."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.errors import NotFoundError
from chessreg.games import labels
from chessreg.games.labels import label
from chessreg.games.reader import boards_of

GOLDEN = [
    [4, 2, 3, 5, 6, 3, 0, 4],
    [1, 1, 1, 1, 0, 1, 1, 1],
    [0, 0, 0, 0, 0, 2, 0, 0],
    [0, 0, 0, 0, 1, 0, 0, 0],
    [0, 0, 0, 0, -1, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0],
    [-1, -1, -1, -1, 0, -1, -1, -1],
    [-4, -2, -3, -5, -6, -3, -2, -4],
]


@pytest.mark.parametrize("reader", ["rust", "python"])
def test_the_golden_board(reader: str) -> None:
    boards, offsets = boards_of([";1.e4 e5 2.Nf3"], name=reader)
    assert offsets.tolist() == [0, 4]
    assert boards.dtype == np.int8
    assert boards[3].reshape(8, 8).tolist() == GOLDEN


def test_piece_classes_are_absolute_and_six_is_empty() -> None:
    boards, _ = boards_of([";1.e4 e5 2.Nf3"])
    found = label("piece").of(boards)
    assert found.dtype == np.int8
    assert np.array_equal(found[3].reshape(8, 8), np.array(GOLDEN) + 6)
    names = label("piece").classes
    assert len(names) == 13
    assert [names[c] for c in found[3, [4, 60, 28, 36, 63, 30]]] == ["K", "k", "P", "p", "r", "."]


def test_a_label_is_registered_once_and_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(ValueError, match="already"):
        labels.register(label("piece"))
    with pytest.raises(NotFoundError) as caught:
        label("threat")
    assert "piece" in caught.value.hint
