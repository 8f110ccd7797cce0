"""Openings: the same for every arm, never finished, from every kind of book."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
import zipfile
from pathlib import Path

import chess
import numpy as np
import pytest
import zstandard

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.boards.openings import SOURCES, Book, Opening, OpeningSpec, make_openings, parse_opening
from chessreg.noise import generator

TSV = """eco\tname\tpgn
C60\tRuy Lopez\t1. e4 e5 2. Nf3 Nc6 3. Bb5
B00\tNimzowitsch\t1. e4 Nc6
A00\tFool's Mate\t1. f3 e5 2. g4 Qh4#
B00\tNimzowitsch again\t1. e4 Nc6
D00\tQueen's Pawn\t1. d4 d5
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.tsv"
    path.write_text(TSV)
    return path


def test_the_standard_source_has_no_moves() -> None:
    assert make_openings(OpeningSpec(), 1, [3, 4]) == [Opening(3), Opening(4)]
    assert Opening(3).board() == chess.Board()


def test_random_openings_are_a_function_of_seed_and_number_alone() -> None:
    spec = parse_opening("random:20")
    all_at_once = make_openings(spec, 7, range(6))
    one_by_one = [make_openings(spec, 7, [number])[0] for number in reversed(range(6))][::-1]
    assert all_at_once == one_by_one
    assert len({opening.moves for opening in all_at_once}) == 6
    assert make_openings(spec, 8, [0])[0].moves != all_at_once[0].moves


def test_random_openings_are_legal_and_leave_a_game_to_play() -> None:
    for opening in make_openings(parse_opening("random:20"), 1, range(40)):
        board = chess.Board()
        for san, uci in zip(opening.sans, opening.moves, strict=True):
            assert board.parse_san(san).uci() == uci
            board.push_uci(uci)
        assert len(opening.moves) == 20
        assert not board.is_game_over()
        assert opening.board() == board


