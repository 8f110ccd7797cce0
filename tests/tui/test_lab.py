"""Boards of edits and the lab: the screens show the values that the commands print, and no key waits for a model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import chess
import pytest
from sqlalchemy import select
from textual.widgets import Static

from chessreg.cli.root import run_command_line
from chessreg.lab import answer as text
from chessreg.lab.answer import LabAnswer
from chessreg.registry import read
from chessreg.registry.database import Database
from chessreg.registry.tables import Trial
from chessreg.session import Session
from tui.data.result_rows import list_results
from tui.model_process import ModelProcess
from tui.screens.board_base import PANES
from tui.screens.edit import EditScreen
from tui.screens.lab import LabScreen, find_next_scale
from tui.widgets.bars import Banner, FilterBar
from tui.widgets.board import BoardPane
from tui.widgets.moves import Rankings
from tui.widgets.table import PageTable


def run_of(session: Session, name: str) -> dict[str, Any]:
    with session.database.read() as sql:
        return read.read_run(sql, name)


def command(world: Path, *words: str) -> Any:
    """The output of a chessreg command with --json."""
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    with redirect_stdout(StringIO()) as said:
        assert run_command_line([*place, *words, "--json"]) == 0
    return json.loads(said.getvalue())


@pytest.fixture
def own_world(world: Path, tmp_path: Path) -> Path:
    """A copy of the world that may be changed."""
    return Path(shutil.copytree(world, tmp_path / "world"))


def edited_row(session: Session) -> Any:
    """A trial of a state that was not skipped."""
    pages = list_results(session, "trial", run_of(session, "edits")["id"])
    return next(row for row in pages.read_page(0) if row["condition"] == "clean")


async def opened(driver: Any, session: Session, condition: str = "clean") -> EditScreen:
    """The screen of the first state that has this condition."""
    rows = list_results(session, "trial", run_of(session, "edits")["id"]).read_page(0)
    await driver.find_row("edits")
    await driver.press("enter", "tab")
    driver.screen.query_one(PageTable).move(next(n for n, row in enumerate(rows) if row["condition"] == condition))
    await driver.press("enter")
    assert isinstance(driver.screen, EditScreen)
    return driver.screen


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_an_edit_is_scrubbed_by_layer_class_and_condition(drive, session: Session, world: Path) -> None:
    row = edited_row(session)
    async with drive(size=(200, 60)) as driver:
        screen = await opened(driver, session)
        answer = screen.answer
        assert isinstance(answer, LabAnswer)
        assert answer.edited is not None
        panes = {name: screen.query_one(f"#{name}", BoardPane).squares for name in PANES}
        assert panes["original"].frame.fen == chess.Board(answer.fen).board_fen()
        assert panes["target"].frame.fen == chess.Board(answer.modified_fen).board_fen()
        assert panes["before"].frame.squares == answer.clean.board(0)
        assert panes["after"].frame.squares == answer.edited.board(0)
        told = command(world, "lab", f"{row['run_id'].hex[-6:]}:{row['unit']}", "--condition", "edit")
        for side, stored in (("clean", row), ("edited", None)):
            mass = told[side]["mass_original"], told[side]["mass_modified"]
            assert f"{side} legal mass {mass[0]:.3f}, target {mass[1]:.3f}" in driver.text
            if stored:
                assert mass == pytest.approx((stored["mass_original"], stored["mass_modified"]), abs=2e-6)
            best = told[side]["moves"][0]
            assert f"{best['san']:<7} {best['probability']:.3f}" in driver.text
        shown = screen.heat_label
        assert text.build_belief_frame(answer, "clean", 0, shown).heat == panes["before"].frame.heat
        await driver.press("full_stop")
        assert screen.heat_label == (shown + 1) % 13
        assert panes["before"].frame.heat == text.build_belief_frame(answer, "clean", 0, (shown + 1) % 13).heat
        await driver.press("comma", "H")
        assert panes["before"].frame.heat is None
        await driver.press("H", "right", "left", "left")
        assert screen.layer_place == 0  # the model has one layer
        assert screen.state.condition == "edit"
        await driver.press("tab")
        assert screen.state.condition == "random-0"
        assert "random-0" in driver.text
        assert screen.answer.clean.original == pytest.approx(answer.clean.original)
        assert screen.answer.edited.original != answer.edited.original
        await driver.press("shift+tab", "f")
        assert all(squares.frame.flipped for squares in panes.values())
        first = screen.state.unit
        await driver.press("down")
        assert screen.state.unit > first
        await driver.press("up")
        assert screen.state.unit == first
        # the lab opens the same edit: layers, scale, tokens and condition; an edit of the first board has no moves
        await driver.press("down")
        stored, edit = screen.answer, screen.state.edit
        await driver.press("e")
        lab = driver.screen
        assert isinstance(lab, LabScreen)
        assert (lab.edited_layers, lab.scale, lab.token_mask) == (edit.layers, 1.5, "all")
        assert lab.condition == edit.condition
        assert lab.answer.fen == stored.fen
        assert lab.answer.edited is not None, lab.answer.why_not
        assert lab.answer.edited.original == pytest.approx(stored.edited.original, abs=2e-6)
        assert lab.answer.edited.modified == pytest.approx(stored.edited.modified, abs=2e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_numbers_of_one_condition_never_stand_under_the_name_of_another(
    drive, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drive(size=(120, 40)) as driver:
        screen = await opened(driver, session, "edit")
        assert screen.make_head().startswith("edit: ")
        ask = ModelProcess.ask

        async def none(self: ModelProcess, question: Any) -> None:
            """A newer question has taken its place, or none has been answered yet."""

        monkeypatch.setattr(ModelProcess, "ask", none)
        await driver.press("tab")
        assert screen.state is not None
        assert screen.state.condition == "random-0"
        assert "random-0, game" in driver.text
        assert "running the model…; shown: edit" in driver.text
        monkeypatch.setattr(ModelProcess, "ask", ask)
        await driver.press("shift+tab", "tab")
        assert "random-0: " in driver.text
        assert "running the model" not in driver.text


@pytest.mark.usefixtures("near_model")
async def test_numbers_fit_their_place_also_where_it_becomes_narrower_later(drive, session: Session) -> None:
    async with drive(size=(120, 40)) as driver:
        screen = await opened(driver, session, "edit")
        numbers = screen.query_one(Rankings)
        for cells in (100, 44):
            numbers.styles.width = cells
            await driver.settle()
            for pane in numbers.query(Static):
                lines = str(pane.content).splitlines()
                assert max(map(len, lines)) <= pane.content_size.width, f"a line is broken in {cells} cells"


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_boards_of_every_size_fit_and_stand_beside_each_other(drive, session: Session) -> None:
    async with drive(size=(80, 24)) as driver:
        screen = await opened(driver, session)
        for size in ((80, 24), (120, 40), (200, 60)):
            await driver.pilot.resize_terminal(*size)
            await driver.until("mass 0.")
            counts = []
            for key in ("space", "space", "v", "v", "v"):
                panes = [pane for name in PANES if (pane := screen.query_one(f"#{name}", BoardPane)).display]
                regions = [pane.squares.region for pane in panes]
                counts.append(len(panes))
                assert all(region.right <= size[0] and region.bottom <= size[1] - 1 for region in regions)
                assert len({region.size for region in regions}) == 1
                assert not any(one.overlaps(other) for n, one in enumerate(regions) for other in regions[:n])
                assert "mass 0." in driver.text
                await driver.press(key)
            at_first = 2 if size == (120, 40) else 4
            assert counts[:3] == [at_first] * 3, "two large boards before four small ones"
            assert sorted(counts[2:]) == [2, 2, 4], "the position, what the probe reads, and all"
            screen.part = screen.chosen_size = None


async def test_a_skipped_state_says_why(drive, session: Session) -> None:
    pages = list_results(session, "trial", run_of(session, "edits")["id"])
    row = next(row for row in pages.read_page(0) if row["condition"] == "skipped")
    async with drive() as driver:
        await opened(driver, session, "skipped")
        assert row["skipped"] in driver.text
        assert "skipped" in driver.text
        assert driver.text.count(" writes ") == 1, "in the reason alone"
        await driver.press("e")
        assert "it has no edit to open" in driver.notices
        assert driver.app.current_mode != "lab"


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_moves_of_one_state_do_not_stand_beside_a_skipped_one(drive, session: Session) -> None:
    async with drive() as driver:
        await opened(driver, session, "edit")
        assert " writes " in driver.text
        for _ in range(20):
            await driver.press("down")
            text = driver.text
            if "skipped" in text:
                break
        assert "skipped" in text
        assert " writes " not in text


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_the_scale_changes_both_masses_as_the_command_prints_and_the_run_stores_them(
    drive, own_world: Path
) -> None:
    async with drive(own_world, size=(100, 30), start="lab") as driver:
        screen = driver.screen
        assert isinstance(screen, LabScreen)
        before = screen.answer
        assert before.edited is not None, before.why_not
        await driver.press("plus", "plus")
        after = screen.answer
        assert screen.scale == find_next_scale(find_next_scale(1.5, 1), 1) == 3.0
        assert after.clean.moves == before.clean.moves
        assert after.edited.original != before.edited.original
        assert after.edited.modified != before.edited.modified
        assert f"edited legal mass {after.edited.original:.3f}, target {after.edited.modified:.3f}" in driver.text
        await driver.press("y", "w")
        words = shlex.split(driver.app.clipboard)
        assert words[:2] == ["chessreg", "lab"]
        told = command(own_world, *words[1:])
        assert told["moves"] == list(screen.sans)
        database = Database.open(f"sqlite:///{own_world / 'registry.db'}", create=False)
        with database.read() as sql:
            stored = select(Trial).where(Trial.item == -1, Trial.sample == -1, Trial.condition.in_(["clean", "edit"]))
            masses = {row.condition: (row.mass_original, row.mass_modified) for row in sql.scalars(stored)}
        database.close()
        for name, side, condition in (("clean", after.clean, "clean"), ("edited", after.edited, "edit")):
            shown = (side.original, side.modified)
            assert (told[name]["mass_original"], told[name]["mass_modified"]) == pytest.approx(shown, abs=1e-6)
            assert masses[condition] == pytest.approx(shown, abs=2e-6)


async def test_moves_are_typed_taken_back_and_played_and_no_key_waits_for_the_model(drive) -> None:
    async with drive(start="lab") as driver:
        screen = driver.screen
        await driver.press("slash", "ctrl+u")
        await driver.type("d2d4 Nf6 c4")
        await driver.press("enter")
        assert screen.sans == ("d4", "Nf6", "c4")
        assert "1.d4 Nf6 2.c4" in driver.text
        assert screen.answer.fen.startswith("rnbqkb1r/pppppppp/5n2/8/2PP4/8/PP2PPPP/RNBQKBNR b")
        await driver.press("u", "u")
        assert screen.sans == ("d4",)
        assert "(2 ahead)" in driver.text
        await driver.press("U")
        assert screen.sans == ("d4", "Nf6")
        second = screen.answer.clean.moves[1].san
        await driver.press("down", "enter")
        assert screen.sans == ("d4", "Nf6", second)
        await driver.press("slash", "ctrl+u")
        await driver.type("e4 e4")
        await driver.press("enter")
        assert screen.sans == ("d4", "Nf6", second)
        assert "1...e4 is not legal" in driver.notices
        assert screen.query_one("#moves", FilterBar).value == "e4 e4", "what was typed stays, to be mended"
        await driver.press("ctrl+u")
        await driver.type("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1")
        await driver.press("enter")
        assert screen.sans == ("e4",)
        await driver.press("slash")
        await driver.type("1. d4 Nf6")  # a game from its first move, after the moves already there
        await driver.press("enter")
        assert screen.sans == ("d4", "Nf6")
        screen.show_moves(("d4", "Nf6", second))
        await driver.settle()
        # the process hangs: every key is still answered; it dies: the next question starts another
        model = driver.app.model
        process = model._process
        os.kill(process.pid, signal.SIGSTOP)  # stopped: it answers nothing
        for key in ("plus", "plus", "plus", "f", "space", "question_mark"):
            await driver.pilot.press(key)
        async with asyncio.timeout(120):
            while "Here" not in driver.text:
                await driver.pilot.pause(0.02)
        await driver.pilot.press("escape")
        assert screen.asking
        os.kill(process.pid, signal.SIGCONT)
        await driver.press("H")
        assert not screen.asking
        assert screen.scale == 5.0
        assert screen.answer.scales in ((5.0,), ())
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await driver.press("minus")
        assert screen.answer is not None
        assert model._process is not process
        assert screen.answer.scales in ((screen.scale,), ())


def test_scales_go_up_and_down_through_zero() -> None:
    assert [find_next_scale(s, 1) for s in (0.0, 0.1, 1.5, 1.7, 200.0)] == [0.1, 0.2, 2.0, 2.0, 200.0]
    assert [find_next_scale(s, -1) for s in (0.1, 0.0, -0.1, 1.7)] == [0.0, -0.1, -0.2, 1.5]


@pytest.mark.usefixtures("near_model")
async def test_both_models_moves_stand_in_one_order_with_their_change_below_two_large_boards(drive) -> None:
    async with drive(size=(120, 40), start="lab") as driver:
        lab = driver.screen
        assert isinstance(lab, LabScreen)
        order = [move.san for move in text.compare_moves(lab.answer)]
        shown = {name: str(lab.query_one(f"#of-{name}").content).splitlines()[2:] for name in ("clean", "edited")}
        for name, lines in shown.items():
            assert [line[2:].split()[0] for line in lines] == order[: len(lines)], name
        for move, line in zip(text.compare_moves(lab.answer), shown["edited"], strict=False):
            if move.change is not None:
                assert line[2:].split()[2] == f"Δ{move.change:+z.3f}"
        shown_panes = [pane for pane in lab.query(BoardPane) if pane.display]
        assert [(pane.id, pane.squares.square_size) for pane in shown_panes] == [("original", 3), ("target", 3)]
        assert all(pane.region.bottom <= 39 for pane in shown_panes)
        assert f"mass {lab.answer.clean.original:.3f}, target {lab.answer.clean.modified:.3f}" in driver.text
        assert " writes " in driver.text


@pytest.mark.usefixtures("near_model")
async def test_a_position_that_the_lab_refuses_is_shown_without_the_answer_before_it(drive) -> None:
    sans = ("f3", "e5", "g4", "Qh4#")
    async with drive(size=(160, 45), start="lab") as driver:
        lab = driver.screen
        assert lab.answer is not None
        lab.show_moves(sans)
        assert not lab.has_current_answer, "nor are its moves played before the next answer"
        await driver.settle()
        assert driver.screen.query_one(Banner).message
        await driver.press("F")
        assert driver.app.clipboard.startswith("rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w")
        await driver.press("U", "enter")
        assert lab.sans == sans
        await driver.press("u")
        assert lab.sans == sans[:-1]
        assert lab.answer is not None


@pytest.mark.usefixtures("near_model")
async def test_two_clicks_on_the_board_play_a_move_in_the_lab_and_one_tells_of_a_square(drive) -> None:
    async with drive(size=(160, 45), start="lab") as driver:
        lab = driver.screen
        squares = lab.query_one("#original", BoardPane).squares
        wide, high = (squares.size.width - 2) // 8, (squares.size.height - 1) // 8

        async def click(name: str) -> None:
            square = chess.parse_square(name)
            await driver.pilot.click(squares, offset=(3 + wide * (square % 8), high * (7 - square // 8)))
            await driver.settle()

        await click("g1")
        assert "g1: white knight" in driver.text
        assert "layer 0 reads" in driver.text
        await click("e5")  # no move: the other square is described
        assert "e5: black pawn" in driver.text
        assert lab.sans == ("e4", "e5")
        await click("g1")
        await click("f3")
        assert lab.sans == ("e4", "e5", "Nf3")
        await driver.press("F")
        assert driver.app.clipboard == lab.answer.fen
        await driver.press("P")
        assert driver.app.clipboard.strip().endswith("1. e4 e5 2. Nf3 *")


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_the_lab_has_the_models_and_probes_that_come_after_it_was_opened(
    drive, tmp_path: Path, world: Path
) -> None:
    place = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    assert run_command_line([*place, "db", "upgrade"]) == 0
    async with drive(tmp_path, start="lab", size=(120, 40)) as driver:
        assert "No model yet" in driver.text
        lab = driver.screen
        assert run_command_line([*place, "import", "checkpoint", str(world / "bigram"), "--name", "bigram"]) == 0
        await driver.once(lambda: lab.answer is not None, "the model")
        assert "bigram · no probe" in driver.lines[1]
        assert "No model yet" not in driver.text
        assert run_command_line([*place, "merge", str(world)]) == 0
        await driver.until("bigram · probe board")
        await driver.until("chessreg pull")  # its bytes are where it was merged from
        (command,) = re.findall(r"\((chessreg pull \w+)", " ".join(driver.text.split()))
        assert run_command_line([*place, *command.split()[1:]]) == 0
        await driver.once(lambda: lab.answer is not None and lab.answer.edited is not None, "the edit")
