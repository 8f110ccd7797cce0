"""The board: draws one BoardFrame in the colours of the theme."""

from __future__ import annotations

from typing import ClassVar

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

from chessreg.games.boardframe import BoardFrame
from tui.widgets import squares
from tui.widgets.squares import Glyphs, Look, Size

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
        return squares.extent(self.square_size)[0]

    def get_content_height(self, container: Extent, viewport: Extent, width: int) -> int:
        return squares.extent(self.square_size)[1]

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
            self._drawn = squares.draw(self.frame, self.square_size, self.glyphs)
        if y >= len(self._drawn):
            return Strip.blank(self.size.width, self.rich_style)
        line = [Segment(piece.text, self._style(piece.look)) for piece in self._drawn[y]]
        return Strip(line).crop_extend(0, self.size.width, self.rich_style)

    _drawn: list[list[squares.Piece]] | None = None

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
    return [*frame.caption, *squares.legend(frame)]
