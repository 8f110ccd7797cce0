"""A BoardFrame as an SVG picture and as plain text."""

from __future__ import annotations

from xml.sax.saxutils import escape

import chess
import chess.svg

from chessreg.games.boardframe import EMPTY, BoardFrame, Mark

MARK_COLOURS: dict[Mark, str] = {
    "removed": "#d9534fa0",
    "illegal": "#c0392bc0",
    "wrong": "#c0392b80",
    "target": "#2e86dea0",
    "from": "#f1c40f90",
    "to": "#f1c40fc0",
    "check": "#e74c3cb0",
}
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


def _alpha(colour: str, strength: float) -> str:
    return f"{colour}{round(255 * min(1.0, max(0.0, strength))):02x}"


def render_svg(frame: BoardFrame, size: int = 400) -> str:
    """The frame as one SVG document whose board is `size` pixels wide: heat in orange, marks over it, arrows by weight,
    title above and caption below. The marks stand in words in the document's `<desc>`."""
    fill = {square: _alpha("#e67e22", 0.85 * value) for square, value in (frame.heat or {}).items()}
    fill.update({square: MARK_COLOURS[mark] for square, mark in frame.marks.items() if mark != "check"})
    checked = next((square for square, mark in frame.marks.items() if mark == "check"), None)
    board = chess.svg.board(
        frame.base_board(),
        orientation=not frame.flipped,
        lastmove=chess.Move(*frame.last_move) if frame.last_move else None,
        check=checked,
        arrows=[
            chess.svg.Arrow(arrow.start, arrow.end, color=_alpha("#15781b", 0.15 + 0.7 * arrow.weight))
            for arrow in frame.arrows
        ],
        fill=fill,
        size=size,
    )
    line = max(12, size // 25)
    above = [frame.title] if frame.title else []
    below = list(frame.caption)
    if frame.heat is not None and frame.heat_label:
        below.append(f"heat: {frame.heat_label}")
    below += [f"{_arrow_name(arrow.start, arrow.end)} {arrow.label}" for arrow in frame.arrows if arrow.label]
    top = round(line * 1.6) * len(above)
    height = top + size + round(line * 1.4) * len(below) + (line if below else 0)
    texts = [
        f'<text x="{line / 2:g}" y="{line * 1.15:g}" font-weight="bold">{escape(text)}</text>' for text in above
    ] + [
        f'<text x="{line / 2:g}" y="{top + size + line * (1.4 * row + 1.2):g}">{escape(text)}</text>'
        for row, text in enumerate(below)
    ]
    marks = "; ".join(f"{chess.square_name(square)} {mark}" for square, mark in sorted(frame.marks.items()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{height}" viewBox="0 0 {size} {height}">'
        f'<desc>{escape(marks)}</desc><g font-family="sans-serif" font-size="{line}">{"".join(texts)}</g>'
        f'<g transform="translate(0 {top})">{board}</g></svg>'
    )


def render_text(frame: BoardFrame, unicode: bool = True) -> str:
    """The frame as lines of text, without colour: pieces as figurines (or letters), a sign after a marked square, heat
    as a bar (or its five highest values), then the marks in words, the arrows and the caption."""
    lines = [frame.title] if frame.title else []
    for row in frame.ranks():
        cells = [_cell(frame, square, unicode) for square in row]
        lines.append(f"{row[0] // 8 + 1}  {''.join(cells)}".rstrip())
    files = "hgfedcba" if frame.flipped else "abcdefgh"
    width = 3 if frame.heat is None or not unicode else 4
    lines.append("   " + "".join(name.ljust(width) for name in files).rstrip())
    used = [mark for mark in MARK_SIGNS if mark in frame.marks.values()]
    for mark in used:
        squares = ", ".join(chess.square_name(square) for square in sorted(frame.marks) if frame.marks[square] == mark)
        lines.append(f"{MARK_SIGNS[mark]} {mark}: {squares}")
    if frame.heat and not unicode:
        hottest = sorted(frame.heat.items(), key=lambda item: (-item[1], item[0]))[:5]
        lines.append("heat: " + ", ".join(f"{chess.square_name(square)} {value:.2f}" for square, value in hottest))
    if frame.heat is not None and frame.heat_label:
        lines.append(f"heat is {frame.heat_label}")
    for arrow in frame.arrows:
        lines.append(f"{_arrow_name(arrow.start, arrow.end)} {arrow.weight:.2f} {arrow.label}".rstrip())
    return "\n".join([*lines, *frame.caption]) + "\n"


def _cell(frame: BoardFrame, square: int, unicode: bool) -> str:
    letter = frame.squares[square]
    piece = ("·" if unicode else EMPTY) if letter == EMPTY else _UNICODE[letter] if unicode else letter
    mark = frame.marks.get(square)
    cell = piece + (MARK_SIGNS[mark] if mark else " ")
    if frame.heat is not None and unicode:
        cell += _HEAT_SIGNS[round(8 * frame.heat.get(square, 0.0))]
    return cell + " "


def _arrow_name(start: int, end: int) -> str:
    return f"{chess.square_name(start)}-{chess.square_name(end)}"
