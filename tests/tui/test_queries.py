"""The queries: search, scope, SQL, plots, the rows behind a line, files and copies. Every number is the core's."""

from __future__ import annotations

import asyncio
import csv
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.app import App, ComposeResult

from chessreg.entities.display import Chart, Panel, Point, Series
from chessreg.errors import BadInputError
from chessreg.queries import render, run_query, run_sql
from chessreg.queries.ask import query_plot_rows
from chessreg.queries.catalogue import find_plot
from chessreg.queries.plot import list_baseline_rows
from chessreg.runs.kind import find_kind
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.data.query_answers import ScreenQuestion, parse_scope
from tui.screens.answers import AnswerScreen
from tui.screens.boards import BoardScreen
from tui.screens.dialogs import Prompt
from tui.screens.edit import CaseScreen, EditScreen
from tui.screens.queries import SqlEditor, SqlScreen
from tui.screens.run import RunScreen
from tui.widgets.bars import Banner, ScopeBar
from tui.widgets.chart import Canvas, ChartView, draw_chart, draw_whisker
from tui.widgets.table import PageTable
from tui.widgets.vim import VimEditor

from .conftest import PATIENCE

TITLE = "games by termination"
CAPTURES = Path(__file__).parent.parent / "kinds" / "captures_kind.py"


async def opened(driver: Any, title: str = TITLE) -> None:
    await driver.go("queries")
    await driver.find_row(title)
    await driver.press("enter")


async def test_a_note_names_the_key_of_an_option(drive: Any) -> None:
    async with drive(size=(160, 40)) as driver:
        await opened(driver)
        driver.screen.show_notes(["left out of the runs: 1 not complete (--partial shows them)"], "")
        await driver.pilot.pause()
        assert "1 not complete (% shows them)" in driver.text


@pytest.mark.slow
async def test_a_scope_narrows_the_answer_and_goes_with_one(drive: Any, session: Session) -> None:
    whole = render.format_cells(run_query(session.database, TITLE))[1]
    narrowed = render.format_cells(run_query(session.database, TITLE, run="plain"))[1]
    assert narrowed != whole
    async with drive(size=(160, 40)) as driver:
        await opened(driver)
        assert driver.screen.query_one(PageTable).count == len(whole)
        await driver.press("s")
        await driver.type("run:pl")
        await driver.press("right")  # takes the offered word
        assert driver.screen.query_one(ScopeBar).value == "run:plain"
        await driver.press("enter")
        table = driver.screen.query_one(PageTable)
        assert table.count == len(narrowed)
        for n, line in enumerate(narrowed):
            assert [table.row(n)[f"c{c}"].strip() for c in range(len(line))] == line
        await driver.press("y")
        assert driver.app.clipboard == f"chessreg query '{TITLE}' --run plain"
        await driver.press("escape")
        assert driver.screen.query_one(ScopeBar).value == "run:plain"
        await driver.press("s", "escape")
        await driver.press("enter")
        assert driver.screen.query_one(PageTable).count == len(whole)


@pytest.mark.slow
async def test_queries_beside_a_kind_of_ones_own_are_listed_and_asked_and_a_broken_one_hides_no_other(
    drive: Any, world: Path, tmp_path: Path
) -> None:
    folder, path, title = tmp_path / "world", tmp_path / CAPTURES.name, "captures after captures"
    shutil.copytree(world, folder)
    for suffix in (".py", ".sql"):
        shutil.copy(CAPTURES.with_suffix(suffix), tmp_path)
    with open_session(str(folder / "registry.db"), folder / "store") as own:
        own.run(find_kind(str(path)).spec(games=4, shuffles=5), kind=str(path))
        lines = render.format_cells(run_query(own.database, title))[1]
    async with drive(folder, size=(160, 40), start="queries") as driver:
        await opened(driver, title)
        table = driver.screen.query_one(PageTable)
        assert [[table.row(0)[f"c{c}"].strip() for c in range(len(lines[0]))]] == lines
        await driver.press("C")
        assert "share" in driver.text  # the meaning of the columns
        await driver.press("escape", "escape")
        path.with_suffix(".sql").write_text("-- no query")
        await driver.press("r")
        table = driver.screen.query_one(PageTable)
        titles = [table.row(n)["title"] for n in range(table.count)]
        assert TITLE in titles
        assert title not in titles


