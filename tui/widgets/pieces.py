"""Chess pieces as quadrant blocks that fill their square: bitmaps for small squares, outlines for larger ones.

A square of N lines is 2 N cells wide. A cell has two by two points, so a piece has 4 N by 2 N points. Each point is
half as wide as it is high. Points outside the piece and in its holes show the square.
"""

from __future__ import annotations

from functools import cache

MIN_PIECE_LINES = 3  # on smaller squares, a piece is a character of the font
# Bit 0 is the upper left point, bit 1 the upper right, bit 2 the lower left, bit 3 the lower right. Sextants are
# missing from many fonts.
QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"

BITMAPS = {
    3: {
        "K": """
            .....##.....
            ...######...
            .....##.....
            ..########..
            ..########..
            ............""",
        "Q": """
            .#...##...#.
            .##.####.##.
            ..########..
            ...######...
            ..########..
            ............""",
        "R": """
            ..##.##.##..
            ..########..
            ...######...
            ...######...
            ..########..
            ............""",
        "B": """
            .....##.....
            ....##.#....
            ...##.###...
            ....####....
            ..########..
            ............""",
        "N": """
            ....###.....
            ..#######...
            .#########..
            ....######..
            ..########..
            ............""",
        "P": """
            ............
            .....##.....
            ....####....
            .....##.....
            ...######...
            ............""",
    },
    4: {
        "K": """
            .......##.......
            .....######.....
            .......##.......
            ..####.##.####..
            .##############.
            ...##########...
            ..############..
            ................""",
        "Q": """
            .##....##....##.
            .##.##.##.##.##.
            ..############..
            ..############..
            ...##########...
            ....########....
            ..############..
            ................""",
        "R": """
            ..###..##..###..
            ..############..
            ...##########...
            ....########....
            ....########....
            ...##########...
            ..############..
            ................""",
        "B": """
            .......##.......
            ......####......
            .....###.##.....
            ....###.####....
            ....########....
            ......####......
            ..############..
            ................""",
        "N": """
            ......##........
            .....######.....
            ...##.######....
            ..############..
            ..###..#######..
            .....#########..
            ...###########..
            ................""",
        "P": """
            ................
            ......####......
            .....######.....
            ......####......
            .....######.....
            ....########....
            ...##########...
            ................""",
    },
}

Polygon = tuple[tuple[float, float], ...]
# Percent of the square: x to the right of its middle, y down from its top. The right half of a piece, from the axis to
# the axis, and the holes in it; the knight, which has no axis, is whole.
HALVES: dict[str, Polygon] = {
    "K": ((0, 0), (5, 0), (5, 8), (14, 8), (14, 17), (5, 17), (5, 28), (10, 36), (24, 30), (38, 36), (42, 48), (36, 64),
          (30, 73), (33, 80), (37, 92), (0, 92)),
    "Q": ((0, 6), (5, 6), (5, 18), (9, 46), (20, 18), (17, 14), (24, 10), (28, 16), (25, 24), (25, 48), (39, 28),
          (41, 22), (46, 26), (44, 32), (33, 72), (34, 80), (37, 92), (0, 92)),
    "R": ((0, 14), (8, 14), (8, 24), (17, 24), (17, 14), (32, 14), (32, 36), (23, 42), (23, 70), (31, 76), (38, 80),
          (38, 92), (0, 92)),
    "B": ((0, 2), (6, 4), (7, 11), (16, 20), (24, 31), (26, 43), (21, 54), (14, 58), (22, 61), (22, 68), (14, 70),
          (18, 78), (35, 82), (38, 92), (0, 92)),
    "P": ((0, 14), (9, 15), (15, 21), (17, 29), (14, 37), (10, 42), (21, 44), (21, 51), (11, 52), (14, 66), (22, 78),
          (32, 82), (34, 92), (0, 92)),
}  # fmt: skip
HOLES: dict[str, Polygon] = {
    "K": ((-26, 74), (26, 74), (26, 80), (-26, 80)),
    "Q": ((-26, 74), (26, 74), (26, 80), (-26, 80)),
    "B": ((2, 20), (9, 24), (5, 40), (-2, 36)),
    "N": ((-21, 27), (-12, 27), (-12, 34), (-21, 34)),
}
KNIGHT: Polygon = (
    (-4, 8), (2, 14), (16, 18), (28, 34), (33, 56), (32, 80), (37, 84), (37, 92), (-30, 92), (-30, 84), (-24, 80),
    (-20, 68), (0, 52), (-2, 46), (-14, 52), (-26, 60), (-36, 56), (-38, 48), (-26, 30), (-18, 18), (-10, 16),
)  # fmt: skip
SCAN_LINES = 8  # scan lines per point for measuring the piece's share of it


@cache
def draw_piece_lines(letter: str, lines: int) -> tuple[str, ...]:
    """Return the piece `letter` (either case, for either side) as `lines` strings of 2 * `lines` quadrant blocks."""
    rows = rasterize_piece(letter.upper(), lines)
    return tuple(
        "".join(
            QUADRANTS[above[x] | above[x + 1] << 1 | below[x] << 2 | below[x + 1] << 3] for x in range(0, 4 * lines, 2)
        )
        for above, below in zip(rows[::2], rows[1::2], strict=True)
    )


def rasterize_piece(letter: str, lines: int) -> list[list[bool]]:
    """Return 2 * `lines` rows of 4 * `lines` points. A point is true if the piece covers at least half of it."""
    if lines in BITMAPS:
        return [[point == "#" for point in row] for row in BITMAPS[lines][letter].split()]
    half = HALVES.get(letter)
    body = KNIGHT if half is None else (*half, *((-x, y) for x, y in reversed(half)))
    polygons = [body, HOLES[letter]] if letter in HOLES else [body]
    pixel_columns, high = 4 * lines, 2 * lines
    coverage = [[0.0] * pixel_columns for _ in range(high)]
    for scan in range(high * SCAN_LINES):
        y = 100 * (scan + 0.5) / (high * SCAN_LINES)
        crossings = sorted(
            (x0 + (x1 - x0) * (y - y0) / (y1 - y0) + 50) * pixel_columns / 100
            for polygon in polygons
            for (x0, y0), (x1, y1) in zip(polygon, polygon[1:] + polygon[:1], strict=True)
            if (y0 <= y) != (y1 <= y)
        )
        for left, right in zip(crossings[::2], crossings[1::2], strict=True):
            for x in range(max(0, int(left)), min(pixel_columns, int(right) + 1)):
                coverage[scan // SCAN_LINES][x] += max(0.0, min(right, x + 1) - max(left, x)) / SCAN_LINES
    return [[share >= 0.5 for share in row] for row in coverage]
