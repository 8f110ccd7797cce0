"""Common tasks, each with its number of keys beyond the typed text: at most twelve, most of them six. The task in a
browser is in test_web, merging in test_merge_screen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from chessreg.scheduling.presence import Presence
from chessreg.session import Session, open_session
from tui.data.job_rows import list_job_pages
from tui.screens.answers import AnswerScreen, RowsScreen
from tui.screens.boards import BoardScreen, PairScreen
from tui.screens.compare import CompareScreen
from tui.screens.dialogs import PickerScreen
from tui.screens.edit import EditScreen
from tui.screens.heat import HeatScreen
from tui.screens.job import JobScreen
from tui.screens.lab import LabScreen
from tui.screens.launch import FormScreen
from tui.widgets.bars import KeyBar
from tui.widgets.table import PageTable


class Keys:
    """Presses keys and counts them; typed text is not counted."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.count = driver, 0

    async def __call__(self, *keys: str) -> None:
        self.count += len(keys)
        await self.driver.press(*keys)

    def told(self, task: str, most: int = 6) -> None:
        print(f"{task}: {self.count} keys beyond what is typed")
        assert self.count <= most


@pytest.mark.slow
async def test_two_runs_are_compared(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        press = Keys(driver)
        await press("slash")
        await driver.type("kind:play")
        await press("enter", "space", "space", "c")
        assert isinstance(driver.screen, CompareScreen)
        assert "baseline " in driver.text
        press.told("compare two runs")


@pytest.mark.slow
async def test_sql_is_asked_and_its_rows_are_written_to_a_file(drive: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    async with drive(size=(140, 40)) as driver:
        press = Keys(driver)
        await press("7", "e")
        await driver.type("SELECT run, kind FROM runs")
        await press("f5", "w", "enter")
        assert len((tmp_path / "rows.csv").read_text().splitlines()) == 9
        press.told("SQL and export")
        await driver.press("e", "escape", "f7")
        assert "SELECT run, kind FROM runs" in driver.text
        await driver.press("enter")
        assert driver.screen.query_one("SqlEditor").text == "SELECT run, kind FROM runs"
        await driver.press("escape", "escape", "e")
        await driver.type("SELECT 1")
        assert driver.screen.query_one("SqlEditor").text == "SELECT 1", "the last statement is replaced by typing"


async def test_the_best_layer_is_marked_on_its_heat_board(drive: Any, studied: Path) -> None:
    async with drive(studied, size=(120, 40)) as driver:
        press = Keys(driver)
        await press("7", "slash")
        await driver.type("accuracy by square")
        await press("enter", "v", "s")
        await driver.type("run:deep-board")
        await press("enter")
        text, screen = driver.text, driver.screen
        assert isinstance(screen, HeatScreen)
        press.told("the best layer with its heat board")
        assert "Tab next" in text.splitlines()[-1], "the line is left, and so are its keys"
        series = screen.series[screen.at]
        sums = [sum((board.heat or {}).values()) for board in series.boards]
        best = sums.index(max(sums))
        assert screen.panel == best
        assert "highest" in text
        assert f"› {series.boards[best].title}, highest"[:30] in text
        await press("tab")
        assert (screen.series[screen.at].name, screen.panel) == ("test", best), "validation chose it"


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_a_stored_edit_is_taken_into_the_lab_at_its_own_settings(drive: Any) -> None:
    async with drive(size=(80, 24)) as driver:
        press = Keys(driver)
        await press("slash")
        await driver.type("kind:edit")
        await press("enter", "enter", "enter", "enter", "down")
        state = driver.screen
        assert isinstance(state, EditScreen)
        edit = state.state.edit
        await press("e")
        press.told("an edit in the lab at its own settings, at 80×24", 7)
        lab = driver.screen
        assert isinstance(lab, LabScreen)
        assert (lab.edited_layers, lab.scale, lab.condition) == (edit.layers, edit.scale, edit.condition)
        # typed text is visible while it is typed, after the existing moves
        await driver.press("slash")
        await driver.type("Nc3")
        assert "Nc3" in driver.lines[-3]
        await driver.press("escape")
        assert "Esc back" in driver.text
        await driver.press("escape")
        assert driver.screen is state


async def test_a_game_is_set_beside_another_arms_where_they_part_at_80_by_24(drive: Any) -> None:
    async with drive(size=(80, 24)) as driver:
        press = Keys(driver)
        await press("5", "enter", "c", "d")
        press.told("where games part, at 80×24")
        text, screen = driver.text, driver.screen
        assert isinstance(screen, PairScreen)
        assert screen.pair is not None
        parts = screen.pair.parts
        assert f"identical for {parts} plies, then " in text
        assert f"after ply {parts + 1} of " in text, "where the first that differs is played"
        assert screen.ply == parts + 1
        assert "diverged" in text
        assert all(len(line) <= 80 for line in text.splitlines())


async def test_a_game_of_a_dataset_is_found_by_its_ratings(drive: Any, session: Session) -> None:
    async with drive(size=(80, 24)) as driver:
        press = Keys(driver)
        await press("5", "shift+tab", "slash")
        await driver.type("white_elo>1150 plies:40")
        await press("enter")
        row = driver.screen.query_one(PageTable).row(0)
        assert row["white_elo"] > 1150
        await press("enter")
        press.told("a dataset's game by rating, at 80×24")
        assert isinstance(driver.screen, BoardScreen)
        assert f"games {row['unit']}" in driver.way


@pytest.mark.slow
async def test_a_cache_and_a_probe_are_launched_watched_cancelled_and_tried_again(
    drive: Any, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[str] = []  # supervisors: none is started
    monkeypatch.setattr(Presence, "start", lambda self, url: wanted.append(url))
    own = Path(shutil.copytree(world, tmp_path / "own"))

    def job(kind: str) -> Any:
        with open_session(str(own / "registry.db"), own / "store") as session:
            return list_job_pages(session, f"kind:{kind}").read_page(0)[0]

    async with drive(own, size=(80, 24)) as driver:
        press = Keys(driver)
        await press("ctrl+p")
        await driver.type("launch cache")
        await press("enter")
        assert isinstance(driver.screen, PickerScreen), "it asks for the data at once"
        await press("enter")
        assert isinstance(driver.screen, PickerScreen), "then for the model"
        assert "bigram" in driver.text
        await press("enter")
        assert isinstance(driver.screen, FormScreen)
        await driver.once(lambda: driver.screen.outlook is not None, "the plan")
        assert "ready" in driver.text
        await press("ctrl+l")
        assert isinstance(driver.screen, JobScreen)
        assert len(wanted) == 1

        async def cancel_and_retry(kind: str) -> None:
            await press("x")
            assert job(kind)["state"] == "cancelled"
            assert "complete units are kept, R retries" in driver.notices
            await press("R")
            assert job(kind)["state"] in ("queued", "waiting")

        await cancel_and_retry("cache")
        await press("ctrl+p")
        await driver.type("launch probe")
        await press("enter")
        assert isinstance(driver.screen, FormScreen), "the run of the page is its cache"
        assert driver.screen.form.text("cache") == job("cache")["run_id"].hex[-6:]
        await press("ctrl+l")
        assert isinstance(driver.screen, JobScreen)
        assert driver.way.startswith("jobs › probe"), "not under the job of the cache"
        await cancel_and_retry("probe")
        press.told("a cache and a probe launched, cancelled and tried again, at 80×24", 12)
        # a job's tables have words too, apart from those found in its log
        await driver.press("tab", "tab", "slash")
        await driver.type("setting:cache")
        await driver.press("enter")
        assert driver.screen.query_one("#part", PageTable).count == 2
        await driver.press("escape")
        assert driver.screen.query_one("#part", PageTable).count > 2


@pytest.mark.slow
async def test_a_sweep_of_three_scales_is_launched_in_each_obvious_way_and_its_runs_have_names(
    drive: Any, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Presence, "start", lambda self, url: None)
    own = Path(shutil.copytree(world, tmp_path / "own"))
    async with drive(own, size=(120, 40)) as driver:

        async def choose_inputs(press: Keys) -> None:
            for needed in ("checkpoint", "probe"):
                assert driver.screen.crumb == needed
                await press("enter")
            assert driver.screen.crumb == "dataset", "an edit needs games or a position: games are asked for"
            await press("slash")
            await driver.type("games:test")
            await press("enter")

        async def sweep(press: Keys, scales: str, way: str) -> None:
            form = driver.screen
            assert isinstance(form, FormScreen), "the only one that has these words is taken"
            assert form.form.text("dataset") == "games:test"
            await press("slash")
            await driver.type("scale")
            await press("enter")  # a setting of this name: its text is edited
            await driver.type(scales)
            await press("enter", "ctrl+l")
            assert isinstance(driver.screen, JobScreen)
            press.told(f"a grid of three scales, {way}", 12)

        await driver.press("3", "enter", "escape")
        await driver.press("4")
        press = Keys(driver)
        await press("3", "3", "slash")  # a form may be open there
        await driver.type("edit")
        await press("enter")  # a kind of this name: its form opens
        await choose_inputs(press)
        await sweep(press, "5|6|7", "by the list of kinds")

        press = Keys(driver)
        await press("ctrl+p")
        await driver.type("launch edit")
        await press("enter")
        await choose_inputs(press)
        await sweep(press, "1|2|4", "by the palette")

        press = Keys(driver)
        await press("4", "slash")
        await driver.type("kind:edit")
        await press("enter", "ctrl+l")
        assert "the form has the settings of edits" in driver.notices
        kept = driver.app.saved_state.get("launch.drafts", {})
        await sweep(press, "8|9|10", "by an earlier run")
        assert driver.app.saved_state.get("launch.drafts", {}) == kept, "a run's form is not a draft"
        with open_session(str(own / "registry.db"), own / "store") as session:
            rows = list_job_pages(session, "").read_page(0)
        names = {row["name"].rpartition("scale")[2] for row in rows}
        assert names == {f"{scale}.0" for scale in (1, 2, 4, 5, 6, 7, 8, 9, 10)}


@pytest.mark.slow
async def test_the_games_of_an_arm_lead_to_the_ply_where_they_diverge(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        press = Keys(driver)
        await press("7", "slash")
        await driver.type("games by termination")
        await press("enter", "enter", "enter", "enter", "c", "d")
        assert isinstance(driver.screen, PairScreen)
        assert "diverged" in driver.text
        press.told("games of an arm and their divergence", 9)


async def test_a_number_leads_by_its_lineage_to_the_games_it_was_made_from(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        press = Keys(driver)
        await press("7", "slash")
        await driver.type("best probe layers")
        await press("enter", "enter", "L", "slash")
        await driver.type("dataset")
        await press("enter", "enter", "v", "enter")
        assert isinstance(driver.screen, BoardScreen), driver.text
        await press("P")
        assert "1. " in driver.app.clipboard, "the whole game, also at its start"
        assert "[Result " in driver.app.clipboard
        press.told("from a number to its PGN", 12)


async def test_trees_and_columns_have_words_and_an_order(drive: Any) -> None:
    async with drive(size=(120, 30)) as driver:
        await driver.press("C", "slash")
        await driver.type("machine")
        await driver.press("enter")
        table = driver.screen.query_one(PageTable)
        assert table.row(0)["key"] == "machine"
        on = table.row(0)["on"]
        await driver.press("space")
        assert table.row(0)["on"] != on
        await driver.press("K")
        assert "Esc clears the words" in driver.notices
        await driver.press("escape", "escape")
        await driver.find_row("edits")
        await driver.press("L")
        table = driver.screen.query_one(PageTable)
        whole = table.count
        assert "├──" in driver.text
        await driver.press("slash")
        await driver.type("cache")
        await driver.press("enter")
        assert 0 < table.count < whole
        assert not {"├──", "└──"} & set(driver.text.split())
        await driver.press("escape", "greater_than_sign")
        assert "lineage ▲" in driver.text
        assert table.count == whole


@pytest.mark.slow
async def test_with_the_mouse_alone_a_query_leads_to_a_board_and_back_home(drive: Any) -> None:
    async with drive(size=(140, 40)) as driver:
        clicks = 0

        async def click(word: str, row: int | None = None, table: bool = False) -> None:
            """Click a word on the screen, or the first row of its table."""
            nonlocal clicks
            clicks += 1
            if table:
                await driver.pilot.click(PageTable, offset=(4, 2))
            else:
                lines = driver.lines
                y = next(n for n, line in enumerate(lines) if word in line) if row is None else row
                await driver.pilot.click(offset=(lines[y].index(word) + 1, y))
            await driver.settle()

        await click("7 queries", 0)
        await click("games by termination")
        if not isinstance(driver.screen, AnswerScreen):
            await click("games by termination")
        assert isinstance(driver.screen, AnswerScreen)
        table = driver.screen.query_one(PageTable)
        await click("", table=True)
        assert isinstance(driver.screen, RowsScreen), table.count
        await click("", table=True)
        assert isinstance(driver.screen, BoardScreen)
        print(f"a query, its rows and their board with the mouse alone: {clicks} clicks")
        assert clicks <= 6
        assert driver.screen.query(KeyBar)
        await click("queries", 0)
        assert len(driver.app.screen_stack) == 1
        await click("chessreg", 0)
        assert driver.way == "home"


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_the_other_tasks_take_few_keys(
    drive: Any, studied: Path, queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twenty tasks of a new user that no test above counts."""
    monkeypatch.chdir(tmp_path)
    own = Path(shutil.copytree(studied, tmp_path / "own"))

    async with drive(own, size=(120, 40), start="home") as driver:

        async def words(press: Keys, text: str) -> None:
            """Filter the list by these words and select its first row."""
            await press("slash")
            await driver.type(text)
            await press("enter")

        press = Keys(driver)
        await press("7")
        await words(press, "best probe layers")
        await press("enter")
        assert "accuracy %" in driver.head
        assert "layer" in driver.head
        press.told("the best probe layer", 4)

        press = Keys(driver)
        await press("4")
        await words(press, "deep-board")
        await press("enter", "enter", "enter")
        assert isinstance(driver.screen, BoardScreen)
        assert "misread" in driver.text
        press.told("what a probe reads wrongly")

        press = Keys(driver)
        await press("F", "y")
        assert driver.app.clipboard.startswith("chessreg board ")
        assert "/" in driver.notices, "the FEN"
        press.told("the FEN and the command of a board", 2)

        press = Keys(driver)
        await press("7")
        await words(press, "probe accuracy by layer")
        await press("v")
        assert "accuracy %" in driver.text
        press.told("a plot by layer", 4)

        press = Keys(driver)
        await press("7")
        await words(press, "board intervention legality")
        await press("p")
        assert "Published numbers" in driver.text
        await press("escape", "enter", "p")
        assert "Published numbers" in driver.text
        await press("w", "enter")
        assert (tmp_path / "board-intervention-legality.csv").exists()
        press.told("published numbers, from the list and in the answer, written to a file", 9)

        for key, word, told in (
            ("n", "odd", "note: odd"),
            ("I", "wrong split", "invalid: wrong split"),
            ("z", "", "archived"),
        ):
            press = Keys(driver)
            await press("4", "4")  # the board is left
            await words(press, "longer")
            await press("enter", key)
            await driver.type(word)
            await press(*(["enter"] if word else []))
            assert told in driver.text
            press.told(told, 7)

        press = Keys(driver)
        await press("6")
        lab = driver.screen
        assert isinstance(lab, LabScreen)
        await press("question_mark")
        assert "Increase the scale" in driver.text
        press.told("help", 2)

    async with drive(queue.folder, size=(120, 40), start="home") as driver:
        press = Keys(driver)
        await press("2", "slash")
        await driver.type("state:failed")
        await press("enter")
        assert driver.screen.query_one(PageTable).count == 1
        press.told("all failed jobs", 3)
