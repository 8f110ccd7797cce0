"""Cells to draw on: text, marks, lines of braille dots and bars of eighths."""

from __future__ import annotations

from itertools import groupby

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille cell
BRAILLE = 0x2800
EIGHTHS = " ▏▎▍▌▋▊▉█"


class Canvas:
    """`width` x `height` cells, each a character and the name of its style. What lies outside is not drawn."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[(" ", "")] * width for _ in range(height)]

    def at(self, x: int, y: int) -> str:
        return self._cells[y][x][0]

    def put(self, x: int, y: int, character: str, style: str = "") -> None:
        if 0 <= x < self.width and 0 <= y < self.height:
            self._cells[y][x] = (character, style)

    def text(self, x: int, y: int, text: str, style: str = "") -> None:
        """Text of single cells from (x, y) to the right."""
        for n, character in enumerate(text):
            self.put(x + n, y, character, style)

    def line(self, x0: float, y0: float, x1: float, y1: float, style: str) -> None:
        """Dots from the middle of one cell to the middle of another; only over blanks and dots."""
        steps = int(max(2 * abs(x1 - x0), 4 * abs(y1 - y0), 1))
        for n in range(steps + 1):
            share = n / steps
            x, y = 2 * (x0 + (x1 - x0) * share) + 1, 4 * (y0 + (y1 - y0) * share) + 2
            self._dot(int(x), int(y), style)

    def _dot(self, x: int, y: int, style: str) -> None:
        column, row = x // 2, y // 4
        if not (0 <= column < self.width and 0 <= row < self.height):
            return
        before = self._cells[row][column][0]
        if before == " ":
            before = chr(BRAILLE)
        if BRAILLE <= ord(before) < BRAILLE + 256:
            self._cells[row][column] = (chr(ord(before) | DOTS[y % 4][x % 2]), style)

    def bar(self, begin: float, end: float, style: str, y: int = 0) -> None:
        """A bar from `begin` to `end` in cells; its end is exact to an eighth, its beginning to a cell."""
        for x in range(int(begin), min(self.width, int(end) + 1)):
            self.put(x, y, EIGHTHS[max(0, min(8, round(8 * (end - x))))], style)

    def lines(self) -> list[list[tuple[str, str]]]:
        """Each line as runs of (text, style)."""
        return [
            [("".join(character for character, _ in run), style) for style, run in groupby(line, lambda cell: cell[1])]
            for line in self._cells
        ]
