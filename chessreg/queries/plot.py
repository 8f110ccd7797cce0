"""A query's answer as a figure: lines or bars with their 95 % intervals, by matplotlib, the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chessreg.errors import BadInputError
from chessreg.queries.catalogue import Plot
from chessreg.queries.render import heading, number, write_file
from chessreg.queries.result import QueryResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
MARKERS = "osD^vP*X"
LINES = ("-", "--", ":", "-.")
PANEL = (4.8, 3.6)  # inches
LETTER = 0.08  # inches of a legend's letter
LEGEND_LINE = 0.19  # inches of its line
DOTS_PER_INCH = 150
SPREAD = "means over {}s, whiskers from the lowest to the highest"
LINE = ""  # in a row that is shown: which column its y is
Row = Mapping[str, Any]


def draw(result: QueryResult, plot: Plot) -> Figure:
    """The figure of a catalogue answer whose rows are those that the plot shows. Raises BadInputError if none are."""
    from matplotlib.figure import Figure

    rows, label_columns = plotted_rows(result, plot), (*plot.series, LINE)
    if not rows:
        raise BadInputError(f"there is nothing to plot for {plot.title!r}", *result.notes[:1])
    if plot.form == "board":
        return heat_figure(result, plot)
    panels = grouped(rows, plot.panels)
    series = list(grouped(rows, telling(rows, label_columns)))
    figure = Figure(figsize=(PANEL[0] * len(panels), PANEL[1]), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    several = False  # whether a point stands for several rows
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        parts = grouped(panel, telling(rows, label_columns))
        points = {label: pooled(plot, part) for label, part in parts.items()}
        several |= any(len(points[label]) < len(part) for label, part in parts.items())
        (bars if plot.form == "bars" else lines)(axis, result, plot, points, series)
        axis.set_title(title, fontsize="medium")
        measured = plot.x in result.intervals  # then it has a unit, as the other axis
        axis.set_xlabel(heading(result, plot.x) if measured else result.column(plot.x).name.replace("_", " "))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel(heading(result, plot.y))
    if len(series) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        for axis in axes[1:]:  # a panel may lack a series
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                if label not in labels:
                    handles.append(handle)
                    labels.append(label)
        columns = int(figure.get_figwidth() / (LETTER * max(map(len, labels)) + 0.5))
        lines_of_legend = -(-len(labels) // max(1, columns))
        figure.set_figheight(PANEL[1] + LEGEND_LINE * max(0, lines_of_legend - 8))  # axes keep their height
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, columns), fontsize="small")
    figure.suptitle(f"{plot.title}\n{SPREAD.format(plot.spread)}" if several else plot.title, fontsize="medium")
    return figure


class HeatBoard(NamedTuple):
    """A board of a plot of the form `board`: the series and the panel that it is of, and square (a1 = 0) → value."""

    series: str
    panel: str
    values: dict[int, float]


def heat_boards(result: QueryResult, plot: Plot) -> list[HeatBoard]:
    """The boards of a plot, series by series, and of each panel by panel."""
    import chess

    rows = plotted_rows(result, plot)
    boards = []
    for series, of_series in grouped(rows, telling(rows, plot.series)).items():
        for panel, here in grouped(of_series, plot.panels).items():
            values = {chess.parse_square(row[plot.x]): float(row[plot.y]) for row in here}
            boards.append(HeatBoard(series, panel, values))
    return boards


def heat_range(boards: Sequence[HeatBoard]) -> tuple[float, float]:
    """The lowest and the highest value of all boards, which share one scale."""
    values = [value for board in boards for value in board.values.values()]
    return min(values), max(values)


def heat_figure(result: QueryResult, plot: Plot) -> Figure:
    """The boards in gray, all on one scale."""
    import numpy as np

    from chessreg.games.boards.picture import HeatPanel, draw_heatmaps

    boards = heat_boards(result, plot)
    low, high = heat_range(boards)
    name = plot.panels[0] if len(plot.panels) == 1 else ""
    panels = []
    for board in boards:
        values = np.full(64, np.nan)
        values[list(board.values)] = list(board.values.values())
        panels.append(
            HeatPanel(" · ".join(filter(None, [board.series, f"{name} {board.panel}".strip()])), values, low, high)
        )
    return draw_heatmaps(panels, f"{plot.title}: {heading(result, plot.y)}", min(len(panels), 4))


def plotted_rows(result: QueryResult, plot: Plot) -> list[Row]:
    """The rows that a plot shows. Of a column beside y they are rows of their own, in which it stands in y's place; the
    column's name is in LINE."""
    rows: list[Row] = []
    for row in result.rows:
        for column in (plot.y, *plot.beside):
            if row[plot.x] is not None and row[column] is not None:
                ends = {f"{plot.y}{end}": row.get(f"{column}{end}") for end in ("", "_low", "_high")}
                rows.append({**row, **ends, LINE: column.replace("_", " ")})
    return rows


