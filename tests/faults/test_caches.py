"""Caches after crashes, old ones and new: torn data are found, named and fixed, and the bytes then equal those of an
undisturbed run."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.entities.merge import merge_source
from chessreg.experiments import cache
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.registry import tables
from chessreg.registry.tables import Cause
from chessreg.runs import attempt, task, watch
from chessreg.runs.activations import load_cache
from chessreg.session import Session, open_session
from store import fragments

from .suite.earlier import emit_group

SETTINGS = [
    "--checkpoint",
    "reference",
    "--dataset",
    "sample:fit",
    "--games",
    "12",
    "--max-sites",
    "6",
    "--batch-games",
    "2",
]
OF = {"checkpoint": "reference", "dataset": "sample:fit", "games": 12, "max_sites": 6}


class Killed(BaseException):
    """The process ends here."""


def copied(world: Path, folder: Path) -> Path:
    shutil.copytree(world / "store", folder / "store", copy_function=os.link)
    shutil.copyfile(world / "registry.db", folder / "registry.db")
    return folder


def words(world: Path, *rest: str) -> list[str]:
    return ["--registry", str(world / "registry.db"), "--store", str(world / "store"), *rest]


def opened(world: Path) -> Session:
    return open_session(str(world / "registry.db"), world / "store")


def groups(session: Session, run_id: UUID) -> dict[tuple[int, int], str]:
    with session.database.read() as sql:
        group = tables.ActivationCache
        rows = sql.scalars(select(group).where(group.run_id == run_id)).all()
        return {(row.start, row.stop): row.digest for row in rows}


def run_id_of(session: Session) -> UUID:
    with session.database.read() as sql:
        return sql.scalars(select(tables.Run.id).order_by(tables.Run.created_at.desc()).limit(1)).one()


@pytest.fixture(scope="module")
def undisturbed(pristine_world, tmp_path_factory) -> dict[tuple[int, int], str]:
    """The groups of a run that nothing befell: units → digest."""
    world = copied(pristine_world, tmp_path_factory.mktemp("undisturbed"))
    assert run_command_line(words(world, "run", "cache", *SETTINGS, "--group-games", "4")) == 0
    with opened(world) as session:
        return groups(session, run_id_of(session))


@pytest.fixture
def own(pristine_world, tmp_path) -> Path:
    return copied(pristine_world, tmp_path)


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """A cache run as it was before: a group's row and its units one by one, killed before the n-th fragment."""

    def record_group(task: Any, path: Path, points: list[str], checkpoint: Any, low: int, high: int) -> None:
        emit_group(task, path, points, checkpoint, low, high)
        for unit in range(low, high):
            task.done(unit)

    def run(world: Path, number: int) -> None:
        with monkeypatch.context() as patched:
            count = 0

            def place(*arguments: Any) -> None:
                nonlocal count
                count += 1
                if number and count >= number:
                    raise Killed
                written(*arguments)

            written = fragments.place_file
            patched.setattr(fragments, "place_file", place)
            patched.setattr(cache, "record_activation_group", record_group)
            patched.setattr(cache, "resume_groups", lambda *_: set())
            patched.setattr(task, "FLUSH_INTERVAL_S", -1.0)
            patched.setattr(attempt.Heartbeat, "run", lambda heartbeat: None)
            with suppress(Killed):
                run_command_line(words(world, "run", "cache", *SETTINGS, "--group-games", "4"))
        with opened(world) as session, session.database.read() as sql:
            state = tables.Attempt.state == tables.AttemptState.RUNNING
            left = sql.scalars(select(tables.Attempt.id).where(state)).all()
            watch.mark_lost(session.database, list(left), Cause.KILLED, "its process is gone")

    return run


