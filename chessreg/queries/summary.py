"""The statistics that a catalogue file declares, computed from its clusters and put beside its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from chessreg.errors import ChessregError
from chessreg.queries import stats
from chessreg.queries.buffers import doubles, lists, numbers
from chessreg.queries.stats import Clusters, Estimate

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.queries.catalogue import Entry


def _times_100(estimate: Estimate) -> Estimate:
    return Estimate(*(None if v is None else 100 * v for v in estimate))


FUNCTIONS: dict[str, tuple[Callable[..., Estimate], int]] = {  # and the decimals that its interval is kept to
    "score": (stats.rate, 6),
    "percent": (lambda *a: _times_100(stats.rate(*a)), 4),
    "elo": (lambda *a: stats.elo_of(stats.rate(*a)), 2),
    "score_difference": (stats.difference, 6),
    "percent_difference": (lambda *a: _times_100(stats.difference(*a)), 4),
    "mean": (stats.mean, 4),
    "mean_difference": (stats.mean_difference, 4),
    "median": (stats.median, 4),
    "elo_difference": (stats.elo_difference, 2),
}


def clusters_by_cell(clusters: pa.Table) -> dict[int, Clusters]:
    """The rows of a `clusters` statement (cell, counts…, clusters), by cell. A count that is a list has one value for
    each draw."""
    known = numbers(clusters["cell"])
    rows = np.flatnonzero(~np.isnan(known))
    rows = rows[np.argsort(known[rows], kind="stable")]
    cells, starts = np.unique(known[rows], return_index=True)
    counts = {}
    for name in clusters.column_names:
        if name not in ("cell", "clusters"):
            column = clusters[name]
            counts[name] = lists(column) if str(column.type).startswith("list") else numbers(column)  # NULL: NaN
    weights = numbers(clusters["clusters"])
    return {
        int(cell): Clusters({name: values[mine] for name, values in counts.items()}, weights[mine])
        for cell, mine in zip(cells, np.split(rows, starts[1:]), strict=False)  # no cell: nothing to pair
    }


def with_statistics(entry: Entry, table: pa.Table, clusters: pa.Table | None) -> pa.Table:
    """The table with name, name_low and name_high of every declared statistic, in the header's order of columns."""
    import pyarrow as pa

    by_cell = clusters_by_cell(clusters) if clusters is not None else {}
    columns = {name: table[name] for name in table.column_names}
    for statistic in entry.statistics:
        function, decimals = FUNCTIONS[statistic.function]
        made = [
            function(by_cell[cell], *statistic.arguments) if cell in by_cell else stats.UNKNOWN
            for cell in table["cell"].to_pylist()
        ]
        for place, suffix in enumerate(("", "_low", "_high")):
            values = [e[place] for e in made]
            if suffix:  # more would be noise of the machine's own rounding
                values = [None if v is None else round(v, decimals) for v in values]
            columns[statistic.name + suffix] = doubles(values)
    order = ordered(entry, columns)
    return pa.Table.from_arrays([columns[name] for name in order], names=order)


def ordered(entry: Entry, columns: dict[str, object]) -> list[str]:
    """The header's order, each statistic followed by its interval; `cell` first. Raises on a column left over."""
    made = {s.name for s in entry.statistics}
    order = ["cell"]
    for column in entry.columns:
        order += [column.name, f"{column.name}_low", f"{column.name}_high"] if column.name in made else [column.name]
    if set(order) != set(columns):
        odd = ", ".join(sorted(set(order) ^ set(columns)))
        raise ChessregError(f"{entry.path.name}: header and statements disagree about {odd}")
    return order
