"""Display data of a noun for lists, commands and screens: columns, charts, and one entity in parts. Contains no drawing
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A field of a row and its heading. JSON output contains the raw value; `unit` and `text` control its text form."""

    field: str
    heading: str
    unit: Literal["", "bytes", "share"] = ""  # share: a fraction of 1, printed as a percentage
    text: Callable[[Any], str] | None = None
    number: bool = False  # right-aligned even if the value is text
    widest: int = 48  # maximum width in cells


class Option(NamedTuple):
    """An option of `show` or `verify`: `type` is str, int, or bool for a flag."""

    name: str
    help: str
    type: type = str
    metavar: str | None = None
    default: Any = None


class ShowOutput(NamedTuple):
    """Output of `show`: one object or rows.

    Text output consists of `fields` (with their headings; `read_as` replaces some values), the non-empty tables of
    `parts`, and `lines`. `remarks` go to stderr.
    """

    data: dict[str, Any] | list[dict[str, Any]]
    fields: list[str] | dict[str, str] | None = None
    read_as: Mapping[str, str] = {}
    lines: Sequence[str] = ()
    remarks: Sequence[str] = ()
    parts: Sequence[Part] = ()


class VerifyOutput(NamedTuple):
    """Result of reading an entity's bytes again: counts, a sentence with the outcome, and the problems found."""

    counts: dict[str, Any]
    fields: list[str]
    outcome: str
    problems: Sequence[str] = ()


# -- results ----------------------------------------------------------------------------------------------------------


def format_measured_value(value: Mapping[str, Any]) -> str:
    """Return a run's result with its unit and, if known, its interval.

    A measure whose name ends with % has one decimal, a score or probability mass three, as in the tables of queries.

    >>> format_measured_value({"measure": "test %", "value": 93.256, "low": 91.0, "high": 95.04})
    '93.3 % [91.0, 95.0]'
    >>> format_measured_value({"measure": "score", "value": 0.4})
    '0.400'
    """
    percent = value["measure"].endswith("%")
    text = format_value_with_interval(value["value"], None, None, 1 if percent else 3) + " %" * percent
    return text + format_interval_ends(value.get("low"), value.get("high"), 1 if percent else 3)


def format_signed_change(value: Mapping[str, Any]) -> str:
    """Return the difference between two runs' results, or an empty string if no earlier run exists.

    >>> format_signed_change({"measure": "test %", "change": -1.25, "change_low": -3.0, "change_high": 0.5})
    '−1.2 [−3.0, +0.5]'
    """
    if value["change"] is None:
        return ""
    decimals = 1 if value["measure"].endswith("%") else 3
    ends = value.get("change_low"), value.get("change_high")
    return format_value_with_interval(value["change"], *ends, decimals, "+").replace("-", "−")


def format_value_with_interval(
    value: float, low: float | None, high: float | None, decimals: int, sign: str = ""
) -> str:
    """Return a value with its interval, if an end is known. `sign` is a sign option of format strings, such as `+`.

    >>> format_value_with_interval(1.0, 0.5, 2.25, 1), format_value_with_interval(0.0, None, 0.25, 3)
    ('1.0 [0.5, 2.2]', '0.000 [≤ 0.250]')
    """
    return f"{value:{sign}z,.{decimals}f}" + format_interval_ends(low, high, decimals, sign)


def format_interval_ends(low: float | None, high: float | None, decimals: int, sign: str = "") -> str:
    """Return the interval from `low` to `high` to append to a value, as ` [0.1, 0.3]`. One unknown end gives ` [≥
    0.1]`, two give an empty text.

    `sign` is `+` for numbers that are always written with their sign.
    """
    if low is None and high is None:
        return ""
    ends = [f"{mark}{end:{sign}z,.{decimals}f}" for mark, end in (("≥ ", low), ("≤ ", high)) if end is not None]
    return f" [{ends[0]}]" if len(ends) == 1 else f" [{', '.join(end[2:] for end in ends)}]"


# -- charts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A value over a number or a category. An unknown end of its interval is None."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""  # the value as printed in tables


