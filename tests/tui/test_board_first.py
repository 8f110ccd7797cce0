"""Boards where their rows are: next to lists, at other layers, with facts; the lab opens with the strongest edit."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line
from chessreg.lab.question import find_strongest_edit
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.screens.boards import BoardScreen, PairScreen
from tui.screens.lab import LabScreen
from tui.screens.preview import Preview
from tui.widgets.board import BoardPane
from tui.widgets.evaluation import PlyStrip
from tui.widgets.moves import MoveList
from tui.widgets.table import PageTable

from .test_tasks import Keys


@pytest.mark.slow
async def test_another_layer_of_the_same_position_is_read_by_keys_and_the_strip_has_each_ply(
    drive: Any, studied: Path, command: Any
) -> None:
    async with drive(studied, size=(120, 40)) as driver:
        press = Keys(driver)
        await press("slash")
        await driver.type("deep-board")
        await press("enter", "enter", "enter", "enter", "exclamation_mark")
        screen = driver.screen
        assert isinstance(screen, BoardScreen)
        assert screen.boards is not None
        assert screen.views[0].read, "a position that the probe misreads"
        press.told("see what a probe reads wrongly")
        layers, ply = list(screen.boards.layers), screen.frame
        assert layers == [0, 1, 2]
        assert screen.boards.row["layer"] == 1, "validation chooses this layer"
        strip = screen.query_one(PlyStrip)
        assert strip.display
        assert strip.shares == tuple(view.squares_right / 64 for view in screen.boards.views)
        item = screen.boards.row["item"]
        for key, layer in (("right", 2), ("right", 2), ("left", 1), ("left", 0), ("left", 0)):
            await driver.press(f"{key}_square_bracket")
            assert (screen.boards.row["layer"], screen.boards.row["item"]) == (layer, item)
            assert screen.frame == ply
            assert f"layer {layer} reads {screen.views[0].squares_right} of 64" in driver.text
            assert f"[{layer}]" in driver.text
        await driver.pilot.click(PlyStrip, offset=(2 * strip.column_cells, 1))
        await driver.settle()
        assert screen.frame == 2
        assert driver.way.endswith(f"deep-board layer 0 game {item}")
        assert f"game {item}, ply {screen.views[0].ply}: layer 0 reads" in " ".join(driver.text.split())
        assert f"games game {item}: " in driver.text
        plies = [view.ply for view in screen.boards.views]
        assert plies == [0, 2, 4]
        for text, frame in (("4", 2), ("2", 1), ("3", 1)):
            await driver.press("number_sign")
            await driver.type(text)
            await driver.press("enter")
            assert screen.frame == frame
        assert "'3' has no board: there are plies 0, 2, 4" in driver.notices
        assert screen.command().endswith(f":0 --item {item} --ply 2")
        moves = screen.query_one(MoveList)
        lines = [moves.render_line(y).text.strip("› ") for y in range(3)]
        for line, view in zip(lines, screen.boards.views, strict=True):
            assert line.startswith(f"{view.ply}  {view.squares_right} of 64  ")
        told = command("board", "deep-board:0", "--item", str(item), "--ply", "4")["boards"]
        assert [one["title"] for one in told] == [screen.boards.views[2].title]
        await driver.press("question_mark")
        assert "chessreg board RUN:UNIT --item N --ply N" in driver.text


def test_a_ply_without_a_board_is_refused_with_the_plies_that_exist(studied: Path, capsys: Any) -> None:
    place = ["--registry", str(studied / "registry.db"), "--store", str(studied / "store")]
    for ply in ("1", "6", "-4"):
        assert run_command_line([*place, "board", "deep-board:0", "--ply", ply]) == 4
        assert f"deep-board:0 has no board at ply {ply}" in (told := capsys.readouterr().err)
        assert "its boards are at plies 0, 2, 4" in told
    assert run_command_line([*place, "board", "deep-board:0", "--ply", "-1"]) == 0
    assert ", ply 4: layer 0 reads" in capsys.readouterr().out


@pytest.mark.slow
async def test_a_game_tells_its_result_and_edit_and_is_found_beside_the_lists_that_hold_it(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.screens.preview.BOARD_WIDE_CELLS", 120)
    async with drive(size=(120, 40)) as driver:
        await driver.find_row("plain")
        await driver.press("enter")
        pane = await shown(driver)
        game = driver.screen.query_one(PageTable).current_row
        assert f"{game['result']} by " in driver.text
        assert "bigram as White, unedited" in driver.text
        assert pane.squares.square_size == 3
        await driver.press("tab")
        assert not driver.screen.query_one(Preview).display, "settings have no board"
        await driver.press("shift+tab", "enter")
        assert isinstance(driver.screen, BoardScreen)
        assert f"after {game['plies']} plies" in driver.text
        assert "bigram as White, unedited" in driver.text
        await driver.go("queries")
        await driver.find_row("games by termination")
        await driver.press("enter", "enter")
        await shown(driver)


async def shown(driver: Any) -> BoardPane:
    """The board of the preview, once it is shown."""
    preview = driver.screen.query_one(Preview)
    await driver.once(lambda: [pane for pane in preview.query(BoardPane) if pane.display], "a board")
    await driver.settle()
    pane = preview.query_one(BoardPane)
    assert pane.region.right <= driver.app.size.width
    assert pane.squares.region.bottom < driver.app.size.height
    return pane


async def test_the_games_of_an_intervention_are_stepped_to_where_they_part(drive: Any) -> None:
    async with drive(size=(120, 40)) as driver:
        press = Keys(driver)
        await press("7", "slash")
        await driver.type("elo by intervention")
        await press("enter", "enter", "enter", "enter", "c", "d")
        press.told("open the games of an intervention and step to the divergence", 12)
        assert isinstance(driver.screen, PairScreen)
        assert driver.screen.pair.parts is not None
        assert driver.screen.ply == driver.screen.pair.parts + 1


@pytest.mark.parametrize("unit", quick_first(1, [0, 1]))
@pytest.mark.usefixtures("near_model")
async def test_the_lab_opens_with_the_strongest_edit(drive: Any, world: Path, tmp_path: Path, unit: int) -> None:
    own = Path(shutil.copytree(world, tmp_path / "own"))
    with sqlite3.connect(own / "registry.db") as sql:
        sql.execute("UPDATE trial SET mass_modified = 0.1")
    place = str(own / "registry.db"), own / "store"
    with open_session(*place) as session:
        assert find_strongest_edit(session.inputs) is None, "no edit raises the mass"
    with sqlite3.connect(own / "registry.db") as sql:
        sql.execute(
            "UPDATE trial SET mass_modified = 0.9 WHERE condition = 'edit' AND sample = -1 AND unit = ?", (unit,)
        )
        sql.execute("UPDATE trial SET mass_modified = 1.0 WHERE condition LIKE 'random%'")
    with open_session(*place) as session:
        edit = find_strongest_edit(session.inputs)
    assert edit is not None
    assert (edit.unit, edit.stored_condition) == (unit, "edit"), "controls are no edits"
    async with drive(own, size=(120, 40), start="lab") as driver:
        lab = driver.screen
        assert isinstance(lab, LabScreen)
        assert (lab.sans, lab.edited_layers, lab.scale) == (edit.sans, edit.layers, edit.scale)
        assert "the registry's strongest edit" in driver.text
        for key, back in (("plus", "minus"), ("tab", "shift+tab")):
            await driver.press(key)
            assert "the registry's strongest edit" not in driver.text, key
            await driver.press(back)
            assert "the registry's strongest edit" in driver.text, back
        played = lab.answer.clean.moves[0].san
        await driver.press("U")
        assert "the registry's strongest edit" not in driver.text
        await driver.go("runs")
        await driver.go("lab")
        assert lab.sans == (*edit.sans, played), "it opens so once"


async def test_only_the_lines_that_differ_are_painted_and_all_of_them(drive: Any) -> None:
    async with drive(size=(120, 40), start="boards") as driver:
        await driver.press("enter")
        squares = driver.screen.query_one("#left", BoardPane).squares
        painted: list[int] = []
        refresh = squares.refresh

        def note(*regions: Any, **given: Any) -> Any:
            painted.extend(y for region in regions for y in range(region.y, region.bottom))
            return refresh(*regions, **given)

        squares.refresh = note
        for key in ("right", "right", "f", "end", "home"):
            before, seen = squares.draw_lines(), len(painted)
            await driver.press(key)
            differ = [y for y, (a, b) in enumerate(zip(before, squares.draw_lines(), strict=True)) if a != b]
            assert painted[seen:] == differ
            board = [line[: squares.region.right] for line in driver.lines[squares.region.y : squares.region.bottom]]
            text = ["".join(run.text for run in line) for line in squares.draw_lines()]
            assert [line.rstrip() for line in text] == [line[squares.region.x :].rstrip() for line in board]


def test_a_registry_without_edits_has_no_strongest(session: Session, tmp_path: Path) -> None:
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as empty:
        assert find_strongest_edit(empty.inputs) is None
