"""Compare the expected values of a good model with a paper's rows: the section `Reference result` of its report."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.papers.plan import Expectation, Finding
from chessreg.queries.render import write_file

if TYPE_CHECKING:
    from chessreg.papers.plan import CompleteSteps
    from chessreg.papers.work import Work

Row = Mapping[str, Any]
Judge = Callable[[Sequence[Row], "CompleteSteps"], Sequence[Finding]]
RESULT_FILE, RESULT_TITLE = "reference-result", "Reference result: expectations and outcomes"
OUTCOMES = ("met", "not decided", "missed", "not run")
HEADINGS = ("quantity", "expected", "what", "ours", "low", "high", "outcome", "query")


def make_column_judge(
    is_judged: Callable[[Row, CompleteSteps], bool],
    label: Callable[[Row], str],
    column: str,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Judge:
    """Return a judge of one column: rows that `is_judged` accepts must be within `minimum` and `maximum`. Without
    bounds they have no outcome.

    A statistic without an interval, such as that of one game, is not decided. Nor is a difference whose interval ends
    at 0: then more than one resample in forty has no game that differs, so at most three games do.
    """

    def judge(rows: Sequence[Row], steps: CompleteSteps) -> list[Finding]:
        findings = []
        for number, row in enumerate(rows, 1):
            if not is_judged(row, steps):
                continue
            value, low, high = (row.get(column + end) for end in ("", "_low", "_high"))
            outcome = judge_interval(value, low, high, minimum, maximum)
            unknown = value is not None and low is high is None and f"{column}_low" in row
            if outcome and (unknown or (value and 0.0 in (low, high))):
                outcome = "not decided"
            findings.append(Finding(label(row), value, low, high, outcome, number))
        return findings

    return judge


def judge_interval(
    value: float | None,
    low: float | None,
    high: float | None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> str:
    """Return the outcome of a value with its interval, or an empty text without bounds.

    An unknown end is the value. Without a value the outcome is `missed`.

    >>> judge_interval(0.3, 0.2, 0.4, minimum=0.25), judge_interval(0.3, 0.26, 0.4, minimum=0.25)
    ('not decided', 'met')
    >>> judge_interval(0.1, None, None, 0.0, 0.05)
    'missed'
    """
    if minimum is maximum is None:
        return ""
    if value is None:
        return "missed"
    low, high = value if low is None else low, value if high is None else high
    minimum, maximum = -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum
    if minimum <= low and high <= maximum:
        return "met"
    return "missed" if high < minimum or low > maximum else "not decided"


def combine_judges(*judges: Judge) -> Judge:
    """Return a judge with the findings of all `judges`."""
    return lambda rows, steps: [finding for judge in judges for finding in judge(rows, steps)]


def judge_expectation(work: Work, expectation: Expectation) -> list[tuple[Finding | None, str]]:
    """Return the findings of an expectation, each with the command that prints its rows.

    Without a run or a row there is one entry without a finding.
    """
    runs = work.list_run_ids(expectation.steps)
    if not runs:
        return [(None, "")]
    rows = work.session.query(expectation.query, run=tuple(runs)).rows
    command = f'chessreg query "{expectation.query}" {work.format_runs_option(expectation.steps)}'
    findings = expectation.judge(rows, work.complete_steps)
    return [(finding, f"{command} --rows {finding.row}") for finding in findings] or [(None, "")]


def write_reference_result(work: Work, folder: Path) -> tuple[int, tuple[str, ...], str]:
    """Write the report's section `Reference result` as Markdown and CSV, with values and intervals from queries.

    Returns its number of rows, its files, and the numbers of met and missed expectations.
    """
    lines: list[tuple[str, ...]] = []
    for expectation in work.paper.expectations:
        for finding, command in judge_expectation(work, expectation):
            if finding is None:
                lines.append((expectation.quantity, expectation.expected_range, "", "", "", "", "not run", ""))
                continue
            numbers = [format_short_number(number) for number in (finding.value, finding.low, finding.high)]
            lines.append(
                (expectation.quantity, expectation.expected_range, finding.what, *numbers, finding.outcome, command)
            )
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADINGS, *lines])
    write_file(folder / f"{RESULT_FILE}.csv", text.getvalue().encode())
    counts = {word: sum(line[6] == word for line in lines) for word in OUTCOMES}
    summary = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    page = [
        f"# {RESULT_TITLE}",
        "",
        f"{summary}. Intervals are 95 % by game; an outcome refers to the whole interval.",
        "",
    ]
    page += [format_markdown_row(HEADINGS), format_markdown_row(["---"] * len(HEADINGS))]
    page += [format_markdown_row([*line[:7], f"`{line[7]}`" if line[7] else ""]) for line in lines]
    write_file(folder / f"{RESULT_FILE}.md", ("\n".join(page) + "\n").encode())
    return len(lines), (f"{RESULT_FILE}.md", f"{RESULT_FILE}.csv"), summary


def format_short_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def format_markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
