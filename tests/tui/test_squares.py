"""The board as cells of text: every size, both sides up, marks and numbers that need no color."""

from __future__ import annotations

from dataclasses import replace

import chess
import pytest

from chessreg.errors import BadInputError
from chessreg.games.boards.boardframe import MARKS, BoardFrame, list_game_views
from tui.app import ChessregApp
from tui.columns import GAP_CELLS, MIN_CUT_CELLS, TableColumn, compute_widths, fit_text, order_by_use
from tui.data.result_rows import make_result_columns
from tui.widgets import board
from tui.widgets.board import (
    GLYPHS,
    SIZES,
    Glyphs,
    compute_board_extent,
    describe_square,
    draw_board_lines,
    list_legend,
    list_signs,
    number_arrows,
)
from tui.widgets.evaluation import compute_span, draw_column
from tui.widgets.moves import find_illegal_tries, find_wrong_views, format_frame_line, make_move_lines

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


def text(frame: BoardFrame, size: int, glyphs: Glyphs) -> str:
    return "\n".join("".join(run.text for run in line).rstrip() for line in draw_board_lines(frame, size, glyphs))


def test_the_start_in_letters_is_what_everybody_knows() -> None:
    frame = BoardFrame.from_board(chess.Board())
    assert text(frame, 1, "letters") == START
    flipped = BoardFrame.from_board(chess.Board(), flipped=True)
    lines = text(flipped, 1, "letters").splitlines()
    assert lines[0] == "1 R N B K Q B N R"
    assert lines[-1] == "  h g f e d c b a"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("glyphs", ["solid", "outline", "letters"])
def test_every_line_of_every_size_is_as_wide_as_it_says(size: int, glyphs: board.Glyphs) -> None:
    board = chess.Board("r3k2r/8/8/3Pp3/8/8/8/R3K2R w KQkq e6 0 1")
    frame = BoardFrame.from_board(board, marks={0: "removed", 36: "illegal"}, heat=[0.5] * 64)
    wide, high = compute_board_extent(size)
    lines = draw_board_lines(frame, size, glyphs)
    assert len(lines) == high
    assert {sum(len(run.text) for run in line) for line in lines} == {wide}
    assert sum(run.look.square is not None for line in lines for run in line) >= 64 * size
    seen = {run.look.square for line in lines for run in line} - {None}
    assert seen == set(range(64))


def test_without_color_outlines_tell_white_from_black() -> None:
    drawn = text(BoardFrame.from_board(chess.Board()), 1, "outline")
    assert "♜ ♞ ♝ ♛ ♚" in drawn
    assert "♖ ♘ ♗ ♕ ♔" in drawn


def test_a_terminal_without_color_gets_outlines(monkeypatch: pytest.MonkeyPatch) -> None:
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
    (line,) = list_legend(marked)
    assert line.endswith(": d4")
    before = text(plain, 2, "letters").splitlines()
    after = text(marked, 2, "letters").splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][1].replace(line[0], " ", 1).rstrip() == changed[0][0].rstrip()


def test_heat_is_written_in_per_cent_where_there_is_room() -> None:
    frame = BoardFrame.from_board(chess.Board(), heat={chess.A1: 0.07, chess.B1: 1.0}, heat_label="chance")
    bottom = text(frame, 2, "letters").splitlines()[15].split()
    assert bottom == ["7", "100"]
    assert ("%", "heat", "chance") in list_signs(frame, 2)


def test_the_strongest_arrows_are_listed_first() -> None:
    arrows = [("e2e4", 0.25, "e4"), ("d2d4", 0.5, "d4"), ("g1f3", 0.125, "Nf3")]
    frame = BoardFrame.from_board(chess.Board(), arrows=arrows)
    assert [line.split()[1] for line in list_legend(frame)] == ["d2-d4", "e2-e4", "g1-f3"]
    assert list_legend(frame)[0].split() == ["1", "d2-d4", "0.50", "━━━━━", "d4"]


@pytest.mark.parametrize(("label", "words"), [("e4", "move played"), ("e4 (model)", "the model's move")])
def test_what_a_model_answers_is_not_said_to_be_played(label: str, words: str) -> None:
    arrows = [("e2e4", 1.0, label, "played"), ("d2d4", 0.5, "d4 (best)", "best")]
    frame = BoardFrame.from_board(chess.Board(), arrows=arrows)
    assert [used[2] for used in list_signs(frame, 2)] == ["best move", words]


