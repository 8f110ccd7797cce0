"""A registry made by real, tiny runs, and the app on it. Nothing in a picture differs from machine to machine."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stdout, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest
from sqlalchemy import select
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.screen import Screen
from textual.worker import WorkerCancelled

from chessreg.cli.root import run_command_line
from chessreg.jobs import standing
from chessreg.jobs.executors.local import LocalExecutor
from chessreg.jobs.kind import kind
from chessreg.jobs.launch import Order, enqueue, plan
from chessreg.jobs.supervisor import Supervisor
from chessreg.noise import generator
from chessreg.registry import provenance
from chessreg.registry.process import pid_start
from chessreg.registry.tables import Job
from chessreg.session import Session, open_session
from tui import registry, show
from tui.app import ChessregApp
from tui.screens.room import Room

TESTS = Path(__file__).parent.parent
TOY = str(TESTS / "kinds" / "toy_kind.py")
GATED = str(TESTS / "jobs" / "gated_kind.py")
PATIENCE = 60.0  # seconds after which what does not come has failed
CALM = 4


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("tui"))  # one worker makes the world, once


# -- a world of real runs ---------------------------------------------------------------------------------------------


def random_games(number: int, plies: int = 40) -> Iterator[chess.pgn.Game]:
    for n in range(number):
        random, board, game = generator("tui world", n), chess.Board(), chess.pgn.Game()
        game.headers.update({"WhiteElo": str(1000 + 40 * n), "BlackElo": "1500", "Result": "*"})
        node: chess.pgn.GameNode = game
        while len(board.move_stack) < plies and not board.is_game_over():
            move = random.choice(list(board.legal_moves))
            board.push(move)
            node = node.add_variation(move)
        yield game


def bigram_checkpoint(folder: Path, texts: list[str]) -> None:
    """A one-block GPT that has the pairs of characters of game texts in its MLP: about one move in six is legal, so
    that games have retries and forfeits."""
    import torch

    from chessreg.games.tokenizers import PgnCharacters
    from chessreg.models.checkpoint import CheckpointInfo, gpt2_config, save_checkpoint
    from chessreg.models.random_twin import random_twin

    torch.set_num_threads(1)
    pgn = PgnCharacters()
    counts = np.full((pgn.size, pgn.size), 0.02)
    for text in texts:
        ids = pgn.encode(text)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    model = random_twin(gpt2_config(n_layer=1, n_head=1, n_embd=32, block_size=512, vocab_size=32, d_mlp=32), 0)
    table = torch.from_numpy(np.log(counts / counts.sum(1, keepdims=True))).float()
    block = model.transformer.h[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.wte.weight.copy_(torch.eye(32))
        block.ln_2.weight.fill_(1)
        block.mlp.c_fc.weight.copy_(10 * torch.eye(32))
        active = torch.nn.functional.gelu(10 * torch.nn.functional.layer_norm(torch.eye(32), (32,)))
        block.mlp.c_proj.weight.copy_(torch.linalg.solve(active, 10 * table - torch.eye(32)))
        model.transformer.ln_f.weight.fill_(2.5)
    save_checkpoint(model, folder, CheckpointInfo.of(model, PgnCharacters.name, source={"format": "test"}))


@contextmanager
def same_code() -> Iterator[None]:
    """Runs of one commit, also where the checkout is changed meanwhile."""
    state = {"root": "/project", "commit": "c0ffee" * 6 + "c0ff", "branch": "main", "remote": None, "patch": "",
             "untracked": {}, "left_out": {}}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "repository_state", lambda folder: state)
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with registry and store: a dataset, a model, caches, a probe, edits, two matches, the toy, and a run
    that was interrupted."""
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.edit import EditSpec
    from chessreg.experiments.play import PlayHow, PlaySpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.games.tokenizers import PgnCharacters

    root = tmp_path_factory.mktemp("tui")
    games = list(random_games(24))
    (root / "games.pgn").write_text("".join(f"{game}\n\n" for game in games))
    sans = [[node.san() for node in game.mainline()] for game in games]
    bigram_checkpoint(root / "bigram", [PgnCharacters().render(moves) + " " for moves in sans])
    play = PlaySpec(
        checkpoint="bigram", opponent="random", games=3, opening="random:6", move_limit=8, adjudication="none"
    )
    place = ["--registry", str(root / "registry.db"), "--store", str(root / "store")]
    for command in (
        ["dataset", "add", str(root / "games.pgn"), "--name", "games"],
        ["dataset", "split", "games", "--parts", "fit=0.6,test=0.4"],
        ["import", "checkpoint", str(root / "bigram"), "--name", "bigram"],
    ):
        assert run_command_line([*place, *command]) == 0
    with same_code(), open_session(str(root / "registry.db"), root / "store") as session:
        for part in ("fit", "test"):
            session.run(CacheSpec(checkpoint="bigram", dataset=f"games:{part}", games=5, last=3), name=f"cache-{part}")
        session.run(ProbeSpec(cache="cache-fit", test_cache="cache-test", epochs=1), name="board")
        edits = EditSpec(checkpoint="bigram", probe="board", dataset="games:test", games=2, spellings=False)
        session.run(edits, name="edits")
        session.run(play, PlayHow(threads=1), name="plain")
        sure = play.model_copy(update={"policy": "legal", "temperatures": (1.0,)})
        session.run(sure, PlayHow(threads=1), name="sure")
        toy = kind(TOY)
        session.run(toy.spec(positions=12), kind=TOY, name="toy")
        cut = session.run(toy.spec(positions=9, seed=1), kind=TOY, name="cut", on_progress=interrupt_at(4))
        assert cut.interrupted
        assert cut.state == "partial"
    return root


