"""Write a paper's tables and figures: Markdown and CSV of every sheet with the paper's numbers, plots as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.named import format_count
from chessreg.papers import expected
from chessreg.papers.parts import describe_shared_games
from chessreg.papers.plan import is_any_match
from chessreg.queries.render import write_file
from chessreg.queries.scope import Scope
from store.files import describe_os_error

if TYPE_CHECKING:
    from chessreg.papers.plan import Picture, Request, Sheet
    from chessreg.papers.work import Work
    from chessreg.queries.result import QueryResult


@dataclass(frozen=True)
class ReportEntry:
    """One written sheet or picture: its number of rows, its files, and the command that writes it again."""

    title: str
    rows: int | None  # None of a picture
    files: tuple[str, ...]
    command: str
    notes: tuple[str, ...] = ()


def write_report(work: Work, folder: Path) -> list[ReportEntry]:
    """Write every sheet and picture whose runs are complete, and index.md, into `folder` (created if missing).

    Returns the written sheets and pictures.

    Raises BadInputError if the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"cannot make {folder}: {describe_os_error(error)}") from error
    sheets = [sheet for sheet in work.paper.sheets if has_complete_run(work, sheet)]
    entries = [write_sheet(work, sheet, scoring, folder) for sheet in sheets for scoring in sheet.scorings]
    pictures = [picture for picture in work.paper.pictures if work.references.keys() >= set(picture.after)]
    entries += [draw_picture(work, picture, folder) for picture in pictures]
    if work.paper.expectations:
        rows, files, summary = expected.write_reference_result(work, folder)
        command = f"{format_paper_command(work.paper.name, work.request)} --report"
        entries.append(ReportEntry(expected.RESULT_TITLE, rows, files, command, (summary,)))
    write_file(folder / "index.md", format_index(work, entries).encode())
    return entries


def has_complete_run(work: Work, sheet: Sheet) -> bool:
    """Return whether any run of a sheet is complete."""
    return bool(work.list_run_ids(sheet.steps)) if sheet.steps else work.has_run(sheet.choices)


def write_sheet(work: Work, sheet: Sheet, scoring: str, folder: Path) -> ReportEntry:
    """Write one sheet with the points per game of one scoring policy.

    Writes Markdown, CSV and plots, and for published tables a page that compares both.
    """
    from chessreg.queries import render
    from chessreg.queries.ask import run_query

    session, stem = work.session, sheet.file if scoring == "paper" else f"{sheet.file}-{scoring}"
    result = run_query(session.database, sheet.query, build_sheet_scope(work, sheet), scoring=scoring)
    title = sheet.title if scoring == "paper" else f"{sheet.title}, scoring {scoring}"
    command = format_sheet_command(work, sheet, scoring)
    files = [f"{stem}.md", f"{stem}.csv"]
    write_file(folder / files[0], format_page(result, title, command).encode())
    render.write_result(result, folder / files[1])
    if sheet.has_published:
        files += write_published_page(work, sheet, result, title, stem, folder)
    figures, empty = write_sheet_plots(work, sheet, scoring, stem, folder) if len(result) else ([], [])
    return ReportEntry(title, len(result), (*files, *figures), command, (*result.notes, *empty))


def format_page(result: QueryResult, title: str, command: str, with_published: bool = False) -> str:
    """Return a Markdown page with one table, and how to print the rows that its cells are computed from.

    `command` is the command that repeats the query. With `with_published`, the table has the paper's numbers next to
    ours.
    """
    from chessreg.queries import render

    rows_text = "The rows behind `ours` where `our row` is N" if with_published else "The rows behind row N"
    trace_text = (
        f"{rows_text} (games, trials or scores, each with its run and unit):\n\n    {command} --rows N\n\n"
        "`chessreg board RUN:UNIT` draws one of them, `chessreg reproduce RUN` prints the commands that repeat the "
        f"run, and `{command} --columns` explains the columns.\n"
    )
    notes = "".join(f"- {render.escape_markdown(note)}\n" for note in result.notes)
    return "\n".join(
        [f"# {title}\n", render.format_markdown(result, is_numbered=not with_published), trace_text,
         *([notes] if notes else []), render.format_provenance(result) + "\n"]
    )  # fmt: skip


