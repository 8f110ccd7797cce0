"""Every kind of experiment, killed before its n-th fragment: the rows and units of a resumed run equal those of an
undisturbed run. A new kind is in it by existing."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.registry import tables
from chessreg.registry.run_state import read_complete_units
from chessreg.runs import attempt, task
from chessreg.runs.kind import load_kinds
from chessreg.session import open_session
from store import fragments
from tests.kinds.examples import get_example

KINDS = Path(__file__).parents[1] / "kinds"
STOPPING = "play --stop"  # a match that ends when enough is known: its last units have no games
STOPS = "--games 60 --policy retry:1 --temperatures 9 --opening random:4 --color both --stop sprt:-0.2,0.2"
EVERY = [*load_kinds(), STOPPING, str(KINDS / "toy_kind.py"), str(KINDS / "captures_kind.py")]
SMALLER = {  # the examples, cut down: every unit is a fragment here, and every fragment a separate run
    "cache": ["--games", "5", "--max-sites", "9", "--group-games", "2", "--batch-games", "1"],
    "play": ["--games", "3", "--move-limit", "8", "--adjudication", "none"],
    "engine-match": ["--games", "4"],
    "edit": ["--games", "2", "--per-game", "2", "--batch-states", "2"],
    "legality": ["--games", "4", "--batch-games", "2"],
    "move-quality": ["--games", "3", "--batch-games", "2"],
    "train": ["--steps", "4", "--n-layer", "1", "--batch-tokens", "512"],
}
OF_CLOCKS = ("attempt_id", "seconds", "created_at", "completed_at", "verified_at", "environment", "code")
LEFT_OUT = ("attempt", "fragment", "run_input", "check_in")
SPEEDS = ("tokens_per_second",)


class Killed(BaseException):
    """The process ends here: nothing after it is written."""


@pytest.fixture
def every_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fragment at every moment at which one may be written, and none of the heart's, whose moments are a clock's."""
    monkeypatch.setattr(task, "FLUSH_INTERVAL_S", -1.0)
    monkeypatch.setattr(attempt.Heartbeat, "run", lambda heartbeat: None)


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[int]]]:
    """Kill the process that writes its n-th fragment from now on, before the fragment exists (0: never); returns the
    count."""
    place = fragments.place_file

    def at(number: int) -> list[int]:
        count = [0]

        def counted(*arguments: Any) -> None:
            count[0] += 1
            if number and count[0] >= number:
                raise Killed
            place(*arguments)

        monkeypatch.setattr(fragments, "place_file", counted)
        return count

    yield at
    monkeypatch.setattr(fragments, "place_file", place)


def fresh(pristine: Path, folder: Path) -> Path:
    """A copy of the world; the immutable files in its store are linked."""
    shutil.copytree(pristine / "store", folder / "store", copy_function=os.link)
    shutil.copyfile(pristine / "registry.db", folder / "registry.db")
    return folder


def command_line(world: Path, name: str) -> list[str]:
    more = shlex.split(STOPS) if name == STOPPING else SMALLER.get(name, [])
    name = name.partition(" ")[0]
    words = [*get_example(name), *more]
    return ["--registry", str(world / "registry.db"), "--store", str(world / "store"), "run", name, *words]


def facts(world: Path) -> dict[str, list[str]]:
    """The state of the newest run: its rows by table without clocks and attempts, its units, its errors."""
    found: dict[str, list[str]] = {}
    with open_session(str(world / "registry.db"), world / "store") as session, session.database.read() as sql:
        run = sql.scalars(select(tables.Run).order_by(tables.Run.created_at.desc()).limit(1)).one()
        for name, table in tables.Base.metadata.tables.items():
            if name in LEFT_OUT or "run_id" not in table.c:
                continue
            rows = sql.execute(select(table).where(table.c.run_id == run.id)).mappings()
            plain = [{k: v for k, v in row.items() if k not in OF_CLOCKS} for row in rows]
            found[name] = sorted(repr(row) for row in plain if row.get("name") not in SPEEDS)
        units = read_complete_units(sql, run.id)
        found["unit_range"] = [str(unit) for unit in sorted(units)]
        found["state"] = [str(run.completed_at is not None), str(run.units)]
        found["conflicts"] = [str(row.key) for row in sql.scalars(select(tables.Conflict))]
        held = [(row.path, row.digest) for row in sql.scalars(select(tables.ActivationCache))]
    found["arrays"] = sorted({path.name for path in (world / "store/arrays").iterdir()} - {p[7:] for p, _ in held})
    for place in ("incoming", "quarantine"):
        found[place] = sorted(path.name for path in (world / "store" / place).glob("*"))
    return found


def run(world: Path, name: str) -> None:
    with suppress(Killed):
        assert run_command_line(command_line(world, name)) == 0


def compare(name: str, pristine: Path, folder: Path, killed_at: Callable[[int], list[int]], every: bool) -> None:
    count = killed_at(0)
    undisturbed = fresh(pristine, folder / "undisturbed")
    run(undisturbed, name)
    last, expected = count[0], facts(undisturbed)
    assert last > 1, "nothing was written"
    assert expected["state"][0] == "True"
    moments = range(1, last + 1) if every else [last // 2 + 1]
    for number in moments:
        world = fresh(pristine, folder / f"killed-{number}")
        killed_at(number)
        run(world, name)
        killed_at(0)
        run(world, name)
        assert facts(world) == expected, f"killed before fragment {number} of {last}"


QUICK = ("cache", "probe", "vector", "train", "imported-aggregates", STOPPING, EVERY[-2])  # each writes in another way


@pytest.mark.usefixtures("every_flush")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_a_resumed_run_has_what_an_undisturbed_one_has(name, pristine_world, tmp_path, killed_at):
    compare(name, pristine_world, tmp_path, killed_at, every=False)


def test_two_processes_at_one_match_that_stops_play_the_games_of_one(pristine_world, tmp_path, spawn):
    undisturbed, together = (fresh(pristine_world, tmp_path / name) for name in ("undisturbed", "together"))
    run(undisturbed, STOPPING)
    both = [spawn(command_line(together, STOPPING)) for _ in range(2)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    expected = facts(undisturbed)
    assert 0 < len(expected["game"]) < 60
    assert facts(together) == expected


@pytest.mark.faults
@pytest.mark.usefixtures("every_flush")
@pytest.mark.parametrize("name", EVERY)
def test_wherever_it_is_killed(name, pristine_world, tmp_path, killed_at):
    compare(name, pristine_world, tmp_path, killed_at, every=True)
