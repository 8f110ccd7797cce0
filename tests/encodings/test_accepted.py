"""The texts that pgn-char-32 accepts as a legal move are exactly those that python-chess accepts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import chess
import pytest

from chessreg.encodings.pgn_char import PgnChar, list_spellings
from tests.quick import quick_first

POSITIONS = {
    "start": chess.STARTING_FEN,
    "castling both sides, ambiguous rooks and knights": "r3k2r/pppq1ppp/2n2n2/3N4/8/2N2N2/PPP2PPP/R3K2R w KQkq - 0 1",
    "castling for Black": "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1",
    "en passant": "rnbqkbnr/ppp1p1pp/8/3pPp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3",
    "promotions with capture": "1n2k3/P1P5/8/8/8/8/8/4K3 w - - 0 1",
    "three queens that reach one square": "4k3/8/8/Q7/8/8/8/Q3K2Q w - - 0 1",
    "in check": "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3",
    "no king": "8/8/3n4/8/2P1R3/8/8/8 w - - 0 1",
}
SQUARES = [f + r for r in "12345678" for f in "abcdefgh"]


def taken(board: chess.Board, text: str) -> bool:
    try:
        return bool(board.parse_san(text))
    except ValueError:
        return False


@pytest.mark.parametrize("name", quick_first(3, POSITIONS))
def test_they_are_the_texts_that_parse_san_takes(name: str) -> None:
    """Every text of python-chess's grammar to a quarter of the targets, with one sign, as all are alike to it."""
    board = chess.Board(POSITIONS[name])
    found = list_spellings(board)
    assert all(taken(board, text) for text in found)
    assert {board.san(move) for move in board.legal_moves} <= found
    targets = sorted({chess.square_name(move.to_square) for move in board.legal_moves})
    promotions = ["", "=Q", "q", "=b", "N"] if any(move.promotion for move in board.legal_moves) else ["", "=Q"]
    targets += ["h1", "a1", "h8", "a8"]  # castling written as the king taking its rook
    heads = itertools.product(["", *"NBKRQ"], ["", *"abcdefgh"], ["", *"12345678"], targets[::4], promotions)
    grammar = {"".join(parts) + "+" for parts in heads} | {"O-O+", "O-O-O+", "0-0+", "0-0-0+", "--", "Z0", "0000"}
    assert {text for text in grammar if taken(board, text)} == grammar & found


def test_null_moves_are_refused_and_an_alphabet_restricts() -> None:
    board = chess.Board("1n2k3/P1P5/8/8/8/8/8/4K3 w - - 0 1")
    assert not {"--", "Z0", "0000", "@@@@"} & list_spellings(board)
    model = list_spellings(board, PgnChar.vocabulary)
    assert model == {text for text in list_spellings(board) if set(text) <= set(PgnChar.vocabulary)}
    assert {"a8=Q", "a8Q", "a7xb8=b#", "a7-a8N+"} <= model
    assert not any(set(text) & set("nrq") for text in model)


ORDERS = """
import sys, chess
from chessreg.encodings import get_encoding, list_encodings
for fen in sys.argv[1:]:
    board = chess.Board(fen)
    for name in list_encodings():
        made = get_encoding(name)
        print(name, list(made.answers(board).items()), made.accepted_texts(board), made.accepted_ids(board))
"""


def test_their_order_is_the_same_in_every_process() -> None:
    """Probabilities are added up in it, and the order of a set of texts follows PYTHONHASHSEED."""
    command = [sys.executable, "-c", ORDERS, *list(POSITIONS.values())[1:3]]
    said = [subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert len(said[0]) > 1000
    assert said[0] == said[1]
