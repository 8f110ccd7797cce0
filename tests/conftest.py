"""Fixtures for every floor."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import uuid4

import chess
import chess.pgn
import pytest
from sqlalchemy import Engine

from chessreg.noise import generator
from chessreg.registry import migrations, sqlite
from chessreg.registry.engines import Place
from chessreg.runs.attempt import RunReport
from chessreg.runs.kind import Kind, kind
from chessreg.session import Session, open_session

from .forked import FORKED

TOY = str(Path(__file__).parent / "kinds" / "toy_kind.py")

# What a test trusts is no setting of whoever runs the tests; subprocesses see the same.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="chessreg-config-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
# Tiny matrices, and as many tests at once as there are cores: a second thread only waits, the longer the busier.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a test starts finds chessreg compiled, also on a machine where Python shall not keep what it compiles.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in a shell's background: commands would not hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "test_architecture.py", "test_ray.py", "test_slurm.py", "test_supervisor.py", "test_rounds.py", "test_twins.py",
    "test_pictures_of_data.py", "test_pictures.py", "test_queries.py", "test_render.py", "test_stopping.py",
    "test_other_cpu.py", "test_everywhere.py", "test_every_kind.py", "test_demo.py", "test_journeys.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a worker that gets one of them last works alone."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: it need not be looked at again and again."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """pytest then collects five times what all tests have left, which takes seconds."""
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The optional real data, next to the checkout; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def empty_registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a SQLite registry that holds nothing, as the revisions make it."""
    path = tmp_path_factory.mktemp("empty") / "registry.db"
    migrations.upgrade(path)
    return path


@pytest.fixture(autouse=True)
def migrated_once(empty_registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a SQLite registry gets a copy of that one, with an id of its own, in a tenth of the time.

    Tests of how registries are made have another fixture of this name, which does nothing.
    """
    migrate, lock = migrations._migrate, threading.Lock()

    def copy(engine: Engine, place: Place, saved: Path | None) -> None:
        with lock, engine.connect() as connection, closing(sqlite.dbapi.connect(empty_registry)) as empty:
            made: Any = connection.connection.dbapi_connection
            usual = place.path is not None and made.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            if usual and migrations.status_of(engine, place).state == "empty":
                empty.backup(made)
                made.execute("UPDATE registry_state SET registry_id = ?", (uuid4().hex,))
                made.commit()
            else:
                connection.close()
                migrate(engine, place, saved)

    monkeypatch.setattr(migrations, "_migrate", copy)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """An empty registry and its store, open."""
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def toy() -> Kind:
    """The kind of one file."""
    return kind(TOY)


@pytest.fixture
def run_toy(session: Session, toy: Kind) -> Callable[..., RunReport]:
    """Run the toy with these settings."""
    return lambda **settings: session.run(toy.spec(**settings), kind=TOY)


def random_game(number: int, plies: int = 44, world: str = "kinds world") -> chess.pgn.Game:
    """Random legal moves, with ratings; each world has its own."""
    random, board = generator(world, number), chess.Board()
    game = chess.pgn.Game()
    game.headers.update({"WhiteElo": str(1000 + 40 * number), "BlackElo": "1500", "Result": "*"})
    node: chess.pgn.GameNode = game
    while len(board.move_stack) < plies and not board.is_game_over():
        move = random.choice(list(board.legal_moves))
        board.push(move)
        node = node.add_variation(move)
    return game


def match_of_two() -> str:
    """A PGN of short finished games of one model against one level of Stockfish."""
    movetexts = {
        "1-0": "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 1-0",
        "0-1": "1. f3 e5 2. g4 Qh4# 0-1",
        "1/2-1/2": "1. e4 e5 1/2-1/2",
    }
    order = ("1-0", "0-1", "0-1", "1/2-1/2", "1-0", "0-1")
    tags = '[White "model"]\n[Black "Stockfish 0 (nodes=100)"]\n[Round "{}"]\n[Result "{}"]\n\n{}\n\n'
    return "".join(tags.format(n, result, movetexts[result]) for n, result in enumerate(order))


@pytest.fixture(scope="session")
def pristine_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a registry and a store in which `sample`, `reference`, `reference-fit`, … exist: to be copied.

    The names are those of the kinds' examples: `chessreg demo` makes the same things, larger.
    """
    from chessreg.entities.adding import add_dataset
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.entities.dataset import split_dataset
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.imported.games import ImportedGamesSpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.experiments.vector import VectorSpec
    from chessreg.models.adapters.gpt2 import GPT2Config, random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    root = tmp_path_factory.mktemp("world")
    (root / "games.pgn").write_text("".join(f"{random_game(n)}\n\n" for n in range(60)))
    twin = random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=1023, vocab_size=32), seed=0)
    save_checkpoint(twin, root / "twin", CheckpointInfo.of(twin, "pgn-char-32"))
    with open_session(str(root / "registry.db"), root / "store") as session:
        add_dataset(session.database, session.store, [root / "games.pgn"], name="sample")
        split_dataset(session.database, session.store, "sample", "fit=0.6,test=0.4", seed=0)
        import_checkpoint(session.database, session.store, root / "twin", name="reference")
        for part in ("fit", "test"):
            spec = CacheSpec(checkpoint="reference", dataset=f"sample:{part}", last=16)
            session.run(spec, name=f"reference-{part}")
        session.run(ProbeSpec(cache="reference-fit", epochs=1), name="reference-board")
        session.run(VectorSpec(cache="reference-fit", first_ply=6), name="skill")
        (root / "plain.pgn").write_text(match_of_two())
        session.run(ImportedGamesSpec(file=str(root / "plain.pgn")), name="plain")  # the demo plays its `plain`
    return root


@pytest.fixture(scope="module")
def world(pristine_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That folder, of one file of tests alone: what these add to it no other sees."""
    return Path(shutil.copytree(pristine_world, tmp_path_factory.mktemp("of-module") / "world"))


@pytest.fixture
def world_session(world: Path) -> Iterator[Session]:
    """The world's registry and store, open."""
    with open_session(str(world / "registry.db"), world / "store") as opened:
        yield opened


COMMAND = """
import os, sys
from chessreg.cli.root import run_command_line
for stream, path in ((1, os.devnull), (2, said)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
sys.exit(run_command_line(words))
"""


@pytest.fixture(scope="session")
def spawn() -> Callable[..., BaseProcess]:
    """Start a chessreg command in a process of its own, to be killed or interrupted; its stderr goes into a file.

    It is forked from a process that has imported what runs need and done nothing else: seconds less than a new one.
    """

    def start(words: list[str], said: Path | str = os.devnull) -> BaseProcess:
        process = FORKED.Process(target=exec, args=(COMMAND, {"words": words, "said": str(said)}))
        process.start()
        return process

    return start
