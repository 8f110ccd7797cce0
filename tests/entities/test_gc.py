"""Unneeded files can be removed and restored; needed files stay, and rows always stay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from sqlalchemy import func, select

from chessreg import doctor as health
from chessreg.entities import gc
from chessreg.registry import names, tables
from chessreg.registry.tables.types import get_utc_now
from chessreg.session import open_session
from store.fragments import FRAGMENT_SUFFIX, FragmentWriter, list_ingested, list_pending

LATER = 2 * gc.MIN_AGE_S


@pytest.fixture
def session(world, tmp_path):
    shutil.copytree(world, tmp_path / "world")
    with open_session(str(tmp_path / "world" / "registry.db"), tmp_path / "world" / "store") as opened:
        yield opened


def found(session) -> list[gc.UnusedBytes]:
    return gc.find_unused(session.database, session.store, now=time.time() + LATER)


def archive(session, noun: str, name: str) -> None:
    with session.database.write() as sql:
        names.add_annotation(sql, noun, names.resolve_id(sql, noun, name), "archive")


def test_nothing_that_is_registered_is_rubbish(session):
    assert [item for item in found(session) if "scratch" not in item.what] == []


def test_a_leftover_artifact_is_rubbish_once_it_is_old_enough(session, tmp_path):
    (tmp_path / "left.txt").write_text("over")
    artifact = session.store.add(tmp_path / "left.txt", "file")
    assert gc.find_unused(session.database, session.store) == []  # young: it may be about to be registered
    (item,) = [i for i in found(session) if i.what.startswith("artifact")]
    assert (item.what, item.why) == (f"artifact {artifact.digest[:12]}", "nothing registered refers to it")


LEAVE = """
import os, signal, sys
from pathlib import Path
from store import Store
from store.files import WriterLock
store = Store(sys.argv[1])
WriterLock(store.tmp, "array-1")
with store.stage("dataset") as folder:
    (folder / "games.parquet").write_bytes(b"0" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_unfinished_is_reported_and_removed_at_once(session):
    with session.store.stage("probe") as ours:  # of a living process
        (ours / "weights").write_bytes(b"half")
        subprocess.run([sys.executable, "-c", LEAVE, str(session.store.root)])
        rubbish = gc.find_unused(session.database, session.store)
        assert {item.what for item in rubbish} == {"unfinished dataset", "unfinished lock"}
        assert all(item.why.startswith("process ") and item.why.endswith(" has ended") for item in rubbish)
        (problem,) = health.find_leftovers(session.store)
        assert "left 2 unfinished files or folders" in problem.detail
        assert gc.move_to_bin(session.store, rubbish) >= 1000
        assert list(session.store.tmp.iterdir()) == [ours]
        assert gc.list_bin(session.store) == []
        assert list(health.find_leftovers(session.store)) == []


@pytest.mark.parametrize("folder", ["incoming", "quarantine"])
def test_what_a_fragment_names_is_no_rubbish_before_it_is_taken_in(session, tmp_path, folder):
    (tmp_path / "made.txt").write_text("a unit's")
    digest = session.store.add(tmp_path / "made.txt", "file").digest
    assert any(digest in item.path for item in found(session))
    with FragmentWriter(session.store, "0" * 32, "1" * 32) as writer:
        writer.add("output", {"digest": digest})
    (fragment,) = list_pending(session.store)
    fragment.path.rename(session.store.root / "fragments" / folder / fragment.name)
    (session.store.quarantine / f"odd{FRAGMENT_SUFFIX}").write_text("no fragment")
    assert not any(digest in item.path for item in found(session))


def test_what_is_published_again_while_gc_looks_stays(session, tmp_path):
    (tmp_path / "left.txt").write_text("over")
    artifact = session.store.add(tmp_path / "left.txt", "file")
    os.utime(artifact.path, (1.0, 1.0))
    now = time.time()
    rubbish = gc.find_unused(session.database, session.store, now=now)
    assert str(artifact.path.relative_to(session.store.root)) in {item.path for item in rubbish}
    session.store.add(tmp_path / "left.txt", "file")
    gc.move_to_bin(session.store, rubbish, now)
    assert session.store.verify(artifact.digest)


def test_an_archived_run_gives_its_bytes_up_but_not_while_a_live_one_rests_on_it(session):
    archive(session, "run", "reference-fit")
    assert [i for i in found(session) if i.what.startswith("array")] == []  # the probe was fitted on it
    archive(session, "run", "reference-board")
    archive(session, "run", "skill")
    arrays = [i for i in found(session) if i.what.startswith("array")]
    assert arrays
    assert all("only archived" in item.why for item in arrays)


def test_what_is_removed_comes_back_until_the_bin_is_emptied(session):
    for name in ("reference-board", "skill"):
        archive(session, "run", name)
    with session.database.read() as sql:
        rows = sql.scalar(select(func.count()).select_from(tables.ProbeRecord))
    rubbish = found(session)
    digest = session.store.list("probe")[0].digest
    assert gc.move_to_bin(session.store, rubbish) == sum(item.bytes for item in rubbish) > 0
    assert not session.store.exists(digest)
    gc.restore_from_bin(session.store)
    assert session.store.verify(digest)
    gc.move_to_bin(session.store, found(session))
    assert gc.empty_bin(session.store, older_than=3600) == 0  # not long enough in the bin
    assert gc.empty_bin(session.store, older_than=0) > 0
    assert gc.restore_from_bin(session.store) == []
    with session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.ProbeRecord)) == rows


