"""The board: a BoardFrame drawn as cells of text, and the widget that draws it in the theme's colors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.color import Color
from textual.containers import Vertical
from textual.geometry import Region
from textual.geometry import Size as Extent
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from chessreg.games.boards.boardframe import EMPTY, Arrow, BoardFrame, Mark
from chessreg.games.boards.picture import (
    MARK_SIGNS,
    format_evaluation,
    format_readings,
)  # the functions that `chessreg board` prints with
from tui.board_colors import PIECES_OF_16, ColorSystem, choose_square_color, get_color_system
from tui.widgets.pieces import MIN_PIECE_LINES, draw_piece_lines

if TYPE_CHECKING:
    from PIL.Image import Image

SIZES = range(1, 13)  # lines per square; its width in cells is twice that
FONT_SIZES = range(1, 5)  # sizes at which a piece is one character of the font
LABEL_CELLS = 2
Glyphs = Literal["solid", "outline", "letters"]
# Solid pieces are drawn from quadrant blocks on squares that are large enough. Smaller pieces are characters: solid
# ones if White and Black differ in color, outlines if they cannot, letters if the font has no chess pieces.
GLYPHS: dict[Glyphs, dict[str, str]] = {
    "solid": dict(zip("KQRBNPkqrbnp.", "♚♛♜♝♞♟♚♛♜♝♞♟·", strict=True)),
    "outline": dict(zip("KQRBNPkqrbnp.", "♔♕♖♗♘♙♚♛♜♝♞♟·", strict=True)),
    "letters": dict(zip("KQRBNPkqrbnp.", "KQRBNPkqrbnp.", strict=True)),
}
MARK_WORDS = {
    "removed": "removed",
    "illegal": "illegal",
    "wrong": "misread",
    "target": "target",
    "from": "moves from",
    "to": "moves to",
    "check": "in check",
}
LAST_SIGN = "'"  # next to the squares of the last move
CURSOR_SIGN = "<"  # next to the square that keys act on
BEST_SIGN, PLAYED_SIGN = "=", "~"  # next to the target squares of the best and the played move
MAX_ARROWS = 5
Shade = Mark | Literal["last", "arrow", "best", "played", "cursor"]
Ink = Literal["white", "black", "faint", "sign", "arrow", "corner"]


class Look(NamedTuple):
    """The appearance of a cell, which the widget turns into colors."""

    square: int | None  # None: outside the squares
    dark: bool
    mark: Shade | None
    heat: float | None
    ink: Ink
    weight: float = 1.0  # weight of the arrow that shades the square
    path: float = 0.0  # weight of the arrow drawn in this cell
    doubt: bool = False  # the shade is 1 - heat, in the color of errors


@dataclass(frozen=True)
class CellRun:
    """Consecutive cells with one appearance."""

    text: str
    look: Look


LABEL_LOOK = Look(None, False, None, None, "faint")


def compute_board_extent(size: int) -> tuple[int, int]:
    """Return the width in cells and the height in lines of the board with its labels, for squares of `size` lines."""
    return LABEL_CELLS + 16 * size, 8 * size + 1


def list_sizes(glyphs: Glyphs) -> range:
    """Return the useful sizes of a board with these glyphs, in ascending order."""
    return SIZES if glyphs == "solid" else FONT_SIZES


def draw_board_lines(
    frame: BoardFrame, size: int = 1, glyphs: Glyphs = "outline", cursor: int | None = None, flat: bool = False
) -> list[list[CellRun]]:
    """Return the lines of the board from the top: eight ranks of `size` lines each, then the file letters.

    `cursor` is the square that keys act on. If `flat` is true, light and dark squares have the same color, so dark ones
    get a dot.
    """
    square_cells, signs, shades = 2 * size, sign_squares(frame, cursor), shade_squares(frame, cursor)
    numbers = (
        {square: number for square in range(64) if (number := format_square_number(frame, square))} if size > 1 else {}
    )
    high = size - 1 if numbers else size
    if (
        glyphs == "solid" and size == MIN_PIECE_LINES
    ):  # one line has no space for both: a piece hides the number, a wrong reading hides the piece
        numbers = {s: number for s, number in numbers.items() if s in frame.read or frame.squares[s] == EMPTY}
        high = size
    figures = glyphs == "solid" and high >= MIN_PIECE_LINES
    if figures and cursor is not None:  # mark the corners and keep the color of the heat
        signs.pop(cursor)
        shades = shade_squares(frame, None)
    lines = trace_arrows(frame, size, glyphs)
    board_lines = []
    for row, rank in enumerate(frame.ranks()):
        row_looks = []
        for square in rank:
            mark, weight = shades.get(square, (None, 1.0))
            dark = (square // 8 + square % 8) % 2 == 0
            row_looks.append(Look(square, dark, mark, frame.shade(square), "faint", weight, doubt=frame.doubts))
        for line in range(size):
            label = f"{rank[0] // 8 + 1} " if line == (size - 1) // 2 else "  "
            board_lines.append([CellRun(label, LABEL_LOOK)])
            for column, (square, look) in enumerate(zip(rank, row_looks, strict=True)):
                letter = frame.squares[square]
                ink: Ink = "faint" if letter == EMPTY else "white" if letter.isupper() else "black"
                marks = dict[int, tuple[str, Ink]]()  # cell of the line → sign drawn over the piece
                if figures:
                    text = draw_piece_lines(letter, high)[line] if letter != EMPTY and line < high else " " * high * 2
                    text = text.center(square_cells)
                    if line == size - 1 and square in numbers:
                        text = " " * square_cells  # the number's line has no part of the piece
                    if line == 0 and (sign := signs.get(square)):
                        marks[square_cells - 1] = sign, "sign"
                    if square == cursor and line in (0, size - 1):
                        left, right = CORNERS[line == size - 1]
                        marks |= {0: (left, "corner"), square_cells - 1: (right, "corner")}
                    if letter == EMPTY and flat and look.dark and line == size // 2:
                        marks[size - 1] = GLYPHS[glyphs][EMPTY], "faint"
                else:
                    text = " " * square_cells
                    if line == (size - 1) // 2:
                        before = max(0, size - 1)
                        dot = letter == EMPTY and flat and not look.dark
                        marks[before] = " " if dot else GLYPHS[glyphs][letter], ink
                        if square in signs:
                            marks[before + 1] = signs[square], "sign"
                if line == size - 1 and square in numbers:
                    number = numbers[square].center(square_cells)
                    marks |= {x: (cell, "sign") for x, cell in enumerate(number) if cell != " " or not figures}
                crossed_cells = (
                    [x for x in range(square_cells) if (column * square_cells + x, row * size + line) in lines]
                    if lines
                    else []
                )
                if not marks and not crossed_cells:
                    board_lines[-1].append(CellRun(text, look._replace(ink=ink)))
                    continue
                line_cells = []
                for x, character in enumerate(text):
                    cell, foreground = marks.get(x, (character, ink if character != " " else "faint"))
                    path = lines.get((column * square_cells + x, row * size + line)) if foreground == "faint" else None
                    line_cells.append(
                        (cell, look._replace(ink=foreground)) if path is None else (path.sign, path.draw_over(look))
                    )
                for run_look, run_cells in groupby(line_cells, key=lambda cell: cell[1]):
                    board_lines[-1].append(CellRun("".join(cell for cell, _ in run_cells), run_look))
    files = "hgfedcba" if frame.flipped else "abcdefgh"
    before = size if figures else max(0, size - 1)
    board_lines.append(
        [CellRun("  " + "".join((" " * before + name).ljust(square_cells) for name in files), LABEL_LOOK)]
    )
    return board_lines


CORNERS = (("▛", "▜"), ("▙", "▟"))  # of the cursor's square: top and bottom


def format_square_number(frame: BoardFrame, square: int) -> str:
    """Return the text in the last line of a square, in percent: the misread class, or the heat. Omit values that
    round to zero. If heat is a probability of the truth, omit values that round to certainty."""
    if square in frame.read:
        return format_reading(*frame.read[square])
    heat = None if frame.heat is None else frame.heat.get(square)
    shown_value = frame.shade(square) if frame.doubts else heat
    return str(round(100 * heat)) if heat is not None and shown_value is not None and round(100 * shown_value) else ""


def format_reading(name: str, probability: float) -> str:
    """Return a reading in at most four cells: the class's letter (`_` for empty) and the probability in percent.

    >>> format_reading("b", 0.56), format_reading(".", 1.0)
    ('b56', '_100')
    """
    return f"{name[:1].replace(EMPTY, '_')}{round(100 * probability)}"


def select_arrows(frame: BoardFrame) -> list[Arrow]:
    """Return the arrows to draw, strongest first. The played move is always included."""
    order = sorted(
        frame.arrows, key=lambda arrow: (-arrow.weight, arrow.role == "played", arrow.start, arrow.end, arrow.label)
    )
    marked_arrows, played_arrows = [a for a in order if a.role != "played"], [a for a in order if a.role == "played"]
    drawn_arrows = [*marked_arrows[:MAX_ARROWS], *played_arrows[:1]]
    return [arrow for arrow in order if arrow in drawn_arrows]


def shade_squares(frame: BoardFrame, cursor: int | None) -> dict[int, tuple[Shade, float]]:
    """Return each shaded square's shade and strength. Marks override arrows, and stronger arrows override weaker
    ones."""
    shades: dict[int, tuple[Shade, float]] = {}
    for square in frame.last_move or ():
        shades[square] = "last", 1.0
    for arrow in reversed(select_arrows(frame)):
        for square in (arrow.start, arrow.end):
            shades[square] = arrow.role or "arrow", round(arrow.weight, 1)
    shades |= {square: (mark, 1.0) for square, mark in frame.marks.items()}
    return shades if cursor is None else shades | {cursor: ("cursor", 1.0)}


def sign_squares(frame: BoardFrame, cursor: int | None) -> dict[int, str]:
    """Return the sign next to the piece of each square that has one."""
    signs = dict.fromkeys(frame.last_move or (), LAST_SIGN)
    signs |= {arrow.end: sign for arrow, sign in reversed(number_arrows(frame))}
    signs |= {square: MARK_SIGNS[mark] for square, mark in frame.marks.items()}
    return signs if cursor is None else signs | {cursor: CURSOR_SIGN}


def number_arrows(frame: BoardFrame) -> list[tuple[Arrow, str]]:
    """Return the drawn arrows, each with the sign at its end: a number, or the sign of the best or the played move."""
    role_signs = {"best": BEST_SIGN, "played": PLAYED_SIGN}
    return [(arrow, role_signs.get(arrow.role, str(number))) for number, arrow in enumerate(select_arrows(frame), 1)]


class Path(NamedTuple):
    """The part of an arrow's line in one cell."""

    sign: str
    weight: float

    def draw_over(self, look: Look) -> Look:
        return look._replace(ink="arrow", path=round(self.weight, 1))


