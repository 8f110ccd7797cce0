"""Positions as people type them."""

from __future__ import annotations

import chess
import pytest

from chessreg.errors import BadInputError
from chessreg.games.boards.typed import parse_typed_sans, play_sans


@pytest.mark.parametrize(
    "text", ["e4 e5 Nf3", "1. e4 e5 2. Nf3", "1.e4 e5 2.Nf3", "e2e4 e7e5 g1f3", "1.e4 1...e5 2.Ngf3"]
)
def test_every_spelling_is_one(text: str) -> None:
    assert parse_typed_sans(text) == ("e4", "e5", "Nf3")


def test_a_fen_is_the_shortest_game_to_it() -> None:
    board = play_sans(("d4", "Nf6", "c4"))
    assert play_sans(parse_typed_sans(board.fen())).board_fen() == board.board_fen()
    assert parse_typed_sans(chess.STARTING_FEN) == parse_typed_sans("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("e4 e5 Ke3", "2.Ke3 is not legal"),
        ("e4 --", "not legal"),
        ("8/8/8 w", "not a FEN"),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "not a legal chess position"),
    ],
)
def test_what_is_no_position_is_told(text: str, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        parse_typed_sans(text)
