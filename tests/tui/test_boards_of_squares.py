"""Edits that read the next token, of a model of UCI squares: their boards, and the lab, where keys change a board."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from chessreg.cli.root import run_command_line
from chessreg.experiments.edit import three_boards
from chessreg.experiments.edit.spec import NextTokenEditSpec
from chessreg.experiments.edit.three_boards import StoredCase, load_stored_case
from chessreg.games.boards.boardframe import get_board_letters
from chessreg.games.datasets.labels import PIECE_CLASSES, parse_board_changes
from chessreg.lab.answer import LabAnswer, ModelSide, RankedMove
from chessreg.registry import names, tables
from chessreg.session import open_session
from tui.model_process import ModelProcess
from tui.screens.edit import CaseScreen
from tui.screens.lab import LabScreen, SquareBar
from tui.widgets.board import BoardPane
from tui.widgets.table import PageTable

from ..conftest import made_once, random_game
from .conftest import Driver, settled
from .test_tasks import Keys
from .worlds import same_code

PANES = [f"{row}-{board}" for row in ("before", "after") for board in ("original", "target", "later")]


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with an untrained model of UCI squares, probes of it, and edits of two games at two prefixes."""
    return made_once("squares", make_squares, tmp_path_factory)


def make_squares(root: Path) -> None:
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    (root / "games.pgn").write_text("".join(f"{random_game(n, 24, 'squares')}\n\n" for n in range(12)))
    model = make_random_gpt2(GPT2Config(n_layer=2, n_head=1, n_embd=16, block_size=64, vocab_size=72), 3)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.data *= 4 if "wpe" in name or "wte" in name else 8  # so that it prefers some squares
    save_checkpoint(
        model, root / "model", CheckpointInfo.from_network(model, "uci-square-72", source={"format": "test"})
    )
    place = ["--registry", str(root / "registry.db"), "--store", str(root / "store")]
    for command in (
        ["dataset", "add", str(root / "games.pgn"), "--name", "games"],
        ["dataset", "split", "games", "--parts", "fit=0.6,test=0.4"],
        ["import", "checkpoint", str(root / "model"), "--name", "squares"],
    ):
        assert run_command_line([*place, *command]) == 0
    with same_code(), open_session(str(root / "registry.db"), root / "store") as session:
        session.run(CacheSpec(checkpoint="squares", dataset="games:fit", sites="white-turns", max_sites=3), name="fit")
        session.run(ProbeSpec(cache="fit", epochs=1), name="board")
        edits = {"checkpoint": "squares", "probe": "board", "dataset": "games:test", "games": 2, "king": "include"}
        spec = NextTokenEditSpec(**edits, prefixes=(4, 8), layers=(0, 1), scale=0.8, decay=0.01)
        session.run(spec, name="edits")


def printed(root: Path, *words: str) -> Any:
    place = ["--registry", str(root / "registry.db"), "--store", str(root / "store")]
    with redirect_stdout(StringIO()) as told:
        assert run_command_line([*place, *words, "--json"]) == 0
    return json.loads(told.getvalue())


def case_of(root: Path, condition: str) -> StoredCase:
    """The first state of the edits that was not skipped."""
    with open_session(str(root / "registry.db"), root / "store") as session:
        with session.database.read() as sql:
            run_id = names.resolve_id(sql, "run", "edits")
            trial = tables.Trial
            unit = sql.query(trial.unit).filter_by(run_id=run_id, condition=condition).order_by(trial.unit).first()[0]
        return load_stored_case(session.inputs, run_id, unit)