def draw_picture(work: Work, picture: Picture, folder: Path) -> ReportEntry:
    """Draw one picture, or report the reason why it cannot be drawn."""
    file = f"{picture.file}.svg"
    try:
        command = picture.draw(work.complete_steps, folder / file)
    except ChessregError as error:
        return ReportEntry(picture.title, None, (), "", (f"not drawn: {error.message}",))
    return ReportEntry(picture.title, None, (file,), command)


def build_sheet_scope(work: Work, sheet: Sheet) -> Scope:
    """Return the scope of a sheet: its runs, and its condition on rows."""
    if sheet.covers_model:
        return Scope(checkpoint=(work.request.checkpoint,), where=sheet.row_filter)
    if sheet.steps:
        return Scope(run=tuple(work.list_run_ids(sheet.steps)), where=sheet.row_filter)
    return Scope(tag=(work.get_tag(sheet.choices),), where=sheet.row_filter)


def write_published_page(
    work: Work, sheet: Sheet, result: QueryResult, title: str, stem: str, folder: Path
) -> list[str]:
    """Write the paper's numbers next to those of `result` as `STEM-published.md` and `.csv` in `folder`, under the
    heading `title`. Return both names, or [] if the paper has no such numbers."""
    from chessreg.queries import render
    from chessreg.queries.published import compare_with_published, drop_unmatched

    try:
        comparison = compare_with_published(work.session.database, result, sheet.tables)
    except NotFoundError:
        return []
    command = format_sheet_command(work, sheet, result.meta.get("scoring", "paper"))
    text = format_page(
        drop_unmatched(comparison), f"{title}: the paper's numbers and ours", command, with_published=True
    )
    write_file(folder / f"{stem}-published.md", text.encode())
    render.write_result(comparison, folder / f"{stem}-published.csv")
    return [f"{stem}-published.md", f"{stem}-published.csv"]


def write_sheet_plots(work: Work, sheet: Sheet, scoring: str, stem: str, folder: Path) -> tuple[list[str], list[str]]:
    """Write the plots of a sheet, with the points per game of `scoring`, to `folder` as files that begin with `stem`.
    Return their names, and the reason for each plot without a point."""
    from chessreg.queries import plot
    from chessreg.queries.ask import query_plot_rows
    from chessreg.queries.catalogue import find_plot

    files, empty = [], []
    for number, title in enumerate(sheet.plots):
        entry, plot_name = find_plot(title)
        result = query_plot_rows(
            work.session.database, entry, plot_name, build_sheet_scope(work, sheet), scoring=scoring
        )
        try:
            figure = plot.draw_figure(result, plot_name)
        except BadInputError as error:
            empty.append(": ".join(filter(None, (f"no plot: {error.message}", error.hint))))
            continue
        name = f"{stem}{f'-{number + 1}' if number else ''}.svg"
        plot.write_figure(figure, folder / name)
        files.append(name)
    return files, empty


def format_sheet_command(work: Work, sheet: Sheet, scoring: str) -> str:
    """Return the command that prints this sheet."""
    import shlex

    row_filter = f" --where {shlex.quote(sheet.row_filter)}" if sheet.row_filter else ""
    policy = f" --scoring {scoring}" if scoring != "paper" else ""
    scope = f"--checkpoint {work.request.checkpoint}" if sheet.covers_model else f"--tag {work.get_tag(sheet.choices)}"
    if sheet.steps:
        scope = work.format_runs_option(sheet.steps)
    return f'chessreg query "{sheet.query}" {scope}{row_filter}{policy}'


def format_paper_command(name: str, request: Request) -> str:
    """Return the command that does a paper on the models and data of a request."""
    import shlex

    option_values: list[tuple[str, str | None]] = [
        ("--checkpoint", request.checkpoint),
        ("--sae", request.sae),
        *(("--beside", other) for other in request.other_models),
        ("--position-dataset", request.positions),
        ("--puzzle-dataset", request.puzzles),
        *(("--language-model", model.text) for model in request.language_models),
        ("--dataset", request.fit),
        ("--test", None if request.test == request.fit else request.test),
        ("--size", request.size),
    ]
    options = " ".join(f"{option} {shlex.quote(value)}" for option, value in option_values if value)
    return f"chessreg paper {name} {options}"


