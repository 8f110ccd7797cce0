"""`chessreg uci`: the protocol line by line, real games of real processes, and misuse by a GUI."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chess
import chess.engine
import numpy as np
import pytest
import torch

from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import NotFoundError
from chessreg.experiments.play import PlaySpec
from chessreg.games.boards.typed import find_shortest_game
from chessreg.games.engines.opponents import find_stockfish
from chessreg.lab.player import LabPlayer
from chessreg.lab.uci import MAX_LINE_BYTES, UciEngine, UciSettings, read_input_lines
from chessreg.models.decoding.legal import MoveDistribution, score_legal_moves
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.decoding.values import score_moves
from chessreg.models.edits import ResidualEdit
from chessreg.models.importers import UnrecordedSettings
from chessreg.registry import tables
from chessreg.session import Session, open_session
from tests.language_models import bring_in

MODELS = {
    "pgn-char-32": "reference",
    "uci-square-72": "uci-square-72-gpt2",
    "fen-77": "fen-77-bidirectional-fen-encoder",
    "prompt": "prompt-llama",
}
HISTORIES = ("pgn-char-32", "uci-square-72")
SPOKEN = re.compile(r"id (name|author) .+|option name .+|uciok|readyok|info .+|bestmove (\(none\)|[a-h1-8]{4}[qrbn]?)")
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
BARE = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"


@pytest.fixture(scope="module")
def session(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The world with a model of each encoding."""
    folder = tmp_path_factory.mktemp("engines")
    with open_session(str(world / "registry.db"), world / "store") as opened:
        for name, called in MODELS.items():
            if called != "reference":
                bring_in(opened, name, called.removeprefix(f"{name}-"), folder / called)
        yield opened


class Talk:
    """An engine that is spoken to line by line; both of its threads are this one."""

    def __init__(self, session: Session, name: str = "pgn-char-32") -> None:
        self.said: list[str] = []
        called = MODELS.get(name, name)
        player = LabPlayer(session.inputs, called, "cpu", 1)
        self.engine = UciEngine(player, called, self.said.append, UciSettings())

    def __call__(self, *lines: str) -> list[str]:
        """The answers to these lines, which are all read before anything is done."""
        self.said.clear()
        for line in lines:
            self.engine.hear(line)
        while not self.engine.work.empty():
            job = self.engine.work.get()
            assert job is not None
            job()
        assert all(SPOKEN.fullmatch(line) for line in self.said), self.said
        return list(self.said)

    def best(self, *lines: str) -> str:
        return self(*lines)[-1].removeprefix("bestmove ")

    def shares(self, *lines: str) -> dict[str, float]:
        """{move: p} of all legal moves, or of the moves in `go searchmoves`."""
        asked = lines if lines[-1].startswith("go") else (*lines, "go")
        said = self("setoption name MultiPV value 218", *asked)
        found = [re.fullmatch(r"info .* pv (\S+) string p=([\d.]+)", line) for line in said]
        return {match[1]: float(match[2]) for match in found if match}


@pytest.fixture
def talk(session: Session) -> Callable[..., Talk]:
    return lambda name="pgn-char-32": Talk(session, name)


# -- the protocol, line by line ----------------------------------------------------------------------------------


