"""A game on the board: evaluated, stepped through by ply and by square, copied, and the moves of its model."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import chess
import pytest
from textual.events import Key
from textual.widgets import Static

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.games.boards.boardframe import BoardFrame
from chessreg.games.boards.pgn import format_game
from chessreg.games.boards.picture import format_evaluation
from chessreg.session import Session, open_session
from tui.data import board_views
from tui.data.result_rows import list_results
from tui.model_process import ModelProcessError
from tui.screens.boards import BoardScreen, PairScreen
from tui.screens.dialogs import Prompt
from tui.show import format_probability
from tui.widgets.board import BoardPane, list_legend
from tui.widgets.evaluation import EvaluationBar, PlyStrip
from tui.widgets.images import SQUARE_PIXELS
from tui.widgets.moves import MoveList

from .conftest import PATIENCE
from .test_journeys import run_of


def printed(world: Path, *words: str) -> str:
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    with redirect_stdout(StringIO()) as told:
        assert run_command_line([*place, *words]) == 0
    return told.getvalue()


async def game(driver: Any, run: str = "sure") -> BoardScreen:
    """The screen of a run's first game."""
    await driver.find_row(run)
    await driver.press("enter", "enter")
    assert isinstance(driver.screen, BoardScreen)
    return driver.screen


async def test_games_are_listed_with_color_opponent_and_score(drive, session: Session) -> None:
    rows = list_results(session, "game", run_of(session, "plain")["id"]).read_page(0)
    assert {(row["color"], row["opponent"], row["points"]) for row in rows} == {("white", "random", "0")}
    async with drive(size=(160, 40)) as driver:
        await driver.press("5")
        assert driver.head.split()[:4] == ["run", "game", "score", "result"]
        line = next(line for line in driver.lines if " plain " in line)
        assert line.strip("│› ").split()[:4] == ["plain", "0", "0", "0-1"]
        assert "same in all rows: color white · opponent random" in driver.text


async def test_a_game_is_evaluated_as_the_command_evaluates_it_and_the_strip_is_clicked(drive, world: Path) -> None:
    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        strip, bar = screen.query_one(PlyStrip), screen.query_one(EvaluationBar)
        assert not strip.display
        assert not bar.display
        await driver.press("E")
        await driver.once(lambda: None not in screen.evaluations, "every evaluation")
        await driver.settle()
        assert strip.display
        assert bar.display
        assert bar.size.height == screen.query_one("#left", BoardPane).squares.size.height - 1
        told = json.loads(printed(world, "board", "sure:0", "--ply", "5", "--evaluate", "nodes=10000", "--json"))
        await driver.press(*["right"] * 5)
        assert bar.value == screen.evaluations[5] == told["boards"][0]["evaluation"]
        assert f"evaluation {bar.value / 100:+.2f} for White" in driver.text
        assert strip.place == 5
        await driver.pilot.click(PlyStrip, offset=(2 * strip.column_cells, 0))
        await driver.settle()
        assert screen.frame == 2
        await driver.press("down")
        assert screen.evaluations == [None] * len(screen.boards.views)  # those were of the other game
        assert not strip.display


