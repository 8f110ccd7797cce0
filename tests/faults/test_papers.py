"""A paper that is saved to a file, or loaded from one, by a process that is killed at any moment (kill -9)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import select

from chessreg import doctor
from chessreg.papers import archive
from chessreg.papers.plan import Paper, Request, Step
from chessreg.papers.work import Work
from chessreg.registry import tables
from chessreg.session import Session, open_session

TOY = str(Path(__file__).parents[1] / "kinds" / "toy_kind.py")
STEPS = [Step(name, TOY, {"positions": count, "seed": count}, "") for name, count in (("a", 3), ("b", 4), ("c", 2))]
PAPER = Paper("toy", "Toys", lambda request: STEPS, ())


@pytest.fixture(scope="module")
def actors() -> ModuleType:
    """The processes of the rounds, which a fault strikes at their n-th moment."""
    path = Path(__file__).with_name("suite") / "actors.py"
    spec = importlib.util.spec_from_file_location("actors_of_rounds", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["actors_of_rounds"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chessreg.papers.work.compute_request_digest", lambda session, asked: "abcdef")


def opened(folder: Path) -> Session:
    return open_session(str(folder / "registry.db"), folder / "store")


def work(session: Session) -> Work:
    return Work(session, PAPER, Request("model", "games", "games", 8, 64, "small"))


class Stopped(Exception):
    """The paper ends before its last step."""


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A registry in which all steps but the last are complete."""

    def begin(number: int, planned: Any) -> None:
        if planned.step.name == STEPS[-1].name:
            raise Stopped

    folder = tmp_path / "half"
    with opened(folder) as session, pytest.raises(Stopped):
        work(session).run_steps(begin)
    return folder


def states(folder: Path) -> dict[str, str]:
    with opened(folder) as session:
        return {planned.step.name: planned.state for planned in work(session).plan()}


def killed_at_moments(
    actors: ModuleType, some: int, do: Callable[[Path], None], prepare: Callable[[Path], None], tmp_path: Path
) -> Iterator[Path]:
    """The folders in which `do` was killed, at `some` of its moments; first one in which it was not."""
    fresh, said = tmp_path / "0", tmp_path / "said"
    prepare(fresh)
    actor = actors.act(lambda: do(fresh), said)
    assert actor.wait() == 0, said.read_text()
    moments = actor.moments.passed
    assert moments > 10
    yield fresh
    for number in range(1, moments + 1, max(1, moments // some)):
        folder = tmp_path / str(number)
        prepare(folder)
        assert actors.act(lambda folder=folder: do(folder), said, actors.Fault("SIGKILL", number)).wait() == -9
        yield folder
        shutil.rmtree(folder)


def whole(folder: Path) -> None:
    """Nothing is left to repair, and the leftovers of the killed process in `tmp/` are recognized."""
    with opened(folder) as session:
        session.store.clean_staging(0)
        assert not list(session.store.tmp.iterdir())
        for problem in doctor.find_problems(session.database, session.store, str(folder / "registry.db")):
            doctor.apply_fix(problem)
        assert not list(doctor.find_problems(session.database, session.store, str(folder / "registry.db")))


SOME = [2, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("some", SOME)
def test_a_saved_paper_is_there_whole_or_not_at_all(actors: ModuleType, half: Path, tmp_path: Path, some: int) -> None:
    def save(folder: Path) -> None:
        with opened(folder) as session:
            archive.save_paper(work(session), folder / "saved.zip")

    def prepare(folder: Path) -> None:
        shutil.copytree(half, folder)

    for folder in killed_at_moments(actors, some, save, prepare, tmp_path):
        if (folder / "saved.zip").exists():
            with opened(tmp_path / "other") as session:
                archive.load_paper(work(session), folder / "saved.zip")
            assert states(tmp_path / "other") == states(half)
            shutil.rmtree(tmp_path / "other")
        save(folder)
        whole(folder)
        left = [path.name for path in folder.iterdir() if path.name.startswith(".saved")]
        assert len(left) <= 1, "what a killed process was writing does not stop the next one"


@pytest.mark.slow
@pytest.mark.parametrize("some", SOME)
def test_a_paper_that_was_half_loaded_is_loaded_again(
    actors: ModuleType, half: Path, tmp_path: Path, some: int
) -> None:
    with opened(half) as session:
        archive.save_paper(work(session), tmp_path / "saved.zip")

    def load(folder: Path) -> None:
        with opened(folder) as session:
            archive.load_paper(work(session), tmp_path / "saved.zip")

    def prepare(folder: Path) -> None:
        with opened(folder):
            pass

    expected = None
    for folder in killed_at_moments(actors, some, load, prepare, tmp_path):
        load(folder)
        load(folder)
        with opened(folder) as session:
            assert not work(session).run_steps()
            with session.database.read() as sql:
                rows = sorted(
                    (row.run_id.hex, row.unit, row.item, row.correct) for row in sql.scalars(select(tables.Score))
                )
                assert not sql.scalars(select(tables.Conflict)).all()
                assert all(sql.scalars(select(tables.Run.completed_at)))
        assert set(states(folder).values()) == {"complete"}
        assert rows == (expected := expected or rows)
        whole(folder)