def interrupt_at(unit: int) -> Callable[[float, str], None]:
    calls = iter(range(1, 1000))

    def on_progress(fraction: float, text: str) -> None:
        if next(calls) >= unit:
            raise KeyboardInterrupt

    return on_progress


@pytest.fixture
def session(world: Path) -> Iterator[Session]:
    with open_session(str(world / "registry.db"), world / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def studied(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the world with more to compare: a longer probe, a model of three layers with its untrained twin and its
    probe, vectors and a control, legality, two trainings, and the interrupted run brought to its end."""
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.legality import LegalitySpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.experiments.skill import SkillSettings
    from chessreg.experiments.train import TrainSpec
    from chessreg.experiments.vector import VectorSpec
    from chessreg.games.tokenizers import PgnCharacters
    from chessreg.jobs import checkpoints
    from chessreg.models.checkpoint import CheckpointInfo, gpt2_config, save_checkpoint
    from chessreg.models.random_twin import random_twin

    root = tmp_path_factory.mktemp("studied") / "world"
    shutil.copytree(world, root)
    deep = random_twin(gpt2_config(n_layer=3, n_head=1, n_embd=16, block_size=512, vocab_size=32), 7)
    save_checkpoint(deep, root / "deep", CheckpointInfo.of(deep, PgnCharacters.name, source={"format": "test"}))
    place = ["--registry", str(root / "registry.db"), "--store", str(root / "store")]
    assert run_command_line([*place, "import", "checkpoint", str(root / "deep"), "--name", "deep"]) == 0
    with same_code(), open_session(str(root / "registry.db"), root / "store") as session:
        checkpoints.random_twin(session.database, session.store, "deep", name="untrained")
        session.run(ProbeSpec(cache="cache-fit", test_cache="cache-test", epochs=2), name="longer")
        for part in ("fit", "test"):
            session.run(CacheSpec(checkpoint="deep", dataset=f"games:{part}", games=5, last=3), name=f"deep-{part}")
        session.run(ProbeSpec(cache="deep-fit", test_cache="deep-test", epochs=1), name="deep-board")
        vectors = VectorSpec(checkpoint="deep", dataset="games", first_ply=0, skill=SkillSettings(bins=2))
        session.run(vectors, name="skill")
        session.run(VectorSpec(source="random", of="skill"), name="control")
        session.run(LegalitySpec(checkpoint="deep", dataset="games:test", games=2, every=10), name="legal")
        for n, rate in enumerate((3e-3, 1e-2)):
            train = TrainSpec(
                datasets=("games:fit",), heldout="games:test", n_layer=1, n_head=1, n_embd=8, block_size=64, steps=12,
                batch_tokens=130, warmup_steps=2, heldout_steps=6, learning_rate=rate,
            )  # fmt: skip
            session.run(train, kind("train").how(threads=1, log_steps=3), name=f"train-{n}")
        toy = kind(TOY)
        session.run(toy.spec(positions=9, seed=1), kind=TOY)  # what was left of "cut"
    return root


@pytest.fixture
def study(studied: Path) -> Iterator[Session]:
    with open_session(str(studied / "registry.db"), studied / "store") as opened:
        yield opened


@pytest.fixture
def command(studied: Path) -> Callable[..., Any]:
    """What a command prints as JSON, of the studied world. May be asked while an app runs, which takes stdout."""

    def ask(*words: str) -> Any:
        place = ["--registry", str(studied / "registry.db"), "--store", str(studied / "store")]
        with redirect_stdout(io.StringIO()) as told:
            assert run_command_line([*place, *words, "--json"]) == 0
        return json.loads(told.getvalue())

    return ask


# -- a queue of real jobs ----------------------------------------------------------------------------------------------


class Queue:
    """A launch of the toy that has finished, one that broke, one of two shards that stands at a gate with a reduce that
    waits for it."""

    def __init__(self, folder: Path, session: Session) -> None:
        self.folder, self.session = folder, session
        self.supervisor = Supervisor(session.database, session.store)
        executor = LocalExecutor(read=list, grace=1.0)
        executor.slots.cores = 4
        self.supervisor.executors["local"] = executor

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def order(self, kind_name: str, name: str, shards: int = 1, **settings: Any) -> Order:
        found = kind(f"{GATED}:{kind_name}")
        how = found.how(device="cpu", threads=1, gate=str(self.gate))
        return Order(found, found.spec(**settings), how, tuple(settings), name, shards=shards)

    def launch(self, *orders: Order) -> None:
        enqueue(plan(orders, self.session.database, self.session.store), self.session.database, self.session.store)

    def jobs(self) -> list[Job]:
        with self.session.database.read() as sql:
            found = list(sql.scalars(select(Job).order_by(Job.created_at, Job.shard)))
            sql.expunge_all()
        return found

    def job(self, name: str, shard: int = 0) -> Job:
        return next(job for job in self.jobs() if job.detail["name"] == name and job.shard == shard)

    def until(self, true: Callable[[], Any], seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, [(job.detail["name"], job.state, job.message) for job in self.jobs()]
            self.supervisor.beat()
            time.sleep(0.02)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """How the jobs of a launch stand."""
        with self.session.database.read() as sql:
            return standing.rows(sql, [job for job in sql.scalars(select(Job)) if job.detail["name"] == name])

    def fill(self) -> None:
        toy = kind(TOY)
        self.launch(Order(toy, toy.spec(positions=12), toy.how(device="cpu"), ("positions",), "checks"))
        self.until(lambda: self.job("checks").ended_at)
        self.launch(self.order("Gated", "broken", engine_dies=True))
        self.until(lambda: self.job("broken").ended_at)
        self.launch(self.order("Summed", "sums", shards=2, count=8))
        self.until(lambda: [row["doing"] for row in self.rows("sums")].count("at the gate") == 2)


@contextmanager
def queued(folder: Path) -> Iterator[Queue]:
    """The queue, filled; its workers end with it."""
    with open_session(str(folder / "registry.db"), folder / "store") as session:
        queue = Queue(folder, session)
        try:
            queue.fill()
            yield queue
        finally:
            for process in session.store.runs.glob("*/jobs/*/process.json"):
                found = json.loads(process.read_text())
                if pid_start(found["pid"]) == found["started"]:
                    os.kill(found["pid"], signal.SIGKILL)


@pytest.fixture(scope="session")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Jobs in every state. Tests read them; one that changes them makes a queue of its own with `queued`."""
    with queued(tmp_path_factory.mktemp("queue")) as filled:
        yield filled


@pytest.fixture
def own_queue(tmp_path: Path) -> Iterator[Queue]:
    """The same, to be changed."""
    with queued(tmp_path / "own") as filled:
        yield filled


# -- the app ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def near_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's model on a thread of the tests, which have torch already: a process of its own loads it for seconds."""
    from chessreg.experiments.lab import worker
    from tui.bench import Bench

    benches: dict[Bench, Any] = {}

    async def asked(self: Bench, number: int, question: Any) -> dict[str, Any]:
        place = await self.place()

        def look() -> dict[str, Any]:
            if self not in benches:
                benches[self] = worker.open_bench(place["CHESSREG_REGISTRY"], Path(place["CHESSREG_STORE"]), 1)
            try:
                return {"answer": json.loads(benches[self].look(question).as_json())}
            except Exception as error:
                return worker.told(error)

        return await asyncio.to_thread(look)

    monkeypatch.setattr(Bench, "_asked", asked)


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Times, hosts, ids, paths and durations as they are nowhere: pictures do not tell where they were taken."""

    def when(time: datetime | None) -> str:
        return "2026-01-02 03:04" if time else ""

    monkeypatch.setattr(show, "when", when)
    monkeypatch.setattr(show, "host", lambda name: "box1" if name else "")
    monkeypatch.setattr(show, "short", lambda id: "a1b2c3")
    monkeypatch.setattr(show, "duration", lambda seconds: "" if seconds is None else "1.0 s")
    monkeypatch.setattr(show, "place", lambda text: "project/registry.db")
    monkeypatch.setattr(show, "provenance", lambda text: text.partition("; query")[0])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # what is remembered, and from no test to another
    monkeypatch.setattr("textual.app.wait_for_idle", at_once)


async def at_once(*_: float) -> None:
    """In place of a look at the processor after every key: `settled` waits for what the key has begun."""
    await asyncio.sleep(0)


def make_app(folder: Path, **settings: Any) -> ChessregApp:
    """The app on a registry and store in this folder."""
    read_only = bool(settings.get("read_only"))

    def opener() -> Session:
        return registry.open_session(f"sqlite:///{folder / 'registry.db'}", folder / "store", read_only)

    settings.setdefault("start", "runs")
    return ChessregApp(opener, str(folder / "registry.db"), **settings)


def unpainted(screen: Screen[Any]) -> bool:
    """Whether something is still to be laid out or drawn: Textual does that by a timer, 60 times a second."""
    return any(
        part._layout_required or part._repaint_required or part._scroll_required
        for part in screen.walk_children(with_self=True)
    ) or bool(screen._dirty_widgets)


async def settled(pilot: Pilot[Any]) -> None:
    """Wait for what workers read, and for what they then want: order, page, picture. Never for a time.

    Each round waits until every part of the screen has handled what it was sent. What is sent on meanwhile takes
    another round; the app has settled when CALM of them in succession find nobody at work. What does not settle at all
    fails, with what is waited for.
    """
    calm, screen = 0, None
    try:
        async with asyncio.timeout(PATIENCE):
            while calm < CALM and pilot.app.is_running:
                await pilot.pause(0)
                reading = [worker for worker in pilot.app.workers if not worker.is_finished]
                moved, screen = pilot.app.screen is not screen, pilot.app.screen
                calm = 0 if reading or moved or unpainted(screen) else calm + 1
                if reading:
                    with suppress(WorkerCancelled):  # a newer reading took its place
                        await pilot.app.workers.wait_for_complete(reading)
    except TimeoutError:
        pytest.fail(f"the app does not settle; it waits for {[*pilot.app.workers]} and {pilot.app.desk.waiting()}")


class Driver:
    """The app under test: keys, and what is on the screen."""

    def __init__(self, app: ChessregApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> str:
        """Press keys, let everything settle, and return the screen's text."""
        for key in keys:
            await self.pilot.press(key)
            await settled(self.pilot)
        return self.text

    async def type(self, text: str) -> str:
        """Type letters as fast as they come, let everything settle, and return the screen's text."""
        for letter in text:
            self.app.post_message(Key(letter if letter.isalnum() else _character_to_key(letter), letter))
        await settled(self.pilot)
        return self.text

    async def go(self, room: str) -> str:
        """Go to a room by its name."""
        self.app.action_room(room)
        await settled(self.pilot)
        return self.text

    async def settle(self) -> str:
        await settled(self.pilot)
        return self.text

    async def until(self, *words: str, seconds: float = PATIENCE) -> str:
        """The screen, once it has all these words: of what comes from outside, and by a timer."""
        await self.once(lambda: all(word in self.text for word in words), " and ".join(words), seconds)
        return self.text

    async def once(self, true: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> None:
        """Wait until this is true, while the app runs."""
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"{what} did not come; the screen is\n{self.text}"
            await asyncio.sleep(0.02)
            if self.app.is_running:
                await settled(self.pilot)

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def notices(self) -> str:
        """What the app has notified of, which is not on the screen of a test."""
        return "\n".join(notification.message for notification in self.app._notifications)

    @property
    def room(self) -> Room:
        assert self.app.room is not None
        return self.app.room

    async def find_row(self, word: str) -> None:
        """Put the cursor on the first row in sight whose line has this word."""
        from tui.widgets.table import PageTable

        table = self.room.query_one(PageTable)
        rows = [n for n in range(table.count) if word in " ".join(c.of(table.row(n) or {}) for c in table.columns)]
        assert rows, f"no row with {word!r}:\n{self.text}"
        table.move(rows[0])
        await settled(self.pilot)

    async def stand_on(self, *names: str, mark: bool = False) -> None:
        """Put the cursor on the row of this name, of each in turn, and mark it."""
        from tui.widgets.table import PageTable

        table = self.room.query_one(PageTable)
        for name in names:
            table.move(next(n for n in range(table.count) if (table.row(n) or {}).get("name") == name))
            await (self.press("space") if mark else settled(self.pilot))


@asynccontextmanager
async def driving(app: ChessregApp, size: tuple[int, int] = (100, 30)) -> AsyncIterator[Driver]:
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        yield Driver(app, pilot)


@pytest.fixture
def drive(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`async with drive(size=(80, 24)) as driver:` on the world, or on another folder."""

    def start(folder: Path | None = None, size: tuple[int, int] = (100, 30), **settings: Any) -> Any:
        return driving(make_app(folder or request.getfixturevalue("world"), **settings), size)

    return start


@pytest.fixture
def app_on() -> Callable[..., ChessregApp]:
    return make_app


@pytest.fixture(params=[(80, 24), (200, 60)], ids=["80x24", "200x60"])
def picture(request: pytest.FixtureRequest, subject: Path, snap_compare: Any) -> Any:
    """`picture(steps, *words)`: do the steps, find the words on the screen, compare the picture. Of the registry that a
    file of tests has as its `subject`, or of another folder."""

    def take(
        steps: Callable[[Driver], Awaitable[Any]], *words: str, folder: Path | None = None, start: str = "runs"
    ) -> None:
        async def before(pilot: Pilot[Any]) -> None:
            await settled(pilot)
            driver = Driver(pilot.app, pilot)  # type: ignore[arg-type]
            await steps(driver)
            for word in words:
                assert word in driver.text, f"{word!r} is not in\n{driver.text}"

        app = make_app(folder or subject, start=start)
        assert snap_compare(app, terminal_size=request.param, run_before=before)

    return take
