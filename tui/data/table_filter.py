"""Filter and sort tables with a short text: `elo>1900 result:1-0 !draw`.

`column:text` searches one column for a text (a column of numbers: for that number). `=`, `!=`, `<`, `<=`, `>` and `>=`
compare as numbers if both sides are numbers or texts that start with one, otherwise as texts, ignoring case. A word
without a column must appear in one of the shown columns. `!` negates a word. A value with spaces needs "double quotes".
A column is named by its field or its heading, with or without `_` for spaces. Part of a name selects every column that
contains it: `elo` selects white_elo and black_elo. All words must match.

An empty cell matches no word. `column!=value` equals `!column=value`: it keeps all rows that `=` leaves out, including
rows with an empty cell.

The meaning of a word is implemented twice: `is_text_match` for row texts and Arrow columns, `make_conditions` for SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.registry.words import COMPARISONS, TERM_PATTERN, TRUTH_WORDS, WORD_PATTERN

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from tui.columns import TableColumn

# The number that a text begins with; `1-0`, `12:30` and 2026-01-31 are not numbers. make_number_sql agrees.
NUMBER_PATTERN = re.compile(r"[-+−]?(?!\d[\d,.]*[-:])\d[\d,]*+(?:\.\d*)?+(?:[eE][-+]?\d+)?+")


@dataclass(frozen=True)
class Term:
    """One word. `field` is empty for a word alone."""

    field: str
    sign: str
    value: str
    absent: bool = False

    @property
    def number(self) -> float | None:
        """The value as a number, where it is one."""
        try:
            number = float(self.value.replace(",", "").replace("½", "0.5"))
        except ValueError:
            return None
        return number if number == number and abs(number) != float("inf") else None

    @property
    def truth(self) -> bool | None:
        """The value as yes or no; None if it is neither. A 0 or 1 without a field is None, because it is a number to
        search for."""
        return (
            None
            if self.sign not in ":=" or (not self.field and self.value in "01")
            else TRUTH_WORDS.get(self.value.lower())
        )


def parse_terms(text: str) -> list[Term]:
    """Return the words of a filter. Incomplete words (`elo>`, `!`) are ignored.

    >>> [(term.field, term.sign, term.value, term.absent) for term in parse_terms('elo>1900 result:1-0 !draw')]
    [('elo', '>', '1900', False), ('result', ':', '1-0', False), ('', ':', 'draw', True)]
    """
    terms = []
    for word in WORD_PATTERN.findall(text):
        is_negated = word.startswith("!") and len(word) > 1
        bare = word[1:] if is_negated else word
        match = TERM_PATTERN.fullmatch(bare)
        field, sign, value = match.groups() if match else ("", ":", bare)
        value = value.replace('"', "")
        if value and value != "!":
            is_unequal = sign == "!="
            terms.append(Term(field.lower(), "=" if is_unequal else sign, value, is_negated is not is_unequal))
    return terms


@dataclass(frozen=True)
class View:
    """The filter text of a table, its sort field (empty: original order) and its shown columns."""

    text: str = ""
    sort: str = ""
    descending: bool = False
    columns: tuple[TableColumn, ...] = ()

    @property
    def is_active(self) -> bool:
        return bool(self.terms or self.sort)

    @cached_property
    def terms(self) -> list[Term]:
        """The words of the filter. Headings of several words, as in `white elo>1900`, name their column."""
        text = self.text
        for name in sorted((name for name in list_filter_names(self.columns) if "_" in name), key=len, reverse=True):
            pattern = re.escape(name).replace("_", "[ _]")
            text = re.sub(rf"(?<!\S)(!?){pattern}(?=[:=<>]|!=)", rf"\1{name}", text, flags=re.IGNORECASE)
        return parse_terms(text)

    def find_fields(self, name: str) -> list[str]:
        """Return the fields of the columns called `name`, else of those with the word `name` in their name, else of
        those whose name begins with it.

        Raises BadInputError if no column matches.
        """
        names = {column.field: list_column_names(column) for column in self.columns}
        for is_match in (name.__eq__, lambda call: name in call.split("_"), lambda call: call.startswith(name)):
            if fields := [field for field, calls in names.items() if any(map(is_match, calls))]:
                return fields
        raise BadInputError(
            f"column {name!r} does not exist", f"columns are {', '.join(list_filter_names(self.columns))}"
        )


def list_column_names(column: TableColumn) -> tuple[str, ...]:
    """Return the names that a filter accepts for a column: its heading (lower case, `_` for spaces) and its field."""
    heading = re.sub(r"\W+", "_", column.heading.rstrip(" ▲▼").lower()).strip("_")
    return (heading, column.field.lower()) if heading else (column.field.lower(),)


def list_filter_names(columns: Sequence[TableColumn]) -> list[str]:
    """Return the column names offered for completion."""
    return list(dict.fromkeys(list_column_names(column)[0] for column in columns if list_column_names(column)[0]))


# -- rows that are all here -------------------------------------------------------------------------------------------


def is_row_match(row: Mapping[str, Any], view: View) -> bool:
    """Return whether all words match a row."""
    by_field = {column.field: column for column in view.columns}
    for term in view.terms:
        fields = view.find_fields(term.field) if term.field else list(by_field)
        if any(is_cell_match(by_field[field], row, term) for field in fields) is term.absent:
            return False
    return True


def is_cell_match(column: TableColumn, row: Mapping[str, Any], term: Term) -> bool:
    """Return whether the cell of a row matches a term: a number by its value, any other by its text."""
    value, text = row.get(column.field), column.format_cell(row)
    if isinstance(value, (bool, int, float)):
        matches = (
            column.text is not None and term.sign in ":=" and COMPARISONS[term.sign](text.lower(), term.value.lower())
        )
        if isinstance(value, bool):
            return matches or value is term.truth
        return matches if term.number is None else bool(COMPARISONS[term.sign](value, term.number))
    return is_text_match(text, text if value is None else value, term)


def is_text_match(text: str, value: Any, term: Term) -> bool:
    """Return whether a word matches a cell with the text `text`; a number in `value` is compared as a number."""
    number = parse_leading_number(value) if term.number is not None else None
    if term.sign == ":":
        return term.value.lower() in text.lower() or (number is not None and number == term.number)
    if number is not None:
        return bool(COMPARISONS[term.sign](number, term.number))
    return bool(text) and bool(COMPARISONS[term.sign](text.lower(), term.value.lower()))


def parse_leading_number(value: Any) -> float | None:
    """Return a number, or the number with which a text begins (`1,234`, `12.5 %`, `3/12`), else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if value == "½":
        return 0.5
    match = NUMBER_PATTERN.match(value) if isinstance(value, str) else None
    return float(match[0].replace(",", "").replace("−", "-")) if match else None


