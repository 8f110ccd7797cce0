"""PGN tournaments: players, ratings, endings, and games that cannot be kept."""

from __future__ import annotations

from chessreg.games.foreign import grid, tournament
from chessreg.games.foreign.game import ForeignFile

MATE = "1. f3 e5 2. g4 Qh4# 0-1"


def game(moves: str = MATE, result: str = "0-1", **tags: str) -> str:
    known = {"Event": "test", "White": "model", "Black": "Stockfish 3 (nodes=200)", "Result": result, **tags}
    return "\n".join(f'[{name} "{value}"]' for name, value in known.items()) + f"\n\n{moves}\n\n"


def read(*games: str) -> ForeignFile:
    return tournament.read("".join(games))


def test_players_ratings_and_tags_are_read() -> None:
    [found] = read(game(WhiteElo="1500", BlackElo="1742", TimeControl="60+1", Round="3")).games
    assert (found.white.text, found.white.is_engine) == ("model", False)
    assert (found.black.text, found.black.level, found.black.limit) == ("stockfish:3@nodes=200", 3, "nodes=200")
    assert (found.source_columns["white_elo"], found.source_columns["black_elo"], found.source_columns["round"]) == (
        1500,
        1742,
        "3",
    )
    assert (found.termination, found.oddities) == ("checkmate", [])


def test_a_version_is_no_level_and_a_program_is_an_engine() -> None:
    [version, program, person] = read(
        game(Black="Stockfish 16"), game(Black="Lc0", BlackType="program"), game(Black="Carlsen, Magnus")
    ).games
    assert (version.black.engine, version.black.level, version.black.text) == ("Stockfish 16", None, "Stockfish 16")
    assert (program.black.is_engine, person.black.is_engine) == (True, False)


def test_endings_come_from_the_board_then_from_the_tags_else_they_are_unknown() -> None:
    repeated = " ".join(f"{n}. {'Nf3 Nf6' if n % 2 else 'Ng1 Ng8'}" for n in range(1, 5))
    draw, flagged, agreed, running = read(
        game(f"{repeated} 1/2-1/2", "1/2-1/2"),
        game("1. e4 e5 1-0", "1-0", Termination="time forfeit"),
        game("1. d4 d5 1/2-1/2", "1/2-1/2", Termination="normal"),
        game("1. e4 e5 *", "*"),
    ).games
    endings = [g.termination for g in (draw, flagged, agreed, running)]
    assert endings == ["threefold_repetition", "time_forfeit", "unknown", "unknown"]
    assert [odd.code for odd in agreed.oddities] == ["ending not recorded"]


def test_games_that_cannot_be_kept_are_listed_with_their_row() -> None:
    found = read(
        game(),
        game("1. e4 e5 2. Ke3 1-0", "1-0"),
        game("1... Kd7 1-0", "1-0", SetUp="1", FEN="4k3/8/8/8/8/8/8/4K2R b K - 0 1"),
        game("1. e4 Z0 1-0", "1-0"),
        game(),
    )
    assert (found.rows, [g.row for g in found.games], [r.row for r in found.rejected]) == (5, [0, 4], [1, 2, 3])
    assert "illegal san" in found.rejected[0].text
    assert found.rejected[1].text.startswith("it starts from another position: 4k3/")
    assert [odd.code for odd in found.games[1].oddities] == ["moves of an earlier game"]


def test_a_wrong_result_is_noted() -> None:
    [found] = read(game(MATE.replace("0-1", "1-0"), "1-0")).games
    assert [odd.code for odd in found.oddities] == ["result differs from board"]


def test_formats_do_not_mistake_each_other() -> None:
    assert tournament.fits(game())
    assert not tournament.fits("cell,metric\n")
    assert not grid.fits(game())
