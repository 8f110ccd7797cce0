"""Kind `puzzles`: every answer against a model that is asked move by move, other mates, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch

from chessreg.entities.adding import add_dataset
from chessreg.errors import BadInputError
from chessreg.experiments.puzzles import Puzzle, PuzzlesOptions, PuzzlesSpec, build_puzzle_frames
from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.session import Session, open_session
from tests.conftest import PUZZLES
from tests.language_models import bring_in
from tests.specs import vector_spec

FEN = "fen"


@pytest.fixture(scope="module")
def root(solver_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world with puzzles and a model of positions, and a model of prompts."""
    folder = Path(shutil.copytree(solver_world, tmp_path_factory.mktemp("puzzles") / "world"))
    with open_session(str(folder / "registry.db"), folder / "store") as opened:
        bring_in(opened, "prompt", "llama", folder / "llama")
    return folder


@pytest.fixture(scope="module")
def session(root: Path) -> Iterator[Session]:
    with open_session(str(root / "registry.db"), root / "store") as opened:
        yield opened


def rows_of(session: Session, run_id: Any) -> list[tables.Prediction]:
    with session.database.read() as sql:
        found = sql.query(tables.Prediction).filter_by(run_id=run_id).order_by(tables.Prediction.unit).all()
        sql.expunge_all()
    return found


def puzzle_of(number: int) -> Puzzle:
    """One of them, without a dataset."""
    fen, line, rating = PUZZLES.splitlines()[number].split(",")
    board, first, *rest = chess.Board(fen), *line.split()
    board.push_uci(first)
    board.clear_stack()
    return Puzzle(number, board, tuple(map(chess.Move.from_uci, rest)), int(rating or 0))


def asked_slowly(session: Session, puzzle: Puzzle) -> tuple[list[str], int]:
    """The most probable legal action of a separate forward pass, move after move; and the number of correct ones."""
    model, chosen, right = session.model(FEN), [], 0
    for number in range(0, len(puzzle.line), 2):
        logits = model.logits(torch.tensor([model.encoding.prompt(puzzle.board)]))[0, -1]
        legal = sorted(move.uci() for move in puzzle.board.legal_moves)
        chosen.append(max(legal, key=lambda move: float(logits[model.encoding.action_ids[move]])))
        if chosen[-1] != puzzle.line[number].uci():
            puzzle.board.push_uci(chosen[-1])
            return chosen, (len(puzzle.line) + 1) // 2 if puzzle.board.is_checkmate() else right
        right += 1
        for move in puzzle.line[number : number + 2]:
            puzzle.board.push(move)
    return chosen, right


def test_every_puzzle_comes_out_as_when_it_is_asked_alone(session: Session) -> None:
    report = session.run(PuzzlesSpec(checkpoint=FEN, dataset="puzzles"), PuzzlesOptions(batch_puzzles=4))
    rows = rows_of(session, report.run_id)
    assert [row.detail["rating"] for row in rows] == [1828, 1479, 1440, 600, 610, None]
    for number, row in enumerate(rows):
        puzzle = puzzle_of(number)
        if number == 4:  # its full-move number has four digits
            assert (row.value, row.text, row.detail["first"]) == (None, None, None)
            continue
        chosen, right = asked_slowly(session, puzzle)
        assert row.text.split() == chosen
        assert (row.detail["right"], row.value) == (right, float(right == row.detail["moves"]))
        assert row.detail["first"] == (right > 0)
        assert row.detail["illegal"] is False
        assert 0 < row.detail["share"] < 1
        frames = find_kind("puzzles").board_views({"run_id": report.run_id, "unit": number}, session.inputs)
        assert len(frames) == len(chosen)
    [unread] = find_kind("puzzles").board_views({"run_id": report.run_id, "unit": 4}, session.inputs)
    assert unread.caption == ("the model cannot read this position",)


def test_a_line_goes_on_with_the_opponents_answers_until_a_move_is_wrong() -> None:
    puzzle = puzzle_of(0)
    for number, word in enumerate(("e6e7", "b3c1", "h6c1")):
        assert not puzzle.is_over
        puzzle.take(chess.Move.from_uci(word), "")
        assert (puzzle.right_moves, puzzle.is_over) == (number + 1, number == 2)
    assert puzzle.value == 1.0
    puzzle = puzzle_of(0)
    puzzle.take(chess.Move.from_uci("e6e7"), "")
    puzzle.take(chess.Move.from_uci("e7e1"), "")
    assert (puzzle.right_moves, puzzle.value, puzzle.is_over, puzzle.illegal) == (1, 0.0, True, False)
    puzzle = puzzle_of(0)
    puzzle.take(None, " Qh9 # ")
    assert (puzzle.played_moves, puzzle.value, puzzle.illegal, puzzle.build_row(None).first) == (
        ["Qh9_#"],
        0.0,
        True,
        False,
    )


