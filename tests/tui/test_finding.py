"""One way to find things: words and columns narrow every table, > sorts it, rooms and breadcrumbs are clicked, the
palette finds everything, and keys are the user's own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product, starmap, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import JSON, Boolean, Float, Integer, MetaData, String, Table, and_, case, create_engine, insert, select
from sqlalchemy import Column as Stored
from sqlalchemy.dialects.postgresql import JSONB
from textual.command import CommandPalette
from textual.events import Key
from textual.widgets import Input

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.columns import TableColumn
from tui.data.dataset_rows import open_dataset_games
from tui.data.pages import PAGE_ROWS, JoinedPages, ListPages, Pages, count_rows_to
from tui.data.query_answers import answer_select
from tui.data.result_rows import list_results, make_result_columns
from tui.data.table_filter import View, make_conditions, make_json_field, make_mask, sort_indices
from tui.screens.answers import AnswerScreen, build_answer_columns
from tui.screens.boards import DATASET_GAME_COLUMNS, BoardScreen
from tui.screens.dialogs import PickerScreen
from tui.screens.help import Palette
from tui.screens.launch import FormScreen
from tui.screens.run import RunScreen
from tui.widgets.bars import TopBar
from tui.widgets.table import PageTable

from ..postgres import postgres as postgres

# -- words ------------------------------------------------------------------------------------------------------------

COLUMNS = (TableColumn("name", "who"), TableColumn("white_elo", "white elo", True),
           TableColumn("black_elo", "black elo", True),
           TableColumn("share", "share"),
           TableColumn("done", "", text=lambda row: "yes" if row["done"] else ""))  # fmt: skip
ROWS = [
    {"name": "Ann Bee", "white_elo": 1500, "black_elo": 2000, "share": 0.5, "done": True},
    {"name": "bob", "white_elo": 1901, "black_elo": None, "share": math.nan, "done": False},
    {"name": "Cy 1-0", "white_elo": None, "black_elo": 900, "share": None, "done": False},
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "Ann Bee,bob,Cy 1-0"), ("elo>1900", "Ann Bee,bob"), ("white_elo>1900", "bob"), ("elo<=900", "Cy 1-0"),
        ("1-0", "Cy 1-0"), ("!1-0", "Ann Bee,bob"), ('who:"ann b"', "Ann Bee"), ("who:ann bee", "Ann Bee"),
        ("elo>", "Ann Bee,bob,Cy 1-0"), ("!", "Ann Bee,bob,Cy 1-0"), ("share=0.5", "Ann Bee"), ("share>0", "Ann Bee"),
        ("yes", "Ann Bee"), ("white elo>1900", "bob"), ("!White Elo>1900 b", "Ann Bee"),
        ("white:1500", "Ann Bee"), ("name=BOB", "bob"), ("name!=bob", "Ann Bee,Cy 1-0"), ("elo>1900 !bee", "bob"),
        ("%", ""), ("elo>1,900", "Ann Bee,bob"), ("who:é", ""),
    ],
)  # fmt: skip
def test_words_narrow_rows(text: str, names: str) -> None:
    assert [row["name"] for row in ListPages(ROWS).narrow(View(text, columns=COLUMNS)).rows] == [
        name for name in names.split(",") if name
    ]


def test_what_has_no_value_comes_last_either_way_and_an_unknown_column_is_told() -> None:
    for descending, expected in ((False, [1500, 1901, None]), (True, [1901, 1500, None])):
        view = View("", "white_elo", descending, COLUMNS)
        assert [row["white_elo"] for row in ListPages(ROWS).narrow(view).rows] == expected
    with pytest.raises(BadInputError, match="column 'hue' does not exist"):
        ListPages(ROWS).narrow(View("hue:1", columns=COLUMNS))


# -- the engines agree ------------------------------------------------------------------------------------------------


@cache
def every(pages: Pages) -> list[Any]:
    count_rows_to(pages, 10**9)
    return [row for number in range(-(-pages.count // PAGE_ROWS)) for row in pages.read_page(number)]


@pytest.fixture(params=[pytest.param(JoinedPages.STRETCH, marks=pytest.mark.slow), 3])
def stretch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are checked all at once, and a few at a time."""
    monkeypatch.setattr(JoinedPages, "STRETCH", request.param)