def telling(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Of these columns, those in which the rows differ: the others would repeat in every line of a legend."""
    return [name for name in names if len({str(row[name]) for row in rows}) > 1]


def grouped(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    """Rows by what these columns say, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(number(row[name], 3) for name in names if row[name] is not None), []).append(row)
    return groups


def pooled(plot: Plot, rows: Sequence[Row]) -> list[Row]:
    """Rows of one series, those at one x that differ in the plot's `spread` as one: their mean, lowest and highest."""
    if not plot.spread:
        return list(rows)
    pools: list[Row] = []
    at: dict[Any, list[Row]] = {}
    for row in rows:
        at.setdefault(row[plot.x], []).append(row)
    for here in at.values():
        values = [row[plot.y] for row in here]
        if len(here) == 1:
            pools.append(here[0])
        else:
            ends = {plot.y: sum(values) / len(values), f"{plot.y}_low": min(values), f"{plot.y}_high": max(values)}
            pools.append({**here[0], **ends})
    return pools


def lines(axis: Axes, result: QueryResult, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str]) -> None:
    """One line with markers a series; the x axis has a tick for every whole number that occurs."""
    for label, rows in parts.items():
        place = series.index(label)
        ordered = sorted(rows, key=lambda row: row[plot.x])
        axis.errorbar(
            [row[plot.x] for row in ordered],
            [row[plot.y] for row in ordered],
            yerr=errors(result, plot, ordered),
            label=label,
            color=f"C{place % 10}",
            marker=MARKERS[place % len(MARKERS)],
            linestyle=LINES[place // 10 % len(LINES)],
            markersize=4,
            capsize=2,
        )
    values = {row[plot.x] for rows in parts.values() for row in rows}
    if all(isinstance(value, int | str) for value in values) and len(values) <= 16:
        axis.set_xticks(sorted(values))


def bars(axis: Axes, result: QueryResult, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str]) -> None:
    """Groups of bars, one group for each x in order of appearance, one bar for each series in it."""
    places = list(dict.fromkeys(number(row[plot.x], 3) for rows in parts.values() for row in rows))
    width = 0.8 / len(series)
    for label, rows in parts.items():
        place = series.index(label)
        axis.bar(
            [places.index(number(row[plot.x], 3)) + (place - (len(series) - 1) / 2) * width for row in rows],
            [row[plot.y] for row in rows],
            width,
            yerr=errors(result, plot, rows),
            label=label,
            color=f"C{place % 10}",
            capsize=2,
            error_kw={"linewidth": 1},
        )
    wide = max(map(len, places)) > 12
    axis.set_xticks(range(len(places)), places, rotation=20 * wide, ha="right" if wide else "center")


def errors(result: QueryResult, plot: Plot, rows: Sequence[Row]) -> list[list[float]] | None:
    """Distances to both ends of the interval; an end that is not known has none. None: the column has no interval."""
    if plot.y not in result.intervals:
        return None

    def distance(row: Row, end: str) -> float:
        return 0.0 if row[plot.y + end] is None else max(0.0, abs(row[plot.y + end] - row[plot.y]))

    return [[distance(row, end) for row in rows] for end in ("_low", "_high")]


def write(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all, in the format of the suffix. Raises BadInputError for another suffix."""
    import matplotlib

    suffix = check_suffix(path)
    out = io.BytesIO()
    dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "chessreg", "svg.fonttype": "none"}):
        figure.savefig(out, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=dateless.get(suffix))
    write_file(path, out.getvalue())


def check_suffix(path: Path) -> str:
    """The suffix of a figure's file. Raises BadInputError for one that is not written."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        name = suffix or "a name without suffix"
        raise BadInputError(f"{path}: no figure is written to {name}", f"one of {', '.join(SUFFIXES)}")
    return suffix