@pytest.mark.parametrize(
    "kills",
    [(3,), *(pytest.param(kills, marks=pytest.mark.slow) for kills in ((3, 0), (8, 0), (3, 4, 0)))],
    ids=str,
)
def test_a_cache_that_an_earlier_version_tore_is_named_mended_and_ends_as_if_nothing_had_been(
    kills, own, earlier, undisturbed, capsys
):
    for number in kills:
        earlier(own, number)
    with opened(own) as session:
        run_id = run_id_of(session)
        assert len(groups(session, run_id)) != len(undisturbed) or kills[-1]
    short = run_id.hex[-6:]
    capsys.readouterr()
    assert run_command_line(words(own, "cache", "verify", short)) == 1
    assert "chessreg doctor --fix" in capsys.readouterr().err
    if len(kills) > 1:  # complete, by its units
        probe = words(own, "run", "probe", "--cache", short, "--epochs", "1")
        assert run_command_line(probe) == 1
        assert "chessreg doctor --fix" in capsys.readouterr().err
    run_command_line(words(own, "doctor"))
    said = capsys.readouterr().out
    assert f"cache run {short} records units 0 to" in " ".join(said.split())

    run_command_line(words(own, "doctor", "--fix"))
    assert "fixed" in capsys.readouterr().out
    run_command_line(words(own, "doctor"))
    assert "units" not in capsys.readouterr().out.replace("run units", "")
    assert run_command_line(words(own, "run", "cache", *SETTINGS, "--group-games", "4")) == 0
    assert run_command_line(words(own, "cache", "verify", short)) == 0
    with opened(own) as session:
        assert groups(session, run_id) == undisturbed
        with session.database.read() as sql:
            point = tables.MetricPoint
            assert sorted(sql.scalars(select(point.unit).where(point.run_id == run_id))) == [0, 4, 8]
            assert not sql.scalars(select(tables.Conflict)).all()
    assert run_command_line(words(own, "run", "probe", "--cache", short, "--epochs", "1")) == 0


def test_without_a_mend_a_torn_cache_is_not_torn_further(own, earlier, undisturbed, capsys):
    earlier(own, 3)  # a group is registered, and one of its units
    assert run_command_line(words(own, "run", "cache", *SETTINGS, "--group-games", "4")) == 0
    with opened(own) as session:
        assert groups(session, run_id_of(session)) == undisturbed


def test_a_cache_that_is_torn_further_already_is_not_gone_on_with(own, earlier, capsys):
    for number in (3, 4):
        earlier(own, number)
    capsys.readouterr()
    assert run_command_line(words(own, "run", "cache", *SETTINGS, "--group-games", "4")) == 1
    assert "chessreg doctor --fix" in capsys.readouterr().err


def made(world: Path) -> tuple[UUID, Path]:
    """A cache run, and the array of its second group."""
    assert run_command_line(words(world, "run", "cache", *SETTINGS, "--group-games", "4")) == 0
    with opened(world) as session:
        run_id = run_id_of(session)
    return run_id, next((world / "store/arrays").glob(f"{run_id.hex}-4-8"))


@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(how, marks=pytest.mark.slow) for how in ("missing", "short"))]
)
def test_a_damaged_chunk_is_named_and_its_group_made_again(damage, own, undisturbed, capsys):
    run_id, array = made(own)
    chunk = array / "layers/blocks.1.hook_resid_post/c.0.0"
    content = bytearray(chunk.read_bytes())
    content[37] ^= 1
    chunk.unlink()
    if damage != "missing":
        chunk.write_bytes(content if damage == "flipped" else content[:-2])
    capsys.readouterr()
    short = run_id.hex[-6:]
    assert run_command_line(words(own, "run", "probe", "--cache", short, "--epochs", "1")) == 1
    assert "c.0.0" in capsys.readouterr().err
    assert run_command_line(words(own, "cache", "verify", short)) == 1
    run_command_line(words(own, "doctor", *(["--digests"] if damage == "flipped" else []), "--json"))
    said = capsys.readouterr().out
    assert "c.0.0" in said
    assert f"chessreg run --resume {short}" in said
    run_command_line(words(own, "doctor", "--digests", "--fix"))
    assert run_command_line(words(own, "run", "cache", *SETTINGS, "--group-games", "4")) == 0
    assert run_command_line(words(own, "cache", "verify", short)) == 0
    with opened(own) as session:
        assert groups(session, run_id) == undisturbed
    assert run_command_line(words(own, "run", "probe", "--cache", short, "--epochs", "1")) == 0


