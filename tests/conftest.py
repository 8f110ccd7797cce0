"""Fixtures for the tests of every layer."""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import wraps
from importlib.util import cache_from_source
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import chess
import chess.pgn
import pytest
from sqlalchemy import Engine, select
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from chessreg.noise import generator
from chessreg.queries.catalogue import Entry, list_entries
from chessreg.registry import migrations, sqlite, tables
from chessreg.registry.database import Database
from chessreg.registry.place import RegistryPlace
from chessreg.runs.attempt import RunReport
from chessreg.runs.kind import Kind, find_kind
from chessreg.session import Session, open_session

from . import skips
from .forked import FORKED

pytest.register_assert_rewrite("tests.scheduling.executors.conformance")
TOY = str(Path(__file__).parent / "kinds" / "toy_kind.py")

# Tests do not read or change the user's configuration, also in subprocesses.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="chessreg-config-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)
# Matrices are tiny and one test runs per core, so that a second thread would only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Subprocesses find compiled bytecode even if PYTHONDONTWRITEBYTECODE is set on this machine.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in a shell's background: commands would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The longest files. Files that mostly wait (for a cluster, a supervisor, a terminal) alternate with files that compute,
# because four processes may share two cores.
LONGEST = (
    "test_ray.py", "test_architecture.py", "test_slurm.py", "test_demo.py", "test_every_kind.py", "test_hub.py",
    "test_trust.py", "test_docs.py", "test_slurm_nodes.py", "test_matrix.py", "test_launch.py",
    "test_conformance.py", "test_uci.py", "test_prose.py", "test_migrations.py", "test_finetune.py",
    "test_supervisor.py", "test_mcp_server.py", "test_rounds.py", "test_dataset_commands.py", "test_elo.py",
    "test_queries.py", "test_journeys.py", "test_published.py", "test_merge.py", "test_jobs.py", "test_edit.py",
    "test_reproduce.py", "test_dry_run.py", "test_runner.py", "test_database.py", "test_engine.py",
    "test_ranks.py", "test_mirror.py", "test_everything_fits.py", "test_terminal.py", "test_command.py",
    "test_imports.py", "test_typed.py", "test_finding.py", "test_pool.py", "test_twins.py",
)  # fmt: skip
TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Fail tests that are skipped for a reason that is not listed."""
    config.pluginmanager.register(skips)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In a new checkout, let one process compile a test file while the others wait for its bytecode."""

    def compiled() -> bool:
        usual = Path(cache_from_source(str(collector.path)))
        return usual.with_name(f"{usual.stem}-pytest-{pytest.__version__}.pyc").exists()

    if "PYTEST_XDIST_WORKER" not in os.environ or not isinstance(collector, pytest.Module) or compiled():
        return (yield)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if compiled():
            fcntl.flock(lock, fcntl.LOCK_UN)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, then those of the terminal UI and of the whole system, whose tests are long as well.

    Otherwise the worker that gets one of them last runs alone.
    """

    def place(item: pytest.Item) -> tuple[int, bool]:
        name, folder = item.path.name, item.path.parent
        return LONGEST.index(name) if name in LONGEST else len(LONGEST), folder not in (TESTS, TESTS / "tui")

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects, which live to the end, from garbage collection."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Share one cache of compiled statements between all SQLite engines, because tests open thousands of registries."""
    begin, kept = Engine.__init__, LRUCache(5000)

    def alike(dialect: Any) -> tuple[Any, ...]:
        return type(dialect), dialect.dbapi, dialect.paramstyle, dialect._json_serializer, dialect._json_deserializer

    def begin_with(self: Engine, pool: Any, dialect: Any, *given: Any, **named: Any) -> None:
        begin(self, pool, dialect, *given, **named)
        if isinstance(dialect, SQLiteDialect_pysqlite):
            self._compiled_cache = kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "__init__", begin_with)
        patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda self: hash(alike(self)))
        patch.setattr(
            SQLiteDialect_pysqlite,
            "__eq__",
            lambda self, other: isinstance(other, SQLiteDialect_pysqlite) and alike(self) == alike(other),
        )
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Skip the five garbage collections that pytest runs at the end, which take seconds."""
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of optional real data next to the checkout. If it is absent, skip the test."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no ../shared/data next to the checkout")
    return folder


SHARED: dict[Path, tuple[object, dict[str, int]]] = {}  # registries that many tests read: stamp and content of each
UNCHECKED_TABLES = {"attempt", "machine", "registry_state"}  # also change when a test only reads


def stamp(registry: Path) -> object:
    """Return a value that changes with each write to the file or its log."""
    found = [file for file in (registry, registry.with_name(f"{registry.name}-wal")) if file.exists()]
    return [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in found]


def content(registry: Path) -> dict[str, int]:
    """Return a hash of the rows of each table."""
    with closing(sqlite.dbapi.connect(f"file:{registry}?mode=ro", uri=True, timeout=60)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {
            name: connection.execute(f'SELECT * FROM "{name}"').fetchall()
            for name in names
            if name not in UNCHECKED_TABLES
        }
    return {name: hash(tuple(found)) for name, found in rows.items()}


def shared(folder: Path) -> Path:
    """Return `folder` and mark its registry as shared by several tests, so that no test may change it."""
    registry = folder / "registry.db"
    SHARED[registry] = stamp(registry), content(registry)
    return folder


@pytest.fixture(autouse=True)
def shared_registries_stay_as_made() -> Iterator[None]:
    """Fail a test that changes a shared registry."""
    yield
    for registry, (before, rows) in SHARED.items():
        if (now := stamp(registry)) != before:
            SHARED[registry] = now, content(registry)
            changed = [name for name in rows if SHARED[registry][1].get(name) != rows[name]]
            assert not changed, f"this test wrote {changed} of {registry}, which others read: take a copy"


def made_once(name: str, make: Callable[[Path], None], folders: pytest.TempPathFactory) -> Path:
    """Return a folder filled by `make`. The first of several test processes calls it; each process gets a copy."""
    here = folders.getbasetemp()
    base = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    made, done = base / f"made-{name}", base / f"made-{name}.done"
    with (base / f"made-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            make(made)
            done.touch()
    find_kind(TOY)  # the process that ran it trusts it, and so must this one
    return shared(Path(shutil.copytree(made, folders.mktemp(name) / "world")))


def queries_with_runs(database: Database) -> list[Entry]:
    """Return the catalogue's queries of kinds that have run here. Others have no rows, which `test_captures` tests."""
    with database.read() as session:
        ran = {*session.scalars(select(tables.Run.kind).distinct())}
    return [entry for entry in list_entries() if not ran.isdisjoint(entry.kinds)]


