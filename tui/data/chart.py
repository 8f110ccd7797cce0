"""The charts of catalogue answers, and their axes. tui.widgets.chart draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from chessreg.entities.display import Chart, Panel, Point, Series

if TYPE_CHECKING:
    from chessreg.queries.catalogue import Plot
    from chessreg.queries.result import QueryResult

TICKS = 5


def chart_of(result: QueryResult, plot: Plot) -> Chart:
    """The chart of a catalogue answer whose rows are those that the plot shows: what `chessreg plot` draws."""
    from chessreg.queries.plot import grouped, telling
    from chessreg.queries.render import cell, heading

    rows = [row for row in result.rows if row[plot.x] is not None and row[plot.y] is not None]
    ends = plot.y in result.intervals
    panels = []
    for title, shown in grouped(rows, plot.panels).items():
        series = []
        for label, part in grouped(shown, telling(rows, plot.series)).items():
            points = [
                Point(
                    row[plot.x] if isinstance(row[plot.x], (int, float)) else str(row[plot.x]),
                    float(row[plot.y]),
                    row[f"{plot.y}_low"] if ends else None,
                    row[f"{plot.y}_high"] if ends else None,
                    cell(result, dict(row), plot.y),
                )
                for row in part
            ]
            series.append(Series(label, tuple(points)))
        panels.append(Panel(title, tuple(series)))
    form: Literal["lines", "bars"] = "bars" if plot.form == "bars" else "lines"
    return Chart(plot.title, plot.x.replace("_", " "), heading(result, plot.y), tuple(panels), form)


def extent(points: Iterable[Point]) -> tuple[float, float]:
    """The lowest and highest value, intervals and all."""
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None and math.isfinite(v)]
    return (min(values), max(values)) if values else (0.0, 1.0)


def ticks(low: float, high: float, number: int = TICKS) -> list[float]:
    """Round numbers, evenly spaced, the first at or below `low` and the last at or above `high`.

    >>> ticks(0, 97), ticks(0.31, 0.44)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.3, 0.35, 0.4, 0.45])
    """
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    rough = (high - low) / max(1, number)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def words(values: Sequence[float]) -> list[str]:
    """Ticks with as many decimals as tell them apart.

    >>> words([0.0, 0.5, 1.0]), words([0.0, 20.0])
    (['0.0', '0.5', '1.0'], ['0', '20'])
    """
    for decimals in range(7):
        said = [f"{value:,.{decimals}f}" for value in values]
        if all(abs(float(text.replace(",", "")) - value) < 1e-9 for text, value in zip(said, values, strict=True)):
            return said
    return [f"{value:.3g}" for value in values]
