"""Looks: every text is readable in every theme, and nothing is cut without a mark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from rich.color import ColorSystem
from textual.app import App, ComposeResult
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme
from textual.widget import Widget

import tui
from tui.board_colors import compute_contrast_ratio, downgrade_color
from tui.columns import TableColumn, choose_state_tone, find_foldable, format_state
from tui.data.pages import PAGE_ROWS, ListPages
from tui.data.query_answers import align_intervals, compute_signs
from tui.data.table_filter import View
from tui.interval_bars import ShownEstimate, make_interval_bars
from tui.themes import (
    BACKGROUND_VARIABLES,
    BOARD_DARK,
    DIM_SHARE,
    MIN_CONTRAST,
    ON_COLOR,
    TEXT_VARIABLES,
    THEMES,
    make_legible,
)
from tui.widgets.fields import FieldRow
from tui.widgets.table import PageTable

POOR = Theme(name="poor", primary="#303030", foreground="#444444", background="#333333", surface="#3a3a3a")
ALL = [*THEMES, POOR, *(theme for name, theme in BUILTIN_THEMES.items() if not name.startswith("ansi"))]


SYSTEMS = (ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT, ColorSystem.STANDARD)


def variables(theme: Theme, system: ColorSystem = ColorSystem.TRUECOLOR) -> dict[str, str]:
    return make_legible({**BOARD_DARK, **theme.to_color_system().generate(), **theme.variables}, theme, system)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name.lower())
@pytest.mark.parametrize("theme", ALL, ids=lambda theme: theme.name)
def test_every_text_is_readable_on_every_background(theme: Theme, system: ColorSystem) -> None:
    """As a terminal of all, 256 or 16 colors shows it. A green sign or Δ is one of these texts."""
    found = variables(theme, system)
    colors = {name: Color.parse(color) for name, color in found.items() if name in NAMES}

    def contrast(text: Color, ground: Color) -> float:
        return compute_contrast_ratio(downgrade_color(text, system), downgrade_color(ground, system))

    for text, ground in [*((text, ground) for text in TEXT_VARIABLES for ground in BACKGROUND_VARIABLES), *ON_COLOR]:
        assert contrast(colors[text], colors[ground]) >= MIN_CONTRAST, (text, ground)
    for ground in BACKGROUND_VARIABLES:
        dim = colors[ground].blend(colors["foreground"], DIM_SHARE)
        assert contrast(dim, colors[ground]) >= MIN_CONTRAST, ("dim", ground)
    if system is ColorSystem.STANDARD and theme.dark:
        tones = [downgrade_color(colors[f"text-{name}"], system) for name in ("success", "warning", "error", "primary")]
        assert len({*tones, colors["foreground"]}) == 5, "states have a color each"


NAMES = {*TEXT_VARIABLES, *BACKGROUND_VARIABLES, *(name for pair in ON_COLOR for name in pair)}


def test_a_theme_that_is_readable_stays_as_it_is_and_the_app_uses_the_rest(app_on: Any, tmp_path: Any) -> None:
    for theme in THEMES[:2]:
        found = variables(theme)
        assert {name: found[name].lower() for name in ("foreground", "text-accent", "text-muted")} == {
            "foreground": theme.foreground, "text-accent": theme.accent, "text-muted": theme.variables["text-muted"],
        }  # fmt: skip
    app = app_on(tmp_path, themes=(POOR,))
    app.register_theme(POOR)
    app.set_reactive(type(app).theme, "poor")
    assert app.get_css_variables()["foreground"] == variables(POOR)["foreground"] != "#444444"


def style_sheets() -> Iterator[tuple[str, str]]:
    """The CSS of each class of the terminal UI, without boards, whose colors are mixed."""
    for module in walk_packages(tui.__path__, "tui."):
        for cls in vars(import_module(module.name)).values():
            if isinstance(cls, type) and cls.__module__ == module.name and issubclass(cls, (Widget, App)):
                for css in (vars(cls).get("DEFAULT_CSS", ""), vars(cls).get("CSS", "")):
                    yield f"{module.name}.{cls.__name__}", css


def test_the_style_sheets_use_no_other_colors_for_text() -> None:
    texts, grounds = (
        {text for text, _ in ON_COLOR} | set(TEXT_VARIABLES),
        {ground for _, ground in ON_COLOR} | set(BACKGROUND_VARIABLES),
    )
    seen = 0
    for name, css in style_sheets():
        for rule in re.findall(r"\{([^{}]*)\}", css):
            text = re.search(r"(?<![-\w])color: \$([\w-]+)", rule)
            ground = re.search(r"background: \$([\w-]+);", rule)
            assert text is None or text[1] in texts or text[1].startswith("board-"), (name, rule)
            assert ground is None or ground[1] in grounds or ground[1].startswith("board-"), (name, rule)
            if text and ground and not text[1].startswith("board-"):
                pair = (text[1], ground[1])
                assert pair in ON_COLOR or (pair[0] in TEXT_VARIABLES and pair[1] in BACKGROUND_VARIABLES), (name, pair)
            seen += text is not None
    assert seen > 40


# -- tables ------------------------------------------------------------------------------------------------------------

ROWS = [
    {"id": n, "name": f"name-{n}-" + "x" * (5 * n), "state": "complete", "elo": f"{n * 1111:,} [-{n}98, {n}18]",
     "edit": f"white_elo, layers 3 to {n}, scale -{n}", "same": "legal", "none": "", "when": f"2026-01-0{n} 10:00"}
    for n in range(1, 8)
]  # fmt: skip
COLUMNS = (
    TableColumn("id", "#", right=True), TableColumn("name", "name", role="key"),
    TableColumn("state", "state", role="key"),
    TableColumn("elo", "Elo", right=True, role="value"), TableColumn("edit", "edit"), TableColumn("same", "policy"),
    TableColumn("none", "tags"), TableColumn("when", "ended", least=16),
)  # fmt: skip


class Tables(App[None]):
    def compose(self) -> ComposeResult:
        yield PageTable(COLUMNS, title="Rows")

    def get_css_variables(self) -> dict[str, str]:
        return make_legible(super().get_css_variables(), self.current_theme)


def table_lines(table: PageTable) -> list[str]:
    return [table.render_line(y).text for y in range(len(ROWS) + 1)]


@pytest.mark.parametrize("width", [30, 44, 61, 80, 120])
async def test_nothing_is_cut_without_a_mark(width: int) -> None:
    app = Tables()
    async with app.run_test(size=(width, 20)) as pilot:
        table = app.query_one(PageTable)
        table.show(ListPages(ROWS), ROWS, columns=COLUMNS)
        await pilot.pause()
        for x in range(0, max(1, table.max_scroll_x + 1), 3):
            table.scroll_to(x, 0, animate=False, immediate=True)
            head, *lines = table_lines(table)
            assert len(head) == table.size.width
            for row, line in zip(ROWS, lines, strict=True):
                rest, gone = line, []
                for column in table.shown_columns:
                    text = column.format_cell(row)
                    rest, there = rest.replace(text, "", 1), text in rest
                    gone += [] if there else [column]
                cut = [word for word in rest.split("  ") if word.strip("›●« ")]
                assert all(word.strip().endswith("…") for word in cut), (x, line)
                assert not any("[" in word for word in cut), "an interval is whole or not there"
                if len(gone) > len(cut):
                    assert "»" in head or "«" in head, (x, head, line)


async def test_empty_and_constant_columns_are_named_in_the_frame_until_a_later_page_needs_them() -> None:
    app = Tables()
    async with app.run_test(size=(120, 20)) as pilot:
        table = app.query_one(PageTable)
        table.show(ListPages(ROWS), ROWS, columns=COLUMNS)
        await pilot.pause()
        assert [column.field for column in table.shown_columns] == ["id", "name", "state", "elo", "edit", "when"]
        assert table.border_title == "Rows 7"
        assert table.border_subtitle == "same in all rows: policy legal"
        table.show(ListPages(ROWS[:2]), ROWS[:2], columns=COLUMNS)
        await pilot.pause()
        assert [column.field for column in table.shown_columns][-2:] == ["same", "when"], "two rows tell nothing"
    assert find_foldable(COLUMNS, []) == {}


async def test_a_column_is_named_constant_in_all_rows_only_where_all_rows_have_its_text() -> None:
    columns = (COLUMNS[0], COLUMNS[1], TableColumn("layer", "layer", right=True), TableColumn("split", "split"))
    rows = [{"id": n, "name": f"n{n}", "layer": n // 250, "split": "test"} for n in range(800)]
    pages = ListPages(rows)
    app = Tables()
    async with app.run_test(size=(120, 20)) as pilot:
        table = app.query_one(PageTable)
        table.show(pages, pages.read_page(0), columns=columns)
        await pilot.pause()
        assert table.border_subtitle == "same in the rows read so far: layer 0 · split test"
        for words, layer in (("layer=2", "2"), ("layer=3", "3"), ("layer=9", None)):
            table.view = View(words)
            table.narrow()
            fitting = pages.narrow(table.view)
            table.show_narrowed(pages, fitting, fitting.read_page(0), keep=False)
            await pilot.pause()
            read = "all rows" if fitting.count <= PAGE_ROWS else "the rows read so far"
            assert table.border_subtitle == (f"same in {read}: layer {layer} · split test" if layer else "")
        table.view = View("layer<2")
        table.narrow()
        fitting = pages.narrow(table.view)
        table.show_narrowed(pages, fitting, fitting.read_page(0), keep=False)
        for number in (1, 2):
            table.accept_page(fitting, number, fitting.read_page(number))
            read = "the rows read so far" if number < 2 else "all rows"
            assert table.border_subtitle == f"same in {read}: split test"
        assert "layer" in [column.field for column in table.shown_columns]
        table.view = View()
        table.narrow()
        await pilot.pause()
        for number in (3, 0, 2, 1):  # the first row of page 1 has the text of page 0
            table.accept_page(pages, number, pages.read_page(number))
        assert table.border_subtitle == "same in all rows: split test"


async def test_cells_have_the_color_of_their_state_and_intervals_are_muted() -> None:
    columns = (COLUMNS[0], TableColumn("state", "state", text=lambda row: format_state(row["state"]), role="key",
                                  tone=lambda row: choose_state_tone(row["state"])), COLUMNS[3])  # fmt: skip
    rows = [{**ROWS[0], "state": state} for state in ("complete", "out_of_memory", "running", "complete (invalid)")]
    app = Tables()
    async with app.run_test(size=(80, 20)) as pilot:
        table = app.query_one(PageTable)
        table.show(ListPages(rows), rows, columns=columns)
        await pilot.pause()
        colors = app.get_css_variables()
        found = []
        for y in range(1, 5):
            inks = {part.text.strip(): part.style.color.get_truecolor().hex for part in table.render_line(y)
                    if part.style and part.style.color and part.text.strip()}  # fmt: skip
            found.append(next(ink for text, ink in inks.items() if text[0] in "✓✗●"))
            assert inks["1,111"] != inks["[-198, 118]"]
        names = ("text-success", "text-error", "text-primary", "text-error")
        assert found == [Color.parse(colors[name]).hex.lower() for name in names]
        assert table.render_line(2).text.split()[1:5] == ["✗", "out", "of", "memory"]
        app.console._color_system = ColorSystem.STANDARD
        table.focus()
        await pilot.pause()
        (cursor_row,) = table.render_line(1)
        style = cursor_row.style.render("x", color_system=ColorSystem.STANDARD)
        assert style == "\x1b[1;30;107mx\x1b[0m", "of 16 colors: black on white"


def test_values_stand_below_values_and_only_a_difference_from_0_is_colored() -> None:
    assert align_intervals([["a", "-5 [-10, 1]"], ["b", "12"]]) == [["a", "-5 [-10, 1]"], ["b", "12         "]]
    row = {"delta_score_low": 0.5, "delta_score_high": 2, "delta_loss_low": 0.1, "delta_loss_high": 2,
           "minus_random_low": -1, "minus_random_high": 2}  # fmt: skip
    assert compute_signs(row, ["score", "delta_score", "delta_loss", "minus_random"]) == {"c1": 1, "c2": -1, "c3": 0}


def estimate_of(row: Any) -> ShownEstimate:
    return ShownEstimate(1111 * row["id"], -98 - 100 * row["id"], 1111 * row["id"] + 18)


async def test_an_interval_has_a_bar_where_there_is_room_and_filters_and_orders_ignore_it() -> None:
    bars = make_interval_bars("elo", estimate_of, ROWS)
    assert bars is not None
    for size, drawn in (((119, 20), False), ((120, 20), False), ((170, 20), True)):
        app = Tables()
        async with app.run_test(size=size) as pilot:
            table = app.query_one(PageTable)
            table.show(ListPages(ROWS), ROWS, columns=COLUMNS, bars=bars)
            await pilot.pause()
            head, *lines = table_lines(table)
            assert ("-2,000" in head and "8,000" in head) is drawn, head
            assert all("●" in line for line in lines) is drawn
            assert "»" not in head or not drawn, "no column makes room for bars"
            assert [column.field for column in table.view.columns or table.columns].count("elo") == 1
            if drawn:
                places = [line.index("●") for line in lines]
                assert places == sorted(set(places)), "a higher value is further right"
                table.sort_by("elo", True)
                await pilot.pause()
                assert sum("▼" in column.heading for column in table.shown_headings) == 1
    assert make_interval_bars("elo", estimate_of, ROWS[:1]) is None, "one row has no scale"


async def test_the_setting_with_the_focus_is_black_on_white_with_16_colors(drive: Any) -> None:
    async with drive(size=(80, 24), start="launch") as driver:
        await driver.press("enter")
        await driver.once(lambda: driver.screen.query(FieldRow), "the form")
        await driver.press("escape", "down") if driver.app.screen is not driver.screen else None
        driver.app.console._color_system = ColorSystem.STANDARD
        (row,) = (row for row in driver.screen.query(FieldRow) if row.has_focus)
        text = row.render()
        assert text.plain.startswith("› ")
        assert text.spans == []
        style = text.style.render("x", color_system=ColorSystem.STANDARD)
        assert style == "\x1b[1;30;107mx\x1b[0m"
        others = [row for row in driver.screen.query(FieldRow) if not row.has_focus]
        assert all(row.render().spans and not row.render().plain.startswith("›") for row in others)
