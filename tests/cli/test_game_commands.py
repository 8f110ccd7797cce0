"""`chessreg game` and `chessreg board`."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import chess
import chess.pgn
import pytest

from chessreg.cli.root import run_command_line
from chessreg.encodings.pgn_char import PgnChar
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.decoding.legal import MoveDistribution, score_legal_moves
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.language_model import LanguageModel

PLAY = ["run", "play", "--checkpoint", "tiny", "--opponent", "random", "--adjudication", "none", "--threads", "1"]
PLAY += ["--device", "cpu", "--opening", "random:3", "--opening-seed", "7"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model, which plays legal moves under the policy legal and forfeits otherwise."""
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    model = make_random_gpt2(GPT2Config(n_layer=1, n_head=2, n_embd=16, block_size=256, vocab_size=32), 0)
    save_checkpoint(model, folder, CheckpointInfo.from_network(model, PgnChar.name, source={"format": "test"}))
    return folder


@pytest.fixture(scope="module")
def matches(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a `.chessreg` folder with two matches: `legal` of three games, `free` of two that end in forfeits."""
    folder = tmp_path_factory.mktemp("matches") / ".chessreg"
    place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
    for line in (
        ["import", "checkpoint", str(checkpoint), "--name", "tiny"],
        [*PLAY, "--games", "3", "--policy", "legal", "--move-limit", "3", "--name", "legal"],
        [*PLAY, "--games", "2", "--policy", "retry:2", "--color", "black", "--name", "free"],
    ):
        assert run_command_line([*place, *line]) == 0
    return folder


@pytest.fixture
def played(here, matches):
    """`here` with a copy of the two matches."""
    shutil.rmtree(here.folder / ".chessreg")
    shutil.copytree(matches, here.folder / ".chessreg")
    return here


def test_games_are_listed_with_what_their_match_says(played):
    rows = played.json("game", "list")
    assert [(row["name"], row["unit"]) for row in rows] == [
        ("legal", 0),
        ("legal", 1),
        ("legal", 2),
        ("free", 0),
        ("free", 1),
    ]
    assert {row["player"] for row in rows} == {"tiny"}
    assert [row["termination"] for row in rows] == ["move_limit"] * 3 + ["forfeit_illegal"] * 2
    assert rows[0]["opponent"] == "random"
    assert "moves" not in rows[0]
    assert len(played.json("game", "list", "--run", "free")) == 2
    assert [row["unit"] for row in played.json("game", "list", "--last", "1")] == [1]
    assert played("game", "list") == 0
    assert "forfeit_illegal" in played.out


def test_no_games_yet_is_an_empty_list(here):
    assert here.json("game", "list") == []


def test_a_game_is_shown_in_full(played):
    game = played.json("game", "show", "free", 1)
    assert (game["result"], game["turns"], game["tries"]) == ("1-0", 1, [2])
    assert [row["number"] for row in game["illegal_attempts"]] == [0, 1]
    assert game["match"]["color"] == "black"
    assert len(game["moves"]) == len(game["sans"]) == game["plies"]
    assert played("game", "show", "free", 1) == 0
    assert '[Black "tiny"]' in played.out
    assert "found no legal move and forfeits" in played.out


def test_a_game_that_is_not_there(played):
    assert played("game", "show", "free", 9) == 3
    assert "has no game 9" in played.err
    assert played("game", "show", "nobody", 0) == 3


def test_exported_games_are_what_python_chess_reads(played, tmp_path):
    path = tmp_path / "legal.pgn"
    assert played("game", "export", "legal", "--pgn", path) == 0, played.err
    text = path.read_text()
    file = io.StringIO(text)
    games = list(iter(lambda: chess.pgn.read_game(file), None))
    assert len(games) == 3
    for unit, game in enumerate(games):
        assert not game.errors
        stored = played.json("game", "show", "legal", unit)
        assert [move.uci() for move in game.mainline_moves()] == stored["moves"]
        assert game.headers["White"] == game.headers["Model"] == "tiny"
        assert game.headers["Black"] == game.headers["Engine"] == "random"
        assert (game.headers["Intervention"], game.headers["Opening"]) == ("none", "random:3")
        assert game.headers["Seeds"] == f"play 0, opening 7, opening number {unit}"
        assert game.headers["Result"] == "*"
        assert game.headers["Termination"] == "adjudication"


def test_illegal_tries_are_comments(played, tmp_path):
    path = tmp_path / "free.pgn"
    assert played.json("game", "export", "free", "--pgn", path) == {"path": str(path), "games": 2}
    game = chess.pgn.read_game(io.StringIO(path.read_text()))
    texts = [row["text"] for row in played.json("game", "show", "free", 0)["illegal_attempts"]]
    comment = " ".join(game.end().comment.split())
    assert comment.startswith("Black to move; illegal: ")
    assert all(" ".join(text.split()) in comment for text in texts)


PROBABILITIES = re.compile(r"p=(\d\.\d{4}) legal=(\d\.\d{4})(?: best=(\S+) (\d\.\d{4}))?")


@pytest.mark.parametrize("batch_games", [2, 32])
def test_the_probabilities_of_the_model_are_comments_of_its_moves(
    played, checkpoint, tmp_path, monkeypatch, batch_games
):
    monkeypatch.setattr("chessreg.lab.annotate.BATCH_GAMES", batch_games)
    path = tmp_path / "commented.pgn"
    assert played("game", "export", "legal", "--pgn", path, "--probabilities") == 0, played.err
    model = LanguageModel.load(checkpoint)
    with path.open() as file:
        games = list(iter(lambda: chess.pgn.read_game(file), None))
    assert len(games) == 3
    compared = 0
    for unit, game in enumerate(games):
        color, opening = chess.WHITE, played.json("game", "show", "legal", unit)["opening_plies"]
        for node in game.mainline():
            board = node.parent.board()
            if board.turn != color or board.ply() < opening:
                assert not node.comment
                continue
            match = PROBABILITIES.fullmatch(node.comment)
            assert match, node.comment
            session = DecodingSession(model, 1)
            session.sync([model.encoding.prompt(board)])
            [logprobs] = score_legal_moves(session, [board], model.encoding)
            known = MoveDistribution(logprobs)
            shares = known.shares()
            assert float(match[1]) == pytest.approx(shares[node.move.uci()], abs=1e-4)
            assert float(match[2]) == pytest.approx(known.legal_mass, abs=1e-4)
            best = max(shares, key=shares.get)
            assert (match[3] is None) == (shares[best] == shares[node.move.uci()])
            if match[3]:
                assert board.parse_san(match[3]).uci() == best
                assert float(match[4]) == pytest.approx(shares[best], abs=1e-4)
            compared += 1
    assert compared == 9


def test_imported_games_have_no_probabilities(here, tmp_path):
    source, path = tmp_path / "other.pgn", tmp_path / "out.pgn"
    source.write_text('[White "a"]\n[Black "b"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Ke7 3. Qxe5# 1-0\n' * 2)
    assert here("import", "results", source, "--players", "a", "--name", "other") == 0, here.err
    assert here("game", "export", "other", "--pgn", path, "--probabilities") == 4, here.err
    assert "external model" in here.err
    assert not path.exists()


@pytest.mark.slow
def test_the_games_behind_a_query_are_exported(played, tmp_path):
    path = tmp_path / "query.pgn"
    table = played.json("query", "elo by intervention")["rows"]
    row = next(n for n, row in enumerate(table, 1) if row["policy"] == "legal")
    assert played.json("game", "export", "elo by intervention", "--row", row, "--pgn", path)["games"] == 3
    assert played.json("game", "export", "elo by intervention", "--pgn", path)["games"] == 5
    assert path.read_text().count("[Event ") == 5


@pytest.mark.parametrize(
    ("source", "code"),
    [("nobody", 3), ("no such query", 3), ("probe accuracy by layer", 3), ("nobody --row", 3)],
)
def test_what_has_no_games_is_not_exported(played, tmp_path, source, code):
    path = tmp_path / "none.pgn"
    more = ["--row", 1] if source.endswith("--row") else []
    assert played("game", "export", source.removesuffix(" --row"), "--pgn", path, *more) == code
    assert played.err.startswith("error: ")
    assert not path.exists()


def test_a_board_is_drawn_at_a_ply(played, tmp_path):
    game = played.json("game", "show", "legal", 1)
    board = chess.Board()
    for move in game["moves"][:5]:
        board.push_uci(move)
    assert played.json("board", "legal:1", "--ply", 5)["boards"][0]["fen"] == board.board_fen()
    assert played("board", "legal/1", "--ply", 5) == 0
    assert game["sans"][4] in played.out
    for move in game["moves"][5:]:
        board.push_uci(move)
    assert played.json("board", "legal:1")["boards"][0]["fen"] == board.board_fen()
    assert played.json("board", "legal") == played.json("board", "legal:0")
    path = tmp_path / "board.svg"
    assert played("board", "legal:1", "--ply", -1, "--svg", path) == 0
    assert path.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["legal:1", "--ply", "99"], 4, "no board at ply 99"),
        (["legal:7"], 3, "no row of unit 7"),
        (["legal:one"], 4, "is not a game reference"),
        (["nobody:1"], 3, "nobody"),
        (["nobody"], 3, "nobody"),
        (["legal:1", "--ply", "1", "--svg", "no/such/folder.svg"], 4, "cannot write"),
    ],
)
def test_a_board_that_cannot_be_drawn(played, arguments, code, said):
    assert played("board", *arguments) == code
    assert said in played.err


def test_the_boards_of_any_kind_are_drawn(here):
    toy = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
    assert here("run", toy, "--positions", 3, "--name", "toy") == 0, here.err
    assert here("board", "toy:2") == 0, here.err
    assert len(here.json("board", "toy:2")["boards"]) == 1
