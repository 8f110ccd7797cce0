"""A comparison of runs as tables of text and one chart per curve, with the numbers of `chessreg compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.entities.display import Chart, Panel, Point, Series
from tui import show
from tui.data.pages import Row

if TYPE_CHECKING:
    from chessreg.queries.compare import RunComparison
    from chessreg.session import Session


MAX_CURVE_POINTS = 400  # of a curve that is drawn: more are averaged, neighbour with neighbour
MACHINE_FACT_LABELS = {
    "hosts": "machines", "platform": "platform", "cpu": "processor", "cores": "cores", "memory_bytes": "memory",
    "gpus": "GPUs", "driver": "driver", "cuda": "CUDA", "torch": "torch", "python": "Python", "attempts": "attempts",
    "seconds": "took", "units": "units done", "units_an_hour": "units an hour",
}  # fmt: skip


def make_value_key(subject: int) -> str:
    """Return the field of the value of the run number `subject` in a row of a comparison."""
    return f"c{2 * subject}"  # a cell: fields of a row go by its heading


def make_difference_key(subject: int) -> str:
    """Return the field of the difference from the baseline of the run number `subject`."""
    return f"c{2 * subject + 1}"


@dataclass(frozen=True)
class ComparisonTables:
    """A comparison of runs as the screen shows it.

    `differing`, `metrics` and `machines` are table rows with one text per run, under `make_value_key`. The rows of
    `metrics` also contain the difference from the baseline, under `make_difference_key`. The first run is the baseline.
    `curves` maps each metric to its chart.
    """

    comparison: RunComparison
    pinned: bool
    labels: list[str]
    differing_rows: list[Row]
    metrics: list[Row]
    machines: list[Row]
    curves: dict[str, Chart]

    def count_curves(self, metric: str) -> int:
        """Return the number of runs that have a curve of the metric."""
        return sum(len(panel.series) for panel in self.curves[metric].panels)

    @property
    def ids(self) -> list[UUID]:
        return [subject.run_id for subject in self.comparison.subjects]


def load_comparison(session: Session, ids: Sequence[UUID], baseline: UUID | None = None) -> ComparisonTables:
    """Compare runs. The baseline is the pinned run, otherwise `baseline`.

    Raises BadInputError for a single run with one attempt.
    """
    from chessreg.queries import compare
    from tui.data.annotations import find_annotated

    sorted_ids = sorted(ids, key=lambda id: id != baseline)
    comparison = compare.compare_runs(session.database, [id.hex for id in sorted_ids])
    with session.database.read() as sql:
        curves = compare.read_curves(sql, comparison.subjects)
        machines = compare.read_machines(sql, comparison.subjects)
        is_pinned = comparison.subjects[0].run_id in find_annotated(sql, "run", "pin", ids)
    labels = [subject.label for subject in comparison.subjects]
    differing_rows: list[Row] = [
        {"group": group, "what": fact}
        | {make_value_key(n): "—" if value is None else show.format_cell_value(value) for n, value in enumerate(values)}
        for group, rows in comparison.differences.items()
        for fact, values in rows.items()
    ]
    metrics: list[Row] = [
        {"metric": metric.name, "curve": metric.name in curves}
        | {make_value_key(n): value.format_value() for n, value in enumerate(metric.values)}
        | {
            make_difference_key(n): value.format_value("+") if value else ""
            for n, value in enumerate(metric.differences)
            if n
        }
        for metric in comparison.metrics
    ]
    sides: list[Row] = [
        {"what": label} | {make_value_key(n): format_machine_fact(machine, key) for n, machine in enumerate(machines)}
        for key, label in MACHINE_FACT_LABELS.items()
    ]
    charts = {name: make_metric_chart(name, labels, parts) for name, parts in curves.items()}
    return ComparisonTables(comparison, is_pinned, labels, differing_rows, metrics, sides, charts)


def format_machine_fact(machine: dict[str, Any], key: str) -> str:
    """Return one property of a machine as text, with its unit."""
    value = machine[key]
    if value is None:
        return "—"
    if key in ("hosts", "gpus"):
        return ", ".join(show.format_host(host) if key == "hosts" else str(host) for host in value) or "none"
    if key == "memory_bytes":
        return f"{value / 2**30:.1f} GiB"
    if key == "seconds":
        return show.format_seconds(value)
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def make_metric_chart(metric: str, labels: Sequence[str], parts: Sequence[Sequence[tuple[int, float]]]) -> Chart:
    """Return a chart with one curve of the metric per run."""
    series = [
        Series(label, tuple(Point(step, value, text=f"{value:.4g}") for step, value in average_points(part)))
        for label, part in zip(labels, parts, strict=True)
        if part
    ]
    x = "square, a1 to h8" if "_square_accuracy" in metric else "step"
    return Chart(metric, x, metric.partition(",")[0], (Panel("", tuple(series)),))


def average_points(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Reduce a curve to at most MAX_CURVE_POINTS points by averaging neighbors. The last point is kept unchanged."""
    size = -(-len(curve) // MAX_CURVE_POINTS)
    if size <= 1:
        return list(curve)
    parts = [curve[start : start + size] for start in range(0, len(curve), size)]
    point_means = [(part[len(part) // 2][0], sum(value for _, value in part) / len(part)) for part in parts]
    return [*point_means[:-1], curve[-1]]


def make_empty_chart() -> Chart:
    return Chart("no curves", "step", "", (Panel("no metric of these runs has several steps", ()),))
