"""Shares by ply as a strip of columns, and an engine's evaluation of the shown position as a bar next to the board."""

from __future__ import annotations

import math
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

LEVELS, ASCII_LEVELS = " ▁▂▃▄▅▆▇█", " _:-=+*%#"
LICHESS_SLOPE = 0.00368208  # Lichess's: https://lichess.org/page/accuracy


def compute_white_share(centipawns: float) -> float:
    """Return White's winning chances in 0..1 for an evaluation in centipawns, by Lichess's formula.

    >>> compute_white_share(0), round(compute_white_share(300), 2), round(compute_white_share(-10_000), 2)
    (0.5, 0.75, 0.0)
    """
    return 1 / (1 + math.exp(-LICHESS_SLOPE * max(-10_000.0, min(10_000.0, centipawns))))


def compute_span(count: int, width: int) -> int:
    """Return the number of plies per cell.

    >>> compute_span(40, 48), compute_span(49, 48)
    (1, 2)
    """
    return max(1, math.ceil(count / max(1, width)))


def draw_column(share: float | None, lines: int, letters: bool) -> str:
    """Return a column of `lines` cells, from the top, filled to a share in 0..1. An unknown share is a dot.

    >>> draw_column(0.75, 2, False), draw_column(None, 2, True), draw_column(0.0, 1, False)
    ('▄█', ' .', '▁')
    """
    levels, unknown_sign = (ASCII_LEVELS, ".") if letters else (LEVELS, "·")
    if share is None:
        return " " * (lines - 1) + unknown_sign
    eighths = max(1, round(8 * lines * share))
    return "".join(levels[min(8, max(0, eighths - 8 * below))] for below in reversed(range(lines)))


class PlyStrip(Widget):
    """A share of every ply as columns under a heading, with the shown ply's column marked. An unknown share is a dot.
    If there are more plies than cells, a column shows the last known share of its plies. A click selects the ply.

    `heated` columns are colored from low to high.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "ply-strip--heading", "ply-strip--cell", "ply-strip--here", "ply-strip--low", "ply-strip--high",
    }  # fmt: skip
    DEFAULT_CSS = """
    PlyStrip { height: 1; width: 1fr; margin: 0 2 0 3; display: none; }
    PlyStrip > .ply-strip--heading { color: $text-muted; }
    PlyStrip > .ply-strip--cell { color: $text-muted; background: $panel; }
    PlyStrip > .ply-strip--here { color: $text-accent; background: $panel; text-style: bold; }
    PlyStrip > .ply-strip--low { color: $board-wrong; background: $panel; }
    PlyStrip > .ply-strip--high { color: $board-heat; background: $panel; }
    """

    shares: reactive[tuple[float | None, ...]] = reactive(())
    place: reactive[int] = reactive(0)
    heading: reactive[str] = reactive("")
    heated: reactive[bool] = reactive(False)
    letters: reactive[bool] = reactive(False)

    class Chosen(Message):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    @property
    def span(self) -> int:
        return compute_span(len(self.shares), self.size.width)

    @property
    def columns(self) -> list[float | None]:
        """Return the share of each column."""
        parts = (self.shares[n : n + self.span] for n in range(0, len(self.shares), self.span))
        return [next((share for share in reversed(part) if share is not None), None) for part in parts]

    @property
    def column_cells(self) -> int:
        """The width of a column in cells."""
        return max(1, self.size.width // max(1, len(self.shares)))

    def render_line(self, y: int) -> Strip:
        width, heading_lines = self.size.width, int(self.size.height > 1)
        if heading_lines and y == 0:
            heading = Segment(self.heading, self.get_component_rich_style("ply-strip--heading"))
            return Strip([heading]).crop_extend(0, width, self.rich_style)
        line, lines, place_column = y - heading_lines, self.size.height - heading_lines, self.place // self.span
        columns = self.columns
        known_shares = [share for share in columns if share is not None]
        low, high = min(known_shares, default=0.0), max(known_shares, default=1.0)
        segments = []
        for number, share in enumerate(columns):
            style = self.get_component_rich_style(f"ply-strip--{'here' if number == place_column else 'cell'}")
            if self.heated and share is not None and number != place_column:
                style = self.make_heat_style((share - low) / (high - low) if high > low else 1.0)
            cell = draw_column(share, lines, self.letters)[line]
            is_marked = number == place_column and cell == " "
            segments.append(Segment("│".center(self.column_cells) if is_marked else cell * self.column_cells, style))
        return Strip(segments).simplify().crop_extend(0, width, self.rich_style)

    def make_heat_style(self, share: float) -> Style:
        """Return the style of a column by its position between the lowest (0) and the highest (1) value."""
        low, high = (self.get_component_styles(f"ply-strip--{name}") for name in ("low", "high"))
        return Style(color=low.color.blend(high.color, share).rich_color, bgcolor=high.background.rich_color)

    def on_click(self, event: events.Click) -> None:
        place = event.x // self.column_cells * self.span
        if place < len(self.shares):
            self.post_message(self.Chosen(place))


class EvaluationBar(Widget):
    """White's winning chances in the shown position. White's part of the bar is on White's side of the board."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"evaluation-bar--white", "evaluation-bar--black"}
    DEFAULT_CSS = """
    EvaluationBar { width: 1; height: 1; margin: 0 0 0 1; display: none; }
    EvaluationBar > .evaluation-bar--white { background: $board-white; color: $board-black; }
    EvaluationBar > .evaluation-bar--black { background: $board-black; color: $board-white; }
    """

    value: reactive[float | None] = reactive(None)
    flipped: reactive[bool] = reactive(False)
    letters: reactive[bool] = reactive(False)

    def render_line(self, y: int) -> Strip:
        if self.value is None:
            return Strip.blank(self.size.width, self.rich_style)
        height = self.size.height
        white = round(height * compute_white_share(self.value))
        is_white = y < white if self.flipped else y >= height - white
        name, sign = ("white", "#") if is_white else ("black", ".")
        style = self.get_component_rich_style(f"evaluation-bar--{name}")
        return Strip([Segment(sign if self.letters else " ", style)]).crop_extend(0, self.size.width, style)