def test_where_begins_a_condition_only_as_a_word() -> None:
    assert parse_scope("tag:somewhere: where: layer > 3") == {"tag": ["somewhere:"], "where": "layer > 3"}
    assert parse_scope("where:layer > 3") == {"where": "layer > 3"}


def test_titles_and_conditions_are_words_of_a_shell() -> None:
    entry, odd = find_plot("probe accuracy by layer")[0], "it's $(odd); x"
    assert shlex.split(ScreenQuestion(replace(entry, title=odd), scoring="author-2024").command)[2] == odd
    state = SimpleNamespace(condition=odd, run_id="a", unit=0)
    for screen in (EditScreen, CaseScreen):
        held: Any = SimpleNamespace(state=state, reference="a:0", shown_layer=3, row={})
        assert odd in shlex.split(screen.command(held))


@pytest.mark.slow
async def test_a_scope_that_is_none_is_told_and_changes_nothing(drive: Any) -> None:
    async with drive(size=(160, 40)) as driver:
        await opened(driver)
        before = driver.screen.query_one(PageTable).count
        await driver.press("s")
        await driver.type("color:white")
        assert driver.screen.query_one(ScopeBar).has_class("-wrong")
        await driver.press("enter")
        assert "! a scope has no 'color:white'" in driver.text
        assert driver.screen.query_one(PageTable).count == before
        await driver.press("s")
        await driver.press("ctrl+u")
        await driver.type("run:nobody")
        await driver.press("enter")
        assert "! run 'nobody' was not found" in driver.text
        await driver.press("s", "escape")
        assert "nobody" not in driver.text.split("run:nobody")[0]


async def test_the_scope_and_the_search_are_there_again_next_time(drive: Any) -> None:
    async with drive(size=(160, 40)) as driver:
        await driver.go("queries")
        await driver.press("slash")
        await driver.type("termination")
        await driver.press("enter", "s")
        await driver.type("since:7d")
        await driver.press("enter")
    async with drive(size=(160, 40), start="") as driver:
        assert driver.way.startswith("queries")
        assert driver.screen.query_one(ScopeBar).value == "since:7d"
        assert driver.screen.query_one(PageTable).count == 1


async def test_a_search_does_not_change_the_scope(drive: Any) -> None:
    async with drive(size=(160, 40)) as driver:
        await driver.go("queries")
        await driver.press("slash")
        await driver.type("partial")  # which a scope may also be
        await driver.press("enter")
        assert driver.screen.scope == ""
        await driver.press("slash", "escape")
        assert driver.screen.query_one(PageTable).count > 1


async def test_sql_is_completed_asked_and_leads_to_the_board(drive: Any, session: Session) -> None:
    async with drive(size=(140, 40)) as driver:
        await driver.go("queries")
        await driver.press("e")
        editor = driver.screen.query_one(SqlEditor)
        assert editor.language == "sql"
        editor.text = ""
        await driver.type("SELECT run_id, unit, pli")
        editor.text += " FROM game ORDER BY run_id, unit"
        editor.move_cursor((0, len("SELECT run_id, unit, pli")))
        await driver.press("tab")
        assert editor.text.startswith("SELECT run_id, unit, plies FROM game")
        await driver.press("f6")
        assert "6 rows" in driver.text, "what it reads, before it is asked"
        await driver.press("escape")
        tree = driver.screen.query_one("#tables", PageTable)
        place = next(n for n in range(tree.count) if tree.row(n)["name"] == "game")
        driver.screen.set_focus(tree)
        tree.move(place)
        await driver.press("enter")
        assert (tree.row(place)["text"], tree.row(place)["rows"]) == ("▾ game", "6")
        driver.screen.set_focus(editor)
        await driver.press("f5")
        result = run_sql(session.database, editor.text)
        table = driver.screen.query_one("#rows", PageTable)
        assert table.count == len(result) == 6
        for n, row in enumerate(result.rows):
            assert table.row(n)["plies"] == row["plies"]
        assert f"{len(result)} rows" in driver.text
        assert [column.heading for column in table.columns[1:4]] == ["run_id", "unit", "plies"], "all that was selected"
        assert table.columns[1].format_cell(table.row(0)) == result.rows[0]["run_id"]
        await driver.press("enter")
        assert isinstance(driver.screen, BoardScreen)
        assert str(driver.screen.boards.row["run_id"]).replace("-", "") == result.rows[0]["run_id"]
        await driver.press("escape", "e")
        assert isinstance(driver.app.focused, SqlEditor)
        editor.text = "SELECT id AS run_id, kind FROM run ORDER BY id"
        await driver.press("ctrl+r", "enter")
        assert isinstance(driver.screen, RunScreen)