@pytest.fixture(scope="session")
def empty_registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of an empty SQLite registry, as created by `chessreg init`."""
    path = tmp_path_factory.mktemp("empty") / "registry.db"
    migrations.upgrade_registry(path)
    return path


@pytest.fixture(autouse=True)
def migrated_once(empty_registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create new SQLite registries as copies of `empty_registry` with a new id, which is faster than migrating.

    Tests of the creation of registries override this fixture with an empty one.
    """
    migrate, lock = migrations._create_registry, threading.Lock()

    def copy(engine: Engine, place: RegistryPlace) -> None:
        with lock, engine.connect() as connection, closing(sqlite.dbapi.connect(empty_registry)) as empty:
            made: Any = connection.connection.dbapi_connection
            usual = place.path is not None and made.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            if usual and migrations.read_engine_schema_status(engine, place).state == "empty":
                empty.backup(made)
                made.execute("UPDATE registry_state SET registry_id = ?", (uuid4().hex,))
                made.commit()
            else:
                connection.close()
                migrate(engine, place)

    monkeypatch.setattr(migrations, "_create_registry", copy)


@pytest.fixture(autouse=True)
def checked_once() -> None:
    """Check the games of an imported checkpoint once per process: tests import the bundled models hundreds of times."""
    importers = sys.modules.get("chessreg.models.importers.registry")  # importing it here would import torch
    if importers is None or hasattr(importers.check_on_games, "__wrapped__"):
        return
    check, kept = importers.check_on_games, dict[str, Any]()

    @wraps(check)
    def check_once(model: Any) -> Any:
        digest = importers.compute_checkpoint_digest(model.folder)
        if digest not in kept:
            kept[digest] = check(model)
        return kept[digest]

    importers.check_on_games = check_once


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """An empty registry and its store, open."""
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def toy() -> Kind:
    """Return the experiment kind of `kinds/toy_kind.py`."""
    return find_kind(TOY)


@pytest.fixture
def run_toy(session: Session, toy: Kind) -> Callable[..., RunReport]:
    """Return a function that runs the toy kind with settings."""
    return lambda **settings: session.run(toy.spec(**settings), kind=TOY)


