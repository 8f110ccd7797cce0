"""Opponents as text, the ladder, and which binary plays."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path

import chess
import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.engines.opponents import (
    LADDER,
    EngineSpec,
    Limit,
    choose_move,
    find_stockfish,
    identify_engine,
    parse_engine,
)


@pytest.mark.parametrize(
    ("text", "canonical", "go"),
    [
        ("stockfish:0", "stockfish:0@nodes=100000", "go nodes 100000"),
        ("stockfish:0@nodes=100", "stockfish:0@nodes=100", "go nodes 100"),
        (" Stockfish:3@time=0.10 ", "stockfish:3@time=0.1", "go movetime 100"),
        ("stockfish:20@depth=8", "stockfish:20@depth=8", "go depth 8"),
        ("stockfish:1@nodes=100_000", "stockfish:1@nodes=100000", "go nodes 100000"),
        ("stockfish:2@nodes=12345678", "stockfish:2@nodes=12345678", "go nodes 12345678"),
        ("stockfish:-1", "stockfish:-1", "go depth 1 nodes 1"),
        ("stockfish:-1+random=0.50", "stockfish:-1+random=0.5", "go depth 1 nodes 1"),
        ("stockfish:2@time=.2+random=.1", "stockfish:2@time=0.2+random=0.1", "go movetime 200"),
        ("stockfish:-1+random=0.00001", "stockfish:-1+random=0.00001", "go depth 1 nodes 1"),
        ("stockfish:-1+random=0.9999999", "stockfish:-1+random=0.9999999", "go depth 1 nodes 1"),
        ("stockfish:2@time=1000000", "stockfish:2@time=1000000", "go movetime 1000000000"),
        ("stockfish:2+random=0", "stockfish:2@nodes=100000", "go nodes 100000"),
    ],
)
def test_an_engine_is_read_from_text_and_written_back(text: str, canonical: str, go: str) -> None:
    spec = parse_engine(text)
    assert spec.text == canonical
    assert spec.go == go
    assert parse_engine(spec.text) == spec


def test_level_minus_one_is_skill_zero_and_engines_without_a_process_have_no_level() -> None:
    assert parse_engine("stockfish:-1").skill == 0
    assert parse_engine("stockfish:7").skill == 7
    assert [parse_engine(text).needs_process for text in ("random", "capture", "stockfish:0")] == [False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "leela",
        "stockfish",
        "stockfish:",
        "stockfish:21",
        "stockfish:-2",
        "stockfish:3@",
        "stockfish:3@nodes=0",
        "stockfish:3@nodes=1.5",
        "stockfish:3@nodes=1__000",
        "stockfish:3@time=0",
        "stockfish:3@time=0.0001",
        "stockfish:3@movetime=3",
        "stockfish:-1@nodes=5",
        "random@nodes=5",
        "random+random=0.5",
        "stockfish:3+random=1",
        "stockfish:3+random=",
    ],
)
def test_what_names_no_engine_is_refused_with_the_ways_to_write_one(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_engine(text)
    assert caught.value.hint


def test_every_rung_of_the_ladder_is_distinct_and_reads_back() -> None:
    texts = [rung.text for rung in LADDER]
    assert texts[:3] == ["random", "capture", "stockfish:-1+random=0.4"]
    assert texts[5:7] == ["stockfish:-1", "stockfish:0@nodes=1"]
    assert texts[-1] == "stockfish:20@nodes=100000"
    assert len(texts) == len(set(texts)) == 31
    assert [parse_engine(text) for text in texts] == list(LADDER)


def test_the_random_mover_draws_every_legal_move_about_equally_often_and_by_key_alone() -> None:
    board, spec = chess.Board(), parse_engine("random")
    counts = Counter(choose_move(spec, board, (1, unit, 0)) for unit in range(4000))
    assert set(counts) == set(board.legal_moves)
    assert max(abs(count - 200) for count in counts.values()) < 60  # four standard deviations of 14
    assert choose_move(spec, board, (1, 2, 3)) == choose_move(spec, chess.Board(), (1, 2, 3))


def test_the_capturer_captures_where_it_can_en_passant_included() -> None:
    spec = parse_engine("capture")
    board = chess.Board("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1")
    assert {choose_move(spec, board, (1, unit, 0)) for unit in range(50)} == {chess.Move.from_uci("e5d6")}
    assert len({choose_move(spec, chess.Board(), (1, unit, 0)) for unit in range(200)}) == 20


def test_a_diluted_engine_leaves_its_share_of_the_moves_to_chance() -> None:
    spec, board = parse_engine("stockfish:-1+random=0.25"), chess.Board()
    chosen = [choose_move(spec, board, (1, unit, 0)) for unit in range(2000)]
    drawn = [move for move in chosen if move is not None]
    assert len(drawn) / 2000 == pytest.approx(0.25, abs=0.04)
    assert len(set(drawn)) == 20
    assert choose_move(parse_engine("stockfish:-1"), board, (1, 1, 0)) is None


def test_a_finished_position_has_no_move_to_draw() -> None:
    with pytest.raises(BadInputError, match="no legal move"):
        choose_move(EngineSpec("random"), chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"), (1, 1, 1))


def test_stockfish_is_found_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "my-fish"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("CHESSREG_STOCKFISH", str(program))
    with pytest.raises(NotFoundError, match="my-fish"):
        find_stockfish()  # not executable
    program.chmod(0o755)
    assert find_stockfish() == program


def test_a_missing_stockfish_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHESSREG_STOCKFISH", raising=False)
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/x" if name == "apt-get" else None)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotFoundError) as caught:
        find_stockfish()
    assert caught.value.hint == "sudo apt-get install stockfish"
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(NotFoundError) as caught:
        find_stockfish()
    assert caught.value.hint == "brew install stockfish"


def test_the_identity_is_the_binary_itself(stockfish: Path) -> None:
    identity = identify_engine(stockfish)
    assert identity.name == "Stockfish"
    assert identity.version[0].isdigit()
    assert identity.sha256 == hashlib.sha256(stockfish.read_bytes()).hexdigest()
    assert (identity.options["Threads"], identity.options["Hash"]) == ("1", "16")
    assert identity.options["Skill Level"] == "20"
    assert "Clear Hash" not in identity.options


def test_a_program_that_speaks_no_uci_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "mute"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(BadInputError, match=r"not a UCI engine.*exit status 3"):
        identify_engine(program)
    with pytest.raises(NotFoundError, match=r"the engine .* cannot be started"):
        identify_engine(tmp_path / "absent")


def test_limits_are_positive() -> None:
    with pytest.raises(BadInputError):
        Limit("depth", -1)