def test_other_names_in_the_bin_stay_and_stop_nobody(session):
    archive(session, "run", "skill")
    gc.move_to_bin(session.store, found(session))
    bin_folder = session.store.root / gc.BIN_FOLDER
    (bin_folder / ".DS_Store").write_bytes(b"")
    for name in ("mine", "20261025T010000Z"):
        (bin_folder / name / "artifacts" / "ab" / "cd").mkdir(parents=True)
    assert not any(item.path.startswith("bin/mine") for item in gc.list_bin(session.store))
    gc.empty_bin(session.store, older_than=0)
    assert {path.name for path in bin_folder.iterdir()} == {".DS_Store", "mine"}
    assert gc.parse_bin_time("20261025T010000Z") == 1792890000.0  # the clocks of Europe go back in this hour


def test_scratch_of_a_complete_run_goes_and_the_logs_of_its_jobs_stay(session):
    with session.database.read() as sql:
        run = names.resolve_id(sql, "run", "reference-board").hex
    for name in ("jobs/1/log.txt", "training/state.pt", "left.bin"):
        path = session.store.runs / run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    scratch = [item for item in found(session) if item.what == f"scratch of run {run[-6:]}"]
    assert [(item.path.rpartition("/")[2], item.bytes) for item in scratch] == [("left.bin", 5), ("training", 5)]
    gc.move_to_bin(session.store, scratch)
    assert [path.name for path in (session.store.runs / run).iterdir()] == ["jobs"]
    assert len(gc.restore_from_bin(session.store)) == 2
    assert (session.store.runs / run / "training" / "state.pt").read_bytes() == b"12345"


def test_what_is_gone_already_stops_nobody(session):
    """Bytes that a registered thing refers to, and others between looking and removing."""
    shutil.rmtree(next(iter(session.store.list("vector"))).path)
    for name in ("reference-board", "skill"):
        archive(session, "run", name)
    first, *others = rubbish = found(session)
    shutil.rmtree(session.store.root / first.path)
    assert gc.move_to_bin(session.store, rubbish) == sum(item.bytes for item in others)
    assert found(session) == []
    before = places(session)
    assert len(gc.restore_from_bin(session.store)) == len(before) == len(others)


def places(session) -> set[str]:
    return {str(path.relative_to(session.store.root / gc.BIN_FOLDER)) for path in gc.list_bin_folders(session.store)}


def test_doctor_misses_nothing_that_only_archived_things_need_and_mends_what_is_needed_again(session):
    with session.database.write() as sql:  # this copy's own places
        for artifact in session.store.list():
            uri = str(session.store.path(artifact.digest))
            sql.merge(tables.ArtifactLocation(digest=artifact.digest, uri=uri, verified_at=get_utc_now()))

    def missing() -> list[health.Problem]:
        return list(health.find_missing_files(session.database, session.store))

    for name in ("reference-board", "skill", "reference-test"):
        archive(session, "run", name)
    gc.move_to_bin(session.store, found(session))
    assert len(places(session)) >= 3
    assert missing() == []
    with session.database.write() as sql:
        names.add_annotation(sql, "run", names.resolve_id(sql, "run", "reference-test"), "archive", withdrawn=True)
    (binned,) = missing()
    assert "is in the bin" in binned.detail
    assert binned.hint == "chessreg gc --restore"
    assert health.apply_fix(binned).startswith("fixed")
    assert missing() == []
    shutil.rmtree(session.store.arrays / next(iter(arrays(session))))
    (gone,) = missing()
    assert "is not in" in gone.detail


def arrays(session) -> set[str]:
    return {path.name for path in session.store.arrays.iterdir()}


def test_fragments_of_complete_runs_go_once_backups_have_their_rows(session):
    late = time.time() + (gc.FRAGMENT_DAYS + 1) * gc.SECONDS_PER_DAY

    def fragments() -> list[gc.UnusedBytes]:
        return [item for item in gc.find_unused(session.database, session.store, now=late) if "fragments" in item.what]

    with session.database.read() as sql:
        complete = {run.hex for run in sql.scalars(select(tables.Run.id).where(tables.Run.completed_at.is_not(None)))}
        rows = sql.scalar(select(func.count()).select_from(tables.FragmentRecord))
    assert [item for item in found(session) if "fragments" in item.what] == []
    rubbish = fragments()
    assert {item.path.rpartition("/")[2] for item in rubbish} == complete & {
        f.run_id for f in list_ingested(session.store)
    }
    assert len(rubbish) > 0
    first = list_ingested(session.store, rubbish[0].path.rpartition("/")[2])[0]
    with session.database.write() as sql:  # the registry is restored from an older backup
        sql.delete(sql.get_one(tables.FragmentRecord, first.name))
    assert {item.path for item in rubbish} - {item.path for item in fragments()} == {rubbish[0].path}
    gc.move_to_bin(session.store, rubbish[1:], late)
    assert {f.run_id for f in list_ingested(session.store)} & {i.path.rpartition("/")[2] for i in rubbish[1:]} == set()
    gc.restore_from_bin(session.store)
    with session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.FragmentRecord)) == rows - 1
    assert len(fragments()) == len(rubbish) - 1
