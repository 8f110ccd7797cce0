"""Pieces are drawn as blocks that fill their square, and both sides are distinguishable from it with any number of
colors."""

from __future__ import annotations

from typing import Any, get_args

import chess
import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.app import App, ComposeResult
from textual.color import Color
from textual.theme import Theme

from chessreg.games.boards.boardframe import BoardFrame
from tests.quick import quick_first
from tui.board_colors import BLACK_CONTRAST, COLOR_SYSTEMS, WHITE_CONTRAST, compute_contrast_ratio
from tui.themes import BOARD_DARK, THEMES
from tui.widgets.board import MARK_TINTS, Ink, Look, Squares, compute_board_extent, draw_board_lines
from tui.widgets.pieces import BITMAPS, QUADRANTS, draw_piece_lines, rasterize_piece

BROWN = Theme("brown", "#3d6f99", variables=BOARD_DARK | {"board-light": "#f0d9b5", "board-dark": "#201010"})
XTERM = ("000000", "cd0000", "00cd00", "cdcd00", "0000ee", "cd00cd", "00cdcd", "e5e5e5", "7f7f7f", "ff0000", "00ff00",
         "ffff00", "5c5cff", "ff00ff", "00ffff", "ffffff")  # fmt: skip


class Stage(App[None]):
    """A board in a theme, in a terminal of this many colors."""

    def __init__(self, theme: Theme, colors: str) -> None:
        super().__init__()
        self.chosen = theme
        self.console._color_system = COLOR_SYSTEMS.get(colors, ColorSystem.TRUECOLOR)

    def compose(self) -> ComposeResult:
        yield Squares()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return BOARD_DARK

    def on_load(self) -> None:
        self.register_theme(self.chosen)
        self.theme = self.chosen.name


def shown(color: RichColor, colors: str) -> list[Color]:
    """The color that a terminal shows for a given color: of 16 colors by two palettes."""
    sent = color.downgrade(COLOR_SYSTEMS.get(colors, ColorSystem.TRUECOLOR))
    own = Color(*sent.get_truecolor())
    return [own, Color.parse(f"#{XTERM[sent.number]}")] if colors == "standard" and sent.number is not None else [own]


@pytest.mark.parametrize("colors", quick_first(1, ["truecolor", "256", "standard"]))
@pytest.mark.parametrize("theme", [*THEMES, BROWN], ids=lambda theme: theme.name)
async def test_pieces_signs_and_numbers_have_contrast_on_every_square(theme: Theme, colors: str) -> None:
    async with Stage(theme, colors).run_test() as pilot:
        squares = pilot.app.query_one(Squares)
        marks: tuple[Any, ...] = (None, *MARK_TINTS)
        looks = [
            Look(0, dark, mark, heat, ink, weight, doubt=doubt)
            for dark in (True, False)
            for mark in marks
            for heat in (None, 0.0, 0.3, 0.5, 0.8, 1.0)
            for weight in (0.0, 1.0)
            for doubt in (True, False)
            for ink in get_args(Ink)
        ]
        for look in looks:
            style = squares._make_cached_style(look)
            assert style.bgcolor
            assert style.color
            for ground, ink in zip(shown(style.bgcolor, colors), shown(style.color, colors), strict=True):
                needed = {"white": WHITE_CONTRAST, "sign": WHITE_CONTRAST, "black": BLACK_CONTRAST}.get(look.ink, 1.0)
                assert compute_contrast_ratio(ground, ink) >= needed, look
        light, dark = (squares.choose_background(Look(0, dark, None, None, "faint")) for dark in (False, True))
        marked = {
            MARK_TINTS[mark][0]: squares.choose_background(Look(0, True, mark, None, "faint")) for mark in marks[1:]
        }
        assert light != dark or colors == "standard"
        assert {light, dark}.isdisjoint({marked["wrong"], marked["last"]})
        assert marked["wrong"] != marked["last"]


@pytest.mark.parametrize("lines", range(3, 13))
def test_a_piece_fills_its_square_with_blocks_that_every_font_has(lines: int) -> None:
    shapes = {letter: draw_piece_lines(letter, lines) for letter in "KQRBNP"}
    assert len(set(shapes.values())) == 6
    for letter, rows in shapes.items():
        assert [len(row) for row in rows] == [2 * lines] * lines
        assert set("".join(rows)) <= set(QUADRANTS)
        assert rows == draw_piece_lines(letter.lower(), lines)
        inked = [(x, y) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell != " "]
        across, down = ({place[axis] for place in inked} for axis in (0, 1))
        least = 0.5 if letter == "P" else 0.6
        assert len(across) >= least * 2 * lines
        assert len(down) >= 0.8 * lines
        grid = rasterize_piece(letter, lines)
        if letter in "KQRP":
            assert all(row == row[::-1] for row in grid), "mirrored"


def test_small_bitmaps_have_two_by_two_points_in_a_cell() -> None:
    for lines, pieces in BITMAPS.items():
        assert set(pieces) == set("KQRBNP")
        for art in pieces.values():
            assert [len(row) for row in art.split()] == [4 * lines] * 2 * lines


@pytest.mark.parametrize("flipped", [False, True])
def test_blocks_leave_room_for_numbers_signs_arrows_and_the_cursor(flipped: bool) -> None:
    board = chess.Board()
    full = BoardFrame.from_board(
        board, flipped=flipped, heat={chess.E4: 0.25}, marks={chess.A1: "wrong"}, arrows=[("e2e4", 1.0, "e4")]
    )
    wide, high = compute_board_extent(5)
    for cursor in (None, chess.A1, chess.E4):
        lines = ["".join(run.text for run in line) for line in draw_board_lines(full, 5, "solid", cursor)]
        assert [len(line) for line in lines] == [wide] * high

        def square(place: int, lines: list[str] = lines) -> list[str]:
            file, rank = place % 8, place // 8
            x, y = (7 - file, rank) if flipped else (file, 7 - rank)
            return [line[2 + 10 * x : 12 + 10 * x] for line in lines[5 * y : 5 * y + 5]]

        e4, a1 = square(chess.E4), square(chess.A1)
        assert e4[4].strip("▙▟ ") == "25"
        assert any("\u2800" < cell <= "\u28ff" for cell in "".join(e4)), "the arrow ends here"
        assert [row[1:9] for row in a1[:4]][1:] == list(draw_piece_lines("R", 4))[1:]
        assert (a1[0][0], a1[4][-1]) == (("▛", "▟") if cursor == chess.A1 else (" ", " "))
        assert (a1[0][-1] == "?") == (cursor != chess.A1)


def test_pieces_are_in_their_own_squares() -> None:
    lines = [
        "".join(run.text for run in line) for line in draw_board_lines(BoardFrame.from_board(chess.Board()), 5, "solid")
    ]
    for x, letter in enumerate("RNBQKBNR"):
        for top in (0, 35):
            assert tuple(line[2 + 10 * x : 12 + 10 * x] for line in lines[top : top + 5]) == draw_piece_lines(letter, 5)
    assert not "".join(line[2:] for line in lines[10:30]).strip()


@pytest.mark.parametrize("glyphs", ["solid", "letters"])
def test_with_16_colors_dark_squares_have_a_dot(glyphs: Any) -> None:
    frame = BoardFrame.from_fen("8/8/8/8/8/8/8/8")
    lines = ["".join(run.text for run in line) for line in draw_board_lines(frame, 3, glyphs, flat=True)]
    assert sum(cell in "·." for line in lines for cell in line) == 32
    assert lines[22][2:8].strip(), "a1 is dark"
