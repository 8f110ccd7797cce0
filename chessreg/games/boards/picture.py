"""Board pictures: a BoardFrame as SVG, text or image file, and heat maps in gray as SVG or PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import chess
import chess.svg

from chessreg.errors import BadInputError, report_write_errors
from chessreg.games.boards.adjudication import count_mate_moves
from chessreg.games.boards.boardframe import EMPTY, BoardFrame, Mark, Role
from chessreg.terminal import make_visible
from store.files import write_whole

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch


MARK_COLORS: dict[Mark, str] = {
    "removed": "#d9534fa0",
    "illegal": "#c0392bc0",
    "wrong": "#c0392b80",
    "target": "#2e86dea0",
    "from": "#f1c40f90",
    "to": "#f1c40fc0",
    "check": "#e74c3cb0",
}
ARROW_COLORS: dict[Role, str] = {"": "#15781b", "played": "#c99700", "best": "#1f5fbf"}
MARK_SIGNS: dict[Mark, str] = {
    "removed": "x",
    "illegal": "!",
    "wrong": "?",
    "target": "*",
    "from": "(",
    "to": "<",
    "check": "+",
}
_UNICODE = {letter: chess.Piece.from_symbol(letter).unicode_symbol() for letter in "PNBRQKpnbrqk"}
_HEAT_SIGNS = " ▁▂▃▄▅▆▇█"


def _add_alpha(color: str, strength: float) -> str:
    return f"{color}{round(255 * min(1.0, max(0.0, strength))):02x}"


def render_svg(frame: BoardFrame, size: int = 400) -> str:
    """Return the frame as an SVG document whose board is `size` pixels wide.

    It shows heat in orange, marks over it, arrows by weight, the title above and the caption below. The document's
    `<desc>` lists the marks in words.
    """
    fill = {square: _add_alpha("#e67e22", 0.85 * (frame.shade(square) or 0.0)) for square in frame.heat or ()}
    fill.update({square: MARK_COLORS[mark] for square, mark in frame.marks.items() if mark != "check"})
    check_square = next((square for square, mark in frame.marks.items() if mark == "check"), None)
    board = chess.svg.board(
        frame.base_board(),
        orientation=not frame.flipped,
        lastmove=chess.Move(*frame.last_move) if frame.last_move else None,
        check=check_square,
        arrows=[
            chess.svg.Arrow(
                arrow.start, arrow.end, color=_add_alpha(ARROW_COLORS[arrow.role], 0.15 + 0.7 * arrow.weight)
            )
            for arrow in frame.arrows
        ],
        fill=fill,
        size=size,
    )
    line = max(12, size // 25)
    above = [frame.title] if frame.title else []
    lines = list(frame.caption)
    if frame.heat is not None and frame.heat_label:
        lines.append(f"heat: {frame.heat_words}")
    lines += [f"{_format_arrow(arrow.start, arrow.end)} {arrow.label}" for arrow in frame.arrows if arrow.label]
    lines += [f"read instead: {format_readings(frame)}"] if frame.read else []
    lines += [f"evaluation {format_evaluation(frame.evaluation)}"] if frame.evaluation is not None else []
    top = round(line * 1.6) * len(above)
    height = top + size + round(line * 1.4) * len(lines) + (line if lines else 0)
    texts = [
        f'<text x="{line / 2:g}" y="{line * 1.15:g}" font-weight="bold">{escape(make_visible(text))}</text>'
        for text in above
    ] + [
        f'<text x="{line / 2:g}" y="{top + size + line * (1.4 * row + 1.2):g}">{escape(make_visible(text))}</text>'
        for row, text in enumerate(lines)
    ]
    marks = "; ".join(f"{chess.square_name(square)} {mark}" for square, mark in sorted(frame.marks.items()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{height}" viewBox="0 0 {size} {height}">'
        f'<desc>{escape(make_visible(marks))}</desc><g font-family="sans-serif" font-size="{line}">{"".join(texts)}</g>'
        f'<g transform="translate(0 {top})">{board}</g></svg>'
    )


def render_text(frame: BoardFrame) -> str:
    """Return the frame as lines of text without color.

    Pieces are figurines, a sign follows a marked square, and heat is a bar. Marks, arrows and the caption follow in
    words.
    """
    lines = [frame.title] if frame.title else []
    for row in frame.ranks():
        cells = [_render_cell(frame, square) for square in row]
        lines.append(f"{row[0] // 8 + 1}  {''.join(cells)}".rstrip())
    files = "hgfedcba" if frame.flipped else "abcdefgh"
    width = 3 if frame.heat is None else 4
    lines.append("   " + "".join(name.ljust(width) for name in files).rstrip())
    marks = [mark for mark in MARK_SIGNS if mark in frame.marks.values()]
    for mark in marks:
        squares = ", ".join(chess.square_name(square) for square in sorted(frame.marks) if frame.marks[square] == mark)
        lines.append(f"{MARK_SIGNS[mark]} {mark}: {squares}")
    if frame.heat is not None and frame.heat_label:
        lines.append(f"heat is {frame.heat_label}")
    if frame.read:
        lines.append(f"read instead: {format_readings(frame)}")
    for arrow in frame.arrows:
        share = f"{arrow.weight:.2f} " if frame.shares else ""
        lines.append(f"{_format_arrow(arrow.start, arrow.end)} {share}{arrow.label}".rstrip())
    if frame.evaluation is not None:
        lines.append(f"evaluation {format_evaluation(frame.evaluation)}")
    return "\n".join([*lines, *frame.caption]) + "\n"


MAX_LISTED_READINGS = 6  # squares listed on one line


def format_readings(frame: BoardFrame) -> str:
    """Return a probe's wrong predictions, most probable first: `e4 n 0.56, d5 empty 0.44, …`."""
    order = sorted(frame.read, key=lambda square: (-frame.read[square].probability, square))
    reading_texts = [f"{chess.square_name(s)} {frame.read[s].words}" for s in order[:MAX_LISTED_READINGS]]
    more = f" and {len(order) - MAX_LISTED_READINGS} more" if len(order) > MAX_LISTED_READINGS else ""
    return ", ".join(reading_texts) + more


