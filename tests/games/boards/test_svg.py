"""Frames as pictures and as text."""

from __future__ import annotations

from xml.etree import ElementTree

import chess

from chessreg.games.boards.boardframe import BoardFrame
from chessreg.games.boards.picture import render_svg, render_text

SVG = "{http://www.w3.org/2000/svg}"


def frame(**changes: object) -> BoardFrame:
    board = chess.Board()
    for san in ("e4", "f5", "Qh5+"):
        board.push_san(san)
    values: dict = {"title": 'The "queen" & <check>', "marks": {chess.A1: "removed"}, "caption": ["first", "second"]}
    return BoardFrame.from_board(board, **{**values, **changes})


def test_the_svg_is_one_well_formed_picture_with_title_and_caption() -> None:
    root = ElementTree.fromstring(render_svg(frame(), size=300))
    assert (root.tag, root.get("width")) == (f"{SVG}svg", "300")
    texts = [text.text for text in root.findall(f"{SVG}g/{SVG}text")]
    assert texts == ['The "queen" & <check>', "first", "second"]
    assert int(root.get("height") or 0) > 300
    assert root.findtext(f"{SVG}desc") == "a1 removed; e8 check"


def test_without_title_and_caption_the_picture_is_the_board() -> None:
    root = ElementTree.fromstring(render_svg(BoardFrame("", "." * 64), size=200))
    assert (root.get("width"), root.get("height")) == ("200", "200")


def test_every_mark_the_heat_and_the_arrows_change_the_picture() -> None:
    plain = render_svg(frame())
    changed = [
        render_svg(frame(marks={chess.A1: mark})) for mark in ("removed", "illegal", "target", "from", "to", "check")
    ]
    changed.append(render_svg(frame(heat={chess.D4: 0.5}, heat_label="P(white pawn)")))
    changed.append(render_svg(frame(heat={chess.D4: 1.0}, heat_label="P(white pawn)")))
    changed.append(render_svg(frame(arrows=[("e2e4", 1.0, "")])))
    changed.append(render_svg(frame(arrows=[("e2e4", 0.1, "")])))
    changed.append(render_svg(frame(flipped=True)))
    changed[0] = plain  # the frame's own mark
    assert len(set(changed)) == len(changed)
    assert "heat: P(white pawn)" in changed[6]


def test_the_text_is_a_board_that_one_can_read() -> None:
    text = render_text(frame())
    assert text.splitlines() == [
        'The "queen" & <check>',
        "8  ♜  ♞  ♝  ♛  ♚+ ♝  ♞  ♜",
        "7  ♟  ♟  ♟  ♟  ♟  ·  ♟  ♟",
        "6  ·  ·  ·  ·  ·  ·  ·  ·",
        "5  ·  ·  ·  ·  ·  ♟  ·  ♕",
        "4  ·  ·  ·  ·  ♙  ·  ·  ·",
        "3  ·  ·  ·  ·  ·  ·  ·  ·",
        "2  ♙  ♙  ♙  ♙  ·  ♙  ♙  ♙",
        "1  ♖x ♘  ♗  ·  ♔  ♗  ♘  ♖",
        "   a  b  c  d  e  f  g  h",
        "x removed: a1",
        "+ check: e8",
        "first",
        "second",
    ]


def test_the_text_is_turned_with_the_board_and_shows_heat_and_arrows() -> None:
    text = render_text(
        frame(flipped=True, heat={chess.E4: 0.75, chess.A8: 0.2}, heat_label="P(move)", arrows=[("e2e4", 0.5, "best")]),
    )
    lines = text.splitlines()
    assert lines[1].startswith("1  ♖")
    assert lines[1].index("♘") < lines[1].index("♗") < lines[1].index("♔")
    assert "♙ ▆" in lines[4]
    assert lines[9] == "   h   g   f   e   d   c   b   a"
    assert "heat is P(move)" in lines
    assert "e2-e4 0.50 best" in lines
    figurines = render_text(frame(heat={chess.E4: 1.0}))
    assert "♙ █" in figurines
    assert "♚+" in figurines
