"""A small bar in each row of a table: where an estimate and its interval lie on a scale that all rows share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tui.columns import TableColumn, Tone

MIN_TERMINAL_CELLS = 120  # narrower terminals have no bars
MIN_BAR_CELLS, MAX_BAR_CELLS = 16, 44
MIN_ESTIMATES = 2
MAX_TICKS = 5


class ShownEstimate(NamedTuple):
    """A value with the ends of its interval. An end is None if it is unknown."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class IntervalBars:
    """The bars next to the column `field` of a table.

    `estimate` returns the estimate of a row, or None. `low` and `high` are the ends of the common scale.
    """

    field: str
    estimate: Callable[[Mapping[str, Any]], ShownEstimate | None]
    low: float
    high: float
    tone: Callable[[Mapping[str, Any]], Tone] | None = None

    def make_column(self, width: int) -> TableColumn:
        """Return the column with bars of `width` cells. Its heading is the scale."""
        left_text, right = (f"{end:,.6g}" for end in (self.low, self.high))

        def draw_estimate(row: Mapping[str, Any]) -> str:
            estimate = self.estimate(row)
            return "" if estimate is None else draw_interval(estimate, self.low, self.high, width)

        heading = f"{left_text}{right:>{width - len(left_text)}}"
        return TableColumn(
            self.field, heading, text=draw_estimate, widest=width, least=width, role="detail", tone=self.tone
        )


def make_interval_bars(
    field: str,
    estimate: Callable[[Mapping[str, Any]], ShownEstimate | None],
    rows: Iterable[Mapping[str, Any]],
    tone: Callable[[Mapping[str, Any]], Tone] | None = None,
) -> IntervalBars | None:
    """Return the bars of the column `field`, or None if fewer than MIN_ESTIMATES of `rows` have an estimate.

    `estimate` and `tone` return a row's value with its interval, and its color.
    """
    estimates = [
        estimate_value
        for row in rows
        if (estimate_value := estimate(row)) is not None and math.isfinite(estimate_value.value)
    ]
    if len(estimates) < MIN_ESTIMATES:
        return None
    ends = [end for estimate_value in estimates for end in estimate_value if end is not None and math.isfinite(end)]
    ticks = choose_ticks(min(ends), max(ends))
    return IntervalBars(field, estimate, ticks[0], ticks[-1], tone)


def draw_interval(estimate: ShownEstimate, low: float, high: float, width: int) -> str:
    """Draw an interval in `width` cells of a scale from `low` to `high`, and 0 if it is inside the scale.

    An unknown end has no cap. An estimate without an interval is a dot.

    >>> draw_interval(ShownEstimate(5, 2, 8), 0, 10, 11), draw_interval(ShownEstimate(5), -10, 10, 11)
    ('  ├──●──┤  ', '     ┊  ●  ')
    >>> draw_interval(ShownEstimate(5, None, 8), 0, 10, 11)
    '─────●──┤  '
    """
    if not math.isfinite(estimate.value):
        return ""
    last = width - 1

    def find_cell(value: float) -> int:
        return round(last * min(1.0, max(0.0, (value - low) / ((high - low) or 1.0))))

    cells = [" "] * width
    if low < 0 < high:
        cells[find_cell(0.0)] = "┊"
    if estimate.low is not None or estimate.high is not None:
        first = 0 if estimate.low is None else find_cell(estimate.low)
        last_cell = last if estimate.high is None else find_cell(estimate.high)
        cells[first : last_cell + 1] = "─" * (last_cell + 1 - first)
        if estimate.low is not None:
            cells[first] = "├"
        if estimate.high is not None:
            cells[last_cell] = "┤"
    cells[find_cell(estimate.value)] = "●"
    return "".join(cells)


def choose_ticks(low: float, high: float, number: int = MAX_TICKS) -> list[float]:
    """Return evenly spaced round numbers, from at or below `low` to at or above `high`.

    >>> choose_ticks(0, 97), choose_ticks(0.31, 0.44)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.3, 0.35, 0.4, 0.45])
    """
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    rough_step = (high - low) / max(1, number)
    power = 10.0 ** math.floor(math.log10(rough_step))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough_step * (1 - 1e-9))
    first_tick, last_tick = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first_tick, last_tick + 1)]
