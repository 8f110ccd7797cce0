"""Karvonen's transcript CSVs and 1,024-character blocks as datasets."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import chess
import pytest
import zstandard

from chessreg.errors import BadInputError
from chessreg.games.datasets import sources, transcripts
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import Games
from chessreg.games.datasets.transcripts import TranscriptSource, open_game_source
from chessreg.noise import generator

ELOS = ("WhiteElo", "BlackElo")


@cache
def game(number: int, plies: int = 90) -> str:
    """Random legal moves as the author writes them: `1.e4 e5 2.Nf3`."""
    random, board, words = generator("transcript", number), chess.Board(), []
    while len(words) < plies and not board.is_game_over():
        move = random.choice(list(board.legal_moves))
        words.append((f"{board.fullmove_number}." if board.turn else "") + board.san_and_push(move))
    return " ".join(words)


def table(rows: Sequence[dict[str, object]], index: bool = False) -> str:
    """A CSV as pandas writes it, with its nameless index column where that was kept."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*([""] if index else []), *rows[0]])
    for number, row in enumerate(rows):
        writer.writerow([*([number] if index else []), *row.values()])
    return text.getvalue()


def complete(count: int = 20) -> list[dict[str, object]]:
    return [
        {
            "WhiteElo": 1000 + n,
            "BlackElo": 1500,
            "Result": ("1-0", "0-1", "1/2-1/2")[n % 3],
            "transcript": game(n),
        }
        for n in range(count)
    ]


def cut(length: int = 120) -> list[dict[str, object]]:
    """The filtered files: `;` before, all equally long, with the classes of their ratings."""
    return [
        {
            "WhiteElo": float(1000 + n), "BlackElo": 1500.0, "Result": "1-0", "transcript": f";{game(n)}"[:length],
            "WhiteEloBinned": f"({800 + n % 2}, {900 + n % 2}]", "WhiteEloBinIndex": n % 2,
        }
        for n in range(20)
    ]  # fmt: skip


def made(content: str | bytes, folder: Path, name: str = "games.csv") -> Games:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    build_dataset([path], folder / "made")
    return Games(folder / "made")


def texts(games: Games) -> list[str]:
    found: list[str] = games.table(["text"])["text"].to_pylist()
    return found


def whole_words(text: str) -> str:
    """A text without the word at its end."""
    return text.rpartition(" ")[0]


def test_rows_keep_their_order_ratings_and_results(tmp_path: Path) -> None:
    games = made(table(complete(), index=True), tmp_path)
    assert texts(games) == [f";{text}" for text in map(game, range(20))]
    found = games.table(["row", "white_elo", "black_elo", "result"]).to_pydict()
    assert found["row"] == list(range(20))
    assert found["white_elo"] == list(range(1000, 1020))
    assert found["result"][:3] == ["1-0", "0-1", "1/2-1/2"]
    assert (games.report.games, games.report.cut, games.report.both_elos) == (20, 0, 20)
    assert games.report.notes == ["games.csv: transcripts, one a row"]
    assert not games.report.rejected


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "zst": zstandard.ZstdCompressor().compress,
    "gz": gzip.compress,
    "bz2": bz2.compress,
}