def test_a_model_of_values_plays_by_its_probabilities_or_by_the_highest_return(session: Session, talk: Any) -> None:
    for name in ("action-value", "behavioral-cloning"):
        path = Path(__file__).parents[1] / "fixtures" / "searchless_chess" / f"{name}.npz"
        import_checkpoint(
            session.database, session.store, path, name=name, unrecorded_settings=UnrecordedSettings(heads=2)
        )
    engine, board = talk("action-value"), chess.Board(AFTER_E4)
    assert "option name Policy type combo default legal var legal var trie var retry:5 var free var value" in engine(
        "uci"
    )
    [values] = score_moves(session.model("action-value"), [board])
    best = values.moves[int(values.returns.argmax())].uci()
    assert engine.best("setoption name Policy value value", f"position fen {AFTER_E4}", "go") == best
    assert set(engine.shares("setoption name Policy value legal", f"position fen {AFTER_E4}")) == {
        move.uci() for move in board.legal_moves
    }
    said = talk("behavioral-cloning")("setoption name Policy value value", f"position fen {AFTER_E4}", "go")
    assert any("value" in line and line.startswith("info string") for line in said), said
    assert chess.Move.from_uci(said[-1].removeprefix("bestmove ")) in board.legal_moves


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "policy", ["legal", "free", *(pytest.param(name, marks=pytest.mark.slow) for name in ("trie", "retry:2"))]
)
def test_every_encoding_plays_legal_moves_by_every_policy(talk: Any, name: str, policy: str) -> None:
    engine, board = talk(name), chess.Board()
    engine("uci", f"setoption name Policy value {policy}", "setoption name Temperature value own", "ucinewgame")
    while len(board.move_stack) < 6:
        moves = " ".join(move.uci() for move in board.move_stack)
        said = engine(f"position startpos moves {moves}" if moves else "position startpos", "go movetime 1")
        board.push_uci(said[-1].removeprefix("bestmove "))  # raises for a move that is not legal
        fallen = any("fallback legal" in line for line in said)
        assert fallen or policy in ("legal", "trie") or all("wrote" not in line for line in said)
    if policy == "free":
        assert fallen, "random weights write a legal move at every turn?"


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_are_those_of_the_model_over_the_legal_moves(session: Session, talk: Any, name: str) -> None:
    board = chess.Board()
    for move in ("e2e4", "d7d5"):
        board.push_uci(move)
    model, logprobs = session.model(MODELS[name]), {}
    prompt = model.encoding.prompt(board)
    for move, ids in model.encoding.answers(board).items():  # each token by a separate pass
        logprobs[move.uci()] = 0.0
        for depth, token in enumerate(ids):
            logits = model.logits(torch.tensor([[*prompt, *ids[:depth]]]))[0, -1].double()
            logprobs[move.uci()] += float(torch.log_softmax(logits, -1)[token])
    weights = np.exp(list(logprobs.values()))
    engine = talk(name)
    shares = engine.shares("position startpos moves e2e4 d7d5")
    assert shares == pytest.approx(dict(zip(logprobs, weights / weights.sum(), strict=True)), abs=2e-4)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    mass = next(line for line in engine.said if "legal mass" in line)
    assert float(mass.rpartition(" ")[2]) == pytest.approx(weights.sum(), abs=2e-4)
    assert engine.best("go") == next(iter(shares)), "temperature 0 is the most probable"


def test_score_stands_for_the_probability_unless_it_shall_not(talk: Any) -> None:
    engine = talk()
    first = next(line for line in engine("go") if " pv " in line)
    share = float(first.rpartition("p=")[2])
    assert f" score cp {round(100 * share)} " in first
    assert not any("score" in line for line in engine("setoption name ProbabilityAsScore value false", "go"))


COMPLIANCE = (
    ("ucinewgame", "position startpos"),
    ("position fen 3r2k1/p5n1/1pq1p2p/2p3p1/2P1P1n1/1P1P2pP/PN1Q2K1/5R2 w - - 0 27",),
    ("go wtime 100",),
    ("go btime 100",),
    ("go wtime 100 winc 100 btime 100 binc 100",),
    ("go btime 100 binc 100 wtime 100 winc 100",),
    ("ucinewgame", "position startpos"),
    ("go wtime 100 btime 100",),
    ("position startpos moves e2e4 e7e5",),
    ("go wtime 100 btime 100",),
)  # the steps of fastchess's compliance check


