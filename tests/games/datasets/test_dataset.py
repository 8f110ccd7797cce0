"""A dataset as a whole: packings, broken streams, identity, duplicates, memory of blocks, reading back, verify."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import psutil
import pytest
import zstandard

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.boards import moves
from chessreg.games.datasets import block_reading, sources
from chessreg.games.datasets import build as build_module
from chessreg.games.datasets.build import build_dataset, identify_dataset
from chessreg.games.datasets.dataset import REJECTS_FILE, Games, parse_parts, verify_games
from store.files import hash_file
from tests.quick import quick_first


def pgn(games: int, seed: int = 0, plies: int = 30) -> str:
    """Random games with comments that make them long; every tenth is the one before it again."""
    rng = random.Random(seed)
    out = io.StringIO()
    text = ""
    for number in range(games):
        if number % 10 or not number:
            board = chess.Board()
            while len(board.move_stack) < plies and (legal := list(board.legal_moves)):
                board.push(rng.choice(legal))
            text = chess.Board().variation_san(board.move_stack)
        out.write(f'[Event "{number}"]\n[WhiteElo "{1000 + number}"]\n[BlackElo "1500"]\n[Result "*"]\n\n{text} *\n\n')
    return out.getvalue()


@pytest.fixture(scope="module")
def text() -> str:
    return pgn(60)


def packed(kind: str, data: bytes) -> bytes:
    """Two members or frames, as parallel compressors write them."""
    half = len(data) // 2
    if kind == "zst":
        skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
        one = zstandard.ZstdCompressor()
        return one.compress(data[:half]) + skippable + zstandard.ZstdCompressor().compress(data[half:])
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "pgn": bytes}[kind]
    return compress(data[:half]) + compress(data[half:])


def write(path: Path, data: str | bytes) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", ["pgn", "zst", "gz", "bz2"])
def test_every_packing_gives_the_same_games(tmp_path: Path, text: str, kind: str) -> None:
    plain = build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "plain")
    source = write(tmp_path / f"b.pgn.{kind}", packed(kind, text.encode()))
    seen: list[tuple[int, int, int]] = []
    made = build_dataset([source], tmp_path / "out", on_progress=lambda *step: seen.append(step))
    assert (made.games, made.plies, made.games_sha256) == (60, plain.plies, plain.games_sha256)
    assert made.sources[0].sha256 == hash_file(source)
    assert made.sources[0].name == source.name
    assert seen[-1] == (source.stat().st_size, source.stat().st_size, 60)
    assert contents(tmp_path / "out") == ["dataset.json", "games.parquet", "rejects.tsv"]


def test_a_file_name_that_is_not_utf_8_is_recorded_as_text(tmp_path: Path, text: str) -> None:
    source = write(tmp_path / os.fsdecode(b"caf\xe9.pgn"), text)
    build_dataset([source], tmp_path / "out")
    assert Games(tmp_path / "out").report.sources[0].name == "caf?.pgn"


@pytest.mark.parametrize("kind", ["zst", "gz", "bz2"])
def test_a_cut_off_stream_is_refused_whole_unless_salvaged(tmp_path: Path, text: str, kind: str) -> None:
    data = packed(kind, text.encode())
    source = write(tmp_path / "in.pgn", data[: len(data) * 3 // 4])
    folder = tmp_path / "data" / "out"
    with pytest.raises(BadInputError, match="cut off") as caught:
        build_dataset([source], folder)
    assert "--salvage" in caught.value.hint
    assert contents(tmp_path / "data") == []
    made = build_dataset([source], folder, salvage=True)
    assert 25 <= made.games < 60
    assert made.salvaged is not None
    assert "cut off" in made.salvaged
    kept = Games(folder)
    build_dataset([write(tmp_path / "whole.pgn", text)], tmp_path / "whole")
    whole = Games(tmp_path / "whole")
    assert kept.texts(kept.rows()) == whole.texts(range(made.games))
    assert made.rejected == {"the stream ends inside the game": 1}
    assert verify_games(folder).problems == []


@pytest.mark.parametrize("kind", ["zst", "gz", "bz2"])
def test_a_damaged_stream_is_refused_whole(tmp_path: Path, text: str, kind: str) -> None:
    data = bytearray(packed(kind, text.encode()))
    place = len(data) * 3 // 4
    data[place : place + 40] = bytes(range(40))
    with pytest.raises(BadInputError, match=r"damaged|cut off"):
        build_dataset([write(tmp_path / "in.pgn", bytes(data))], tmp_path / "out")
    assert contents(tmp_path) == ["in.pgn"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.pgn", b"", "empty"),
        ("a.pgn", b"   \n\n", "holds no game"),
        ("a.pgn", b"once upon a time\nthere was a king\n", "no legal game"),
        ("a.pgn", b'[Event "E"]\n\n1. e5 *\n', "no legal game.*1 illegal move"),
        ("a.pgn", b'[Event "E"]\n[Variant "Atomic"]\n\n1. e4 *\n', "no legal game"),
        ("a.pgn", bytes(range(256)) * 20, "not text: its byte 1 is zero"),
        ("a.pgn", b"PK\x03\x04\x00\x00", "damaged zip"),
        ("a.pgn", '[Event "E"]\n\n1. e4 *\n'.encode("utf-16"), "not text: its byte 4 is zero"),
        ("a.pgn.zst", b'[Event "E"]\n\n1. e4 *\n', "not a zst file"),
        ("a.pgn.gz", zstandard.ZstdCompressor().compress(b"x"), "not a gz file"),
        ("a.pgn.zst", zstandard.ZstdCompressor().compress(b""), "holds no game"),
    ],
)
def test_what_is_no_pgn_is_refused_and_leaves_nothing(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        build_dataset([write(tmp_path / name, data)], tmp_path / "out")
    assert contents(tmp_path) == [name]


def tar(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("games.pgn")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(*contents: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"{number}.pgn", content)
    return packed.getvalue()


GAME = b'[Event "E"]\n\n1. e4 *\n'


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tar.gz", gzip.compress(tar(GAME)), "holds a tar archive, not one text file .*: tar xf .*a.tar.gz"),
        ("a.pgn", bz2.compress(tar(GAME)), "holds a tar archive"),
        ("a.tar", tar(GAME), "holds a tar archive"),
        ("a.zip", zipped(tar(GAME)), "holds a tar archive"),
        ("a.zip", zipped(GAME, GAME), "holds 2 files, not one .*unpack"),
        ("a.pgn.gz", gzip.compress(gzip.compress(GAME)), "packed twice: it holds a gz file"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(90), "holds a 7z archive.*: 7z x"),
        ("a.rar", b"Rar!\x1a\x07\x01\x00" + bytes(90), "holds a RAR archive"),
        ("a.pgn.xz", lzma.compress(GAME), "holds an xz file.*: unxz"),
        ("a.pgn.gz", gzip.compress(GAME + bytes(9)), "not text: its byte 22 is zero"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value.split(",")[0],  # gzip writes the time into its bytes
)
def test_an_archive_is_refused_in_one_line_with_the_command_that_unpacks_it(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        build_dataset([write(tmp_path / name, data)], tmp_path / "out")
    assert contents(tmp_path) == [name]


def test_one_file_without_a_game_spoils_the_lot(tmp_path: Path, text: str) -> None:
    files = [write(tmp_path / "a.pgn", text), write(tmp_path / "b.pgn", '[Event "E"]\n\n1. e5 *\n')]
    with pytest.raises(BadInputError, match=r"b\.pgn holds no legal game"):
        build_dataset(files, tmp_path / "out")
    assert contents(tmp_path) == ["a.pgn", "b.pgn"]


def test_missing_files_folders_and_taken_names_are_refused(tmp_path: Path, text: str) -> None:
    source = write(tmp_path / "a.pgn", text)
    with pytest.raises(NotFoundError, match=r"none\.pgn"):
        build_dataset([tmp_path / "none.pgn"], tmp_path / "out")
    with pytest.raises(BadInputError, match="not a file"):
        build_dataset([tmp_path], tmp_path / "out")
    with pytest.raises(BadInputError, match="no file"):
        build_dataset([], tmp_path / "out")
    build_dataset([source], tmp_path / "out")
    with pytest.raises(BadInputError, match="exists"):
        build_dataset([source], tmp_path / "out")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device"), OSError(30, "read-only")]
)
def test_an_interruption_or_a_full_disk_leaves_nothing(tmp_path: Path, text: str, error: BaseException) -> None:
    def fail(*step: int) -> None:
        raise error

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ChessregError):
        build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "out", on_progress=fail)
    assert contents(tmp_path) == ["a.pgn"]


def test_the_same_bytes_have_the_same_identity_and_filters_change_it(tmp_path: Path, text: str) -> None:
    first = build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "1")
    again = build_dataset([write(tmp_path / "b.pgn", text)], tmp_path / "2", reader_name="python")
    short = build_dataset([tmp_path / "a.pgn"], tmp_path / "3", min_plies=2)
    assert first.identity == again.identity == identify_dataset([first.sources[0].sha256], {"min_plies": 0})
    assert first.games_sha256 == again.games_sha256
    assert short.identity != first.identity


def test_several_files_become_one_run_of_rows(tmp_path: Path) -> None:
    bad = '[Event "E"]\n\n1. e5 *\n\n'
    files = [write(tmp_path / "a.pgn", pgn(5) + bad), write(tmp_path / "b.pgn", bad + pgn(5, 1))]
    made = build_dataset(files, tmp_path / "out")
    assert Games(tmp_path / "out").table(["row"])["row"].to_pylist() == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    rejected = (tmp_path / "out" / "rejects.tsv").read_text().splitlines()[1:]
    assert rejected == ["5\ta.pgn\t36\t0\tillegal move: e5", "6\tb.pgn\t1\t0\tillegal move: e5"]
    assert [source.name for source in made.sources] == ["a.pgn", "b.pgn"]


def test_the_number_of_processes_does_not_change_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(build_module, "_BYTES_PER_PROCESS", 1)
    bad = '[Event "E"]\n\n1. e4 e5 2. Ke3 *\n\n'
    files = [
        write(tmp_path / "a.pgn.zst", packed("zst", (pgn(40) + bad + pgn(3, 2)).encode())),
        write(tmp_path / "b.csv", "transcript\n;1.e4 e5\n;1.e4 c5 2.Nf3\n;1.d4 d5 2.c4 e6\n"),
        write(tmp_path / "c.pgn", bad + pgn(40, 1)),
    ]
    build_dataset([files[2]], tmp_path / "whole")
    hashes = Games(tmp_path / "whole").hashes[1:10:3]
    chosen: dict[str, Any] = {"min_plies": 2, "exclude": {"dataset:x": hashes}}
    for number in (1, 3):
        build_dataset(files, tmp_path / str(number), processes=number, **chosen)
    for name in contents(tmp_path / "1"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()
    report = Games(tmp_path / "3").report
    assert report.rejected == {"illegal move": 2}
    assert report.skipped == {"moves of a dataset that is left out": len(hashes)}
    assert report.games == 86 - len(hashes)


@pytest.mark.parametrize("when", quick_first(2, ["reading", "interrupted", "idle"]))
def test_a_killed_process_or_an_interruption_leaves_nothing(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(build_module, "_BYTES_PER_PROCESS", 1)
    files = [write(tmp_path / name, pgn(60)) for name in ("a.pgn", "b.pgn")]
    children: list[psutil.Process] = []
    others = {child.pid for child in psutil.Process().children()}  # of other tests
    send = block_reading._send

    def kill_reading_process(process: Any, message: Any) -> None:
        """Kill the process between the block and its answer."""
        if isinstance(message, block_reading.SourceBlock):
            psutil.Process(process.pid).suspend()
        send(process, message)
        if isinstance(message, block_reading.SourceBlock):
            children.append(psutil.Process(process.pid))
            process.kill()

    def fail(*step: int) -> None:
        """Fail after the first block, before the blocks of the second file."""
        children.extend(child for child in psutil.Process().children() if child.pid not in others)
        if when == "interrupted":
            raise KeyboardInterrupt
        for child in children:
            child.kill()

    if when == "reading":
        monkeypatch.setattr(block_reading, "_send", kill_reading_process)
    with pytest.raises(KeyboardInterrupt if when == "interrupted" else ChessregError) as raised:
        build_dataset(files, tmp_path / "out", processes=2, on_progress=fail)
    assert when == "interrupted" or "a process that reads games was killed" in str(raised.value)
    assert contents(tmp_path) == ["a.pgn", "b.pgn"]
    assert len(children) >= (1 if when == "reading" else 2)
    assert not any(child.is_running() for child in children)


def test_later_copies_of_a_move_list_are_marked_and_counted(tmp_path: Path, text: str) -> None:
    made = build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "out")
    games = Games(tmp_path / "out")
    assert made.duplicates == 5
    assert np.flatnonzero(games.table(["duplicate"])["duplicate"].to_numpy()).tolist() == [10, 20, 30, 40, 50]
    assert games.hashes.tolist() == [moves.hash_moves(p) for p in games.moves(games.rows())]


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_duplicates_are_found_in_any_number_of_passes(tmp_path: Path, at_once: int) -> None:
    hashes = np.random.default_rng(0).integers(0, 30, 100, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    write(tmp_path / "hashes", hashes.tobytes())
    seen: set[int] = set()
    expected = [bool(h in seen or seen.add(h)) for h in hashes.tolist()]
    assert build_module.find_duplicates(tmp_path / "hashes", 100, at_once).tolist() == expected


@pytest.mark.parametrize("block", [700, 5000, 1 << 20])
@pytest.mark.parametrize("layout", ["plain", "crlf", "cr", "tagless", "comments"])
def test_where_blocks_are_cut_makes_no_difference(
    tmp_path: Path, text: str, block: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout == "crlf":
        text = text.replace("\n", "\r\n")
    if layout == "cr":
        text = text.replace("\n", "\r")
    if layout == "comments":  # with tags in them, and one that is not closed
        text = text.replace("\n\n1. ", '\n\n{\n\n[Event "quoted"]\n\n1. e4 e5 1-0\n\n}\n1. ')
        text = f'[Event "unclosed"]\n\n1. e4 {{ e5 1-0\n\n{text}[Event "unclosed"]\n\n1. e4 {{ e5 1-0\n'
    if layout == "tagless":
        text = "".join(line + "\n" for line in text.split("\n") if not line.startswith("["))
    source = write(tmp_path / "a.pgn.gz", gzip.compress(text.encode()))
    whole = build_dataset([source], tmp_path / "whole")
    monkeypatch.setattr(sources, "BLOCK_BYTES", block)
    monkeypatch.setattr(sources, "_MAX_UNCUT_BYTES", 1 << 22)
    cut = build_dataset([source], tmp_path / "cut")
    rejected = {"a comment is not closed": 2} if layout == "comments" else {}
    assert (whole.games, whole.rejected, whole.skipped) == (60, rejected, {})
    assert (cut.games_sha256, cut.plies, cut.rejected) == (whole.games_sha256, whole.plies, rejected)


@pytest.mark.parametrize("where", ["comment", "line", "tag"])
def test_a_game_that_is_too_long_is_refused_once_by_name(tmp_path: Path, text: str, where: str) -> None:
    filling = "a comment of words\n" * 1_000_000 if where == "comment" else "x" * 20_000_000
    game = f'[Event "{filling}"]\n\n1. e4 *' if where == "tag" else f'[Event "long"]\n\n1. e4 {{{filling}}} e5 *'
    report = build_dataset([write(tmp_path / "a.pgn", f"{text}\n\n{game}\n\n{text}")], tmp_path / "out")
    assert report.games == 120
    assert report.rejected == {"a game of more than 8 MiB of text": 1}
    (reject,) = (tmp_path / "out" / REJECTS_FILE).read_text().splitlines()[1:]
    assert reject.split("\t")[2] == str(text.count("\n") + 3)


def test_text_without_any_border_is_read_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(sources, "_MAX_UNCUT_BYTES", 3000)
    source = sources.GameSource(write(tmp_path / "a.txt", "word " * 4000))
    sizes = [len(block) for block in source.blocks()]
    assert sum(sizes) == 20_000
    assert max(sizes) < 25_000


def test_games_are_read_back_by_row_in_the_order_asked_for(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 3000)
    build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "out")
    games = Games(tmp_path / "out")
    assert games._file.metadata.num_row_groups >= 8
    assert max(games._file.metadata.row_group(g).num_rows for g in range(games._file.metadata.num_row_groups)) <= 7
    everything = games.texts(games.rows())
    for wanted in ([59, 0, 31, 31, 7], [], range(60)):
        assert games.texts(wanted) == [everything[i] for i in wanted]
    assert games.table(["event"])["event"].to_pylist() == [str(i) for i in range(60)]
    assert len(games) == games.total == 60
    for wrong in ([60], [-1]):
        with pytest.raises(BadInputError, match="not among"):
            games.texts(wrong)
    with pytest.raises(BadInputError, match="no column elo"):
        games.table(["elo"])


def test_a_part_shows_its_own_games_and_parts_share_no_move_list(tmp_path: Path, text: str) -> None:
    build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "out")
    games = Games(tmp_path / "out")
    parts = parse_parts("train=0.6,test=0.4", seed=1)
    train, test = games.part(parts["train"]), games.part(parts["test"])
    assert len(train) + len(test) == 60
    assert sorted([*train.rows(), *test.rows()]) == list(range(60))
    assert not set(train.texts(train.rows())) & set(test.texts(test.rows()))
    assert train.table(["event"])["event"].to_pylist() == [str(i) for i in games.rows(parts["train"])]
    assert train.rows(parts["test"]).tolist() == []


def tamper(folder: Path, change: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "games.parquet"
    table = pq.read_table(path)
    if change == "bytes":
        path.write_bytes(path.read_bytes() + b"x")
        return
    if change == "missing":
        path.unlink()
        return
    if change == "rejects":
        with (folder / "rejects.tsv").open("a") as file:
            file.write("0\ta\t1\t0\tx\n")
        return
    if change == "row":
        table = table.slice(1)
    if change == "text":
        texts = pa.array([t.replace("1.", "2.") for t in table["text"].to_pylist()])
        table = table.set_column(table.schema.get_field_index("text"), table.schema.field("text"), texts)
    if change == "moves":
        packed = pa.array([p[2:] + p[:2] for p in table["moves"].to_pylist()], pa.binary())
        table = table.set_column(table.schema.get_field_index("moves"), table.schema.field("moves"), packed)
    pq.write_table(table, path)
    record = json.loads((folder / "dataset.json").read_text())
    record["games_sha256"] = hash_file(path)
    (folder / "dataset.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("bytes", "sha256 differs"),
        ("missing", "missing"),
        ("rejects", "rejects.tsv lists 1"),
        ("row", "59 games, but the report counts 60"),
        ("text", "text that is not that of its moves"),
        ("moves", "0 matching move hashes"),
        ("moves", "illegal move"),
    ],
)
def test_verify_tells_what_was_changed(tmp_path: Path, text: str, change: str, problem: str) -> None:
    build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "out")
    assert verify_games(tmp_path / "out").problems == []
    tamper(tmp_path / "out", change)
    assert any(problem in found for found in verify_games(tmp_path / "out").problems)


def test_what_is_not_a_dataset_is_said_to_be_none(tmp_path: Path) -> None:
    for look in (Games, verify_games):
        with pytest.raises(NotFoundError, match="is not a dataset"):
            look(tmp_path)
    write(tmp_path / "games.parquet", b"not parquet")
    write(tmp_path / "dataset.json", b"{}")
    for look in (Games, verify_games):
        with pytest.raises(BadInputError, match="damaged"):
            look(tmp_path)


def test_the_report_comes_back_as_it_was_saved(tmp_path: Path, text: str) -> None:
    made: Any = build_dataset([write(tmp_path / "a.pgn", text)], tmp_path / "out")
    assert Games(tmp_path / "out").report == made
    assert (made.both_elos, made.missing_results, made.first_date) == (60, 0, None)