@pytest.mark.parametrize("packing", [*PACKINGS, "zip"])
def test_packed_files_give_the_same_rows(packing: str, tmp_path: Path) -> None:
    content = table(complete()).encode()
    path = tmp_path / f"games.csv.{packing}"
    if packing == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("lichess_100mb.csv", content)
            archive.writestr("__MACOSX/._lichess_100mb.csv", b"\0")
    else:
        path.write_bytes(PACKINGS[packing](content))
    done: list[int] = []
    report = build_dataset([path], tmp_path / "made", on_progress=lambda seen, total, games: done.append(seen))
    assert texts(Games(tmp_path / "made")) == [f";{text}" for text in map(game, range(20))]
    assert done[-1] == path.stat().st_size == report.sources[0].bytes
    import hashlib

    assert report.sources[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_transcripts_cut_to_one_length_keep_their_whole_moves(tmp_path: Path) -> None:
    games = made(table(cut()), tmp_path)
    assert texts(games) == [whole_words(f";{text}"[:120]) for text in map(game, range(20))]
    assert games.table(["white_elo"])["white_elo"].to_pylist() == list(range(1000, 1020))  # written as 1000.0
    assert (games.report.games, games.report.cut) == (20, 20)
    assert "cut to 120 characters" in games.report.notes[0]
    assert games.report.notes[1] == "games.csv: WhiteElo classes of the file: 0 (800, 900], 1 (801, 901]"


def test_the_word_at_a_cut_is_dropped_even_where_it_is_a_move(tmp_path: Path) -> None:
    long_castling = ";1.d4 d5 2.Nc3 Nc6 3.Bf4 Bf5 4.Qd2 Qd7 5.O-O-O"
    length = len(long_castling) - 2  # `5.O-O`: illegal here, but it would be a move with f1 and g1 empty
    other = ";1.e4 e5 2.Nf3 Nc6 3.Bc4 Bc5 4.O-O Nf6 5.d3 d6 6.h3"[:length]
    rows = [{"transcript": text[:length]} for text in (long_castling, other)]
    games = made(table(rows), tmp_path)
    assert texts(games) == [whole_words(text[:length]) for text in (long_castling, other)]
    assert not games.report.rejected


def test_every_dot_but_that_of_the_cut_word_survives(tmp_path: Path) -> None:
    """The 33 positions of the paper's probes come before the cut (3.3)."""
    from chessreg.encodings.pgn_char import PgnChar

    games, pgn = made(table(cut()), tmp_path), PgnChar()
    for text, number in zip(texts(games), range(20), strict=True):
        whole = f";{game(number)}"[:120]
        dots, kept = (pgn.sites("dots", pgn.texts([one])).token.tolist() for one in (whole, text))
        assert kept == dots[: len(kept)]
        assert len(dots) - len(kept) <= 1


def blocks(size: int = 1024) -> list[str]:
    """Rows of `;game;game;…` cut at `size` characters, as the training corpus is packed."""
    rows, number = [], 0
    for _ in range(4):
        row = ""
        while len(row) < size:
            row += f";{game(number, plies=20 + 7 * (number % 9))}"
            number += 1
        rows.append(row[:size])
    return rows


def test_blocks_are_cut_into_games_and_the_last_of_each_row_is_counted(tmp_path: Path) -> None:
    rows = blocks()
    games = made(table([{"transcript": row} for row in rows]), tmp_path)
    expected = []
    for row in rows:
        *whole, last = row.split(";")[1:]
        expected += [*(f";{text}" for text in whole), whole_words(f";{last}")]
    assert texts(games) == [text for text in expected if text]
    report = games.report
    assert report.cut + report.skipped.get("cut before its second word", 0) == len(rows)
    assert set(games.table(["result"])["result"].to_pylist()) == {"*"}
    assert "rows of 1,024 characters" in report.notes[0]
    assert not report.rejected


def test_the_results_variant_tells_its_results(tmp_path: Path) -> None:
    rows = [{"transcript": f";1-0#{game(0)}"}, {"transcript": f";1/2-1/2#{game(1)} "}]
    games = made(table(rows), tmp_path)
    assert games.table(["result"])["result"].to_pylist() == ["1-0", "1/2-1/2"]
    assert texts(games) == [f";{game(0)}", f";{game(1)}"]


def test_bad_rows_are_rejected_with_their_line_and_empty_ones_skipped(tmp_path: Path) -> None:
    rows = complete(5)
    rows[1]["transcript"] = "1.e4 e5 2.Ke3"
    rows[2]["transcript"] = ""
    games = made(table(rows), tmp_path)
    assert games.report.rejected == {"illegal move": 1}
    assert games.report.skipped == {"no moves": 1}
    reject = (tmp_path / "made" / "rejects.tsv").read_text().splitlines()[1].split("\t")
    assert reject[:4] == ["1", "games.csv", "3", "2"]  # row 1 is on line 3, below the header
    assert games.table(["row"])["row"].to_pylist() == [0, 3, 4]


def test_blocks_of_the_file_end_between_records_wherever_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "Event": 'a "quoted"\nline, and a comma'} for row in complete(25)]
    path = tmp_path / "games.csv"
    path.write_text(table(rows))
    whole = build_dataset([path], tmp_path / "one")
    decoded = sources.GameSource._iterate_decoded

    def in_bites(self: sources.GameSource) -> Iterator[bytes]:
        for chunk in decoded(self):
            yield from (chunk[start : start + 97] for start in range(0, len(chunk), 97))

    monkeypatch.setattr(transcripts, "BLOCK_BYTES", 700)
    monkeypatch.setattr(sources.GameSource, "_iterate_decoded", in_bites)
    parts = list(TranscriptSource(path).blocks())
    assert len(parts) > 10
    assert b"".join(parts) == path.read_bytes().split(b"\n", 1)[1]
    again = build_dataset([path], tmp_path / "two")
    assert again.games_sha256 == whole.games_sha256
    assert Games(tmp_path / "two").table(["event"])["event"].to_pylist()[0] == "a 'quoted' line, and a comma"


