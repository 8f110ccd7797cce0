"""Legal moves of positions, counted, and the share that a list of 60 holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import chess
import pytest

from chessreg.entities.adding import add_dataset
from chessreg.errors import BadInputError
from chessreg.experiments import move_counts
from chessreg.experiments.move_counts import MoveCountsSpec
from chessreg.session import Session

CROWDED = "8/8/k7/8/3QQQQ1/8/8/K6Q w - - 0 1"  # more than 60 moves


@pytest.fixture
def positions(session: Session, tmp_path: Path) -> list[str]:
    """Positions of a game, one crowded, one mated, and the first one once more."""
    board, fens = chess.Board(), []
    for word in ("f3", "e5", "g4", "Qh4"):
        fens.append(board.fen())
        board.push_san(word)
    fens += [board.fen(), CROWDED, chess.STARTING_FEN]
    (tmp_path / "some.csv").write_text("fen\n" + "".join(f"{fen}\n" for fen in fens))
    add_dataset(session.database, session.store, [tmp_path / "some.csv"], name="some")
    return fens


def test_the_table_has_every_number_of_moves_and_the_share_up_to_it(
    session: Session, positions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_counts, "BLOCK_POSITIONS", 4)  # two blocks
    counts = Counter(chess.Board(fen).legal_moves.count() for fen in positions[:-1])
    session.run(MoveCountsSpec(dataset="some"))
    rows = {row["moves"]: row for row in session.query("legal moves per position").table.to_pylist()}
    assert sorted(rows) == list(range(max(counts) + 1))
    assert max(counts) > 60
    assert {moves: row["n"] for moves, row in rows.items() if row["n"]} == dict(counts)
    assert rows[0]["n"] == 1  # the game is over
    assert rows[60]["within"] == pytest.approx(100 * 5 / 6)
    assert rows[60]["beyond"] == pytest.approx(10_000 / 6)
    assert rows[60]["within_low"] < rows[60]["within"] <= rows[60]["within_high"]


def test_a_copy_of_a_position_counts_where_that_is_asked_for(session: Session, positions: list[str]) -> None:
    session.run(MoveCountsSpec(dataset="some", keep_duplicates=True, positions=100))
    [row] = [row for row in session.query("legal moves per position").table.to_pylist() if row["moves"] == 20]
    assert (row["n"], row["positions"]) == (3, 7)


def test_games_are_refused(world_session: Session) -> None:
    with pytest.raises(BadInputError, match="holds games, and positions are needed"):
        world_session.run(MoveCountsSpec(dataset="sample"))