@pytest.mark.parametrize("name", MODELS)
def test_the_steps_of_fastchess_compliance_check_pass(talk: Any, name: str) -> None:
    engine = talk(name)
    greeting = engine("uci")
    assert {line.split()[1] for line in greeting if line.startswith("id ")} == {"name", "author"}
    assert greeting[-1] == "uciok"
    for lines in COMPLIANCE:
        if not lines[-1].startswith("go"):
            assert engine(*lines, "isready")[-1] == "readyok"
            continue
        *before, best = engine(*lines)
        assert re.fullmatch(r"bestmove [a-h1-8]{4}[qrbn]?", best)
        last = [line for line in before if line.startswith("info ")][-1]
        assert re.search(r" score cp -?\d+ ", last), before
        assert re.search(r" depth \d+ .* time \d+ pv [a-h1-8]{4}", last), before


def test_positions_are_read_as_guis_write_them(talk: Any) -> None:
    engine = talk("fen-77")
    castled = "e2e4 e7e5 g1f3 g8f6 f1c4 f8c5"
    for word in ("e1g1", "e1h1"):
        engine(f"position startpos moves {castled} {word} e8{word[2]}8")
        assert engine.engine._board.board_fen() == "rnbq1rk1/pppp1ppp/5n2/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQ1RK1"
    assert engine.best("position fen 8/P7/8/8/8/8/8/k1K5 w - - 0 1", "go searchmoves a7a8n") == "a7a8n"
    every = engine.shares("position startpos")
    assert engine.shares("position startpos", "go searchmoves a2a3 g1f3") == {
        uci: share for uci, share in every.items() if uci in ("a2a3", "g1f3")
    }
    shares = engine.shares("  position  startpos\tmoves e2e4\r")
    assert set(shares) == {move.uci() for move in chess.Board(AFTER_E4).legal_moves}
    shares = engine.shares("position fen r3k2r/8/8/8/8/8/8/4K3 w KQkq e6 0 1")  # no castling, no en passant
    assert set(shares) == {move.uci() for move in chess.Board("r3k2r/8/8/8/8/8/8/4K3 w kq - 0 1").legal_moves}
    engine("position fen r3k2r/8/8/8/8/8/8/R3K2R b HAha - 0 1")  # the usual rooks, by their files
    assert engine.engine._board.fen() == "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1"


def test_castling_of_chess960_is_refused(talk: Any) -> None:
    engine = talk("fen-77")
    [said] = engine("position fen bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9")
    assert said.startswith("info string invalid position: castling HFhf in 'bqnb1rkr")
    assert "Chess960" in said
    assert engine.best("go") == "(none)"


def test_a_move_that_is_not_legal_leaves_the_position_before_it(talk: Any) -> None:
    engine = talk("fen-77")
    for bad in ("e2e5", "0000", "xyz", "e7e8q", "\x1b[2J"):
        said = engine(f"position startpos moves e2e4 {bad} e7e5")
        assert len(said) == 1
        assert "is not legal in rnbqkbnr/pppppppp/8/8/4P3" in said[0]
        assert said[0].isprintable()
        assert engine.engine._board.fen() == chess.Board(engine.engine._board.fen()).fen()
        assert chess.Move.from_uci(engine.best("go")) in engine.engine._board.legal_moves


def test_where_there_is_no_move_bestmove_is_none(talk: Any) -> None:
    engine = talk()
    assert engine("position startpos moves f2f3 e7e5 g2g4 d8h4", "go") == [
        "info depth 0 score mate 0",
        "bestmove (none)",
    ]
    stalemate = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
    assert engine(f"position fen {stalemate}", "go") == ["info depth 0 score cp 0", "bestmove (none)"]
    for bad in (
        "rubbish",
        "8/8/8/8/8/8/8/8 w - - 0 1",
        "kk6/8/8/8/8/8/8/K7 w - - 0 1",
        "9/8/8/8/8/8/8/8 w - - 0 1",
        "",
    ):
        assert engine(f"position fen {bad}")[0].startswith("info string invalid position:")
        assert engine("go")[-1] == "bestmove (none)", "a move of an earlier position would be legal nowhere"
    assert engine.best("position startpos", "go") != "(none)"


