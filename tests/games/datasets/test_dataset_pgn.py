"""Untidy PGN into rows: kept, rewritten, skipped, rejected and counted games. Each case through both readers."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import chess.pgn
import pytest

from chessreg.games.boards import moves
from chessreg.games.datasets import borders, movetext
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import DatasetReport, Games, verify_games

TAGS = '[Event "E"]\n[Site "S"]\n[Date "2020.01.02"]\n[White "W"]\n[Black "B"]\n[Result "1-0"]\n\n'
GOOD = TAGS + "1. d4 d5 1-0\n\n"
COLUMNS = [
    "event",
    "site",
    "date",
    "white",
    "black",
    "result",
    "white_elo",
    "black_elo",
    "eco",
    "time_control",
    "termination",
]
NF3 = ";1.e4 e5 2.Nf3"


@pytest.fixture(params=["rust", "python"])
def reader_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add(tmp_path: Path, text: str | bytes, reader_name: str = "rust", **settings: Any) -> tuple[Games, DatasetReport]:
    source = tmp_path / "in.pgn"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    report = build_dataset([source], tmp_path / "out", reader_name=reader_name, **settings)
    assert verify_games(tmp_path / "out").problems == []
    games = Games(tmp_path / "out")
    assert len(games) == report.games
    return games, report


def texts(games: Games) -> list[str]:
    return games.texts(games.rows())


def rejects(tmp_path: Path) -> list[list[str]]:
    lines = (tmp_path / "out" / "rejects.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["row", "source", "line", "ply", "reason"]
    return [line.split("\t") for line in lines[1:]]


CLEAN = [
    ("1. e4 e5 2. Nf3 1-0", NF3),
    ("1.e4 e5 2.Nf3 1-0", NF3),
    ("1. e4 e5\n2. Nf3\n1-0", NF3),
    ("e4 e5 Nf3 1-0", NF3),
    ("1 e4 e5 2 Nf3 1-0", NF3),
    ("1. e4 { [%eval 0.2] [%clk 0:01:00] } 1... e5 { [%eval #-3] } 2. Nf3 1-0", NF3),
    ("1. e4 {a\nb} e5 $1 2. Nf3!? $14 1-0", NF3),
    ("1. e4 (1. d4 d5 (1... Nf6 2. c4) 2. c4) 1... e5 2. Nf3 1-0", NF3),
    ("1. e4 (1. d4 {)} d5) e5 2. Nf3 1-0", NF3),
    ("1. e4 ; to the end { of the line\n1... e5 2. Nf3 1-0", NF3),
    ("1. e4 e5\n% an escape line (\n2. Nf3 1-0", NF3),
    ("1. e4 {(;%} e5 2. Nf3 1-0", NF3),
    ("1. e4 {1-0 in the end} e5 2. Nf3 1-0", NF3),
    ("1. e4 d5 2. e5 f5 3. exf6 e.p. 1-0", ";1.e4 d5 2.e5 f5 3.exf6"),
    ("1.e4 e5 2.Nf3", NF3),
    ("1. e4 e5 2. Nf3 *", NF3),
    ("1. e4 e5 2. Nf3 1/2", NF3),
    ("1. e4 e5 2. Nf3 1/2-1/2", NF3),
]
REWRITTEN = [
    ("1. e4 e5 2. Ng1f3 1-0", NF3),
    ("1. e4 e5 2. Ngf3 1-0", NF3),
    ("1. e4 e5 2. Nf3+ 1-0", NF3),
    ("1. e2-e4 e7e5 2. Ng1-f3 1-0", NF3),
    ("1. e2e4 e7e5 2. g1f3 1-0", NF3),
    ("1. e4 d5 2. ed5 1-0", ";1.e4 d5 2.exd5"),
    ("1. Pe4 e5 2. Nf3 1-0", NF3),
    ("1. f3 e5 2. g4 Qh4 0-1", ";1.f3 e5 2.g4 Qh4#"),
    ("1. f3 e5 2. g4 Qh4+ 0-1", ";1.f3 e5 2.g4 Qh4#"),
    ("1. f3 e5 2. g4 Qh4++ 0-1", ";1.f3 e5 2.g4 Qh4#"),
    ("1. e4 e5 2. Nf3 Nf6 3. Bc4 Bc5 4. 0-0 0-0 1-0", ";1.e4 e5 2.Nf3 Nf6 3.Bc4 Bc5 4.O-O O-O"),
    ("1. e4 d5 2. e5 f5 3. exf6e.p. 1-0", ";1.e4 d5 2.e5 f5 3.exf6"),
    ("1. a4 b5 2. axb5 a6 3. bxa6 c6 4. a7 c5 5. axb8Q 1-0", ";1.a4 b5 2.axb5 a6 3.bxa6 c6 4.a7 c5 5.axb8=Q"),
    ("1. e4 d5 2. e:d5 Q:d5 1-0", ";1.e4 d5 2.exd5 Qxd5"),
    ("1. e4 d5 2. exd5 Qd5 1-0", ";1.e4 d5 2.exd5 Qxd5"),
]


@pytest.mark.parametrize(
    ("body", "text", "rewritten"), [*((*case, 0) for case in CLEAN), *((*case, 1) for case in REWRITTEN)]
)
def test_a_game_becomes_canonical_text(tmp_path: Path, reader_name: str, body: str, text: str, rewritten: int) -> None:
    games, report = add(tmp_path, GOOD + TAGS + body + "\n\n" + GOOD, reader_name)
    assert texts(games) == [";1.d4 d5", text, ";1.d4 d5"]
    assert report.noncanonical == rewritten
    assert (report.rejected, report.skipped) == ({}, {})


CASTLED = ";1.Nf3 Nf6 2.g3 g6 3.Bg2 Bg7 4.O-O"
ANNOTATED = [
    ("1. e4 e5 = 2. Nf3 +/= 1-0", NF3),
    ("1. e4 e5? ± 2. Nf3 ∞ {slip} 1-0", NF3),
    ("1. e4 e5 -+ 2. Nf3 +- 1-0", NF3),
    ("1. e4 e5 N 2. Nf3 D 1-0", NF3),
    ("1. e4 $140 e5 $ 2. Nf3 1-0", NF3),
    ("1. e4 e5= 2. Nf3+- 1-0", NF3),
    ("1. e4 ⩲ e5∞ 2. Nf3N 1-0", NF3),
    ("1. e4! e5?! □ 2. Nf3□ 1-0", NF3),
    ("1. e4, e5. 2. Nf3 +/− 1-0", NF3),
    ("1. e4 e5\u200b 2. \u200eNf3 1-0", NF3),
    ("1. e4 1… e5 2. Nf3 1–0", NF3),
    ("1.\u00a0e4 e5 2.\u2009Nf3 1-0", NF3),
    ("1. e4 e5 2. Nf3 1:0", NF3),
    ("1. e4 e5 2. Nf3 ½–½", NF3),
    ("1. e4 e5 2. Nf3 1/2 - 1/2", NF3),
    ("1. e4 e5 2. Nf3 0.5-0.5", NF3),
    ("1. e4 e5 2. ♘f3 1-0", NF3),
    ("1. e4 e5 2. ♞\ufe0ef3 1-0", NF3),
    ("1. ｅ４ ｅ５ 2. Ｎｆ３ 1-0", NF3),
    ("1-e4 e5 2-Nf3 1-0", NF3),
    ("1. e4 e5 (1... c5 (1... e6) 2. Nf3) (1... d5) 2. Nf3 1-0", NF3),
    *((f"1. Nf3 Nf6 2. g3 g6 3. Bg2 Bg7 4. {castling} 1-0", CASTLED)
      for castling in ("OO", "O–O", "00", "0‑0", "О-О", "O-O=", "O-O+-")),
    ("1.Nf3 Nf6 2.g3 g6 3.Bg2 Bg7 4.0-0 1-0", CASTLED),
    ("1. a4 b5 2. axb5 a6 3. bxa6 c6 4. a7 c5 5. axb8(Q)+- 1-0", ";1.a4 b5 2.axb5 a6 3.bxa6 c6 4.a7 c5 5.axb8=Q"),
    ("1. a4 b5 2. axb5 a6 3. bxa6 c6 4. a7 c5 5. axb8N 1-0", ";1.a4 b5 2.axb5 a6 3.bxa6 c6 4.a7 c5 5.axb8=N"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text"), ANNOTATED)
def test_glyphs_and_typography_are_read(tmp_path: Path, reader_name: str, body: str, text: str) -> None:
    games, report = add(tmp_path, TAGS + body + "\n\n" + GOOD, reader_name)
    assert texts(games) == [text, ";1.d4 d5"]
    assert (report.rejected, report.skipped) == ({}, {})


@pytest.mark.parametrize(
    ("spellings", "result"),
    [
        (("1-0", "1–0", "1:0", "1 - 0", "1 : 0"), "1-0"),
        (("0-1", "0–1", "0:1", "0 - 1", "0 : 1"), "0-1"),
        (("1/2-1/2", "1/2", "½", "½-½", "½:½", "1/2 - 1/2", "0.5-0.5", "0.5:0.5", "=-="), "1/2-1/2"),
        (("*",), "*"),
    ],
)
def test_a_result_is_read_however_it_is_written(spellings: tuple[str, ...], result: str) -> None:
    for spelling in spellings:
        assert movetext.normalize_result(spelling) == result
        [game] = movetext.clean_movetext(f"1. e4 e5 2. Nf3 {spelling}")
        assert (game.text.split()[-1], game.result) == ("Nf3", result), spelling


def test_a_comment_that_the_rest_of_the_file_may_close_hides_no_border() -> None:
    first, second = b'[Event "a"]\n\n1. e4 {so far\n', b'[Event "b"]\n\n1. d4 d5 *\n'
    assert borders.find_game_starts(first + second).tolist() == [0, len(first)], "nothing closes it"
    assert borders.find_game_starts(first + second, more=True).tolist() == [0], "more text may close it"
    assert borders.find_last_start(bytearray(first + second)) == 0
    assert borders.find_game_starts(first + second + b"} 1-0\n").tolist() == [0]


@pytest.mark.parametrize(("body", "text"), CLEAN + REWRITTEN[:1])
def test_the_moves_are_those_that_python_chess_finds_in_the_same_pgn(tmp_path: Path, body: str, text: str) -> None:
    game = chess.pgn.read_game(io.StringIO(TAGS + body + "\n"))
    assert game is not None
    games, _ = add(tmp_path, TAGS + body + "\n")
    assert moves.unpack_moves(games.moves([0])[0]) == list(game.mainline_moves())


@pytest.mark.parametrize(
    ("body", "ply", "reason"),
    [
        ("1. e4 e5 2. Ke3 1-0", 2, "illegal move: Ke3"),
        ("1. d4 d5 2. Nf3 Nf6 3. Nd2 1-0", 4, "illegal move: Nd2"),
        ("1. e4 -- 2. d4 1-0", 1, "null move: --"),
        ("1. e4 Z0 2. d4 1-0", 1, "null move: Z0"),
        ("1. e4 e5 2. hello 1-0", 2, "unreadable move: hello"),
        ("1. e4 {never closed\n1... e5 1-0", 1, "a comment is not closed"),
        ("1. e4 e5 } 2. Nf3 1-0", 2, "a comment is closed that was not opened"),
        ("1. e4 (1. d4 d5 1... e5 1-0", 1, "a variation is not closed"),
        ("1. e4 e5 ) 2. Nf3 1-0", 2, "a stray )"),
        ("1. e4 e5 (2. Nf3) {x", 2, "a comment is not closed"),
        ("1. Ke2 {never", 0, "illegal move: Ke2"),  # the first fault is the one that is named
        ("1. e4 e5 2. O-O- 1-0", 2, "unreadable move: O-O-"),  # long castling, cut short
        ("1. e4 e5 2. Nf3 0 - 0 - 0 1-0", 3, "unreadable move: 0"),
        ("1. e4 e5 2. Nf3 0.25] 1-0", 3, "unreadable move: 0.25]"),
        ("1. e4 e5 --. 2. Nf3 1-0", 2, "unreadable move: --."),
        ('1. e4 e5\n[Site "x"]\n2. Nf3 Nc6 1-0', 2, "unreadable move: [Site"),  # a tag inside the moves
        ("1. e4 e5 1-0 and 2. Nf3 Nc6 1-0", 2, "unreadable move: and"),
        (" ".join(["Nf3 Nf6 Ng1 Ng8"] * 8200), 32767, "more than 32,767 plies"),
    ],
)
def test_a_bad_game_is_listed_and_the_others_stay(
    tmp_path: Path, reader_name: str, body: str, ply: int, reason: str
) -> None:
    games, report = add(tmp_path, GOOD + TAGS + body + "\n\n" + GOOD, reader_name)
    assert texts(games) == [";1.d4 d5"] * 2
    assert games.table(["row"])["row"].to_pylist() == [0, 2]
    assert rejects(tmp_path) == [["1", "in.pgn", "10", str(ply), reason]]
    assert report.rejected == {reason.partition(":")[0]: 1}


@pytest.mark.parametrize(
    ("tags", "body", "reason"),
    [
        ('[Variant "Chess960"]\n', "1. e4 e5 1-0", "variant Chess960"),
        ('[Variant "Three-check"]\n', "1. e4 e5 1-0", "variant Three-check"),
        ('[Variant "My own"]\n', "1. e4 e5 1-0", "variant other than standard chess"),
        ('[FEN "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"]\n[SetUp "1"]\n', "1. e4 Kd7 1-0", "custom start"),
        ('[Variant "From Position"]\n[FEN "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"]\n', "1. e4 Kd7 1-0", "custom start"),
        ("", "1-0", "no moves"),
        ("", "1. 1-0", "no moves"),
        ("", "1. *", "no moves"),
        ("", "{ aborted } *", "no moves"),
        ("", "", "no moves"),
    ],
)
def test_what_does_not_belong_is_skipped_and_counted(
    tmp_path: Path, reader_name: str, tags: str, body: str, reason: str
) -> None:
    games, report = add(tmp_path, GOOD + '[Event "E"]\n' + tags + "\n" + body + "\n\n" + GOOD, reader_name)
    assert texts(games) == [";1.d4 d5"] * 2
    assert games.table(["row"])["row"].to_pylist() == [0, 2]
    assert report.skipped == {reason: 1}
    assert rejects(tmp_path) == []


def test_standard_chess_by_other_words_is_kept(tmp_path: Path) -> None:
    fen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    games, report = add(tmp_path, f'[Variant "Standard"]\n[SetUp "1"]\n[FEN "{fen}"]\n\n1. e4 *\n')
    assert (texts(games), report.skipped) == ([";1.e4"], {})


def test_short_games_are_left_out_on_demand(tmp_path: Path) -> None:
    games, report = add(tmp_path, GOOD + TAGS + "1. e4 e5 2. Nf3 1-0\n", min_plies=3)
    assert (texts(games), report.skipped, report.filters) == ([NF3], {"fewer than 3 plies": 1}, {"min_plies": 3})


@pytest.mark.parametrize(
    "text",
    [
        TAGS + "1. e4 e5 1-0\n" + TAGS + "1. d4 d5 1-0\n",  # no blank line between
        "1. e4 e5 1-0\n\n1. d4 d5 1-0\n",  # no tags
        "1. e4 e5 1-0 1. d4 d5 1-0",  # on one line
        "{ a remark }\n\n" + TAGS + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0",
        TAGS.rstrip() + "\n1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0",  # no blank line after tags
        '[Event "E"]\n\n[Site "S"]\n\n1. e4 e5 1-0\n\n[Event "F"]\n[Site "S"]\n\n1. d4 d5 1-0\n',  # blank between tags
        (TAGS + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n").replace("\n", "\r\n"),
        "\ufeff" + TAGS + "1. e4 e5 1-0\n\n\ufeff" + TAGS + "1. d4 d5 1-0\n",
        "\n\n" + TAGS + "1. e4 e5 1-0\n\n\n\n" + TAGS + "\n1. d4 d5 1-0\n\n\n",
        TAGS + "1. e4 {x [%eval 1]\n\n[%clk 1] [Event} e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n",
        TAGS + "% exported\n1. e4 e5 1-0\n\n% next\n" + TAGS + "1. d4 d5 1-0\n",
        "; remark [\n% made by x\n" + TAGS + '1. e4 e5 1-0\n\n%[Event "no"]\n' + TAGS + "1. d4 d5 1-0\n",
        (TAGS + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n").replace("\n", "\r"),
        (TAGS + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n").replace("[", "[ ").replace("]", " ]"),
        (TAGS + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n").replace("[", "\t ["),
        TAGS.rstrip() + " 1. e4 e5 1-0\n" + TAGS.rstrip() + " 1. d4 d5 1-0\n",
        TAGS + "1. e4 {wrapped\n[Carlsen's choice] over lines} e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n",
        TAGS + '1. e4 {from\n\n[Event "Linares"]\n[Site "x"]\n\nof old} e5 1-0\n\n' + TAGS + "1. d4 d5 1-0\n",
        TAGS + "1. e4 { the plan\n[a5 then b4] is slow } e5 1-0\n" + TAGS + "1. d4 d5 1-0\n",
        TAGS + "1. e4 ; a { in a remark\ne5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n",
        TAGS.replace('"E"', '"{"') + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n",
        TAGS.replace("\n", "\n\n") + "1. e4\n\ne5 1-0\n\n" + TAGS + "1. d4 d5\n\n1-0\n",
        "[White Ann]\n" + TAGS + "1. e4 e5 1-0\n\n" + TAGS + "1. d4 d5 1-0\n",
        TAGS + "1. e4 e5 1-0\n\nAnnotated by nobody\n\n" + TAGS + "1. d4 d5 1-0 the end\n",
        "1. e4 e5\n\n1. d4 d5\n",
        "e4 e5 1-0 d4 d5 0-1",
    ],
)
def test_games_are_told_apart_however_they_are_laid_out(tmp_path: Path, reader_name: str, text: str) -> None:
    games, report = add(tmp_path, text, reader_name)
    assert texts(games) == [";1.e4 e5", ";1.d4 d5"]
    assert games.table(["row"])["row"].to_pylist() == [0, 1]
    assert (report.rejected, report.skipped) == ({}, {})


def test_tags_become_columns(tmp_path: Path) -> None:
    tags = (
        '[Event "A \\"big\\" one"]\n[Site "https://lichess.org/x"]\n[UTCDate "2021.05.06"]\n[White "Müller"]\n'
        '[Black "?"]\n[Result "0-1"]\n[WhiteElo "1500?"]\n[BlackElo "-"]\n[ECO "C20"]\n[TimeControl "60+0"]\n'
        '[Termination "Normal"]\n'
    )
    games, report = add(tmp_path, tags + "\n1. e4 e5 0-1\n\n" + TAGS.replace("Date", "Other") + "1. e4 1-0\n")
    rows = games.table(COLUMNS).to_pylist()
    first = {name: rows[0][name] for name in ("event", "site", "date", "white", "black", "result", "white_elo")}
    assert first == {
        "event": 'A "big" one', "site": "https://lichess.org/x", "date": "2021.05.06", "white": "Müller", "black": None,
        "result": "0-1", "white_elo": 1500,
    }  # fmt: skip
    assert [rows[0][name] for name in COLUMNS[-4:]] == [None, "C20", "60+0", "Normal"]
    assert [rows[1][name] for name in ("date", "white_elo", "eco")] == [None, None, None]
    assert (report.first_date, report.last_date, report.both_elos) == ("2021.05.06", "2021.05.06", 0)


def test_names_in_windows_1252_are_read_beside_names_in_utf_8(tmp_path: Path) -> None:
    latin = TAGS.replace('"W"', '"“Müller” – O’Neil €"').encode("cp1252") + b"1. e4 e5 1-0\n\n"
    undefined = TAGS.replace('"W"', '"a\x81b"').encode("latin-1") + b"1. e4 e5 1-0\n\n"
    utf = TAGS.replace('"W"', '"Šimůnek"').encode() + b"1. d4 d5 1-0\n"
    games, _ = add(tmp_path, latin + undefined + utf)
    assert games.table(["white"])["white"].to_pylist() == ["“Müller” – O’Neil €", "a\x81b", "Šimůnek"]


@pytest.mark.parametrize(
    ("tag", "white"),
    [
        ('[White "Ann "Annie" Smith"]', 'Ann "Annie" Smith'),
        ('[White "Ann \\"Annie\\" Smith"]', 'Ann "Annie" Smith'),
        ('[White "C:\\games\\"]', "C:\\games\\"),
        ('  [ White  "Ann" ]  ', "Ann"),
        ('[White"Ann"]', "Ann"),
        ('[Site "S"] [White "Ann"] [Round "1"]', "Ann"),
        ('[White "Ann]', "Ann"),
        ('[White "Ann"', "Ann"),
        ('[White "[Ann] {x} ;y"]', "[Ann] {x} ;y"),
        ("[White Ann]", None),
        ('%[White "Ann"]', None),
        ('; [White "Ann"]', None),
    ],
)
def test_the_name_in_a_tag_is_kept_as_it_is(tmp_path: Path, tag: str, white: str | None) -> None:
    games, report = add(tmp_path, f'[Event "E"]\n{tag}\n[Black "B"]\n\n1. e4 e5 1-0\n\n{GOOD}')
    assert games.table(["white", "black"]).to_pylist() == [
        {"white": white, "black": "B"},
        {"white": "W", "black": "B"},
    ]
    assert (report.rejected, report.skipped) == ({}, {})


def test_a_comment_that_is_never_closed_spoils_its_game_alone(tmp_path: Path, reader_name: str) -> None:
    broken = TAGS + "1. e4 { e5 1-0\n\n"
    games, report = add(tmp_path, broken + GOOD + broken + TAGS + "1. c4 {English} c5 1-0\n\n" + broken, reader_name)
    assert texts(games) == [";1.d4 d5", ";1.c4 c5"]
    assert report.rejected == {"a comment is not closed": 3}


def test_the_games_found_are_those_kept_skipped_and_rejected(tmp_path: Path) -> None:
    fen = '[FEN "4k3/8/8/8/8/8/8/4K2R w K - 0 1"]\n'
    odd = [GOOD, GOOD, TAGS.rstrip() + "\n" + fen + "\n1. O-O 1-0\n\n", TAGS + "1. 1-0\n\n", TAGS + "1. e9 1-0\n\n"]
    games, report = add(tmp_path, "".join(odd))
    assert (report.found, len(games), report.duplicates) == (5, 2, 1)
    assert (report.skipped, report.rejected) == ({"custom start": 1, "no moves": 1}, {"unreadable move": 1})
    assert report.find_miscount() is None
    assert (
        dataclasses.replace(report, found=6).find_miscount()
        == "6 games were found, and 5 are kept, rejected or skipped"
    )


@pytest.mark.parametrize("castling", ["KQkq", "HAha", "KQha"])
def test_the_standard_start_is_none_of_its_own_however_it_is_written(tmp_path: Path, castling: str) -> None:
    fen = f"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w {castling} - 0 1"
    games, report = add(tmp_path, f'[SetUp "1"]\n[FEN "{fen}"]\n\n1. e4 *\n')
    assert (texts(games), report.skipped) == ([";1.e4"], {})


@pytest.mark.parametrize(
    ("header", "written", "result", "mismatch", "missing"),
    [
        ("1-0", "1-0", "1-0", 0, 0),
        ("1-0", "0-1", "1-0", 1, 0),
        ("*", "0-1", "0-1", 1, 0),
        ("1-0", "*", "1-0", 1, 0),
        ("1/2-1/2", "1/2", "1/2-1/2", 0, 0),
        ("0-1", "", "0-1", 0, 1),
        ("?", "1-0", "1-0", 0, 0),
        (None, "1-0", "1-0", 0, 0),
        (None, "", "*", 0, 1),
        ("won", "", "*", 0, 1),
    ],
)
def test_results_that_disagree_or_lack_are_counted(
    tmp_path: Path, header: str | None, written: str, result: str, mismatch: int, missing: int
) -> None:
    tags = '[Event "E"]\n' + (f'[Result "{header}"]\n' if header else "")
    games, report = add(tmp_path, f"{tags}\n1. e4 e5 {written}\n")
    assert games.table(["result"])["result"].to_pylist() == [result]
    assert (report.result_mismatches, report.missing_results) == (mismatch, missing)


@pytest.mark.parametrize(
    ("word", "san"),
    [
        ("e4", "e4"), ("0-0-0+", "O-O-O+"), ("o-o", "O-O"), ("e8Q", "e8=Q"), ("e8=q", "e8=Q"), ("e8(Q)", "e8=Q"),
        ("exd8/N#", "exd8=N#"), ("N:f3", "Nxf3"), ("Qa1xb2++", "Qa1xb2+"), ("exf6ep", "exf6"), ("e9", ""), ("e8=K", ""),
        ("@e4", ""), ("O-O-O-O", ""), ("ed5", "ed5"), ("e2-e4", "e2e4"), ("+", ""), ("e4=Q", "e4=Q"),
    ],
)  # fmt: skip
def test_words_are_read_as_san_where_they_can_be(word: str, san: str) -> None:
    assert movetext.normalize_san(word) == san
