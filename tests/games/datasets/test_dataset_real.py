"""Real games: the shared Lichess files come in whole, and every board is python-chess's."""

from __future__ import annotations

from pathlib import Path

import chess
import numpy as np
import pytest

from chessreg.games.boards import moves
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import Games, verify_games
from chessreg.noise import generator
from tests.replays import replay_texts

PARTS = ("lichess-lm", "lichess-probe-train", "lichess-probe-test")
FIRST = 20_000


@pytest.fixture(scope="module")
def games(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Games:
    folder = tmp_path_factory.mktemp("real") / "lichess"
    build_dataset([shared_data / "games" / f"{name}.pgn.zst" for name in PARTS], folder)
    return Games(folder)


@pytest.fixture(scope="module")
def part(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Games:
    folder = tmp_path_factory.mktemp("part") / "lichess"
    build_dataset([shared_data / "games" / f"{PARTS[-1]}.pgn.zst"], folder)
    return Games(folder)


def bitboards(board: chess.Board) -> tuple[int, ...]:
    white, black = board.occupied_co[True], board.occupied_co[False]
    return white, black, board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings


def differing(games: Games, rows: np.ndarray) -> list[int]:
    """Rows among these in which some ply's board is not that of python-chess playing the packed moves."""
    bad = []
    for start in range(0, len(rows), 2000):
        part = rows[start : start + 2000]
        boards, offsets = replay_texts(games.texts(part))
        planes = [boards > 0, boards < 0, *(np.abs(boards) == piece for piece in chess.PIECE_TYPES)]
        found = np.stack([np.packbits(p, axis=1, bitorder="little").view("<u8")[:, 0] for p in planes], axis=1)
        for number, packed in enumerate(games.moves(part)):
            expected = np.array([bitboards(board) for board in moves.replay_boards(packed)], np.uint64)
            if not np.array_equal(found[offsets[number] : offsets[number + 1]], expected):
                bad.append(int(part[number]))
    return bad


@pytest.mark.slow
def test_all_games_come_in_and_nothing_is_rejected(games: Games) -> None:
    report = games.report
    assert (report.games, len(games)) == (92_736, 92_736)
    assert (report.rejected, report.skipped, report.noncanonical, report.result_mismatches) == ({}, {}, 0, 0)
    assert report.both_elos > 0.999 * report.games
    assert verify_games(games.folder, sample=300).problems == []


@pytest.mark.slow
def test_no_game_of_the_given_parts_is_in_another(games: Games) -> None:
    """The three files were split by move list; equal hashes across them would be collisions or a wrong hash."""
    rows = np.searchsorted([46_286, 46_286 + 23_189], games.table(["row"])["row"].to_numpy(), "right")
    owners: dict[int, int] = {}
    assert all(owners.setdefault(h, part) == part for h, part in zip(games.hashes.tolist(), rows.tolist(), strict=True))


@pytest.mark.slow
def test_every_board_of_500_seeded_games_is_that_of_python_chess(part: Games) -> None:
    rows = np.sort(generator(0, "boards").choice(len(part), 500, replace=False))
    assert differing(part, rows) == []


def test_a_wrong_board_would_be_seen(part: Games, monkeypatch: pytest.MonkeyPatch) -> None:
    right = replay_texts

    def swapped(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        boards, offsets = right(texts)
        boards[offsets[3] + 1, [0, 1]] = boards[offsets[3] + 1, [1, 0]]
        return boards, offsets

    monkeypatch.setitem(differing.__globals__, "replay_texts", swapped)
    assert differing(part, np.arange(10)) == [3]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_board_of_the_first_20000_games_with_castling_en_passant_or_promotion(games: Games) -> None:
    first = np.arange(FIRST)
    special = [row for row, text in enumerate(games.texts(first)) if "O-O" in text or "=" in text]
    boards, offsets = replay_texts(games.texts(first))
    codes = np.frombuffer(b"".join(games.moves(first)), "<u2")
    game = np.repeat(first, np.diff(offsets) - 1)
    place = np.arange(len(codes)) + game
    crossing = ((codes ^ codes >> 6) & 7 != 0) & (np.abs(boards[place, codes & 63]) == 1)
    passing = np.unique(game[crossing & (boards[place, codes >> 6 & 63] == 0)])
    assert len(passing) > 300
    rows = np.union1d(special, passing)
    assert len(rows) > 17_000
    assert differing(games, rows) == []


def test_the_file_with_evals_comes_in_as_clean_text(shared_data: Path, tmp_path: Path) -> None:
    report = build_dataset([shared_data / "games" / "lichess-rapid-evals.pgn.zst"], tmp_path / "evals")
    assert (report.games, report.rejected, report.noncanonical) == (4000, {}, 0)
    assert verify_games(tmp_path / "evals").problems == []
