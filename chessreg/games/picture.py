"""Boards as pictures through matplotlib, SVG or PNG by the file's name: heat maps in gray, and any BoardFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.boardframe import EMPTY, BoardFrame
from chessreg.games.svg import MARK_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

SUFFIXES = (".svg", ".png")
DPI = 150
_GLYPHS = {letter: chess.Piece.from_symbol(letter.lower()).unicode_symbol() for letter in "PNBRQKpnbrqk"}
_LIGHT, _DARK = "#f0d9b5", "#b58863"


@dataclass(frozen=True)
class HeatPanel:
    """One board of numbers: float [64] by square (a1 first), drawn from white (`low`) to black (`high`).

    letters are the pieces to draw over it, 64 of them, or none; ringed squares get a frame.
    """

    title: str
    values: np.ndarray
    low: float
    high: float
    letters: str | None = None
    ringed: tuple[int, ...] = ()


def save_heatmaps(panels: Sequence[HeatPanel], path: Path, title: str = "", columns: int = 2) -> None:
    """Panels in rows of `columns`, each with its scale. Raises BadInputError for another suffix than .svg and .png."""
    check_suffix(path)
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns, 3.3 * rows + 0.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns)).reshape(-1)
    for axis, panel in zip(axes, panels, strict=False):
        image = axis.imshow(panel.values.reshape(8, 8), "gray_r", vmin=panel.low, vmax=panel.high, origin="lower")
        figure.colorbar(image, ax=axis, shrink=0.8)
        middle = (panel.low + panel.high) / 2
        for square, letter in enumerate(panel.letters or EMPTY * 64):
            if letter != EMPTY:
                colour = "white" if panel.values[square] > middle else "black"
                axis.text(square & 7, square >> 3, letter, ha="center", va="center", color=colour, fontsize=9)
        for square in panel.ringed:
            axis.add_patch(_square(square, fill=False, edgecolor="#d9534f", linewidth=2))
        _coordinates(axis, panel.title)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(title, fontsize=8, wrap=True)
    _save(figure, path)


def save_frame(frame: BoardFrame, path: Path) -> None:
    """A frame as a picture: pieces, heat in orange, marks, arrows by weight, title above and caption below."""
    check_suffix(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5.4 + 0.2 * len(frame.caption)), layout="constrained")
    axis = figure.subplots()
    for square in range(64):
        light = (square & 7) + (square >> 3) & 1
        axis.add_patch(_square(square, facecolor=_LIGHT if light else _DARK, linewidth=0))
        if frame.heat and square in frame.heat:
            axis.add_patch(_square(square, facecolor="#e67e22", alpha=0.85 * frame.heat[square], linewidth=0))
        if square in frame.marks:
            axis.add_patch(_square(square, facecolor=MARK_COLOURS[frame.marks[square]], linewidth=0))
        letter = frame.squares[square]
        if letter != EMPTY:
            inside = "white" if letter.isupper() else "#202020"
            _piece(axis, square, _GLYPHS[letter], inside)
    for arrow in frame.arrows:
        start, end = ((s & 7, s >> 3) for s in (arrow.start, arrow.end))
        style = {"arrowstyle": "-|>", "color": "#15781b", "alpha": 0.15 + 0.7 * arrow.weight, "lw": 3, "shrinkA": 0}
        axis.annotate("", end, start, arrowprops=style)
    _coordinates(axis, frame.title)
    if frame.flipped:
        axis.invert_xaxis()
        axis.invert_yaxis()
    below = [*frame.caption]
    if frame.heat is not None and frame.heat_label:
        below.append(f"heat: {frame.heat_label}")
    axis.set_xlabel("\n".join(below), fontsize=8, loc="left")
    _save(figure, path)


def check_suffix(path: Path) -> None:
    """Raises BadInputError for a name that does not end in .svg or .png."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadInputError(f"{path} is no picture by its name", f"end it in {' or '.join(SUFFIXES)}")


def _square(square: int, **how: Any) -> Patch:
    from matplotlib.patches import Rectangle

    return Rectangle(((square & 7) - 0.5, (square >> 3) - 0.5), 1, 1, **how)


def _piece(axis: Axes, square: int, glyph: str, inside: str) -> None:
    """A filled figurine with a dark outline: it reads on light and on dark squares."""
    from matplotlib.patheffects import withStroke

    outline = [withStroke(linewidth=1.5, foreground="#202020" if inside == "white" else "#c0c0c0")]
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 24, "family": "DejaVu Sans"}
    axis.text(square & 7, (square >> 3) - 0.04, glyph, color=inside, path_effects=outline, **place)


def _coordinates(axis: Axes, title: str) -> None:
    axis.set_xlim(-0.5, 7.5)
    axis.set_ylim(-0.5, 7.5)
    axis.set_aspect("equal")
    axis.set_xticks(range(8), list("abcdefgh"))
    axis.set_yticks(range(8), list("12345678"))
    axis.tick_params(length=0, labelsize=8)
    axis.set_title(title, fontsize=9)


def _save(figure: Figure, path: Path) -> None:
    """Written whole or not at all, and the same bytes every time."""
    import io

    import matplotlib

    kind = path.suffix.lower()[1:]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "chessreg"}):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}") from error