def sort_rows(rows: Sequence[Mapping[str, Any]], view: View) -> list[Mapping[str, Any]]:
    """Return the rows sorted: numbers before texts, empty cells last in both directions."""
    column = next((column for column in view.columns if column.field == view.sort), None)
    if column is None:
        return list(rows)

    def make_key(row: Mapping[str, Any]) -> tuple[int, float, str]:
        value, text = row.get(column.field), column.format_cell(row)
        number = parse_leading_number(value)
        if number is None and isinstance(value, datetime):
            number = value.timestamp()
        if number is None:
            number = parse_leading_number(text)
        return (0, number, "") if number is not None else (1, 0.0, text.lower())

    empty = [row for row in rows if not column.format_cell(row)]
    filled_rows = [row for row in rows if column.format_cell(row)]
    return [*sorted(filled_rows, key=make_key, reverse=view.descending), *empty]


def narrow_rows(rows: Sequence[Mapping[str, Any]], view: View) -> list[Mapping[str, Any]]:
    """Return the matching rows in the view's order. Raises BadInputError for an unknown column."""
    return sort_rows([row for row in rows if is_row_match(row, view)], view)


# -- SQL --------------------------------------------------------------------------------------------------------------


def make_conditions(view: View, expression: Callable[[str], Any], dialect: str) -> list[ColumnElement[bool]]:
    """Return the words as SQL conditions. `expression(field)` returns a column, or None if it is unavailable."""
    from sqlalchemy import false, not_, or_

    conditions: list[ColumnElement[bool]] = []
    for term in view.terms:
        fields = view.find_fields(term.field) if term.field else [column.field for column in view.columns]
        expressions = [sql for field in fields if (sql := expression(field)) is not None]
        if term.field and not expressions:
            raise BadInputError(f"{term.field} cannot be filtered", "it is computed for display only")
        parts = [part for sql in expressions if (part := make_condition(sql, term, dialect)) is not None]
        any_part = or_(*parts) if parts else false()
        conditions.append(not_(any_part) if term.absent else any_part)
    return conditions