def test_the_move_played_stands_among_the_models_by_its_probability() -> None:
    arrows = [("e2e4", 0.1, "e4"), ("d2d4", 0.3, "d4"), ("g1f3", 0.2, "Nf3 (played)", "played")]
    frame = BoardFrame.from_board(chess.Board(), arrows=arrows)
    assert [(arrow.label, sign) for arrow, sign in number_arrows(frame)] == [
        ("d4", "1"),
        ("Nf3 (played)", "~"),
        ("e4", "3"),
    ]


def test_illegal_tries_are_found_in_a_game() -> None:
    frames = list_game_views(["e2e4", "e7e5"], "game", tries={1: ["Ke4", "e4"]})
    assert find_wrong_views(frames) == [n for n, frame in enumerate(frames) if find_illegal_tries(frame)]
    assert len(find_wrong_views(frames)) == 1
    assert "Ke4, e4" in format_frame_line(frames[find_wrong_views(frames)[0]])


def test_columns_give_way_but_numbers_are_never_cut() -> None:
    columns = [
        TableColumn("name", "name", least=6),
        TableColumn("n", "n", right=True),
        TableColumn("x", "heading", least=2),
    ]
    rows = [{"name": "a very long name indeed", "n": 123456789, "x": "short"}]
    assert compute_widths(columns, rows, 200) == [23, len("123,456,789"), 7]
    narrow = compute_widths(columns, rows, 11 + 7 + 6 + 2 * GAP_CELLS)
    assert narrow == [6, 11, 7]
    assert compute_widths(columns, rows, 1) == [
        MIN_CUT_CELLS,
        11,
        7,
    ]  # the rest is scrolled to, so a name may as well be read
    assert fit_text("a very long name", 6) == "a ver…"
    assert fit_text("ab", 4, right=True) == "  ab"
    assert fit_text("漢字漢字", 5) == "漢字…"


def test_what_is_whole_is_not_cut_and_space_that_is_left_is_taken() -> None:
    columns = [TableColumn("name", "name", widest=10), TableColumn("pace", "pace", whole=True)]
    rows = [{"name": "a rather long name", "pace": "9.6/h, 24 min 4 s left"}]
    assert compute_widths(columns, rows, 200) == [18, 22]
    assert compute_widths(columns, rows, 22 + 8 + GAP_CELLS) == [8, 22]
    assert compute_widths([TableColumn("sql", "sql")], [{"sql": "x" * 100_000}], 120) == [120]


def test_where_not_all_fits_what_tells_rows_apart_comes_first_then_measures() -> None:
    columns = [
        TableColumn("model", "model"), TableColumn("engine", "engine"), TableColumn("edit", "edit"),
        TableColumn("wins", "wins", right=True), TableColumn("score", "score", right=True, role="value"),
    ]  # fmt: skip
    rows = [
        {"model": "m", "engine": "stockfish-17", "edit": f"edit {n}", "wins": n, "score": "0.55 [0.475, 0.657]"}
        for n in range(6)
    ]
    assert order_by_use(columns, rows, 200) == columns
    narrow = order_by_use(columns, rows, 40)
    assert [column.field for column in narrow] == ["model", "edit", "score", "wins", "engine"]
    results = [TableColumn(name, name, whole=True, role="value") for name in ("elo", "score", "delta", "minus")]
    numbered_rows = [{result.field: "0.55 [0.475, 0.657]" for result in results}] * 2
    ordered = order_by_use(
        [columns[0], *results], [{**rows[0], **row} for row in numbered_rows], 70, {"delta", "minus"}
    )
    assert [column.field for column in ordered] == ["model", "elo", "delta", "minus", "score"]


def test_a_kinds_extra_columns_follow_those_of_the_result_table() -> None:
    rows = [{"unit": 0, "split": "toy", "item": 0, "layer": None, "n": 1, "correct": 1, "counts": None, "fen": "8/8",
             "move": "e2e4", "checks": True, "run_id": 1, "attempt_id": 2}]  # fmt: skip
    assert [column.field for column in make_result_columns("score", rows)][-2:] == ["move", "checks"]
    assert make_result_columns("score", rows, with_run=True)[0].field == "run"
    assert make_result_columns("score", rows)[6].format_cell(rows[0]) == "100.0 %"