@pytest.mark.parametrize("half", [0.3, 0.5, 0.6, 1.5, 2.5])
@pytest.mark.parametrize("value", [5.0, 5.3, 5.5, 6.5, 7.7])
def test_an_interval_that_is_symmetric_is_drawn_symmetrically(value: float, half: float) -> None:
    point, canvas = Point(0.0, value, value - half, value + half), Canvas(1, 20)
    draw_whisker(canvas, 0, lambda y: 15 - y, point, "")
    mark = round(15 - value)
    drawn_rows = [y for y in range(20) if canvas.get_character(0, y) != " " and y != mark]
    assert sum(y < mark for y in drawn_rows) == sum(y > mark for y in drawn_rows)
    widest = Point("other", 10.0, text="10")
    chart = Chart(
        "", "x", "y", (Panel("", (Series("", (Point("one", value, point.low, point.high, "v"), widest)),)),), "bars"
    )
    bar = "".join(text for text, _ in draw_chart(chart, 80, 24)[1])
    if "┼" in bar:
        assert bar.index("┼") - bar.index("├") == bar.index("┤") - bar.index("┼")


ENDLESS = "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t"


async def ask_without_end(driver: Any) -> None:
    """Ask a question without an answer, and let it run."""
    driver.screen.query_one(SqlEditor).text = ENDLESS
    await driver.pilot.press("f5")
    async with asyncio.timeout(PATIENCE):
        while getattr(driver.app.database.find_oldest_call(), "what", "") != "running the SQL":
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("vim", quick_first(1, [False, True]), ids=["", "vim"])
async def test_esc_stops_the_sql_that_runs_and_the_next_is_answered(drive: Any, vim: bool) -> None:
    async with drive(start="queries", size=(140, 40)) as driver:
        await driver.press("e")
        driver.screen.query_one(SqlEditor).vim = vim
        await ask_without_end(driver)
        assert "running … Esc stops it" in driver.text
        await driver.press("escape")
        assert "the SQL was stopped" in driver.notices
        assert isinstance(driver.screen, SqlScreen)
        driver.screen.query_one(SqlEditor).text = "select 42 as answer"
        await driver.press("f5")
        assert driver.screen.table.row(0)["answer"] == 42
        await driver.press("slash")  # in the rows it stops too
        await driver.press("escape")
        await ask_without_end(driver)
        driver.screen.set_focus(driver.screen.table)
        await driver.press("escape")
        assert isinstance(driver.screen, SqlScreen)
        assert not driver.app.database.find_oldest_call()


@pytest.mark.slow
async def test_leaving_sql_or_asking_other_sql_stops_what_runs(drive: Any) -> None:
    async with drive(start="queries", size=(140, 40)) as driver:
        await driver.press("e")
        await ask_without_end(driver)
        driver.screen.query_one(SqlEditor).text = "select 42 as answer"
        await driver.press("f5")
        assert driver.screen.table.row(0)["answer"] == 42
        driver.screen.action_edit()
        await ask_without_end(driver)
        await opened(driver)
        assert isinstance(driver.screen, AnswerScreen)
        assert driver.screen.table.count
        assert not driver.app.database.find_oldest_call()


async def test_sql_that_does_not_fit_is_one_line_in_the_banner(drive: Any) -> None:
    async with drive(size=(140, 40)) as driver:
        await driver.go("queries")
        await driver.press("e")
        editor = driver.screen.query_one(SqlEditor)
        for text, told in (("SELECT nothing FROM run", "nothing"), ("DROP TABLE run", "DROP is not allowed")):
            editor.text = text
            for key in ("f6", "f5"):
                await driver.press(key)
                line = next(line for line in driver.lines if line.strip().startswith("!"))
                assert told in line
        editor.text = "SELECT count(*) AS n FROM game"
        await driver.press("f5")
        assert not any(line.strip().startswith("!") for line in driver.lines)
        await driver.press("escape")
        assert driver.way.startswith("queries")


