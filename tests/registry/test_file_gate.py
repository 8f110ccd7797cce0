"""Two copies of SQLite in one process take turns at a file."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from chessreg.registry.database import Database
from chessreg.registry.file_gate import get_file_gate

PATIENCE = 300  # seconds for a short operation, on a busy machine


@pytest.fixture
def database(tmp_path: Path):
    with Database.open(tmp_path / "registry.db") as opened:
        yield opened


def open_files(path: Path) -> int:
    """Descriptors of this process on the registry's files."""
    return sum(str(path) in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_none_of_our_connections_is_open_during_a_foreign_read(database):
    with database.write() as session:
        session.execute(text("select 1"))
    with database.read() as session:
        session.execute(text("select count(*) from run")).all()
        assert open_files(database.place.path)
    with database.foreign_reader():
        assert open_files(database.place.path) == 0
    with database.read() as session:
        assert session.execute(text("select count(*) from run")).scalar() == 0


def test_a_foreign_reader_waits_for_a_transaction_and_new_ones_wait_for_it(database):
    order: list[str] = []
    entered = threading.Event()

    def ask() -> None:
        with database.foreign_reader():
            order.append("foreign")
            entered.set()
            time.sleep(0.05)
            order.append("foreign ends")

    def read() -> None:
        entered.wait(PATIENCE)
        with database.read():
            order.append("read")

    threads = [threading.Thread(target=ask), threading.Thread(target=read)]
    with database.write():
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        with database.read():  # a thread that is inside already does not wait for one that waits for it
            order.append("inner read")
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["inner read", "foreign", "foreign ends", "read"]


def test_what_would_wait_for_itself_is_refused(database):
    with (
        database.read(),
        pytest.raises(RuntimeError, match=r"inside read\(\) or write\(\) would deadlock"),
        database.foreign_reader(),
    ):
        pass
    with database.foreign_reader(), pytest.raises(RuntimeError, match="ADBC"), database.read():
        pass


def test_two_databases_of_one_file_share_their_gate(database, tmp_path):
    assert get_file_gate(tmp_path / "registry.db") is get_file_gate(tmp_path / "." / "registry.db")
    with Database.open(tmp_path / "registry.db") as other:
        with other.read() as session:
            session.execute(text("select count(*) from run")).all()
        with database.foreign_reader():
            assert open_files(database.place.path) == 0


@pytest.mark.slow
def test_many_threads_read_write_and_query_at_once(database):
    """Rows that a query sees were all committed, and none is lost (without turns, inserts failed within seconds)."""
    from chessreg.queries import run_sql
    from chessreg.registry import names

    stop, errors = threading.Event(), []

    def write() -> None:
        from chessreg.registry.identity import make_id

        try:
            while not stop.is_set():
                with database.write() as session:
                    names.add_annotation(session, "run", make_id(), "tag", "x")
        except Exception as error:
            errors.append(error)

    def ask() -> None:
        try:
            while not stop.is_set():
                seen.append(run_sql(database, "select count(*) as n from annotation").rows[0]["n"])
        except Exception as error:
            errors.append(error)

    seen: list[int] = []
    threads = [threading.Thread(target=target) for target in (write, write, ask)]
    for thread in threads:
        thread.start()
    while not errors and (len(seen) < 10 or not seen[-1]):
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    assert seen == sorted(seen)
    with database.read() as session:
        total = session.execute(text("select count(*) from annotation")).scalar()
    assert seen
    assert 0 < seen[-1] <= total