@pytest.fixture(scope="module")
def listed(world: Path) -> Iterator[Callable[..., Pages]]:
    """Return the rows of a result table, of one run or of all, opened once for each size of a stretch."""
    with open_session(str(world / "registry.db"), world / "store") as opened:

        @cache
        def pages(table: str, run: Any, stretch: int) -> Pages:
            return list_results(opened, table, run)

        yield lambda table, run=None: pages(table, run, JoinedPages.STRETCH)


def agree(pages: Pages, columns: Any, text: str, sort: str = "", descending: bool = False) -> int:
    """That SQL or Arrow finds the rows that Python finds, in an order that is as good; returns how many."""
    view = View(text, sort, descending, tuple(columns))
    found, wanted = pages.narrow(view), ListPages(every(pages)).narrow(view)
    rows = every(found)
    assert len(rows) == found.count == wanted.count
    if sort:
        column = next(column for column in columns if column.field == sort)
        assert [column.format_cell(row) for row in rows] == [column.format_cell(row) for row in wanted.rows]
        assert sorted(map(repr, rows)) == sorted(map(repr, wanted.rows))
    else:
        assert rows == wanted.rows
    return found.count


@pytest.mark.parametrize(
    ("table", "text", "sort"),
    quick_first(6, [
        ("trial", "condition:edit", ""), ("trial", "ply>12", "ply"), ("game", "plain", "result"),
        ("game", "score:½", "opponent"), ("score", "layer:0", "item"), ("metric_point", "loss", "value"),
        ("trial", "legal_on_original:yes", ""),
        ("trial", "edits !condition:random mass_original>=0.01", "mass_original"), ("trial", "text:e", "text"),
        ("game", "plies>=7 run:sure", "plies"), ("game", "termination:limit", "seconds"),
        ("game", "color:white score>=0", "color"), ("game", "opponent:random", "points"),
        ("game", "opponent=RANDOM", "plies"), ("trial", "condition!=EDIT", "ply"),
        ("trial", "greedy", "sample"), ("trial", "sample=Greedy", ""), ("trial", "!sample:greedy edits", "sample"),
        ("score", "split:test accuracy>1", "accuracy"),
    ]),
)  # fmt: skip
def test_sql_finds_what_python_finds(
    listed: Callable[..., Pages], stretch: None, table: str, text: str, sort: str
) -> None:
    pages = listed(table)
    columns = make_result_columns(table, pages.read_page(0), with_run=True)
    some = [agree(pages, columns, text), agree(pages, columns, text, sort, True), agree(pages, columns, "", sort)]
    assert max(some) > 0
    run = next(row["run_id"] for row in pages.read_page(0))
    agree(listed(table, run), columns[1:], text.replace("run:sure", "").replace("edits", ""), sort)


@pytest.mark.parametrize(
    ("text", "sort", "count"),
    [("elo>1450", "", 24), ("white_elo>1150 !0-1", "white_elo", None), ("", "white_elo", 24), ("plies:40", "unit", 24),
     ("run:games unit<3", "black_elo", 3), ("nobody", "", 0), ('"plies:40"', "", 0), ('!"plies:40"', "", 24)],
)  # fmt: skip
def test_arrow_finds_what_python_finds_in_datasets(session: Session, text: str, sort: str, count: int | None) -> None:
    found = agree(open_dataset_games(session), DATASET_GAME_COLUMNS, text, sort, descending=bool(sort))
    assert count in (None, found)


