"""Figures of query answers: lines, bars or dots with 95 % intervals, drawn by matplotlib, with reproducible bytes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chessreg.errors import BadInputError
from chessreg.queries.catalogue import Plot
from chessreg.queries.render import format_heading, format_number, write_file
from chessreg.queries.result import QueryResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
MOST_LETTERS_OF_TICKS = 45  # of all labels below a panel of bars, which are rotated if they have more
MARKERS = "osD^vP*X"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's palette, which readers with any color vision can tell apart, with gray for its black."""
LINE_STYLES = ("-", "--", ":", "-.")
PANEL_INCHES = (4.8, 3.6)  # inches
MAX_PANELS_IN_ROW = 3
DOTS_WIDTH_INCHES = 6.0  # with the labels of the rows, if they are short
DOTS_AXES_INCHES = 3.2  # width of a panel of dots without the labels of its rows, at least
TITLE_INCHES = 0.8  # with the label of the horizontal axis
DOT_INCHES = 0.15  # height of a dot's line, in a row with one dot per series
LEGEND_LETTER_INCHES = 0.08  # width of a legend's letter
LEGEND_LINE_INCHES = 0.19  # height of a legend's line
DOTS_PER_INCH = 150
SPREAD = "lines are means over {0}s, small dots are single {0}s"
SPREAD_ENDS = ",\nwhiskers of means go from the lowest to the highest {0}"
SPREAD_POINTS = ";\nfor means over {0}s, from the lowest to the highest {0};\nsmall marks are single {0}s"
INTERVALS = "whiskers are 95 % intervals"
LINE_KEY = ""  # key in a drawn row: the name of its y column
BASELINE_KEY = "baseline of the plot"  # key that only drawn rows of the baseline have
Row = Mapping[str, Any]