@pytest.mark.parametrize("name", MODELS)
def test_a_position_without_its_game_is_any_legal_move_of_a_model_of_games_and_says_so(talk: Any, name: str) -> None:
    engine = talk(name)
    said = engine(f"position fen {BARE}", "go")
    assert chess.Move.from_uci(said[-1].split()[1]) in chess.Board(BARE).legal_moves
    assert any("fallback uniform" in line for line in said) == (name in HISTORIES)
    if name in HISTORIES:
        assert "the moves that led to" in said[0]
        drawn = {engine.best(f"setoption name Seed value {seed}", "go") for seed in range(12)}
        assert len(drawn) > 2
    long = engine(f"position fen {BARE.replace('0 1', '0 1000')}", "go")
    if name == "fen-77":
        assert "counter above 999" in long[0]
    assert chess.Move.from_uci(long[-1].split()[1]) in chess.Board(BARE).legal_moves


def test_a_fen_near_the_start_is_read_as_the_shortest_game_to_it(talk: Any) -> None:
    """As tournament programs give their openings; moves behind it are read too."""
    engine, board = talk(), chess.Board()
    for move in ("d2d4", "g8f6", "c2c4"):
        board.push_uci(move)
    game = " ".join(move.uci() for move in find_shortest_game(board))
    for more in ("", " e7e6 b1c3"):
        known = engine.shares(f"position startpos moves {game}{more}")
        found = engine.shares(f"position fen {board.fen()}" + (f" moves{more}" if more else ""))
        assert found == known
        assert any("fallback shortest" in line for line in engine.said)
    assert "fallback" not in " ".join(talk("fen-77")(f"position fen {board.fen()}", "go"))


@pytest.mark.parametrize("policy", ["legal", "free", pytest.param("trie", marks=pytest.mark.slow)])
def test_a_game_longer_than_the_context_is_read_from_its_newest_moves(talk: Any, policy: str) -> None:
    engine, shuffled = talk("uci-square-72"), "g1f3 g8f6 f3g1 f6g8 " * 60
    said = engine(f"setoption name Policy value {policy}", f"position startpos moves {shuffled}", "go")
    assert "481 tokens, 446 fit" in said[0]
    assert "fallback crop" in said[0]
    assert chess.Move.from_uci(said[-1].split()[1]) in chess.Board().legal_moves
    assert not any("fallback crop" in line for line in engine("position startpos", "go"))


def test_draws_go_by_seed_game_and_ply(talk: Any) -> None:
    def line(seed: int, games: int = 1) -> list[str]:
        engine, moves = talk("fen-77"), ""
        engine("setoption name Temperature value 1", f"setoption name Seed value {seed}", *["ucinewgame"] * games)
        for _ in range(4):
            moves += " " + engine.best(f"position startpos moves{moves}", "go")
        return moves.split()

    assert line(3) == line(3)
    assert line(3) != line(4)
    assert line(3) != line(3, games=2)


def test_the_first_variation_is_the_move_that_is_played_and_a_draw_of_another_is_told(talk: Any) -> None:
    engine = talk("fen-77")
    drawn = 0
    for seed in range(8):
        said = engine("setoption name Temperature value 1", f"setoption name Seed value {seed}", "position startpos",
                      "setoption name MultiPV value 3", "go")  # fmt: skip
        best = said[-1].removeprefix("bestmove ")
        shown = [re.search(r" multipv (\d) .* pv (\S+) string p=([\d.]+)", line) for line in said]
        first, *others = [(match[2], float(match[3])) for match in shown if match]
        assert first[0] == best
        told = [line for line in said if "was drawn" in line]
        assert bool(told) == (first[1] < others[0][1])
        if told:
            drawn += 1
            assert told == [
                f"info string {best} was drawn with p={first[1]:.4f}; {others[0][0]} has p={others[0][1]:.4f}"
            ]
    assert drawn