def format_evaluation(centipawns: float) -> str:
    """Return an evaluation in centipawns (White's view) as pawns; a mate in n as `#n`, or `#-n` if Black mates.

    Recognizes mates as encoded by chessreg's engines and by Lichess's files.

    >>> format_evaluation(-35), format_evaluation(9_997), format_evaluation(-29_999), format_evaluation(10_000)
    ('-0.35 for White', '#3', '#-1', '#0')
    """
    if (moves_left := count_mate_moves(centipawns)) is not None:
        return f"#{'' if centipawns > 0 else '-'}{moves_left}"
    return f"{centipawns / 100:+.2f} for White"


def _render_cell(frame: BoardFrame, square: int) -> str:
    letter = frame.squares[square]
    piece = "·" if letter == EMPTY else _UNICODE[letter]
    mark = frame.marks.get(square)
    cell = piece + (MARK_SIGNS[mark] if mark else " ")
    if frame.heat is not None:
        cell += _HEAT_SIGNS[round(8 * frame.heat.get(square, 0.0))]
    return cell + " "


def _format_arrow(start: int, end: int) -> str:
    return f"{chess.square_name(start)}-{chess.square_name(end)}"


SUFFIXES = (".svg", ".png")
PICTURE_DPI = 150
_GLYPHS = {letter: chess.Piece.from_symbol(letter.lower()).unicode_symbol() for letter in "PNBRQKpnbrqk"}
_LIGHT, _DARK = "#f0d9b5", "#b58863"


@dataclass(frozen=True)
class HeatPanel:
    """One board of numbers: `values` float [64] by square (a1 first), drawn from white (`low`) to black (`high`).

    `letters` are 64 pieces to draw over it, or None; `ringed_squares` squares get a frame.
    """

    title: str
    values: np.ndarray
    low: float
    high: float
    letters: str | None = None
    ringed_squares: tuple[int, ...] = ()


def save_heatmaps(panels: Sequence[HeatPanel], path: Path, title: str = "", columns: int = 2) -> None:
    """Save panels in rows of `columns`, each with a color bar. Raises BadInputError unless `path` ends in
    .svg or .png."""
    check_picture_suffix(path)
    _save_figure(draw_heatmaps(panels, title, columns), path)


