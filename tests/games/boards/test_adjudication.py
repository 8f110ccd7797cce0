"""Ends of games and their scores."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import chess
import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.boards.adjudication import GameEnd, Termination, find_game_end, make_loss, score_game


def knights_to_and_fro(plies: int) -> chess.Board:
    board = chess.Board()
    for index in range(plies):
        board.push_uci(("g1f3", "g8f6", "f3g1", "f6g8")[index % 4])
    return board


@pytest.mark.parametrize(
    ("board", "end"),
    [
        (chess.Board(), None),
        (chess.Board("R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1"), GameEnd(Termination.CHECKMATE, "1-0")),
        (chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"), GameEnd(Termination.STALEMATE, "1/2-1/2")),
        (chess.Board("7k/8/8/8/8/8/8/K1B5 w - - 0 1"), GameEnd(Termination.INSUFFICIENT_MATERIAL, "1/2-1/2")),
        (chess.Board("7k/8/8/8/8/8/8/K1R5 w - - 149 99"), None),
        (chess.Board("7k/8/8/8/8/8/8/K1R5 w - - 150 99"), GameEnd(Termination.SEVENTYFIVE_MOVES, "1/2-1/2")),
        (knights_to_and_fro(12), None),  # fourfold: claimable, not claimed
        (knights_to_and_fro(16), GameEnd(Termination.FIVEFOLD_REPETITION, "1/2-1/2")),
    ],
)
def test_a_game_ends_by_the_rules_and_not_by_claims(board: chess.Board, end: GameEnd | None) -> None:
    assert find_game_end(board) == end


def test_giving_up_loses() -> None:
    assert make_loss(chess.WHITE, Termination.FORFEIT_ILLEGAL) == GameEnd(Termination.FORFEIT_ILLEGAL, "0-1")
    assert make_loss(chess.BLACK, Termination.RESIGNATION).result == "1-0"


@pytest.mark.parametrize(
    ("color", "result", "cp", "paper", "author"),
    [
        (chess.WHITE, "1-0", None, 1.0, 1.0),
        (chess.BLACK, "1-0", None, 0.0, 0.0),
        (chess.WHITE, "1/2-1/2", None, 0.5, None),
        (chess.WHITE, "*", 101, 1.0, 1.0),
        (chess.WHITE, "*", 100, 0.5, None),
        (chess.WHITE, "*", 0, 0.5, 0.0),
        (chess.WHITE, "*", -100, 0.5, 0.0),
        (chess.WHITE, "*", -101, 0.0, 0.0),
        (chess.BLACK, "*", -101, 1.0, 1.0),
        (chess.BLACK, "*", 0, 0.5, 0.0),
        (chess.WHITE, "*", None, None, None),
    ],
)
def test_both_policies_score_from_the_stored_evaluation(
    color: chess.Color, result: str, cp: int | None, paper: float | None, author: float | None
) -> None:
    assert score_game("paper", color, result, cp) == paper
    assert score_game("author-2024", color, result, cp) == author


def test_an_unknown_policy_or_result_is_named() -> None:
    with pytest.raises(NotFoundError, match="fide"):
        score_game("fide", chess.WHITE, "1-0")
    with pytest.raises(BadInputError, match="2-0"):
        score_game("paper", chess.WHITE, "2-0")


def test_the_two_policies_give_the_authors_numbers_on_his_games(shared_data: Path) -> None:
    """gpt-3.5-turbo-instruct against levels 3 to 9: the numbers printed by chess_gpt_eval, and the true scores."""
    result = {"1": "1-0", "0": "0-1", "1/2": "1/2-1/2"}
    paper: defaultdict[int, list[float]] = defaultdict(list)
    author: defaultdict[int, list[float]] = defaultdict(list)
    with (shared_data / "results" / "chess_gpt_eval-games.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["player_one"] == "gpt-3.5-turbo-instruct" and row["player_two"].startswith("Stockfish"):
                level = int(row["player_two"].split()[1])
                own = result[row["player_one_score"]]
                if (value := score_game("paper", chess.WHITE, own)) is not None:
                    paper[level].append(value)
                if (value := score_game("author-2024", chess.WHITE, own)) is not None:
                    author[level].append(value)
    means = [sum(author[level]) / len(author[level]) for level in range(3, 10)]
    assert means == pytest.approx([0.461538, 0.357143, 0.357143, 0.266667, 0.0, 0.0, 0.071429], abs=1e-6)
    true = [sum(paper[level]) / len(paper[level]) for level in range(10)]
    assert true == pytest.approx([1, 0.8667, 0.6667, 0.4667, 0.3667, 0.3667, 0.2667, 0.0667, 0, 0.1], abs=1e-4)
