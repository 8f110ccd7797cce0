"""`chessreg runs`: list, show and annotate runs; `chessreg compare`: their differences."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import (
    Home,
    add_json_option,
    add_last_option,
    get_screen_width,
    open_with_waiting_results,
    pass_home,
    print_output,
    print_record,
    print_table,
)
from chessreg.cli.noun import get_headings, group_of
from chessreg.entities import load_entity
from chessreg.entities.run import format_run_progress
from chessreg.named import clip_text

if TYPE_CHECKING:
    from chessreg.queries.compare import Metric
    from chessreg.queries.stats import Estimate


RUN = load_entity("run")
runs = group_of("run")


@runs.command("list")
@click.argument("filter_words", metavar="[WORD...]", nargs=-1)
@click.option("--kind", help="List only runs of this kind. Left out: all kinds.")
@click.option("--all", "everything", is_flag=True, help="Include archived entries.")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort by name, units, tags, spec.SETTING, metric.NAME, …; -COLUMN sorts the largest first. Left out: "
    "by creation time.",
)
@add_last_option()
@add_json_option
@pass_home
def list_(
    home: Home, filter_words: tuple[str, ...], kind: str | None, everything: bool, sort: str | None, last: int
) -> None:
    """List runs, newest last, or the runs that match all the words. An id is shown by its last six digits.

    A word is searched in name, kind, tags, state, machine and id; ~word also matches with letters in between. kind:
    name: tag: state: machine: note: units: tries: created: completed: since: before: spec.SETTING: and metric.NAME:
    search one field; =, !=, <, <=, > and >= compare; !word excludes; starred, pinned, archived, invalid and stale are
    words too.

    \b
    Example: chessreg runs list kind:probe since:7d 'units>5' '!stale' --sort -spec.epochs
    """
    from chessreg.registry.run_filter import list_matching_runs

    with open_with_waiting_results(home).read() as session:
        rows = list_matching_runs(session, " ".join(filter_words), kind=kind, archived=everything, sort=sort or "")
    newest_ids = {row["id"] for row in sorted(rows, key=itemgetter("created_at"))[-last:]}
    rows = [row for row in rows if row["id"] in newest_ids]
    run_rows = (
        rows
        if home.json
        else [{**row, "progress": format_run_progress(row), "tags": " ".join(row["tags"])} for row in rows]
    )
    print_output(home, run_rows, get_headings(RUN))


@runs.command()
@click.argument("reference", metavar="[RUN]", required=False)
@add_json_option
@pass_home
def conflicts(home: Home, reference: str | None) -> None:
    """List results that arrived again with other values; the first values are used.

    \b
    Example: chessreg runs conflicts plain
    """
    from chessreg.registry import read

    with open_with_waiting_results(home).read() as session:
        rows = read.list_conflicts(session, reference)
    if not home.json:
        keys = {"attempt_id", "run_id"}
        for row in rows:
            row["key"] = " ".join(f"{name} {value}" for name, value in row["key"].items() if name not in keys)
            row["row"] = " ".join(f"{name}={value}" for name, value in row["row"].items() if name not in keys)[:100]
    print_output(home, rows, {"run": "run", "kind": "kind", "table_name": "what", "key": "which", "host": "from",
                      "row": "there", "found_at": "found"})  # fmt: skip


MAX_LABEL_WIDTH = 48  # characters of one value


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option("--curves", "only", flag_value="curves", help="Compare metrics step by step instead.")
@click.option("--machines", "only", flag_value="machines", help="Compare the machines and their speed instead.")
@add_json_option
@pass_home
def compare(home: Home, references: tuple[str, ...], only: str | None) -> None:
    """Compare runs: the settings, code and machines that differ, and each metric with its difference and interval.

    The pinned run is the baseline, else the first. A single run is compared by its attempts, which after a merge may
    come from several machines.

    \b
    Example: chessreg compare plain steered
    """
    from chessreg.queries.compare import compare_runs as compared

    if only is not None:
        print_side_by_side(home, references, only)
        return
    comparison = compared(open_with_waiting_results(home), list(references))
    if home.json:
        print_output(home, comparison.as_dict())
        return
    labels = [subject.label for subject in comparison.subjects]
    if not comparison.differences:
        click.echo("nothing differs between their settings, code and machines", err=True)
    headings = [f"{labels[0]} (baseline)", *labels[1:]]
    for group, rows in comparison.differences.items():
        click.echo(f"\n{group}")
        print_output(
            home,
            [{"": key} | dict(zip(headings, map(clip_fact, values), strict=True)) for key, values in rows.items()],
        )
    if comparison.metrics:
        click.echo(f"\nmetrics, and differences from {labels[0]}; rates are fractions of 1, losses are in nats")
        print_metrics(headings, comparison.metrics)
    for note in comparison.notes:
        click.echo(note, err=True)


def print_metrics(labels: list[str], metrics: list[Metric]) -> None:
    """Print metrics and differences, on a narrow terminal with three decimals, or else one metric after another:
    numbers are never shortened in the middle."""
    from chessreg.rows import format_rows
    from chessreg.text_table import measure_cell

    width = get_screen_width()
    for decimals in (None, 3):
        rows = [make_metric_row(labels, m.name, m.values, m.differences, decimals) for m in metrics]
        if width is None or max(map(measure_cell, format_rows(rows, {key: key for key in rows[0]})[0])) <= width:
            print_table(rows)
            return
    for number, metric in enumerate(metrics):
        click.echo("\n" * (number > 0), nl=False)
        print_record(make_metric_row(labels, metric.name, metric.values, metric.differences))


def print_side_by_side(home: Home, references: tuple[str, ...], table_name: str) -> None:
    """Print the machines of runs (`table_name` is `machines`) or their curves, side by side."""
    from chessreg.queries import compare

    with open_with_waiting_results(home).read() as session:
        subjects = compare.find_subjects(session, list(references))
        labels = [subject.label for subject in subjects]
        if table_name == "machines":
            rows = compare.read_machines(session, subjects)
            columns = ["label", "hosts", "cpu", "cores", "gpus", "torch", "python", "seconds", "units", "units_an_hour"]
            print_output(
                home,
                rows
                if home.json
                else [{k: v if isinstance(v, float) else clip_fact(v) for k, v in row.items()} for row in rows],
                columns,
            )
            return
        curves = compare.read_curves(session, subjects)
    points = []
    for metric, parts in curves.items():
        values = [dict(part) for part in parts]
        for step in sorted(set().union(*values)):
            row = zip(labels, (part.get(step) for part in values), strict=True)
            points.append({"metric": metric, "step": step} | dict(row))
    print_output(home, points)


def make_metric_row(
    labels: list[str],
    name: str,
    values: list[Estimate],
    differences: list[Estimate | None],
    decimals: int | None = None,
) -> dict[str, Any]:
    """Return a row of a comparison: each run's value, and after the first its difference from the first.

    `labels`, `values` and `differences` have one item per run. `decimals` defaults to what the interval supports.
    """
    row: dict[str, Any] = {"metric": name}
    for number, (label, value, difference) in enumerate(zip(labels, values, differences, strict=True)):
        row[label] = value.format_value(decimals=decimals)
        if number:
            row[f"Δ {label}"] = difference.format_value("+", decimals) if difference else ""
    return row


def clip_fact(value: Any) -> str:
    """Return a setting or a fact of a run as text in one cell."""
    from chessreg.queries.compare import format_fact

    return clip_text(format_fact(value), MAX_LABEL_WIDTH - 1)