def test_a_damaged_chunk_is_fetched_again_where_it_is_whole(own, undisturbed, tmp_path, capsys):
    run_id, array = made(own)
    assert run_command_line(words(own, "push", run_id.hex[-6:], "--to", str(tmp_path / "elsewhere"))) == 0
    chunk = array / "layers/blocks.1.hook_resid_post/c.0.0"
    content = chunk.read_bytes()
    chunk.unlink()
    chunk.write_bytes(content[:-2] + b"xx")
    run_command_line(words(own, "doctor", "--digests", "--fix"))
    assert "fetched again" in capsys.readouterr().out
    assert chunk.read_bytes() == content
    with opened(own) as session:
        assert groups(session, run_id) == undisturbed
    assert run_command_line(words(own, "run", "cache", *SETTINGS)) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_what_was_published_and_not_yet_said_is_taken_up_however_groups_are_cut_now(own, monkeypatch):
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(cache, "record_activation_group", lambda *_: (_ for _ in ()).throw(Killed()))
        run_command_line(words(own, "run", "cache", *SETTINGS, "--group-games", "5"))
    assert run_command_line(words(own, "run", "cache", *SETTINGS, "--group-games", "3")) == 0
    with opened(own) as session:
        assert list(groups(session, run_id_of(session))) == [(0, 5), (5, 8), (8, 11), (11, 12)]


def test_two_machines_that_cut_their_groups_differently_make_one_cache(own, pristine_world, tmp_path):
    other = copied(pristine_world, tmp_path / "other")
    with opened(own) as here, opened(other) as there:
        run_id = here.run(CacheSpec(**OF), CacheOptions(group_games=4, batch_games=2)).run_id
        there.run(CacheSpec(**OF), CacheOptions(group_games=5, batch_games=2))
        for array in (other / "store/arrays").glob(f"{run_id.hex}-*"):
            if not (own / "store/arrays" / array.name).exists():
                shutil.copytree(array, own / "store/arrays" / array.name)
        merge_source(here.database, here.store, str(other / "registry.db"))
        with here.database.read() as sql:
            spec_hash = sql.get_one(tables.Run, run_id).spec_hash
        found = load_cache(here.inputs, f"run:{spec_hash}")
        assert found.array.rows == 12 * 6
        assert sorted(set(found.array.game)) == sorted(set(load_cache(there.inputs, f"run:{spec_hash}").array.game))
    assert run_command_line(words(own, "cache", "verify", run_id.hex[-6:])) == 0
    assert run_command_line(words(own, "doctor", "--json")) in (0, 1)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_kill_9_at_any_moment_of_a_cache_run(own, undisturbed, pristine_world, tmp_path, spawn):
    struck = 0
    for number in range(12):
        world = copied(pristine_world, tmp_path / str(number))
        process = spawn(words(world, "run", "cache", *SETTINGS, "--group-games", "4"))
        time.sleep(0.4 + 0.17 * number)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        struck += process.exitcode == -signal.SIGKILL
        assert run_command_line(words(world, "run", "cache", *SETTINGS, "--group-games", "4")) == 0
        with opened(world) as session:
            run_id = run_id_of(session)
            assert groups(session, run_id) == undisturbed
        assert run_command_line(words(world, "cache", "verify", run_id.hex[-6:])) == 0
        shutil.rmtree(world)
    assert struck > 2, "kills that strike nobody prove nothing"
