"""A registry with the bigram model in it, matches on it, and directions to add."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import delete, update

from chessreg.encodings import Encoding, get_encoding
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.games.engines.opponents import find_stockfish
from chessreg.kinds import Kind
from chessreg.models.language_model import LanguageModel
from chessreg.registry import tables
from chessreg.runs.spec import CheckpointRef, Spec
from chessreg.session import Session, open_session

NAME = "bigram"


@pytest.fixture(scope="session")
def model(bigram: Callable[..., LanguageModel]) -> LanguageModel:
    return bigram()


@pytest.fixture(scope="session")
def small(bigram: Callable[..., LanguageModel]) -> LanguageModel:
    """The same with room for 64 characters."""
    return bigram(block_size=64)


@pytest.fixture(scope="session")
def pgn() -> Encoding:
    return get_encoding("pgn-char-32")


@pytest.fixture(scope="session")
def with_model(checkpoint_folder: Path, empty_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a registry and store with the bigram model in it: to be copied."""
    folder = tmp_path_factory.mktemp("with-model")
    shutil.copy(empty_registry, folder / "registry.db")
    with open_session(str(folder / "registry.db"), folder / "store") as opened:
        import_checkpoint(opened.database, opened.store, checkpoint_folder, name=NAME)
    return folder


@pytest.fixture
def session(tmp_path: Path, with_model: Path) -> Iterator[Session]:
    """A registry and store with the bigram model in it."""
    shutil.copytree(with_model, tmp_path, dirs_exist_ok=True)
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def play(session: Session) -> Callable[..., Any]:
    """Run a match with these settings; `how` is a dict of how-settings. Returns the run's report."""
    from chessreg.experiments.play import PlayOptions, PlaySpec

    def run(how: dict[str, Any] | None = None, **settings: Any) -> Any:
        spec = PlaySpec(**{"checkpoint": NAME, "opponent": "random", "adjudication": "none", **settings})
        return session.run(spec, PlayOptions(**{"device": "cpu", "threads": 1, **(how or {})}))

    return run


@pytest.fixture(scope="session")
def stockfish() -> Path:
    """The installed Stockfish; tests that need it are skipped if it is missing."""
    from chessreg.errors import NotFoundError

    try:
        return find_stockfish()
    except NotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def other_stockfish(tmp_path: Path, stockfish: Path) -> Path:
    """A second program that plays like Stockfish, with another digest."""
    path = tmp_path / "other-stockfish"
    path.write_text(f"#!/bin/sh\nexec {stockfish}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def forget_unit(session: Session) -> Callable[..., None]:
    """Delete the rows of the last unit of a run, as if it had been interrupted before."""

    def forget(table: Any, run_id: UUID, unit: int) -> None:
        with session.database.write() as sql:
            sql.execute(delete(table).where(table.run_id == run_id, table.unit == unit))
            units = tables.UnitRange
            sql.execute(delete(units).where(units.run_id == run_id, units.start >= unit))
            sql.execute(update(units).where(units.run_id == run_id, units.stop > unit).values(stop=unit))
            sql.execute(update(tables.Run).where(tables.Run.id == run_id).values(completed_at=None))

    return forget


class VectorSpec(Spec):
    checkpoint: CheckpointRef
    layers: tuple[int, ...] = (0,)
    d_model: int = 32


class Vectors(Kind):
    """Directions 3, 4, 5, ... for tests: rows and files as the kind `vector` leaves them."""

    name, tables, spec = "vector", ("metric_point",), VectorSpec

    def units(self, spec: VectorSpec, inputs: Any) -> int:
        return len(spec.layers)

    def run(self, task: Any) -> None:
        checkpoint, _ = task.inputs.checkpoint(task.spec.checkpoint)
        for unit in task.units:
            layer = task.spec.layers[unit]
            vector = np.arange(3, 3 + task.spec.d_model, dtype=np.float32) * (layer + 1)
            meta = {"layer": layer, "hook_point": f"blocks.{layer}.hook_resid_post"}
            task.publish_layer(
                "vector", unit, {"vector": vector}, meta, checkpoint_id=checkpoint.id, source="contrastive:white_elo",
                positions="dots", norm=float(np.linalg.norm(vector)),
            )  # fmt: skip
            task.done(unit)


@pytest.fixture
def make_vectors(session: Session) -> Callable[..., str]:
    """Make a run of kind `vector` on the bigram model and return its id."""

    def make(**settings: Any) -> str:
        return session.run(VectorSpec(**{"checkpoint": NAME, **settings}), kind=Vectors()).run_id.hex

    return make
