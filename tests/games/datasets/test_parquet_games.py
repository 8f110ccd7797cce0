"""Parquet files of games, as they are published: read as the same games in PGN, filtered, and refused when damaged."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import chess
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chessreg.entities.adding import has_positions
from chessreg.errors import BadInputError
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import REJECTS_FILE, Games
from chessreg.games.datasets.game_filter import GameFilter
from tests.conftest import random_game

GAMES = [random_game(number, 40 + number) for number in range(6)]


def written(path: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def texts(folder: Path) -> list[str]:
    games = Games(folder)
    return games.texts(games.rows())


def sans(game: chess.pgn.Game) -> str:
    return chess.Board().variation_san(list(game.mainline_moves()))


@pytest.fixture
def plain(tmp_path: Path) -> list[str]:
    """The games as a PGN gives them."""
    path = tmp_path / "plain.pgn"
    path.write_text("".join(f'[Event "{n}"]\n\n{sans(game)} 1-0\n\n' for n, game in enumerate(GAMES)))
    build_dataset([path], tmp_path / "plain")
    return texts(tmp_path / "plain")


@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_a_transcript_of_uci_moves_is_the_game(tmp_path: Path, plain: list[str], case: Any) -> None:
    """As `austindavis/lichess_uci`: site and transcript, promotions in either case."""
    moves = [case(" ".join(move.uci() for move in game.mainline_moves())) for game in GAMES]
    moves = [" ".join(word[:4].lower() + word[4:] for word in text.split()) for text in moves]
    path = written(tmp_path / "a.parquet", site=[f"id{n}" for n in range(6)], transcript=moves)
    report = build_dataset([path], tmp_path / "made")
    assert texts(tmp_path / "made") == plain
    assert (report.games, report.found, report.rejected) == (6, 6, {})
    assert report.notes == ["a.parquet: Parquet, a game per row: moves in transcript, tags Site"]
    assert Games(tmp_path / "made").table(["site"]).column("site").to_pylist() == [f"id{n}" for n in range(6)]


def test_a_movetext_with_comments_is_the_game_and_its_columns_are_tags(tmp_path: Path, plain: list[str]) -> None:
    """As `Lichess/standard-chess-games`."""
    moves = [f"{sans(game).replace('. ', '. ', 1)} {{ [%clk 0:01:00]; [%eval 0.2] }} 1-0" for game in GAMES]
    columns = {
        "Event": ["Rated Blitz game"] * 5 + ["Casual Blitz game"], "WhiteElo": [1500, 1600, None, 1800, 1900, 2000],
        "BlackElo": [1500] * 6, "Result": ["1-0"] * 6, "UTCDate": [date(2020, 1, 31)] * 6, "TimeControl": ["180+0"] * 6,
        "ECO": ["A\n00"] * 6, "movetext": moves, "extra": [object.__name__] * 6,
    }  # fmt: skip
    path = written(tmp_path / "b.parquet", **columns)
    report = build_dataset([path], tmp_path / "made")
    assert texts(tmp_path / "made") == plain
    table = Games(tmp_path / "made").table(["date", "white_elo", "time_control", "result", "eco"])
    assert table.column("date").to_pylist() == ["2020.01.31"] * 6
    assert table.column("white_elo").to_pylist() == [1500, 1600, None, 1800, 1900, 2000]
    assert set(table.column("result").to_pylist()) == {"1-0"}
    assert report.result_mismatches == report.missing_results == 0
    wanted = GameFilter(time_control=("blitz",), rated=True, min_rating=1501)
    filtered = build_dataset([path], tmp_path / "filtered", game_filter=GameFilter(rated=True, time_control=("blitz",)))
    assert (filtered.games, filtered.skipped, filtered.found) == (5, {"casual": 1}, 6)
    with pytest.raises(BadInputError, match="no legal game"):
        build_dataset([path], tmp_path / "none", game_filter=wanted)


def test_rows_without_a_legal_game_are_listed_with_their_row(tmp_path: Path) -> None:
    path = written(tmp_path / "c.parquet", transcript=["e2e4 e7e5", "e2e4 e2e4", None, ";1.d4 d5", "e2e4 e7e5 0000"])
    report = build_dataset([path], tmp_path / "made")
    assert texts(tmp_path / "made") == [";1.e4 e5", ";1.d4 d5"]
    assert (report.found, report.rejected, report.skipped) == (5, {"illegal move": 1, "null move": 1}, {"no moves": 1})
    rejects = [line.split("\t")[2:4] for line in (tmp_path / "made" / REJECTS_FILE).read_text().splitlines()[1:]]
    assert rejects == [["2", "1"], ["5", "2"]]


def test_a_damaged_file_is_refused_or_salvaged_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "d.parquet", transcript=["e2e4 e7e5", "d2d4 d7d5"] * 4000)
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 4, len(data) // 3):
        data[place] ^= 0xFF
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(data)
    with pytest.raises(BadInputError, match=r"cannot be read completely|damaged") as caught:
        build_dataset([broken], tmp_path / "made")
    assert "\n" not in str(caught.value)
    broken.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInputError, match="damaged Parquet"):
        build_dataset([broken], tmp_path / "made")


def test_a_parquet_with_a_fen_is_of_positions_whatever_else_it_has(tmp_path: Path) -> None:
    both = written(tmp_path / "e.parquet", fen=[chess.STARTING_FEN], transcript=["e2e4"])
    assert has_positions([both])
    assert not has_positions([written(tmp_path / "f.parquet", Movetext=["1. e4 *"])])
