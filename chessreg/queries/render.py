"""Render a query's answer as table, Markdown, LaTeX, CSV, JSON, JSON lines or Parquet. Files are written atomically."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable
from datetime import date, datetime
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg import text_table
from chessreg.errors import BadInputError, get_first_line, report_write_errors
from chessreg.queries.catalogue import Defaults
from chessreg.queries.result import QueryResult
from chessreg.registry.file_gate import refuse_registry
from chessreg.rows import MOST_SHOWN, format_html_table
from chessreg.terminal import make_visible
from store.files import write_whole

if TYPE_CHECKING:
    import pyarrow as pa


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically.

    Raises BadInputError if the path cannot be written or is a file of the open registry.
    """
    refuse_registry(path)
    with report_write_errors(path):
        write_whole(path, data)


DECIMALS = {"%": 1, "Elo": 0, "plies": 1, "cp": 1}
DASH = ""
MAX_KEY_LENGTH = 30  # characters of a text that distinguishes rows
LONGEST_CELL = 60  # a longer cell is a sentence, printed below the table


# -- for people -------------------------------------------------------------------------------------------------------


def choose_columns(result: QueryResult, wide: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return the columns of a printed table, and the text of each column with the same value in every row.

    The columns are the query's defaults, any others that distinguish rows with equal keys, and the number of unscored
    games if a row has no answer because none is scored. With `wide`, or if the
    query declares no defaults, they are all columns. Columns that `--show` names are all shown. Hidden columns, ends of
    intervals, and empty columns that `--show` does not name are left out. Rows behind a row have their run's name, not
    its id.
    """
    rows = result.rows
    ends = {f"{name}{end}" for name in result.intervals for end in ("_low", "_high")}
    columns = [n for n in result.columns if n not in ends and not result.column(n).hidden]
    if not wide and (defaults := get_default_columns(result)):
        columns = [*defaults.keys, *list_distinguishing_columns(result, defaults), *defaults.answers, *defaults.counts]
        if any(row.get("unscored") and all(row.get(name) is None for name in defaults.answers) for row in rows):
            columns.append("unscored")
        columns = [n for n in columns if n in result.columns]
    if "behind_row" in result.meta and "run" in columns:
        columns.remove("run_id")
    if not result.column_notes or not rows:
        return columns, {}
    required_names = {"row", "column", "comparison"} if result.meta.get("published") else {columns[0]}
    constants: dict[str, str] = {}
    kept_names = []
    for name in columns:
        values = [row[name] for row in rows]
        has_ends = name in result.intervals and any(
            row[f"{name}{e}"] is not None for row in rows for e in ("_low", "_high")
        )
        empty = all(v is None for v in values) and not has_ends
        if empty and name not in result.chosen_names:
            continue
        describes = isinstance(values[0], str) or result.column(name).unit in ("", "moves")
        constant = len(rows) > 1 and all(value == values[0] for value in values)  # a set would fail for lists
        if name not in required_names and describes and name not in result.intervals and constant and not empty:
            constants[name] = format_result_cell(result, rows[0], name)
        else:
            kept_names.append(name)
    return kept_names, constants


def list_distinguishing_columns(result: QueryResult, defaults: Defaults) -> list[str]:
    """Return the columns, in the query's order, that distinguish rows whose default keys are equal.

    Only short texts, switches and whole numbers without a unit can distinguish rows.
    """
    rows = result.rows
    ends = {f"{name}{end}" for name in result.intervals for end in ("_low", "_high")}
    keys = [tuple(str(row[name]) for name in defaults.keys if name in row) for row in rows]
    chosen_names: list[str] = []
    for name in result.columns:
        if len(set(keys)) == len(rows):
            break
        column = result.column(name)
        if column.hidden or column.unit or name in ends or name in defaults.names or name in result.intervals:
            continue
        if any(isinstance(row[name], float) for row in rows):
            continue
        texts = ["" if row[name] is None else str(row[name]) for row in rows]
        extended_keys = [(*key, text) for key, text in zip(keys, texts, strict=True)]
        if max(map(len, texts)) <= MAX_KEY_LENGTH and len(set(extended_keys)) > len(set(keys)):
            chosen_names.append(name)
            keys = extended_keys
    return chosen_names


def get_default_columns(result: QueryResult) -> Defaults | None:
    """Return the table's default columns, or None if all columns are shown because others were chosen or declared."""
    if result.entry is None or result.chosen_names or result.meta.get("published") or not result.entry.default.names:
        return None
    return result.entry.default


def format_result_cell(result: QueryResult, row: dict[str, Any], name: str) -> str:
    """Return a value as text with its interval; a single bound as ≤ or ≥. Evaluations (`…_cp`) that store a mate are
    moves to mate."""
    value = row[name]
    if name.endswith("_cp") and isinstance(value, (int, float)):
        from chessreg.games.boards.adjudication import count_mate_moves

        if (moves := count_mate_moves(value)) is not None:
            return f"{'-' if value < 0 else ''}mate in {moves}"
    unit = result.column(name).unit
    decimals = DECIMALS.get(unit, 3)
    is_key = result.entry is not None and name in result.entry.default.keys
    setting = is_key or (bool(result.meta.get("published")) and row.get("unit") == "")
    if name not in result.intervals:
        return format_number(value, decimals) if unit in DECIMALS else format_amount(value, setting)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        bounds = [
            f"{sign} {format_number(end, decimals)}" for sign, end in (("≥", low), ("≤", high)) if end is not None
        ]
        return f"[{' '.join(bounds)}]" if bounds else ""
    if low is None and high is None:
        return format_number(value, decimals) if unit in DECIMALS else format_amount(value, setting)
    if low is None or high is None:
        bound = f"≤ {format_number(high, decimals)}" if low is None else f"≥ {format_number(low, decimals)}"
        return f"{format_number(value, decimals)} [{bound}]"
    return f"{format_number(value, decimals)} [{format_number(low, decimals)}, {format_number(high, decimals)}]"


def format_number(value: Any, decimals: int) -> str:
    """Return one value of any column as text: floats with `decimals` decimals, None as "", times to the minute.

    >>> format_number(0.12345, 3), format_number(12345, 0), format_number(None, 1), format_number(True, 1)
    ('0.123', '12,345', '', 'yes')
    >>> format_number(-0.04, 1), convert_json_value(-0.0)  # no negative zero
    ('0.0', 0.0)
    """
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:z,.{decimals}f}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def format_amount(value: Any, setting: bool = False) -> str:
    """Return a value without an interval as text.

    Values have three decimals; large whole numbers have no decimals. A value that three decimals would change or hide
    has four significant digits. For a `setting`, no whole number has decimals.

    >>> [format_amount(value) for value in (0.25, 0.1234, 8e-05, 0.000123456, 2000.0)]
    ['0.250', '0.1234', '8e-05', '0.0001235', '2,000']
    >>> format_amount(2.0, setting=True)
    '2'
    """
    if not isinstance(value, float) or not isfinite(value):
        return format_number(value, 3)
    if value.is_integer() and (setting or abs(value) >= 1000):
        return format_number(value, 0)
    digits = f"{value:z.4g}"
    exact = float(digits) == value and abs(value) < 1
    return digits if round(value, 3) != value and (exact or abs(value) < 5e-4) else format_number(value, 3)


