"""A chart in the terminal: lines of braille dots with marks and whiskers, or horizontal bars. Series differ in marks
and names as well as in color."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from textwrap import wrap
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from chessreg.entities.display import Chart, Panel, Point
from tui.columns import fit_text
from tui.interval_bars import MAX_TICKS, choose_ticks


def find_value_range(points: Iterable[Point]) -> tuple[float, float]:
    """Return the lowest and the highest value, including intervals."""
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None and math.isfinite(v)]
    return (min(values), max(values)) if values else (0.0, 1.0)


def format_ticks(values: Sequence[float]) -> list[str]:
    """Return the ticks with as few decimals as distinguish them.

    >>> format_ticks([0.0, 0.5, 1.0]), format_ticks([0.0, 20.0])
    (['0.0', '0.5', '1.0'], ['0', '20'])
    """
    for decimals in range(7):
        texts = [f"{value:,.{decimals}f}" for value in values]
        if all(abs(float(text.replace(",", "")) - value) < 1e-9 for text, value in zip(texts, values, strict=True)):
            return texts
    return [f"{value:.3g}" for value in values]


MARKS = "●■▲◆○□△◇"
SERIES_COLORS = 6
MIN_PANEL_CELLS, MIN_PANEL_LINES = 46, 12
MAX_LABEL_SHARE = 0.4  # maximum share of the width used by the names of bars


class ChartView(Widget):
    """A chart, drawn by `show`. Its height depends on its content and the available space."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart-view--axis", "chart-view--title", *(f"chart-view--{n}" for n in range(SERIES_COLORS)),
    }  # fmt: skip
    DEFAULT_CSS = """
    ChartView { height: auto; min-height: 1; padding: 0 1; background: $surface; color: $foreground; }
    ChartView > .chart-view--axis { color: $text-muted; }
    ChartView > .chart-view--title { text-style: bold; }
    ChartView > .chart-view--0 { color: $text-primary; }
    ChartView > .chart-view--1 { color: $text-warning; }
    ChartView > .chart-view--2 { color: $text-success; }
    ChartView > .chart-view--3 { color: $text-error; }
    ChartView > .chart-view--4 { color: $text-accent; }
    ChartView > .chart-view--5 { color: $text-secondary; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.chart: Chart | None = None
        self._lines: list[list[tuple[str, str]]] = []
        self._drawn_for: tuple[int, int] = (0, 0)

    def show(self, chart: Chart) -> None:
        self.chart = chart
        self._drawn_for = (0, 0)
        self._draw()

    def on_mount(self) -> None:
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _: self._draw())  # more space

    def _draw(self) -> None:
        scroll = self.parent
        space = scroll.scrollable_content_region.height if isinstance(scroll, Widget) else self.size.height
        wanted_size = (self.size.width, max(space, MIN_PANEL_LINES))
        if self.chart is None or not self.size.width or wanted_size == self._drawn_for:
            return
        self._drawn_for = wanted_size
        self._lines = draw_chart(self.chart, *wanted_size)
        self.styles.height = max(1, len(self._lines))
        self.refresh(layout=True)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        line = [
            Segment(text, self.get_component_rich_style(f"chart-view--{style}") if style else self.rich_style)
            for text, style in self._lines[y]
        ]
        return Strip(line).adjust_cell_length(self.size.width, self.rich_style)


def draw_chart(chart: Chart, width: int, height: int) -> list[list[tuple[str, str]]]:
    """Return the chart's lines as runs of (text, style). A style is `axis`, `title`, a series' number, or empty."""
    if not chart.list_points():
        return [[("nothing to draw", "axis")]]
    legend = [] if chart.form == "bars" else draw_legend(chart.labels, width)
    if chart.form == "bars":
        return [line for panel in chart.panels for line in draw_bar_panel(chart, panel, width)]
    panels_per_row = max(1, min(len(chart.panels), width // MIN_PANEL_CELLS))
    down = -(-len(chart.panels) // panels_per_row)
    panel_cells, high = width // panels_per_row, max(MIN_PANEL_LINES, (height - len(legend)) // down)
    picture: list[list[tuple[str, str]]] = []
    for row in range(down):
        parts = [
            draw_line_panel(chart, panel, panel_cells, high)
            for panel in chart.panels[row * panels_per_row : (row + 1) * panels_per_row]
        ]
        picture += [[run for part in parts for run in part[y]] for y in range(high)]
    return picture + legend


def get_series_style(place: int) -> str:
    return str(place % SERIES_COLORS)


def get_series_mark(place: int) -> str:
    return MARKS[place % len(MARKS)]


def draw_legend(labels: list[str], width: int) -> list[list[tuple[str, str]]]:
    """Return the lines of the legend: mark and name of each series. A single unnamed series has no legend."""
    if len(labels) < 2 and not any(labels):
        return []
    legend: list[list[tuple[str, str]]] = [[]]
    at = 0
    for place, label in enumerate(labels):
        text = fit_text(f" {label}", min(cell_len(label) + 1, width - 3))
        if at and at + cell_len(text) + 4 > width:
            legend.append([])
            at = 0
        legend[-1] += [(" " + get_series_mark(place), get_series_style(place)), (text + "  ", "")]
        at += cell_len(text) + 4
    return legend


def draw_line_panel(chart: Chart, panel: Panel, width: int, height: int) -> list[list[tuple[str, str]]]:
    """Draw a panel of lines in `width` × `height` cells: title, axes with ticks, dotted lines between the marks, and
    whiskers for intervals.
    """
    low, high = find_value_range(chart.list_points())
    top, bottom, right = 2, height - 3, width - 3
    marks_y = choose_ticks(low, high, max(1, min(MAX_TICKS, (bottom - 1 - top) // 3)))
    tick_texts = format_ticks(marks_y)
    left = max(map(cell_len, tick_texts)) + 2
    canvas = Canvas(width, height)
    low, high = marks_y[0], marks_y[-1]
    x_places = place_values(chart)
    first, last = min(x_places.values()), max(x_places.values())

    def find_column(x: float | str) -> float:
        inset = left + 2
        return inset + (x_places[x] - first) / ((last - first) or 1.0) * (right - inset)

    def find_row(y: float) -> float:
        return bottom - 1 - (y - low) / (high - low) * (bottom - 1 - top)

    canvas.write_text(left, 0, fit_text(panel.title, min(cell_len(panel.title), width - left)), "title")
    canvas.write_text(0, 1, fit_text(chart.y, min(cell_len(chart.y), width - 1)), "axis")
    every = -(-2 * (len(marks_y) - 1) // (bottom - 1 - top))  # at least one line between two ticks
    for value, text in list(zip(marks_y, tick_texts, strict=True))[::every]:
        y = round(find_row(value))
        canvas.write_text(left - 2 - cell_len(text), y, text, "axis")
        canvas.put(left - 1, y, "┤", "axis")
    for y in range(top, bottom):
        if canvas.get_character(left - 1, y) == " ":
            canvas.put(left - 1, y, "│", "axis")
    canvas.write_text(left - 1, bottom, "└" + "─" * (right - left + 2), "axis")
    free = left - 1
    for x, text in zip(x_places, format_x_values(list(x_places)), strict=True):
        begin = min(max(left - 1, round(find_column(x)) - cell_len(text) // 2), width - 1 - cell_len(text))
        if begin >= free:
            canvas.put(round(find_column(x)), bottom, "┴", "axis")
            canvas.write_text(begin, bottom + 1, text, "axis")
            free = begin + cell_len(text) + 1
    canvas.write_text(max(left, (left + right - cell_len(chart.x)) // 2), bottom + 2, chart.x, "axis")
    order = {label: place for place, label in enumerate(chart.labels)}
    parts = [(order[s.label], sorted(s.points, key=lambda p: x_places[p.x])) for s in panel.series]
    for place, points in parts:
        for a, b in pairwise(points):
            canvas.draw_line(find_column(a.x), find_row(a.y), find_column(b.x), find_row(b.y), get_series_style(place))
    for place, points in parts:
        for point in points:
            draw_whisker(canvas, round(find_column(point.x)), find_row, point, get_series_style(place))
    for place, points in parts:
        for point in points:
            canvas.put(
                round(find_column(point.x)), round(find_row(point.y)), get_series_mark(place), get_series_style(place)
            )
    return canvas.make_lines()


def round_to_cells(length: float) -> int:
    """Return a signed length in whole cells, with halves rounded away from zero, so that both directions match.

    >>> round_to_cells(0.5), round_to_cells(-0.5), round_to_cells(1.4)
    (1, -1, 1)
    """
    return int(math.copysign(abs(length) + 0.5 + 1e-9, length))


def draw_whisker(canvas: Canvas, x: int, row: object, point: Point, style: str) -> None:
    """Draw the interval of `point` at column `x` from end to end, except an end that falls on the mark.

    `row(value)` is the line of a value. Lengths are rounded, not positions, so that a symmetric interval looks
    symmetric.
    """
    assert callable(row)
    middle = round(row(point.y))
    for end, cap in ((point.high, "┬"), (point.low, "┴")):
        if end is None:
            continue
        y = middle + round_to_cells(row(end) - row(point.y))
        for between in range(min(y, middle), max(y, middle)):
            canvas.put(x, between, "│", style)
        if y != middle:
            canvas.put(x, y, cap, style)


def place_values(chart: Chart) -> dict[float | str, float]:
    """Return the position of each x: numbers by value, words at equal distances in their order."""
    x_values = dict.fromkeys(point.x for point in chart.list_points())
    if all(isinstance(x, (int, float)) for x in x_values):
        return {x: float(x) for x in sorted(x_values, key=float)}
    return {x: float(n) for n, x in enumerate(x_values)}


def format_x_values(values: list[float | str]) -> list[str]:
    return [f"{value:g}" if isinstance(value, (int, float)) else value for value in values]


def draw_bar_panel(chart: Chart, panel: Panel, width: int) -> list[list[tuple[str, str]]]:
    """Draw a panel of horizontal bars, each with its interval over its end and its value at the right."""
    low, high = find_value_range(chart.list_points())
    low, high = min(0.0, low), max(0.0, high)
    labels = chart.labels
    has_several_labels = len(labels) > 1
    rows: dict[str, list[tuple[int, Point]]] = {}
    for series in panel.series:
        for point in series.points:
            rows.setdefault(format_x_values([point.x])[0], []).append((labels.index(series.label), point))
    names = labels if has_several_labels else list(rows)
    left = min(max(map(cell_len, names)) + (3 if has_several_labels else 1), int(width * MAX_LABEL_SHARE))
    right = max(cell_len(point.text) for point in chart.list_points()) + 2
    space = max(8, width - left - right - 2)

    def find_column(y: float) -> float:
        return (y - low) / ((high - low) or 1.0) * (space - 1)

    title = " · ".join(filter(None, [panel.title, f"{chart.y} by {chart.x}"]))
    picture: list[list[tuple[str, str]]] = [[(line, "title")] for line in wrap(title, width)]
    for name, parts in rows.items():
        if has_several_labels:
            picture.append([(fit_text(name, min(cell_len(name), width)), "")])
        for place, point in parts:
            canvas = Canvas(space, 1)
            begin, end = sorted((find_column(0.0), find_column(point.y)))
            canvas.draw_bar(begin, end, get_series_style(place))
            value = round(find_column(point.y))
            lengths = [find_column(v) - find_column(point.y) for v in (point.low, point.high) if v is not None]
            ends = [value + round_to_cells(length) for length in lengths]
            draw_bar_interval(canvas, ends, value)
            text = f" {get_series_mark(place)} {labels[place]}" if has_several_labels else name
            line = [
                (fit_text(text, left), get_series_style(place) if has_several_labels else ""),
                ("│", "axis"),
                *canvas.make_lines()[0],
            ]
            picture.append([*line, (f" {point.text}", "")])
    return [*picture, []]


def draw_bar_interval(canvas: Canvas, ends: list[int], value: int) -> None:
    """Draw the interval over a bar: a double line inside the bar, a cross at the value. A single end is a cap."""
    for x in range(min(ends), max(ends) + 1) if len(ends) == 2 else ends:
        canvas.put(x, 0, "├" if x == ends[0] else "┤" if x == ends[-1] else "═" if x < value else "─")
    if len(ends) == 2 and ends[0] < value < ends[1]:
        canvas.put(value, 0, "┼")


BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille cell
BRAILLE_CODE = 0x2800
EIGHTHS = " ▏▎▍▌▋▊▉█"


class Canvas:
    """`width` x `height` cells, each a character and the name of its style. Drawing outside the canvas is ignored."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[(" ", "")] * width for _ in range(height)]

    def get_character(self, x: int, y: int) -> str:
        return self._cells[y][x][0]

    def put(self, x: int, y: int, character: str, style: str = "") -> None:
        """Set the character and style of cell (`x`, `y`). Cells outside the canvas are ignored."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self._cells[y][x] = (character, style)

    def write_text(self, x: int, y: int, text: str, style: str = "") -> None:
        """Write text of single-cell characters from (`x`, `y`) to the right."""
        for n, character in enumerate(text):
            self.put(x + n, y, character, style)

    def draw_line(self, x0: float, y0: float, x1: float, y1: float, style: str) -> None:
        """Draw dots from the middle of cell (`x0`, `y0`) to the middle of (`x1`, `y1`), only over blanks and dots."""
        steps = int(max(2 * abs(x1 - x0), 4 * abs(y1 - y0), 1))
        for n in range(steps + 1):
            share = n / steps
            x, y = 2 * (x0 + (x1 - x0) * share) + 1, 4 * (y0 + (y1 - y0) * share) + 2
            self._draw_dot(int(x), int(y), style)

    def _draw_dot(self, x: int, y: int, style: str) -> None:
        column, row = x // 2, y // 4
        if not (0 <= column < self.width and 0 <= row < self.height):
            return
        before = self._cells[row][column][0]
        if before == " ":
            before = chr(BRAILLE_CODE)
        if BRAILLE_CODE <= ord(before) < BRAILLE_CODE + 256:
            self._cells[row][column] = (chr(ord(before) | BRAILLE_DOTS[y % 4][x % 2]), style)

    def draw_bar(self, begin: float, end: float, style: str, y: int = 0) -> None:
        """Draw a bar from `begin` to `end` in cells. The end is exact to 1/8 cell, the beginning to one cell."""
        for x in range(int(begin), min(self.width, int(end) + 1)):
            self.put(x, y, EIGHTHS[max(0, min(8, round(8 * (end - x))))], style)

    def make_lines(self) -> list[list[tuple[str, str]]]:
        """Return each line as runs of (text, style)."""
        return [
            [("".join(character for character, _ in run), style) for style, run in groupby(line, lambda cell: cell[1])]
            for line in self._cells
        ]
