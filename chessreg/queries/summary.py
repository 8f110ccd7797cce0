"""The statistics that a catalogue file declares, computed from its clusters and added to its table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import ChessregError
from chessreg.queries import significance, stats
from chessreg.queries.stats import Clusters, Estimate

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.queries.catalogue import DeclaredStatistic, Entry


def _convert_to_percent(estimate: Estimate) -> Estimate:
    return Estimate(*(None if v is None else 100 * v for v in estimate))


FUNCTIONS: dict[str, tuple[Callable[..., Estimate], int]] = {  # and the decimals of its interval
    "score": (stats.estimate_rate, 6),
    "percent": (lambda *a: _convert_to_percent(stats.estimate_rate(*a)), 4),
    "elo": (lambda *a: stats.estimate_elo(stats.estimate_rate(*a)), 2),
    "score_difference": (stats.estimate_rate_difference, 6),
    "percent_difference": (lambda *a: _convert_to_percent(stats.estimate_rate_difference(*a)), 4),
    "mean": (stats.estimate_mean, 4),
    "exp_mean": (stats.estimate_exp_mean, 4),
    "mean_difference": (stats.estimate_mean_difference, 4),
    "median": (stats.estimate_median, 4),
    "elo_difference": (stats.estimate_elo_difference, 2),
}
FEW_CLUSTERS = 20  # below this number of clusters, most resampled intervals are too narrow
FEW = "few_clusters"  # column of a table that is not shown: 1 if an interval of the row rests on fewer clusters, else 0
FEW_CLUSTERS_NOTE = (
    f"95 % intervals from fewer than {FEW_CLUSTERS} games, openings or positions are too narrow: at 8, about 90 % "
    "contain the true value"
)
SINGLE_TRIALS = "score", "percent", "elo"  # functions whose intervals hold for few clusters of one trial each
NOT_OF_TOTALS = ("median",)  # functions that resample clusters, but not the totals of their counts
PLAIN: dict[str, Callable[..., float | None]] = {  # a number without an interval
    "welch_log10_p": significance.compute_welch_log10_p,
    "paired_log10_p": significance.compute_paired_log10_p,
    "cohens_d": significance.compute_cohens_d_of_clusters,
}
CORRECTIONS: dict[str, Callable[[Sequence[float | None]], list[float | None]]] = {
    # of a table column; rows with equal values in the further arguments are one family
    "holm": significance.adjust_holm,
    "holm_log10": significance.adjust_holm_log10,
}


def to_vector(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers as float64 [n], NaN for NULL. Avoids Arrow's conversion, which imports pandas."""
    values, kind = column.combine_chunks(), np.dtype(column.type.to_pandas_dtype())
    if not len(values) or kind.kind not in "iuf":
        return np.array(values.to_pylist(), np.float64)
    valid, data = values.buffers()
    vector = np.frombuffer(data, kind, len(values), kind.itemsize * values.offset).astype(np.float64)
    if values.null_count:
        bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
        vector[bits[values.offset :][: len(values)] == 0] = math.nan
    return vector


def to_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of lists of numbers as float64 [n, length of the longest], NaN for NULL and past a list's end."""
    rows = [row or [] for row in column.to_pylist()]
    padded_rows = list(zip_longest(*rows, fillvalue=math.nan))
    return np.array(padded_rows, np.float64).reshape(len(padded_rows), len(rows)).T


def to_doubles(values: Sequence[float | None]) -> pa.Array:
    """Return float64 [n] with NULL for None. Avoids `pyarrow.array`, which imports pandas (0.3 s)."""
    import pyarrow as pa

    valid = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
    data = np.array([0.0 if value is None else value for value in values], np.float64)
    return pa.Array.from_buffers(pa.float64(), len(data), [pa.py_buffer(valid), pa.py_buffer(data)])


