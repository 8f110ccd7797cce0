"""What nothing needs can go, and come back; what anything needs stays, and rows always do."""

from __future__ import annotations

import shutil
import time

import pytest
from sqlalchemy import func, select

from chessreg.jobs import gc
from chessreg.registry import names, tables
from chessreg.session import open_session

LATER = 2 * gc.YOUNG


@pytest.fixture
def session(world, tmp_path):
    shutil.copytree(world, tmp_path / "world")
    with open_session(str(tmp_path / "world" / "registry.db"), tmp_path / "world" / "store") as opened:
        yield opened


def found(session) -> list[gc.Rubbish]:
    return gc.find(session.database, session.store, now=time.time() + LATER)


def archive(session, noun: str, name: str) -> None:
    with session.database.write() as sql:
        names.say(sql, noun, names.resolve(sql, noun, name), "archive")


def test_nothing_that_is_registered_is_rubbish(session):
    assert [item for item in found(session) if "scratch" not in item.what] == []


def test_a_leftover_artefact_is_rubbish_once_it_is_old_enough(session, tmp_path):
    (tmp_path / "left.txt").write_text("over")
    artefact = session.store.add(tmp_path / "left.txt", "file")
    assert gc.find(session.database, session.store) == []  # young: it may be about to be registered
    (item,) = [i for i in found(session) if i.what.startswith("artefact")]
    assert (item.what, item.why) == (f"artefact {artefact.digest[:12]}", "nothing registered refers to it")


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
        rows = sql.scalar(select(func.count()).select_from(tables.Probe))
    rubbish = found(session)
    digest = session.store.list("probe")[0].digest
    assert gc.remove(session.store, rubbish) == sum(item.bytes for item in rubbish) > 0
    assert not session.store.exists(digest)
    gc.restore(session.store)
    assert session.store.verify(digest)
    gc.remove(session.store, found(session))
    assert gc.empty(session.store, older_than=3600) == 0  # not long enough in the bin
    assert gc.empty(session.store, older_than=0) > 0
    assert gc.restore(session.store) == []
    with session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.Probe)) == rows