def draw_figure(result: QueryResult, plot: Plot) -> Figure:
    """Return the figure of a catalogue answer that holds the plot's rows. Raises BadInputError for an empty answer."""
    from matplotlib.figure import Figure

    rows, label_columns = list_line_rows(result, plot), (*plot.series, LINE_KEY)
    if not rows:
        raise BadInputError(f"there is nothing to plot for {plot.title!r}", *result.notes[:1])
    if plot.form == "board":
        return draw_heat_figure(result, plot)
    panels = group_rows(rows, plot.panels, name_all=True)
    differing_columns = list_differing_columns(rows, label_columns)
    series = list(group_rows(rows, differing_columns))
    columns = 1 if plot.form == "dots" else min(len(panels), MAX_PANELS_IN_ROW)
    lines_of_panels = -(-len(panels) // columns)
    width, height = PANEL_INCHES
    if plot.form == "dots":
        places = list_category_labels(rows, plot)
        width = max(DOTS_WIDTH_INCHES, DOTS_AXES_INCHES + LEGEND_LETTER_INCHES * max(map(len, places)))
        height = 0.3 + DOT_INCHES * len(places) * (len(series) + 1)
    total_height = height * lines_of_panels + TITLE_INCHES * (plot.form == "dots")
    figure = Figure(figsize=(width * columns, total_height), layout="constrained")
    grid = figure.subplots(lines_of_panels, columns, squeeze=False, sharex=plot.form == "dots", sharey=True).flatten()
    for axis in grid[len(panels) :]:
        axis.set_visible(False)
    axes, whiskers = grid[: len(panels)], INTERVALS if plot.y in result.intervals else ""
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        parts = group_rows(panel, differing_columns)
        points = {label: pool_rows(plot, part) for label, part in parts.items()}
        if any(len(points[label]) < len(part) for label, part in parts.items()):
            text = SPREAD + SPREAD_ENDS if plot.y in result.intervals else SPREAD
            if any(row[plot.spread] is None for row in rows):
                text = INTERVALS + SPREAD_POINTS
            whiskers = text.format(plot.spread.removesuffix("s"))
            draw_single_values(axis, plot, parts, series, list_category_labels(rows, plot))
        axis.set_title(title, fontsize="medium")
        if plot.form == "dots":
            draw_dots(axis, result, plot, points, series, list_category_labels(rows, plot))
            if axis is axes[-1]:
                axis.set_xlabel(format_axis_label(result, plot.y))
            continue
        (draw_bars if plot.form == "bars" else draw_lines)(axis, result, plot, points, series)
        axis.set_xlabel(format_axis_label(result, plot.x))
        axis.grid(axis="y", alpha=0.3)
        mark_zero(axis, "y")
    if plot.form != "dots":
        for axis in axes[::columns]:
            axis.set_ylabel(format_axis_label(result, plot.y))
    if len(series) > 1:
        handles: dict[str, Any] = {}
        for axis in axes:  # a panel may lack a series
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        labels = [label for label in series if label in handles]
        columns = int(figure.get_figwidth() / (LEGEND_LETTER_INCHES * max(map(len, labels)) + 0.5))
        lines_of_legend = -(-len(labels) // max(1, columns))
        figure.set_figheight(total_height + LEGEND_LINE_INCHES * lines_of_legend)  # axes keep their height
        handles_in_order = [handles[label] for label in labels]
        figure.legend(handles_in_order, labels, loc="outside lower center", ncols=max(1, columns), fontsize="small")
    title = plot.title[:1].upper() + plot.title[1:]
    figure.suptitle(f"{title}\n({whiskers})" if whiskers else title, fontsize="medium")
    return figure


def format_axis_label(result: QueryResult, name: str) -> str:
    """Return a column's name with its unit, such as `accuracy (%)`."""
    column = result.column(name)
    text, unit = name.replace("_", " "), column.unit
    return f"{text} ({unit})" if unit and unit.lower() not in (text.lower(), f"{text.lower()}s") else text


def list_category_labels(rows: Sequence[Row], plot: Plot) -> list[str]:
    """Return the values of the x column as labels, in order of appearance."""
    return list(dict.fromkeys(format_number(row[plot.x], 3) for row in rows))


def mark_zero(axis: Axes, direction: str) -> None:
    """Draw a line at zero if values on both sides of it are shown."""
    low, high = axis.get_ylim() if direction == "y" else axis.get_xlim()
    if min(low, high) < 0 < max(low, high):
        (axis.axhline if direction == "y" else axis.axvline)(0, color="0.4", linewidth=0.8, zorder=0)


class HeatBoard(NamedTuple):
    """A board of a `board` plot: its series, its panel with the column's name, and its values by square (a1 = 0)."""

    series: str
    panel: str
    values: dict[int, float]


def build_heat_boards(result: QueryResult, plot: Plot) -> list[HeatBoard]:
    """Return the boards of a plot, by series and then by panel."""
    import chess

    rows = list_line_rows(result, plot)
    boards = []
    for series, series_rows in group_rows(rows, list_differing_columns(rows, plot.series)).items():
        for panel, panel_rows in group_rows(series_rows, plot.panels, name_all=True).items():
            values = {chess.parse_square(row[plot.x]): float(row[plot.y]) for row in panel_rows}
            boards.append(HeatBoard(series, panel, values))
    return boards


def compute_heat_range(boards: Sequence[HeatBoard]) -> tuple[float, float]:
    """Return the lowest and the highest value of all boards, for a shared scale."""
    values = [value for board in boards for value in board.values.values()]
    return min(values), max(values)


def draw_heat_figure(result: QueryResult, plot: Plot) -> Figure:
    """Return a figure of the boards in gray, on one scale."""
    import numpy as np

    from chessreg.games.boards.picture import HeatPanel, draw_heatmaps

    boards = build_heat_boards(result, plot)
    low, high = compute_heat_range(boards)
    panels = []
    for board in boards:
        values = np.full(64, np.nan)
        values[list(board.values)] = list(board.values.values())
        panels.append(HeatPanel(" · ".join(filter(None, [board.series, board.panel])), values, low, high))
    return draw_heatmaps(panels, f"{plot.title}: {format_heading(result, plot.y)}", min(len(panels), 4))


def list_line_rows(result: QueryResult, plot: Plot) -> list[Row]:
    """Return the rows that a plot draws.

    Each column of `beside` and the `baseline` give additional rows with their value as y. The column's name is in
    LINE_KEY.
    """
    rows: list[Row] = []
    for row in result.rows:
        for column in (plot.y, *plot.beside):
            if row[plot.x] is not None and row[column] is not None:
                ends = {f"{plot.y}{end}": row.get(f"{column}{end}") for end in ("", "_low", "_high")}
                rows.append({**row, **ends, LINE_KEY: column.replace("_", " ")})
    return [*rows, *list_baseline_rows(result, plot)] if rows and plot.baseline else rows


def list_baseline_rows(result: QueryResult, plot: Plot) -> list[Row]:
    """Return the rows of the baseline, with its value as y and without an interval. If every series has the same value
    at each x of a panel, there is one row at each x, which belongs to no series."""
    values: dict[tuple[Any, ...], dict[float, Row]] = {}
    for row in result.rows:
        if row[plot.x] is not None and row[plot.baseline] is not None:
            baseline_row = {
                **row,
                plot.y: row[plot.baseline],
                LINE_KEY: plot.baseline.replace("_", " "),
                BASELINE_KEY: True,
            }
            baseline_row |= dict.fromkeys((f"{plot.y}_low", f"{plot.y}_high"))
            key = (*(row[panel] for panel in plot.panels), row[plot.x])
            values.setdefault(key, {})[row[plot.baseline]] = baseline_row
    is_shared = all(len(rows) == 1 for rows in values.values())
    names = [name for name in plot.series if is_shared and name != plot.x]
    return [{**row, **dict.fromkeys(names)} for rows in values.values() for row in rows.values()]


def list_differing_columns(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return the columns whose values differ between rows: constant ones would repeat in every legend entry."""
    return [
        name
        for name in names
        if len({str(row[name]) for row in rows if name == LINE_KEY or BASELINE_KEY not in row}) > 1
    ]


def group_rows(rows: Sequence[Row], names: Sequence[str], *, name_all: bool = False) -> dict[str, list[Row]]:
    """Group rows by the values of these columns, in order of appearance.

    A column's name precedes a number, a yes or no, and a text that begins with a digit, such as a version. With
    `name_all`, it precedes every value. A text that contains the name has it already.

    >>> list(group_rows([{"policy": "legal", "engine_version": "17.1"}], ["policy", "engine_version"]))
    ['legal, engine version 17.1']
    >>> list(group_rows([{"board": "real board"}, {"board": "e4"}], ["board"], name_all=True))
    ['real board', 'board e4']
    """

    def make_label(name: str, value: Any) -> str:
        text, name = format_number(value, 3), name.replace("_", " ")
        is_text = isinstance(value, str) and not value[:1].isdigit() and not name_all
        return text if is_text or text.startswith(name) or f" {name} " in f" {text} " else f"{name} {text}"

    groups: dict[str, list[Row]] = {}
    for row in rows:
        labels = [make_label(name, row[name]) for name in names if row[name] is not None]
        groups.setdefault(", ".join(labels), []).append(row)
    return groups


def pool_rows(plot: Plot, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one series. Rows that have the same x and differ only in the plot's `spread` become one row
    with their mean, lowest and highest value. Rows without a value of `spread` are kept."""
    if not plot.spread:
        return list(rows)
    pools: list[Row] = []
    for point_rows in group_spread(plot, rows):
        values = [row[plot.y] for row in point_rows]
        if len(point_rows) == 1:
            pools.append(point_rows[0])
        else:
            ends = {plot.y: sum(values) / len(values), f"{plot.y}_low": min(values), f"{plot.y}_high": max(values)}
            pools.append({**point_rows[0], **ends})
    return pools


def group_spread(plot: Plot, rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of one series in groups of equal x. A row without a value of the plot's `spread` is a group with
    no other row."""
    groups: dict[Any, list[Row]] = {}
    for place, row in enumerate(rows):
        groups.setdefault((row[plot.x], None if row[plot.spread] is not None else place), []).append(row)
    return [*groups.values()]


def draw_single_values(
    axis: Axes, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str], places: Sequence[str]
) -> None:
    """Draw every row that is pooled with others as a small mark. `parts` are the rows by series, and `places` the
    values of x in their order. The place in `series` determines color and, for bars and dots, the position."""
    for label, rows in parts.items():
        place = series.index(label)
        pooled = [row for group in group_spread(plot, rows) if len(group) > 1 for row in group]
        positions = [row[plot.x] for row in pooled]
        if plot.form != "lines":
            middle = (place + 0.5) * 0.8 / len(series) - 0.4
            positions = [places.index(format_number(position, 3)) + middle for position in positions]
        values = [row[plot.y] for row in pooled]
        coordinates = (values, positions) if plot.form == "dots" else (positions, values)
        color = "0.25" if plot.form == "bars" else COLORS[place % len(COLORS)]
        marker, size = ("|", 6) if plot.form == "dots" else (".", 3)
        axis.plot(*coordinates, linestyle="none", marker=marker, markersize=size, color=color, alpha=0.6)


def draw_lines(
    axis: Axes, result: QueryResult, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str]
) -> None:
    """Draw one line with markers per series, with a tick for each whole number on the x axis.

    `parts` are the rows by series. The place in `series` determines color and marker.
    """
    for label, rows in parts.items():
        place = series.index(label)
        sorted_rows = sorted(rows, key=lambda row: row[plot.x])
        if BASELINE_KEY in rows[0]:
            axis.plot(
                *([row[name] for row in sorted_rows] for name in (plot.x, plot.y)), "--", label=label, color="0.4"
            )
            continue
        axis.errorbar(
            [row[plot.x] for row in sorted_rows],
            [row[plot.y] for row in sorted_rows],
            yerr=compute_error_bars(result, plot, sorted_rows),
            label=label,
            color=COLORS[place % len(COLORS)],
            marker=MARKERS[place % len(MARKERS)],
            linestyle=LINE_STYLES[place // len(COLORS) % len(LINE_STYLES)],
            markersize=4,
            capsize=2,
        )
    values = {row[plot.x] for rows in parts.values() for row in rows}
    if all(isinstance(value, int | str) for value in values) and len(values) <= 16:
        axis.set_xticks(sorted(values))


def draw_bars(
    axis: Axes, result: QueryResult, plot: Plot, parts: Mapping[str, list[Row]], series: Sequence[str]
) -> None:
    """Draw groups of bars: one group per x in order of appearance, one bar per series and row.

    `parts` are the rows by series. The place in `series` determines color and position in the group.
    """
    places = list_category_labels([row for rows in parts.values() for row in rows], plot)
    for label, rows in parts.items():
        place = series.index(label)
        positions, widths = list_positions(plot, rows, places, place, len(series))
        axis.bar(
            positions,
            [row[plot.y] for row in rows],
            widths,
            yerr=compute_error_bars(result, plot, rows),
            label=label,
            color=COLORS[place % len(COLORS)],
            capsize=2,
            error_kw={"linewidth": 1},
        )
        for position, row in zip(positions, rows, strict=True):
            if row[plot.y] == 0:  # such a bar has no height
                top = max(0.0, row.get(f"{plot.y}_high") or 0.0)
                axis.annotate("0", (position, top), (0, 2), textcoords="offset points", ha="center", fontsize="small")
    is_wide = max(map(len, places)) > 12 or sum(map(len, places)) > MOST_LETTERS_OF_TICKS
    axis.set_xticks(range(len(places)), places, rotation=30 * is_wide, ha="right" if is_wide else "center")


def draw_dots(
    axis: Axes,
    result: QueryResult,
    plot: Plot,
    parts: Mapping[str, list[Row]],
    series: Sequence[str],
    places: Sequence[str],
) -> None:
    """Draw values along the horizontal axis: one line per x, from top to bottom, with one dot per series and row.

    `parts` are the rows by series, and `places` the values of x in their order. The place in `series` determines color
    and marker.
    """
    for label, rows in parts.items():
        place = series.index(label)
        axis.errorbar(
            [row[plot.y] for row in rows],
            list_positions(plot, rows, places, place, len(series))[0],
            xerr=compute_error_bars(result, plot, rows),
            label=label,
            color="0.4" if BASELINE_KEY in rows[0] else COLORS[place % len(COLORS)],
            marker=MARKERS[place % len(MARKERS)],
            linestyle="none",
            markersize=4,
            capsize=2,
        )
    axis.set_yticks(range(len(places)), places)
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)
    for row in range(1, len(places)):
        axis.axhline(row - 0.5, color="0.5", linewidth=0.3)
    mark_zero(axis, "x")


SHARED_WIDTH = 0.9  # of its part that a bar takes if several rows share the part of a series


def list_positions(
    plot: Plot, rows: Sequence[Row], places: Sequence[str], place: int, count: int
) -> tuple[list[float], list[float]]:
    """Return the center and width of each row of a series along the axis of x, where two values are 1 apart.

    `places` are the values of x in their order. The series is number `place` of `count`, which share 0.8. Its rows of
    one x, such as several random directions, share its part.
    """
    labels = [format_number(row[plot.x], 3) for row in rows]
    totals, seen_counts, width = Counter(labels), Counter[str](), 0.8 / count
    positions, widths = [], []
    for label in labels:
        share = width / totals[label]
        start = places.index(label) + (place - count / 2) * width
        positions.append(start + (seen_counts[label] + 0.5) * share)
        widths.append(share if totals[label] == 1 else SHARED_WIDTH * share)
        seen_counts[label] += 1
    return positions, widths


def compute_error_bars(result: QueryResult, plot: Plot, rows: Sequence[Row]) -> list[list[float]] | None:
    """Return the distances to both ends of the interval, 0 for an unknown end; None for a column without interval."""
    if plot.y not in result.intervals:
        return None

    def compute_distance(row: Row, end: str) -> float:
        return 0.0 if row[plot.y + end] is None else max(0.0, abs(row[plot.y + end] - row[plot.y]))

    return [[compute_distance(row, end) for row in rows] for end in ("_low", "_high")]


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure atomically in the format of the suffix. Raises BadInputError for another suffix."""
    write_file(path, encode_figure(figure, check_suffix(path)))


def encode_figure(figure: Figure, suffix: str) -> bytes:
    """Return the file's content of a figure in the format of a suffix of SUFFIXES."""
    import matplotlib

    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "chessreg", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=metadata.get(suffix))
    return buffer.getvalue()


def check_suffix(path: Path) -> str:
    """Return the suffix of a figure's file. Raises BadInputError for an unsupported one."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        name = suffix or "a name without suffix"
        raise BadInputError(f"{path}: figures cannot be written to {name}", f"one of {', '.join(SUFFIXES)}")
    return suffix
