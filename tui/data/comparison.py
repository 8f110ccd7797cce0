"""A comparison of runs as tables of text and a chart for each curve; the numbers are those of `chessreg compare`."""

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


MOST_POINTS = 400  # of a curve that is drawn: more are averaged, neighbour with neighbour
FACTS = {
    "hosts": "machines", "platform": "platform", "cpu": "processor", "cores": "cores", "memory_bytes": "memory",
    "gpus": "GPUs", "driver": "driver", "cuda": "CUDA", "torch": "torch", "python": "Python", "attempts": "attempts",
    "seconds": "took", "units": "units done", "units_an_hour": "units an hour",
}  # fmt: skip


def value_key(subject: int) -> str:
    return f"c{2 * subject}"  # a cell: fields of a row go by its heading


def difference_key(subject: int) -> str:
    return f"c{2 * subject + 1}"


@dataclass(frozen=True)
class Compared:
    """Rows have a text for each subject under `value_key`; those of metrics also differences under `difference_key`.

    The first subject is the baseline. `curves` are charts by metric.
    """

    comparison: RunComparison
    pinned: bool
    labels: list[str]
    differing: list[Row]
    metrics: list[Row]
    machines: list[Row]
    curves: dict[str, Chart]

    @property
    def ids(self) -> list[UUID]:
        return [subject.run_id for subject in self.comparison.subjects]


def compared(session: Session, ids: Sequence[UUID], baseline: UUID | None = None) -> Compared:
    """Compare runs; `baseline` is looked at first, unless another of them is pinned.

    Raises BadInputError when one run of one attempt is to be compared with nothing.
    """
    from chessreg.queries import compare
    from tui.data.annotations import annotated

    ordered = sorted(ids, key=lambda id: id != baseline)
    comparison = compare.compare_runs(session.database, [id.hex for id in ordered])
    with session.database.read() as sql:
        curves = compare.read_curves(sql, comparison.subjects)
        machines = compare.read_machines(sql, comparison.subjects)
        pinned = comparison.subjects[0].run_id in annotated(sql, "run", "pin", ids)
    labels = [subject.label for subject in comparison.subjects]
    differing: list[Row] = [
        {"group": group, "what": what} | {value_key(n): text(value) for n, value in enumerate(values)}
        for group, rows in comparison.differing.items()
        for what, values in rows.items()
    ]
    metrics: list[Row] = [
        {"metric": metric.name, "curve": metric.name in curves}
        | {value_key(n): value.written() for n, value in enumerate(metric.values)}
        | {difference_key(n): value.written("+") if value else "" for n, value in enumerate(metric.differences) if n}
        for metric in comparison.metrics
    ]
    sides: list[Row] = [
        {"what": label} | {value_key(n): fact(machine, key) for n, machine in enumerate(machines)}
        for key, label in FACTS.items()
    ]
    charts = {name: chart(name, labels, parts) for name, parts in curves.items()}
    return Compared(comparison, pinned, labels, differing, metrics, sides, charts)


def text(value: Any) -> str:
    return "—" if value is None else show.value(value)


def fact(machine: dict[str, Any], key: str) -> str:
    """What a machine is, as people write it."""
    value = machine[key]
    if value is None:
        return "—"
    if key in ("hosts", "gpus"):
        return ", ".join(show.host(host) if key == "hosts" else str(host) for host in value) or "none"
    if key == "memory_bytes":
        return f"{value / 2**30:.1f} GiB"
    if key == "seconds":
        return show.duration(value)
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def chart(metric: str, labels: Sequence[str], parts: Sequence[Sequence[tuple[int, float]]]) -> Chart:
    """The curves of a metric over each other."""
    series = [
        Series(label, tuple(Point(step, value, text=f"{value:.4g}") for step, value in thinned(part)))
        for label, part in zip(labels, parts, strict=True)
        if part
    ]
    x = "square, a1 to h8" if "_square_accuracy" in metric else "step"
    return Chart(metric, x, metric, (Panel("", tuple(series)),))


def thinned(curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS of a curve: each the mean of its neighbours; the last point stays what it is."""
    size = -(-len(curve) // MOST_POINTS)
    if size <= 1:
        return list(curve)
    parts = [curve[start : start + size] for start in range(0, len(curve), size)]
    means = [(part[len(part) // 2][0], sum(value for _, value in part) / len(part)) for part in parts]
    return [*means[:-1], curve[-1]]


def nothing() -> Chart:
    return Chart("no curves", "step", "", (Panel("none of these runs has a metric of several steps", ()),))
