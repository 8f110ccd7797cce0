"""Filters of a dataset by tags: which games are kept, and that every other one is counted with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import zstandard

from chessreg.entities.dataset import Datasets, format_dataset_counts
from chessreg.errors import BadInputError
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import Games
from chessreg.games.datasets.game_filter import GameFilter
from chessreg.registry import tables
from chessreg.session import open_session

GAMES: dict[str, dict[str, Any]] = {
    "bullet": {"Event": "Rated Bullet game", "TimeControl": "60+0", "WhiteElo": 1500, "BlackElo": 1520},
    "two-plus-two": {"Event": "Rated Bullet game", "TimeControl": "120+1", "WhiteElo": 2400, "BlackElo": 1000},
    "limit-of-blitz": {"Event": "Rated Blitz tournament https://x", "TimeControl": "180+0", "WhiteElo": 700,
                       "BlackElo": 3000, "Termination": "Time forfeit"},
    "blitz-by-increment": {"Event": "rated blitz game", "TimeControl": "60+5", "WhiteElo": "1500?", "BlackElo": 1400},
    "rapid": {"Event": "Casual Rapid game", "TimeControl": "600+5", "WhiteElo": 1500, "BlackElo": 1500},
    "classical": {"Event": "Rated Classical game", "TimeControl": "1500", "WhiteElo": 699, "BlackElo": 1500},
    "by-letter": {"Event": "Rated Correspondence game", "TimeControl": "-", "WhiteElo": 1500, "BlackElo": 1500},
    "unknown": {"Event": "Wijk aan Zee", "WhiteElo": 2700},
}  # fmt: skip
SIXTY_FOUR = ["a4", "b4", "c4", "d4", "e4", "f4", "g4", "h4"]


def pgn(name: str, number: int = 0) -> str:
    tags = {"Site": name, "Result": "1-0", **GAMES[name]}
    text = "".join(f'[{tag} "{value}"]\n' for tag, value in tags.items())
    return f"{text}\n1. {SIXTY_FOUR[number]} e6 2. Nf3 1-0\n\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "games.pgn.zst"
    path.write_bytes(zstandard.compress("".join(map(pgn, GAMES, range(len(GAMES)))).encode()))
    return path


def kept(folder: Path) -> set[str]:
    return set(Games(folder).table(["site"]).column("site").to_pylist())


@pytest.mark.parametrize("reader", ["rust", "python"])
@pytest.mark.parametrize(
    ("wanted", "names", "skipped"),
    [
        ({"time_control": ("bullet", "Blitz")}, {"bullet", "two-plus-two", "limit-of-blitz", "blitz-by-increment"},
         {"not blitz, bullet": 3, "time control unknown": 1}),
        ({"time_control": ("180+0", "1500+0")}, {"limit-of-blitz", "classical"},
         {"not 1500+0, 180+0": 5, "time control unknown": 1}),
        ({"time_control": ("correspondence",)}, {"by-letter"}, {"not correspondence": 6, "time control unknown": 1}),
        ({"rated": False}, {"rapid"}, {"rated": 6, "rated or casual unknown": 1}),
        ({"rated": True}, set(GAMES) - {"rapid", "unknown"}, {"casual": 1, "rated or casual unknown": 1}),
        ({"min_rating": 700, "max_rating": 3000}, set(GAMES) - {"classical", "unknown"},
         {"a player rated below 700": 1, "a player's rating unknown": 1}),
        ({"max_rating": 2399}, set(GAMES) - {"two-plus-two", "limit-of-blitz", "unknown"},
         {"a player rated above 2399": 2, "a player's rating unknown": 1}),
        ({"max_rating_difference": 100}, {"bullet", "blitz-by-increment", "rapid", "by-letter"},
         {"ratings more than 100 apart": 3, "a player's rating unknown": 1}),
        ({"termination": ("time forfeit",)}, {"limit-of-blitz"}, {"termination not time forfeit": 7}),
        ({"time_control": ("blitz",), "rated": True, "min_rating": 1400}, {"blitz-by-increment"},
         {"not blitz": 5, "time control unknown": 1, "a player rated below 1400": 1}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_left_out_and_counted(
    tmp_path: Path, source: Path, wanted: dict[str, Any], names: set[str], skipped: dict[str, int], reader: str
) -> None:
    report = build_dataset([source], tmp_path / "made", game_filter=GameFilter(**wanted), reader_name=reader)
    assert kept(tmp_path / "made") == names
    assert report.skipped == skipped
    assert report.games + sum(report.skipped.values()) == report.found == len(GAMES)
    assert report.find_miscount() is None


def test_transcripts_are_filtered_by_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "games.csv"
    rows = [("1.e4 e5", "60+0", 1500), ("1.d4 d5", "600", 1500), ("1.c4 c5", "60+0", "")]
    path.write_text("transcript,TimeControl,WhiteElo,BlackElo\n" + "".join(f"{t},{c},{e},1500\n" for t, c, e in rows))
    report = build_dataset([path], tmp_path / "made", game_filter=GameFilter(time_control=("bullet",), min_rating=1))
    assert (report.games, report.skipped) == (1, {"not bullet": 1, "a player's rating unknown": 1})


def test_a_second_game_in_one_movetext_has_no_tags_to_fit(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    for text in ("1. e4 e5 1-0 1. d4 d5 1/2-1/2", "1. e4! e5 1-0 1. d4 (1. c4 c5) d5 1/2-1/2"):
        path.write_text(f'[Event "Rated Blitz game"]\n\n{text}\n\n')
        folder = tmp_path / str(len(text))
        report = build_dataset([path], folder, game_filter=GameFilter(rated=True))
        assert (report.games, report.skipped, report.found) == (1, {"rated or casual unknown": 1}, 2)


def test_a_file_without_a_fitting_game_among_others_is_no_error_but_no_game_at_all_is(tmp_path: Path) -> None:
    one, other = tmp_path / "one.pgn", tmp_path / "other.pgn"
    one.write_text(pgn("rapid"))
    other.write_text(pgn("bullet"))
    for files in ([one, other], [other, one]):
        report = build_dataset(files, tmp_path / files[0].stem, game_filter=GameFilter(time_control=("bullet",)))
        assert (report.games, report.found) == (1, 2)
    with pytest.raises(BadInputError, match="no legal game") as error:
        build_dataset([one], tmp_path / "none", game_filter=GameFilter(time_control=("bullet",)))
    assert error.value.hint == "left out: 1 not bullet"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"time_control": ("fast",)}, "--time-control fast is not a time control"),
        ({"time_control": ("3+2+1",)}, "is not a time control"),
        ({"min_rating": 2000, "max_rating": 1000}, "--min-rating 2000 is above --max-rating 1000"),
        ({"max_rating_difference": -1}, "--max-rating-difference -1 is below 0"),
    ],
)
def test_conditions_that_no_game_meets_are_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        GameFilter(**wanted)


def test_filters_are_typed_recorded_and_part_of_the_identity(here: Any, source: Path) -> None:
    options = ["--time-control", "blitz,bullet", "--rated", "--min-rating", "700", "--max-rating-difference", "2300"]
    made = here.json("dataset", "add", source, "--name", "fast", *options)
    assert (made["games"], made["created"]) == (4, True)
    report = made["report"]
    filters = {"time_control": ["blitz", "bullet"], "rated": True, "min_rating": 700, "max_rating_difference": 2300}
    assert report["filters"] == {"min_plies": 0, **filters}
    again = here.json("dataset", "add", source, "--time-control", "BULLET,blitz,bullet", *options[2:])
    assert (again["id"], again["created"]) == (made["id"], False)
    assert here.json("dataset", "add", source, "--name", "all")["id"] != made["id"]
    lines = format_dataset_counts(made)
    numbers = [int(line.split()[1].replace(",", "")) for line in lines]
    assert [line.split()[0] for line in lines[:2]] == ["found", "kept"]
    assert numbers[0] == sum(numbers[1:]) == len(GAMES)
    assert any("not blitz, bullet" in line for line in lines)
    place = here.folder / ".chessreg"
    with open_session(str(place / "registry.db"), place / "store") as session, session.database.read() as sql:
        row = sql.get_one(tables.Dataset, UUID(made["id"]))
        assert Datasets().describe_origin(sql, row)[0] == (
            "chessreg dataset add games.pgn.zst --time-control blitz,bullet --rated --min-rating 700 "
            "--max-rating-difference 2300"
        )


def test_positions_have_no_tags(here: Any, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("fen,best\nrnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1,e2e4\n")
    assert here("dataset", "add", path, "--min-rating", "1000") != 0
    assert "--min-rating selects games, but these files hold positions" in here.err