VALUES: dict[str, list[Any]] = {
    "words": ["B20", "b20", "", None, "1-0", "12.5 %", "1,234", "9", "10", "½", "−3", "2026-01-31", "1e3", "a_b"],
    "whole": [0, 1, 9, 10, -3, 1234, None],
    "real": [0.5, -3.0, 12.5, 1e-7, None],
    "truth": [True, False, None],
    "mixed": [9, 10, 0.5, "B20", "9", "½", True, False, "yes", "1-0", None],
}
WORDS = ("B20", "9", "1", "0.5", "1,234", "-3", "½", "yes", "1-0", "2026", "inf", "_", "1e300")


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_a_word_means_the_same_in_python_sql_and_arrow(dialect: str, request: pytest.FixtureRequest) -> None:
    """Every comparison of every kind of value, with every kind of word, also with missing values."""
    document = JSON().with_variant(JSONB(), "postgresql")
    kinds = {"words": String(20), "whole": Integer(), "real": Float(53), "truth": Boolean(), "mixed": document}
    table = Table("told", MetaData(), Stored("id", Integer, primary_key=True), *starmap(Stored, kinds.items()))
    lines = enumerate(zip_longest(*VALUES.values()))
    rows = [dict(zip(VALUES, values, strict=True)) | {"id": n} for n, values in lines]
    fields = {name: table.c[name] for name in VALUES} | {"mixed": make_json_field(table.c.mixed, "its", dialect)}
    arrays = {name: pa.array([row[name] for row in rows]) for name in VALUES if name != "mixed"}
    url = "sqlite://" if dialect == "sqlite" else request.getfixturevalue("postgres").empty()
    with create_engine(url).connect() as connection:
        table.create(connection)
        connection.execute(insert(table), [row | {"mixed": {"its": row["mixed"]}} for row in rows])
        for name in VALUES:
            texts = [f"{name}{sign}{word}" for sign, word in product((":", "=", "!=", "<", ">="), WORDS)]
            texts += [*WORDS, *(f"!{name}<{word}" for word in WORDS)]
            views = {text: View(text, columns=(TableColumn(name, name),)) for text in texts}
            wanted = {text: [row["id"] for row in ListPages(rows).narrow(view).rows] for text, view in views.items()}
            every = [case((and_(*make_conditions(view, fields.get, dialect)), 1), else_=0) for view in views.values()]
            found = np.array(connection.execute(select(*every).order_by(table.c.id)).all(), bool)
            for place, (text, view) in enumerate(views.items()):
                assert np.flatnonzero(found[:, place]).tolist() == wanted[text], (dialect, text)
                if name in arrays:
                    assert np.flatnonzero(make_mask(view, arrays.get, len(rows))).tolist() == wanted[text], (
                        "Arrow",
                        text,
                    )
            for word in WORDS:
                both = wanted[f"{name}={word}"] + wanted[f"{name}!={word}"]
                assert sorted(both) == [row["id"] for row in rows], "!= finds what = leaves out"
        assert wanted["mixed>=9"] == [0, 1, 3, 4, 8], "by value: 10 is more than 9"


def test_moves_are_looked_for_to_their_end(session: Session) -> None:
    pages = open_dataset_games(session)
    ((_, _, games),) = pages.parts
    texts = games.table(["text"]).column("text").to_pylist()
    word = texts[0].split()[-1]
    found = pages.narrow(View(f"moves:{word}", columns=DATASET_GAME_COLUMNS))
    assert [row["unit"] for row in every(found)] == [n for n, text in enumerate(texts) if word.lower() in text.lower()]
    assert found.narrow(View("unit=0", columns=DATASET_GAME_COLUMNS)).count == 1


def test_a_million_answers_are_narrowed_as_their_values_are(session: Session) -> None:
    """A million lines are a few here; the values, not their texts, are compared."""
    answer = answer_select(
        session, "SELECT g.unit, g.plies, g.result, g.seconds, g.run_id FROM game AS g ORDER BY run_id, unit"
    )
    columns = build_answer_columns(answer)
    for text, sort in (("plies>7", ""), ("result:1", "c1"), ("", "c2"), ("#<3", "#"), ("!1-0", "c0")):
        agree(answer.pages, columns, text, sort)
    numbers = [row["#"] for row in every(answer.pages.narrow(View("#>2", "c1", True, tuple(columns))))]
    assert sorted(numbers) == [3, 4, 5, 6]


@pytest.mark.parametrize("descending", [False, True])
def test_equals_stay_as_they_stood_and_texts_are_ordered_without_regard_to_case(descending: bool) -> None:
    for values in (
        ["b", "B", None, "Ä", "a", "ä", "", "A", None, "b"],
        [3, None, 1, 3, -70_000, 90_000, 1],
        [None],
        [],
    ):
        held = [place for place, value in enumerate(values) if value is not None]
        held.sort(key=lambda place: str(values[place]).lower() if isinstance(values[0], str) else values[place],
                  reverse=descending)  # fmt: skip
        nulls = [place for place, value in enumerate(values) if value is None]
        kind = pa.string() if not held or isinstance(values[0], str) else pa.int32()
        assert sort_indices(pa.array(values, kind), descending).tolist() == [*held, *nulls]