TRANSPOSED = {  # games of the world that begin with a position by several move orders, and one with its neighbour
    44: "d2d4 g8f6 c2c4 e7e6 g1f3 d7d5 b1c3 f8e7 c1g5 e8g8",
    45: "g1f3 d7d5 d2d4 g8f6 c2c4 e7e6 b1c3 f8e7 c1g5 e8g8 e2e3",
    49: "c2c4 e7e6 d2d4 d7d5 g1f3 g8f6 b1c3 f8e7 c1g5 e8g8 g2g3",
    52: "d2d4 d7d5 c2c4 e7e6 g1f3 b8c6 b1c3",
}


def random_game(number: int, plies: int = 44, world: str = "kinds world", opening: str = "") -> chess.pgn.Game:
    """Return a game of random legal moves after an opening, with ratings. It depends on `world` and `number`."""
    random, board = generator(world, number), chess.Board()
    game = chess.pgn.Game()
    game.headers.update({"WhiteElo": str(1000 + 40 * number), "BlackElo": "1500", "Result": "*"})
    node: chess.pgn.GameNode = game
    for text in opening.split():
        node = node.add_variation(board.parse_uci(text))
        board.push_uci(text)
    while len(board.move_stack) < plies and not board.is_game_over():
        move = random.choice(list(board.legal_moves))
        board.push(move)
        node = node.add_variation(move)
    return game


PLIES = (0, 1, 7, 12, 20)  # of the decisions that write_games writes


def write_games(folder: Path, name: str, numbers: range, shift: int = 0) -> None:
    """Write games with a Lichess address, and their decisions. The best move is the last unplayed one by name."""
    text, lines = [], []
    for number in numbers:
        game = random_game(number, plies=26, world="twins")
        game.headers["Site"] = f"https://lichess.org/game{number:04}"
        text.append(f"{game}\n\n")
        board = game.board()
        for ply, move in enumerate(game.mainline_moves()):
            if ply in PLIES:
                best = max(other.uci() for other in board.legal_moves if other != move)
                lines.append(f"{board.fen()},{best},{move.uci()},game{number:04},{ply + shift}\n")
            board.push(move)
    (folder / f"{name}.pgn").write_text("".join(text))
    with (folder / "decisions.csv").open("a") as file:
        file.writelines(lines)


def world_game(number: int) -> chess.pgn.Game:
    """Return game `number` of `game_world`."""
    return random_game(number, opening=TRANSPOSED.get(number, ""))


def match_of_two() -> str:
    """Return a PGN of short finished games of one model against one level of Stockfish."""
    movetexts = {
        "1-0": "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 1-0",
        "0-1": "1. f3 e5 2. g4 Qh4# 0-1",
        "1/2-1/2": "1. e4 e5 1/2-1/2",
    }
    order = ("1-0", "0-1", "0-1", "1/2-1/2", "1-0", "0-1")
    tags = '[White "model"]\n[Black "Stockfish 0 (nodes=100)"]\n[Round "{}"]\n[Result "{}"]\n\n{}\n\n'
    return "".join(tags.format(n, result, movetexts[result]) for n, result in enumerate(order))


