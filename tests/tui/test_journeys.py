"""The work of a researcher: from the runs to a board, from a table's line to the game behind it."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from chessreg.cli.root import run_command_line
from chessreg.queries import render, run_query, run_sql
from chessreg.registry import read
from chessreg.session import Session, open_session
from tui import show
from tui.data.board_views import load_boards
from tui.data.job_rows import load_run_answers
from tui.data.result_rows import list_results
from tui.data.run_rows import format_headline
from tui.screens.boards import BoardScreen
from tui.screens.help import Palette, format_keys_and_command
from tui.widgets.bars import FilterBar
from tui.widgets.table import PageTable


def run_of(session: Session, name: str) -> dict:
    with session.database.read() as sql:
        return read.read_run(sql, name)


async def test_the_runs_are_listed_with_state_and_units(drive, session: Session) -> None:
    async with drive() as driver:
        with session.database.read() as sql:
            told = read.list_runs(sql)
        assert f"{len(told)} runs (1 not complete) · 1 dataset · 1 checkpoint" in driver.text
        for run in told:
            (line,) = [line for line in driver.lines if line.strip("│› ").startswith(f"{run['name']}  ")]
            assert f"{run['state']} " in line
            assert f" {run['done']}/{run['units']} " in line
        assert 0 < next(run for run in told if run["name"] == "cut")["done"] < 9
        newest_first = [line for line in driver.lines if "2026-01-02" in line]
        assert "cut" in newest_first[0]
        assert "cache-fit" in newest_first[-1]


async def test_typing_narrows_the_runs_and_escape_brings_them_back(drive) -> None:
    async with drive() as driver:
        await driver.press("slash")
        assert "Enter to the list, again opens  Esc clear" in driver.lines[-1]
        await driver.type("state:partial")
        bar = driver.screen.query_one(FilterBar)
        assert bar.value == "state:partial"
        await driver.press("enter")
        assert "1 of 8 runs" in driver.text
        assert " cut " in driver.text
        assert "complete " not in driver.text.replace("not complete", "")
        assert "Esc clear filter" in driver.lines[-1]
        await driver.press("escape")
        assert "8 runs (1" in driver.lines[1]
        assert "Esc clear filter" not in driver.lines[-1]
        assert isinstance(driver.app.focused, PageTable)


async def test_a_word_that_is_no_field_is_told_in_the_banner_until_it_is_mended(drive) -> None:
    async with drive() as driver:
        await driver.press("slash")
        await driver.type("hue:1")
        await driver.press("enter")
        assert "! runs have no field 'hue'" in driver.text
        await driver.press("slash", "escape")
        assert "hue" not in driver.text


async def test_a_run_shows_what_the_command_shows_part_by_part(drive, session: Session) -> None:
    run = run_of(session, "edits")
    async with drive(size=(160, 90)) as driver:
        await driver.find_row("edits")
        await driver.press("enter")
        assert "[by condition]" in driver.text
        await driver.press("tab")
        trials = list_results(session, "trial", run["id"]).count
        assert f"[trials {trials}]" in driver.text
        await driver.press("tab")
        assert "[metrics]" in driver.text
        await driver.press("tab")
        assert "[settings]" in driver.text
        for setting in run["spec"]:
            assert any(line.strip("│› ").startswith(f"{setting}  ") for line in driver.lines)
        games = next(line for line in driver.lines if " games " in line)
        assert "given" in games
        await driver.press("tab")
        assert "[attempts 1]" in driver.text
        assert "complete" in driver.text
        await driver.press("tab")
        assert f"[inputs {len(run['inputs'])}]" in driver.text
        await driver.press("tab")
        assert f"[outputs {len(run['outputs'])}]" in driver.text
        await driver.press("tab")
        assert "[by condition]" in driver.text


async def test_a_run_opens_on_its_answer_and_a_line_of_it_leads_to_the_rows_behind_it(
    drive, study: Session, studied: Path
) -> None:
    def counted(run: str, condition: str) -> Any:
        return run_sql(study.database, f"SELECT {condition} FROM {run}").rows[0]

    async with drive(studied, size=(160, 40)) as driver:
        await driver.find_row("deep-board")
        await driver.press("enter")
        with study.database.read() as sql:
            answer = format_headline(sql, study.id("run", "deep-board"))
        assert driver.lines[2].split() == answer.split(), "the headline"
        table = driver.screen.query_one(PageTable)
        scores = "score JOIN runs USING (run_id) WHERE runs.run = 'deep-board' AND layer = 1"
        found = counted(f"{scores} AND split = 'test'", "sum(correct) / sum(n) AS share, count(*) AS games")
        assert table.row(1)["test"] == pytest.approx(float(found["share"]))
        best = max(range(table.count), key=lambda place: table.row(place)["validation"])
        assert table.cursor == best, "the cursor is on the layer that validation chooses"
        table.move(1)
        await driver.press("enter")
        assert "[scores" in driver.text
        assert table.count == counted(scores, "count(*) AS n")["n"]
        await driver.press("escape")
        assert table.count == list_results(study, "score", study.id("run", "deep-board")).count
        await driver.press("escape")
        await driver.find_row("edits")
        await driver.press("enter", "down")
        row = table_row(driver)
        assert row["condition"] == "edit"
        (answer,) = load_run_answers(study, [run_of(study, "edits")["id"]]).values()
        assert answer["low"] is not None
        name = "legal_modified" if answer["measure"].startswith("legal on") else "mass_modified"
        column = next(column for column in driver.screen.query_one(PageTable).columns if column.field == name)
        assert column.heading.removesuffix(" %") in driver.lines[2], "as in the headline"
        assert column.format_cell(row) == show.format_measured_value(answer).replace(" %", ""), "as in the headline"
        assert show.format_measured_value(answer) in driver.lines[2]
        await driver.press("enter")
        trials = "trial JOIN runs USING (run_id) WHERE runs.run = 'edits' AND condition = 'edit'"
        assert driver.screen.query_one(PageTable).count == counted(trials, "count(*) AS n")["n"]
        await driver.press("escape", "escape")
        await driver.find_row("train-1")
        await driver.press("enter")
        assert "[metrics]" in driver.text
        assert "heldout loss" in driver.head, "a column for each metric"
        assert "heldout loss" in driver.lines[6]
        assert table_row(driver)["step"] == 3
        await driver.press("escape")
        await driver.find_row("plain")
        await driver.press("enter")
        assert "[games 3]" in driver.text, "one match: the headline says it all"
        assert "by match" in driver.text


def table_row(driver: Any) -> Any:
    return driver.screen.query_one(PageTable).current_row


async def test_an_input_leads_to_the_run_that_made_it(drive) -> None:
    async with drive() as driver:
        await driver.find_row("edits")
        await driver.press("enter", *["tab"] * 5)
        await driver.find_row("probe")
        await driver.press("enter")
        assert "probe (version" in driver.text
        assert "scores" in driver.text
        await driver.press("escape")
        assert "[inputs 4]" in driver.text


async def test_a_game_is_stepped_through_to_its_end_and_its_illegal_tries_are_told(drive, session: Session) -> None:
    run = run_of(session, "plain")
    row = list_results(session, "game", run["id"]).read_page(0)[0]
    frames = load_boards(session, row).views
    async with drive() as driver:
        await driver.find_row("plain")
        await driver.press("enter", "enter")
        screen = driver.screen
        assert isinstance(screen, BoardScreen)
        assert len(frames) > 2
        await driver.press("right", "l")
        assert screen.frame == 2
        assert screen.views == [frames[2]]
        assert frames[2].caption[0] in driver.text
        await driver.press("left")
        assert screen.frame == 1
        await driver.press("end")
        assert screen.views == [frames[-1]]
        await driver.press("right")
        assert screen.frame == len(frames) - 1
        await driver.press("home")
        assert screen.frame == 0
        with_tries = [n for n, frame in enumerate(frames) if any("illegal" in line for line in frame.caption)]
        assert with_tries, "the bigram model makes illegal tries"
        await driver.press("exclamation_mark")
        assert screen.frame == with_tries[0]
        told = next(line for line in frames[with_tries[0]].caption if "illegal" in line)
        assert told[:20] in driver.text


async def test_a_room_is_left_as_it_is_and_its_own_key_leads_to_its_first_screen(drive) -> None:
    async with drive() as driver:
        await driver.find_row("plain")
        await driver.press("enter", "enter")
        assert isinstance(driver.screen, BoardScreen)
        await driver.press("7", "4")
        assert isinstance(driver.screen, BoardScreen)
        await driver.press("4")
        assert driver.way.startswith("runs")
        assert driver.screen.query_one(PageTable).current_row["name"] == "plain"


@pytest.mark.slow
async def test_down_goes_on_to_the_next_game_of_the_list(drive) -> None:
    async with drive() as driver:
        await driver.find_row("plain")
        await driver.press("enter", "enter")
        screen = driver.screen
        assert isinstance(screen, BoardScreen)
        first = screen.boards
        await driver.press("down")
        assert screen.boards is not None
        assert screen.boards.row["unit"] == 1
        assert screen.boards.views != first.views
        await driver.press("k", "k")
        assert screen.boards.row["unit"] == 0


async def test_from_a_table_to_the_rows_behind_a_line_to_the_board(drive, session: Session) -> None:
    title = "games by termination"
    result = run_query(session.database, title)
    headings, cells, _, _ = render.format_cells(result)
    async with drive(size=(160, 40)) as driver:
        await driver.press("7", "slash")
        await driver.type("termination")
        await driver.press("enter")
        await driver.find_row(title)
        await driver.press("enter")
        assert f"queries › {title}" in driver.way
        for line, number in zip(cells, range(1, 99), strict=False):
            shown = next(text for text in driver.lines if text.lstrip("│› ").startswith(f"{number} "))
            for cell in line:
                assert cell in shown
        assert all(heading in driver.text for heading in headings)
        await driver.press("enter")
        assert "row 1" in driver.way
        table = driver.screen.query_one(PageTable)
        behind = table.row(0)
        assert table.count >= 1
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, BoardScreen)
        assert screen.boards is not None
        assert screen.boards.row["run_id"] == UUID(behind["run_id"])
        assert screen.boards.row["unit"] == behind["unit"]
        await driver.press("escape", "escape", "escape")
        assert driver.way == "queries"


@pytest.mark.slow
async def test_the_papers_numbers_stand_beside_ours(drive) -> None:
    async with drive(size=(160, 40)) as driver:
        await driver.press("7")
        await driver.find_row("probe accuracy by layer")
        await driver.press("enter", "p")
        assert "published" in driver.text
        assert "Karvonen 2024" in driver.text
        await driver.press("p")
        assert "published" not in "\n".join(driver.lines[:-1])


async def test_the_boards_room_lists_games_trials_and_scores_of_all_runs(drive) -> None:
    async with drive(size=(160, 40)) as driver:
        await driver.press("5")
        assert "[games]" in driver.text
        assert " sure " in driver.text
        assert " plain " in driver.text
        await driver.press("tab")
        assert "[trials]" in driver.text
        assert " edits " in driver.text
        await driver.press("tab")
        assert "[scores]" in driver.text
        await driver.find_row("toy")
        await driver.press("enter")
        assert isinstance(driver.screen, BoardScreen)
        await driver.once(lambda: driver.screen.boards, "the board")
        assert driver.screen.boards.kind == "toy"


async def test_a_game_of_a_dataset_is_stepped_through(drive, world: Path) -> None:
    async with drive(size=(160, 40)) as driver:
        await driver.app.switch_mode("boards")
        for _ in range(3):  # before its lists are known
            driver.screen.action_result_table("1")
        await driver.settle()
        assert "[dataset games]" in driver.text
        table = driver.screen.query_one(PageTable)
        assert table.count == 24
        assert table.row(3)["white_elo"] == 1120
        table.move(3)
        await driver.press("enter", "right", "right")
        screen = driver.screen
        assert isinstance(screen, BoardScreen)
        assert "games game 3: 1120 – 1500, *" in driver.text
        assert len(screen.boards.views) == 41
        place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
        with redirect_stdout(StringIO()) as said:
            assert run_command_line([*place, "board", "games:3", "--ply", "2", "--json"]) == 0
        (told,) = json.loads(said.getvalue())["boards"]
        assert (told["fen"], told["title"]) == (screen.views[0].fen, screen.views[0].title)
        assert "c compare" not in driver.lines[-1]
        assert driver.screen.command() == "chessreg board a1b2c3:3 --ply 2"
        await driver.press("down")
        assert "games game 4" in driver.text


async def test_help_and_palette_have_every_action_of_the_place(drive) -> None:
    async with drive(size=(160, 110)) as driver:  # high enough for all of the help
        actions = driver.screen.list_actions()
        await driver.press("question_mark")
        for action in actions:
            assert action.text in driver.text
            assert action.shown_keys in driver.text
        await driver.press("escape")
        palette = Palette(driver.app.screen)
        await palette.startup()
        offered = [hit.help async for hit in palette.discover()]
        assert offered == [format_keys_and_command(action) for action in actions if action.method != "palette"]
        await driver.press("ctrl+p")
        await driver.type("queries")
        await driver.until("Go to the queries")
        await driver.press("enter")
        await driver.press()
        assert driver.way.startswith("queries")


async def test_the_command_that_prints_what_is_shown_is_copied(drive) -> None:
    async with drive() as driver:
        await driver.press("y")
        assert driver.app.clipboard == "chessreg runs list"
        await driver.find_row("plain")
        await driver.press("enter", "enter", "right", "y")
        assert driver.app.clipboard == "chessreg board a1b2c3:0 --ply 1"


async def test_an_empty_registry_says_what_to_type_and_follows(drive, tmp_path: Path) -> None:
    async with drive(tmp_path) as driver:
        assert "There are no games yet." in driver.text
        assert "$ chessreg demo" in driver.text
        assert "$ chessreg dataset add FILE.pgn --name games" in driver.text
        assert driver.lines[-1].strip() == "? help  q quit  C columns  A import  M merge  ^p actions", (
            "no row: no key for one"
        )
        await driver.press("8")
        assert driver.lines[-1].strip() == "? help  q quit  Tab next  A add  ^p actions"
        await driver.press("6")
        assert driver.lines[-1].strip() == "? help  q quit  ^p actions"
        await driver.press("5")
        assert "no boards yet" in driver.text
        await driver.press("4")
        with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
            from chessreg.runs.kind import find_kind

            toy = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")
            session.run(find_kind(toy).spec(positions=2), kind=toy, name="late")
        await driver.until("late")  # another process wrote; no key was pressed
        assert "1 run · " in driver.text
        assert "/ filter" in driver.lines[-1]


async def test_read_only_writes_nothing_and_says_so(world: Path, drive) -> None:
    def files() -> set[tuple[str, bytes]]:
        return {(path.name, path.read_bytes()) for path in (world / "store" / "fragments").rglob("*") if path.is_file()}

    before = files()
    async with drive(read_only=True, size=(120, 30)) as driver:
        assert "read only" in driver.lines[0]
        await driver.press("r", "enter")
        assert driver.app.is_running
    assert files() == before


async def test_a_registry_that_is_not_there_ends_the_app_with_the_reason(tmp_path: Path, drive) -> None:
    from chessreg.errors import NotFoundError

    async with drive(tmp_path, read_only=True) as driver:
        await driver.once(lambda: not driver.app.is_running, "the end")
        assert isinstance(driver.app.return_value, NotFoundError)


async def test_a_lost_database_is_a_banner_and_comes_back(drive, monkeypatch: pytest.MonkeyPatch) -> None:
    from chessreg.errors import RegistryError
    from tui.registry import OffLoopDatabase

    async with drive() as driver:

        def lost(self: OffLoopDatabase):
            raise RegistryError("the registry box2 does not answer", "check that the server runs")

        with monkeypatch.context() as patch:
            patch.setattr(OffLoopDatabase, "read", lost)
            await driver.press("enter")
            assert "! the registry box2 does not answer (check that the server runs" in driver.text
            await driver.press("escape", "j")
            assert driver.screen.query_one(PageTable).cursor == 1
        await driver.once(lambda: "does not answer" not in driver.text, "the registry again")
        await driver.press("enter")
        assert "units" in driver.text


@pytest.mark.slow
async def test_all_fields_of_a_line_are_shown_in_full(drive, session: Session) -> None:
    title = "elo by intervention"
    headings, cells, _, _ = render.format_cells(run_query(session.database, title))
    async with drive(size=(100, 50)) as driver:
        await driver.press("7")
        await driver.find_row(title)
        await driver.press("enter", "i")
        for heading, cell in zip(headings, cells[0], strict=True):
            assert any(line.strip("│ ").split() == [*heading.split(), *cell.split()] for line in driver.lines), heading
        await driver.press("escape", "escape", "4")
        await driver.find_row("toy")
        await driver.press("enter", "i")
        assert any(line.strip("│ ").startswith("fen ") and line.count("/") == 7 for line in driver.lines)


@pytest.mark.parametrize("size", [(20, 6), pytest.param((40, 12), marks=pytest.mark.slow)])
async def test_a_tiny_terminal_shows_what_fits(drive, size: tuple[int, int]) -> None:
    async with drive(size=size) as driver:
        await driver.press("enter", "tab", "tab", "i", "escape", "escape", "question_mark", "escape", "slash", "escape")
        await driver.press("5", "enter", "right", "space", "f", "escape", "7", "enter", "enter", "enter", "escape")
        assert driver.app.is_running
        assert all(len(line) <= size[0] for line in driver.lines)
        await driver.pilot.resize_terminal(120, 40)
        await driver.press()
        assert "? help" in driver.text


@pytest.mark.slow
async def test_every_theme_draws_every_room(drive) -> None:
    async with drive() as driver:
        seen = {driver.app.theme}
        for _ in range(3):
            await driver.press("T", "5", "enter", "escape", "4")
            seen.add(driver.app.theme)
        assert seen == {"chessreg-dark", "chessreg-light", "chessreg-contrast"}
        driver.app.theme = "nord"  # one of textual's own has colors for the board too
        await driver.press("5", "enter")
        assert isinstance(driver.screen, BoardScreen)