def test_another_mate_solves_a_puzzle_and_another_promotion_does_not() -> None:
    puzzle = puzzle_of(3)
    puzzle.take(chess.Move.from_uci("b1b8"), "")
    assert (puzzle.right_moves, puzzle.value, puzzle.is_over) == (1, 1.0, True)
    puzzle = puzzle_of(5)
    puzzle.take(chess.Move.from_uci("a7a8r"), "")
    assert (puzzle.right_moves, puzzle.value) == (0, 0.0)


def test_steps_are_drawn_with_the_solution_beside_a_wrong_move() -> None:
    first, second = build_puzzle_frames(puzzle_of(0), ["e6e7", "e7e1"], {"share": 0.25, "mass": 0.5})
    assert [arrow.label for arrow in first.arrows] == ["Rxe7 (model)"]
    assert first.caption[0] == "the model plays Rxe7: right"
    assert "legal mass 0.500" in first.caption[1]
    assert [arrow.label for arrow in second.arrows] == ["Re1 (model)", "Nc1 (solution)"]
    assert second.last_move == (chess.B2, chess.B1)
    [illegal] = build_puzzle_frames(puzzle_of(1), ["Qh9_#"], {})
    assert illegal.flipped
    assert illegal.caption[0] == "the model writes 'Qh9_#': illegal"
    [mate] = build_puzzle_frames(puzzle_of(3), ["b1b8"], {})
    assert "mates" in mate.caption[0]


@pytest.mark.parametrize(
    "policy", ["free", "legal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("trie", "retry:2"))]
)
def test_prompts_solve_puzzles_by_every_policy(session: Session, policy: str) -> None:
    spec = PuzzlesSpec(checkpoint="llama", dataset="puzzles", puzzles=3, policy=policy, temperatures=(1.0,))
    rows = rows_of(session, session.run(spec).run_id)
    assert len(rows) == 3
    assert all(row.detail["illegal"] == (policy in ("free", "retry:2")) for row in rows), "random weights"
    assert all(0 <= row.detail["mass"] < 1e-3 for row in rows)


def test_an_edit_changes_what_is_solved_and_is_recorded(session: Session) -> None:
    from chessreg.experiments.cache import CacheSpec

    session.run(CacheSpec(checkpoint=FEN, dataset="sample:fit", sites="white-turns", games=36), name="fen-fit")
    session.run(vector_spec(source="contrastive", cache="fen-fit", first_ply=2), name="fen-skill")
    spec = PuzzlesSpec(checkpoint=FEN, dataset="puzzles", intervention={"vector": "fen-skill", "scale": 30.0})
    edited = rows_of(session, session.run(spec).run_id)
    plain = rows_of(session, session.run(PuzzlesSpec(checkpoint=FEN, dataset="puzzles")).run_id)
    assert not np.allclose([r.detail["share"] or 0 for r in edited], [r.detail["share"] or 0 for r in plain], rtol=0.01)
    table = session.query("puzzles by rating").to_pandas()
    assert set(table["intervention"]) == {"none", "contrastive:white_elo L0-1 x30"}


def test_the_table_counts_by_rating_and_leaves_out_what_was_not_asked(session: Session) -> None:
    report = session.run(PuzzlesSpec(checkpoint=FEN, dataset="puzzles"))
    values = {row.unit: row for row in rows_of(session, report.run_id)}
    table = session.query("puzzles by rating", run=[report.run_id.hex]).to_pandas().set_index("rating")
    assert set(table["policy"]) == {"legal"}
    assert table.loc["all", ["n", "unread"]].tolist() == [5, 1]
    assert table.loc["400–799", ["n", "unread"]].tolist() == [1, 1]
    assert table.loc["1200–1599", "n"] == 2
    assert table.loc["1200–1599", "mean_rating"] == pytest.approx((1479 + 1440) / 2)
    for column, of in (("first", "first"), ("line", None)):
        asked = [row.detail[of] if of else row.value for row in values.values() if row.value is not None]
        assert table.loc["all", column] == pytest.approx(100 * float(np.mean(asked)))


def test_what_cannot_be_asked_is_refused_in_a_line(session: Session, root: Path) -> None:
    with pytest.raises(BadInputError, match="the games before these puzzles are unknown"):
        session.run(PuzzlesSpec(checkpoint="reference", dataset="puzzles"))
    with pytest.raises(BadInputError, match="holds games"):
        session.run(PuzzlesSpec(checkpoint=FEN, dataset="sample"))
    (root / "plain.csv").write_text("fen,best\n5k2/5ppp/8/8/8/8/8/RR4K1 b - - 0 1,f8g8\n")
    add_dataset(session.database, session.store, [root / "plain.csv"], name="unsolved")
    with pytest.raises(BadInputError, match="none of these positions has a solution"):
        session.run(PuzzlesSpec(checkpoint=FEN, dataset="unsolved"))
    with pytest.raises(BadInputError, match="one temperature"):
        PuzzlesSpec(checkpoint=FEN, dataset="puzzles", temperatures=(0.0, 1.0))
    with pytest.raises(BadInputError, match="another checkpoint"):
        session.run(PuzzlesSpec(checkpoint=FEN, dataset="puzzles", intervention={"vector": "skill"}))
