"""`chessreg compare`: runs side by side, only what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh

if TYPE_CHECKING:
    from chessreg.queries.stats import Estimate

WIDEST = 48  # characters of one value


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@json_option
@pass_home
def compare(home: Home, references: tuple[str, ...]) -> None:
    """Compare runs: the settings, code and machines that differ, and each metric with its difference and interval.

    The pinned run among them is the baseline, else the first. A run alone is compared by its attempts, which after a
    merge may be of several machines.

    \b
    Example: chessreg compare plain weakened
    """
    from chessreg.queries.compare import compare as compared

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


def metric_row(
    labels: list[str], name: str, values: list[Estimate], differences: list[Estimate | None]
) -> dict[str, Any]:
    row: dict[str, Any] = {"metric": name}
    for number, (label, value, difference) in enumerate(zip(labels, values, differences, strict=True)):
        row[label] = interval(value)
        if number:
            row[f"Δ {label}"] = interval(difference, "+") if difference else ""
    return row


def interval(estimate: Estimate, sign: str = "") -> str:
    """A value with its interval; a bound on one side alone is written as such."""
    if estimate.value is None:
        return ""
    text = f"{estimate.value:{sign}.4g}"
    if estimate.low is None and estimate.high is None:
        return text
    low = "" if estimate.low is None else f"{estimate.low:{sign}.3g}"
    high = "" if estimate.high is None else f"{estimate.high:{sign}.3g}"
    return f"{text} [{low}, {high}]" if low and high else f"{text} [{'≥ ' + low if low else '≤ ' + high}]"


def shown(value: Any) -> str:
    text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