def test_the_layout_is_told_by_content(tmp_path: Path) -> None:
    for name, content, kind in (
        ("a.csv", table(complete(2)), TranscriptSource),
        ("b.txt", "\ufeff" + table(complete(2)), TranscriptSource),
        ("c.csv", '[Event "?"]\n\n1. e4 e5 1-0\n', sources.GameSource),
    ):
        (tmp_path / name).write_text(content)
        assert type(open_game_source(tmp_path / name)) is kind


def test_what_is_no_such_file_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, content: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInputError, match=message):
            build_dataset([tmp_path / name], tmp_path / "made")
        assert not (tmp_path / "made").exists()

    def archive(*names: str) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as packed:
            for name in names:
                packed.writestr(name, table(complete(3)))
        return file.getvalue()

    refused("matches.csv", b"game_id,transcript,player_one,player_two\n1,1.e4,a,b\n", "match results of chess_gpt_eval")
    refused("two.zip", archive("a.csv", "b.csv"), "holds 2 files, not one")
    refused("none.zip", archive(), "not a zip file")
    refused("cut.zip", archive("a.csv")[:-40], "damaged zip")
    refused("text.zip", b"no zip at all", "not a zip file")
    refused("nothing.csv", b"WhiteElo,transcript\n", "holds no game")
    with monkeypatch.context() as patched:
        patched.setattr(transcripts, "_MAX_RECORD_BYTES", 1000)
        patched.setattr(transcripts, "BLOCK_BYTES", 500)
        refused("row.csv", b"Result,transcript\n1-0,1.e4 e5\n1-0," + b"x" * (3 << 20), "has a row of more than 64 MiB")
        refused("open.csv", b'Result,transcript\n1-0,1.e4 e5\n1-0,"' + b"x" * (3 << 20), "a quote that is never closed")
    whole = bytearray(archive("a.csv"))
    whole[200] ^= 255
    refused("flipped.zip", bytes(whole), "cannot be read completely")


def test_a_break_inside_a_stream_keeps_what_came_before_when_asked(tmp_path: Path) -> None:
    packed = gzip.compress(table(complete(30)).encode())
    (tmp_path / "games.csv.gz").write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(BadInputError, match="cannot be read completely"):
        build_dataset([tmp_path / "games.csv.gz"], tmp_path / "made")
    report = build_dataset([tmp_path / "games.csv.gz"], tmp_path / "made", salvage=True)
    assert 5 < report.games < 30
    assert report.rejected == {"the stream ends inside the game": 1}


@pytest.mark.parametrize("text", ["moves,elo\n1. e4 e5,1500\n", "notafen,f2g3 e6e7,1500\n"])
def test_a_csv_of_neither_games_nor_positions_says_what_its_first_row_lacks(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    first = text.partition("\n")[0]
    why = f"a.csv: row 1 has neither a column fen or transcript nor a FEN: {first} .a column fen is of positions"
    with pytest.raises(BadInputError, match=why):
        open_game_source(tmp_path / "a.csv")
