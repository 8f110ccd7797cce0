"""The board as cells of text: every size, both sides up, marks and numbers that need no colour."""

from __future__ import annotations

import chess
import pytest

from chessreg.games.boardframe import MARKS, BoardFrame, game_frames
from tui.app import ChessregApp
from tui.columns import GAP, KEPT, Column, fitted, widths
from tui.data.result_rows import columns_of
from tui.widgets import board
from tui.widgets.board import SIZES, SQUARE, Glyphs, Size, draw, extent, legend
from tui.widgets.moves import line_of, tries, with_tries

START = """\
8 r n b q k b n r
7 p p p p p p p p
6 . . . . . . . .
5 . . . . . . . .
4 . . . . . . . .
3 . . . . . . . .
2 P P P P P P P P
1 R N B Q K B N R
  a b c d e f g h"""


def text(frame: BoardFrame, size: Size, glyphs: Glyphs) -> str:
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in draw(frame, size, glyphs))


def test_the_start_in_letters_is_what_everybody_knows() -> None:
    frame = BoardFrame.from_board(chess.Board())
    assert text(frame, "small", "letters") == START
    flipped = BoardFrame.from_board(chess.Board(), flipped=True)
    lines = text(flipped, "small", "letters").splitlines()
    assert lines[0] == "1 R N B K Q B N R"
    assert lines[-1] == "  h g f e d c b a"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("glyphs", ["solid", "outline", "letters"])
def test_every_line_of_every_size_is_as_wide_as_it_says(size: board.Size, glyphs: board.Glyphs) -> None:
    board = chess.Board("r3k2r/8/8/3Pp3/8/8/8/R3K2R w KQkq e6 0 1")
    frame = BoardFrame.from_board(board, marks={0: "removed", 36: "illegal"}, heat=[0.5] * 64)
    wide, high = extent(size)
    lines = draw(frame, size, glyphs)
    assert len(lines) == high
    assert {sum(len(piece.text) for piece in line) for line in lines} == {wide}
    assert sum(piece.look.square is not None for line in lines for piece in line) >= 64 * SQUARE[size][1]
    seen = {piece.look.square for line in lines for piece in line} - {None}
    assert seen == set(range(64))


def test_without_colour_outlines_tell_white_from_black() -> None:
    drawn = text(BoardFrame.from_board(chess.Board()), "small", "outline")
    assert "♜ ♞ ♝ ♛ ♚" in drawn
    assert "♖ ♘ ♗ ♕ ♔" in drawn


def test_a_terminal_without_colour_gets_outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    def opener() -> None:
        raise AssertionError("not opened here")

    monkeypatch.setenv("NO_COLOR", "1")
    assert ChessregApp(opener).glyphs == "outline"  # type: ignore[arg-type]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ChessregApp(opener).glyphs == "solid"  # type: ignore[arg-type]


@pytest.mark.parametrize("mark", MARKS)
def test_every_mark_has_a_sign_on_the_board_and_words_below(mark: str) -> None:
    plain = BoardFrame.from_fen("8/8/8/8/8/8/8/K6k")
    marked = plain.with_marks({chess.D4: mark})  # type: ignore[dict-item]
    (line,) = legend(marked)
    assert line.endswith(": d4")
    before = text(plain, "medium", "letters").splitlines()
    after = text(marked, "medium", "letters").splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][1].replace(line[0], " ", 1).rstrip() == changed[0][0].rstrip()


def test_heat_is_written_in_per_cent_where_there_is_room() -> None:
    frame = BoardFrame.from_board(chess.Board(), heat={chess.A1: 0.07, chess.B1: 1.0}, heat_label="chance")
    bottom = text(frame, "medium", "letters").splitlines()[15].split()
    assert bottom == ["7", "100"]
    assert "numbers, shade: chance" in legend(frame)


def test_the_strongest_arrows_are_listed_first() -> None:
    arrows = [("e2e4", 0.25, "e4"), ("d2d4", 0.5, "d4"), ("g1f3", 0.125, "Nf3")]
    frame = BoardFrame.from_board(chess.Board(), arrows=arrows)
    assert [line.split()[0] for line in legend(frame)] == ["d2-d4", "e2-e4", "g1-f3"]
    assert legend(frame)[0].split() == ["d2-d4", "0.50", "━━━━━", "d4"]


def test_illegal_tries_are_found_in_a_game() -> None:
    frames = game_frames(["e2e4", "e7e5"], "game", tries={1: ["Ke4", "e4"]})
    assert with_tries(frames) == [n for n, frame in enumerate(frames) if tries(frame)]
    assert len(with_tries(frames)) == 1
    assert "Ke4, e4" in line_of(frames[with_tries(frames)[0]])


def test_columns_give_way_but_numbers_are_never_cut() -> None:
    columns = [Column("name", "name", least=6), Column("n", "n", right=True), Column("x", "heading", least=2)]
    rows = [{"name": "a very long name indeed", "n": 123456789, "x": "short"}]
    assert widths(columns, rows, 200) == [23, len("123,456,789"), 7]
    narrow = widths(columns, rows, 11 + 7 + 6 + 2 * GAP)
    assert narrow == [6, 11, 7]
    assert widths(columns, rows, 1) == [KEPT, 11, 7]  # the rest is scrolled to, so a name may as well be read
    assert fitted("a very long name", 6) == "a ver…"
    assert fitted("ab", 4, right=True) == "  ab"
    assert fitted("漢字漢字", 5) == "漢字…"


def test_a_kinds_extra_columns_follow_those_of_the_result_table() -> None:
    rows = [{"unit": 0, "split": "toy", "item": 0, "layer": None, "n": 1, "correct": 1, "counts": None, "fen": "8/8",
             "move": "e2e4", "checks": True, "run_id": 1, "attempt_id": 2}]  # fmt: skip
    assert [column.field for column in columns_of("score", rows)][-2:] == ["move", "checks"]
    assert columns_of("score", rows, with_run=True)[0].field == "run"
    assert columns_of("score", rows)[6].of(rows[0]) == "100.0 %"
