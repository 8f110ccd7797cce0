"""`chessreg dataset`, as typed: its output, its exit status, and that an error changes nothing."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.server
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import numpy as np
import pytest
import zstandard

from chessreg.entities import load_entity
from chessreg.registry import tables
from chessreg.runs import transfer
from chessreg.session import open_session
from store import Store
from store.errors import CorruptError
from tui.data.dataset_rows import open_dataset_games

COMMAND = [sys.executable, "-m", "chessreg.cli"]
MOVES = ["e4 e5 Nf3 Nc6", "d4 d5 c4 e6", "c4 e5 g3", "e4 c5 Nf3 d6 d4", "Nf3 d5 g3", "e4 e6 d4 d5", "d4 Nf6 c4 g6"]


def game(number: int, moves: str = "") -> str:
    words = (moves or MOVES[number % len(MOVES)]).split()
    text = " ".join(f"{n // 2 + 1}. {word}" if n % 2 == 0 else word for n, word in enumerate(words))
    tags = f'[Event "Rated game"]\n[Site "https://lichess.org/{number}"]\n[Result "0-1"]\n[WhiteElo "1400"]\n'
    return f"{tags}\n{text} 0-1\n\n"


@pytest.fixture
def pgn(tmp_path: Path) -> Path:
    path = tmp_path / "games.pgn"
    path.write_text("".join(map(game, range(21))))
    return path


def test_adding_prints_the_dataset_and_a_second_time_recognises_it(here: Any, pgn: Path) -> None:
    made = here.json("dataset", "add", pgn, "--name", "mine", "--licence", "CC0-1.0")
    assert {key: made[key] for key in ("name", "games", "duplicates", "rating_scale", "licence", "created")} == {
        "name": "mine", "games": 21, "duplicates": 14, "rating_scale": "lichess", "licence": "CC0-1.0", "created": True,
    }  # fmt: skip
    before = here.state()
    assert here("dataset", "add", pgn) == 0
    assert "already dataset mine" in here.err
    assert here.state() == before
    listed = here.json("dataset", "list")
    assert [row["id"] for row in listed] == [made["id"]]
    assert set(tables.Dataset.__table__.columns.keys()) <= listed[0].keys()
    shown = here.json("dataset", "show", "mine")
    assert shown["report"]["sources"][0]["sha256"] == hashlib.sha256(pgn.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("suffix", "pack"), [("zst", zstandard.compress), ("gz", gzip.compress), ("bz2", bz2.compress)]
)
def test_packed_files_are_read_as_they_are(here: Any, pgn: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pgn.with_name(f"games.pgn.{suffix}")
    packed.write_bytes(pack(pgn.read_bytes()))
    assert here.json("dataset", "add", packed)["games"] == 21


def test_several_files_make_one_dataset(here: Any, pgn: Path) -> None:
    more = pgn.with_name("more.pgn")
    more.write_text(game(1, "a3 a6") + game(2, "b3 b6"))
    made = here.json("dataset", "add", pgn, more)
    assert (made["games"], made["source"]) == (23, "games.pgn, more.pgn")


def test_rejected_games_are_shown(here: Any, tmp_path: Path) -> None:
    path = tmp_path / "some.pgn"
    path.write_text(game(0) + game(1, "e4 Ke4") + game(2))
    assert here("dataset", "add", path, "--name", "some") == 0
    assert "--rejects" in here.err
    (reject,) = here.json("dataset", "show", "some", "--rejects")
    assert (reject["row"], reject["line"], reject["ply"]) == (1, 8, 1)
    assert here("dataset", "show", "some", "--rejects") == 0
    assert "Ke4" in here.out


@pytest.mark.parametrize(
    ("name", "content", "status", "said"),
    [
        ("nowhere.pgn", None, 3, "does not exist"),
        ("empty.pgn", b"", 4, "empty"),
        ("letter.pgn", b"Dear editor,\nthere are no games in this.\n", 4, "no legal game"),
        ("binary.pgn", bytes(range(256)) * 20, 4, "is not text: its byte 1 is zero"),
        ("wide.csv", "transcript,result\n1.e4,1-0\n".encode("utf-16"), 4, "it is UTF-16; save it as UTF-8"),
        ("named.zst", game(0).encode(), 4, "not a zst file"),
        ("cut.pgn.zst", zstandard.compress("".join(map(game, range(99))).encode())[:-9], 4, "cut off"),
        ("illegal.pgn", game(0, "e4 Ke4").replace("e4", "e9").encode(), 4, "no legal game"),
    ],
)
def test_what_is_no_pgn_is_refused_whole(
    here: Any, tmp_path: Path, name: str, content: bytes | None, status: int, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = here.state()
    assert here("dataset", "add", name, "--name", "bad") == status
    assert said in here.err
    assert name in here.err
    assert "Traceback" not in here.err
    assert here.err.count("error:") == 1
    assert here.state() == before
    assert here("dataset", "add", name, "--json") == status
    assert json.loads(here.err)["code"] == status
    assert here.out == ""


def test_a_good_file_does_not_save_a_bad_one_beside_it(here: Any, pgn: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.pgn").write_text("")
    before = here.state()
    assert here("dataset", "add", pgn, "empty.pgn") == 4
    assert here.state() == before


def test_salvage_keeps_what_came_before_the_break(here: Any, tmp_path: Path) -> None:
    text = "".join(game(n, f"{MOVES[n % 7]}") for n in range(400)).encode()
    cut = tmp_path / "cut.pgn.gz"
    cut.write_bytes(gzip.compress(text)[:-200])
    assert here("dataset", "add", cut) == 4
    assert "--salvage" in here.err
    made = here.json("dataset", "add", cut, "--salvage")
    assert 0 < made["games"] < 400
    assert "cut off" in made["report"]["salvaged"]


def test_usage_errors(here: Any, pgn: Path) -> None:
    assert here("dataset", "add") == 2
    assert here("dataset", "add", pgn, "--sample") == 2
    assert here("dataset", "add", pgn, "--rating-scale", "elo") == 2
    assert here("dataset", "show", "mine") == 3
    assert here("dataset", "fetch", "lichess", "2012-01") == 4


def test_parts_are_proved_disjoint_and_stay(here: Any, pgn: Path) -> None:
    here("dataset", "add", pgn, "--name", "mine")
    parts = here.json("dataset", "split", "mine", "--parts", "train=0.5,test=0.5", "--seed", "1")
    assert [part["name"] for part in parts] == ["train", "test"]
    assert sum(part["games"] for part in parts) == 21
    assert "train and test share 0 games and 0 move lists" in here.err
    before = here.state()
    assert here("dataset", "split", "mine", "--parts", "train=0.5,test=0.5", "--seed", "1") == 0
    assert re.search(r"^mine:train +\d+ +50.0$", here.out, re.M)  # as commands accept it; no bounds of a hash
    assert here.json("dataset", "split", "mine", "--parts", "train=0.5,test=0.5", "--seed", "1") == parts
    assert here("dataset", "split", "mine", "--parts", "train=0.5,test=0.5", "--seed", "2") == 4
    assert "train-2" in here.err
    assert here.state() == before
    assert here.json("dataset", "show", "mine")["parts"] == sorted(parts, key=lambda part: -len(part["name"]))


def test_verify_tells_damage(here: Any, pgn: Path) -> None:
    artifact = here.json("dataset", "add", pgn, "--name", "mine")["artifact"]
    assert here.json("dataset", "verify", "mine") == {"games": 21, "replayed": 21, "ok": True, "problems": []}
    path = here.folder / ".chessreg" / "store" / "artifacts" / artifact[:2] / artifact / "games.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert here("dataset", "verify", "mine") == 1
    assert "games.parquet has changed" in here.err


def test_words_about_a_dataset(here: Any, pgn: Path) -> None:
    here("dataset", "add", pgn, "--name", "mine")
    assert here("dataset", "tag", "mine", "paper") == 0
    assert here("dataset", "note", "mine", "from the club") == 0
    assert here("dataset", "name", "mine", "club") == 0
    row = here.json("dataset", "show", "club")
    assert (row["tags"], row["notes"]) == (["paper"], ["from the club"])
    assert here("dataset", "untag", "club", "paper") == 0
    assert here("dataset", "archive", "club") == 0
    assert here.json("dataset", "list") == []
    assert here.json("dataset", "list", "--all")[0]["archived"] is True
    assert here("dataset", "restore", "club") == 0
    assert here.json("dataset", "list")[0]["tags"] == []
    assert here("dataset", "restore", "club") == 3


def test_ctrl_c_leaves_nothing(here: Any, tmp_path: Path) -> None:
    big = tmp_path / "big.pgn"
    big.write_text("".join(map(game, range(2000))) * 150)
    before = here.state()
    process = subprocess.Popen([*COMMAND, "dataset", "add", str(big)], stderr=subprocess.PIPE, text=True)
    staging = here.folder / ".chessreg" / "store" / "tmp"
    deadline = time.monotonic() + 300
    while not list(staging.glob("dataset~*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    # -2, which a shell shows as 130 too: Python's own end where the signal came amid an import that compiles text
    assert process.returncode in (130, -signal.SIGINT), said
    assert said.strip() == "interrupted"
    assert here.state() == before
    assert not list(staging.iterdir())


def test_a_disk_that_takes_no_more_leaves_nothing(here: Any, tmp_path: Path) -> None:
    """The limit on the size of a file simulates a full disk: the same write fails, with another errno."""
    many = tmp_path / "many.pgn"
    many.write_text("".join(game(n, f"{MOVES[n % 7]}") for n in range(2500)))
    before = here.state()
    small = 34_000  # above the 32 KiB of SQLite's shared memory

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))

    done = subprocess.run(
        [*COMMAND, "dataset", "add", str(many)],
        preexec_fn=limit,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python 3.11 would leave bytecode cut off at `small`
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert here.state() == before
    assert not list((here.folder / ".chessreg" / "store" / "tmp").iterdir())
    assert here("dataset", "add", many) == 0


def obey_modes() -> None:
    """In a child process: give up root's right to write past a file's mode, where there is one."""
    if sys.platform == "linux" and os.geteuid() == 0:
        import ctypes

        drop_from_bounding_set, dac_override = 24, 1
        ctypes.CDLL(None).prctl(drop_from_bounding_set, dac_override, 0, 0, 0)


def test_a_read_only_registry_is_refused_before_any_work(here: Any, pgn: Path) -> None:
    place = here.folder / ".chessreg"
    before = here.state()
    content = (place / "registry.db").read_bytes()
    (place / "registry.db").chmod(0o444)
    place.chmod(0o555)
    try:
        if subprocess.run(["touch", place / "probe"], preexec_fn=obey_modes, capture_output=True).returncode == 0:
            pytest.skip("no file mode stops this user")
        command = [*COMMAND, "dataset", "add", str(pgn), "--name", "mine"]
        done = subprocess.run(command, preexec_fn=obey_modes, capture_output=True, text=True)
    finally:
        place.chmod(0o755)
        (place / "registry.db").chmod(0o644)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the registry")
    assert "read-only" in done.stderr
    assert "Traceback" not in done.stderr
    assert (place / "registry.db").read_bytes() == content
    assert here.state() == before


# -- from elsewhere ---------------------------------------------------------------------------------------------------


class Months(http.server.SimpleHTTPRequestHandler):
    """A local server with the layout of database.lichess.org."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def lichess(tmp_path: Path, pgn: Path) -> Iterator[str]:
    folder = tmp_path / "www" / "standard"
    folder.mkdir(parents=True)
    month = folder / "lichess_db_standard_rated_2013-01.pgn.zst"
    month.write_bytes(zstandard.compress(pgn.read_bytes()))
    digest = hashlib.sha256(month.read_bytes()).hexdigest()
    (folder / "sha256sums.txt").write_text(f"{digest}  {month.name}\n{'0' * 64}  {month.name.replace('-01', '-02')}\n")
    (folder / month.name.replace("-01", "-02")).write_bytes(b"not what was promised")

    def handler(*args: Any) -> Months:
        return Months(*args, directory=str(tmp_path / "www"))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_month_is_fetched_checked_and_added(here: Any, lichess: str) -> None:
    made = here.json("dataset", "fetch", "lichess", "2013-01", "--base-url", lichess, "--name", "january")
    assert (made["name"], made["games"], made["rating_scale"], made["licence"]) == ("january", 21, "lichess", "CC0-1.0")
    assert not list((here.folder / ".chessreg" / "store" / "downloads").iterdir())
    before = here.state()
    assert here("dataset", "fetch", "lichess", "2013-02", "--base-url", lichess) == 4
    assert "is damaged" in here.err
    assert here("dataset", "fetch", "lichess", "2013-03", "--base-url", lichess) == 3
    assert here.state() == before


