"""Datasets of positions: other people's files in, one row a legal position out."""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.boards.moves import unpack_moves as moves_of
from chessreg.games.datasets import positions
from chessreg.games.datasets.build import build_dataset as build_games
from chessreg.games.datasets.dataset import DatasetPart, Games
from chessreg.games.datasets.positions import (
    Positions,
    build_position_dataset,
    identify_position_dataset,
    open_positions,
    verify_positions,
)

AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
PUZZLE = "r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24"
HEADER = "fen,best,played,game_id,ply\n"


def write(folder: Path, text: str, name: str = "positions.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def table(folder: Path, name: str = "positions.parquet", **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def rows(folder: Path) -> list[dict[str, Any]]:
    made = Positions(folder)
    found: list[dict[str, Any]] = made.take(range(len(made)), made._file.schema_arrow.names).to_pylist()
    return found


def rejects(folder: Path) -> list[str]:
    return [line.split("\t")[-1] for line in (folder / "rejects.tsv").read_text().splitlines()[1:]]


def test_a_parquet_keeps_moves_evaluations_game_and_ply(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        game_id=["one", "one"],
        ply=[1, 0],
        fen=[AFTER_E4, chess.STARTING_FEN],
        sf_best_uci=["c7c5", "e2e4"],
        played_uci=["e7e5", "g1f3"],
        eval_before_cp=[30.0, float("nan")],
        eval_after_cp=[41, None],
        judgment=["Mistake", None],
        mover_elo=[1500, 1600],
        opp_elo=[1600, 1500],
    )
    report = build_position_dataset([path], tmp_path / "made")
    assert (report.content, report.games, report.plies, report.duplicates, report.both_elos) == (
        "positions",
        1,
        2,
        0,
        2,
    )
    first, second = rows(tmp_path / "made")
    expected = {"row": 0, "fen": AFTER_E4, "best": "c7c5", "played": "e7e5", "ply": 1, "game": "one"}
    assert first.items() >= (expected | {"eval_before": 30.0, "eval_after": 41.0}).items()
    assert (first["mover_elo"], first["opponent_elo"], first["judgment"]) == (1500, 1600, "Mistake")
    assert (second["eval_before"], second["judgment"]) == (None, None)
    assert first["game_hash"] == second["game_hash"]
    assert verify_positions(tmp_path / "made").problems == []


@pytest.mark.parametrize("header", ["", "PuzzleId,FEN,Moves,Rating\n"])
def test_a_puzzle_is_the_position_after_its_first_move(tmp_path: Path, header: str) -> None:
    row = f"{'x,' if header else ''}{PUZZLE},f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1828\n"
    report = build_position_dataset([write(tmp_path, header + row)], tmp_path / "made")
    [found] = rows(tmp_path / "made")
    board = chess.Board(PUZZLE)
    board.push_uci("f2g3")
    assert (found["fen"], found["best"], found["rating"]) == (board.fen(), "e6e7", 1828)
    assert found["line"] == "e6e7 b2b1 b3c1 b1c1 h6c1"
    assert report.games == 0  # not known
    assert any("puzzles" in note for note in report.notes)


def test_a_byte_order_mark_before_puzzles_without_a_header_costs_none(tmp_path: Path) -> None:
    text = f"\ufeff{PUZZLE},f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1828\n"
    build_position_dataset([write(tmp_path, text, "puzzles.csv")], tmp_path / "made")
    assert [row["best"] for row in rows(tmp_path / "made")] == ["e6e7"]


def test_game_ids_that_pandas_made_floats_are_the_ids_again(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    ids = [17, None, 17, None, 123456789012]
    frame = pandas.DataFrame({"fen": [AFTER_E4] * 5, "game_id": ids, "judgment": [None] * 5, "best": [None] * 5})
    frame["judgment"] = frame["judgment"].astype(float)
    frame["best"] = frame["best"].astype(float)
    assert frame["game_id"].dtype == float
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    for name in ("a.parquet", "a.csv"):
        report = build_position_dataset([tmp_path / name], tmp_path / name.replace(".", "-"))
        found = rows(tmp_path / name.replace(".", "-"))
        assert [row["game"] for row in found] == ["17", None, "17", None, "123456789012"]
        assert [row["judgment"] for row in found] == [row["best"] for row in found] == [None] * 5
        assert (report.plies, report.rejected, report.found) == (5, {}, 5)
        assert found[1]["game_hash"] == found[1]["position_hash"]  # in no game, not in one called nan


def test_a_puzzle_without_moves_is_rejected_and_a_rating_that_is_no_number_is_told(tmp_path: Path) -> None:
    moves = "f2g3 e6e7 b2b1 b3c1 b1c1 h6c1"
    text = f"{PUZZLE},{moves},hard\n{PUZZLE},,1500\n{PUZZLE},{moves},\n"
    report = build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    assert report.rejected == {"a puzzle without a solution": 1}
    assert [row["rating"] for row in rows(tmp_path / "made")] == [None, None]
    assert "rating left empty where it is not a rating: 1" in report.notes


@pytest.mark.parametrize("rating", ["nan", "inf", "-5", "1e9"])
def test_a_rating_that_nobody_has_is_left_empty_and_told(tmp_path: Path, rating: str) -> None:
    moves = "f2g3 e6e7"
    report = build_position_dataset(
        [write(tmp_path, f"{PUZZLE},{moves},{rating}\n{PUZZLE},{moves},1500\n")], tmp_path / "made"
    )
    assert [row["rating"] for row in rows(tmp_path / "made")] == [None, 1500]
    assert "rating left empty where it is not a rating: 1" in report.notes


@pytest.mark.parametrize("counters", ["1000 5", "0 1000"])
def test_counters_of_four_digits_are_rejected_as_no_model_of_positions_reads_them(
    tmp_path: Path, counters: str
) -> None:
    fen = chess.STARTING_FEN.rsplit(" ", 2)[0]
    text = HEADER + f"{fen} {counters},e2e4,,g,\n{fen} 999 999,e2e4,,g,\n{fen} 0000 0001,e2e4,,g,\n"
    report = build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    assert report.rejected == {"a counter above 999": 1}
    assert [row["fen"] for row in rows(tmp_path / "made")] == [f"{fen} 999 999", f"{fen} 0 1"]
    last = f"{PUZZLE[: PUZZLE.index(' ')]} b - - 0 999,f2g3 e6e7,1500\n"  # white is to move in move 1000
    with pytest.raises(BadInputError, match="a counter above 999"):
        build_position_dataset([write(tmp_path, last, "puzzles.csv")], tmp_path / "other")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has two columns FEN"):
        build_position_dataset([write(tmp_path, f"FEN,best,fen\n{PUZZLE},,{PUZZLE}\n")], tmp_path / "made")


POSITIONS = [
    chess.STARTING_FEN, AFTER_E4, PUZZLE, "r3k2r/8/8/8/8/8/8/R3K2R b Kq - 12 0",
    "rnbqkbnr/ppp1p1pp/8/3pPp2/8/8/PPPP1PPP/RNBQKBNR w KQkq f6 0 3", "8/8/8/8/8/8/8/8 w - - 0 1",
    "4k3/8/8/8/8/8/8/4K3 w KQkq - 0 1", "4k2P/8/8/8/8/8/8/4K3 w - - 0 1", "kk6/8/8/8/8/8/8/K7 w - - 0 1",
    "QQQQkQQQ/8/8/8/8/8/8/4K3 w - - 0 1", "QQQQ3Q/QQQQ4/8/k7/8/1P6/PPPPPP2/4K3 w - - 0 1",
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq e6 0 1", "rnbqkbn/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1",
    "8/8/8/1k1N4/8/2N5/8/R3K3 b Q - 0 1", "4k3/8/8/8/8/8/1n3n2/3K4 w - - 0 1", "4k3/8/2N5/8/1B2R3/8/8/4K3 b - - 0 1",
    "8/8/8/8/k2Pp2Q/8/8/3K4 b - d3 0 1", "4k3/8/8/8/8/8/8/4K2R w K - 999 999", "k7/P7/K7/8/8/8/8/8 b - - 0 1",
    "4k3/8/8/8/8/8/8/4K3 w - - 007 01", "4k3/8/8/8/8/8/8/4K2R w  - 0 1", "4k3/P7/8/8/8/8/8/4K3 w - - 0 1",
    "8/k7/8/3Pp3/8/8/7K/R7 w - e6 0 1", "rnbqkb1r/pp1p1pPp/8/2p1pP2/1P1P4/3P3P/P1P1P3/RNBQKBNR w KQkq e6 0 1",
]  # fmt: skip


def test_chessbench_s_puzzles_are_read(tmp_path: Path) -> None:
    """Its header and example row; a line with an illegal move is rejected."""
    fen = "4r1k1/2p1qpp1/3p4/1p1P2PQ/1P5b/3R3P/2PBr3/5RK1 b - - 6 26"
    text = "PuzzleId,Rating,PGN,Solution,FEN,Moves\n" + "".join(
        f'00MTG,669,"1. e4, c5 2. Nf3",Bxf2+ Rxf2 Rxf2 Kxf2,{fen},{line}\n'
        for line in ("h4f2 f1f2 e2f2 g1f2", "h4f2 f1f2 e2f3", "h4f3 f1f2")
    )
    report = build_position_dataset([write(tmp_path, text, "puzzles.csv")], tmp_path / "made")
    assert report.rejected == {"illegal move of a puzzle": 2}
    [row] = rows(tmp_path / "made")
    board = chess.Board(fen)
    board.push_uci("h4f2")
    assert (row["fen"], row["best"], row["line"], row["rating"]) == (board.fen(), "f1f2", "f1f2 e2f2 g1f2", 669)


def test_rows_that_are_checked_together_are_as_those_checked_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also boards that no game leads to, and castling as the king takes the rook."""
    rng = np.random.default_rng(0)
    text = HEADER
    for fen in POSITIONS:
        for word in ("", "e1h1", "e8a8", "e1e2", "a7a8q", "d5e6"):
            text += f"{fen},{word},,,\n"
    for game in range(8):
        board = chess.Board()
        while not board.is_game_over() and board.ply() < 90:
            moves = list(board.legal_moves)
            text += f"{board.fen(en_passant='fen')},{rng.choice(moves)},{rng.choice(chess.SQUARE_NAMES)}e4,{game},\n"
            text += f"{board.fen()},,{rng.choice(moves)},g{game},{board.ply()}\n"
            board.push(rng.choice(moves))
    path = write(tmp_path, text)
    together = build_position_dataset([path], tmp_path / "together")
    monkeypatch.setattr(positions, "_PLAIN", re.compile("none"))
    apart = build_position_dataset([path], tmp_path / "apart")
    assert rows(tmp_path / "together") == rows(tmp_path / "apart")
    assert rejects(tmp_path / "together") == rejects(tmp_path / "apart")
    assert (together.plies, together.duplicates) == (apart.plies, apart.duplicates)
    assert together.rejected["illegal played move"] > 100


def test_bad_rows_are_listed_with_their_line_and_good_ones_kept(tmp_path: Path) -> None:
    bad = {
        "bqnbnrkr/pppppppp/8/8/8/8/PPPPPPPP/BQNBNRKR w HFhf - 0 1,,,,": "bad castling rights",
        "8/8/8/8/8/8/8/K7 w - - 0 1,,,,": "no black king",
        "rnbq1bnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQ - 0 1,,,,": "no black king",
        "4k3/8/8/8/8/8/4R3/4K3 w - - 0 1,,,,": "opposite check",
        "hello,,,,": "no FEN",
        ",,,,": "no FEN",
        f"{chess.STARTING_FEN[:-1]}{'9' * 20},,,,": "a counter above 999",
        f"{chess.STARTING_FEN[:-3]}{'9' * 20} 1,,,,": "a counter above 999",
        f"{chess.STARTING_FEN},e2e5,,,": "illegal best move",
        f"{chess.STARTING_FEN},,0000,,": "illegal played move",
        f"{chess.STARTING_FEN},zz,,,": "illegal best move",
    }
    text = HEADER + f"{AFTER_E4},e5,c7c5,g,1\n" + "".join(f"{line}\n" for line in bad)
    report = build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    assert [row["best"] for row in rows(tmp_path / "made")] == ["e7e5"]  # SAN is read too
    assert [reason.partition(":")[0] for reason in rejects(tmp_path / "made")] == list(bad.values())
    assert sum(report.rejected.values()) == len(bad)
    lines = (tmp_path / "made" / "rejects.tsv").read_text().splitlines()[1:]
    assert [int(line.split("\t")[2]) for line in lines] == list(range(3, 3 + len(bad)))


def test_untidy_files_are_read(tmp_path: Path) -> None:
    """Byte order mark, CRLF, blank lines, quotes, upper case, missing counters, castling written as in Chess960."""
    castling = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"
    text = f'\ufeffFEN,Best_Move,Ply\r\n"{castling}",e1h1,\r\n\r\n{castling[:-4]},e1c1,8\r\n'
    report = build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    assert [(row["fen"], row["best"], row["ply"]) for row in rows(tmp_path / "made")] == [
        (castling, "e1g1", 0),
        (castling, "e1c1", 8),
    ]
    assert (report.noncanonical, report.duplicates) == (1, 1)


def test_a_ply_that_does_not_fit_the_side_to_move_is_the_fen_s(tmp_path: Path) -> None:
    text = HEADER + "".join(f"{AFTER_E4},,,g,{ply}\n" for ply in ("1", "2", "-1", "31", "x"))
    build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    assert [row["ply"] for row in rows(tmp_path / "made")] == [1, 1, 1, 31, 1]


def test_no_game_is_in_two_parts_and_positions_without_one_are_cut_by_themselves(tmp_path: Path) -> None:
    board, text = chess.Board(), HEADER
    for number in range(40):
        for game in ("a", "b", ""):
            text += f"{board.fen()},,,{game},{number}\n"
        board.push(next(iter(board.legal_moves)))
    build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    made = Positions(tmp_path / "made")
    parts = [made.part(DatasetPart(0, low, low + 0.25)) for low in (0, 0.25, 0.5, 0.75)]
    seen: dict[str, set[int]] = {}
    for number, part in enumerate(parts):
        for row in part.table(["game", "fen"]).to_pylist():
            seen.setdefault(row["game"] or row["fen"], set()).add(number)
    assert all(len(where) == 1 for where in seen.values())
    assert len({number for where in seen.values() for number in where}) > 1
    assert sum(map(len, parts)) == len(made) == 120


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fen,best\n", "no legal position"),
        ("fen,best\nhello,\n", "1 no FEN"),
        (f"{chess.STARTING_FEN},e2e4,1,2\n", "no header and 4 columns"),
        (f"{PUZZLE},f2g3,1828\n", "without a solution"),
        (f"fen,best\n{chess.STARTING_FEN},e2e5\n", r"\(1 illegal best move\); row 2: illegal best move: e2e5 in rnbq"),
        (f"fen;best\n{AFTER_E4};e7e5\n", "separates its columns by ';'"),
        (f'"{AFTER_E4}"\te7e5\n', r"separates its columns by '\\t'"),
    ],
)
def test_files_of_nothing_are_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInputError, match=reason) as caught:
        build_position_dataset([path], tmp_path / "made")
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_of_nothing_is_told_without_what_was_wrong_with_another(tmp_path: Path) -> None:
    some = tmp_path / "some.csv"
    some.write_text(f"fen,best\nhello,\n{chess.STARTING_FEN},e2e4\n")
    none = tmp_path / "none.csv"
    none.write_text(f"fen,best\n{chess.STARTING_FEN},e2e5\n")
    with pytest.raises(BadInputError, match=r"none.csv holds no legal position \(1 illegal best move\); row 2"):
        build_position_dataset([some, none], tmp_path / "made")


def test_damaged_and_foreign_parquets_are_refused_in_one_line(tmp_path: Path) -> None:
    whole = table(tmp_path, fen=[f"{AFTER_E4[:-1]}{number}" for number in range(5000)])
    data = whole.read_bytes()
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInputError, match="damaged Parquet") as caught:
        build_position_dataset([cut], tmp_path / "made")
    assert "\n" not in str(caught.value)
    (tmp_path / "text.parquet").write_text("1. e4 e5")
    with pytest.raises(BadInputError, match="damaged Parquet"):
        open_positions(tmp_path / "text.parquet")
    with pytest.raises(BadInputError, match=r"no column fen.*position, move"):
        build_position_dataset([table(tmp_path, "other.parquet", position=["x"], move=["y"])], tmp_path / "made")
    with pytest.raises(BadInputError, match="5000 no FEN"):
        build_position_dataset([table(tmp_path, "numbers.parquet", fen=list(range(5000)))], tmp_path / "made")
    with pytest.raises(NotFoundError):
        open_positions(tmp_path / "missing.csv")
    damaged = bytearray(data)
    damaged[20:9000] = b"\xff" * 8980
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    with pytest.raises(BadInputError, match="cannot be read completely"):
        build_position_dataset([tmp_path / "damaged.parquet"], tmp_path / "made")


def test_the_whole_rows_before_a_break_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    board, text = chess.Board(), HEADER
    for number in range(3000):
        text += f"{board.fen()},,,g{number},\n"
        board.push(next(iter(board.legal_moves)))
        board = board if any(board.legal_moves) and number % 1000 else chess.Board()
    data = gzip.compress(text.encode())
    (tmp_path / "cut.csv.gz").write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(BadInputError, match="--salvage"):
        build_position_dataset([tmp_path / "cut.csv.gz"], tmp_path / "made")
    report = build_position_dataset([tmp_path / "cut.csv.gz"], tmp_path / "made", salvage=True)
    assert 1000 < report.plies < 3000
    assert report.rejected == {}
    assert "cut off" in (report.salvaged or "")
    assert [row["fen"] for row in rows(tmp_path / "made")] == [
        line.split(",")[0] for line in text.splitlines()[1 : report.plies + 1]
    ]


def test_what_holds_games_is_no_source_of_positions(tmp_path: Path) -> None:
    assert open_positions(write(tmp_path, '[Event "x"]\n\n1. e4 e5 1-0\n', "games.pgn")) is None
    assert open_positions(write(tmp_path, "transcript,fen\n1.e4,x\n", "transcripts.csv")) is None
    with pytest.raises(BadInputError, match="holds no positions"):
        build_position_dataset([tmp_path / "games.pgn"], tmp_path / "made")


def test_games_and_positions_refuse_each_other(tmp_path: Path) -> None:
    build_position_dataset([write(tmp_path, HEADER + f"{AFTER_E4},e7e5,,,\n")], tmp_path / "made")
    with pytest.raises(BadInputError, match="holds positions, and games are needed"):
        Games(tmp_path / "made")
    with pytest.raises(NotFoundError):
        Positions(tmp_path)


def test_a_changed_file_does_not_verify(tmp_path: Path) -> None:
    build_position_dataset([write(tmp_path, HEADER + f"{AFTER_E4},e7e5,,,\n")], tmp_path / "made")
    report = tmp_path / "made" / "dataset.json"
    fields = json.loads(report.read_text())
    report.write_text(json.dumps({**fields, "plies": 2}))
    problems = verify_positions(tmp_path / "made").problems
    assert any("1 positions, but the report counts 2" in problem for problem in problems)
    report.write_text(json.dumps({**fields, "games_sha256": "0" * 64}))
    assert any("sha256 differs" in problem for problem in verify_positions(tmp_path / "made").problems)


def test_the_identity_is_the_bytes_and_the_reader_and_not_that_of_games(tmp_path: Path) -> None:
    from chessreg.games.datasets.build import identify_dataset as of_games

    digests = ["a" * 64]
    assert identify_position_dataset(digests) == identify_position_dataset(list(digests))
    assert len({identify_position_dataset(digests), of_games(digests, {}), identify_position_dataset(["b" * 64])}) == 3


@pytest.mark.slow
def test_real_positions_are_read_whole(shared_data: Path, tmp_path: Path) -> None:
    """The first 20,000 of the Lichess positions and 1,000 puzzles, each move legal, games apart."""
    source = pq.ParquetFile(shared_data / "positions" / "lichess-best-moves.parquet")
    batch = next(source.iter_batches(20_000))
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "some.parquet")
    report = build_position_dataset([tmp_path / "some.parquet"], tmp_path / "made")
    assert (report.plies, report.rejected) == (20_000, {})
    assert report.games == len(np.unique(batch["game_id"].to_numpy(zero_copy_only=False)))
    assert Positions(tmp_path / "made").fens([0, 7]) == [batch["fen"][0].as_py(), batch["fen"][7].as_py()]
    lines = (shared_data / "positions" / "lichess-puzzles-10k.csv").read_text().splitlines(keepends=True)
    puzzles = build_position_dataset([write(tmp_path, "".join(lines[:1000]), "puzzles.csv")], tmp_path / "puzzles")
    assert (puzzles.plies, puzzles.rejected) == (1000, {})


def test_columns_of_odd_types_are_read_or_refused(tmp_path: Path) -> None:
    """Bytes, dictionaries, dates, structs and numbers out of range where texts and numbers are meant."""
    path = table(
        tmp_path, fen=[AFTER_E4.encode(), None], best=[b"e7e5", b""], game=[{"a": 1}, {"a": 2}],
        ply=[2**62, -1], eval_cp=[datetime(2020, 1, 1)] * 2, rating=[1e300, 5.0],
    )  # fmt: skip
    report = build_position_dataset([path], tmp_path / "made")
    assert (report.plies, report.rejected) == (1, {"no FEN": 1})
    [row] = rows(tmp_path / "made")
    assert (row["best"], row["game"], row["ply"], row["eval_before"], row["rating"]) == (
        "e7e5",
        "{'a': 1}",
        1,
        None,
        None,
    )


def test_moves_evaluations_and_games_are_read_as_arrays(tmp_path: Path) -> None:
    text = "fen,best,eval_cp,game_id\n" + f"{AFTER_E4},e7e5,29996,abcdefgh\n{AFTER_E4},,-29999,other\n{AFTER_E4},,35,\n"
    build_position_dataset([write(tmp_path, text)], tmp_path / "made")
    made = Positions(tmp_path / "made")
    assert moves_of(made.moves([0]).tobytes()) == [chess.Move.from_uci("e7e5")]
    assert made.moves([2, 1]).tolist() == [0, 0]
    centipawns, mates = made.evaluations([0, 1, 2])
    assert mates.tolist() == [4, -1, 0]
    assert np.array_equal(centipawns, [np.nan, np.nan, 35], equal_nan=True)
    assert made.legal_counts([0]).tolist() == [20]
    (tmp_path / "games.pgn").write_text(
        '[Site "https://lichess.org/none0000"]\n\n1. d4 *\n\n[Site "https://lichess.org/abcdefgh"]\n\n1. e4 e5 *\n'
    )
    build_games([tmp_path / "games.pgn"], tmp_path / "games")
    assert made.games_of(Games(tmp_path / "games")).tolist() == [1, -1, -1]


def test_a_position_is_one_however_its_square_en_passant_is_written(tmp_path: Path) -> None:
    """A pawn that went two squares leaves one behind only where it may be taken, in the hash and after a puzzle's first
    move; a FEN that says more stays as it was given."""
    told = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq"
    taken = "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq"
    fens = [f"{told} e3 0 1", f"{told} - 0 1", f"{taken} e3 0 3", f"{taken} - 0 3"]
    build_position_dataset([write(tmp_path, HEADER + "".join(f"{fen},,,,\n" for fen in fens))], tmp_path / "made")
    hashes = Positions(tmp_path / "made").position_hashes
    assert [row["fen"] for row in rows(tmp_path / "made")] == fens
    assert [hash_ == hashes[0] for hash_ in hashes] == [True, True, False, False]
    assert hashes[2] != hashes[3]
    assert not verify_positions(tmp_path / "made").problems
    build_position_dataset(
        [write(tmp_path, f"{chess.STARTING_FEN},e2e4 c7c5,1500\n", "puzzles.csv")], tmp_path / "puzzles"
    )
    assert (rows(tmp_path / "puzzles")[0]["fen"], Positions(tmp_path / "puzzles").position_hashes[0]) == (
        f"{told} - 0 1", hashes[0]
    )  # fmt: skip


@pytest.mark.slow
def test_the_real_positions_belong_to_the_three_parts_of_rated_games(shared_data: Path, tmp_path: Path) -> None:
    """569,981, 285,895 and 288,217 of them, and 7.2 % of those of the last part recur in the first."""
    build_position_dataset([shared_data / "positions" / "lichess-best-moves.parquet"], tmp_path / "made")
    made = Positions(tmp_path / "made")
    mine = {}
    for part in ("lm", "probe-train", "probe-test"):
        build_games([shared_data / "games" / f"lichess-{part}.pgn.zst"], tmp_path / part)
        mine[part] = made.games_of(Games(tmp_path / part)) >= 0
    assert [int(here.sum()) for here in mine.values()] == [569_981, 285_895, 288_217]
    boards = made.position_hashes
    recur = np.isin(boards[mine["probe-test"]], boards[mine["lm"]])
    assert recur.sum() == 20_629
    assert round(100 * recur.mean(), 1) == 7.2


@pytest.mark.parametrize("begin", ["fen\n", 'fen\n"', "fen,more\n8/8/8/8/8/8/8/8,"])
def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "positions.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(begin.encode())
        for _ in range(17):
            file.write(b"a" * (1 << 20))
    with pytest.raises(BadInputError, match="a line of more than 16 MiB"):
        build_position_dataset([path], tmp_path / "made")
