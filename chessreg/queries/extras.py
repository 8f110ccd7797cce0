"""Extra columns of results, taken out of the JSON column `detail` once, not by every expression that names them.

Beside every result table is a relation, `trial_with_extras` of `trial`, on which the views of kinds rest. Its further
columns are named after what they hold: `kl DOUBLE` is what the JSON has as "kl", as a double; NULL where it is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from chessreg.queries import duck

if TYPE_CHECKING:
    import pyarrow as pa

DETAIL = "detail"
SUFFIX = "_with_extras"
PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
TYPES = ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")  # that an extra column may have


def relation(table: str) -> str:
    return table + SUFFIX


def column(name: str, type_: str) -> str | None:
    """The extra column of this value; None if it stays in the JSON: an object or list, or under a name that needs
    quotes or may differ from another's in case.

    >>> column("kl", "DOUBLE"), column("KL", "DOUBLE"), column("scales", "JSON")
    ('kl DOUBLE', None, None)
    """
    return f"{name} {type_}" if PLAIN.fullmatch(name) and type_ in TYPES else None


def type_of(column: str) -> str:
    return column.rpartition(" ")[2]


def among(columns: Iterable[str]) -> list[str]:
    """The extra columns among those of a result table, in the order of their names."""
    return sorted(column for column in columns if " " in column)


class Extractor:
    """Takes extra columns out of JSON: DuckDB reads a row's JSON once for all of them. For one thread."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        paths = ", ".join(f"""'$."{column.rpartition(" ")[0]}"'""" for column in columns)
        values = ", ".join(
            f'TRY_CAST(found[{place}] AS {type_of(column)}) AS "{column}"' for place, column in enumerate(columns, 1)
        )
        found = f"json_extract_string(TRY_CAST({DETAIL} AS JSON), [{paths}]) AS found"
        self._select = f"SELECT {values} FROM (SELECT {found} FROM details)"
        self._connection = duck.aside().cursor() if columns else None

    def beside(self, rows: pa.Table) -> pa.Table:
        """Rows that have a column `detail`, with the extra columns beside theirs."""
        if self._connection is not None:
            with duck.explained():
                details = self._connection.from_arrow(rows.select([DETAIL]))
                made = duck.arrow_table(details.query("details", self._select))
            for name in self.columns:
                rows = rows.append_column(name, made[name])
        return rows

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def without_values(rows: pa.Table) -> pa.Table:
    """Rows whose extra columns without any value take no room: of all kinds' columns a run has those of one."""
    import pyarrow as pa

    for name in among(rows.column_names):
        if rows[name].null_count == rows.num_rows:
            rows = rows.set_column(rows.column_names.index(name), name, pa.nulls(rows.num_rows))
    return rows


def with_values(rows: pa.Table) -> pa.Table:
    """What `without_values` took, with its columns' types."""
    import pyarrow as pa

    types = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "VARCHAR": pa.string()}
    for place, field in enumerate(rows.schema):
        if pa.types.is_null(field.type):
            type_ = types[type_of(field.name)]
            rows = rows.set_column(place, field.name, pa.chunked_array([pa.nulls(rows.num_rows, type_)]))
    return rows