async def opened(driver: Any, condition: str) -> CaseScreen:
    """The screen of the first state that has this condition."""
    await driver.find_row("edits")
    await driver.press("enter", "tab")
    table = driver.screen.query_one(PageTable)
    table.move(next(n for n in range(table.count) if (table.row(n) or {}).get("condition") == condition))
    await driver.press("enter")
    assert isinstance(driver.screen, CaseScreen)
    return driver.screen


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_boards_masses_and_heat_are_those_that_are_stored_and_e_opens_the_same_edit(drive, squares: Path) -> None:
    case = case_of(squares, "edit")
    async with drive(squares, size=(80, 24)) as driver:
        screen = await opened(driver, "edit")
        for size in ((80, 24), (120, 40), (200, 60)):
            await driver.pilot.resize_terminal(*size)
            await driver.settle()
            boards = {name: screen.query_one(f"#{name}", BoardPane) for name in PANES}
            regions = [pane.squares.region for pane in boards.values() if pane.display]
            assert len(regions) == 2 * len(case.boards)
            assert all(region.right <= size[0] and region.bottom <= size[1] - 1 for region in regions)
            assert not any(one.overlaps(other) for n, one in enumerate(regions) for other in regions[:n])
            for name in case.boards:
                assert f"{name} {case.compute_legal_mass('clean', name):.3f}" in driver.text
                assert f"{name} → {case.compute_legal_mass('edit', name):.3f}" in driver.text
                shown = boards[f"after-{name}"].squares.frame
                assert shown.fen == case.boards[name].board_fen()
                assert list(shown.heat.values()) == pytest.approx(case.squares["edit"].tolist())
            assert "x removed" in driver.text
            assert "next move begins there" in driver.text
        await driver.press("H", "tab")
        assert screen.state.condition == "random-0"
        assert boards["after-target"].squares.frame.heat is None
        assert f"target → {case.compute_legal_mass('random-0', 'target'):.3f}" in driver.text
        command = shlex.split(screen.command().replace("a1b2c3", "edits"))
        frames = printed(squares, *command[1:])
        assert f"{case.compute_legal_mass('random-0', 'target'):.3f}" in json.dumps(frames)
        await driver.press("shift+tab", "e")
        lab = driver.screen
        assert isinstance(lab, LabScreen)
        assert (lab.edited_layers, lab.scale, lab.condition) == ((0, 1), 0.8, "edit")
        assert ("decay", "0.01") in lab.settings
        assert lab.answer.edited.original == pytest.approx(case.compute_legal_mass("edit", "original"), abs=1e-4)
        assert lab.answer.edited.modified == pytest.approx(case.compute_legal_mass("edit", "target"), abs=1e-4)
        assert lab.answer.edited.squares == pytest.approx(case.squares["edit"].tolist(), abs=1e-4)
        told = printed(squares, *shlex.split(lab.command())[1:])
        assert told["edited"]["mass_modified"] == pytest.approx(lab.answer.edited.modified, abs=1e-5)


@pytest.mark.usefixtures("near_model")
async def test_a_board_is_edited_and_the_moves_change_in_four_keys(drive: Any, squares: Path) -> None:
    async with drive(squares, size=(120, 40)) as driver:
        press = Keys(driver)
        await press("6", "e")
        before = driver.screen.answer
        await press("n" if "=n" not in driver.screen.board_changes else "q", "enter")
        press.told("edit a board in the lab and see the moves change", 4)
        after = driver.screen.answer
        assert after.modified_fen != before.modified_fen
        assert after.edited.squares != before.clean.squares
        assert f"target {after.edited.modified:.3f}" in driver.text


@pytest.mark.slow
@pytest.mark.usefixtures("near_model")
async def test_a_board_is_changed_by_keys_and_the_command_stores_that_edit(
    drive, squares: Path, tmp_path: Path
) -> None:
    squares = Path(shutil.copytree(squares, tmp_path / "own"))
    async with drive(squares, size=(80, 24), start="lab") as driver:
        lab = driver.screen
        await driver.press("slash", "ctrl+u")
        await driver.type("e4 d5")
        await driver.press("enter", "e")
        lab.pick(chess.D5)
        await driver.press("x", "up", "up", "p", "right", "full_stop", "down", "down", "p")
        assert isinstance(driver.app.focused, SquareBar)
        assert "target, e5: d5=. e5=p d7=p e7=." in driver.text
        assert lab.answer.modified_fen.startswith("rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w")
        await driver.press("N")
        assert "e5=N" in lab.board_changes
        await driver.press("p", "k", "backspace", "p", "q", "p", "enter")  # letters are pieces: nothing is quit
        assert driver.app.focused is None
        assert lab.board_changes == "d5=. e5=p d7=p e7=."
        await driver.press("right_curly_bracket", "plus")
        assert lab.edited_layers == (0, 1)
        after = lab.answer
        assert f"target {after.edited.modified:.3f}" in driver.text
        assert sum(after.clean.squares) <= 1.0 + 1e-6
        words = shlex.split(lab.command())
        assert words[:3] == ["chessreg", "run", "edit-next-token"]
        run = printed(squares, *words[1:])["run_id"]
        with open_session(str(squares / "registry.db"), squares / "store") as session, session.database.read() as sql:
            rows = {
                row.condition: row
                for row in sql.query(tables.Trial).filter_by(run_id=names.resolve_id(sql, "run", run))
            }
        for side, row in ((after.clean, rows["clean"]), (after.edited, rows["edit"])):
            assert (side.original, side.modified) == pytest.approx((row.mass_original, row.mass_modified), abs=1e-5)
        await driver.press("tab")
        assert (lab.condition, lab.answer.edit) == ("random-0", "random-0")
        assert lab.answer.edited.modified == pytest.approx(rows["random-0"].mass_modified, abs=1e-5)
        await driver.press("shift+tab", "e")
        lab.pick(chess.E1)
        await driver.press("x", "enter")
        assert "one white king" in driver.text
        await driver.press("Z")
        assert lab.board_changes == ""
        assert "one white king" not in driver.text
        await driver.press("slash", "ctrl+u")
        await driver.type("e4 d5 exd5 Qxd5")
        await driver.press("enter", "u", "u", "tab")  # the moves that are taken back lead to the later board
        assert (lab.condition, lab.ahead) == ("patch", ("exd5", "Qxd5"))
        assert lab.answer.edit == "residual of the board after exd5 Qxd5"
        assert lab.answer.modified_fen.startswith("rnb1kbnr/ppp1pppp/8/3q4/8/8/PPPP1PPP/RNBQKBNR w")
        words = shlex.split(lab.command())
        assert words[words.index("--later") + 1] == "exd5 Qxd5"
        told = printed(squares, *words[1:])
        assert told["edited"]["mass_modified"] == pytest.approx(lab.answer.edited.modified, abs=1e-5)
        await driver.press("U", "U")
        assert (lab.condition, lab.ahead) == ("edit", ())


