"""PGN tournaments: players, ratings, endings, and games that cannot be kept."""

from __future__ import annotations

from pathlib import Path

import chess
import pytest

from chessreg.errors import BadInputError
from chessreg.games.foreign import grid, read_games, tournament
from chessreg.games.foreign.game import ForeignFile

MATE = "1. f3 e5 2. g4 Qh4# 0-1"


def game(moves: str = MATE, result: str = "0-1", **tags: str) -> str:
    known = {"Event": "test", "White": "model", "Black": "Stockfish 3 (nodes=200)", "Result": result, **tags}
    return "\n".join(f'[{name} "{value}"]' for name, value in known.items()) + f"\n\n{moves}\n\n"


def read(*games: str) -> ForeignFile:
    return tournament.read_tournament("".join(games))


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
        game("1. e4 e5 2. Ke3 Nf6 3. Nf3 1-0", "1-0"),
        game("1... Kd7 1-0", "1-0", SetUp="1", FEN="4k3/8/8/8/8/8/8/4K2R b K - 0 1"),
        game("1. e4 Z0 2. d4 1-0", "1-0"),
        game("1. e4 e5 1-0", "1-0", Variant="Atomic"),
        game("1. e4 {never closed", "1-0"),
        game("*", "*"),
        game(),
    )
    assert (found.rows, [g.row for g in found.games], [r.row for r in found.rejected_rows]) == (
        8,
        [0, 7],
        [1, 2, 3, 4, 5, 6],
    )
    assert [reject.text for reject in found.rejected_rows] == [
        "half-move 3, 'Ke3', is not legal",
        "it starts from another position: 4k3/8/8/8/8/8/8/4K2R b K - 0 1",
        "half-move 2, 'Z0', is not legal",
        "it is of the variant Atomic",
        "half-move 2: a comment is not closed",
        "it has neither moves nor a result",
    ]
    assert [odd.code for odd in found.games[1].oddities] == ["moves of an earlier game"]


@pytest.mark.parametrize(
    ("tag", "comment", "termination", "loses"),
    [
        # cutechess-cli: PgnGame::setResult and Result::description
        ("illegal move", "-0.1/9 0.1s, White makes an illegal move: e1e3", "forfeit_illegal", True),
        ("stalled connection", "White's connection stalls", "stalled_connection", True),
        ("abandoned", "White disconnects", "abandoned", True),
        ("time forfeit", "White loses on time", "time_forfeit", True),
        ("adjudication", "Black wins by adjudication: user decision", "adjudication", False),
        ("unterminated", "No result", "unterminated", False),
        (None, "+0.1/9 0.1s, White resigns", "resignation", True),
        (None, "White loses on time", "time_forfeit", True),
        # fastchess: PgnBuilder::convertMatchTermination
        ("time forfeit", "-0.5/9 1.0s, White loses on time (30ms overrun)", "time_forfeit", True),
        ("normal", "-M2/9 0.1s, Black mates", "unknown", False),
        # c-chess-cli, Lichess, chess.com
        ("rules infraction", "-10/9 3ms", "forfeit_illegal", True),
        ("Time forfeit", None, "time_forfeit", True),
        ("Abandoned", None, "abandoned", True),
        ("Normal", None, "unknown", False),
        ("Ann won on time", None, "time_forfeit", True),
        ("Ann won by resignation", None, "resignation", True),
        ("Ann won - game abandoned", None, "abandoned", True),
        # an annotator is not a program
        (None, "White resigned too early here, Black was about to lose on time", "unknown", False),
    ],
)
def test_the_reason_for_an_ending_comes_from_the_program_that_played(
    tag: str | None, comment: str | None, termination: str, loses: bool
) -> None:
    tags = {} if tag is None else {"Termination": tag}
    [found] = read(game(f"1. e4 {{0.1/1}} e5 {'{' + comment + '}' if comment else ''} 0-1", **tags)).games
    assert found.termination == termination
    assert found.loser_by_forfeit == (chess.WHITE if loses else None)
    assert found.illegal == ([(2, 0, "e1e3")] if "e1e3" in (comment or "") else [])
    assert ("ending not recorded" in [odd.code for odd in found.oddities]) == (termination == "unknown")


def test_draws_by_agreement_and_adjudication_have_no_loser() -> None:
    agreed, adjudicated, timed = read(
        game("1. e4 e5 {Draw by agreement} 1/2-1/2", "1/2-1/2"),
        game("1. d4 d5 {0.00/12 0.1s, Draw by adjudication} 1/2-1/2", "1/2-1/2", Termination="adjudication"),
        game("1. c4 c5 {Draw by timeout} 1/2-1/2", "1/2-1/2", Termination="time forfeit"),
    ).games
    endings = [(g.termination, g.loser_by_forfeit) for g in (agreed, adjudicated, timed)]
    assert endings == [("agreement", None), ("adjudication", None), ("time_forfeit", None)]