# The bits of the dots of a braille cell, four rows of two, and the ASCII strokes used with letters.
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
PLAIN_STROKES = {(1, 0): "-", (0, 1): "|", (1, 1): "\\", (1, -1): "/"}


def trace_arrows(frame: BoardFrame, size: int, glyphs: Glyphs) -> dict[tuple[int, int], Path]:
    """Return the line sign and the strongest arrow's weight for each cell (x from the left, y from the top). Lines run
    from piece to piece. Boards with one line per square show no arrows."""
    if size == 1 or not frame.arrows:
        return {}
    square_cells, high = 2 * size, size
    place = {square: (x, y) for y, rank in enumerate(frame.ranks()) for x, square in enumerate(rank)}
    bits: dict[tuple[int, int], int] = {}
    weights: dict[tuple[int, int], float] = {}
    for arrow in select_arrows(frame):
        (x0, y0), (x1, y1) = (
            (
                2 * (square_cells * place[s][0] + square_cells // 2 - 1) + 1,
                4 * (high * place[s][1] + (high - 1) // 2) + 2,
            )
            for s in (arrow.start, arrow.end)
        )
        steps = max(abs(x1 - x0), abs(y1 - y0))
        for step in range(steps + 1):
            x, y = x0 + round((x1 - x0) * step / max(1, steps)), y0 + round((y1 - y0) * step / max(1, steps))
            cell = x // 2, y // 4
            if glyphs == "letters":
                way = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
                bits.setdefault(cell, ord(PLAIN_STROKES[way if way in PLAIN_STROKES else (-way[0], -way[1])]))
            else:
                bits[cell] = bits.get(cell, 0x2800) | BRAILLE_DOTS[y % 4][x % 2]
            weights[cell] = max(weights.get(cell, 0.0), arrow.weight)
    return {cell: Path(chr(bit), weights[cell]) for cell, bit in bits.items()}


def list_legend(frame: BoardFrame) -> list[str]:
    """Return the squares of each mark, the wrong readings, and the five strongest arrows."""
    import chess

    lines = []
    for mark, sign in MARK_SIGNS.items():
        squares = [chess.square_name(square) for square in sorted(frame.marks) if frame.marks[square] == mark]
        if squares:
            square_names = " ".join(squares[:8]) + (f" and {len(squares) - 8} more" if len(squares) > 8 else "")
            lines.append(f"{sign} {MARK_WORDS.get(mark, mark)}: {square_names}")
    if frame.read:
        lines.append(f"read as: {format_readings(frame)}")
    for arrow, sign in number_arrows(frame):
        move = f"{chess.square_name(arrow.start)}-{chess.square_name(arrow.end)}"
        bar = "━" * max(1, round(10 * arrow.weight)) + " " if arrow.weight < 1 else ""
        share = f"{arrow.weight:4.2f} {bar}" if frame.shares else ""
        lines.append(f"{sign} {move} {share}{arrow.label}".rstrip())
    if frame.evaluation is not None:
        lines.append(f"evaluation {format_evaluation(frame.evaluation)}")
    return lines


def list_signs(frame: BoardFrame, size: int) -> list[tuple[str, Shade | Literal["heat"], str]]:
    """Return every sign and color on the board: the sign, its shade, and its meaning."""
    used_signs: list[tuple[str, Shade | Literal["heat"], str]] = []
    if frame.last_move:
        used_signs.append((LAST_SIGN, "last", "last move"))
    used_signs += [
        (sign, mark, MARK_WORDS.get(mark, mark)) for mark, sign in MARK_SIGNS.items() if mark in frame.marks.values()
    ]
    if frame.read and size > 1:
        empty = " (_ empty)" if EMPTY in {reading.name for reading in frame.read.values()} else ""
        example = format_reading(*next(iter(frame.read.values())))
        used_signs.append((example, "wrong", f"misread: the probe's class and its %{empty}"))
    if frame.heat is not None and any(frame.heat.values()):
        label = frame.heat_label or "heat"
        if frame.doubts:
            label += f", darker if low{'' if size == 1 else '; blank: 100 %'}"
        elif frame.heat_range != (0.0, 1.0):
            label += f", shaded {100 * frame.heat_range[0]:.0f} to {100 * frame.heat_range[1]:.0f}"
        used_signs.append((" " if size == 1 else "%", "heat", label))
    roles = {arrow.role for arrow in select_arrows(frame)}
    arrow_signs = [sign for arrow, sign in number_arrows(frame) if not arrow.role]
    if arrow_signs:
        used_signs.append(
            (
                arrow_signs[0] if len(arrow_signs) == 1 else f"{arrow_signs[0]}-{arrow_signs[-1]}",
                "arrow",
                "the model's moves",
            )
        )
    # in a prediction or a puzzle, the move was not played in a game
    models = any(arrow.role == "played" and arrow.label.endswith("(model)") for arrow in frame.arrows)
    for sign, role, words in ROLE_SIGNS:
        if role in roles:
            used_signs.append((sign, role, "the model's move" if models and role == "played" else words))
    return used_signs


ROLE_SIGNS: tuple[tuple[str, Literal["best", "played"], str], ...] = (
    (BEST_SIGN, "best", "best move"), (PLAYED_SIGN, "played", "move played"),
)  # fmt: skip


PIECE_NAMES = {"p": "pawn", "n": "knight", "b": "bishop", "r": "rook", "q": "queen", "k": "king"}


def describe_square(frame: BoardFrame, square: int) -> str:
    """Return the contents of a square in words: `e4: white pawn, misread: n 0.56, probability of the truth
    0.120`."""
    import chess

    letter, facts = frame.squares[square], list[str]()
    facts.append(
        "empty" if letter == EMPTY else f"{'white' if letter.isupper() else 'black'} {PIECE_NAMES[letter.lower()]}"
    )
    if square in frame.marks and square not in frame.read:
        facts.append(MARK_WORDS.get(frame.marks[square], frame.marks[square]))
    if square in frame.read:
        facts.append(f"misread: {frame.read[square].words}")
    if frame.heat is not None and square in frame.heat:
        facts.append(f"{frame.heat_label or 'heat'} {frame.heat[square]:.3f}")
    moves = [arrow for arrow in frame.arrows if square in (arrow.start, arrow.end)]
    for arrow in moves:
        share = f" {arrow.weight:.2f}" if frame.shares else ""
        facts.append(f"{arrow.label or chess.square_name(arrow.end)}{share}")
    return f"{chess.square_name(square)}: {', '.join(facts)}"


# A square's mark → the color blended into its background, and the share of that color.
MARK_TINTS = {"last": ("last", 0.55), "from": ("last", 0.6), "to": ("last", 0.75), "arrow": ("arrow", 0.35),
         "best": ("best", 0.75), "played": ("last", 0.6), "target": ("arrow", 0.6), "illegal": ("wrong", 0.65),
         "wrong": ("wrong", 0.85), "removed": ("wrong", 0.65), "check": ("wrong", 0.7),
         "cursor": ("last", 0.9)}  # fmt: skip
WEIGHTED_MARKS = ("arrow", "best")
MIN_SHADE = 0.35  # share of the full tint that the weakest arrow has
HEAT_SHADE, DOUBT_SHADE = 0.85, 0.45  # share of the full tint; lower for doubt, to differ from the shade of errors


class Squares(Widget):
    """The 64 squares with their labels."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "squares--light", "squares--dark", "squares--white", "squares--black", "squares--label", "squares--last",
        "squares--arrow", "squares--best", "squares--wrong", "squares--heat", "squares--corner",
    }  # fmt: skip
    DEFAULT_CSS = """
    Squares { width: auto; height: auto; }
    Squares > .squares--light { background: $board-light; }
    Squares > .squares--dark { background: $board-dark; }
    Squares > .squares--white { color: $board-white; text-style: bold; }
    Squares > .squares--black { color: $board-black; text-style: bold; }
    Squares > .squares--label { color: $text-muted; }
    Squares > .squares--last { background: $board-last; }
    Squares > .squares--arrow { background: $board-arrow; }
    Squares > .squares--best { background: $board-best; }
    Squares > .squares--wrong { background: $board-wrong; }
    Squares > .squares--heat { background: $board-heat; }
    Squares > .squares--corner { color: $board-cursor; }
    """

    frame: reactive[BoardFrame | None] = reactive(None, repaint=False)
    square_size: reactive[int] = reactive(2, layout=True)
    glyphs: reactive[Glyphs] = reactive("solid")
    cursor: reactive[int | None] = reactive(None)

    class Clicked(Message):
        """A square was clicked."""

        def __init__(self, squares: Squares, square: int) -> None:
            super().__init__()
            self.squares, self.square = squares, square

    def on_click(self, event: events.Click) -> None:
        file, rank = (event.x - LABEL_CELLS) // (2 * self.square_size), 7 - event.y // self.square_size
        if self.frame is not None and 0 <= file < 8 and 0 <= rank < 8:
            square = 8 * rank + file
            self.post_message(self.Clicked(self, 63 - square if self.frame.flipped else square))

    def get_content_width(self, container: Extent, viewport: Extent) -> int:
        return compute_board_extent(self.square_size)[0]

    def get_content_height(self, container: Extent, viewport: Extent, width: int) -> int:
        return compute_board_extent(self.square_size)[1]

    def watch_frame(self) -> None:
        """Repaint the lines that differ, which for a move are the lines of two ranks."""
        before, self._drawn_lines = self._drawn_lines, None
        if before is None or self.frame is None or len(after_lines := self.draw_lines()) != len(before):
            self.refresh()
            return
        changed_lines = [y for y, (one, other) in enumerate(zip(before, after_lines, strict=True)) if one != other]
        if changed_lines:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed_lines))

    def watch_square_size(self) -> None:
        self._drawn_lines = None

    watch_glyphs = watch_cursor = watch_square_size

    def draw_lines(self) -> list[list[CellRun]]:
        """Return the drawn lines of the frame."""
        assert self.frame is not None
        if self._drawn_lines is None:
            flat = self.system is ColorSystem.STANDARD
            self._drawn_lines = draw_board_lines(self.frame, self.square_size, self.glyphs, self.cursor, flat)
        return self._drawn_lines

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles: dict[Look, Style] = {}

    def render_line(self, y: int) -> Strip:
        if self.frame is None:
            return Strip.blank(self.size.width, self.rich_style)
        lines = self.draw_lines()
        if y >= len(lines):
            return Strip.blank(self.size.width, self.rich_style)
        line = [Segment(run.text, self._make_cached_style(run.look)) for run in lines[y]]
        return Strip(line).crop_extend(0, self.size.width, self.rich_style)

    _drawn_lines: list[list[CellRun]] | None = None

    def list_signs(self) -> list[tuple[Text, str]]:
        """Return the signs and colors in use with their meanings, each sign on its background."""
        signs, doubt = [], self.frame is not None and self.frame.doubts
        for sign, shade, meaning in list_signs(self.frame, self.square_size) if self.frame is not None else ():
            heat, mark = (0.7, None) if shade == "heat" else (None, shade)
            signs.append(
                (Text(f" {sign} ", self._make_cached_style(Look(0, True, mark, heat, "sign", doubt=doubt))), meaning)
            )
        return signs

    def make_legend(self) -> Text:
        """Return the signs and colors of `list_signs` with their meanings, in one line."""
        line = Text()
        for sign, meaning in self.list_signs():
            line.append(" · " if line.plain else "").append_text(sign).append(f" {meaning}")
        return line

    def _make_cached_style(self, look: Look) -> Style:
        if look not in self._styles:
            self._styles[look] = self._make_cell_style(look)
        return self._styles[look]

    @property
    def system(self) -> ColorSystem:
        """The number of colors that the terminal supports."""
        return get_color_system(self.app.console.color_system)

    def choose_piece_color(self, side: Literal["white", "black"]) -> Color:
        """Return the color of a side's pieces."""
        if self.system is ColorSystem.STANDARD:
            return PIECES_OF_16[side]
        return self.get_component_styles(f"squares--{side}").color

    def choose_background(self, look: Look) -> Color:
        """Return the background color of a square's cell."""

        def get_background(name: str) -> Color:
            return self.get_component_styles(f"squares--{name}").background

        color, tint = get_background("dark" if look.dark else "light"), ""
        if look.heat is not None:
            name = "wrong" if look.doubt else "heat"
            strength = (DOUBT_SHADE if look.doubt else HEAT_SHADE) * look.heat
            color, tint = color.blend(get_background(name), strength), name if look.heat >= 0.5 else ""
        if look.mark is not None:
            tint, strength = MARK_TINTS.get(look.mark, ("arrow", 0.6))
            if look.mark in WEIGHTED_MARKS:
                strength *= MIN_SHADE + (1 - MIN_SHADE) * look.weight
            color = color.blend(get_background(tint), strength)
        if tint and self.system is not ColorSystem.TRUECOLOR:  # too few colors to blend
            color = get_background(tint)
        return choose_square_color(
            color, tint, self.system, self.choose_piece_color("white"), self.choose_piece_color("black")
        )

    def draw_image(self) -> Image:
        """Return the same board as an image."""
        from tui.widgets.images import draw_board_image

        frame = self.frame
        assert frame is not None
        shades, grounds, numbers = shade_squares(frame, self.cursor), dict[int, Color](), dict[int, str]()
        for square in range(64):
            mark, weight = shades.get(square, (None, 1.0))
            dark = (square // 8 + square % 8) % 2 == 0
            grounds[square] = self.choose_background(Look(square, dark, mark, frame.shade(square), "faint", weight))
            numbers[square] = format_square_number(frame, square)
        arrow = self.get_component_styles("squares--arrow").background
        shown_frame = replace(frame, arrows=tuple(select_arrows(frame)))
        return draw_board_image(shown_frame, grounds, sign_squares(frame, self.cursor), numbers, arrow)

    def _make_cell_style(self, look: Look) -> Style:
        if look.square is None:
            return self.get_component_rich_style("squares--label")
        color, white = self.choose_background(look), self.choose_piece_color("white")
        if look.ink == "faint":
            ink, is_bold = color.blend(white, 0.4), False
        elif look.ink == "arrow":
            ink, is_bold = color.blend(white, 0.35 + 0.6 * look.path), look.path >= 0.5
        elif look.ink == "sign":
            ink, is_bold = white, True
        elif look.ink == "corner":
            ink, is_bold = self.get_component_styles("squares--corner").color, False
        else:
            ink, is_bold = self.choose_piece_color(look.ink), True
        return Style(color=to_rich_color(ink), bgcolor=to_rich_color(color), bold=is_bold)


def to_rich_color(color: Color) -> RichColor:
    return RichColor.from_rgb(*color.rgb)


class BoardPane(Vertical):
    """A board under its title. Below it are the legend of its signs and colors, its caption and its squares in
    words."""

    DEFAULT_CSS = """
    BoardPane { width: auto; height: auto; margin: 0 2 0 1; }
    BoardPane > .board-title { width: 1fr; height: auto; text-style: bold; color: $text-accent; }
    BoardPane > .board-legend { width: 1fr; height: auto; color: $text-muted; }
    BoardPane > .board-caption { width: 1fr; height: auto; color: $foreground; }
    BoardPane.-bare > .board-title, BoardPane.-bare > .board-caption { display: none; }
    """

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.title, self.squares = Static("", classes="board-title", markup=False), Squares()
        self.picture: Any = None  # image of the squares, if the terminal supports images
        self.legend = Static("", classes="board-legend", markup=False)
        self.caption = Static("", classes="board-caption", markup=False)

    def compose(self) -> ComposeResult:
        yield self.title
        yield self.squares
        if images := getattr(self.app, "images", None):
            self.picture = images(classes="board-picture")
            yield self.picture
        yield self.legend
        yield self.caption

    def show(self, frame: BoardFrame, size: int, glyphs: Glyphs) -> None:
        """Draw this frame."""
        self.title.update(frame.title)
        self.squares.square_size, self.squares.glyphs, self.squares.frame = size, glyphs, frame
        has_picture = self.picture is not None and getattr(self.app, "pictures", False)
        self.squares.display = not has_picture
        if self.picture is not None:
            self.picture.display = has_picture
            self.picture.styles.width, self.picture.styles.height = compute_board_extent(size)
            if has_picture:
                self.picture.image = self.squares.draw_image()
        self.legend.update(self.squares.make_legend())
        self.caption.update("\n".join(list_captions(frame)))

    def on_click(self, event: events.Click) -> None:
        """Treat a click on the image as a click on the square below it."""
        frame, picture = self.squares.frame, self.picture
        if frame is not None and picture is not None and picture.display:
            x, y = int(event.screen_x - picture.region.x), int(event.screen_y - picture.region.y)
            file, rank = 8 * x // max(1, picture.size.width), 7 - 8 * y // max(1, picture.size.height)
            if 0 <= file < 8 and 0 <= rank < 8:
                square = 8 * rank + file
                self.post_message(Squares.Clicked(self.squares, 63 - square if frame.flipped else square))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self.legend.update(self.squares.make_legend())  # the theme may have changed


def align_titles(panes: Sequence[BoardPane], wide: int) -> None:
    """Align boards of this width that are next to each other: give each title the height of the highest."""
    titles = [Text(pane.squares.frame.title) for pane in panes if pane.squares.frame is not None]
    high = max((len(title.wrap(panes[0].app.console, wide)) for title in titles), default=1)
    for pane in panes:
        pane.title.styles.height = max(1, high)


def list_captions(frame: BoardFrame) -> list[str]:
    """Return the lines below a board: caption, then legend."""
    return [*frame.caption, *list_legend(frame)]
