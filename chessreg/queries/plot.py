"""Figures of query answers: lines or bars with 95 % intervals, drawn by matplotlib, with reproducible bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chessreg.errors import BadInputError
from chessreg.queries.catalogue import Plot
from chessreg.queries.render import column_heading, number_text, write_file
from chessreg.queries.result import QueryResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
MARKERS = "osD^vP*X"
LINE_STYLES = ("-", "--", ":", "-.")
PANEL_INCHES = (4.8, 3.6)  # inches
LEGEND_LETTER_INCHES = 0.08  # width of a legend's letter
LEGEND_LINE_INCHES = 0.19  # height of a legend's line
DOTS_PER_INCH = 150
SPREAD = "means over {}s, whiskers from the lowest to the highest"
LINE_KEY = ""  # key in a drawn row: the name of its y column
Row = Mapping[str, Any]


def draw_figure(result: QueryResult, plot: Plot) -> Figure:
    """Return the figure of a catalogue answer that holds the plot's rows. Raises BadInputError for an empty answer."""
    from matplotlib.figure import Figure

    rows, label_columns = rows_of_lines(result, plot), (*plot.series, LINE_KEY)
    if not rows:
        raise BadInputError(f"there is nothing to plot for {plot.title!r}", *result.notes[:1])
    if plot.form == "board":
        return heat_figure(result, plot)
    panels = group_rows(rows, plot.panels)
    series = list(group_rows(rows, differing_columns(rows, label_columns)))
    figure = Figure(figsize=(PANEL_INCHES[0] * len(panels), PANEL_INCHES[1]), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    several = False  # whether a point combines several rows
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        parts = group_rows(panel, differing_columns(rows, label_columns))
        points = {label: pool_rows(plot, part) for label, part in parts.items()}
        several |= any(len(points[label]) < len(part) for label, part in parts.items())
        (draw_bars if plot.form == "bars" else draw_lines)(axis, result, plot, points, series)
        axis.set_title(title, fontsize="medium")
        measured = plot.x in result.intervals  # then x has a unit, like y
        axis.set_xlabel(column_heading(result, plot.x) if measured else result.column(plot.x).name.replace("_", " "))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel(column_heading(result, plot.y))
    if len(series) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        for axis in axes[1:]:  # a panel may lack a series
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                if label not in labels:
                    handles.append(handle)
                    labels.append(label)
        columns = int(figure.get_figwidth() / (LEGEND_LETTER_INCHES * max(map(len, labels)) + 0.5))
        lines_of_legend = -(-len(labels) // max(1, columns))
        figure.set_figheight(
            PANEL_INCHES[1] + LEGEND_LINE_INCHES * max(0, lines_of_legend - 8)
        )  # axes keep their height
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, columns), fontsize="small")
    figure.suptitle(f"{plot.title}\n{SPREAD.format(plot.spread)}" if several else plot.title, fontsize="medium")
    return figure


class HeatBoard(NamedTuple):
    """A board of a `board` plot: its series, its panel, and its values by square (a1 = 0)."""

    series: str
    panel: str
    values: dict[int, float]


def heat_boards(result: QueryResult, plot: Plot) -> list[HeatBoard]:
    """Return the boards of a plot, by series and then by panel."""
    import chess

    rows = rows_of_lines(result, plot)
    boards = []
    for series, of_series in group_rows(rows, differing_columns(rows, plot.series)).items():
        for panel, here in group_rows(of_series, plot.panels).items():
            values = {chess.parse_square(row[plot.x]): float(row[plot.y]) for row in here}
            boards.append(HeatBoard(series, panel, values))
    return boards


def heat_range(boards: Sequence[HeatBoard]) -> tuple[float, float]:
    """Return the lowest and the highest value of all boards, for a shared scale."""
    values = [value for board in boards for value in board.values.values()]
    return min(values), max(values)


def heat_figure(result: QueryResult, plot: Plot) -> Figure:
    """Return a figure of the boards in gray, on one scale."""
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
    return draw_heatmaps(panels, f"{plot.title}: {column_heading(result, plot.y)}", min(len(panels), 4))


