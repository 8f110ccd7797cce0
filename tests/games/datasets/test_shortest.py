"""The shortest game to a position, and books of positions."""

from __future__ import annotations

from pathlib import Path

import chess
import pytest

from chessreg.errors import BadInputError
from chessreg.games.boards.openings import Book, make_openings, parse_opening
from chessreg.games.boards.typed import find_shortest_game
from chessreg.noise import generator


def after(*sans: str) -> chess.Board:
    board = chess.Board()
    for san in sans:
        board.push_san(san)
    return board


@pytest.mark.parametrize(
    "sans",
    [
        (),
        ("e4",),
        ("e4", "c5"),
        ("Nf3", "d5", "Ng1"),  # a piece moves twice, and the way back is the shortest one
        ("e4", "e5", "Nf3", "Nc6", "Bb5", "a6"),
        ("e4", "d5", "exd5", "Qxd5"),
        ("e4", "e5", "Nf3", "Nf6", "Bc4", "Bc5", "O-O"),
        ("e4", "Nf6", "e5", "d5"),  # with en passant
    ],
)
def test_the_game_found_leads_to_the_position(sans: tuple[str, ...]) -> None:
    target = after(*sans)
    moves = find_shortest_game(chess.Board(f"{target.board_fen()} {' '.join(target.fen().split()[1:4])} 0 1"))
    board = chess.Board()
    for move in moves:
        assert move in board.legal_moves
        board.push(move)
    assert board.epd() == target.epd()
    assert len(moves) <= len(sans)


def test_castling_rights_count() -> None:
    lost = after("e4", "a6", "Ke2", "b6", "Ke1", "c6")
    kept = chess.Board(f"{lost.board_fen()} w KQkq - 0 4")
    visits = [chess.E1 in {move.to_square for move in find_shortest_game(board)} for board in (lost, kept)]
    assert visits == [True, False]


@pytest.mark.parametrize(
    ("fen", "plies"), [("4P3/8/PPPP1PPP/RNBQKBNR b Kkq -", 9), ("8/8/PPPPPPPP/RNBQKBNR w - -", None)]
)
def test_a_right_that_is_lost_at_home_took_a_way_and_its_way_back(fen: str, plies: int | None) -> None:
    board = chess.Board(f"rnbqkbnr/pppppppp/8/8/{fen} 0 1")
    if plies is None:
        with pytest.raises(BadInputError, match="no game of 6 plies"):
            find_shortest_game(board, max_plies=6)
        return
    assert len(find_shortest_game(board)) == plies


def test_a_position_too_far_from_the_start_is_refused() -> None:
    with pytest.raises(BadInputError, match="no game of 4 plies") as error:
        find_shortest_game(chess.Board("4k3/8/8/8/8/8/8/4K3 w - - 0 1"), max_plies=4)
    assert "PGN" in error.value.hint


@pytest.mark.slow
def test_random_openings_of_six_plies_are_found_again() -> None:
    for number in range(6):
        draw, board = generator("shortest", number), chess.Board()
        for _ in range(6):
            moves = sorted(board.legal_moves, key=chess.Move.uci)
            board.push(moves[int(draw.integers(len(moves)))])
        found = chess.Board()
        for move in find_shortest_game(board):
            found.push(move)
        assert found.epd() == board.epd()


def test_an_epd_book_is_played_from_its_positions(tmp_path: Path) -> None:
    path = tmp_path / "book.epd"
    path.write_text(
        "r1bqkbnr/1ppp1ppp/p1n5/1B2p3/4P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 0 4\n"
        'rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - id "Sicilian"; c0 "x";\n\n'
    )
    assert [line.name for line in Book.read(path).lines] == ["", "Sicilian"]
    found = make_openings(parse_opening(f"book:{path}"), 0, range(2))
    assert {opening.board().epd() for opening in found} == {
        "r1bqkbnr/1ppp1ppp/p1n5/1B2p3/4P3/5N2/PPPP1PPP/RNBQK2R w KQkq -",
        "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq -",
    }
    for opening in found:
        board = chess.Board()
        for san in opening.sans:
            board.push_san(san)


@pytest.mark.parametrize("line", ["not a position at all", "7k/5Q2/6K1/8/8/8/8/8 b - -"])
def test_a_line_that_is_no_position_to_play_from_says_so(tmp_path: Path, line: str) -> None:
    path = tmp_path / "book.epd"
    path.write_text(line + "\n")
    with pytest.raises(BadInputError, match=r"book\.epd: line 1"):
        make_openings(parse_opening(f"book:{path}"), 0, [0])


@pytest.mark.slow
def test_the_real_books_are_read(shared_data: Path) -> None:
    for name, least in (("karvonen-openings.csv", 9_000), ("noob_3moves.epd.zip", 150_000), ("2moves_v2.pgn.zip", 500)):
        path = shared_data / "openings" / name
        assert len(Book.read(path).lines) >= least
        for opening in make_openings(parse_opening(f"book:{path}"), 0, range(5)):
            assert not opening.board().is_game_over()