def group_clusters(clusters: pa.Table) -> dict[int, Clusters]:
    """Return cell → its clusters, from the answer of a statement `clusters`.

    The columns are `cell`, counts (a number, or a list with one per draw; NULL becomes NaN) and `clusters`, the number
    of clusters with these counts.
    """
    cell_numbers = to_vector(clusters["cell"])
    rows = np.flatnonzero(~np.isnan(cell_numbers))
    rows = rows[np.argsort(cell_numbers[rows], kind="stable")]
    cells, starts = np.unique(cell_numbers[rows], return_index=True)
    counts = {}
    for name in clusters.column_names:
        if name not in ("cell", "clusters"):
            column = clusters[name]
            counts[name] = to_matrix(column) if str(column.type).startswith("list") else to_vector(column)  # NULL: NaN
    weights = to_vector(clusters["clusters"])
    return {
        int(cell): Clusters({name: values[cell_rows] for name, values in counts.items()}, weights[cell_rows])
        for cell, cell_rows in zip(
            cells, np.split(rows, starts[1:]), strict=False
        )  # without cells there is nothing to pair
    }


def rests_on_few_clusters(statistic: DeclaredStatistic, clusters: Clusters) -> bool:
    """Return whether the interval of a statistic rests on 2 to FEW_CLUSTERS - 1 clusters and is therefore too narrow.

    The intervals of shares are exempt if each cluster has a single trial, as in scores of games: they are Wilson's if
    the resamples reach 0 or 1.
    """
    counts = clusters.select_counts(*statistic.arguments)
    if not 1 < counts.number < FEW_CLUSTERS:
        return False
    if statistic.function in SINGLE_TRIALS:
        hits, trials = (counts.counts[name] for name in statistic.arguments)
        return bool((trials > 1).any() or (2 * hits % 1 != 0).any())
    return True


def list_added_columns(statistic: DeclaredStatistic) -> tuple[str, ...]:
    """Return the columns that a statistic adds: its value, and the ends of its interval if it has one."""
    name = statistic.name
    return (name, f"{name}_low", f"{name}_high") if statistic.function in FUNCTIONS else (name,)


def add_statistics(entry: Entry, table: pa.Table, clusters: pa.Table | None) -> pa.Table:
    """Return the table with every declared statistic and its interval, in the header's column order, and FEW."""
    cell_clusters = group_clusters(clusters) if clusters is not None else {}
    return attach_statistics(entry, table, estimate_by_cell(entry, cell_clusters, table["cell"].to_pylist()))


def estimate_by_cell(
    entry: Entry, cell_clusters: Mapping[int, Clusters], cells: Sequence[int]
) -> dict[int, dict[str, float | None]]:
    """Return cell → the value of each column that its clusters determine, for those of these cells that have any."""
    cell_clusters = {cell: cell_clusters[cell] for cell in cells if cell in cell_clusters}
    statistics = [statistic for statistic in entry.statistics if statistic.function not in CORRECTIONS]
    stats.resample_together(
        clusters.select_counts(*statistic.arguments)
        for statistic in statistics
        if statistic.function in FUNCTIONS and statistic.function not in NOT_OF_TOTALS
        for clusters in cell_clusters.values()
    )
    return {cell: estimate_cell(statistics, clusters) for cell, clusters in cell_clusters.items()}


def estimate_cell(statistics: Sequence[DeclaredStatistic], clusters: Clusters) -> dict[str, float | None]:
    """Return the value of each column that a cell's clusters determine, and of FEW."""
    row: dict[str, float | None] = {}
    few = False
    for statistic in statistics:
        values = estimate_statistic(statistic, clusters)
        row |= zip(list_added_columns(statistic), values, strict=True)
        few |= statistic.function in FUNCTIONS and None not in values and rests_on_few_clusters(statistic, clusters)
    return row | {FEW: float(few)}


def estimate_statistic(statistic: DeclaredStatistic, clusters: Clusters) -> list[float | None]:
    """Return the values of a statistic's columns from a cell's clusters."""
    if statistic.function in PLAIN:
        return [PLAIN[statistic.function](clusters, *statistic.arguments)]
    function, decimals = FUNCTIONS[statistic.function]
    value, *ends = function(clusters, *statistic.arguments)  # further decimals are rounding noise of the machine
    return [value, *(None if end is None else round(end, decimals) for end in ends)]


