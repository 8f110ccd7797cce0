"""Board frames are data that cannot be wrong or change."""

from __future__ import annotations

from dataclasses import replace

import chess
import pytest

from chessreg.errors import BadInputError
from chessreg.games.boards.boardframe import Arrow, BoardFrame, list_game_views
from chessreg.games.boards.picture import render_svg


def test_a_frame_of_a_board_has_its_pieces_last_move_and_check() -> None:
    board = chess.Board()
    for san in ("e4", "f5", "Qh5+"):
        board.push_san(san)
    frame = BoardFrame.from_board(board, "check")
    assert frame.squares[:8] == "RNB.KBNR"
    assert frame.squares[chess.H5] == "Q"
    assert frame.last_move == (chess.D1, chess.H5)
    assert dict(frame.marks) == {chess.E8: "check"}
    assert frame.fen == board.board_fen()


def test_any_placement_makes_a_frame_legal_or_not() -> None:
    frame = BoardFrame.from_fen("8/8/8/8/8/8/8/QQQQQQQQ")
    assert frame.squares == "Q" * 8 + "." * 56
    assert BoardFrame.from_fen(chess.STARTING_FEN).squares.count(".") == 32
    with pytest.raises(BadInputError, match="not a FEN"):
        BoardFrame.from_fen("nonsense")


def test_arrows_are_squares_or_moves_with_weight_and_label() -> None:
    board = chess.Board()
    arrows = [("e2e4", 0.5, "e4", "best"), (1, 18), (0, 63, 0.25, "x"), Arrow(2, 3)]
    frame = BoardFrame.from_board(board, arrows=arrows)
    assert frame.arrows == (
        (12, 28, 0.5, "e4", "best"),
        (1, 18, 1.0, "", ""),
        (0, 63, 0.25, "x", ""),
        (2, 3, 1.0, "", ""),
    )
    assert BoardFrame("", "." * 64, arrows=((0, 1, 0.5, "a"),)).arrows[0].label == "a"  # type: ignore[arg-type]
    for wrong in (("e2", 1.0, ""), (1,), (1, 99)):
        with pytest.raises(BadInputError):
            BoardFrame.from_board(board, arrows=[wrong])


def test_heat_is_given_by_square_or_as_sixty_four_numbers() -> None:
    board = chess.Board()
    assert BoardFrame.from_board(board, heat={chess.E4: 1.0}).heat == {28: 1.0}
    full = BoardFrame.from_board(board, heat=[index / 63 for index in range(64)]).heat
    assert full is not None
    assert (full[0], full[63]) == (0.0, 1.0)
    with pytest.raises(BadInputError, match="heat"):
        BoardFrame.from_board(board, heat={0: 1.5})
    with pytest.raises(BadInputError, match="heat"):
        BoardFrame.from_board(board, heat={0: float("nan")})


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(BadInputError, match="64 letters"):
        BoardFrame("", "." * 63)
    with pytest.raises(BadInputError, match="square 64"):
        BoardFrame("", "." * 64, marks={64: "target"})
    with pytest.raises(BadInputError, match="the mark 'pretty' does not exist"):
        BoardFrame("", "." * 64, marks={0: "pretty"})  # type: ignore[dict-item]


def test_a_frame_does_not_change_under_its_viewer() -> None:
    marks = {chess.E4: "target"}
    frame = BoardFrame("", "." * 64, marks=marks)  # type: ignore[arg-type]
    marks[chess.E5] = "target"
    assert dict(frame.marks) == {chess.E4: "target"}
    with pytest.raises(TypeError):
        frame.marks[chess.E5] = "target"  # type: ignore[index]
    more = frame.with_marks({chess.A1: "removed"}, ["gone"])
    assert (dict(frame.marks), frame.caption) == ({chess.E4: "target"}, ())
    assert (more.marks[chess.A1], more.caption) == ("removed", ("gone",))


def test_ranks_are_in_the_order_of_drawing() -> None:
    frame = BoardFrame("", "." * 64)
    assert (frame.ranks()[0][0], frame.ranks()[7][7]) == (chess.A8, chess.H1)
    turned = BoardFrame("", "." * 64, flipped=True)
    assert (turned.ranks()[0][0], turned.ranks()[7][7]) == (chess.H1, chess.A8)


def test_a_game_is_one_frame_a_ply_with_its_illegal_tries() -> None:
    frames = list_game_views(["e2e4", "e7e5"], "game 7", tries={1: ["Ke9"], 2: ["Qz9", "O-O"]})
    assert [frame.caption for frame in frames] == [
        ("start",),
        ("1. e4",),
        ("1... e5", "illegal first: Ke9", "then only illegal: Qz9, O-O"),
    ]
    assert frames[0].last_move is None
    assert frames[2].last_move == (chess.E7, chess.E5)
    with pytest.raises(BadInputError, match="ply 0: e2e5"):
        list_game_views(["e2e5"])


def test_the_shade_of_doubt_grows_as_the_probability_of_the_truth_falls() -> None:
    frame = BoardFrame.from_board(chess.Board(), heat={0: 1.0, 1: 0.75, 2: 0.0}, heat_label="truth", marks={2: "wrong"})
    assert not frame.doubts
    assert [frame.shade(square) for square in range(4)] == [1.0, 0.75, 0.0, None]
    doubt = replace(frame, heat_range=(1.0, 0.0))
    assert doubt.doubts
    assert [doubt.shade(square) for square in range(4)] == [0.0, 0.25, 1.0, None]
    assert doubt.squares_right == 63
    assert "heat: truth, shaded if low" in render_svg(doubt)
    assert "shaded" not in render_svg(frame)
