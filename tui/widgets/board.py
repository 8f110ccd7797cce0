"""The board: a BoardFrame as cells of text, and the widget that draws it in the colours of the theme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.color import Color
from textual.containers import Vertical
from textual.geometry import Size as Extent
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from chessreg.games.boardframe import EMPTY, BoardFrame, Mark
from chessreg.games.picture import MARK_SIGNS  # the same signs that `chessreg board` prints

Size = Literal["small", "medium", "large"]
SQUARE: dict[Size, tuple[int, int]] = {"small": (2, 1), "medium": (4, 2), "large": (6, 3)}  # cells wide, lines high
SIZES: tuple[Size, ...] = tuple(SQUARE)
LABELS = 2  # cells left of the ranks
Glyphs = Literal["solid", "outline", "letters"]
# Solid figurines read best where White and Black differ in colour, outlines where they cannot, letters everywhere.
GLYPHS: dict[Glyphs, dict[str, str]] = {
    "solid": dict(zip("KQRBNPkqrbnp.", "♚♛♜♝♞♟♚♛♜♝♞♟·", strict=True)),
    "outline": dict(zip("KQRBNPkqrbnp.", "♔♕♖♗♘♙♚♛♜♝♞♟·", strict=True)),
    "letters": dict(zip("KQRBNPkqrbnp.", "KQRBNPkqrbnp.", strict=True)),
}
WORDS = {
    "removed": "taken off",
    "illegal": "illegal",
    "wrong": "read wrongly",
    "target": "target",
    "from": "moves from",
    "to": "moves to",
    "check": "in check",
}
LAST = "'"  # beside the squares of the last move


class Look(NamedTuple):
    """How a cell looks, in words that the widget turns into colours."""

    square: int | None  # None: beside the board
    dark: bool
    mark: Mark | Literal["last", "arrow"] | None
    heat: float | None
    ink: Literal["white", "black", "faint", "sign"]


@dataclass(frozen=True)
class Piece:
    """Some cells of one look."""

    text: str
    look: Look


BESIDE = Look(None, False, None, None, "faint")


def extent(size: Size) -> tuple[int, int]:
    """Cells wide and lines high of the whole board with its labels."""
    wide, high = SQUARE[size]
    return LABELS + 8 * wide, 8 * high + 1


def draw(frame: BoardFrame, size: Size = "small", glyphs: Glyphs = "outline") -> list[list[Piece]]:
    """The lines of the board, from the top: eight ranks of one to three lines each, then the files' letters."""
    wide, high = SQUARE[size]
    lines = []
    for rank in frame.ranks():
        for line in range(high):
            label = f"{rank[0] // 8 + 1} " if line == (high - 1) // 2 else "  "
            lines.append([Piece(label, BESIDE)])
            for square in rank:
                lines[-1] += cells(frame, square, size, line, glyphs)
    files = "hgfedcba" if frame.flipped else "abcdefgh"
    before = 0 if size == "small" else wide // 2 - 1
    lines.append([Piece("  " + "".join((" " * before + name).ljust(wide) for name in files), BESIDE)])
    return lines