def rows_of_lines(result: QueryResult, plot: Plot) -> list[Row]:
    """Return the rows that a plot draws.

    Each column of `beside` gives additional rows with its value as y. The column's name is in LINE_KEY.
    """
    rows: list[Row] = []
    for row in result.rows:
        for column in (plot.y, *plot.beside):
            if row[plot.x] is not None and row[column] is not None:
                ends = {f"{plot.y}{end}": row.get(f"{column}{end}") for end in ("", "_low", "_high")}
                rows.append({**row, **ends, LINE_KEY: column.replace("_", " ")})
    return rows


def differing_columns(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return the columns whose values differ between rows: constant ones would repeat in every legend entry."""
    return [name for name in names if len({str(row[name]) for row in rows}) > 1]


def group_rows(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    """Group rows by the values of these columns, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(number_text(row[name], 3) for name in names if row[name] is not None), []).append(
            row
        )
    return groups


def pool_rows(plot: Plot, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one series. Rows that have the same x and differ only in the plot's `spread` become one row
    with their mean, lowest and highest value."""
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


def draw_lines(
    axis: Axes, result: QueryResult, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str]
) -> None:
    """Draw one line with markers per series, with a tick for each whole number on the x axis."""
    for label, rows in parts.items():
        place = series.index(label)
        ordered = sorted(rows, key=lambda row: row[plot.x])
        axis.errorbar(
            [row[plot.x] for row in ordered],
            [row[plot.y] for row in ordered],
            yerr=error_bars(result, plot, ordered),
            label=label,
            color=f"C{place % 10}",
            marker=MARKERS[place % len(MARKERS)],
            linestyle=LINE_STYLES[place // 10 % len(LINE_STYLES)],
            markersize=4,
            capsize=2,
        )
    values = {row[plot.x] for rows in parts.values() for row in rows}
    if all(isinstance(value, int | str) for value in values) and len(values) <= 16:
        axis.set_xticks(sorted(values))


def draw_bars(
    axis: Axes, result: QueryResult, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str]
) -> None:
    """Draw groups of bars: one group per x in order of appearance, one bar per series."""
    places = list(dict.fromkeys(number_text(row[plot.x], 3) for rows in parts.values() for row in rows))
    width = 0.8 / len(series)
    for label, rows in parts.items():
        place = series.index(label)
        axis.bar(
            [places.index(number_text(row[plot.x], 3)) + (place - (len(series) - 1) / 2) * width for row in rows],
            [row[plot.y] for row in rows],
            width,
            yerr=error_bars(result, plot, rows),
            label=label,
            color=f"C{place % 10}",
            capsize=2,
            error_kw={"linewidth": 1},
        )
    wide = max(map(len, places)) > 12
    axis.set_xticks(range(len(places)), places, rotation=20 * wide, ha="right" if wide else "center")


def error_bars(result: QueryResult, plot: Plot, rows: Sequence[Row]) -> list[list[float]] | None:
    """Return the distances to both ends of the interval, 0 for an unknown end; None for a column without interval."""
    if plot.y not in result.intervals:
        return None

    def distance(row: Row, end: str) -> float:
        return 0.0 if row[plot.y + end] is None else max(0.0, abs(row[plot.y + end] - row[plot.y]))

    return [[distance(row, end) for row in rows] for end in ("_low", "_high")]


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure atomically in the format of the suffix. Raises BadInputError for another suffix."""
    import matplotlib

    suffix = check_suffix(path)
    out = io.BytesIO()
    dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "chessreg", "svg.fonttype": "none"}):
        figure.savefig(out, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=dateless.get(suffix))
    write_file(path, out.getvalue())


def check_suffix(path: Path) -> str:
    """Return the suffix of a figure's file. Raises BadInputError for an unsupported one."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        name = suffix or "a name without suffix"
        raise BadInputError(f"{path}: no figure is written to {name}", f"one of {', '.join(SUFFIXES)}")
    return suffix