@pytest.mark.parametrize("word", ["Ke3", "Nf9", "--", "0000", "resign", "e2e5"])
@pytest.mark.parametrize("tag", ["illegal move", "rules infraction", "adjudication", "normal", None])
def test_an_illegal_move_at_the_end_is_a_forfeit_of_its_side(word: str, tag: str | None) -> None:
    tags = {} if tag is None else {"Termination": tag}
    found = read(game(f"1. e4 e5 2. {word} 0-1", "0-1", **tags), game(f"1. e4 {word} 1-0", "1-0", **tags))
    assert found.rejected_rows == ()
    white, black = found.games
    for played, side in ((white, chess.WHITE), (black, chess.BLACK)):
        plies = 2 if side else 1
        assert (played.termination, played.loser_by_forfeit, len(played.moves)) == ("forfeit_illegal", side, plies)
        assert played.illegal == [(plies, 0, word)]
        assert played.turns(side) == plies // 2 + 1
        assert played.oddities == []


def test_an_illegal_move_at_the_end_keeps_another_reason_and_result() -> None:
    timed, won, running, first = read(
        game("1. e4 e5 2. Ke3 0-1", "0-1", Termination="time forfeit"),
        game("1. d4 e5 2. Ke3 1-0", "1-0", Termination="illegal move"),
        game("1. c4 e5 2. Ke3 *", "*"),
        game("{White makes an illegal move: e9e9} 0-1", "0-1", Termination="illegal move"),
    ).games
    assert (timed.termination, timed.loser_by_forfeit, timed.illegal) == ("time_forfeit", chess.WHITE, [(2, 0, "Ke3")])
    assert (won.termination, won.result, won.loser_by_forfeit) == ("forfeit_illegal", "1-0", chess.BLACK)
    assert [odd.code for odd in won.oddities] == ["illegal move at the end"]
    assert (running.termination, running.result) == ("unknown", "*")
    assert (first.termination, first.moves, first.illegal) == ("forfeit_illegal", [], [(0, 0, "e9e9")])
    assert [odd.code for odd in first.oddities] == ["no moves"]


def test_untidy_games_are_read_as_datasets_read_them() -> None:
    [found] = read(
        '[ White "Ann "A" B" ]\n[Result "1–0"]\n\n1. ♘f3 {[%eval 1]\n[Site "quoted"]} d5 ± 2. g3N OO? 1–0\n'
    ).games
    assert (found.white.name, found.result, len(found.moves)) == ('Ann "A" B', "1-0", 3)
    assert (found.termination, found.illegal) == ("forfeit_illegal", [(3, 0, "OO")])


def test_a_wrong_result_is_noted() -> None:
    [found] = read(game(MATE.replace("0-1", "1-0"), "1-0")).games
    assert [odd.code for odd in found.oddities] == ["result differs from board"]


@pytest.mark.parametrize(
    "start", ["", "\n\n", "; made by x\n", "% made by x\n", "{ made\nby x [} ", "; a\n{b}\n% c\n\n", "  "]
)
def test_a_file_may_begin_with_remarks(start: str) -> None:
    assert tournament.is_tournament(start + game())
    assert tournament.is_tournament(start + "1. e4 e5 1-0")
    assert [found.termination for found in read(start + game()).games] == ["checkmate"]


def test_formats_do_not_mistake_each_other() -> None:
    assert tournament.is_tournament(game())
    assert not tournament.is_tournament("; nothing else\n")
    assert not tournament.is_tournament('{ never closed [Event "x"]')
    assert not tournament.is_tournament("cell,metric\n")
    assert not grid.is_grid_search(game())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            game("1... Kd7 1-0", SetUp="1", FEN="4k3/8/8/8/8/8/8/4K2R b K - 0 1") * 2,
            "it starts from another position: 4k3",
        ),
        (
            '[White "a"]\n[Black "b"]\n[Results "3 1 4"]\n\n[White "b"]\n[Black "a"]\n[Results "4 1 3"]\n',
            "totals, no game",
        ),
        (game("*", "*") + game("1. e4 Ke7 2. d4 1-0", "1-0"), "neither moves nor a result; 1 other reason"),
    ],
)
def test_a_file_of_which_no_game_can_be_kept_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "book.pgn"
    path.write_text(text)
    with pytest.raises(BadInputError, match=f"book.pgn has 2 games, of which none can be imported: .*{message}"):
        read_games(path, "pgn")