@pytest.mark.slow
async def test_several_completions_are_offered_and_one_is_chosen(drive: Any) -> None:
    async with drive(size=(140, 40)) as driver:
        await driver.go("queries")
        await driver.press("e")
        editor = driver.screen.query_one(SqlEditor)
        editor.text = "SELECT g.op FROM game AS g"
        editor.move_cursor((0, len("SELECT g.op")))
        await driver.press("tab")
        assert "g.opening_number" in driver.text
        await driver.press("escape")
        assert isinstance(driver.app.focused, SqlEditor)
        await driver.press("tab", "enter")
        assert editor.text == "SELECT g.opening_number FROM game AS g"


@pytest.mark.slow
async def test_a_plot_shows_the_numbers_of_its_query(drive: Any, session: Session, tmp_path: Path) -> None:
    entry, plot = find_plot("probe accuracy by layer")
    result = query_plot_rows(session.database, entry, plot)
    async with drive(size=(140, 40)) as driver:
        await opened(driver, entry.title)
        await driver.press("v")
        assert plot.title in driver.way
        chart = driver.screen.query_one(ChartView).chart
        drawn = sorted((point.x, point.y, point.low, point.high) for point in chart.points())
        ends = (f"{plot.y}_low", f"{plot.y}_high")
        baseline = [(row[plot.x], row[plot.y], None, None) for row in list_baseline_rows(result, plot)]
        rows = [(row[plot.x], row[plot.y], row[ends[0]], row[ends[1]]) for row in result.rows]
        assert drawn == sorted([*rows, *baseline])
        assert chart.y in driver.text
        assert "●" in driver.text
        await driver.press("w")
        await driver.press("ctrl+u")
        await driver.type(str(tmp_path / "figure.svg"))
        await driver.press("enter")
        assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
        await driver.press("y")
        assert driver.app.clipboard == f"chessreg plot '{plot.title}'"


@pytest.mark.slow
async def test_rows_and_commands_are_of_the_table_that_stands_there(drive: Any, monkeypatch: Any) -> None:
    title = "elo by intervention"

    def refused(*_: Any) -> Any:
        raise BadInputError("no answer")

    async with drive(size=(160, 40)) as driver:
        await opened(driver, title)
        command = driver.screen.command()
        monkeypatch.setattr("tui.screens.answers.answer_question", refused)
        await driver.press("O")
        assert "! no answer" in driver.text
        assert driver.screen.command() == command
        await driver.press("enter")
        assert driver.screen.question.scoring == "paper"
        await driver.press("escape", "v")
        plot, command = driver.screen.shown_plot, driver.screen.command()
        monkeypatch.setattr("tui.screens.answers.run_plot_query", refused)
        driver.screen.action_turn("1")
        await driver.settle()
        assert driver.screen.shown_plot is not plot
        assert (driver.screen.result_plot, driver.screen.command()) == (plot, command)


@pytest.mark.parametrize("suffix", quick_first(2, [".csv", ".parquet", ".md", ".tex", ".json"]))
async def test_a_table_is_written_as_the_command_writes_it(
    drive: Any, session: Session, tmp_path: Path, suffix: str
) -> None:
    result = run_query(session.database, TITLE)
    render.write_result(result, tmp_path / f"expected{suffix}")
    async with drive(size=(120, 40)) as driver:
        await opened(driver)
        await driver.press("w")
        assert "games-by-termination.csv" in driver.text
        await driver.type(str(tmp_path / f"table{suffix}"))
        await driver.press("enter")
    assert (tmp_path / f"table{suffix}").read_bytes() == (tmp_path / f"expected{suffix}").read_bytes()
    if suffix == ".csv":
        with (tmp_path / "table.csv").open() as file:
            assert len(list(csv.DictReader(file))) == len(result)


async def test_a_file_that_cannot_be_written_is_told_once_and_nothing_stays(drive: Any, tmp_path: Path) -> None:
    async with drive(size=(120, 40)) as driver:
        await opened(driver)
        await driver.press("w")
        for name in ("table.xls", "nowhere/table.csv"):
            await driver.type(str(tmp_path / name))  # in place of the name that is suggested, or was refused
            await driver.press("enter")
            assert isinstance(driver.app.screen, Prompt), "the path can be corrected"
            assert driver.app.notices[-1].severity == "error"
            assert name.split("/")[0].removeprefix("table") in driver.app.notices[-1].message
            assert not driver.screen.query_one(Banner).message
        assert not list(tmp_path.glob("table*"))