def cells(frame: BoardFrame, square: int, size: Size, line: int, glyphs: Glyphs) -> Iterator[Piece]:
    """One line of one square."""
    wide, high = SQUARE[size]
    letter, heat = frame.squares[square], None if frame.heat is None else frame.heat.get(square)
    mark = frame.marks.get(square)
    shade: Mark | Literal["last", "arrow"] | None = mark
    if shade is None and frame.last_move and square in frame.last_move:
        shade = "last"
    if shade is None and any(square in (arrow.start, arrow.end) for arrow in frame.arrows):
        shade = "arrow"
    dark = (square // 8 + square % 8) % 2 == 0
    ink: Literal["white", "black", "faint"] = "faint" if letter == EMPTY else "white" if letter.isupper() else "black"

    def piece(text: str, ink: Literal["white", "black", "faint", "sign"]) -> Piece:
        return Piece(text, Look(square, dark, shade, heat, ink))

    if line == (high - 1) // 2:
        figure = GLYPHS[glyphs][letter]
        before = 0 if size == "small" else wide // 2 - 1
        sign = MARK_SIGNS[mark] if mark else LAST if shade == "last" else " "
        if before:
            yield piece(" " * before, "faint")
        yield piece(figure, ink)
        yield piece(sign, "sign")
        if rest := wide - before - 2:
            yield piece(" " * rest, "faint")
    elif line == high - 1 and heat is not None:
        yield piece(f"{round(100 * heat)}".center(wide), "sign")
    else:
        yield piece(" " * wide, "faint")


def legend(frame: BoardFrame) -> list[str]:
    """What the signs on the board mean, where there are any, and the arrows from the strongest to the fifth."""
    import chess

    lines = []
    for mark, sign in MARK_SIGNS.items():
        squares = [chess.square_name(square) for square in sorted(frame.marks) if frame.marks[square] == mark]
        if squares:
            named = " ".join(squares[:8]) + (f" and {len(squares) - 8} more" if len(squares) > 8 else "")
            lines.append(f"{sign} {WORDS.get(mark, mark)}: {named}")
    if frame.heat_label:
        lines.append(f"numbers, shade: {frame.heat_label}")
    for arrow in sorted(frame.arrows, key=lambda arrow: (-arrow.weight, arrow.start, arrow.end))[:5]:
        move = f"{chess.square_name(arrow.start)}-{chess.square_name(arrow.end)}"
        bar = "━" * max(1, round(10 * arrow.weight)) + " "
        lines.append(f"{move} {arrow.weight:4.2f} {bar if arrow.weight < 1 else ''}{arrow.label}".rstrip())
    return lines


# A square's mark → the colour that its ground is blended with, and how much of it.
TINTS = {"last": ("last", 0.55), "from": ("last", 0.6), "to": ("last", 0.75), "arrow": ("arrow", 0.35),
         "target": ("arrow", 0.6), "illegal": ("wrong", 0.65), "wrong": ("wrong", 0.5), "removed": ("wrong", 0.65),
         "check": ("wrong", 0.7)}  # fmt: skip


class Squares(Widget):
    """The 64 squares with their labels."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "squares--light", "squares--dark", "squares--white", "squares--black", "squares--label", "squares--last",
        "squares--arrow", "squares--wrong", "squares--heat",
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
    Squares > .squares--wrong { background: $board-wrong; }
    Squares > .squares--heat { background: $board-heat; }
    """

    frame: reactive[BoardFrame | None] = reactive(None)
    square_size: reactive[Size] = reactive("medium", layout=True)
    glyphs: reactive[Glyphs] = reactive("solid")

    def get_content_width(self, container: Extent, viewport: Extent) -> int:
        return extent(self.square_size)[0]

    def get_content_height(self, container: Extent, viewport: Extent, width: int) -> int:
        return extent(self.square_size)[1]

    def watch_frame(self) -> None:
        self._drawn = None

    watch_square_size = watch_glyphs = watch_frame

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles: dict[Look, Style] = {}

    def render_line(self, y: int) -> Strip:
        if self.frame is None:
            return Strip.blank(self.size.width, self.rich_style)
        if self._drawn is None:
            self._drawn = draw(self.frame, self.square_size, self.glyphs)
        if y >= len(self._drawn):
            return Strip.blank(self.size.width, self.rich_style)
        line = [Segment(piece.text, self._style(piece.look)) for piece in self._drawn[y]]
        return Strip(line).crop_extend(0, self.size.width, self.rich_style)

    _drawn: list[list[Piece]] | None = None

    def _style(self, look: Look) -> Style:
        if look not in self._styles:
            self._styles[look] = self._made(look)
        return self._styles[look]

    def _made(self, look: Look) -> Style:
        if look.square is None:
            return self.get_component_rich_style("squares--label")

        def ground(name: str) -> Color:
            return self.get_component_styles(f"squares--{name}").background

        colour = ground("dark" if look.dark else "light")
        if look.heat is not None:
            colour = colour.blend(ground("heat"), 0.85 * look.heat)
        if look.mark is not None:
            tint, strength = TINTS.get(look.mark, ("arrow", 0.6))
            colour = colour.blend(ground(tint), strength)
        if look.ink == "faint":
            ink, bold = colour.blend(colour.get_contrast_text(), 0.25), False
        elif look.ink == "sign":
            ink, bold = colour.blend(colour.get_contrast_text(), 0.85), True
        else:
            ink, bold = self.get_component_styles(f"squares--{look.ink}").color, True
        return Style(color=rich(ink), bgcolor=rich(colour), bold=bold)


def rich(colour: Color) -> RichColor:
    return RichColor.from_rgb(*colour.rgb)


class BoardPane(Vertical):
    """A board under its title, with its legend and caption below."""

    DEFAULT_CSS = """
    BoardPane { width: auto; height: auto; margin: 0 2 0 1; }
    BoardPane > .board-title { width: 1fr; height: auto; text-style: bold; color: $text-accent; }
    BoardPane > .board-caption { width: 1fr; height: auto; color: $foreground; }
    BoardPane.-bare > Static { display: none; }
    """

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.title, self.squares = Static("", classes="board-title", markup=False), Squares()
        self.caption = Static("", classes="board-caption", markup=False)

    def compose(self) -> ComposeResult:
        yield self.title
        yield self.squares
        yield self.caption

    def show(self, frame: BoardFrame, size: Size, glyphs: Glyphs) -> None:
        """Draw this frame."""
        self.title.update(frame.title)
        self.squares.square_size, self.squares.glyphs, self.squares.frame = size, glyphs, frame
        self.caption.update("\n".join(words(frame)))


def words(frame: BoardFrame) -> list[str]:
    """What stands below a board: caption, then legend."""
    return [*frame.caption, *legend(frame)]