@pytest.mark.parametrize("size", ["80x24", pytest.param("200x60", marks=pytest.mark.slow)])
def test_the_boards_of_a_case(squares: Path, app_on: Any, snap_compare: Any, monkeypatch: Any, size: str) -> None:
    """Numbers are given, because those of a model differ in their last digits between CPUs."""
    case = case_of(squares, "edit")
    boards = dict(zip(("original", "target", "later"), map(chess.Board, FENS), strict=True))
    rows = {
        condition: tables.Trial(condition=condition, text=text, mass_original=masses[0], mass_modified=masses[1],
                                detail={"mass_future": masses[2], "kl": masses[3]})
        for condition, text, masses in CONDITIONS
    }  # fmt: skip
    heat = {name: np.bincount([chess.E4, chess.G1, chess.D2], [0.75 - n / 4, 0.125, 0.125 + n / 4], 64)
            for n, name in enumerate(rows)}  # fmt: skip
    fixed = StoredCase(case.spec, "game 3, ply 2", boards, rows, heat)
    monkeypatch.setattr(three_boards, "load_stored_case", lambda *_: fixed)

    async def steps(pilot: Any) -> None:
        await settled(pilot)
        driver = Driver(pilot.app, pilot)
        await opened(driver, "edit")
        for word in ("target 0.250", "target → 0.750", "later → 0.625", "begins", "e4       75.0%  50.0%"):
            assert word in driver.text, driver.text

    wide, high = map(int, size.split("x"))
    assert snap_compare(app_on(squares, start="runs"), terminal_size=(wide, high), run_before=steps)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["80x24", pytest.param("200x60", marks=pytest.mark.slow)])
def test_the_lab_while_a_board_is_changed(
    squares: Path, app_on: Any, snap_compare: Any, monkeypatch: Any, size: str
) -> None:
    async def answered(process: Any, question: Any) -> LabAnswer:
        return answer_of(question.board)

    monkeypatch.setattr(ModelProcess, "ask", answered)

    async def steps(pilot: Any) -> None:
        await settled(pilot)
        driver = Driver(pilot.app, pilot)
        driver.screen.show_moves(("e4", "d5"))
        await driver.press("e")
        driver.screen.pick(chess.D5)
        await driver.press("x", "right", "p")
        assert "target, e5: d5=. e5=p" in driver.text
        assert "shade: the next move begins on e4 0.750 → 0.500" in driver.text

    wide, high = map(int, size.split("x"))
    assert snap_compare(app_on(squares, start="lab"), terminal_size=(wide, high), run_before=steps)


def answer_of(changes: str) -> LabAnswer:
    """An answer about 1.e4 d5 under these changes of the board, with numbers that no model had to give."""
    board, aim = chess.Board(FENS[0]), chess.Board(FENS[0])
    for square, piece in parse_board_changes(changes):
        aim.set_piece_at(square, None if piece == "." else chess.Piece.from_symbol(piece))

    def side(target: float, e4: float) -> ModelSide:
        heat = np.bincount([chess.E4, chess.D2], [e4, 1 - e4], 64)
        moves = tuple(
            RankedMove(uci, board.san(chess.Move.from_uci(uci)), p) for uci, p in (("e4d5", e4), ("d2d4", 1 - e4))
        )
        beliefs = np.zeros((2, 64, 13), np.float32)
        beliefs[:, np.arange(64), [PIECE_CLASSES.index(letter) for letter in get_board_letters(board)]] = 1
        return ModelSide("e4d5", True, 0.9375, target if changes else None, moves, moves[1:], beliefs, tuple(heat))

    return LabAnswer(
        FENS[0], ("e4", "d5"), (0, 1), side(0.25, 0.75), side(0.5, 0.5), changes, (0,), (0.5,),
        modified_fen=aim.fen() if changes else "", next_token=True,
    )  # fmt: skip


FENS = (
    "rnbqkbnr/ppp1pppp/8/3p4/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2",
    "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2",
    "rnb1kbnr/ppp1pppp/8/q7/8/2N2N2/PPPP1PPP/R1BQKB1R w KQkq - 4 5",
)
CONDITIONS = (
    ("clean", "e4", (0.9375, 0.25, 0.5, 0.0)),
    ("edit", "e4", (0.875, 0.75, 0.625, 0.25)),
    ("random-0", "e4", (0.9375, 0.25, 0.5, 0.0625)),
)
