"""A registry on each database: SQLite, and PostgreSQL from a wheel (one server a session, one database a test)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid

from ..forked import FORKED
from ..postgres import postgres as postgres


@pytest.fixture
def migrated_once() -> None:
    """Here every registry is made as users make it."""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a place that holds nothing yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    return str(request.getfixturevalue("postgres").empty())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a registry."""
    if request.param == "sqlite":
        path = tmp_path / "registry.db"
        shutil.copyfile(request.getfixturevalue("empty_registry"), path)
        return f"sqlite:///{path}"
    return str(request.getfixturevalue("postgres").migrated())


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with Database.open(url) as opened:
        yield opened


@pytest.fixture
def sqlite_path(empty_registry: Path, tmp_path: Path) -> Path:
    """The file of a SQLite registry."""
    return Path(shutil.copyfile(empty_registry, tmp_path / "registry.db"))


SCRIPT = """
import os, sys
for stream, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
os.environ.update(environment)
sys.argv[1:] = arguments
exec(script, {"__name__": "__main__"})
"""


class Output(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def processes(tmp_path: Path) -> Callable[..., list[Output]]:
    """Run a script in n processes at once, each given its number after the arguments.

    They are forked from one that has imported chessreg, so that all of them begin within milliseconds.
    """

    def go(script: str, n: int, *arguments: str) -> list[Output]:
        paths = [(tmp_path / f"{number}.out", tmp_path / f"{number}.err") for number in range(n)]
        started = []
        for number, (out, err) in enumerate(paths):
            known = {"script": script, "arguments": [*arguments, str(number)], "environment": dict(os.environ)}
            started.append(FORKED.Process(target=exec, args=(SCRIPT, {**known, "out": str(out), "err": str(err)})))
        for process in started:
            process.start()
        for process in started:
            process.join(300)
        return [Output(out.read_text(), err.read_text()) for out, err in paths]

    return go


class Rows:
    """Rows that tests need."""

    when = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)

    def run(self, session: Session, seed: int = 0) -> tables.Run:
        """A run with nothing in it."""
        digest = hash_canonical_json({"seed": seed})
        run = tables.Run(
            id=make_uuid(digest),
            kind="toy",
            version=1,
            spec={"seed": seed},
            spec_hash=digest,
            explicit=[],
            units=4,
            created_at=self.when,
        )
        session.add(run)
        session.flush()
        return run

    def point(self, run_id: UUID, **columns: Any) -> tables.MetricPoint:
        """A metric point."""
        return tables.MetricPoint(
            **{"run_id": run_id, "unit": 0, "name": "loss", "step": 1, "attempt_id": make_id(), "value": 0.5} | columns
        )

    def game(self, run_id: UUID, **columns: Any) -> tables.Game:
        """A game of one ply."""
        own: dict[str, Any] = {
            "run_id": run_id, "unit": 0, "match": 0, "attempt_id": make_id(), "opening_number": 0, "opening_plies": 0,
            "plies": 1, "result": "1-0", "termination": "checkmate", "turns": 1, "first_try_legal": 1,
            "tries": b"\x01", "moves": b"\x0c\x07", "seconds": 0.5,
        }  # fmt: skip
        return tables.Game(**own | columns)

    def dataset(self, session: Session, seed: int = 0) -> tables.Dataset:
        """A dataset of no games, with its artifact."""
        digest = hash_canonical_json({"dataset": seed})
        session.add(
            tables.Artifact(
                digest=digest, kind="dataset", bytes=1, state=tables.ArtifactState.COMPLETE, created_at=self.when
            )
        )
        session.flush()
        row = tables.Dataset(
            id=make_id(), identity=digest, artifact=digest, source="a.pgn", games=0, plies=0, duplicates=0, rejected=0,
            skipped=0, report={}, created_at=self.when,
        )  # fmt: skip
        session.add(row)
        session.flush()
        return row


@pytest.fixture
def rows() -> Rows:
    return Rows()