def test_zeros_are_not_printed_and_a_wrong_square_says_what_is_read_instead() -> None:
    frame = BoardFrame(
        "", BoardFrame.from_board(chess.Board()).squares, heat={0: 0.004, 1: 0.3}, marks={1: "wrong"},
        read={1: ("b", 0.56)}, heat_label="truth",
    )  # fmt: skip
    assert text(frame, 2, "letters").splitlines()[15].split() == ["b56"]
    named = {words: sign for sign, _, words in list_signs(frame, 2)}
    assert named == {"misread": "?", "misread: the probe's class and its %": "b56", "truth": "%"}
    assert "read as: b1 b 0.56" in list_legend(frame)
    assert describe_square(frame, 1) == "b1: white knight, misread: b 0.56, truth 0.300"
    for value in (float("nan"), float("inf")):
        with pytest.raises(BadInputError, match="centipawns"):
            BoardFrame("", frame.squares, evaluation=value)


@pytest.mark.parametrize("glyphs", ["solid", "letters"])
@pytest.mark.parametrize("flipped", [False, True])
def test_arrows_are_lines_that_end_at_their_number_and_leave_pieces_alone(glyphs: Glyphs, flipped: bool) -> None:
    arrows = [("e2e4", 0.5, "e4"), ("d1h5", 0.2, "Qh5", "best"), ("a2a4", 0.1, "a4", "played"), ("b2b3", 0.3, "b3")]
    board = chess.Board()
    frame = BoardFrame.from_board(board, arrows=arrows, flipped=flipped)
    plain = text(replace(frame, arrows=()), 2, glyphs)
    drawn = text(frame, 2, glyphs)
    figures = set(GLYPHS[glyphs].values()) - {GLYPHS[glyphs]["."]}
    for before, after in zip(plain.splitlines(), drawn.splitlines(), strict=True):
        assert all(two == one for one, two in zip(before, after, strict=False) if one in figures)
    rows = {rank: drawn.splitlines()[2 * n] for n, rank in enumerate("12345678" if flipped else "87654321")}
    assert [c for c in rows["4"][2:] if c in "12=~"] == (["1", "~"] if flipped else ["~", "1"])
    assert "=" in rows["5"]
    assert "2" in rows["3"][2:]
    between = drawn.splitlines()[7 if flipped else 9]
    assert any(c in "|/\\-" or "\u2800" < c <= "\u28ff" for c in between)
    assert text(frame, 1, glyphs).count("\n") == 8  # no lines without room for them, and the same extent
    assert [sign for sign, _, _ in list_signs(frame, 2)] == ["1-2", "=", "~"]
    assert [line.split()[0] for line in list_legend(frame)] == ["1", "2", "=", "~"]


def test_moves_of_a_game_stand_in_two_columns_and_other_frames_one_a_line() -> None:
    views = list_game_views(["e2e4", "e7e5", "g1f3"], "game")
    assert make_move_lines(views) == [("", (0,)), ("1.", (1, 2)), ("2.", (3, None))]
    black = list_game_views(["e7e5", "g1f3"], fen="rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1")
    assert make_move_lines(black) == [("", (0,)), ("1.", (None, 1)), ("2.", (2, None))]
    others = [BoardFrame("one", views[0].squares), BoardFrame("other", views[0].squares)]
    assert make_move_lines(others) == [("", (0,)), ("", (1,))]
    assert make_move_lines([]) == []


def test_a_frame_knows_its_position_its_moves_and_its_addresses() -> None:
    views = list_game_views(["e2e4", "e7e5"], flipped=True)
    assert views[2].moves == ("e2e4", "e7e5")
    assert views[2].whole_fen == "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"
    address = "https://lichess.org/analysis/rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR_w_KQkq_-_0_2?color=black"
    assert views[2].lichess == address
    assert views[2].pgn.strip().endswith("1. e4 e5 *")
    alone = BoardFrame.from_fen("8/8/8/8/8/8/8/K6k")
    assert (alone.position, alone.whole_fen) == ("", "8/8/8/8/8/8/8/K6k w - - 0 1")
    other = BoardFrame.from_board(chess.Board("8/8/8/8/8/8/8/K6k b - - 0 60"))
    assert '[FEN "8/8/8/8/8/8/8/K6k b - - 0 60"]' in other.pgn
    assert other.moves == ()


def test_a_column_of_the_strip_is_as_high_as_its_share_and_a_dot_where_it_is_not_known() -> None:
    assert [draw_column(share, 1, letters=False) for share in (0.5, None, 1.0, 0.0)] == ["▄", "·", "█", "▁"]
    assert [draw_column(share, 1, letters=True) for share in (0.5, None, 1.0, 0.0)] == ["=", ".", "#", "_"]
    assert [draw_column(share, 3, letters=False) for share in (0.5, 1.0)] == [" ▄█", "███"]
    assert compute_span(25, 10) == 3