def attach_statistics(entry: Entry, table: pa.Table, estimates: Mapping[int, Mapping[str, float | None]]) -> pa.Table:
    """Return the table with the estimates of its cells and the statistics of its columns, in the header's order. The
    last column is FEW."""
    import pyarrow as pa

    cells = table["cell"].to_pylist()
    columns = {name: table[name] for name in table.column_names}
    for statistic in entry.statistics:
        if statistic.function in CORRECTIONS:
            columns[statistic.name] = to_doubles(correct_statistic(statistic, columns))
        else:
            for column in list_added_columns(statistic):
                columns[column] = to_doubles([estimates.get(cell, {}).get(column) for cell in cells])
    order = order_result_columns(entry, columns)
    columns[FEW] = to_doubles([estimates.get(cell, {}).get(FEW, 0.0) for cell in cells])
    order.append(FEW)
    return pa.Table.from_arrays([columns[name] for name in order], names=order)


def correct_statistic(
    statistic: DeclaredStatistic, columns: Mapping[str, pa.ChunkedArray | pa.Array]
) -> list[float | None]:
    """Return the corrected values of a table column, from the columns computed so far."""
    p, *kin = (columns[column].to_pylist() for column in statistic.arguments)
    groups: dict[tuple[object, ...], list[int]] = {}
    for row in range(len(p)):
        groups.setdefault(tuple(values[row] for values in kin), []).append(row)
    corrected_p: list[float | None] = [None] * len(p)
    for rows in groups.values():
        for row, value in zip(rows, CORRECTIONS[statistic.function]([p[row] for row in rows]), strict=True):
            corrected_p[row] = value
    return corrected_p


def estimate_by_part(entry: Entry, clusters: pa.Table) -> pa.Table:
    """Return the columns that clusters determine, one row for each `part` and `number` of the clusters, ordered by
    these."""
    import pyarrow as pa

    keys, cells = number_part_cells(clusters)
    estimates = estimate_by_cell(entry, group_clusters(cells), range(len(keys)))
    names = [name for s in entry.statistics if s.function not in CORRECTIONS for name in list_added_columns(s)] + [FEW]
    columns: dict[str, Any] = {
        "part": pa.array([part for part, _ in keys], pa.string()),
        "number": pa.array([number for _, number in keys], pa.int64()),
    }
    columns |= {name: to_doubles([estimates[cell][name] for cell in range(len(keys))]) for name in names}
    return pa.table(columns)


def number_part_cells(clusters: pa.Table) -> tuple[list[tuple[str, int]], pa.Table]:
    """Return the distinct parts and numbers of clusters in order, and the clusters with their place in it as `cell`."""
    import pyarrow as pa

    parts = clusters["part"].combine_chunks().dictionary_encode()
    labels = parts.dictionary.to_pylist()
    ranks = {label: rank for rank, label in enumerate(sorted(labels))}
    numbers = to_vector(clusters["number"]).astype(np.int64)
    places = np.array([ranks[label] for label in labels], np.int64)
    width = int(numbers.max(initial=0)) + 1
    codes = places[to_vector(pa.chunked_array([parts.indices])).astype(np.int64)] * width + numbers
    group_codes, cells = np.unique(codes, return_inverse=True)
    column = pa.Array.from_buffers(pa.int64(), len(cells), [None, pa.py_buffer(cells.astype(np.int64))])
    keys = [(sorted(labels)[code // width], code % width) for code in group_codes.tolist()]
    return keys, clusters.drop_columns(["part", "number"]).append_column("cell", column)


def match_cells(numbers: pa.Table, cell_numbers: pa.Table) -> dict[int, dict[str, float | None]]:
    """Return cell → its estimates. `cell_numbers` has the part and number of each cell."""
    cells = {(row["part"], row["number"]): row["cell"] for row in cell_numbers.to_pylist()}
    estimates_by_key = {(row.pop("part"), row.pop("number")): row for row in numbers.to_pylist()}
    return {cell: estimates_by_key[key] for key, cell in cells.items() if key in estimates_by_key}


def order_result_columns(entry: Entry, columns: Mapping[str, object]) -> list[str]:
    """Return the header's column order, each statistic followed by its interval; `cell` first.

    Raises ChessregError for a column that the header lacks.
    """
    added_columns = {s.name: list_added_columns(s) for s in entry.statistics}
    order = ["cell", *(name for column in entry.columns for name in added_columns.get(column.name, (column.name,)))]
    if set(order) != set(columns):
        odd = ", ".join(sorted(set(order) ^ set(columns)))
        raise ChessregError(f"{entry.path.name}: header and statements disagree about {odd}")
    return order