# -- journeys ---------------------------------------------------------------------------------------------------------


async def test_a_game_of_a_dataset_is_found_by_rating(drive: Any) -> None:
    async with drive(size=(160, 40)) as driver:
        keys = ["5", "tab", "tab", "tab", "slash"]
        await driver.press(*keys)
        await driver.type("white_e")
        assert "white_elo>" in driver.text  # the offered words
        await driver.press("tab")
        await driver.type("1150 plies:40")
        await driver.press("enter")
        text = driver.text
        table = driver.screen.query_one(PageTable)
        ratings = [table.row(n)["white_elo"] for n in range(table.count)]
        assert ratings
        assert min(ratings) > 1150
        assert f"{table.count} of 24" in text
        for _ in range(12):  # through the columns that are shown
            await driver.press("greater_than_sign")
            if "white elo ▲" in driver.text:
                break
        assert "white elo ▲" in driver.text
        await driver.press("less_than_sign")
        best = table.row(0)
        assert best["white_elo"] == max(ratings)
        await driver.press("enter")
        assert isinstance(driver.screen, BoardScreen)
        assert f"game {best['unit']}" in driver.text
        await driver.press("escape", "escape")
        assert driver.screen.query_one(PageTable).count == 24, "Esc cleared the words"


async def test_a_word_alone_is_looked_for_in_all_shown_columns_and_a_number_leads_to_a_row(drive: Any) -> None:
    async with drive(size=(160, 40)) as driver:
        await driver.press("5", "slash")
        await driver.type("sure")
        await driver.press("enter")
        table = driver.screen.query_one(PageTable)
        assert {table.row(n)["run"] for n in range(table.count)} == {"sure"}
        await driver.press("escape", "number_sign")
        await driver.type("5")
        await driver.press("enter")
        assert (table.count, table.cursor) == (6, 4)
        await driver.press("number_sign")
        await driver.type("none")
        await driver.press("enter")
        assert "none is not a row number" in driver.notices
        await driver.press("slash")
        await driver.type("hue>3")
        await driver.press("enter")
        assert "! column 'hue' does not exist" in driver.text
        await driver.press("escape", "tab")
        assert "hue" not in driver.text


async def test_rooms_and_breadcrumbs_are_clicked(drive: Any) -> None:
    async with drive(size=(140, 30)) as driver:

        async def click(word: str) -> None:
            line = next(n for n, text in enumerate(driver.lines[:2]) if word in text)
            await driver.pilot.click(TopBar, offset=(driver.lines[line].index(word), line))
            await driver.settle()

        await driver.find_row("plain")
        await driver.press("enter", "enter")
        assert isinstance(driver.screen, BoardScreen)
        await click("runs ›")
        assert "runs" in driver.way
        assert driver.screen.query(PageTable)
        assert len(driver.app.screen_stack) == 1
        await click("7 queries")
        assert driver.way.startswith("queries")
        await click("chessreg")
        assert driver.way.startswith("home")
        await driver.pilot.resize_terminal(70, 20)
        await driver.press("4")
        assert "1 home" in driver.text
        await click("7 queries")
        assert driver.way.startswith("queries")


@pytest.mark.slow
async def test_the_palette_finds_everything_and_what_is_used_comes_first(drive: Any) -> None:
    async with drive(size=(140, 60)) as driver:

        async def choose(words: str) -> None:
            await driver.burst("ctrl+p", *words)  # faster than the findable rows are read
            await driver.press("enter")
            await driver.settle()

        await choose("run board")
        assert isinstance(driver.screen, RunScreen)
        assert "board" in driver.way
        await choose("query games by termination")
        assert isinstance(driver.screen, AnswerScreen)
        await choose("launch play")
        assert isinstance(driver.screen, PickerScreen), "over the form: it asks for what is needed"
        await driver.press("escape")
        assert isinstance(driver.screen, FormScreen)
        assert driver.screen.form.kind.name == "play"
        await choose("launch probe")
        await driver.press("escape")
        assert driver.screen.form.kind.name == "probe", "from an open form too"
        await choose("theme: nord")
        assert driver.app.theme == "nord"
        await choose("queries: write a sql")
        assert "SQL" in driver.way
        await driver.press("4", "ctrl+p")
        await driver.settle()
        assert "Query: games by termination" in driver.text, "what was chosen is offered again"