@dataclass(frozen=True)
class Series:
    """A labelled line of a panel."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """One set of axes of a chart, with a title and its lines."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Chart:
    """Panels with the same axes. The index of a series in `labels` gives its color and mark in all panels."""

    title: str
    x: str
    y: str
    panels: tuple[Panel, ...]
    form: Literal["lines", "bars"] = "lines"

    @property
    def labels(self) -> list[str]:
        """The different labels of the lines, in order of appearance."""
        return list(dict.fromkeys(series.label for panel in self.panels for series in panel.series))

    def list_points(self) -> list[Point]:
        return [point for panel in self.panels for series in panel.series for point in series.points]


def build_layer_chart(
    title: str, y: str, rows: Sequence[Row], fields: Mapping[str, str], text: Callable[[float], str]
) -> Chart | None:
    """Return a chart of fields of `rows` by layer, one line per field. `fields` maps fields to labels. Returns None if
    no row has a value.
    """
    series = []
    for name, label in fields.items():
        points = tuple(Point(r["layer"], r[name], text=text(r[name])) for r in rows if r.get(name) is not None)
        if points:
            series.append(Series(label, points))
    return Chart(title, "layer", y, (Panel("", tuple(series)),)) if series else None


# -- one entity --------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A table, a chart, or a table with a chart below it."""

    name: str
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    chart: Chart | None = None


@dataclass(frozen=True)
class Thing:
    """One entity: a summary line, its annotations, and its parts."""

    summary: str
    annotations: str = ""
    parts: list[Part] = field(default_factory=list)


FACTS = (Column("what", "what"), Column("value", "value"))
NOT_A_FACT = frozenset({
    "detail", "report", "notes", "tags", "starred", "pinned", "archived", "training_datasets", "hook_points", "groups",
    "name",
})  # fmt: skip


def list_facts(row: Row, measured_columns: Sequence[Column] = ()) -> Part:
    """Return a part with all known fields of `row`, one per line. `measured_columns` are those with a unit."""
    columns = {column.field: column for column in measured_columns}
    rows = []
    for name, value in row.items():
        if name not in NOT_A_FACT and value is not None:
            column = columns.get(name, Column(name, name.replace("_", " ")))
            text = format_display_cell(column, row) if name in columns else None
            rows.append({"what": column.heading, "value": value if text is None else text})
    return Part("facts", FACTS, rows)


def format_annotations(row: Row) -> str:
    """Return the annotations of a row as one line."""
    parts = [
        "★ starred" if row["starred"] else "",
        f"tags {' '.join(row['tags'])}" if row["tags"] else "",
        f"invalid: {row['invalid']}" if row["invalid"] else "",
        f"note: {row['notes'][-1]}" if row["notes"] else "",
    ]
    return " · ".join(filter(None, parts))


# -- numbers in words -------------------------------------------------------------------------------------------------


def format_size(number: float | None) -> str:
    """Return a number of bytes with a suitable binary unit.

    >>> format_size(0), format_size(1536), format_size(3 * 2**30), format_size(None)
    ('0 B', '1.5 KiB', '3.0 GiB', '')
    """
    if number is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def format_layers(layers: Iterable[int | None]) -> str:
    """Return layers as ranges, as options accept them.

    >>> format_layers([3, 0, 1, 2, 6]), format_layers([1]), format_layers([None])
    ('0-3,6', '1', '')
    """
    ranges: list[list[int]] = []
    for layer in sorted({layer for layer in layers if layer is not None}):
        if ranges and ranges[-1][-1] == layer - 1:
            ranges[-1].append(layer)
        else:
            ranges.append([layer])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in ranges)


def format_share(share: float | None) -> str:
    """Return a fraction of 1 as a percentage with one decimal, empty for None.

    >>> format_share(0.12345), format_share(None)
    ('12.3 %', '')
    """
    return "" if share is None else f"{100 * share:.1f} %"


def format_display_cell(column: Column, row: Row) -> str | None:
    """Return the text form of a cell, or None if the column does not define one."""
    value = row.get(column.field)
    if value is None:
        return ""
    if column.text is not None:
        return column.text(value)
    if column.unit:
        return format_size(value) if column.unit == "bytes" else format_share(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return " ".join(value)
    return None
