"""The preview of a run: its result, its results in small tables, and the settings that were given."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from tui import show
from tui.columns import GAP_CELLS, TableColumn, compute_widths, fit_text
from tui.data.pages import Row
from tui.data.run_rows import RunFacts, format_units, load_run_facts
from tui.data.run_summary import Summary
from tui.interval_bars import MAX_BAR_CELLS, MIN_BAR_CELLS
from tui.screens.base import AppScreen
from tui.screens.preview import Preview, RowPreview, build_fields_table

MAX_ROWS = 16  # of a small table
OUTCOME_BAR_CELLS = 30
MAX_CURVE_CELLS = 60
TITLE_MARGIN_CELLS = 8  # of a pane's width, around its title


async def read_run_preview(screen: AppScreen, run_id: UUID, title: str) -> RowPreview | None:
    """Read a run and return its preview."""
    facts = await screen.ask("reading the run", lambda session: load_run_facts(session, run_id))
    if facts is None:
        return None
    return RowPreview(build_run_preview(facts, screen.query_one(Preview).text_width), title=title)


def build_run_preview(facts: RunFacts, width: int) -> RenderableType:
    """Return the parts of the preview, drawn in `width` cells."""
    run = facts.run
    name = run["name"] or ""
    preview_facts = {
        "name": name if cell_len(name) > width - TITLE_MARGIN_CELLS else "",  # the title of the pane cuts it
        "result": facts.answer, "kind": run["kind"], "state": run["state"], "units": format_units(run),
        "tags": " ".join(run["tags"]), "notes": "\n".join(run["notes"]), "invalid": run["invalid"],
        "outputs": ", ".join(output["name"] for output in run["outputs"][:8]),
        "last message": next((one["message"] for one in reversed(run["tries"]) if one.get("message")), None),
    }  # fmt: skip
    parts: list[RenderableType] = [build_fields_table(preview_facts)]
    parts += [draw_summary(summary, width) for summary in facts.summaries]
    if facts.curve is not None and len(facts.curve[1]) > 1:
        parts.append(draw_run_curve(*facts.curve, min(width, MAX_CURVE_CELLS)))
    if facts.given_settings:
        parts.append(build_fields_table(facts.given_settings, "given settings"))
    parts.append(build_fields_table(describe_attempts(run), "attempts"))
    return Group(*(piece for part in parts for piece in (part, Text(""))))


def describe_attempts(run: Row) -> dict[str, str]:
    """Return when and where a run was computed, and from which code."""
    tries = run["tries"]
    if not tries:
        return {}
    spans = [(one["ended_at"] or one["checked_in_at"]) - one["started_at"] for one in tries]
    code = tries[-1]["code"]
    commit = (code.get("commit") or "")[:8]
    return {
        "number": f"{len(tries)}" if len(tries) > 1 else "",
        "started": show.format_local_time(tries[0]["started_at"]),
        "took": show.format_seconds(sum(span.total_seconds() for span in spans)),
        "machine": show.format_host(tries[-1]["host"]),
        "code": f"{commit}{', changed files' if code.get('dirty') else ''}" if commit else "",
    }


def draw_summary(summary: Summary, width: int) -> Text:
    """Draw a small table with the columns that fit in `width` cells, and its bars where there is room.

    A single match is drawn as shares of won, drawn and lost games.
    """
    rows = summary.rows[:MAX_ROWS]
    bars = summary.bars
    columns = [column for column in summary.columns if any(column.format_cell(row) for row in rows)]
    main = [column for column in columns[1:] if bars is not None and column.field == bars.field]
    shown_columns = [*columns[:1], *main]
    reserve = MIN_BAR_CELLS + GAP_CELLS if bars is not None else 0
    for column in columns:
        if column not in shown_columns and measure_preview([*shown_columns, column], rows) + reserve <= width:
            shown_columns.append(column)
    shown_columns.sort(key=columns.index)
    spare = width - measure_preview(shown_columns, rows) - GAP_CELLS
    if bars is not None and spare >= MIN_BAR_CELLS:
        place = next(
            (n + 1 for n, column in enumerate(shown_columns) if column.field == bars.field), len(shown_columns)
        )
        shown_columns.insert(place, bars.make_column(min(spare, MAX_BAR_CELLS)))
    text = Text(no_wrap=True, overflow="ellipsis").append(summary.title, style="bold")
    widths = compute_widths(shown_columns, rows, width)
    text.append("\n").append(
        join_cells([column.heading for column in shown_columns], shown_columns, widths), style="dim"
    )
    for row in rows:
        line = join_cells([column.format_cell(row) for column in shown_columns], shown_columns, widths)
        text.append("\n").append(line, style="bold" if row.get("chosen") else "")
    if len(summary.rows) > len(rows):
        text.append(f"\n… {len(summary.rows) - len(rows):,} more", style="dim")
    if len(rows) == 1 and rows[0].get("games") and "won" in rows[0]:
        text.append("\n")
        for outcome in ("won", "drawn", "lost"):
            bar = show.draw_bar(rows[0][outcome] / rows[0]["games"], OUTCOME_BAR_CELLS)
            text.append(f"\n{outcome:<6}", style="dim").append(f"{rows[0][outcome]:>7,}  {bar}")
    return text


def join_cells(cells: list[str], columns: list[TableColumn], widths: list[int]) -> str:
    cell_texts = (
        fit_text(cell, cell_width, column.right)
        for cell, column, cell_width in zip(cells, columns, widths, strict=True)
    )
    return (" " * GAP_CELLS).join(cell_texts).rstrip()


def measure_preview(columns: list[TableColumn], rows: Sequence[Row]) -> int:
    """Return the cells that the columns need side by side."""
    widest_cells = (
        max(cell_len(text) for text in (column.heading, *map(column.format_cell, rows))) for column in columns
    )
    return sum(widest_cells) + GAP_CELLS * (len(columns) - 1)


def draw_run_curve(metric: str, points: list[tuple[int, float]], width: int) -> Text:
    """Draw the curve of a metric with its first and last value."""
    (first_step, first_value), (last_step, last_value) = points[0], points[-1]
    text = Text(metric.replace("_", " "), style="bold", no_wrap=True, overflow="ellipsis")
    text.append(
        f"  {first_value:.4g} at step {first_step:,}, {last_value:.4g} at step {last_step:,}", style="not bold dim"
    )
    return text.append(f"\n{show.draw_sparkline([value for _, value in points], width)}", style="not bold")