def test_a_month_that_does_not_arrive_makes_no_registry(here: Any, lichess: str, tmp_path: Path) -> None:
    place = ["--registry", tmp_path / "new" / "registry.db"]
    assert here("dataset", "fetch", "lichess", "2013-02", "--base-url", lichess, *place) == 4
    assert here("dataset", "fetch", "lichess", "2013-03", "--base-url", lichess, *place) == 3
    assert not (tmp_path / "new").exists()
    assert here("dataset", "fetch", "lichess", "2013-01", "--base-url", lichess, *place) == 0
    assert "made the registry" in here.err


@pytest.mark.skipif(shutil.which("stockfish", path="/usr/games:" + os.environ["PATH"]) is None, reason="no Stockfish")
def test_generated_games_are_added_with_the_engine_that_played_them(here: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept.pgn"
    made = here.json(
        *("dataset", "generate", "--games", "4", "--levels", "0-1", "--search-nodes", "5", "--max-plies", "12"),
        *("--seed", "3", "--processes", "1", "--name", "engines", "--pgn", kept),
    )  # fmt: skip
    assert (made["games"], made["rating_scale"]) == (4, "stockfish")
    generated = made["report"]["generated"]
    assert (generated["levels"], generated["nodes"], generated["seed"]) == ([0, 1], 5, 3)
    assert len(generated["sha256"]) == 64
    assert kept.read_text().count("[Event ") == 4
    assert here("dataset", "generate", "--games", "1", "--levels", "0", "--pgn", kept) == 4
    assert here("dataset", "generate", "--games", "1", "--levels", "33") == 4
    assert here("dataset", "generate", "--games", "1", "--name", "engines") == 4
    assert not list((here.folder / ".chessreg" / "store" / "tmp").iterdir())


def test_the_defaults_of_generate_are_those_of_selfplay() -> None:
    from chessreg.cli.dataset import generate as command
    from chessreg.games.engines.selfplay import SelfPlay

    context = click.Context(command)
    options = {param.name: param for param in command.params}
    typed = {
        field.name: options[field.name].type_cast_value(context, options[field.name].get_default(context))
        for field in fields(SelfPlay)
    }
    assert SelfPlay(**typed) == SelfPlay()


def test_without_stockfish_the_command_that_installs_it_is_named(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESSREG_STOCKFISH", "no-such-engine")
    before = here.state()
    assert here("dataset", "generate", "--games", "1") == 3
    assert "install" in here.err
    assert here.state() == before


def test_the_bundled_sample(here: Any) -> None:
    from importlib.resources import files

    from chessreg.entities.bundled import SAMPLE_GAMES

    if not (files("chessreg") / "data" / SAMPLE_GAMES).is_file():
        assert here("dataset", "add", "--sample", "--name", "sample") == 3
        pytest.skip("no sample in this checkout yet")
    made = here.json("dataset", "add", "--sample", "--name", "sample")
    assert made["games"] > 1000
    assert made["rating_scale"] == "stockfish"


# -- datasets of positions ---------------------------------------------------------------------------------------------

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
AFTER = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


@pytest.fixture
def positions(tmp_path: Path) -> Path:
    path = tmp_path / "positions.csv"
    rows = "".join(
        f"{fen},{best},,g{game},{ply}\n"
        for game in range(30)
        for fen, best, ply in ((START, "e2e4", 0), (AFTER, "e7e5", 1))
    )
    path.write_text(f"fen,best,played,game_id,ply\n{rows}hello,,,,\n")
    return path


def test_positions_are_added_listed_shown_verified_and_recognised(here: Any, positions: Path) -> None:
    made = here.json("dataset", "add", positions, "--name", "boards")
    assert [made[key] for key in ("content", "games", "plies", "duplicates", "rejected")] == [
        "positions",
        30,
        60,
        58,
        1,
    ]
    assert here("dataset", "add", positions) == 0
    assert "already dataset boards" in here.err
    assert [row["content"] for row in here.json("dataset", "list")] == ["positions"]
    assert here.json("dataset", "show", "boards")["content"] == "positions"
    assert here.json("dataset", "show", "boards", "--rejects")[0]["line"] == 62
    assert here.json("dataset", "verify", "boards")["positions"] == 60


def test_positions_are_split_by_game_and_shared_boards_are_told(here: Any, positions: Path) -> None:
    here.json("dataset", "add", positions, "--name", "boards")
    parts = here.json("dataset", "split", "boards", "--parts", "fit=0.5,test=0.5")
    assert sum(part["games"] for part in parts) == 60
    assert all(part["games"] % 2 == 0 and part["games"] for part in parts)  # both positions of a game are together
    assert "fit and test share 0 positions and 2 different boards" in here.err


def test_positions_are_chosen_by_game_board_and_ply(here: Any, positions: Path, pgn: Path, tmp_path: Path) -> None:
    """--within and --exclude accept datasets of either content, and their parts; excluded games are counted."""
    here.json("dataset", "add", positions, "--name", "boards")
    game = '[Site "https://lichess.org/abcdefgh"]\n\n1. e4 e5 *\n'
    (tmp_path / "known.pgn").write_text(game)
    here.json("dataset", "add", tmp_path / "known.pgn", "--name", "known")
    file = tmp_path / "more.csv"
    other = "rnbqkbnr/pppppppp/8/8/3P4/8/PPP1PPPP/RNBQKBNR b KQkq - 0 1"
    file.write_text(f"fen,best,game_id\n{START},e2e4,abcdefgh\n{other},d7d5,abcdefgh\n{other},e7e6,other\n")
    within = here.json("dataset", "add", file, "--within", "known", "--name", "mine")
    assert (within["plies"], within["skipped"]) == (2, 1)
    unseen = here.json("dataset", "add", file, "--exclude", "boards")
    assert (unseen["plies"], unseen["skipped"]) == (2, 1)
    late = here.json("dataset", "add", file, "--exclude", "known", "--min-plies", 1)
    assert (late["plies"], late["skipped"]) == (1, 2)
    assert len({within["id"], unseen["id"], late["id"]}) == 3
    assert here("dataset", "show", "mine") == 0
    assert "skipped       1 of games outside --within" in here.out
    assert here("dataset", "add", file, "--within", "boards") == 4
    assert "no legal position (3 of games outside --within)" in here.err
    assert here("dataset", "add", pgn, "--within", "boards") == 4
    assert "these files hold games" in here.err


def test_a_bag_is_added_shown_exported_and_compared(here: Any, tmp_path: Path) -> None:
    from chessreg.games.datasets.bags import Bag, encode_record, write_bag

    shards = [tmp_path / f"test-0000{number}-of-00002_data.bag" for number in range(2)]
    write_bag(shards[0], [encode_record(START, "e2e4", 0.5), encode_record(START, "d2d4", 0.25)])
    write_bag(shards[1], [encode_record(AFTER, "e7e5", 1.0)])
    made = here.json("dataset", "add", tmp_path / "test@2_data.bag", "--name", "bench")
    assert (made["plies"], made["duplicates"]) == (3, 1)
    assert here("dataset", "show", "bench") == 0
    assert "rows with action 3, win_prob 3" in here.out
    written = here.json("dataset", "export", "bench", tmp_path / "all.bag")
    assert (written["coding"], written["records"]) == ("action_value", 3)
    assert list(Bag(tmp_path / "all.bag")) == [*Bag(shards[0]), *Bag(shards[1])]
    assert here("dataset", "export", "bench", tmp_path / "all.bag") == 4
    assert "exists already" in here.err
    assert here("dataset", "export", "bench", tmp_path / "x.bag", "--coding", "behavioral_cloning") == 4
    [board] = here.json("board", "bench:1")["boards"]
    assert board["caption"] == ["win probability after d2d4 0.250, of the side to move", "20 legal moves"]
    assert open_dataset_games(open_session()).read_page(0)[1]["result"] == "d2d4"
    shared = {row["what"]: (row["shared"], row["of"]) for row in here.json("dataset", "overlap", "bench", "bench")}
    assert shared["positions by board"] == (3, 3)
    assert shared["different boards"] == (2, 2)
    shards[1].unlink()
    assert here("dataset", "add", tmp_path / "test@2_data.bag") == 3
    assert "1 of 2 shards are missing" in here.err


def test_the_overlap_of_games_is_by_moves_and_with_positions_by_id(here: Any, pgn: Path, tmp_path: Path) -> None:
    here.json("dataset", "add", pgn, "--name", "games")
    here.json("dataset", "split", "games", "--parts", "a=0.5,b=0.5")
    same = here.json("dataset", "overlap", "games:a", "games")
    assert same[0]["shared"] == same[0]["of"] > 0
    assert [row["shared"] for row in here.json("dataset", "overlap", "games:a", "games:b")] == [0, 0]
    (tmp_path / "known.pgn").write_text('[Site "https://lichess.org/abcdefgh"]\n\n1. e4 e5 *\n')
    (tmp_path / "some.csv").write_text(f"fen,game_id\n{START},abcdefgh\n{AFTER},abcdefgh\n{AFTER},other\n")
    for name in ("known.pgn", "some.csv"):
        here.json("dataset", "add", tmp_path / name, "--name", name.partition(".")[0])
    shared = {row["what"]: (row["shared"], row["of"]) for row in here.json("dataset", "overlap", "some", "known")}
    assert shared == {"positions by game": (2, 3), "games by id": (1, 2)}
    (tmp_path / "unknown.pgn").write_text("1. e4 e5 *\n")
    here.json("dataset", "add", tmp_path / "unknown.pgn", "--name", "unknown")
    assert here("dataset", "overlap", "some", "unknown") == 4
    assert "no game of unknown has a Lichess id" in here.err


def test_a_position_is_drawn_by_its_number(here: Any, positions: Path) -> None:
    here.json("dataset", "add", positions, "--name", "boards")
    [board] = here.json("board", "boards:1")["boards"]
    assert board["fen"].startswith(AFTER.split()[0])
    assert board["title"] == "boards position 1: game g0, ply 1"
    assert here("board", "boards:1") == 0
    assert "best e7e5" in here.out
    assert here("board", "boards:60") == 3
    assert "its positions are 0 to 59" in here.err


def test_what_needs_games_refuses_positions_and_files_of_both_are_refused(
    here: Any, positions: Path, pgn: Path
) -> None:
    here.json("dataset", "add", positions, "--name", "boards")
    assert here("dataset", "add", positions, pgn) == 4
    assert "holds games, but other files hold positions" in here.err
    assert here("run", "train", "--architecture", "gpt2", "--datasets", "boards", "--dry-run") == 4
    assert "this dataset holds positions, and games are needed" in here.err
    assert here.err.count("\n") <= 2


def test_the_app_tells_a_dataset_of_positions_and_pages_through_it(here: Any, positions: Path, pgn: Path) -> None:
    made = here.json("dataset", "add", positions, "--name", "boards")
    here.json("dataset", "add", pgn, "--name", "mine")
    session = open_session()
    thing = load_entity("dataset").read_details(session, UUID(made["id"]))
    assert "30 games · 60 positions" in thing.summary
    pages = open_dataset_games(session)
    assert pages.count == 60 + 21
    rows = pages.read_page(0)
    assert (rows[1]["result"], rows[1]["plies"], rows[1]["text"][:20]) == ("e7e5", 1, AFTER[:20])
    assert rows[60]["text"].startswith("1.e4")


def test_a_list_of_games_reads_no_byte_that_it_does_not_show_and_fetches_nothing(
    here: Any, positions: Path, pgn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.json("dataset", "add", positions, "--name", "boards")
    made = here.json("dataset", "add", pgn, "--name", "mine")
    session = open_session()
    with session.database.read() as sql:
        digest = sql.get_one(tables.Dataset, UUID(made["id"])).artifact
    monkeypatch.setattr(Store, "verify", never)
    monkeypatch.setattr(transfer, "pull_items", never)
    assert open_dataset_games(session).count == 60 + 21
    file = session.store.path(digest) / "games.parquet"
    whole = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3 :])
    with pytest.raises(CorruptError, match=r"games.parquet is damaged.*chessreg dataset verify"):
        open_dataset_games(session).read_page(0)
    session.store.path(digest).rename(session.store.root / "elsewhere")
    assert open_dataset_games(session).count == 60
    assert open_dataset_games(session, UUID(made["id"])).count == 0


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("a list asked for all bytes of a dataset")


def test_games_are_exported_as_a_token_file(here: Any, pgn: Path, tmp_path: Path) -> None:
    from chessreg.encodings import get_encoding
    from chessreg.models.token_file import TokenFile

    here.json("dataset", "add", pgn, "--name", "games")
    here.json("dataset", "split", "games", "--parts", "train=0.5,test=0.5")
    path = tmp_path / "games.npz"
    made = here.json(
        "dataset", "export", "games:train", path, "--token-file", "--heldout", "games:test", "--positions", 3
    )
    assert (made["encoding"], made["positions"], made["heldout_left_out"]) == ("pgn-char-32", 3, 0)
    assert made["games"] + made["heldout"] == len(MOVES)  # once each
    assert made["duplicates_left_out"] > 0
    content = TokenFile.read(path)
    assert len(content.tokens) == made["tokens"]
    assert made["bytes"] == path.stat().st_size
    ids = np.split(content.tokens, np.cumsum(content.lengths))[0]
    assert get_encoding("pgn-char-32").decode(ids).startswith(";1.")
    assert content.source["dataset"].startswith("dataset:")
    before = here.state()
    for words, status, problem in (
        ((path, "--token-file", "--heldout", "games:test"), 4, "exists already"),
        (("--token-file",), 2, "--token-file needs --heldout DATASET: `chessreg dataset split games --parts"),
        (("--heldout", "games:test"), 2, "--heldout needs --token-file"),
        (("--token-file", "--heldout", "nothing"), 3, "dataset 'nothing' was not found"),
        (("--token-file", "--heldout", "games:test", "--format", "bag"), 2, "leave them out with --token-file"),
        (("--token-file", "--heldout", "games:test", "--encoding", "fen-77"), 2, "writes positions"),
        (("--token-file", "--heldout", "games:test", "--encoding", "morse"), 3, "encoding 'morse' does not exist"),
        (("games.txt", "--token-file", "--heldout", "games:test"), 4, "does not end in .npz"),
        ((tmp_path / "no" / "x.npz", "--token-file", "--heldout", "games:test"), 3, "does not exist"),
    ):
        assert here("dataset", "export", "games", *words) == status
        assert problem in here.err
    assert here.state() == before