@pytest.mark.usefixtures("near_model")
async def test_the_models_moves_are_arrows_beside_the_move_that_was_played(drive, session: Session) -> None:
    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        await driver.press(*["right"] * 6, "m")
        await driver.once(lambda: 6 in screen.answers, "the model's answer")
        await driver.settle()
        shown = screen.query_one("#left", BoardPane).squares.frame
        follows = screen.boards.views[7]
        (played,) = [arrow for arrow in shown.arrows if arrow.role == "played"]
        assert (played.start, played.end) == follows.last_move
        own = {move.uci: move.probability for move in screen.answers[6].clean.moves}
        assert played.weight == pytest.approx(own[follows.moves[-1]])
        assert [a.weight for a in shown.arrows if not a.role] == [p for p in own.values() if p >= 0.02][:4]
        assert "move played" in driver.text
        await driver.press("y")
        assert driver.app.clipboard.startswith("chessreg lab --checkpoint")
        assert " ".join(screen.boards.views[6].moves) in driver.app.clipboard
        assert f"legal move mass {format_probability(screen.answers[6].clean.original)}" in driver.text
        assert screen.boards.model.startswith("bigram")
        rare = tuple(move._replace(probability=0.0004) for move in screen.answers[6].clean.moves)
        screen.answers[6] = replace(
            screen.answers[6], clean=replace(screen.answers[6].clean, original=0.012, moves=rare)
        )
        screen.draw()
        await driver.settle()
        for words in ("legal move mass 0.012", "no legal move has 2% or more", "the move played has 0.0004"):
            assert words in driver.text
        sure = tuple(move._replace(probability=0.937 if move.uci == follows.moves[-1] else 0.0004) for move in rare)
        screen.answers[6] = replace(screen.answers[6], clean=replace(screen.answers[6].clean, moves=sure))
        screen.draw()
        await driver.settle()
        for words in ("no other legal move has 2% or more", "the move played has 0.937"):
            assert words in driver.text
        await driver.press("m")
        assert not screen.query_one("#left", BoardPane).squares.frame.arrows
        assert "legal move mass" not in driver.text


