"""Every cut text has a mark, in every table, text and frame: at 80x24, and in `make slow` at four sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.containers import VerticalScroll
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from tui.widgets.bars import PaneStrip
from tui.widgets.table import GUTTER_CELLS, PageTable

SIZES = ((80, 24), (100, 30), (120, 40), (200, 60))
GAP_CELLS = 2
QUERIES = ("best probe layers", "board intervention legality", "games by termination", "probe metrics by layer")


def drawn(line: Strip, left: int, right: int) -> str:
    return line.crop(left, right).text.strip()


def find_cut_cells(table: PageTable) -> Iterator[str]:
    """Cells and headings of a table that do not have their whole text, and no mark of that. Numbers are never cut."""
    lines = [table.render_line(y) for y in range(table.size.height)]
    seen, left = min(table.size.width, table.scrollable_content_region.width), GUTTER_CELLS
    marked = lines[0].text.rstrip().endswith("»")
    rows = table.loaded_visible_rows
    for column, wide in zip(table.shown_headings, table._widths, strict=True):
        right = left + wide
        if right > seen - 2 * marked:
            if not marked:
                yield f"{column.heading!r} is beyond the edge, which has no mark"
        elif drawn(lines[0], left, right) != column.heading.strip():
            yield f"heading {column.heading!r} is {drawn(lines[0], left, right)!r}"
        for y, row in enumerate(rows, 1):
            whole, part = (
                " ".join(column.format_cell(row).split()),
                " ".join(drawn(lines[y], left, min(right, seen)).split()),
            )
            cut = part != whole and (part or right <= seen - 2 * marked)
            if cut and ("…" not in part or column.right or column.whole):
                yield f"{column.heading!r} of row {y}: {part!r} of {whole!r}"
        left = right + GAP_CELLS


def find_cut_texts(screen: Any) -> Iterator[str]:
    """Texts that need more lines or cells than they have. A text that may be scrolled is not cut."""
    for text in screen.query(Static):
        size = text.content_size
        if not text.region or not size or any(isinstance(part, VerticalScroll) for part in text.ancestors):
            continue
        lines = [text.render_line(y).text.rstrip() for y in range(text.size.height)]
        high = text.visual.get_height(text.styles, size.width)
        wide = text.visual.get_optimal_width(text.styles, size)
        ends = any(line.endswith("…") for line in lines)
        if (high > size.height or (high == 1 and wide > size.width)) and not ends:
            yield f"{text!r}: {high} lines of {wide} cells in {size}: {lines}"


def find_cut_frames(screen: Any, lines: list[str]) -> Iterator[str]:
    """Titles of frames and names of parts that are cut without a mark."""
    for part in screen.query(Widget):
        if not part.region or not part.display:
            continue
        if part.styles.border_top[0] not in ("", "none"):
            for name in ("border_title", "border_subtitle"):
                title = str(getattr(part, name) or "")
                edge = lines[part.region.y if name == "border_title" else part.region.bottom - 1]
                edge = edge[part.region.x : part.region.right]
                if title and title.strip() not in edge and "…" not in edge:
                    yield f"{name} of {part!r}: {title!r} in {edge!r}"
        if isinstance(part, PaneStrip):
            line, names = part.render_line(0).text, " ".join(part.make_labels())
            if names.strip() not in line and not {"«", "»"} & set(line):
                yield f"names {names!r} in {line!r}"
            if part.names and part.make_labels()[part.place].strip() not in line:
                yield f"{part.names[part.place]!r} is not whole in {line!r}"


@pytest.mark.parametrize("sizes", [SIZES[:1], pytest.param(SIZES, marks=pytest.mark.slow)], ids=["80x24", "all"])
async def test_whatever_is_cut_has_a_mark(
    sizes: tuple[tuple[int, int], ...], drive: Any, studied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.screens.preview.WIDE_CELLS", 160)
    monkeypatch.setattr("tui.screens.preview.BOARD_WIDE_CELLS", 120)
    found: list[str] = []
    looked = tables = 0

    async with drive(studied, size=sizes[-1], start="home") as driver:

        async def look(where: str) -> None:
            nonlocal looked, tables
            for size in sizes:
                await driver.pilot.resize_terminal(*size)
                await driver.settle()
                screen = driver.screen
                shown = [table for table in screen.query(PageTable) if table.region and table.display and table.count]
                problems = [problem for table in shown for problem in find_cut_cells(table)]
                problems += [*find_cut_texts(screen), *find_cut_frames(screen, driver.lines)]
                problems += [f"line of {cell_len(line)} cells" for line in driver.lines if cell_len(line) > size[0]]
                found.extend(f"{where}, {size[0]}x{size[1]}: {problem}" for problem in problems)
                looked, tables = looked + 1, tables + len(shown)

        for room in ("home", "jobs", "launch", "runs", "queries"):
            await driver.go(room)
            await look(room)
        for room, lists in (("boards", 4), ("data", 6)):
            await driver.go(room)
            for number in range(lists):
                await look(f"{room}, list {number}")
                await driver.press("tab")
        for run in ("deep-board", "edits", "plain", "train-0"):
            await driver.go("runs")
            await driver.find_row(run)
            await driver.press("enter")
            for number in range(len(driver.screen.query_one(PaneStrip).names)):
                await look(f"{run}, part {number}")
                await driver.press("tab")
            await driver.press("escape")
        await driver.go("boards")
        await driver.press("enter")
        await look("a game")
        await driver.press("c", "d")
        assert "identical for" in driver.text
        await look("two games")
        await driver.press("escape", "escape")
        await driver.go("boards")
        await driver.press("tab", "enter")
        assert driver.screen.query("Rankings")
        await look("an edited state")
        await driver.press("escape")
        await driver.go("runs")
        await driver.find_row("plain")
        await driver.press("space")
        await driver.find_row("sure")
        await driver.press("space", "c")
        assert "baseline " in driver.text
        await look("two runs")
        await driver.press("escape", "u", "L")
        await look("a lineage")
        await driver.press("escape")
        for query in QUERIES:
            await driver.go("queries")
            await driver.find_row(query)
            await driver.press("enter")
            await look(query)
            await driver.press("escape")
        for kind in ("probe", "edit"):
            await driver.go("launch")
            await driver.find_row(kind)
            await driver.press("enter")
            await look(f"form {kind}")
            await driver.press("p", "p", "p", "p")
            await look(f"form {kind} with its fourth preset")
            await driver.press("escape")
    print(f"{looked} screens with {tables} tables")
    assert looked > 37 * len(sizes)
    assert tables > 25 * len(sizes)
    assert not found, "\n".join(found)