@pytest.mark.slow
async def test_the_lineage_of_a_number_is_a_key_away(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        await opened(driver, "best probe layers")
        await driver.press("L")
        assert "lineage of board" in driver.way
        assert "cache-fit" in driver.text
        await driver.press("escape", "enter", "L")
        assert "lineage of board" in driver.way


async def test_a_table_is_copied_for_a_paper_and_kept_in_a_file(drive: Any, session: Session, tmp_path: Path) -> None:
    result = run_query(session.database, TITLE)
    async with drive(size=(120, 40)) as driver:
        await opened(driver)
        await driver.press("Y")
        assert driver.app.clipboard == render.format_markdown(result)
        await driver.press("ctrl+y")
        assert driver.app.clipboard == render.format_latex(result)
        assert r"\begin{tabular}" in (tmp_path / "state" / "chessreg" / "tui" / "copied.txt").read_text()


async def test_games_are_scored_either_way_and_the_command_says_so(drive: Any, session: Session) -> None:
    title = "elo by intervention"
    other = render.format_cells(run_query(session.database, title, scoring="author-2024"))[1]
    async with drive(size=(160, 40)) as driver:
        await opened(driver, title)
        await driver.press("O")
        assert "scoring author-2024" in " ".join(driver.text.split())  # line ends do not matter
        table = driver.screen.query_one(PageTable)
        assert [[table.row(n)[f"c{c}"].strip() for c in range(len(line))] for n, line in enumerate(other)] == other
        assert driver.screen.command() == f"chessreg query '{title}' --scoring author-2024"


@pytest.mark.slow
async def test_a_file_that_is_there_is_overwritten_after_a_yes_only(drive: Any, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("mine")
    async with drive(size=(120, 40)) as driver:
        await opened(driver)
        for answer, kept in (("n", True), ("y", False)):
            await driver.press("w", "ctrl+u")
            await driver.type(str(file))
            await driver.press("enter")
            assert "already exists" in driver.text
            assert str(file) in driver.app.screen.question, "another folder may have one of this name"
            await driver.press(answer)
            assert (file.read_text() == "mine") is kept


@pytest.mark.slow
async def test_what_is_offered_stands_at_the_cursor_narrows_and_is_taken_by_enter(drive: Any) -> None:
    async with drive(size=(140, 40)) as driver:
        await driver.go("queries")
        await driver.press("e")
        editor = driver.screen.query_one(SqlEditor)
        editor.text = "SELECT op FROM game"
        editor.move_cursor((0, len("SELECT op")))
        await driver.press("tab")
        (line,) = [n for n, text in enumerate(driver.lines) if "opening_number" in text]
        assert 0 < line - next(n for n, text in enumerate(driver.lines) if "SELECT op" in text) <= 3
        await driver.type("ening_p")
        assert "opening_number" not in driver.text
        await driver.press("enter")
        assert editor.text == "SELECT opening_plies FROM game"
        assert "opening_number" not in driver.text
        await driver.press("enter")
        assert editor.text == "SELECT opening_plies\n FROM game", "nothing is offered: Enter is the editor's"
        editor.text = 'SELECT plies, 1 AS "n of" FROM game'
        await driver.press("f5")
        assert "plies" in driver.lines[editor.region.bottom + 1]
        await driver.press("e")
        editor.text, editor.names = "SELECT op FROM game", {}
        editor.move_cursor((0, len("SELECT op")))
        await driver.press("tab")
        assert driver.notices.endswith("names of tables and columns are still being read")
        await driver.press("tab")
        assert "opening_number" in driver.text, "they are read again where that failed"
        await driver.press("escape")
        editor.text = "SELECT unnest(range(1500)) * 1001 AS big ORDER BY big"
        await driver.press("f5")
        driver.screen.table.focus()
        await driver.press("G")
        await driver.until("1,500,499", seconds=60)  # of a later page, and not cut


STATEMENT = "SELECT a, bb\nFROM runs\nWHERE x"


@pytest.mark.parametrize(
    ("keys", "text", "at"),
    [
        ("dd", "FROM runs\nWHERE x", (0, 0)), ("Gdd", "SELECT a, bb\nFROM runs\n", (2, 0)),
        ("jddp", STATEMENT, (2, 0)), ("dw", STATEMENT.removeprefix("SELECT"), (0, 0)),
        ("jD", STATEMENT.replace("FROM runs", ""), (1, 0)), ("$xX", "SELECT a, bFROM runs\nWHERE x", (0, 11)),
        ("x", STATEMENT.removeprefix("S"), (0, 0)), ("wdb", STATEMENT.removeprefix("SELECT"), (0, 0)),
        ("Gkl", STATEMENT, (1, 1)), ("jjlgg", STATEMENT, (0, 0)), ("dddduU", "FROM runs\nWHERE x"[10:], (0, 0)),
        ("zqé7", STATEMENT, (0, 0)), ("dzdd", "FROM runs\nWHERE x", (0, 0)),
        ("oX", STATEMENT.replace("bb", "bb\nX"), (1, 1)), ("jOX", STATEMENT.replace("bb", "bb\nX"), (1, 1)),
        ("jAX", STATEMENT.replace("runs", "runsX"), (1, 10)), ("jIX", STATEMENT.replace("FROM", "XFROM"), (1, 1)),
        ("aX", "SXELECT" + STATEMENT[6:], (0, 2)), ("cwX", "X" + STATEMENT[6:], (0, 1)),
        ("CX", STATEMENT.replace("SELECT a, bb", "X"), (0, 1)), ("sX", "X" + STATEMENT[1:], (0, 1)),
    ],
)  # fmt: skip
async def test_keys_of_the_normal_mode_move_and_change(keys: str, text: str, at: tuple[int, int]) -> None:
    class Editing(App[None]):
        def compose(self) -> ComposeResult:
            yield VimEditor(STATEMENT)

    async with Editing().run_test() as pilot:
        editor = pilot.app.query_one(VimEditor)
        editor.focus()
        editor.vim = editor.normal = True
        await pilot.press(*keys)
        assert (editor.text, editor.cursor_location) == (text, at)


@pytest.mark.slow
async def test_the_editor_has_vims_keys_where_they_are_wanted_and_esc_leaves_a_room_without_rows(drive: Any) -> None:
    async with drive() as driver:
        await driver.go("queries")
        await driver.press("e")
        editor = driver.screen.query_one(SqlEditor)
        editor.text = "SELECT kind FROM run WHERE kind = 'none'"
        await driver.press("f5")
        await driver.settle()
        assert driver.app.focused is editor, "there are no rows to go to"
        await driver.press("escape")
        assert "SQL" not in driver.way, "once is enough"
        await driver.press("e", "f8")
        editor = driver.screen.query_one(SqlEditor)
        editor.text = "SELECT kind\nFROM run"
        editor.move_cursor((0, 0))
        await driver.press("escape")
        assert "normal" in driver.text
        await driver.press("d", "d")
        assert editor.text == "FROM run"
        await driver.press("u")
        assert editor.text == "SELECT kind\nFROM run"
        await driver.press("A")
        await driver.type(", id")
        assert "insert" in driver.text
        assert driver.lines.index(next(line for line in driver.lines if "insert" in line)) > 2
        await driver.press("escape", "escape")
        assert "SQL" not in driver.way
        await driver.press("e")
        assert driver.screen.query_one(SqlEditor).vim, "it is so again the next time"


@pytest.mark.slow
async def test_the_footer_names_the_export_of_a_table_at_80_columns(drive: Any) -> None:
    async with drive(start="queries", size=(80, 24)) as driver:
        await driver.press("e", "f5")
        assert "w export" in driver.lines[-1]
        await driver.press("escape")
        await driver.find_row("elo by intervention")
        await driver.press("enter")
        assert "w export" in driver.lines[-1]


@pytest.mark.slow
async def test_a_short_answer_has_its_curves_below_it_where_there_is_room(drive: Any, studied: Path) -> None:
    async with drive(studied, start="queries", size=(120, 60)) as driver:
        await opened(driver, "probe accuracy by layer")
        table, plot = driver.screen.query_one(PageTable), driver.screen.query_one("#plot")
        assert plot.display
        assert plot.border_title in driver.text
        assert "┤" in driver.text, "an axis"
        assert table.size.height >= table.count, "no row of the answer is out of sight"
        await driver.press("p")
        assert not plot.display, "published numbers are not those of the curves"
        await driver.press("p")
        assert plot.display
        await driver.pilot.resize_terminal(120, 30)
        await driver.settle()
        assert not plot.display
