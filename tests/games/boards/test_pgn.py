"""Exported games come back through python-chess."""

from __future__ import annotations

import io
from pathlib import Path

import chess
import chess.pgn
import pytest
import zstandard

from chessreg.errors import BadInputError
from chessreg.games.boards.adjudication import Termination
from chessreg.games.boards.pgn import GameRecord, format_game, save_pgn

MOVES = ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5", "a7a6", "e1g1"]


def record(**changes: object) -> GameRecord:
    values: dict = {"moves": MOVES, "white": "gpt-8x192", "black": "Stockfish 0 (nodes=1000)", "result": "*"}
    return GameRecord(**{**values, **changes})


def read(text: str) -> chess.pgn.Game:
    stream = io.StringIO(text)
    game = chess.pgn.read_game(stream)
    assert game is not None
    assert game.errors == []
    assert chess.pgn.read_game(stream) is None
    return game


def comments(game: chess.pgn.Game) -> dict[str, str]:
    return {node.san(): node.comment for node in game.mainline() if node.comment}


def test_moves_result_and_provenance_come_back() -> None:
    game = read(
        format_game(
            record(
                result="1-0",
                termination=Termination.RESIGNATION,
                model="8x192",
                intervention="skill +0.1, layers 3-5",
                engine="Stockfish 15.1",
                limit="nodes=1000",
                opening="random:20",
                seeds="run 1, game 7",
                headers={"Round": "7", "White": "overridden"},
            )
        )
    )
    assert [move.uci() for move in game.mainline_moves()] == MOVES
    tags = dict(game.headers)
    assert tags["White"] == "gpt-8x192"
    assert (tags["Model"], tags["Intervention"], tags["Engine"]) == (
        "8x192",
        "skill +0.1, layers 3-5",
        "Stockfish 15.1",
    )
    assert (tags["EngineLimit"], tags["Opening"], tags["Seeds"]) == ("nodes=1000", "random:20", "run 1, game 7")
    assert (tags["Result"], tags["Round"], tags["TerminationReason"]) == ("1-0", "7", "resignation")
    assert "Black resigns" in comments(game)["O-O"]


def test_illegal_tries_follow_the_move_that_was_found() -> None:
    game = read(format_game(record(tries={2: ["Nf9", "Ke9"], 3: ["Nd5"], 4: []})))
    assert comments(game) == {"Nf3": "illegal: Nf9, Ke9", "Nc6": "illegal: Nd5"}


def test_a_forfeit_names_who_and_what_was_tried() -> None:
    game = read(
        format_game(
            record(result="1-0", termination=Termination.FORFEIT_ILLEGAL, tries={6: ["Kf9"], 7: ["Qxz9", "O-O"]})
        )
    )
    assert comments(game)["O-O"].split("\n")[0].startswith("illegal: Kf9")
    assert "Black to move; illegal: Qxz9, O-O; Black found no legal move and forfeits" in comments(game)["O-O"]
    assert game.headers["Termination"] == "rules infraction"


def test_an_adjudication_is_a_comment_and_leaves_the_result_open() -> None:
    game = read(format_game(record(termination=Termination.MOVE_LIMIT, adjudication_cp=153)))
    assert comments(game)["O-O"] == "adjudication at move_limit: +153 centipawns for White"
    assert (game.headers["Result"], game.headers["Termination"]) == ("*", "adjudication")


def test_what_a_model_wrote_cannot_break_the_file() -> None:
    nasty = 'a "quoted\\ model\n[Event "x"]'
    game = read(format_game(record(white=nasty, tries={0: ["}{ 1-0", "; e4\n\n[Event"]})))
    assert game.headers["White"] == "a 'quoted/ model [Event 'x']"
    assert [move.uci() for move in game.mainline_moves()] == MOVES
    assert comments(game)["e4"] == "illegal: )( 1-0, ; e4 [Event"


def test_a_game_from_a_set_up_position_starts_with_its_own_number() -> None:
    fen = "4k3/8/8/8/8/8/4p3/4K2R b K - 0 31"
    text = format_game(record(fen=fen, moves=["e8d7", "h1h7"]))
    assert "31... Kd7 32. Rh7+ *" in text
    game = read(text)
    assert game.board().fen() == fen
    assert [move.uci() for move in game.mainline_moves()] == ["e8d7", "h1h7"]


def test_a_game_without_moves_is_a_game() -> None:
    assert list(read(format_game(record(moves=[], result="0-1"))).mainline_moves()) == []


def test_illegal_moves_and_results_are_refused() -> None:
    with pytest.raises(BadInputError, match="ply 1: e2e4"):
        format_game(record(moves=["e2e4", "e2e4"]))
    with pytest.raises(BadInputError, match="2-0"):
        format_game(record(result="2-0"))


@pytest.mark.parametrize("name", ["games.pgn", "games.pgn.zst"])
def test_a_file_holds_all_games_or_does_not_appear(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert save_pgn([record(), format_game(record(moves=MOVES[:2])), record(moves=[])], path) == 3
    data = path.read_bytes()
    text = (zstandard.ZstdDecompressor().stream_reader(data).read() if name.endswith("zst") else data).decode()
    stream = io.StringIO(text)
    plies = []
    while (game := chess.pgn.read_game(stream)) is not None:
        plies.append(len(list(game.mainline_moves())))
    assert plies == [7, 2, 0]

    broken = tmp_path / f"broken-{name}"
    with pytest.raises(BadInputError):
        save_pgn([record(), record(moves=["e2e5"])], broken)
    assert sorted(file.name for file in tmp_path.iterdir()) == [name]
    with pytest.raises(BadInputError, match="cannot write"):
        save_pgn([record()], tmp_path / "absent" / name)
