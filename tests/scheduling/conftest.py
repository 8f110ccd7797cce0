"""A registry with a queue, and a supervisor that runs its loop when a test calls it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.registry import tables
from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings
from chessreg.scheduling.launch import Order, launch_orders
from chessreg.scheduling.supervisor import Supervisor
from chessreg.session import Session
from store.process import get_process_start

from .forking import ForkingExecutor

GATED = str(Path(__file__).parent.parent / "kinds" / "gated_kind.py")


class Desk:
    """A registry with a queue, and a supervisor in this process that runs its loop when it is called."""

    gated = f"{GATED}:Gated"

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.supervisor = self.next_supervisor()

    def next_supervisor(self) -> Supervisor:
        self.supervisor = Supervisor(self.session.database, self.session.store)
        self.supervisor.executors["local"] = ForkingExecutor()
        return self.supervisor

    def launch(self, *orders: Order) -> list[Any]:
        database, store = self.session.database, self.session.store
        return launch_orders(orders, database, store, self.folder)[1]

    def order(self, kind_name: str = "Gated", how: dict[str, Any] | None = None, **settings: Any) -> Order:
        """An order of a gated kind, its gate shut; `on`, `shards`, `name`, `priority` are the order's."""
        found = find_kind(f"{GATED}:{kind_name}")
        asked = {key: settings.pop(key) for key in ("on", "shards", "name", "priority") if key in settings}
        values = {"device": "cpu", "threads": 1, "gate": str(self.gate)} | (how or {})
        return Order(found, parse_settings(found.spec, settings), found.options(**values), tuple(settings), **asked)

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def open_gate(self) -> None:
        self.gate.touch()

    def jobs(self) -> list[tables.Job]:
        with self.session.database.read() as sql:
            found = list(sql.scalars(select(tables.Job).order_by(tables.Job.created_at, tables.Job.shard)))
            sql.expunge_all()
        return found

    def states(self) -> list[str]:
        return [str(job.cause or job.state) for job in self.jobs()]

    def rows(self, table: Any) -> list[Any]:
        with self.session.database.read() as sql:
            found = list(sql.scalars(select(table)))
            sql.expunge_all()
        return found

    def until(self, true: Callable[[], Any], seconds: float = 300.0) -> float:
        """Go round until something is true; returns how long it took."""
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < seconds, f"it did not come: {self.states()}\n{self.said()}"
            self.supervisor.run_once()
            time.sleep(0.1)
        return time.monotonic() - began

    def finish(self) -> None:
        self.until(lambda: all(job.ended_at for job in self.jobs()))

    def said(self) -> str:
        return "\n".join(path.read_text() for path in self.session.store.runs.rglob("log.txt"))

    def pids(self) -> list[int]:
        """Of the attempts that run."""
        return [a.pid for a in self.rows(tables.Attempt) if a.state is tables.AttemptState.RUNNING]


@pytest.fixture
def make_desk() -> Iterator[Callable[[Session, Path], Desk]]:
    made: list[Desk] = []

    def make(session: Session, folder: Path) -> Desk:
        made.append(Desk(session, folder))
        return made[-1]

    yield make
    for each in made:
        for process in each.session.store.runs.glob("*/jobs/*/process.json"):
            found = json.loads(process.read_text())
            if get_process_start(found["pid"]) == found["started"]:
                os.kill(found["pid"], signal.SIGKILL)


@pytest.fixture
def desk(session: Session, tmp_path: Path, make_desk: Callable[[Session, Path], Desk]) -> Desk:
    return make_desk(session, tmp_path)
