"""`chessreg compare`: runs side by side, only what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home

if TYPE_CHECKING:
    from chessreg.queries.stats import Estimate

WIDEST = 48  # characters of one value


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option("--curves", "only", flag_value="curves", help="Metrics step by step instead.")
@click.option(
    "--machines", "only", flag_value="machines", help="The machines instead: what they are, how fast they were."
)
@json_option
@pass_home
def compare(home: Home, references: tuple[str, ...], only: str | None) -> None:
    """Compare runs: the settings, code and machines that differ, and each metric with its difference and interval.

    The pinned run among them is the baseline, else the first. A run alone is compared by its attempts, which after a
    merge may be of several machines.

    \b
    Example: chessreg compare plain weakened
    """
    from chessreg.queries.compare import compare as compared

    if only is not None:
        beside(home, references, only)
        return
    found = compared(fresh(home), list(references))
    if home.json:
        emit(home, found.as_dict())
        return
    labels = [subject.label for subject in found.subjects]
    if not found.differing:
        click.echo("nothing differs between their settings, code and machines", err=True)
    for group, rows in found.differing.items():
        click.echo(f"\n{group}")
        emit(home, [{"": key} | dict(zip(labels, map(shown, values), strict=True)) for key, values in rows.items()])
    if found.metrics:
        click.echo(f"\nmetrics, and differences from {labels[0]}")
        emit(home, [metric_row(labels, m.name, m.values, m.differences) for m in found.metrics])


def beside(home: Home, references: tuple[str, ...], what: str) -> None:
    """The curves or the machines of runs, side by side."""
    from chessreg.queries import compare

    with fresh(home).read() as session:
        subjects = compare.subjects_of(session, list(references))
        labels = [subject.label for subject in subjects]
        if what == "machines":
            rows = compare.machines(session, subjects)
            columns = ["label", "hosts", "cpu", "cores", "gpus", "torch", "python", "seconds", "units", "units_an_hour"]
            emit(home, rows if home.json else [{k: shown(v) for k, v in row.items()} for row in rows], columns)
            return
        curves = compare.curves(session, subjects)
    points = []
    for metric, parts in curves.items():
        values = [dict(part) for part in parts]
        for step in sorted(set().union(*values)):
            row = zip(labels, (part.get(step) for part in values), strict=True)
            points.append({"metric": metric, "step": step} | dict(row))
    emit(home, points)


def metric_row(
    labels: list[str], name: str, values: list[Estimate], differences: list[Estimate | None]
) -> dict[str, Any]:
    row: dict[str, Any] = {"metric": name}
    for number, (label, value, difference) in enumerate(zip(labels, values, differences, strict=True)):
        row[label] = value.written()
        if number:
            row[f"Δ {label}"] = difference.written("+") if difference else ""
    return row


def shown(value: Any) -> str:
    text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
