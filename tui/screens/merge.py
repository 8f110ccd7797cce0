"""Merge another registry: preview its runs and the conflicts, then merge."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn
from tui.data.pages import PAGE_ROWS, ListPages, Row
from tui.screens.base import AppScreen, PartsScreen
from tui.screens.files import FilesScreen
from tui.widgets.bars import PaneStrip
from tui.widgets.table import PageTable

MERGED_RUN_COLUMNS = (
    TableColumn("run", "run", widest=40, least=16),
    TableColumn("kind", "kind", widest=16),
    TableColumn("host", "machine", text=lambda row: show.format_host(row["host"]), widest=20),
    TableColumn("change", "change", widest=40, least=20),
    TableColumn(
        "conflicts", "conflicts", right=True, text=lambda row: f"{row['conflicts']:,}" if row["conflicts"] else ""
    ),
)
CONFLICT_COLUMNS = (
    TableColumn("run", "run", widest=40, least=12),
    TableColumn("table_name", "what"),
    TableColumn("which", "which", widest=40, least=12),
    TableColumn("here", "here: kept", widest=50, least=20),
    TableColumn("there", "there, not imported", widest=50, least=20),
)
READING_TEXT = "reading the other registry; nothing is written yet"


def has_registry(path: Path) -> bool:
    """Return whether a folder is, or contains, a registry that can be merged."""
    return any((home / "registry.db").is_file() for home in (path, path / ".chessreg"))


def pick_registry(screen: AppScreen) -> None:
    """Pick another registry, then preview its merge."""
    app: Any = screen.app
    question = "Another registry: a folder with registry.db or .chessreg, such a file, or a folder of fragments"
    app.push_screen(
        FilesScreen(("merge",), question, lambda path: app.push_screen(MergeScreen(str(path))), fits=has_registry)
    )


class MergeScreen(PartsScreen):
    """The runs of another registry and the conflicts with this one.

    M merges. Esc leaves without merging.
    """

    place = "merge"
    crumb = "merge"
    follows = False
    BINDINGS = make_bindings("merge")
    DEFAULT_CSS = "MergeScreen > #overview { height: auto; padding: 0 1; }"

    def __init__(self, other: str) -> None:
        super().__init__()
        self.other = other
        self.preview: Mapping[str, Any] | None = None

    def body(self) -> ComposeResult:
        yield Static(READING_TEXT, id="overview", markup=False)
        yield PaneStrip()
        yield PageTable(MERGED_RUN_COLUMNS, id="part", empty="nothing here")

    async def fill(self) -> None:
        """Preview the merge in a separate process, because a large registry takes minutes."""
        status, output, err = await self.app.model.run_command([*self.words, "--dry-run", "--json"])
        self.require_shown()
        if status:
            self.query_one("#overview", Static).update(f"not merged: {parse_command_error(err)}")
            self.query_one(PageTable).show(ListPages([]), [], columns=MERGED_RUN_COLUMNS)
            return
        self.preview = json.loads(output)
        self.query_one("#overview", Static).update(format_merge_overview(self.other, self.preview))
        strip = self.query_one(PaneStrip)
        strip.names = tuple(f"{name} {len(self.preview[name]):,}" for name in ("runs", "conflicts"))
        self.show_part()
        self.relabel()

    def show_part(self, keep: bool = False) -> None:
        if self.preview is None:
            return
        conflicts = self.query_one(PaneStrip).place == 1
        rows = list(
            map(build_conflict_row, self.preview["conflicts"])
            if conflicts
            else map(build_run_row, self.preview["runs"])
        )
        table = self.query_one(PageTable)
        table.set_title("conflicts" if conflicts else "runs")
        table.show(
            ListPages(rows), rows[:PAGE_ROWS], columns=CONFLICT_COLUMNS if conflicts else MERGED_RUN_COLUMNS, keep=keep
        )

    @property
    def words(self) -> list[str]:
        return ["merge", self.other]

    def command(self) -> str:
        return f"chessreg {shlex.join(self.words)}"

    def can_offer(self, action: Any) -> bool:
        if action.place == "merge" and action.method == "merge":
            return self.preview is not None and super().can_offer(action)
        return super().can_offer(action)

    def action_merge(self) -> None:
        if self.preview is None or self.app.read_only:
            return
        summary = format_merge_overview(self.other, self.preview)
        self.app.pop_screen()
        self.app.run_command(self.words, progress_text="merging", done_text="merged", notice=summary)


def format_merge_overview(other: str, preview: Mapping[str, Any]) -> str:
    """Return one line with the number of new runs, results and conflicts."""
    new = sum(row["done_before"] is None for row in preview["runs"])
    more = sum(row["done_before"] is not None and row["done"] > row["done_before"] for row in preview["runs"])
    facts = [
        show.format_count(new, "new run"),
        f"{show.format_count(more, 'run')} with more units",
        f"{preview['report']['results']:,} new results",
        f"{preview['unchanged']:,} already here",
        f"{show.format_count(len(preview['conflicts']), 'conflict')}: local rows are kept"
        if preview["conflicts"]
        else "",
    ]
    return f"{other}: {' · '.join(filter(None, facts))}"


def parse_command_error(err: str) -> str:
    """Return the error and hint that a command printed as JSON."""
    try:
        output = json.loads(err.strip().splitlines()[-1])
        return f"{output['error']} ({output['hint']})" if output["hint"] else str(output["error"])
    except (ValueError, LookupError, TypeError):
        return err.strip().removeprefix("error: ")


def build_run_row(row: Mapping[str, Any]) -> Row:
    from chessreg.entities.merge import describe_run_change

    return {**row, "run": row["name"] or show.abbreviate_id(row["id"]), "change": describe_run_change(row)}


def build_conflict_row(row: Mapping[str, Any]) -> Row:
    """Return the table row of a conflict: run, key, and the differing values of both registries."""
    key = {name: value for name, value in row["key"].items() if name != "run_id"}
    local_cells, other_cells = (
        ", ".join(f"{name} {show.format_cell_value(values[side])}" for name, values in row["differs"].items())
        for side in (0, 1)
    )
    key_text = ", ".join(f"{name} {value}" for name, value in key.items())
    return {
        **row,
        "run": row["run"] or show.abbreviate_id(row["run_id"]),
        "which": key_text,
        "here": local_cells,
        "there": other_cells,
    }