def test_castling_that_the_board_does_not_allow_is_told(talk: Any) -> None:
    said = talk("fen-77")("position fen nrbqkbrn/pppppppp/8/8/8/8/PPPPPPPP/NRBQKBRN w KQkq - 0 1")
    assert said == [
        "info string castling KQkq is not possible in this position and is ignored; Chess960 castling is not supported"
    ]
    assert talk("fen-77")("position fen r3k2r/8/8/8/8/8/8/R3K2R b HAha - 0 1", "position startpos") == []


def test_options_that_cannot_be_stay_as_they_were(talk: Any) -> None:
    engine = talk()
    for name, value in (
        ("Policy", "greedy"), ("Policy", "retry:0"), ("Temperature", "hot"), ("Temperature", "-1"),
        ("Temperature", "nan"), ("Temperature", "1,2"), ("Seed", "-1"), ("Seed", "1e3"), ("MultiPV", "0"),
        ("MultiPV", "219"), ("Scale", "inf"), ("Layers", "x"), ("Layers", "3-1"),
        ("Intervention", "nobody"), ("Threads", "0"),
        ("ProbabilityAsScore", "maybe"), ("Hash", "16"),
    ):  # fmt: skip
        [said] = engine(f"setoption name {name} value {value}")
        assert said.startswith(f"info string {name} is unchanged: ")
        assert engine.engine.settings == UciSettings()
    assert (
        engine("setoption", "setoption name", "setoption value 3")
        == ["info string setoption name NAME value VALUE"] * 3
    )
    engine(
        "setoption name Temperature value own", "setoption name policy value retry:3", "setoption name Layers value 0-1"
    )
    lines = engine("uci")
    assert (
        "option name Policy type combo default retry:3 var legal var trie var retry:5 var free var value var retry:3"
        in lines
    )
    assert "option name Layers type string default 0,1" in lines
    assert "option name Temperature type string default own" in lines


def test_the_edit_is_a_live_option(session: Session, talk: Any) -> None:
    engine, at = talk(), "position startpos moves e2e4"
    plain = engine.shares(at)
    edited = engine.shares("setoption name Intervention value skill", "setoption name Scale value 40", at)
    assert edited != plain
    model, vectors = session.model("reference"), [session.vector("skill", layer) for layer in (0, 1)]
    edits = [ResidualEdit(layer, torch.tensor(vector), 40.0) for layer, vector in enumerate(vectors)]
    fresh, board = DecodingSession(model, 1, edits), chess.Board()
    board.push_uci("e2e4")
    fresh.sync([model.encoding.prompt(board)])
    expected = MoveDistribution(score_legal_moves(fresh, [board], model.encoding)[0]).shares()
    assert edited == pytest.approx(expected, abs=1e-4)
    one = engine.shares("setoption name Layers value 1", at)
    assert one not in (plain, edited)
    assert engine.shares("setoption name Scale value 0", at) == plain
    assert engine("setoption name Scale value 40", "setoption name Layers value 7")[-1].startswith(
        "info string Layers is unchanged"
    )
    assert engine.shares(at) == one
    assert engine.shares("setoption name Intervention value <empty>", at) == plain


def test_an_intervention_of_a_match_is_played_by_its_id(session: Session, talk: Any) -> None:
    setting = {"vector": "skill", "layers": (1,), "scale": 40.0, "control": "random", "control_seed": 2}
    session.run(PlaySpec(checkpoint="reference", opponent="random", games=1, policy="legal", move_limit=1,
                         adjudication="none", intervention=setting))  # fmt: skip
    with session.database.read() as sql:
        row = sql.query(tables.Intervention).filter_by(source="random", scale=40.0).one()
    engine = talk()
    plain = engine.shares("position startpos")
    random = engine.shares(f"setoption name Intervention value {row.id.hex}", "position startpos")
    contrast = engine.shares("setoption name Intervention value skill", "setoption name Layers value 1",
                             "setoption name Scale value 40", "position startpos")  # fmt: skip
    assert len({tuple(found.items()) for found in (plain, random, contrast)}) == 3
    other = talk("uci-square-72")
    [said] = other(f"setoption name Intervention value {row.id.hex}")
    assert "another checkpoint" in said