@dataclass(frozen=True)
class ComputedField:
    """A field that is not a column of its table.

    `holds` returns the condition for one word, or None if the word cannot match. `value` is the SQL expression to sort
    by, or None if the field cannot be sorted.
    """

    holds: Callable[[Term], ColumnElement[bool] | None]
    value: Any = None


def make_condition(sql: Any, term: Term, dialect: str) -> ColumnElement[bool] | None:
    """Return the condition for one word and column, or None if the column cannot match."""
    from sqlalchemy import Boolean, Float, Integer, Numeric, String, TypeDecorator, and_

    if isinstance(sql, ComputedField):
        return sql.holds(term)
    kind = sql.type
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    if isinstance(kind, Boolean):
        return None if term.truth is None else and_(sql.is_not(None), sql == term.truth)
    if isinstance(kind, (Integer, Float, Numeric)):
        return (
            None
            if term.number is None
            else and_(sql.is_not(None), COMPARISONS[term.sign](sql, to_exact_number(term.number)))
        )
    return make_text_condition(sql, term, dialect) if isinstance(kind, String) else None


def to_exact_number(number: float) -> int | float:
    """Return whole numbers below 2**53 as integers, so that SQL compares integer columns exactly."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def make_text_condition(sql: Any, term: Term, dialect: str) -> ColumnElement[bool]:
    """Return the SQL condition of a term on a column of text, with numbers in it compared as numbers. NULL never
    matches."""
    from sqlalchemy import and_, case, func, or_

    number = make_number_sql(sql, dialect) if term.number is not None else None
    if term.sign == ":":
        pattern = "%" + re.sub(r"([\\%_])", r"\\\1", term.value) + "%"
        # SQLite's LIKE knows no case already; lower() of both sides would take twice as long
        like = sql.like(pattern, escape="\\") if dialect == "sqlite" else sql.ilike(pattern, escape="\\")
        any_match = like if number is None else or_(like, func.coalesce(number == term.number, False))
        return func.coalesce(any_match, False)
    comparison = COMPARISONS[term.sign](func.lower(sql), term.value.lower())
    if number is not None:
        comparison = case((number.is_not(None), COMPARISONS[term.sign](number, term.number)), else_=comparison)
    return and_(sql.is_not(None), sql != "", comparison)


def make_number_sql(sql: Any, dialect: str) -> Any:
    """Return the SQL expression of the number at the start of a text (see NUMBER_PATTERN), or NULL."""
    from sqlalchemy import Float, Numeric, and_, case, cast, func, not_, or_

    def strip_marks(text: Any) -> Any:
        return func.replace(func.replace(text, ",", ""), "−", "-")

    half = (sql == "½", 0.5)
    if dialect == "postgresql":
        begins: Any = func.substring(sql, r"^[-+−]?(?!\d[\d,.]*[-:])\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d{1,4})?")
        return case(half, (begins.is_not(None), cast(strip_marks(begins), Numeric)), else_=None)
    bare = case((sql.op("GLOB")("[0-9]*"), sql), else_=func.substr(sql, 2))
    remainder = func.ltrim(bare, "0123456789,.")
    begins = or_(sql.op("GLOB")("[0-9]*"), sql.op("GLOB")("[-+−][0-9]*"))
    return case(half, (and_(begins, not_(remainder.op("GLOB")("[-:]*"))), cast(strip_marks(sql), Float)), else_=None)


def make_json_field(document: Any, name: str, dialect: str) -> ComputedField:
    """Return a value of a JSON column, whose type may differ between rows."""
    from sqlalchemy import Float, String, case, cast, false, func, type_coerce

    value: Any
    text: Any
    truths: tuple[str, ...]
    numbers: tuple[str, ...]
    if dialect == "postgresql":
        value = func.jsonb_extract_path(document, name)
        kind, text = func.jsonb_typeof(value), func.jsonb_extract_path_text(document, name)
        number: Any = case((kind == "number", cast(text, Float)))
        truths, numbers, is_true = ("boolean",), ("number",), text == "true"
        order = case((kind == "string", func.to_jsonb(func.lower(text))), else_=value)
    else:
        path = f'$."{name}"'
        value, kind = func.json_extract(document, path), func.json_type(document, path)
        text, number = type_coerce(value, String), type_coerce(value, Float)
        truths, numbers, is_true = ("true", "false"), ("integer", "real"), kind == "true"
        order = case((kind == "text", func.lower(text)), else_=value)

    def make_term_condition(term: Term) -> ColumnElement[bool]:
        is_truth = false() if term.truth is None else is_true == term.truth
        is_number = false() if term.number is None else COMPARISONS[term.sign](number, to_exact_number(term.number))
        return case(
            (kind.is_(None), false()), (kind.in_(truths), is_truth), (kind.in_(numbers), is_number),
            else_=func.coalesce(make_text_condition(text, term, dialect), False),
        )  # fmt: skip

    return ComputedField(make_term_condition, type_coerce(order, Float))


# -- Arrow ------------------------------------------------------------------------------------------------------------


def make_mask(view: View, array: Callable[[str], Any], rows: int, words: Sequence[Term] | None = None) -> Any:
    """Return which rows match all words (by default, the view's): a boolean array [rows].

    `array(field)` returns the Arrow array of a column.
    """
    import numpy as np
    import pyarrow.compute as pc

    mask = np.ones(rows, bool)
    for term in view.terms if words is None else words:
        fields = view.find_fields(term.field) if term.field else [column.field for column in view.columns]
        any_mask = np.zeros(rows, bool)
        for field in fields:
            matches = match_array(array(field), term)
            if matches is not None:
                any_mask |= np.asarray(pc.fill_null(matches, False))
        mask &= ~any_mask if term.absent else any_mask
    return mask


def match_array(array: Any, term: Term) -> Any:
    """Return a boolean Arrow array for one word and column, or None if the column cannot match."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array is None:
        return None
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    kind = array.type
    if pa.types.is_boolean(kind):
        return None if term.truth is None else pc.equal(array, term.truth)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        if term.number is None:
            return None
        compare = {">": pc.greater, ">=": pc.greater_equal, "<": pc.less, "<=": pc.less_equal}.get(term.sign, pc.equal)
        return compare(array.cast(pa.float64()), term.number)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        if pa.types.is_binary(kind) or pa.types.is_nested(kind):
            return None
        array = array.cast(pa.string())
    if term.sign == ":" and term.number is None:  # as text_holds, which takes 1.5 s for a million different texts
        return pc.match_substring(pc.utf8_lower(array), term.value.lower())
    encoded_array = pc.dictionary_encode(array)  # each different text is read once
    matches = [
        None if text is None else is_text_match(text, text, term) for text in encoded_array.dictionary.to_pylist()
    ]
    return pa.array(matches, pa.bool_()).take(encoded_array.indices)


def sort_indices(arrays: Any, descending: bool) -> Any:
    """Return the sorted order of a column: int64 [rows], stable, nulls last, texts case-insensitive."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(arrays.type) or pa.types.is_large_string(arrays.type):
        encoded_arrays = pc.dictionary_encode(arrays)
        arrays = (
            pc.rank(pc.utf8_lower(encoded_arrays.dictionary), tiebreaker="dense")
            .cast(pa.int32())
            .take(encoded_arrays.indices)
        )
    order = "descending" if descending else "ascending"
    return np.asarray(pc.array_sort_indices(arrays, order=order, null_placement="at_end")).view(np.int64)
