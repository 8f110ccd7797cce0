"""An engine's evaluations: by ply as a strip, one cell a ply, and of the shown position as a bar beside the board."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

LEVELS, PLAIN = " ▁▂▃▄▅▆▇█", " _:-=+*%#"
SLOPE = 0.00368208  # Lichess's: https://lichess.org/page/accuracy


def white_share(centipawns: float) -> float:
    """White's chances as Lichess draws them, 0..1, of an evaluation in centipawns.

    >>> white_share(0), round(white_share(300), 2), round(white_share(-10_000), 2)
    (0.5, 0.75, 0.0)
    """
    return 1 / (1 + math.exp(-SLOPE * max(-10_000.0, min(10_000.0, centipawns))))


def span_of(count: int, width: int) -> int:
    """How many plies a cell stands for.

    >>> span_of(40, 48), span_of(49, 48)
    (1, 2)
    """
    return max(1, math.ceil(count / max(1, width)))


def heights(values: Sequence[float | None], span: int, letters: bool) -> str:
    """A character for every `span` values: how high the last of them that is known is; a dot where none is.

    >>> heights((0.0, None, 10_000.0, -10_000.0), 1, False), heights((0.0, None, None), 2, True)
    ('▄·█▁', '=.')
    """
    levels, unknown = (PLAIN, ".") if letters else (LEVELS, "·")
    cells = [values[n : n + span] for n in range(0, len(values), span)]
    known = [next((v for v in reversed(cell) if v is not None), None) for cell in cells]
    return "".join(unknown if v is None else levels[max(1, round(8 * white_share(v)))] for v in known)


class EvaluationStrip(Widget):
    """White's chances by ply, the higher the better for White; what is not evaluated yet is a dot. Where there are more
    plies than cells, a cell is the last of its plies. A click goes to the ply."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"evaluation-strip--cell", "evaluation-strip--here"}
    DEFAULT_CSS = """
    EvaluationStrip { height: 1; width: 1fr; margin: 0 2 0 3; display: none; }
    EvaluationStrip > .evaluation-strip--cell { color: $foreground; background: $panel; }
    EvaluationStrip > .evaluation-strip--here { color: $block-cursor-foreground; background: $primary; }
    """

    values: reactive[tuple[float | None, ...]] = reactive(())
    place: reactive[int] = reactive(0)
    letters: reactive[bool] = reactive(False)

    class Chosen(Message):
        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    @property
    def span(self) -> int:
        return span_of(len(self.values), self.size.width)

    def render_line(self, y: int) -> Strip:
        style, here = self.get_component_rich_style, self.place // self.span
        text = heights(self.values, self.span, self.letters)
        cell = style("evaluation-strip--cell")
        line = [Segment(text[:here], cell), Segment(text[here : here + 1], style("evaluation-strip--here"))]
        return Strip([*line, Segment(text[here + 1 :], cell)]).crop_extend(0, self.size.width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        place = event.x * self.span
        if place < len(self.values):
            self.post_message(self.Chosen(place))


class EvaluationBar(Widget):
    """White's chances in the shown position: White's part at White's side of the board."""

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
        white = round(height * white_share(self.value))
        is_white = y < white if self.flipped else y >= height - white
        name, sign = ("white", "#") if is_white else ("black", ".")
        style = self.get_component_rich_style(f"evaluation-bar--{name}")
        return Strip([Segment(sign if self.letters else " ", style)]).crop_extend(0, self.size.width, style)