def test_garbage_is_passed_over(talk: Any) -> None:
    engine, random = talk("fen-77"), np.random.default_rng(7)
    garbage = random.integers(0, 256, 10_000, np.uint8).tobytes().decode("utf-8", "replace").splitlines()
    assert engine(*garbage, "", " ", "go" * 1000, "isready extra words")[-1] == "readyok"
    assert engine.best("position startpos moves e2e4", "go depth x wtime y infinite", "stop") != "(none)"
    assert engine("stop", "ponderhit") == []
    assert engine("joho isready") == ["readyok"]


def test_lines_come_whole_from_any_pieces() -> None:
    read, write = os.pipe()
    os.write(write, b"uci\r\nis")
    lines = read_input_lines(read)
    assert next(lines) == "uci\r"
    os.write(write, b"ready\nposition fen \xff\xfe")
    assert next(lines) == "isready"
    os.close(write)
    assert list(lines) == ["position fen \ufffd\ufffd"]
    os.close(read)


def test_a_line_without_end_is_no_command_and_fills_no_memory(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"isready " + b"x" * (3 * MAX_LINE_BYTES) + b"\nuci\n")
    descriptor = os.open(tmp_path / "long", os.O_RDONLY)
    assert list(read_input_lines(descriptor)) == ["uci"]
    os.close(descriptor)


# -- processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(world: Path, session: Session) -> Callable[..., list[str]]:
    """The command line of an engine."""
    start = [sys.executable, "-m", "chessreg.cli", "--registry", str(world), "--store", str(world / "store"), "uci"]
    return lambda *more: [*start, *(more or ("reference",))]


@pytest.fixture(scope="module")
def plain(words: Callable[..., list[str]]) -> Iterator[chess.engine.SimpleEngine]:
    with chess.engine.SimpleEngine.popen_uci(words(), timeout=300) as engine:
        yield engine


@pytest.fixture(scope="module")
def edited(words: Callable[..., list[str]]) -> Iterator[chess.engine.SimpleEngine]:
    command = words("reference", "--intervention", "skill", "--option", "Scale=40", "--option", "Temperature=1")
    with chess.engine.SimpleEngine.popen_uci(command, timeout=300) as engine:
        yield engine


def test_a_whole_game_against_stockfish(plain: chess.engine.SimpleEngine) -> None:
    try:
        stockfish = chess.engine.SimpleEngine.popen_uci(str(find_stockfish()))
    except NotFoundError as error:
        pytest.skip(str(error))
    board, infos = chess.Board(), []
    with stockfish:
        while not board.is_game_over(claim_draw=True) and board.fullmove_number < 100:
            mover = stockfish if board.turn == chess.BLACK else plain
            played = mover.play(board, chess.engine.Limit(nodes=400), game="one", info=chess.engine.INFO_ALL)
            assert played.move in board.legal_moves
            if mover is plain:
                infos.append(played.info)
            board.push(played.move)
    assert board.is_checkmate()
    assert board.turn == chess.WHITE, "Stockfish mates random weights"
    assert all(info["pv"] and info["string"].startswith("p=") for info in infos)


def test_edited_against_plain_in_four_games(
    plain: chess.engine.SimpleEngine, edited: chess.engine.SimpleEngine
) -> None:
    assert edited.id["name"] == "chessreg reference"
    assert edited.options["Scale"].default == "40"
    assert edited.options["Intervention"].default == "skill"
    games = []
    for game in range(4):
        board = chess.Board()
        while not board.is_game_over() and len(board.move_stack) < 24:
            mover = plain if board.turn == (game % 2 == 0) else edited
            board.push(mover.play(board, chess.engine.Limit(time=0.01), game=game).move)
        games.append(board.move_stack)
    assert len({tuple(game) for game in games}) > 1
    assert all(len(game) >= 4 for game in games)


