"""The answer to a query: its rows, the meaning of its columns, and its provenance."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.queries.catalogue import Entry, QueryColumn

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class QueryResult:
    """The rows of an answer and their provenance.

    `meta` has the query, its hash, the scope, the registry's schema and data version, and row counts. `notes` are texts
    for the reader. `cells` numbers the groups of rows behind a catalogue table, one per row. `column_notes` have the
    meanings of the columns. `chosen_names` are the columns of `--show`, which are printed even if they are empty.
    """

    table: pa.Table
    meta: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    entry: Entry | None = None
    cells: list[int] | None = None
    column_notes: tuple[QueryColumn, ...] = ()
    chosen_names: frozenset[str] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The names of all columns, including hidden ones."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts; ids are 32 hex digits."""
        return self.table.to_pylist()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        """Return a pandas data frame; ids are 32 hex digits."""
        return self.table.to_pandas()

    def column(self, name: str) -> QueryColumn:
        """Return the meaning of a column; for the end of an interval, the meaning of its statistic."""
        columns = {column.name: column for column in self.column_notes}
        for suffix, text in (("_low", "lower"), ("_high", "upper")):
            stem = name.removesuffix(suffix)
            if stem != name and stem in self.intervals:
                base = columns.get(stem, QueryColumn(stem, "", ""))
                return replace(base, name=name, text=f"{text} end of the 95 % interval of {stem}")
        return columns.get(name, QueryColumn(name, "", ""))

    @property
    def intervals(self) -> frozenset[str]:
        """The columns that have an interval, in `_low` and `_high`."""
        names = set(self.columns)
        return frozenset(n for n in names if f"{n}_low" in names and f"{n}_high" in names)

    def select_columns(self, names: Sequence[str]) -> QueryResult:
        """Return the answer with only these columns, in this order, each with its interval. Hidden columns become
        visible.

        Raises BadInputError for an unknown column.
        """
        for name in names:
            if name not in self.columns:
                suggestions = difflib.get_close_matches(name, self.columns, n=1)
                hint = (
                    f"did you mean {suggestions[0]}?" if suggestions else f"the columns are {', '.join(self.columns)}"
                )
                raise BadInputError(f"column {name!r} does not exist", hint)
        ends = {name: [f"{name}_low", f"{name}_high"] if name in self.intervals else [] for name in names}
        kept_names = dict.fromkeys(column for name in names for column in (name, *ends[name]))
        columns = tuple(replace(c, hidden=c.hidden and c.name not in names) for c in self.column_notes)
        return replace(
            self, table=self.table.select(list(kept_names)), column_notes=columns, chosen_names=frozenset(names)
        )

    def get_cell(self, number: int) -> int:
        """Return the cell of row `number`, counted from 1. Raises BadInputError for a row that does not exist."""
        if self.cells is None or not 1 <= number <= len(self.cells):
            raise BadInputError(f"row {number} does not exist", f"the table has {len(self)} rows, counted from 1")
        return self.cells[number - 1]
