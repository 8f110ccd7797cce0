"""A picture of every screen at two sizes, each with the numbers that it must show; those at 200x60 run in `make slow`.
`pytest -m "" --snapshot-update` takes them again; inspect them before you commit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chessreg.queries import render, run_query, run_sql
from chessreg.queries.ask import query_plot_rows
from chessreg.queries.catalogue import find_plot
from chessreg.registry import read
from chessreg.session import Session
from tui.data.board_views import load_boards, load_state_boards
from tui.data.result_rows import list_results
from tui.data.run_rows import format_headline


@pytest.fixture
def subject(world: Path) -> Path:
    """The registry that pictures show."""
    return world


def run_of(session: Session, name: str) -> dict[str, Any]:
    with session.database.read() as sql:
        return read.read_run(sql, name)


def first_row(session: Session, name: str, result_table: str, place: int = 0) -> Any:
    return list_results(session, result_table, run_of(session, name)["id"]).read_page(0)[place]


def test_runs(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("j", "j")

    cut = run_of(session, "cut")
    picture(steps, "8 runs (1 not complete)", "! partial", f"{cut['done']}/{cut['units']}", "box1")


@pytest.mark.trained
def test_a_run(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("board")
        await driver.press("enter")

    with session.database.read() as sql:
        answer = format_headline(sql, session.id("run", "board"))
    count = list_results(session, "score", session.id("run", "board")).count
    picture(steps, f"[scores {count}]", answer)


def test_settings_of_a_run(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("toy")
        await driver.press("enter", "tab")

    picture(steps, "[settings]", "positions", "12", "given")


def test_a_game(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("plain")
        await driver.press("enter", "enter", "exclamation_mark")

    frames = load_boards(session, first_row(session, "plain", "game")).views
    shown = next(frame for frame in frames if any("illegal" in line for line in frame.caption))
    picture(steps, shown.caption[0], next(line for line in shown.caption if "illegal" in line)[:24])


@pytest.mark.trained
@pytest.mark.usefixtures("near_model")
def test_an_edit(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("edits")
        await driver.press("enter", "tab", "enter")

    row = first_row(session, "edits", "trial")
    stored = load_state_boards(session, row).row
    mass = f"edited legal mass {stored['mass_original']:.3f}, target {stored['mass_modified']:.3f}"
    picture(steps, f"{stored['piece']} off {stored['square']}", mass, f"writes {stored['text']}", "original", "target")


@pytest.mark.trained
def test_what_a_probe_reads(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.find_row("board")
        await driver.press("enter", "enter", "right")

    frames = load_boards(session, first_row(session, "board", "score")).views
    picture(steps, frames[1].title[:30], "probability of")


@pytest.mark.trained
def test_boards(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("5")

    row = first_row(session, "plain", "game")
    picture(
        steps,
        "[games]",
        row["termination"].replace("_", " "),
        f"{row['first_try_legal']}/{row['turns']}",
        "plain",
        "sure",
    )


def test_queries(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("7", "slash", "e", "l", "o", "enter")

    picture(steps, "elo by intervention", "How strong is the model with")


@pytest.mark.trained
def test_an_answer(picture: Any, session: Session) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("7")
        await driver.find_row("games by termination")
        await driver.press("enter")

    _, cells, _, _ = render.format_cells(run_query(session.database, "games by termination"))
    picture(steps, *cells[0][:3], f"games by termination: {len(cells)} rows")


@pytest.mark.slow
@pytest.mark.trained
def test_rows_behind_an_answer(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("7")
        await driver.find_row("probe accuracy by layer")
        await driver.press("enter", "enter")

    picture(steps, "row 1", "board", "correct", "test")


@pytest.mark.trained
def test_sql(picture: Any, session: Session) -> None:
    text = "SELECT run, unit, result, plies\nFROM games -- of both matches\nWHERE plies > 0\nORDER BY run, unit"
    result = run_sql(session.database, text)

    async def steps(driver: Any) -> None:
        await driver.go("queries")
        await driver.press("e")
        driver.app.focused.text = text
        await driver.press("f5")

    picture(steps, *(str(row["plies"]) for row in result.rows), f"sql: {len(result)} rows", "-- of both matches")


@pytest.mark.slow
@pytest.mark.trained
def test_a_plot(picture: Any, session: Session) -> None:
    entry, plot = find_plot("probe accuracy by layer")
    (row,) = query_plot_rows(session.database, entry, plot).rows

    async def steps(driver: Any) -> None:
        await driver.go("queries")
        await driver.find_row(entry.title)
        await driver.press("v")

    assert row["majority"] is not None
    picture(steps, plot.title, "accuracy %", "● accuracy", "■ majority")


@pytest.mark.slow
@pytest.mark.trained
def test_bars(picture: Any, session: Session) -> None:
    entry, plot = find_plot("board edits")
    result = query_plot_rows(session.database, entry, plot)

    async def steps(driver: Any) -> None:
        await driver.go("queries")
        await driver.find_row(entry.title)
        await driver.press("v")

    picture(steps, plot.title, *(render.format_result_cell(result, row, plot.y) for row in result.rows))


def test_jump_mode(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.go("queries")
        await driver.press("e", "ctrl+o")

    picture(steps, " a ORDER", "a letter jumps there")


def test_help(picture: Any) -> None:
    async def steps(driver: Any) -> None:
        await driver.press("question_mark")

    picture(steps, "Here", "Filter the runs as you type", "chessreg runs list")


def test_an_empty_registry(picture: Any, tmp_path: Path) -> None:
    async def steps(driver: Any) -> None:
        assert driver.lines[1].startswith(" 0 runs")

    picture(steps, "There are no games yet.", "$ chessreg demo", folder=tmp_path)
