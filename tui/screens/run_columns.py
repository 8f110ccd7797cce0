"""The columns that a list of runs can have: facts, words, settings (`spec.NAME`) and last values (`metric.NAME`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from tui import show
from tui.actions import bindings
from tui.columns import Column
from tui.data.pages import Listed
from tui.screens.room import Room
from tui.widgets.table import PageTable

Row = Mapping[str, Any]
SPEC, METRIC = "spec.", "metric."


def state(row: Row) -> str:
    wrong = " (invalid)" if row["invalid"] else " (stale)" if row.get("stale") else ""
    return f"{row['state']}{wrong}"


def units(row: Row) -> str:
    return f"{row['done']:,}/{row['units']:,}"


def name(row: Row) -> str:
    return ("★ " if row["starred"] else "") + ("⚑ " if row["pinned"] else "") + (row["name"] or "")


def completed(row: Row) -> str:
    return show.when(row["completed_at"])


# By the names that they are sorted by (chessreg.registry.run_filter.SORTS).
KNOWN = {
    "id": Column("short", "id", text=lambda row: show.short(row["short"])),
    "name": Column("name", "name", text=name, widest=28, least=12),
    "kind": Column("kind", "kind", widest=16),
    "state": Column("state", "state", text=state),
    "units": Column("done", "units", right=True, text=units),
    "created": Column("created_at", "created", text=lambda row: show.when(row["created_at"]), least=16),
    "machine": Column("host", "machine", text=lambda row: show.host(row["host"]), widest=20),
    "tries": Column("attempts", "tries", right=True),
    "tags": Column("tags", "tags", text=lambda row: " ".join(row["tags"])),
    "completed": Column("completed_at", "completed", text=completed, least=16),
    "starred": Column("starred", "starred", text=lambda row: "★" if row["starred"] else ""),
    "notes": Column("notes", "last note", text=lambda row: show.value((row["notes"] or [""])[-1]), widest=40),
}
MEANING = {
    "id": "the end of the id",
    "name": "its name; ★ starred, ⚑ pinned",
    "kind": "kind of experiment",
    "state": "complete, partial or running; invalid or stale",
    "units": "units done of all",
    "created": "when it was made",
    "machine": "where it was tried last",
    "tries": "attempts",
    "tags": "tags",
    "completed": "when its last unit was done",
    "starred": "starred or not",
    "notes": "what was noted last",
}
SHOWN = ("id", "name", "kind", "state", "units", "created", "machine", "tries", "tags")


def column(key: str) -> Column:
    """The column of this name."""
    if key.startswith(SPEC):
        path = key.removeprefix(SPEC).split(".")
        return Column(key, key.removeprefix(SPEC), text=lambda row: show.value(within(row["spec"], path)), widest=24)
    if key.startswith(METRIC):
        metric = key.removeprefix(METRIC)
        return Column(key, metric, right=True, text=lambda row: show.value(row["metrics"].get(metric)))
    return KNOWN[key]


def known(key: str) -> bool:
    return key in KNOWN or (key.startswith((SPEC, METRIC)) and not key.endswith("."))


def within(values: Any, path: Sequence[str]) -> Any:
    for step in path:
        values = values.get(step) if isinstance(values, Mapping) else None
    return values


class ColumnsScreen(Room):
    """Which columns a list of runs has, and in which order. `changed` is told at once."""

    place = "columns"
    crumb = "columns"
    follows = False
    BINDINGS = bindings("columns")

    def __init__(self, chosen: list[str], settings: Sequence[str], metrics: Sequence[str]) -> None:
        super().__init__()
        self.chosen, self.before = chosen, list(chosen)
        others = [*KNOWN, *(SPEC + name for name in settings), *(METRIC + name for name in metrics)]
        self.offered = list(dict.fromkeys([*chosen, *others]))

    def body(self) -> ComposeResult:
        columns = (
            Column("on", "shown"),
            Column("key", "column", least=16),
            Column("meaning", "what it is", widest=60),
        )
        yield PageTable(columns, id="columns")

    async def fill(self) -> None:
        self.draw()

    def draw(self) -> None:
        rows = [
            {"on": "yes" if key in self.chosen else "", "key": key, "meaning": meaning(key)} for key in self.offered
        ]
        self.query_one(PageTable).show(Listed(rows), rows[:200], keep=True)

    def command(self) -> str:
        return "chessreg runs list --json"

    def action_shown(self) -> None:
        key = self.offered[self.query_one(PageTable).cursor]
        if key not in self.chosen:
            self.chosen.append(key)
            self.chosen.sort(key=self.offered.index)
        elif len(self.chosen) > 1:
            self.chosen.remove(key)
        self.draw()

    def on_page_table_opened(self) -> None:
        self.action_shown()

    def action_shift(self, way: str) -> None:
        """Put the column under the cursor a place further up or down."""
        table = self.query_one(PageTable)
        here, there = table.cursor, table.cursor + int(way)
        if 0 <= there < len(self.offered):
            self.offered[here], self.offered[there] = self.offered[there], self.offered[here]
            self.chosen.sort(key=self.offered.index)
            table.move(there)
            self.draw()


def meaning(key: str) -> str:
    if key.startswith(SPEC):
        return "a setting of the run"
    return "the last value of a metric" if key.startswith(METRIC) else MEANING[key]
