"""Rows of chess_gpt_eval: the values read, notes, and refusals."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import chess
import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.foreign import ForeignGame, RejectedRow, chess_gpt_eval, find_format, read_games
from chessreg.games.foreign.game import UNKNOWN, parse_engine_limit
from chessreg.noise import generator
from tests.quick import quick_first

MATE = "1. e4 e5\n2. Bc4 Nc6\n3. Qh5 Nf6\n4. Qxf7#"
SIDES = ("player_one", "player_two")
SCORES = {"1-0": ("1", "0"), "0-1": ("0", "1"), "1/2-1/2": ("1/2", "1/2"), "*": ("0.5", "0.5")}


def row(transcript: str, result: str = "1-0", **given: str) -> dict[str, str]:
    """A self-consistent row, except for the given values."""
    text = chess_gpt_eval.split_transcript(transcript)[1]
    words, _ = chess_gpt_eval.split_half_moves(text)
    board = chess.Board()
    for word in words:
        try:
            board.push_san(word)
        except ValueError:
            break
    one, two = given.get("player_one", "model.pt"), given.get("player_two", "Stockfish 3")
    known = {
        **dict.fromkeys(chess_gpt_eval.REQUIRED_COLUMNS, "0"),
        **{f"{side}_{what}": "False" for side in SIDES for what in ("resignation", "failed_to_find_legal_move")},
        "game_id": "1-1", "transcript": transcript, "result": result, "player_one": one, "player_two": two,
        "player_one_score": SCORES[result][0], "player_two_score": SCORES[result][1],
        "game_title": f"{one} vs. {two}", "number_of_moves": str(board.fullmove_number), "time_taken": "2.5",
    }  # fmt: skip
    return {**known, **given}


def read(transcript: str, result: str = "1-0", **given: str) -> ForeignGame:
    found = chess_gpt_eval.read_eval_row(0, row(transcript, result, **given))
    assert isinstance(found, ForeignGame), found
    return found


def codes(game: ForeignGame) -> list[str]:
    return [odd.code for odd in game.oddities]


def test_a_row_that_is_right_about_itself_has_no_oddity() -> None:
    game = read(MATE, player_two_time="0.1")
    assert (codes(game), game.termination, len(game.moves), game.seconds) == ([], "checkmate", 7, 2.5)
    assert (game.white.text, game.black.text, game.black.level) == ("model.pt", "stockfish:3@time=0.1", 3)
    assert (game.turns(chess.WHITE), game.first_try_legal(chess.WHITE), game.tries(chess.WHITE)) == (4, 4, [1] * 4)


@pytest.mark.parametrize(
    ("transcript", "prompt"),
    [
        ('[White "Magnus Carlsen"]\n[Black "Stockfish"]\n\n1.e3 Nf6', '[White "Magnus Carlsen"]\n[Black "Stockfish"]'),
        (";1. e4 e5", ""),
        ('[Round "5"]\n[Variant "Standard\']\n1. e4 e5', '[Round "5"]\n[Variant "Standard\']'),
        ('[Result "1-0"]\n\n', '[Result "1-0"]'),
    ],
)
def test_moves_begin_after_any_prompt(transcript: str, prompt: str) -> None:
    found, moves = chess_gpt_eval.split_transcript(transcript)
    assert found == prompt
    assert moves.startswith("1.") == ("e" in moves)


def test_a_prompt_with_broken_quotes_is_noted() -> None:
    assert codes(read('[White Title "GM"]\n[Variant "Standard\']\n' + MATE)) == ["prompt is no PGN"]


def test_a_number_before_each_half_move_is_noted_and_a_wrong_one_too() -> None:
    assert codes(read(MATE.replace("3. Qh5 Nf6", "3. Qh5\n3. Nf6"))) == ["repeated move number"]
    assert codes(read(MATE.replace("4.", "7."))) == ["wrong move number"]


def test_an_illegal_half_move_keeps_the_row_out_by_name() -> None:
    found = chess_gpt_eval.read_eval_row(7, row(MATE.replace("Qh5", "Qh7")))
    assert found == RejectedRow(7, "half-move 5, 'Qh7', is not legal")
    null = chess_gpt_eval.read_eval_row(0, row("1. e4 --"))
    assert isinstance(null, RejectedRow)


def test_results_scores_and_counts_are_compared_with_the_board() -> None:
    assert codes(read(MATE, "0-1")) == ["result differs from board"]
    assert codes(read(MATE, player_one_score="0")) == ["score differs from result"]
    assert codes(read(MATE, player_one_score="-10000000000.0")) == ["score is a sentinel"]
    assert codes(read(MATE, number_of_moves="9")) == ["number of moves differs"]
    assert codes(read(MATE, game_title="other")) == ["title differs from players"]
    assert codes(read("1. e4 e5", "1-0")) == ["ending not recorded"]
    assert codes(read("1. e4 e5", "*")) == ["ending not recorded"]


def test_forfeits_belong_to_the_side_that_forfeited() -> None:
    own = read("1. e4 e5\n2.", "0-1", player_one_failed_to_find_legal_move="True", player_one_illegal_moves="5")
    assert (own.termination, own.loser_by_forfeit, own.turns(chess.WHITE), codes(own)) == (
        "forfeit_illegal",
        True,
        2,
        [],
    )
    assert own.first_try_legal(chess.WHITE) is None  # the turns of the other tries are not recorded
    other = read("1. e4", "1-0", player_two_failed_to_find_legal_move="True", player_two_illegal_moves="5")
    assert (other.loser_by_forfeit, other.turns(chess.BLACK), other.first_try_legal(chess.WHITE)) == (False, 1, 1)
    wrong = read("1. e4", "0-1", player_one_failed_to_find_legal_move="True", player_one_illegal_moves="5")
    assert codes(wrong) == ["given up out of turn"]
    assert codes(read(MATE, player_two_resignation="True")) == ["given up after the end"]
    assert "result differs from ending" in codes(read("1. e4", "0-1", player_two_resignation="True"))


def test_listed_tries_give_the_tries_of_every_turn() -> None:
    details = "[{'move_number': 2, 'attempted_move': 'Bc9'}, {'move_number': 2, 'attempted_move': 'Ke3'}]"
    game = read(
        MATE, player_one_illegal_moves="2", player_one_legal_moves="3", player_one_illegal_moves_details=details
    )
    assert (game.tries(chess.WHITE), game.first_try_legal(chess.WHITE), codes(game)) == ([1, 3, 1, 1], 3, [])
    assert game.illegal == [(2, 0, "Bc9"), (2, 1, "Ke3")]
    legal = details.replace("Ke3", "Nf3")
    noted = read(MATE, player_one_illegal_moves="1", player_one_legal_moves="4", player_one_illegal_moves_details=legal)
    assert codes(noted) == ["counts of tries differ", "counts of tries differ", "illegal try that is legal"]
    bad = read(MATE, player_one_illegal_moves="1", player_one_illegal_moves_details="[__import__('os')]")
    assert codes(bad) == ["details of tries unreadable"]


def unfinished(plies: int) -> str:
    """The moves of a random game that is not over after `plies` plies."""
    for number in itertools.count():
        random, board, words = generator("unfinished", number), chess.Board(), []
        while len(board.move_stack) < plies and not board.is_game_over():
            move = sorted(board.legal_moves, key=chess.Move.uci)[int(random.integers(board.legal_moves.count()))]
            words.append((f"{board.fullmove_number}. " if board.turn else "") + board.san(move))
            board.push(move)
        if not board.is_game_over():
            return " ".join(words)
    raise AssertionError


def test_a_game_at_the_move_limit_is_not_adjudicated() -> None:
    game = read(unfinished(180), "*")
    assert (game.result, game.termination, codes(game)) == ("*", "move_limit", ["not adjudicated"])


def test_times_are_limits() -> None:
    assert [parse_engine_limit(t) for t in ("0.1", "1e-08", "40000 nodes", "", "quick")] == [
        "time=0.1", "time=1e-08", "nodes=40000", None, "quick",
    ]  # fmt: skip
    assert read(MATE).black.text == f"stockfish:3@{UNKNOWN}"
    assert read(MATE, player_two="Stockfish -2").black.text == "random"


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    file = tmp_path / "anything"
    out = io.StringIO()
    writer = csv.DictWriter(out, sorted(row(MATE) | {"modified_player_one_score": ""}))
    writer.writeheader()
    writer.writerows([row(MATE) | {"modified_player_one_score": "1"}, row(MATE.replace("Qh5", "Qh7"))] * 2)
    file.write_text(out.getvalue())
    found = find_format(file)
    read = read_games(file, found.name)
    report = read.report()
    assert (found.name, report["rows"], report["games"]) == ("chess_gpt_eval", 4, 2)
    assert [r["row"] for r in report["rejected"]] == [1, 3]
    assert {o["code"]: o["rows"] for o in report["oddities"]} == {
        "moves of an earlier game": [2],
        "id of an earlier game": [2],
    }
    assert read.games[0].source_columns["extra"] == {"modified_player_one_score": "1"}
    file.write_text("a,b\n1,2\n")
    with pytest.raises(BadInputError, match="no results in a format"):
        find_format(file)
    with pytest.raises(NotFoundError, match="does not exist"):
        find_format(tmp_path / "none")
    file.write_text(out.getvalue() + "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19\n")
    with pytest.raises(BadInputError, match=r"line .* has 19 fields, the header has 17"):
        read_games(file, "chess_gpt_eval")


@pytest.mark.parametrize(
    ("file", "games", "terminations"),
    quick_first(
        1,
        [  # the first has the columns and all oddities of the others
            ("chess_gpt_eval-games.csv", 310, {"forfeit_illegal": 143, "resignation": 5}),
            ("chess_gpt_eval-stockfish-testing.csv", 555, {"forfeit_illegal": 0, "checkmate": 511}),
            ("karvonen-16layers-vs-stockfish.csv", 1258, {"forfeit_illegal": 63, "move_limit": 83}),
        ],
    ),
)
def test_every_published_game_replays(shared_data: Path, file: str, games: int, terminations: dict[str, int]) -> None:
    """Every published game is legal, with the recorded number and terminations."""
    read = read_games(shared_data / "results" / file, "chess_gpt_eval")
    assert (read.rows, len(read.games), read.rejected_rows) == (games, games, ())
    report = read.report()
    assert {name: report["terminations"].get(name, 0) for name in terminations} == terminations
    odd = {o["code"]: o for o in report["oddities"]}
    assert "result differs from board" not in odd
    assert "number of moves differs" not in odd
    if games == 310:
        assert odd["repeated move number"]["rows"] == [0, 130]
        assert (odd["prompt is no PGN"]["count"], odd["moves of an earlier game"]["count"]) == (310, 5)
        ended = sum(count for name, count in report["terminations"].items() if name not in terminations)
        assert ended == 162


def test_another_file_is_refused_by_the_column_that_it_lacks() -> None:
    with pytest.raises(BadInputError, match="it has no column game_id"):
        chess_gpt_eval.read_chess_gpt_eval('[Event "x"]\n\n1. e4 e5 1-0\n')
