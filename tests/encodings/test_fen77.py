"""fen-77 and the 1,968 actions, compared with searchless_chess's tokenizer on golden vectors."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import chess
import numpy as np
import pytest

from chessreg.encodings.fen77 import SQUARE_BY_TOKEN, Fen77, FenError
from chessreg.errors import BadInputError
from chessreg.games.datasets.dataset import Games
from chessreg.noise import generator
from tests.encodings.conftest import GAMES, boards

fen = Fen77()
DIGEST = "0c85cec259a31318539a7171623ab73b01e25cd6d71fd43475e54d6e14f02e09"


def text(position: str) -> str:
    return "".join(fen.vocabulary[number] for number in fen.encode(position))


@pytest.mark.parametrize(
    ("position", "written"),
    [
        (chess.STARTING_FEN, "wrnbqkbnrpppppppp" + 32 * "." + "PPPPPPPPRNBQKBNRKQkq..0..1.."),
        (
            "r1bqkb1r/pppp1ppp/2n2n2/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b Kq e3 12 104",
            "br.bqkb.rpppp.ppp..n..n......p.....B.P........N..PPPP.PPPRNBQK..RKq..e312.104",
        ),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "w" + 64 * "." + "......0..1.."),
    ],
)
def test_golden_texts(position: str, written: str) -> None:
    assert text(position) == written
    assert len(written) == 77
    assert fen.decode(fen.encode(position)) == position


def test_golden_ids_of_the_start() -> None:
    ids = fen.encode(chess.STARTING_FEN).tolist()
    assert ids[:10] == [29, 20, 19, 11, 22, 21, 11, 19, 20, 18]
    assert ids[-12:] == [28, 27, 21, 22, 30, 30, 0, 30, 30, 1, 30, 30]


def test_golden_actions() -> None:
    assert len(fen.actions) == fen.answer_size == 1968
    assert hashlib.sha256("\n".join(fen.actions).encode()).hexdigest() == DIGEST
    for move, number in {
        "a1b1": 0, "e1c1": 99, "e1g1": 102, "g1f3": 169, "e2e4": 317, "e8c8": 1711, "e8g8": 1714, "h8g8": 1789,
        "a2a1q": 1792, "a2a1n": 1795, "a2b1q": 1796, "h2g1q": 1876, "a7a8q": 1880, "b7a8r": 1893, "e7e8q": 1924,
        "h7h8n": 1963, "h7g8n": 1967,
    }.items():  # fmt: skip
        assert fen.action_ids[move] == number


def test_every_legal_move_of_a_game_is_an_action_and_others_are_refused() -> None:
    for name in GAMES:
        for board in boards(name):
            assert all(move.uci() in fen.action_ids for move in board.legal_moves)
    with pytest.raises(BadInputError, match="a1b4"):
        fen.answer(chess.Board(), chess.Move.from_uci("a1b4"))
    with pytest.raises(BadInputError, match="vocabulary"):
        fen.answer_text([1968])


def test_actions_of_packed_moves() -> None:
    moves = [move for name in GAMES for move in boards(name)[-1].move_stack]
    codes = np.array([m.from_square | m.to_square << 6 | (m.promotion or 0) << 12 for m in moves], np.uint16)
    assert fen.encode_actions(codes).tolist() == [fen.action_ids[move.uci()] for move in moves]
    with pytest.raises(BadInputError, match="0000"):
        fen.encode_actions(np.zeros(1, np.uint16))


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1000", "counter above 999"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 1000 1", "counter above 999"),
        ("bqnbnrkr/pppppppp/8/8/8/8/PPPPPPPP/BQNBNRKR w HFhf - 0 1", "Chess960"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -", "4 fields"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR  KQkq - 0 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR x KQkq - 0 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - e5 0 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - e 0 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w kk - x 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - -  1", "not a FEN"),
        ("rnbqkbnr/ppppppppp/7/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP w - - 0 1", "not a FEN"),
        ("rnbqkbnr/pppppppp/9/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1", "not a FEN"),
        ("rnbqkbné/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1", "not a FEN"),
        (" b w w w w", "not a FEN"),
        ("", "1 fields"),
        ("a b c d e f\n", "not a FEN"),
    ],
)
def test_what_has_no_77_characters_is_refused_by_name(position: str, reason: str) -> None:
    """Alone, and behind a good one: the error names the one that is bad."""
    good = boards("castling long for both sides")[-1].fen()
    for fens in ([position], [good, position, good]):
        with pytest.raises(FenError, match=reason) as caught:
            fen.boards(fens)
        assert "\n" not in str(caught.value)
        assert good not in str(caught.value)


def test_squares_are_sites_and_say_which_square_they_are() -> None:
    tokens = fen.boards([boards("en passant for both sides")[-1], chess.STARTING_FEN])
    squares = fen.sites("squares", tokens)
    for item, board in ((0, boards("en passant for both sides")[-1]), (1, chess.Board())):
        for token in squares.token[squares.item == item].tolist():
            piece = board.piece_at(int(SQUARE_BY_TOKEN[token]))
            assert fen.vocabulary[tokens.item(item)[token]] == (piece.symbol() if piece else ".")
    assert sorted(SQUARE_BY_TOKEN[1:65].tolist()) == list(range(64))
    assert (SQUARE_BY_TOKEN[[0, *range(65, 77)]] == -1).all()


def test_the_ply_of_a_position_is_that_of_its_move_number() -> None:
    positions = boards("Davis's promotion")
    assert fen.boards(positions).ply.tolist() == list(range(len(positions)))
    assert fen.boards(["8/8/8/8/8/8/8/8 b - - 0 0", "8/8/8/8/8/8/8/8 w - - 0 123"]).ply.tolist() == [1, 244]


def test_positions_of_random_games_are_those_of_python_chess(tmp_path: Path) -> None:
    """Castling rights, en passant that is legal, both counters, of every position of 12 games of random moves."""
    from chessreg.games.datasets.build import build_dataset
    from tests.conftest import random_game

    (tmp_path / "random.pgn").write_text("".join(f"{random_game(n, 120)}\n\n" for n in range(12)))
    build_dataset([tmp_path / "random.pgn"], tmp_path / "made")
    games = Games(tmp_path / "made")
    tokens = fen.games(games, np.arange(len(games)))
    from chessreg.games.boards.moves import replay_boards

    expected = [board.fen() for packed in games.moves(np.arange(len(games))) for board in replay_boards(packed)]
    assert [fen.decode(tokens.item(number)) for number in range(len(tokens))] == expected
    assert sum(" e" in position or " d" in position for position in expected) > 0


def test_many_positions_are_encoded_as_each_alone_and_quickly() -> None:
    """A hundred thousand in a third of a second of processor where nothing else runs, a million in seconds."""
    every = [board.fen() for name in GAMES for board in boards(name)]
    picked = generator(0, "fens").integers(0, len(every), 100_000).tolist()
    began = time.process_time()
    tokens = fen.boards([every[number] for number in picked])
    assert time.process_time() - began < 3
    for place in range(0, len(picked), 997):
        assert fen.decode(tokens.item(place)) == every[picked[place]]
