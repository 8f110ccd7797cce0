"""A queue of real jobs, in every state."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.registry.tables import Job
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings
from chessreg.scheduling import status
from chessreg.scheduling.launch import Order, launch_orders
from chessreg.scheduling.supervisor import Supervisor
from chessreg.session import Session, open_session
from store.process import get_process_start

from ..conftest import SHARED, shared
from ..scheduling.forking import ForkingExecutor
from .worlds import TOY

GATED = str(Path(__file__).parent.parent / "kinds" / "gated_kind.py")


class Queue:
    """A launch of the toy that has finished, one that failed, and one of two shards that waits at a gate with a reduce
    that waits for it."""

    def __init__(self, folder: Path, session: Session) -> None:
        self.folder, self.session = folder, session
        self.supervisor = Supervisor(session.database, session.store)
        self.supervisor.executors["local"] = ForkingExecutor()

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def order(self, kind_name: str, name: str, shards: int = 1, **settings: Any) -> Order:
        found = find_kind(f"{GATED}:{kind_name}")
        how = found.options(device="cpu", threads=1, gate=str(self.gate))
        return Order(found, parse_settings(found.spec, settings), how, tuple(settings), name, shards=shards)

    def launch(self, *orders: Order) -> None:
        launch_orders(orders, self.session.database, self.session.store)

    def jobs(self) -> list[Job]:
        with self.session.database.read() as sql:
            found = list(sql.scalars(select(Job).order_by(Job.created_at, Job.shard)))
            sql.expunge_all()
        return found

    def job(self, name: str, shard: int = 0) -> Job:
        return next(job for job in self.jobs() if job.detail["name"] == name and job.shard == shard)

    def until(self, true: Callable[[], Any], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, [(job.detail["name"], job.state, job.message) for job in self.jobs()]
            self.supervisor.run_once()
            time.sleep(0.1)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The states of the jobs of a launch."""
        with self.session.database.read() as sql:
            return status.read_job_rows(sql, [job for job in sql.scalars(select(Job)) if job.detail["name"] == name])

    def fill(self) -> None:
        toy = find_kind(TOY)
        self.launch(Order(toy, toy.spec(positions=12), toy.options(device="cpu"), ("positions",), "checks"))
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
                if get_process_start(found["pid"]) == found["started"]:
                    os.kill(found["pid"], signal.SIGKILL)


@pytest.fixture(scope="session")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Jobs in every state. Tests read them; a test that changes them makes a separate queue with `queued`."""
    with queued(tmp_path_factory.mktemp("queue")) as filled:
        of_checkout = str(Path(__file__).parents[2])
        with filled.session.database.write() as sql:  # pictures are the same in every checkout
            for job in sql.query(Job).filter(Job.message.contains(of_checkout)):
                job.message = (job.message or "").replace(of_checkout, "/home/me/chessreg")
        shared(filled.folder)
        yield filled
        SHARED.pop(filled.folder / "registry.db")


@pytest.fixture
def own_queue(tmp_path: Path) -> Iterator[Queue]:
    """The same, to be changed."""
    with queued(tmp_path / "own") as filled:
        yield filled