def test_analysis_lasts_until_it_is_stopped(plain: chess.engine.SimpleEngine) -> None:
    with plain.analysis(chess.Board(), multipv=3) as analysis:
        shown = {info["multipv"]: info["pv"][0] for info in (analysis.get() for _ in range(4)) if "pv" in info}
        assert analysis.would_block() or not analysis.empty()
        plain.ping()  # answered during the search
        analysis.stop()
        best = analysis.wait()
    assert len(set(shown.values())) == len(shown) >= 2
    assert best.move == shown[1]
    assert len(plain.analyse(chess.Board(), chess.engine.Limit(depth=1), multipv=20)) == 20


def test_the_greeting_needs_no_torch_and_stdout_is_the_protocol_alone(words: Callable[..., list[str]]) -> None:
    traced = [sys.executable, "-X", "importtime", *words()[1:]]
    done = subprocess.run(traced, input=b"\xff\x00garbage\nuci\nquit", capture_output=True, timeout=300, check=False)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[-1] == "uciok"
    assert all(SPOKEN.fullmatch(line) for line in lines)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "chessreg.lab.uci" in imported
    assert not imported & {"torch", "transformers", "duckdb", "textual"}


def test_the_end_of_the_input_ends_it_when_all_is_answered(words: Callable[..., list[str]], world: Path) -> None:
    before = (world / "registry.db").read_bytes()
    asked = b"position startpos\ngo infinite\nisready"  # without an end of the line
    done = subprocess.run(words(), input=asked, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert {"readyok"} < set(done.stdout.decode().splitlines())
    assert done.stdout.decode().splitlines()[-1].startswith("bestmove ")
    assert (world / "registry.db").read_bytes() == before, "a game in a GUI is not recorded"


@pytest.mark.slow
def test_streams_that_are_closed_or_full_are_one_line(words: Callable[..., list[str]]) -> None:
    line = " ".join(words())
    for redirected, message in (
        ("echo uci | {} >&-", "stdin or stdout is closed"),
        ("echo uci | {} >/dev/full", "full"),
    ):
        done = subprocess.run(redirected.format(line), shell=True, capture_output=True, timeout=300, check=False)
        assert done.returncode in (1, 4)
        assert re.fullmatch(rf"error: .*{message}.*\nhint: .*\n", done.stderr.decode())


def test_it_ends_cleanly_when_it_is_interrupted_or_nobody_listens(words: Callable[..., list[str]]) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words(), **pipes) as deaf, subprocess.Popen(words(), **pipes) as told:
        assert deaf.stdin
        assert deaf.stdout
        assert told.stdin
        deaf.stdout.close()
        deaf.stdin.write(b"uci\n")
        deaf.stdin.flush()
        assert deaf.wait(300) == 0
        told.stdin.write(b"uci\n")
        told.stdin.flush()
        assert told.stdout
        assert told.stdout.readline().startswith(b"id name")
        told.send_signal(signal.SIGINT)
        assert told.wait(300) == 130
        assert told.stderr
        assert told.stderr.read().strip() == b"interrupted"


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (("nobody",), 3, "checkpoint 'nobody' was not found"),
        (("reference", "--intervention", "nobody"), 3, "no intervention or vector run is named 'nobody'"),
        (("reference", "--option", "Seed"), 4, "--option 'Seed' has no value"),
        (("reference", "--option", "Seed=x"), 4, "--option Seed: give a whole number from 0 to"),
        (("reference", "--device", "tpu"), 4, "is not a device"),
    ],
)
def test_what_cannot_be_is_refused_before_the_protocol_begins(
    world: Path, session: Session, capfd: pytest.CaptureFixture[str], more: tuple[str, ...], code: int, message: str
) -> None:
    from chessreg.cli.root import run_command_line

    kept = os.dup(1)
    try:
        assert run_command_line(["--registry", str(world), "--store", str(world / "store"), "uci", *more]) == code
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
