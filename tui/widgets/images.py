"""Boards and figures as images, in terminals that support them, with `textual-image` installed (the extra `images`)."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import struct
import sys
import termios
import time
import tty
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.color import Color

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

    from chessreg.games.boards.boardframe import BoardFrame

SQUARE_PIXELS = 64
FIGURES = dict(zip("kqrbnp", "♚♛♜♝♞♟", strict=True))
ANSWER_TIMEOUT_S = 1.0
PLACEHOLDER = "\U0010eeee"  # kitty replaces this character with a part of an image


GRAPHICS_QUERY = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"  # does the terminal support kitty's image protocol?
TERMINAL_QUERIES = (
    f"\x1b[c{GRAPHICS_QUERY}\x1b[16t\x1b[5n"  # attributes, images, cell size, and status, which every terminal reports
)
ANSWER_PATTERN = re.compile(
    r"\x1b(?:\[\?(?P<attributes>[\d;]*)c|_G[^\x1b]*?(?P<kitty>;OK)?\x1b\\|\[6;(?P<high>\d+);(?P<wide>\d+)t|\[[\d;]*[nt])"
)


class Terminal(NamedTuple):
    """The terminal's image support, if any, and the keys typed during the query."""

    widget: type[Any] | None = None
    typed_text: str = ""


def ask_terminal() -> Terminal:
    """Query the terminal's image support before an app runs. Skipped if textual-image is not installed."""
    if find_spec("textual_image") is None:
        return Terminal()
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSANOW)
    try:
        terminal_answers = read_answers(keyboard)
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
    matches = [*ANSWER_PATTERN.finditer(terminal_answers)]
    sixel = any("4" in (one["attributes"] or "").split(";") for one in matches)
    typed_text, size = ANSWER_PATTERN.sub("", terminal_answers), os.get_terminal_size(keyboard)
    if not size.columns or not (sixel or any(one["kitty"] for one in matches)):
        return Terminal(None, typed_text)
    return Terminal(load_image_widget(sixel, find_cell_size(keyboard, matches)), typed_text)


def read_answers(keyboard: int) -> str:
    """Return the terminal's answers to QUESTIONS, and the keys typed meanwhile. Answers arrive in order, so read until
    the last one. An unread answer would be mistaken for keys."""
    assert sys.__stdout__ is not None
    os.write(sys.__stdout__.fileno(), TERMINAL_QUERIES.encode())
    answer_bytes, deadline = b"", time.monotonic() + ANSWER_TIMEOUT_S
    while not answer_bytes.endswith(b"\x1b[0n") and (remaining_s := deadline - time.monotonic()) > 0:
        if select.select([keyboard], [], [], remaining_s)[0]:
            answer_bytes += os.read(keyboard, 1)
    return answer_bytes.decode(errors="replace")


def find_cell_size(keyboard: int, reports: Sequence[re.Match[str]]) -> tuple[int, int] | None:
    """Return the width and height of a cell in pixels, as reported by the system or the terminal."""
    rows, columns, pixel_width, high = struct.unpack("HHHH", fcntl.ioctl(keyboard, termios.TIOCGWINSZ, b"\0" * 8))
    if pixel_width and high:
        return pixel_width // columns, high // rows
    return next(((int(one["wide"]), int(one["high"])) for one in reports if one["wide"]), None)


def load_image_widget(sixel: bool, cell: tuple[int, int] | None) -> type[Any]:
    """Return textual-image's widget class. On a terminal, its import queries the terminal again, discards typed keys
    and waits. To prevent this, hide the terminal and set the cell size as textual-serve does."""
    cell_variables = {} if cell is None else {"TEXTUAL_CELL_WIDTH": str(cell[0]), "TEXTUAL_CELL_HEIGHT": str(cell[1])}
    stdout, environment = sys.__stdout__, dict(os.environ)
    vars(sys)["__stdout__"] = io.StringIO()
    os.environ.update(cell_variables)
    try:
        from textual_image import widget
    finally:
        vars(sys)["__stdout__"] = stdout
        for name in cell_variables.keys() - environment.keys():
            del os.environ[name]
    return widget.SixelImage if sixel else widget.TGPImage


@cache
def load_font(size: int) -> FreeTypeFont:
    """Return DejaVu Sans, which ships with matplotlib and contains chess pieces."""
    from PIL import ImageFont

    spec = find_spec("matplotlib")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / "DejaVuSans.ttf"), size)


def draw_board_image(
    frame: BoardFrame, grounds: Mapping[int, Color], signs: Mapping[int, str], numbers: Mapping[int, str], arrow: Color
) -> Image:
    """Draw a board of 8 × SQUARE_PIXELS pixels.

    `grounds`, `signs` and `numbers` are those of the text board by square. The ranks and files are at the edges. Arrows
    are drawn in `arrow`, with a width proportional to their weight.
    """
    from PIL import Image, ImageDraw

    from chessreg.games.boards.boardframe import EMPTY

    picture = Image.new("RGB", (8 * SQUARE_PIXELS, 8 * SQUARE_PIXELS))
    draw = ImageDraw.Draw(picture)
    corner = {
        square: (SQUARE_PIXELS * x, SQUARE_PIXELS * y)
        for y, rank in enumerate(frame.ranks())
        for x, square in enumerate(rank)
    }
    for square, (x, y) in corner.items():
        ground = grounds[square]
        ink = ground.get_contrast_text().rgb
        draw.rectangle((x, y, x + SQUARE_PIXELS - 1, y + SQUARE_PIXELS - 1), fill=ground.rgb)
        letter = frame.squares[square]
        if letter != EMPTY:
            white = letter.isupper()
            fill, edge = ("#ffffff", "#202020") if white else ("#101010", "#c0c0c0")
            place, name = (x + SQUARE_PIXELS // 2, y + SQUARE_PIXELS // 2 - 4), FIGURES[letter.lower()]
            draw.text(place, name, fill=fill, font=load_font(44), anchor="mm", stroke_width=1, stroke_fill=edge)
        if x == 0:
            draw.text((x + 3, y + 2), str(square // 8 + 1), fill=ink, font=load_font(14), anchor="la")
        if y == 7 * SQUARE_PIXELS:
            draw.text((x + 3, y + SQUARE_PIXELS - 3), "abcdefgh"[square % 8], fill=ink, font=load_font(14), anchor="ls")
        if sign := signs.get(square, "").strip():
            draw.text((x + SQUARE_PIXELS - 4, y + 2), sign, fill=ink, font=load_font(16), anchor="ra")
        if number := numbers.get(square, ""):
            draw.text(
                (x + SQUARE_PIXELS // 2, y + SQUARE_PIXELS - 2), number, fill=ink, font=load_font(14), anchor="md"
            )
    for one in frame.arrows:
        (x0, y0), (x1, y1) = (
            (corner[s][0] + SQUARE_PIXELS // 2, corner[s][1] + SQUARE_PIXELS // 2) for s in (one.start, one.end)
        )
        draw.line((x0, y0, x1, y1), fill=arrow.rgb, width=2 + round(8 * one.weight))
        radius = 5 + round(5 * one.weight)
        draw.ellipse((x1 - radius, y1 - radius, x1 + radius, y1 + radius), fill=arrow.rgb)
    return picture


def render_figure(figure: Figure) -> Image:
    """Return a matplotlib figure as an image."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    buffer.seek(0)
    return Image.open(buffer)