def draw_heatmaps(panels: Sequence[HeatPanel], title: str = "", columns: int = 2) -> Figure:
    """Return the figure that `save_heatmaps` saves. Squares whose value is NaN stay empty."""
    import numpy as np
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
                color = "white" if panel.values[square] > middle else "black"
                axis.text(square & 7, square >> 3, letter, ha="center", va="center", color=color, fontsize=9)
        for square in panel.ringed_squares:
            axis.add_patch(_make_square(square, fill=False, edgecolor="#d9534f", linewidth=2))
        _draw_coordinates(axis, panel.title)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(title, fontsize=8, wrap=True)
    return figure


def save_frame(frame: BoardFrame, path: Path) -> None:
    """Save a frame as a picture: pieces, heat in orange, marks, arrows by weight, title above, caption below.

    Raises BadInputError unless `path` ends in .svg or .png.
    """
    check_picture_suffix(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5.4 + 0.2 * len(frame.caption)), layout="constrained")
    axis = figure.subplots()
    for square in range(64):
        light = (square & 7) + (square >> 3) & 1
        axis.add_patch(_make_square(square, facecolor=_LIGHT if light else _DARK, linewidth=0))
        if (shade := frame.shade(square)) is not None:
            axis.add_patch(_make_square(square, facecolor="#e67e22", alpha=0.85 * shade, linewidth=0))
        if square in frame.marks:
            axis.add_patch(_make_square(square, facecolor=MARK_COLORS[frame.marks[square]], linewidth=0))
        letter = frame.squares[square]
        if letter != EMPTY:
            inside = "white" if letter.isupper() else "#202020"
            _draw_piece(axis, square, _GLYPHS[letter], inside)
    for arrow in frame.arrows:
        start, end = ((s & 7, s >> 3) for s in (arrow.start, arrow.end))
        color, alpha = ARROW_COLORS[arrow.role], 0.15 + 0.7 * arrow.weight
        style = {"arrowstyle": "-|>", "color": color, "alpha": alpha, "lw": 3, "shrinkA": 0}
        axis.annotate("", end, start, arrowprops=style)
    _draw_coordinates(axis, frame.title)
    if frame.flipped:
        axis.invert_xaxis()
        axis.invert_yaxis()
    lines = [*frame.caption]
    if frame.heat is not None and frame.heat_label:
        lines.append(f"heat: {frame.heat_words}")
    axis.set_xlabel("\n".join(lines), fontsize=8, loc="left")
    _save_figure(figure, path)


def check_picture_suffix(path: Path) -> None:
    """Raise BadInputError unless `path` ends in .svg or .png."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadInputError(f"{path} is not a picture", f"end its name in {' or '.join(SUFFIXES)}")


def _make_square(square: int, **style: Any) -> Patch:
    from matplotlib.patches import Rectangle

    return Rectangle(((square & 7) - 0.5, (square >> 3) - 0.5), 1, 1, **style)


def _draw_piece(axis: Axes, square: int, glyph: str, inside: str) -> None:
    """Draw the figurine `glyph` on a square, filled with color `inside` and outlined to be readable on light and dark
    squares."""
    from matplotlib.patheffects import withStroke

    outline = [withStroke(linewidth=1.5, foreground="#202020" if inside == "white" else "#c0c0c0")]
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 24, "family": "DejaVu Sans"}
    axis.text(square & 7, (square >> 3) - 0.04, glyph, color=inside, path_effects=outline, **place)


def _draw_coordinates(axis: Axes, title: str) -> None:
    axis.set_xlim(-0.5, 7.5)
    axis.set_ylim(-0.5, 7.5)
    axis.set_aspect("equal")
    axis.set_xticks(range(8), list("abcdefgh"))
    axis.set_yticks(range(8), list("12345678"))
    axis.tick_params(length=0, labelsize=8)
    axis.set_title(title, fontsize=9)


def _save_figure(figure: Figure, path: Path) -> None:
    """Save the figure completely or not at all; equal figures give equal bytes."""
    import io

    import matplotlib

    kind = path.suffix.lower()[1:]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "chessreg"}):
        figure.savefig(buffer, format=kind, dpi=PICTURE_DPI, metadata={"Date": None} if kind == "svg" else None)
    with report_write_errors(path):
        write_whole(path, buffer.getvalue())