async def test_enter_in_the_palette_waits_for_its_search(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    search, go = Palette.search, asyncio.Event()

    async def search_slowly(self: Palette, words: str) -> Any:
        await go.wait()
        async for hit in search(self, words):
            yield hit

    monkeypatch.setattr(Palette, "search", search_slowly)
    async with drive() as driver:
        app = driver.app
        for key in ("ctrl+p", *"run board"):
            app.post_message(Key("space" if key == " " else key, key if len(key) == 1 else None))
        while not any(line.value == "run board" for line in app.screen.query(Input)):
            await asyncio.sleep(0.01)
        while app.typed_keys.under_way:
            await asyncio.sleep(0.01)
        app.post_message(Key("enter", None))
        await asyncio.sleep(0.2)
        assert isinstance(app.screen, CommandPalette)
        go.set()
        await driver.settle()
        assert isinstance(driver.screen, RunScreen), driver.text


async def test_keys_are_the_users_own(drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from tui.keys import load_keys

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "chessreg" / "keys.toml"
    assert load_keys() == {}
    file.parent.mkdir()
    for text, told in (
        ('"runs.compare" = "L"', "L in runs is both"), ('"runs.paint" = "v"', "action 'runs.paint' does not exist"),
        ('"annotate.tag" = "c"', "c in runs is both runs.compare and annotate.tag"),
        ("compare", "keys.toml"), ('"runs.compare" = 3', "is 3"), ('"runs.compare" = "4"', "is taken everywhere"),
        ('"runs.mark" = "g"', "runs.mark and table.first"), ('"table.last" = "c"', "and table.last want the same key"),
        ('"runs.compare" = "ctrl+"', "is not a key"), ("\xff", "keys.toml"),
        ('"prompt.accept" = "j"', "j of prompt.accept is text"),
        ('"sql.run" = "f5 ?"', "question_mark of sql.run is text"),
        ('"filter.leave" = "space"', "space of filter.leave is text"),
    ):  # fmt: skip
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(BadInputError, match=told):
            load_keys()
    file.write_text('[runs]\ncompare = "v ctrl+k"\n[everywhere]\nhelp = "f1"\n')
    async with drive(keys=load_keys()) as driver:
        assert "v compare" in driver.text
        await driver.press("c")
        assert "compare 1 run" not in driver.way
        await driver.find_row("cut")
        await driver.press("space", "up", "space", "v")
        assert "compare" in driver.way
        await driver.press("f1")
        assert "help" in driver.way
    assert run_command_line(["tui", "--keys"]) == 0
    assert '#"runs.compare" = "c"  # Compare the marked runs' in capsys.readouterr().out


async def test_the_count_of_what_fits_hides_no_heading(drive: Any) -> None:
    async with drive(size=(90, 30)) as driver:
        await driver.press("4")
        await driver.find_row("edits")
        await driver.press("enter", "tab")
        table = driver.screen.query_one(PageTable)
        head = next(line for line in driver.lines if "state  condition" in line)
        await driver.press("slash")
        await driver.type("condition:edit")
        await driver.press("enter")
        assert 0 < table.count < table.whole.count
        assert head.rstrip("│ ").endswith(" »")
        assert not [line for line in driver.lines if "state  condition" in line and " of " in line]
        assert driver.text.count(f" {table.count:,} of {table.whole.count:,} ─") == 2, "in the frames of words and rows"


async def test_the_first_columns_and_the_cursor_stay_where_columns_are_scrolled(drive: Any) -> None:
    async with drive(size=(60, 24)) as driver:
        await driver.press("l", "l", "l")
        table = driver.screen.query_one(PageTable)
        assert table.scroll_offset.x > 0
        rows = driver.lines[3 : 4 + table.count]
        assert rows[0].startswith("│  name")
        assert "«" in rows[0]
        assert "kind" not in rows[0]
        assert rows[1].startswith("│› cut")
        at = rows[0].index("units") - 1
        assert table.find_column(at).field == "done"
        assert table.find_column(3).field == "name"
        await driver.press("h", "h", "h")
        assert "kind" in driver.lines[3]