def test_a_draw_that_ends_the_game_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 200 random plies many games are over: those numbers take a second draw, and none comes out finished."""
    attempts: dict[int, int] = {}

    def spy(*key: int | str) -> np.random.Generator:
        _, _, number, attempt = key
        attempts[int(number)] = int(attempt)
        return generator(*key)

    monkeypatch.setattr("chessreg.games.boards.openings.generator", spy)
    for opening in make_openings(parse_opening("random:200"), 2, range(12)):
        assert len(opening.moves) == 200
        assert not opening.board().is_game_over()
    assert len(attempts) == 12
    assert max(attempts.values()) > 0


def test_a_book_uses_every_line_once_before_any_twice_and_skips_mates_and_doubles(book: Path) -> None:
    spec = parse_opening(f"book:{book}")
    lap = make_openings(spec, 1, range(3))
    assert {opening.name for opening in lap} == {"Ruy Lopez", "Nimzowitsch", "Queen's Pawn"}
    second = make_openings(spec, 1, range(3, 6))
    assert {opening.moves for opening in second} == {opening.moves for opening in lap}
    assert make_openings(spec, 1, [4]) == second[1:2]
    ruy = next(opening for opening in lap if opening.name == "Ruy Lopez")
    assert ruy.moves == ("e2e4", "e7e5", "g1f3", "b8c6", "f1b5")
    assert ruy.sans == ("e4", "e5", "Nf3", "Nc6", "Bb5")


@pytest.mark.parametrize("packing", ["zip", "gz", "bz2", "zst"])
def test_a_small_file_that_unpacks_to_all_memory_is_refused(
    tmp_path: Path, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chessreg.games.boards.openings.MAX_BOOK_BYTES", 1 << 22)
    text = b"1. e4 e5 *\n\n" * (1 << 19)
    path = tmp_path / f"book.pgn.{packing}"
    if packing == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("book.pgn", text)
    else:
        pack = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.ZstdCompressor().compress}[packing]
        path.write_bytes(pack(text))
    assert path.stat().st_size < 30_000
    tracemalloc.start()
    try:
        with pytest.raises(BadInputError, match="unpacks to more than 4 MiB"):
            Book.read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 22
    finally:
        tracemalloc.stop()


def test_a_pgn_book_is_read_plain_and_zipped(tmp_path: Path) -> None:
    text = (
        '[Event "?"]\n[Result "1/2-1/2"]\n\n1. Nf3 {good} d5 (1... c5 2. c4 (2. e4)) 2. g3 $1 c6 1/2-1/2\n\n'
        '[Event "?"]\n[Opening "Bird"]\n[Result "*"]\n\n1. f4\ne6 *\n'
    )
    plain = tmp_path / "book.pgn"
    plain.write_text(text)
    zipped = tmp_path / "book.pgn.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(plain, "book.pgn")
    for path in (plain, zipped):
        found = make_openings(OpeningSpec("book", str(path)), 1, range(2))
        assert {opening.sans for opening in found} == {("Nf3", "d5", "g3", "c6"), ("f4", "e6")}
        assert {opening.name for opening in found} == {"", "Bird"}


def test_a_comment_of_a_pgn_book_ends_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "book.pgn"
    path.write_text('[Event "?"]\n\n1. Nf3 d5 ; a quiet start (for now\n2. g3 c6 *\n')
    (opening,) = make_openings(OpeningSpec("book", str(path)), 1, range(1))
    assert opening.sans == ("Nf3", "d5", "g3", "c6")


def test_the_authors_random_openings_are_the_same_draws_and_may_be_finished() -> None:
    plain, author = (make_openings(parse_opening(f"{source}:20"), 3, range(30)) for source in ("random", "random-2024"))
    same = [a == b for a, b in zip(plain, author, strict=True)]
    assert sum(same) > 20


def test_the_author_starts_anew_five_times_and_keeps_a_last_ply_that_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    mate = chess.Board()
    sans = ["f3", "e5", "g4", "Qh4#"]
    for san in sans:
        mate.push_san(san)
    tried: list[int] = []

    def stuck(plies: int, seed: int, number: int, attempt: int) -> tuple[chess.Board, list[str]]:
        tried.append(attempt)
        return mate, sans

    monkeypatch.setattr("chessreg.games.boards.openings._draw_plies", stuck)
    assert make_openings(parse_opening("random-2024:4"), 0, [0])[0].board().is_checkmate()
    assert tried == [0]
    tried.clear()
    assert len(make_openings(parse_opening("random-2024:6"), 0, [0])[0].moves) == 4
    assert tried == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "name\tfen\nx\ty\n", "no column of moves"),
        ("a.tsv", "name\tpgn\n", "has no line"),
        ("a.txt", "1. e4", "not an opening book"),
        ("a.pgn", '[Event "?"]\n[FEN "8/8/8/8/8/8/8/K1k5 w - - 0 1"]\n\n1. Ka2 *\n', "set-up position"),
        ("a.pgn.zip", "not a zip", "cannot be unpacked"),
        ("a.pgn", "1. e4 e5 *".encode("utf-16").decode("latin-1"), "holds binary data"),
        ("a.pgn", "1. f3 e5 2. g4 Qh4# 0-1", "every one ends in mate"),
        ("a.pgn", "x" * 100_000, f"{'x' * 20}…' is not legal"),
        ("a.epd", "8/8/8/8/8/8/8/8 w - -\n", "the game cannot continue from this position"),
        ("a.epd", "", "has no line"),
    ],
)
def test_a_file_that_is_no_book_says_why(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInputError, match=message) as refused:
        Book.read(parse_opening(f"book:{tmp_path / name}").argument).check()
    assert len(str(refused.value)) < 500


def test_an_illegal_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("name\tpgn\nBroken\t1. e4 e5 2. Ke3\n")
    with pytest.raises(BadInputError, match="Broken: 'Ke3' is not legal after 'e4 e5'"):
        make_openings(OpeningSpec("book", str(path)), 1, [0])


def test_unknown_sources_missing_books_and_bad_arguments_are_named() -> None:
    with pytest.raises(NotFoundError, match="bok"):
        parse_opening("bok:x.pgn")
    with pytest.raises(NotFoundError, match=r"the opening book .*absent\.pgn cannot be read"):
        parse_opening("book:/absent.pgn")
    for text in ("random:0", "random:x", "random", "standard:3", "book"):
        with pytest.raises(BadInputError):
            parse_opening(text)


def test_a_second_source_of_one_name_is_refused() -> None:
    with pytest.raises(ValueError, match="registered already"):
        SOURCES.named("random")(lambda argument, seed, numbers: [])


def test_the_shared_books_are_read(shared_data: Path) -> None:
    folder = shared_data / "openings"
    for name, at_least in (("chess-openings.tsv", 3700), ("karvonen-openings.csv", 9000), ("2moves_v2.pgn.zip", 12000)):
        book = Book.read(folder / name)
        assert len(book.lines) >= at_least
        for number in range(0, len(book.lines), len(book.lines) // 20):
            moves, sans = book.moves(number)
            assert len(moves) == len(sans) > 0
