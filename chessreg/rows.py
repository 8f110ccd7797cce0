"""Rows of a list: their values as text and JSON, and the list that the Python interface returns."""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from chessreg import text_table
from chessreg.errors import BadInputError
from chessreg.terminal import make_visible

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SHOWN = 40  # rows in the representation of a longer list
SHOWN_WIDTH = 120  # characters of a line
ESTIMATE = re.compile(r"[-+\d.,e\[\]≤≥ ]*")  # a number as text, with its interval


def to_plain(value: Any) -> Any:
    """Return a value for JSON: ids as 32 hex digits, times in ISO 8601 with their zone, bytes in hex, NaN as null."""
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None  # no -0.0
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy
        return to_plain(value.tolist())
    if isinstance(value, Iterable):
        return [to_plain(item) for item in value]
    return str(value)


def format_float(value: float) -> str:
    """Return a number with four digits, and all digits before the decimal point up to 15.

    >>> format_float(0.123456), format_float(14150.0), format_float(-2.5e20), format_float(-0.0)
    ('0.1235', '14,150', '-2.5e+20', '0')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:z.4g}"


def format_cell(value: Any) -> str:
    """Return a value as one line of text, for a table's cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, UUID):
        return value.hex[-6:]
    if isinstance(value, Id):
        return value[-6:]
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone().strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:z.1f}" if isinstance(value, Percent) else format_float(value)
    if isinstance(value, int):
        return f"{value:,}"
    value = to_plain(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return make_visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


class Percent(float):
    """A percentage, shown with one decimal."""


class Id(str):
    """The id of an entity, 32 hex digits. Tables show its last six."""


def sort_listed_rows(
    rows: Sequence[dict[str, Any]], sort: str | None, headings: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the rows sorted by columns such as `plies` or `-games,name`: `-` sorts the largest first.

    A column is named by its key or by its heading in `headings`. Rows without a value come last, and equal rows keep
    their order. Without `sort`, the order is unchanged. Raises BadInputError for an unknown column.

    >>> [row["n"] for row in sort_listed_rows([{"n": 2}, {"n": None}, {"n": 3}], "-n")]
    [3, 2, None]
    """
    ordered_rows = list(rows)
    keys = {_make_sort_name(heading): key for key, heading in (headings or {}).items()}
    keys |= {_make_sort_name(key): key for row in rows[:1] for key in row}
    for word in reversed(sort.split(",") if sort and rows else []):
        name = word.strip()
        key = keys.get(_make_sort_name(name.removeprefix("-")))
        if key is None:
            raise BadInputError(
                f"--sort {sort}: column {name.removeprefix('-')!r} does not exist", f"one of {', '.join(sorted(keys))}"
            )
        known_rows = [row for row in ordered_rows if row[key] is not None]
        known_rows.sort(key=lambda row: make_sort_key(row[key]), reverse=name.startswith("-"))
        ordered_rows = [*known_rows, *(row for row in ordered_rows if row[key] is None)]
    return ordered_rows


def _make_sort_name(text: str) -> str:
    return text.strip().lower().replace(" ", "_")


def make_sort_key(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts numbers by value before all other values, which are sorted as text."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else str(to_plain(value))


class HiddenColumns(NamedTuple):
    """The headings of columns that a table leaves out: columns that do not fit, and columns without a value in any
    row."""

    omitted_names: list[str]
    empty: list[str]

    def describe(self, width: int, hint: str) -> list[str]:
        """Return the lines, of at most `width` characters, that name the columns. `hint` describes how to show them."""
        names = (self.omitted_names, "not shown"), (self.empty, "without a value")
        lines = [
            text_table.name_hidden_columns(hidden_names, width, hint, reason)
            for hidden_names, reason in names
            if hidden_names
        ]
        text = "; ".join(lines)
        return lines if len(text) > width else [text] if text else []


def format_rows(
    rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str], width: int | None = None
) -> tuple[list[str], HiddenColumns]:
    """Return the lines of a table with one line per row, and the columns left out.

    Columns without any value are left out. Long texts are shortened, but not numbers with intervals. If that does not
    suffice, columns are dropped from the right, and texts are shortened only as far as the remaining columns need.
    Without `width` nothing is shortened.
    """
    cells = {name: [format_cell(row.get(name)) for row in rows] for name in headings}
    filled_names = [name for name in headings if any(cells[name])]
    names = filled_names or list(headings)[:1]
    filled_names = list(names)
    numeric = {
        name: all(
            isinstance(v, int | float) and not isinstance(v, bool)
            for v in (row.get(name) for row in rows)
            if v is not None
        )
        for name in names
    }
    if width is not None:
        all_cells = cells
        texts = {name for name in names if not numeric[name] and not all(map(ESTIMATE.fullmatch, cells[name]))}
        while True:
            cells = dict(all_cells)
            text_table.shorten_to_fit(names, [name for name in names if name in texts], headings, cells, width)
            if len(names) == 1 or text_table.measure_table(names, headings, cells) <= width:
                break
            names.pop()
    lines = text_table.draw_table(
        [headings[name] for name in names],
        list(zip(*(cells[name] for name in names), strict=True)),
        [numeric[name] for name in names],
    )
    empty = [heading for name, heading in headings.items() if name not in filled_names and heading]
    return lines, HiddenColumns([headings[name] for name in filled_names[len(names) :]], empty)


class Rows(list[dict[str, Any]]):
    """A list of dicts, shown as the command line prints it: the columns of `headings`. The dicts have every field; ids
    are 32 hex digits."""

    def __init__(self, rows: Iterable[dict[str, Any]], headings: Mapping[str, str]) -> None:
        super().__init__({name: _convert_ids(value) for name, value in row.items()} for row in rows)
        self.headings = dict(headings)

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table: ids as 32 hex digits, lists and dicts as JSON text."""
        import pyarrow as pa

        names = list(dict.fromkeys(name for row in self for name in row))
        return pa.table({name: pa.array([_convert_for_arrow(row.get(name)) for row in self]) for name in names})

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame with the values of `to_arrow`."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a polars data frame with the values of `to_arrow`. Raises ImportError without polars."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def __repr__(self) -> str:
        if not self:
            return "no rows"
        lines, hidden_columns = format_rows(self[:MOST_SHOWN], self.headings, SHOWN_WIDTH)
        return "\n".join([*lines, *hidden_columns.describe(SHOWN_WIDTH, "to_pandas()"), *_format_more_rows(len(self))])

    def _repr_html_(self) -> str:
        shown_rows = self[:MOST_SHOWN]
        names = [name for name in self.headings if any(format_cell(row.get(name)) for row in shown_rows)]
        cells = [[format_cell(row.get(name)) for name in names] for row in shown_rows]
        return format_html_table([self.headings[name] for name in names], cells, len(self))


def format_html_table(headings: Sequence[str], cells: Sequence[Sequence[str]], rows: int) -> str:
    """Return the cells, which are text, as an HTML table. `rows` counts all rows, also those without cells here."""
    from html import escape

    head = "".join(f"<th>{escape(text)}</th>" for text in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in cells)
    more = "".join(f"<p>{text}</p>" for text in _format_more_rows(rows))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _convert_ids(value: Any) -> Any:
    """Return a value with every UUID in it, also in lists and dicts, as an Id."""
    if isinstance(value, UUID):
        return Id(value.hex)
    if isinstance(value, list):
        return [_convert_ids(item) for item in value]
    if isinstance(value, dict):
        return {name: _convert_ids(item) for name, item in value.items()}
    return value


def _format_more_rows(rows: int) -> list[str]:
    return [f"… and {rows - MOST_SHOWN:,} more"] if rows > MOST_SHOWN else []


def _convert_for_arrow(value: Any) -> Any:
    value = value if isinstance(value, datetime) else to_plain(value)
    return json.dumps(value) if isinstance(value, list | dict) else value