@pytest.fixture(scope="session")
def game_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a registry and a store that contain `sample`, `reference`, `reference-fit`, …. Copy it.

    The names match the kinds' examples. `chessreg demo` makes larger objects with the same names.
    """
    return made_once("world", make_world, tmp_path_factory)


@pytest.fixture(scope="session")
def pristine_world(game_world: Path) -> Path:
    """Return the folder that `world` copies. Test folders that run the examples of all kinds use `solver_world`."""
    return game_world


def make_world(root: Path) -> None:
    from chessreg.entities.adding import add_dataset
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.entities.dataset import split_dataset
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.imported.specs import ImportedGamesSpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
    from tests.specs import vector_spec

    (root / "games.pgn").write_text("".join(f"{world_game(n)}\n\n" for n in range(60)))
    twin = make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=1023, vocab_size=32), seed=0)
    save_checkpoint(twin, root / "twin", CheckpointInfo.from_network(twin, "pgn-char-32"))
    with open_session(str(root / "registry.db"), root / "store") as session:
        add_dataset(session.database, session.store, [root / "games.pgn"], name="sample")
        split_dataset(session.database, session.store, "sample", "fit=0.6,test=0.4", seed=0)
        import_checkpoint(session.database, session.store, root / "twin", name="reference")
        for part in ("fit", "test"):
            spec = CacheSpec(checkpoint="reference", dataset=f"sample:{part}", max_sites=16)
            session.run(spec, name=f"reference-{part}")
        session.run(ProbeSpec(cache="reference-fit", epochs=1), name="reference-board")
        session.run(vector_spec(source="contrastive", cache="reference-fit", first_ply=6), name="skill")
        (root / "plain.pgn").write_text(match_of_two())
        session.run(ImportedGamesSpec(file=str(root / "plain.pgn")), name="plain")  # the demo plays its `plain`


PUZZLES = """r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1828
5rk1/1p3ppp/pq3b2/8/8/1P1Q1N2/P4PPP/3R2K1 w - - 2 27,d3d6 f8d8 d6d8 f6d8,1479
8/4R3/1p2P3/p4r2/P6p/1P3Pk1/4K3/8 w - - 1 64,e7f7 f5e5 e2f1 e5e6,1440
5k2/5ppp/8/8/8/8/8/RR4K1 b - - 0 1,f8g8 a1a8,600
5k2/5ppp/8/8/8/8/8/RR4K1 b - - 0 1000,f8g8 a1a8,610
5k2/P4ppp/8/8/8/8/8/6K1 b - - 0 40,f8e7 a7a8q,
"""


def add_uci_model(session: Session, folder: Path) -> None:
    """Add a random model of UCI squares as `uci`, with activations `uci-fit` and a probe `uci-board`."""
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    network = make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=255, vocab_size=72), seed=0)
    save_checkpoint(network, folder, CheckpointInfo.from_network(network, "uci-square-72"))
    import_checkpoint(session.database, session.store, folder, name="uci")
    session.run(
        CacheSpec(checkpoint="uci", dataset="sample:fit", sites="white-turns", games=8, max_sites=8), name="uci-fit"
    )
    session.run(ProbeSpec(cache="uci-fit", epochs=1), name="uci-board")


@pytest.fixture(scope="session")
def solver_world(game_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of `game_world` with a model of UCI squares (`uci`, its probe `uci-board`), the model of positions
    `fen`, and the dataset `puzzles`. One puzzle has a counter of four digits, which no model of positions reads."""
    from chessreg.entities.adding import add_dataset

    from .language_models import bring_in

    def make(root: Path) -> None:
        shutil.copytree(game_world, root, dirs_exist_ok=True)
        (root / "puzzles.csv").write_text(PUZZLES)
        with open_session(str(root / "registry.db"), root / "store") as session:
            with patch("chessreg.games.datasets.positions.MAX_COUNTER", 9999):
                add_dataset(session.database, session.store, [root / "puzzles.csv"], name="puzzles")
            bring_in(session, "fen-77", "bidirectional-fen-encoder", root / "fen")
            add_uci_model(session, root / "uci")

    return made_once("solver-world", make, tmp_path_factory)


@pytest.fixture(scope="module")
def world(pristine_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the world for one test file, which may change it."""
    return Path(shutil.copytree(pristine_world, tmp_path_factory.mktemp("of-module") / "world"))


@pytest.fixture
def world_session(world: Path) -> Iterator[Session]:
    """The world's registry and store, open."""
    with open_session(str(world / "registry.db"), world / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def reproduced_under_another_hash_seed() -> Callable[..., dict[str, Any]]:
    """Return a function that runs a kind under one PYTHONHASHSEED and reproduces it under another.

    It asserts that all rows and output bytes are equal, and returns the JSON of `chessreg reproduce`.
    """

    def typed(hash_seed: int, folder: Path, *words: str) -> dict[str, Any]:
        where = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
        done = subprocess.run(
            [sys.executable, "-m", "chessreg.cli", *where, *words, "--json"],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))

    def reproduced(folder: Path, *words: str) -> dict[str, Any]:
        made = typed(1, folder, "run", *words)
        again = typed(2, folder, "reproduce", made["run_id"], "--rerun")
        assert (again["columns"], again["differing"], again["outputs_differing"]) == ({}, [], [])
        assert again["same"] > 0
        return again

    return reproduced


COMMAND = """
import os, sys
from chessreg.cli.root import run_command_line
for stream, path in ((1, os.devnull), (2, said)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
sys.exit(run_command_line(words))
"""


@pytest.fixture(scope="session")
def spawn() -> Callable[..., BaseProcess]:
    """Return a function that starts a chessreg command in a separate process, with its stderr in a file.

    The process is forked from one that has already imported the modules of a run, which saves seconds.
    """

    def start(words: list[str], said: Path | str = os.devnull) -> BaseProcess:
        process = FORKED.Process(target=exec, args=(COMMAND, {"words": words, "said": str(said)}))
        process.start()
        return process

    return start