def format_heading(result: QueryResult, name: str) -> str:
    unit = result.column(name).unit
    text = name.replace("_", " ")
    return f"{text} {unit}" if unit in ("%", "Elo", "cp") and unit.lower() != text.split()[-1] else text


def format_cells(
    result: QueryResult, wide: bool = False
) -> tuple[list[str], list[list[str]], dict[str, str], list[bool]]:
    """Return headings, cells, the columns with the same value in every row, and which columns are numeric."""
    names, constants = choose_columns(result, wide)
    rows = result.rows
    cells = [[format_result_cell(result, row, name) for name in names] for row in rows]
    return [format_heading(result, n) for n in names], cells, constants, [is_numeric(result, rows, n) for n in names]


def is_numeric(result: QueryResult, rows: list[dict[str, Any]], name: str) -> bool:
    return name in result.intervals or any(
        isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows
    )


def format_caption(constants: dict[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in constants.items())


def format_table(result: QueryResult, width: int | None = None, wide: bool = False, first: int | None = None) -> str:
    """Return a table with one line per row: of the first `first` rows (None: all), for a terminal of `width` columns
    (None: any width).

    If the default columns do not fit, counts are left out from the right, then answers from the right, but not the
    first answer and not the differences from controls. Then long texts are shortened in the middle, and further
    differences are left out. Rows behind a row lose columns from the right. A last line names the columns that are not
    shown. With `wide`, with chosen columns and for queries without default columns, rows are not shortened. If they do
    not fit, each is a block with one line per column.
    """
    names, constants = choose_columns(result, wide)
    rows = result.rows[:first]
    cells = {name: [make_visible(format_result_cell(result, row, name)) for row in rows] for name in names}
    notes = move_sentences(cells)
    headings = {name: format_heading(result, name) for name in names}
    defaults = None if wide else get_default_columns(result)
    room = None if width is None else width - len(str(len(rows))) - text_table.GAP
    behind = "behind_row" in result.meta and not wide and not result.chosen_names
    if room is not None and defaults is not None:
        names = fit_columns(result, names, defaults, headings, cells, room)
    elif room is not None and behind:
        while len(names) > 1 and text_table.measure_table(names, headings, cells) > room:
            names.pop()
    elif room is not None and text_table.measure_table(names, headings, cells) > room:
        return format_records(result, first)
    numeric = {name: is_numeric(result, rows, name) for name in names}
    lines = text_table.wrap_text(make_visible(format_caption(constants)), width or 120) if constants else []
    lines += text_table.draw_table(
        ["#", *(headings[name] for name in names)],
        [[str(place), *row] for place, row in enumerate(zip(*(cells[name] for name in names), strict=True), 1)],
        [True, *(numeric[name] for name in names)],
    )
    for place, note in enumerate(notes, 1):
        lines += text_table.wrap_text(f"[{place}] {make_visible(note)}", width or 120)
    shown_names = {*names, *constants}
    if defaults is not None and (runs_text := format_runs(result, shown_names, width or 120)):
        lines.append(runs_text)
        shown_names |= set(RUN_COLUMNS)
    omitted_text = format_omitted_columns(result, shown_names, width or 120) if defaults is not None or behind else ""
    if omitted_text or defaults is not None:
        lines.append(omitted_text)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def fit_columns(
    result: QueryResult,
    names: list[str],
    defaults: Defaults,
    headings: dict[str, str],
    cells: dict[str, list[str]],
    width: int,
) -> list[str]:
    """Return the `names` that fit `width`, in cells. If leaving out columns is not enough, shorten the keys in `cells`.

    Counts are left out first, then answers, then differences, each from the last. `headings` and `cells` are by column
    name.
    """
    names = list(names)
    statistics = result.entry.statistics if result.entry is not None else ()
    differences = {statistic.name for statistic in statistics if statistic.function.endswith("_difference")}
    answers = [name for name in names if name in defaults.answers][1:]
    counts = [name for name in names if name in defaults.counts]
    for name in (*reversed(counts), *reversed([name for name in answers if name not in differences])):
        if text_table.measure_table(names, headings, cells) > width:
            names.remove(name)
    all_cells = dict(cells)
    for dropped_name in (*reversed([name for name in answers if name in differences]), None):
        keys = [name for name in names if name in defaults.keys]
        text_table.shorten_to_fit(names, keys, headings, cells, width)
        if dropped_name is None or text_table.measure_table(names, headings, cells) <= width:
            break
        names.remove(dropped_name)
        cells.update(all_cells)
    return names


RUN_COLUMNS = "runs", "run"  # columns with the names of runs


def format_runs(result: QueryResult, shown_names: set[str], width: int) -> str:
    """Return one line with the runs of each row, such as `runs: 1-8 board; 9-16 untrained-board`. Return an empty text
    if a column shows them, or if the line is longer than `width`.
    """
    name = next((name for name in RUN_COLUMNS if name in result.columns), None)
    if name is None or name in shown_names:
        return ""
    groups = [list(group) for _, group in itertools.groupby(enumerate(result.rows, 1), lambda row: row[1][name])]
    parts = []
    for group in groups:
        (first, row), (last, _) = group[0], group[-1]
        places = f"{first}-{last} " if last > first else f"{first} "
        parts.append(f"{places if len(groups) > 1 else ''}{make_visible(str(row[name]))}")
    line = f"{'runs' if len(groups) > 1 else name}: {'; '.join(parts)}"
    return line if groups and len(line) <= width and all(row[name] for row in result.rows) else ""


def format_omitted_columns(result: QueryResult, shown_names: set[str], width: int) -> str:
    """Return one line with the names of the columns that are not shown. Columns that differ between rows come first."""
    rows = result.rows
    names, constants = choose_columns(result, wide=True)
    rest = [name for name in (*names, *constants) if name not in shown_names]
    rest.sort(key=lambda name: all(row[name] == rows[0][name] for row in rows))
    return text_table.name_hidden_columns(rest, width, "--wide")


def format_records(result: QueryResult, first: int | None = None) -> str:
    """Return each of the `first` rows, or of all, with one line per column, as psql's expanded display."""
    names, constants = choose_columns(result, wide=True)
    shown_names = [name for name in result.columns if name in {*names, *constants}]
    headings = {name: format_heading(result, name) for name in shown_names}
    width = max(map(len, headings.values()), default=0)
    lines = []
    for place, row in enumerate(result.rows[:first], 1):
        lines.append(f"── row {place} ──")
        lines += [
            f"{headings[name]:<{width}}  {make_visible(format_result_cell(result, row, name))}" for name in shown_names
        ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def move_sentences(cells: dict[str, list[str]]) -> list[str]:
    """Replace the cells of columns with long sentences by numbers, and return the sentences."""
    notes: dict[str, int] = {}
    for name, texts in cells.items():
        if max(map(len, texts), default=0) > LONGEST_CELL:
            cells[name] = [f"[{notes.setdefault(text, len(notes) + 1)}]" if text else "" for text in texts]
    return list(notes)


def format_markdown(result: QueryResult, *, is_numbered: bool = False, wide: bool = False) -> str:
    """Return a GitHub table, with numbered rows on request."""
    headings, cells, constants, numeric = format_cells(result, wide)
    if is_numbered:
        headings, numeric = ["#", *headings], [True, *numeric]
        cells = [[str(number), *row] for number, row in enumerate(cells, 1)]

    def join_cells(values: list[str]) -> str:
        return "| " + " | ".join(map(escape_markdown, values)) + " |"

    rule = ["---:" if right else "---" for right in numeric]
    lines = [join_cells(headings), join_cells(rule), *(join_cells(row) for row in cells)]
    return (escape_markdown(format_caption(constants)) + "\n\n" if constants else "") + "\n".join(lines) + "\n"


def format_html(result: QueryResult) -> str:
    """Return an HTML table of the default columns, as a notebook shows it: the first MOST_SHOWN rows, and the number
    of further ones."""
    headings, cells, constants, _ = format_cells(result)
    words = f"<p>{escape(format_caption(constants))}</p>" if constants else ""
    return words + format_html_table(headings, cells[:MOST_SHOWN], len(cells))


def escape_markdown(text: str) -> str:
    """Return the text as one line of Markdown, with its markup, links and HTML escaped.

    >>> print(escape_markdown("a|b <i>*c*</i>\\n# d [e](http://f) [0.4, 0.6] pgn_char"))
    a\\|b \\<i>\\*c\\*\\</i> # d [e\\](http://f) [0.4, 0.6] pgn_char
    """
    return re.sub(r"[\\`*|<~]|&(?=[#\w])|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", join_lines(text))


def join_lines(text: str) -> str:
    """Return the text with each run of spaces and line ends as one space, and control characters as their escapes."""
    return make_visible(" ".join(text.split()))


TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
       "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\leq$", "≥": r"$\geq$"}  # fmt: skip


def as_latex(text: str) -> str:
    """Return the text as one line of LaTeX, escaped."""
    return "".join(TEX.get(c, c) for c in join_lines(text))


def format_latex(result: QueryResult, *, wide: bool = False) -> str:
    """Return a LaTeX tabular with booktabs rules and its caption as a comment."""
    headings, cells, constants, numeric = format_cells(result, wide)

    def join_cells(values: list[str]) -> str:
        return " & ".join(map(as_latex, values)) + r" \\"

    title = [f"% {as_latex(f'{result.entry.title}: {result.entry.paper}')}"] if result.entry else []
    lines = [
        *title,
        *([f"% {as_latex(format_caption(constants))}"] if constants else []),
        r"\begin{tabular}{" + "".join("r" if right else "l" for right in numeric) + "}",
        r"\toprule",
        join_cells(headings),
        r"\midrule",
        *(join_cells(row) for row in cells),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


# -- for programs -----------------------------------------------------------------------------------------------------


def convert_json_value(value: Any) -> Any:
    """Return a value for JSON and CSV: times in ISO 8601, bytes in hex, NaN and infinities as null."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value + 0.0 if abs(value) < float("inf") else None  # no -0.0
    if isinstance(value, list):
        return [convert_json_value(v) for v in value]
    if isinstance(value, dict):
        return {str(k): convert_json_value(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def format_csv(result: QueryResult) -> str:
    """Return CSV of all columns, including hidden ones. NULL is an empty field."""
    return format_csv_rows(result, heading=True)


def format_csv_rows(result: QueryResult, heading: bool) -> str:
    """Return the result as CSV text, with column names if `heading`."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if heading:
        writer.writerow(result.columns)
    columns = [list_column_values(result.table.column(place)) for place in range(result.table.num_columns)]
    writer.writerows(zip(*columns, strict=True))
    return buffer.getvalue()


def list_column_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column for CSV. Whole numbers and texts need no conversion."""
    import pyarrow as pa

    values: list[Any] = column.to_pylist()
    if pa.types.is_integer(column.type) or pa.types.is_string(column.type):
        return values
    values_plain = map(convert_json_value, values)
    return [
        json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value for value in values_plain
    ]


def format_json_lines(result: QueryResult) -> str:
    """Return one JSON object per row and line, without metadata."""
    return "".join(
        f"{json.dumps(convert_json_value(row), ensure_ascii=False, allow_nan=False)}\n" for row in result.rows
    )


STREAM_FORMATTERS = {"csv": format_csv_rows, "jsonl": lambda result, heading: format_json_lines(result)}
"""Formats that are written some rows at a time; `heading` with the first ones."""


def build_json_document(result: QueryResult) -> dict[str, Any]:
    """Return the document of `--json`: `meta`, `notes`, `columns` with unit and meaning, `rows`."""
    columns = [result.column(name) for name in result.columns]
    return {
        "meta": result.meta,
        "notes": result.notes,
        "columns": [{"name": c.name, "unit": c.unit, "text": c.text} for c in columns],
        "rows": [convert_json_value(row) for row in result.rows],
    }


def format_json(result: QueryResult) -> str:
    return json.dumps(build_json_document(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def encode_parquet(result: QueryResult) -> bytes:
    """Return zstd-compressed Parquet, with the answer's metadata in the schema under `chessreg`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    meta = json.dumps(result.meta, sort_keys=True).encode()
    buffer = pa.BufferOutputStream()
    try:
        pq.write_table(result.table.replace_schema_metadata({b"chessreg": meta}), buffer, compression="zstd")
    except pa.ArrowNotImplementedError as error:
        raise BadInputError(f"Parquet cannot hold that: {get_first_line(error)}", "leave that column out") from error
    return buffer.getvalue().to_pybytes()


# -- all --------------------------------------------------------------------------------------------------------------

TEXTS: dict[str, Callable[[QueryResult], str]] = {
    "records": format_records,
    "csv": format_csv,
    "json": format_json,
    "jsonl": format_json_lines,
}
TABLES: dict[str, Callable[..., str]] = {"markdown": format_markdown, "latex": format_latex}
FORMATS = ("table", *TABLES, *TEXTS, "parquet")
PRINTED_FORMATS, MOST_PRINTED = ("table", "records", "markdown", "latex"), 100_000
SUFFIXES = {
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".txt": "table",
}


def render_result(
    result: QueryResult, format: str, width: int | None = None, wide: bool = False, first: int | None = None
) -> str | bytes:
    """Return the answer in a format of FORMATS; Parquet is bytes.

    `wide` prints all columns in the formats for people. Formats for programs always have all columns. `width` is that
    of the terminal in characters, for the format `table`. `first` limits the rows of the formats `table` and `records`.
    Raises BadInputError for an unknown format, and for more rows
    than MOST_PRINTED in a format for people.
    """
    if format == "parquet":
        return encode_parquet(result)
    if format in PRINTED_FORMATS and len(result.table[:first]) > MOST_PRINTED:
        raise BadInputError(f"{len(result):,} rows are too many to print", "--format csv or jsonl, or LIMIT 100")
    if format == "table":
        return format_table(result, width, wide, first)
    if format == "records":
        return format_records(result, first)
    if format in TABLES:
        return TABLES[format](result, wide=wide)
    if format not in TEXTS:
        raise BadInputError(f"format {format!r} does not exist", f"one of {', '.join(FORMATS)}")
    return TEXTS[format](result)


def write_result(result: QueryResult, path: Path, format: str | None = None, wide: bool = False) -> str:
    """Write the answer to a file atomically, by default in the format of the suffix. Returns the name of the format.

    `wide` includes constant columns. Raises BadInputError for a suffix without a format, and for a file that cannot be
    written.
    """
    format_name = format or SUFFIXES.get(path.suffix.lower())
    if format_name is None:
        raise BadInputError(f"{path}: results cannot be written to {path.suffix or 'a name without suffix'}",
                            f"--format, or one of {', '.join(SUFFIXES)}")  # fmt: skip
    data = render_result(result, format_name, wide=wide)
    write_file(path, data if isinstance(data, bytes) else data.encode())
    return format_name


def format_provenance(result: QueryResult) -> str:
    """Return one line of provenance: query, schema, data version, rows read."""
    meta = result.meta
    rows_read = ", ".join(f"{count:,} {name}" for name, count in meta["rows_read"].items() if count) or "no rows"
    title = meta["query"] if "paper" in meta else "sql"
    rows = "row" if meta["rows"] == 1 else "rows"
    return (
        f"{title}: {meta['rows']:,} {rows}; query {meta['query_hash']}, registry schema {meta['registry_schema']}, "
        f"data {meta['data_version']}; read {rows_read}"
    )