async def test_a_model_that_is_being_loaded_says_so_and_a_second_press_does_not_switch_it_off(
    drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = list[Any](), asyncio.Event()

    async def ask(question: Any) -> Any:
        asked.append(question)
        await go.wait()
        raise ModelProcessError("the model is not here")

    async with drive(size=(80, 24)) as driver:
        screen = await game(driver)
        monkeypatch.setattr(driver.app.model, "ask", ask)
        for key in ("right", "m", "m"):
            driver.app.post_message(Key(key, key if len(key) == 1 else None))
        async with asyncio.timeout(PATIENCE):
            while "loading the model…" not in driver.text or driver.app.typed_keys.under_way:
                await asyncio.sleep(0.02)
        assert (screen.asks_model, len(asked)) == (True, 1)
        go.set()
        await driver.until("the model is not here")
        assert "loading the model…" not in driver.text
        await driver.press("m")
        assert not screen.asks_model
        assert "the model is not here" not in driver.text


async def test_evaluating_again_ends_the_evaluation_before(drive, monkeypatch: pytest.MonkeyPatch) -> None:
    given, go = list[int](), threading.Event()

    def slow(views: Any) -> Any:
        me = len(given)
        given.append(0)
        for _ in views:
            go.wait(60)
            given[me] += 1
            yield 0

    monkeypatch.setattr(board_views, "iter_evaluations", slow)
    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        for number in (1, 2):
            screen.action_evaluate()
            while len(given) < number:
                await asyncio.sleep(0.01)
        go.set()
        await driver.once(lambda: None not in screen.evaluations, "every evaluation")
        assert given == [1, len(screen.boards.views)]


@pytest.mark.slow
async def test_a_row_without_a_board_does_not_leave_the_one_before(drive, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise BadInputError("no game")

    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        with monkeypatch.context() as patch:
            patch.setattr(board_views, "load_boards", refused)
            await driver.press("r")
            assert screen.boards is not None, "the same row is drawn still"
            await driver.press("down")
            assert screen.boards is None
            assert "No board: see the reason below" in driver.text
            assert "! no game" in driver.text
        await driver.press("up")
        assert screen.boards is not None
        assert "No board" not in driver.text


async def test_one_goes_to_a_ply_by_its_number_or_by_a_click_on_its_move(drive) -> None:
    async with drive(size=(80, 24)) as driver:
        screen = await game(driver)
        last = len(screen.boards.views) - 1
        await driver.press("number_sign")
        assert isinstance(driver.app.screen, Prompt)
        await driver.type("12")
        await driver.press("enter")
        assert screen.frame == 12
        for wrong in (str(last + 1), "-1", "x", "९"):
            await driver.press("number_sign")
            await driver.type(wrong)
            await driver.press("enter")
            assert f"has no board: there are plies 0 to {last}" in driver.notices
        assert screen.frame == 12
        moves = screen.query_one(MoveList)
        places = [line.places for line in moves.lines[moves.first_line : moves.first_line + moves.size.height]]
        number = next(n for n, pair in enumerate(places) if len(pair) == 2)
        for side, place in enumerate(places[number]):
            await driver.pilot.click(MoveList, offset=(8 + side * moves.move_cells, number))
            await driver.settle()
            assert screen.frame == place
            assert screen.views[0].caption[0] in driver.text


async def test_a_square_that_is_clicked_is_told_of(drive) -> None:
    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        squares = screen.query_one("#left", BoardPane).squares
        wide = (squares.size.width - 2) // 8
        await driver.pilot.click(squares, offset=(2 + 4 * wide + 1, squares.size.height - 3))
        await driver.settle()
        assert screen.clicked_square == chess.E1
        assert "e1: white king" in driver.text
        await driver.pilot.click(squares, offset=(2 + 4 * wide + 1, squares.size.height - 3))
        await driver.settle()
        assert "e1: white king" not in driver.text


async def test_position_game_and_link_are_copied_as_the_command_prints_them(
    drive, session: Session, world: Path
) -> None:
    from chessreg.entities.game import read_stored_games

    run = run_of(session, "sure")["id"]
    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        await driver.press("right", "right", "right", "F")
        assert driver.app.clipboard == screen.views[0].position != ""
        assert printed(world, "board", "sure:0", "--ply", "3", "--as", "fen").strip() == driver.app.clipboard
        await driver.press("W")
        assert driver.app.clipboard.startswith("https://lichess.org/analysis/")
        assert printed(world, "board", "sure:0", "--ply", "3", "--as", "lichess").strip() == driver.app.clipboard
        await driver.press("P")
        assert driver.app.clipboard == format_game(next(read_stored_games(session.database, [(run, 0)])).record())
        await driver.press("c")
        assert isinstance(driver.screen, PairScreen)
        await driver.press("home", "F")
        assert driver.app.clipboard == chess.STARTING_FEN


@pytest.mark.slow
async def test_boards_stand_beside_the_moves_from_120_by_40_on(drive) -> None:
    async with drive(size=(120, 40)) as driver:
        screen = await game(driver)
        await driver.press("end")
        for size in ((80, 24), (120, 40), (200, 60)):
            await driver.pilot.resize_terminal(*size)
            await driver.settle()
            squares, moves = screen.query_one("#left", BoardPane).squares, screen.query_one(MoveList)
            assert squares.square_size > 1
            assert squares.region.right <= moves.region.x
            assert squares.region.bottom <= size[1] - 1
            assert " '  last move" in driver.text


@pytest.mark.slow
async def test_accuracy_by_square_is_a_board_for_each_layer(drive, studied: Path, tmp_path: Path) -> None:
    from tui.screens.heat import HeatScreen

    rows = json.loads(printed(studied, "query", "accuracy by square", "--run", "deep-board", "--json"))["rows"]
    truth = {
        (row["layer"], row["square"]): row["accuracy"] for row in rows if row["split"] == "test" and row["accuracy"]
    }
    async with drive(studied, size=(160, 45), start="queries") as driver:
        await driver.find_row("accuracy by square")
        await driver.press("v", "s")
        await driver.type("run:deep-board")
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, HeatScreen)
        assert [series.name for series in screen.series] == ["validation", "test"]
        assert screen.command().startswith("chessreg plot 'accuracy by square'")
        await driver.press("tab")
        assert len(screen.frames) == 3
        shown = [pane for pane in screen.query(BoardPane) if pane.display]
        assert [pane.squares.frame.title.split(":")[0].strip("› ") for pane in shown] == [
            "layer 0",
            "layer 1",
            "layer 2",
        ]
        for layer, pane in enumerate(shown):
            of_layer = [row["accuracy"] for row in rows if (row["split"], row["layer"]) == ("test", layer)]
            assert re.findall(r"mean ([\d.]+)", pane.squares.frame.title) == [f"{sum(of_layer) / len(of_layer):.1f}"]
            for square, share in pane.squares.frame.heat.items():
                assert 100 * share == pytest.approx(truth.get((layer, chess.square_name(square)), 0.0))
        await driver.press("right", "right")
        assert "› layer 2" in driver.text
        for wide in (160, 118):
            await driver.pilot.resize_terminal(wide, 45)
            await driver.settle()
            shown = [pane for pane in screen.query(BoardPane) if pane.display]
            assert len(shown) > 1
            assert len({pane.squares.region.y for pane in shown}) == 1, "they begin on one line, whatever is above them"
        await driver.pilot.resize_terminal(80, 60)
        await driver.settle()
        shown = [pane for pane in screen.query(BoardPane) if pane.display]
        assert len(shown) == 3, "those for which there is no place beside the others stand below them"
        assert len({pane.squares.region.y for pane in shown}) == 2
        assert all(pane.squares.region.bottom <= 58 for pane in shown)
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        assert "layer 2" in driver.text  # the chosen layer stays in sight where one board fits
        await driver.pilot.click(next(p for p in screen.query(BoardPane) if p.display).squares, offset=(3, 0))
        await driver.settle()
        assert "a8: empty, accuracy %" in driver.text
        await driver.press("w")
        driver.app.screen.query_one("Input").value = str(tmp_path / "squares.svg")
        await driver.press("enter")
        assert "layer 2" in (tmp_path / "squares.svg").read_text()


class Picture(Static):
    """In place of textual-image's widget, which a test's terminal cannot show."""

    image: Any = None


async def test_where_the_terminal_draws_images_boards_are_images_until_a_key_says_otherwise(drive) -> None:
    async with drive(size=(120, 40), images=Picture) as driver:
        screen = await game(driver)
        await driver.press("right")
        pane = screen.query_one("#left", BoardPane)
        assert pane.picture.display
        assert not pane.squares.display
        first = pane.picture.image
        assert first.size == (512, 512)
        _start, end = screen.views[0].last_move
        middle = (8 * SQUARE_PIXELS // 8 // 2, 4)  # of a square, next to its sign and its piece
        x, y = SQUARE_PIXELS * (end % 8) + middle[0] - 20, SQUARE_PIXELS * (7 - end // 8) + middle[1]
        plain = first.getpixel(
            (SQUARE_PIXELS * ((end + 2) % 8) + middle[0] - 20, SQUARE_PIXELS * (7 - end // 8) + middle[1])
        )
        assert first.getpixel((x, y)) != plain  # shaded as the last move
        await driver.press("right")
        assert pane.picture.image.tobytes() != first.tobytes()
        wide, high = pane.picture.size
        await driver.pilot.click(pane.picture, offset=(4 * wide // 8 + 1, high - 1))
        await driver.settle()
        assert screen.clicked_square == chess.E1
        for glyphs in ("solid", "outline", "letters"):
            await driver.press("a")
            assert (pane.squares.display, pane.picture.display) == (True, False)
            assert driver.app.glyphs == glyphs
        await driver.press("a")
        assert (pane.squares.display, pane.picture.display) == (False, True)


@pytest.mark.usefixtures("near_model")
async def test_a_puzzle_is_gone_through_by_steps_with_the_models_moves_and_the_best_one(
    drive, solver_world: Path, tmp_path: Path
) -> None:
    from chessreg.experiments.puzzles import PuzzlesSpec

    folder = Path(shutil.copytree(solver_world, tmp_path / "world"))
    with open_session(str(folder / "registry.db"), folder / "store") as opened:
        opened.run(PuzzlesSpec(checkpoint="fen", dataset="puzzles", puzzles=3), name="solved")
    async with drive(folder, size=(120, 40), start="runs") as driver:
        await driver.find_row("solved")
        await driver.press("enter", "enter")
        screen = driver.screen
        assert isinstance(screen, BoardScreen)
        before = screen.query_one("#left", BoardPane).squares.frame
        (best,) = [arrow for arrow in before.arrows if arrow.role == "best"]
        assert "best move" in driver.text
        assert "puzzle 0" in driver.text
        await driver.press("m")
        await driver.once(lambda: 0 in screen.answers, "the model's answer")
        await driver.settle()
        answer, shown = screen.answers[0], screen.query_one("#left", BoardPane).squares.frame
        assert answer.fen == screen.views[0].position
        likeliest = answer.clean.moves[0]
        own = [arrow for arrow in shown.arrows if not arrow.role]
        assert best in shown.arrows
        assert [a.weight for a in own] == pytest.approx(
            [m.probability for m in answer.clean.moves if m.probability >= 0.02][:4]
        )
        told = json.loads(printed(folder, "lab", "--checkpoint", "fen", "--fen", screen.views[0].position, "--json"))
        assert told["clean"]["moves"][0]["probability"] == pytest.approx(likeliest.probability, abs=1e-5)
        await driver.press("y")
        assert f'--fen "{screen.views[0].position}"' in driver.app.clipboard
        await driver.go("boards")
        assert " predictions" in driver.lines[1].replace("[", " ")


def test_a_puzzle_of_two_moves_is_gone_through_and_two_ways_to_one_position_stand_side_by_side() -> None:
    from chessreg.experiments.puzzles import Puzzle, build_puzzle_frames
    from tui.data.board_views import Boards
    from tui.data.pages import ListPages

    screen = BoardScreen(ListPages([]), 0, {})
    line = tuple(chess.Move.from_uci(word) for word in ("e2e4", "e7e5", "g1f3"))
    solved = build_puzzle_frames(Puzzle(0, chess.Board(), line, 1500), ["e2e4", "g1f3"], {})
    assert [frame.title[-11:] for frame in solved] == ["move 1 of 2", "move 2 of 2"]
    assert not any("1.00" in told for frame in solved for told in list_legend(frame)), (
        "a weight that is no share is not told"
    )
    screen.boards = Boards({}, solved, "solved", "puzzles")
    assert not screen.is_pair
    ways = [chess.Board(), chess.Board()]
    for board, words in zip(ways, ("e4 e5 Nf3 Nc6", "Nf3 Nc6 e4 e5"), strict=True):
        for word in words.split():
            board.push_san(word)
    screen.boards = Boards({}, [BoardFrame.from_board(board) for board in ways], "orders", "markov")
    assert screen.is_pair
    belief = BoardFrame.from_board(chess.BaseBoard())
    screen.boards = Boards({}, [BoardFrame.from_board(chess.Board()), belief], "read", "probe")
    assert screen.is_pair


def test_a_mate_is_told_as_one() -> None:
    told = {153: "+1.53 for White", 15_300: "+153.00 for White", -9_995: "#-5"}
    told |= {29_996: "#4", -10_000: "#-0"}
    for centipawns, words in told.items():
        assert format_evaluation(centipawns) == words


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--fen", "nonsense"], "is not a FEN"),
        (["--fen", "8/8/8/8/8/8/8/8 w - - 0 1"], "is not a position of a chess game"),
        (["--fen", chess.STARTING_FEN, "--moves", "e4"], "--moves and --fen both give"),
        (["--fen", "4k3/8/8/8/8/8/8/4K2R b K - 0 1"], "writes games, and a FEN does not contain the game"),
    ],
)
def test_a_fen_that_cannot_be_asked_is_refused_in_a_line(
    world: Path, words: list[str], complaint: str, capsys: Any
) -> None:
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    assert run_command_line([*place, "lab", "--checkpoint", "bigram", *words]) != 0
    line = capsys.readouterr().err.strip().splitlines()[0]
    assert complaint in line


def test_a_game_that_is_over_is_worth_a_mate_or_nothing() -> None:
    from chessreg.games.boards.adjudication import MATE_CP
    from chessreg.games.engines.opponents import parse_engine, parse_limit
    from chessreg.games.engines.pool import EnginePool

    over = {
        "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3": -MATE_CP,  # the fool's mate
        "R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1": MATE_CP,
        "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1": 0,  # stalemate
    }
    with EnginePool(parse_engine("random")) as pool:
        assert list(pool.evaluations(over, parse_limit("nodes=1"))) == list(over.values())
