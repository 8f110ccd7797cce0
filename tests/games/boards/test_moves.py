"""Boards from packed moves, all games at once, against python-chess a move at a time."""

from __future__ import annotations

from itertools import pairwise

import chess
import numpy as np
import pytest

from chessreg.games.boards.moves import compute_boards_after, pack_moves, replay_boards
from chessreg.noise import generator
from tests.replays import replay_texts

SPECIAL = {
    "en passant by White": "e4 a6 e5 d5 exd6 cxd6",
    "en passant by Black": "a3 d5 b3 d4 e4 dxe3 fxe3",
    "castling, both ways": "e4 e5 Nf3 Nc6 Bc4 d6 O-O Bg4 c3 Qe7 b3 O-O-O",
    "promotions, one a capture": "a4 b5 axb5 a6 bxa6 g5 a7 g4 axb8=N g3 Nc6 gxh2 Nd4 hxg1=Q",
    "no move": "",
}


def pieces(board: chess.Board) -> list[int]:
    at = (board.piece_at(square) for square in chess.SQUARES)
    return [0 if piece is None else piece.piece_type * (1 if piece.color else -1) for piece in at]


def random_game(number: int) -> bytes:
    rng, board = generator(3, "boards after", number), chess.Board()
    for _ in range(int(rng.integers(0, 300))):
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(moves[int(rng.integers(len(moves)))])
    return pack_moves(board.move_stack)


@pytest.mark.parametrize("name", SPECIAL)
def test_each_special_move_is_that_of_python_chess(name: str) -> None:
    board = chess.Board()
    for san in SPECIAL[name].split():
        board.push_san(san)
    packed = pack_moves(board.move_stack)
    boards, offsets = compute_boards_after([packed])
    assert offsets.tolist() == [0, len(board.move_stack) + 1]
    assert boards.tolist() == [pieces(after) for after in replay_boards(packed)]


def test_games_of_any_length_together_are_those_of_python_chess() -> None:
    games = [b"", *map(random_game, range(40)), b""]
    boards, offsets = compute_boards_after(games)
    assert boards.dtype == np.int8
    for packed, (low, high) in zip(games, pairwise(offsets), strict=True):
        assert boards[low:high].tolist() == [pieces(after) for after in replay_boards(packed)]
    none, zero = compute_boards_after([])
    assert none.shape == (0, 64)
    assert zero.tolist() == [0]


def test_the_boards_of_a_text_are_those_of_its_moves() -> None:
    text = ";1.e4 e5 2.Nf3 Nc6 3.Bb5 a6 4.Bxc6 dxc6 5.O-O"
    board = chess.Board()
    for word in text[1:].split():
        board.push_san(word.split(".")[-1])
    for ours, read in zip(compute_boards_after([pack_moves(board.move_stack)]), replay_texts([text]), strict=True):
        assert np.array_equal(ours, read)
