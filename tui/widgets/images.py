"""Boards and figures as images, in terminals that draw them, with `textual-image` installed (the extra `images`)."""

from __future__ import annotations

import io
import os
import re
import select
import sys
import termios
import time
import tty
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.color import Color

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

    from chessreg.games.boardframe import BoardFrame

SIDE = 64  # pixels of a square
FIGURES = dict(zip("kqrbnp", "♚♛♜♝♞♟", strict=True))
SLOW = 1.0  # seconds that a terminal has for its answers
PLACEHOLDER = "\U0010eeee"  # what kitty draws parts of an image in place of


def image_widget() -> type[Any] | None:
    """The widget that draws images here; None where textual-image is not installed, or the terminal draws none. Asks
    the terminal, so it must be called before an app runs."""
    if find_spec("textual_image") is None:
        return None
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard, termios.TCSANOW)
    try:
        from textual_image import renderable, widget  # asks, and waits 0.1 s for an answer
    except Exception:  # it trips over a terminal of no size, and over letters that are typed meanwhile
        return None
    finally:
        late = late_answers(keyboard)
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
    attributes = re.search(r"\?([\d;]+)c", late)
    if renderable.Image is renderable.SixelImage or (attributes and "4" in attributes[1].split(";")):
        return widget.SixelImage
    if renderable.Image is renderable.TGPImage or re.search(r"Gi=\d+;OK", late):
        return widget.TGPImage
    return None


def late_answers(keyboard: int) -> str:
    """What the terminal still answers to what it was asked. Answers come in order: one more question is asked, which
    every terminal answers, and all is read until then. Left there, an answer would be taken for keys: over a slow line
    `?62;4c` opens the help, a room and so on."""
    sys.stdout.write("\x1b[5n")  # its status
    sys.stdout.flush()
    answers, deadline = b"", time.monotonic() + SLOW
    while not answers.endswith(b"\x1b[0n") and (left := deadline - time.monotonic()) > 0:
        if select.select([keyboard], [], [], left)[0]:
            answers += os.read(keyboard, 1)
    return answers.decode(errors="replace")


@cache
def font(size: int) -> FreeTypeFont:
    """DejaVu Sans, which matplotlib brings along and which has figurines."""
    from PIL import ImageFont

    spec = find_spec("matplotlib")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / "DejaVuSans.ttf"), size)


def board_image(
    frame: BoardFrame, grounds: Mapping[int, Color], signs: Mapping[int, str], numbers: Mapping[int, str], arrow: Color
) -> Image:
    """A board of 8 × SIDE pixels: each square's ground, sign and number as the text board has them, pieces, ranks and
    files at its edges, and arrows as broad as they weigh."""
    from PIL import Image, ImageDraw

    from chessreg.games.boardframe import EMPTY

    picture = Image.new("RGB", (8 * SIDE, 8 * SIDE))
    draw = ImageDraw.Draw(picture)
    corner = {square: (SIDE * x, SIDE * y) for y, rank in enumerate(frame.ranks()) for x, square in enumerate(rank)}
    for square, (x, y) in corner.items():
        ground = grounds[square]
        ink = ground.get_contrast_text().rgb
        draw.rectangle((x, y, x + SIDE - 1, y + SIDE - 1), fill=ground.rgb)
        letter = frame.squares[square]
        if letter != EMPTY:
            white = letter.isupper()
            fill, edge = ("#ffffff", "#202020") if white else ("#101010", "#c0c0c0")
            place, name = (x + SIDE // 2, y + SIDE // 2 - 4), FIGURES[letter.lower()]
            draw.text(place, name, fill=fill, font=font(44), anchor="mm", stroke_width=1, stroke_fill=edge)
        if x == 0:
            draw.text((x + 3, y + 2), str(square // 8 + 1), fill=ink, font=font(14), anchor="la")
        if y == 7 * SIDE:
            draw.text((x + 3, y + SIDE - 3), "abcdefgh"[square % 8], fill=ink, font=font(14), anchor="ls")
        if sign := signs.get(square, "").strip():
            draw.text((x + SIDE - 4, y + 2), sign, fill=ink, font=font(16), anchor="ra")
        if number := numbers.get(square, ""):
            draw.text((x + SIDE // 2, y + SIDE - 2), number, fill=ink, font=font(14), anchor="md")
    for one in frame.arrows:
        (x0, y0), (x1, y1) = ((corner[s][0] + SIDE // 2, corner[s][1] + SIDE // 2) for s in (one.start, one.end))
        draw.line((x0, y0, x1, y1), fill=arrow.rgb, width=2 + round(8 * one.weight))
        radius = 5 + round(5 * one.weight)
        draw.ellipse((x1 - radius, y1 - radius, x1 + radius, y1 + radius), fill=arrow.rgb)
    return picture


def figure_image(figure: Figure) -> Image:
    """A figure of matplotlib as an image."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    buffer.seek(0)
    return Image.open(buffer)
