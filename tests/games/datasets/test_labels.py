"""Labels of positions: a golden board of Karvonen's code, and its classes."""

from __future__ import annotations

from itertools import pairwise

import chess
import numpy as np
import pytest

from chessreg.errors import NotFoundError
from chessreg.games.datasets import labels
from chessreg.games.datasets.labels import GamePositions, get_label
from chessreg.games.datasets.movetext import number_sans
from chessreg.games.datasets.reader import get_reader
from chessreg.noise import generator
from tests.replays import replay_texts

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


@pytest.mark.parametrize("name", ["rust", "python"])
def test_the_golden_board(name: str) -> None:
    boards, offsets = replay_texts([";1.e4 e5 2.Nf3"], name=name)
    assert offsets.tolist() == [0, 4]
    assert boards.dtype == np.int8
    assert boards[3].reshape(8, 8).tolist() == GOLDEN


def ask(*texts: str, plies: list[int] | None = None) -> GamePositions:
    """Every position of these games, or those after `plies` plies of the first."""
    lengths = [len(text.split()) + 1 if text != ";" else 1 for text in texts]
    game = np.repeat(np.arange(len(texts)), lengths)
    ply = np.concatenate([np.arange(n) for n in lengths])
    if plies is not None:
        game, ply = np.zeros(len(plies), int), np.array(plies)
    played = get_reader("python").play([text.removeprefix(";") for text in texts])
    packed = [played.moves[low:high].tobytes() for low, high in pairwise(played.offsets)]
    return GamePositions(packed, game, ply, 100 + np.arange(len(texts)), lambda: list(texts))


def read(name: str, positions: GamePositions) -> np.ndarray:
    of = get_label(name).compute
    assert of is not None
    found = of(positions)
    assert found.dtype == np.int8
    assert found.shape == (len(positions), get_label(name).squares)
    assert found.min() >= 0
    assert found.max() < len(get_label(name).classes)
    return found


def random_texts(number: int = 8, plies: int = 120) -> tuple[list[str], list[chess.Board]]:
    """Games of random moves with the boards after each ply."""
    texts, boards = [], []
    for game in range(number):
        random, board, words = generator("labels", game), chess.Board(), []
        boards.append(board.copy())
        while len(words) < plies and (moves := list(board.legal_moves)):
            words.append(board.san_and_push(moves[int(random.integers(len(moves)))]))
            boards.append(board.copy())
        texts.append(number_sans(words))
    return texts, boards


def test_piece_classes_are_absolute_and_six_is_empty() -> None:
    found = read("piece", ask(";1.e4 e5 2.Nf3"))
    assert np.array_equal(found[3].reshape(8, 8), np.array(GOLDEN) + 6)
    names = get_label("piece").classes
    assert len(names) == 13
    assert [names[c] for c in found[3, [4, 60, 28, 36, 63, 30]]] == ["K", "k", "P", "p", "r", "."]


def test_color_is_whose_piece_it_is() -> None:
    found = read("color", ask(";1.e4 e5 2.Nf3"))
    assert np.array_equal(found[3].reshape(8, 8), np.sign(GOLDEN) + 1)


def test_threats_legal_moves_and_pins_are_those_of_python_chess() -> None:
    texts, boards = random_texts()
    positions = ask(*texts)
    assert len(positions) == len(boards)
    threats, legal, pins = (read(name, positions) for name in ("threat", "legal-move", "pin"))
    for i, board in enumerate(boards):
        assert threats[i].tolist() == [int(board.is_attacked_by(not board.turn, s)) for s in chess.SQUARES]
        targets = {move.to_square for move in board.legal_moves}
        assert np.flatnonzero(legal[i]).tolist() == sorted(targets)
        own = chess.SquareSet(board.occupied_co[board.turn])
        assert pins[i, 0] == any(board.is_pinned(board.turn, square) for square in own)
    assert 0 < pins.sum() < len(pins)


def test_the_previous_board_is_25_plies_old_and_empty_before_the_game() -> None:
    texts, _ = random_texts(1)
    positions = ask(texts[0], plies=[24, 25, 30, 80])
    found = read("previous-move", positions)
    pieces = read("piece", ask(texts[0]))
    assert (found[0] == 6).all()
    assert np.array_equal(found[1:], pieces[[0, 5, 55]])


def test_random_labels_are_even_and_depend_on_game_ply_and_square_alone() -> None:
    texts, _ = random_texts(4)
    found = read("random", ask(*texts))
    shares = np.bincount(found.ravel(), minlength=3) / found.size
    assert np.abs(shares - 1 / 3).max() < 0.01
    assert np.array_equal(found[: len(read("random", ask(texts[0])))], read("random", ask(texts[0])))
    same_position = [0, len(texts[0].split()) + 1]  # the initial position of two games
    assert (found[same_position[0]] != found[same_position[1]]).mean() > 0.3


def test_positions_are_asked_game_by_game_and_come_back_in_their_places(world_session) -> None:
    games = world_session.dataset("sample")
    item = np.array([7, 3, 7, 3, 5])
    ply = np.array([4, 0, 2, 6, 9])
    boards = np.zeros((5, 64), np.int8)
    for rows, positions in labels.iterate_positions(games, item, ply):
        assert positions.item.tolist() == item[rows].tolist()
        boards[rows] = positions.boards
    for row in range(5):
        alone, _ = replay_texts(games.texts(item[row : row + 1]))
        assert np.array_equal(boards[row], alone[ply[row]])


def test_a_label_is_registered_once_and_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(ValueError, match="already"):
        labels.register_label(get_label("piece"))
    with pytest.raises(NotFoundError) as caught:
        get_label("eval")
    assert "legal-move" in caught.value.hint