def describe_missing_steps(work: Work) -> list[str]:
    """Return the lines about incomplete steps that begin the report of an unfinished paper."""
    missing_steps = [step for step in work.steps if step.name not in work.references | work.refusal_reasons]
    if not missing_steps:
        return []
    purposes = dict.fromkeys(step.purpose for step in missing_steps)
    return [
        f"**Not complete: {len(missing_steps)} of {len(work.steps)} steps are not done.** Unfinished: "
        f"{'; '.join(purposes)}. `{format_paper_command(work.paper.name, work.request)}` continues.",
        "",
    ]


def describe_left_out_sheets(work: Work) -> list[str]:
    """Return a line that names the sheets for which a size has no step."""
    names = [step.name for step in work.all_steps]
    omitted_sheets = [
        sheet.title
        for sheet in work.paper.sheets
        if sheet.steps and not any(is_any_match(n, sheet.steps) for n in names)
    ]
    return [f"Size {work.request.size} leaves out: {'; '.join(omitted_sheets)}.", ""] if omitted_sheets else []


def describe_request(request: Request) -> str:
    """Return the models and datasets of a request as one line."""
    if request.checkpoint:
        return f"Checkpoint {request.checkpoint}"
    return f"Positions {request.positions}" + (f", puzzles {request.puzzles}" if request.puzzles else "")


def describe_request_games(request: Request) -> str:
    """Return the names of the request's games as text; empty without games."""
    return f"fitted on {request.fit}, tested on {request.test}; " if request.fit else ""


def format_index(work: Work, entries: Sequence[ReportEntry]) -> str:
    """Return the page index.md: the written files with the command of each, and the runs of all steps."""
    from chessreg.queries.render import escape_markdown

    request = work.request
    lines = [
        f"# {work.paper.title}",
        "",
        f"{describe_request(request)}; {describe_request_games(request)}size {request.size}; "
        f"{format_count(len(work.steps), 'step')}.",
        "",
        *(f"{line}\n" for line in work.paper.remarks(request)),
        *describe_missing_steps(work),
        *describe_left_out_sheets(work),
        *(describe_shared_games(work.session, request) if any(step.name == "parts" for step in work.all_steps) else ()),
        "",
        f"Results are tagged `{work.tag}`, runs that only choose settings `{work.get_tag(True)}`.",
        "",
        "From a cell to its rows: each table is printed again by its command below; with `--rows N` that command "
        "prints the games, trials or scores that row N is computed from, each with its run and unit. "
        "`chessreg board RUN:UNIT` draws one, `chessreg lineage RUN` shows the run's inputs, and `chessreg reproduce "
        "RUN` prints the commands that repeat it. Rows are numbered in the .md files. The .csv files have the same "
        "order, and the runs' ids.",
        "",
    ]
    for entry in entries:
        links = ", ".join(f"[{name}]({name})" for name in entry.files)
        rows = "" if entry.rows is None else "1 row: " if entry.rows == 1 else f"{entry.rows:,} rows: "
        lines += [f"## {entry.title}", ""]
        lines += [f"{rows}{links}", "", f"    {entry.command}", ""] if entry.files else []
        lines += [f"- {escape_markdown(note)}" for note in entry.notes] + ([""] if entry.notes else [])
    lines += ["## Runs", "", "| step | kind | run | serves |", "|---|---|---|---|"]
    for step in work.steps:
        reference = work.references.get(step.name, "")
        serves = step.purpose
        if step.name in work.refusal_reasons:
            serves = f"{serves}: {escape_markdown(work.refusal_reasons[step.name])}"
        run = (
            work.complete_steps.run_id(step.name)[-6:]
            if reference.startswith("run:")
            else reference.removeprefix("sha256:")[:12]
        )
        state = "refused" if step.name in work.refusal_reasons else "not done"
        lines.append(f"| {step.name} | {step.kind} | {run or state} | {serves} |")
    return "\n".join(lines) + "\n"
