"""A BoardFrame as cells of text, without a terminal: three sizes, three sets of pieces, marks that need no colour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


def text(frame: BoardFrame, size: Size = "small", glyphs: Glyphs = "outline") -> str:
    """The board as plain text."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in draw(frame, size, glyphs))


def legend(frame: BoardFrame) -> list[str]:
    """What the signs on the board mean, where there are any, and the arrows from the strongest to the fifth."""
    import chess

    lines = []
    for mark, sign in MARK_SIGNS.items():
        squares = [chess.square_name(square) for square in sorted(frame.marks) if frame.marks[square] == mark]
        if squares:
            shown = " ".join(squares[:8]) + (f" and {len(squares) - 8} more" if len(squares) > 8 else "")
            lines.append(f"{sign} {WORDS.get(mark, mark)}: {shown}")
    if frame.heat_label:
        lines.append(f"numbers, shade: {frame.heat_label}")
    for arrow in sorted(frame.arrows, key=lambda arrow: (-arrow.weight, arrow.start, arrow.end))[:5]:
        move = f"{chess.square_name(arrow.start)}-{chess.square_name(arrow.end)}"
        bar = "━" * max(1, round(10 * arrow.weight)) + " "
        lines.append(f"{move} {arrow.weight:4.2f} {bar if arrow.weight < 1 else ''}{arrow.label}".rstrip())
    return lines
