"""No code path drops the POSIX locks of a registry that this process has open, and no acknowledged commit is lost."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from chessreg.errors import BadInputError, ChessregError
from chessreg.queries import run_sql, source
from chessreg.queries.render import write_file
from chessreg.queries.stop import StoppedError
from chessreg.registry import migrations, names, provenance, sqlite
from chessreg.registry.database import Database
from chessreg.registry.engines import allow_connections, create_reader_engine
from chessreg.registry.file_gate import get_file_gate
from chessreg.registry.identity import make_id
from chessreg.registry.place import resolve_place
from chessreg.runs.inputs import require_user_file
from tests.quick import quick_first

from ..file_locks import HAS_PROC_LOCKS, descriptors, holds_log, read_once, watched

pytestmark = pytest.mark.skipif(not HAS_PROC_LOCKS, reason="reads /proc/locks")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An open registry with an idle connection."""
    with Database.open(tmp_path / "registry.db") as opened:
        with opened.write() as session:
            names.add_annotation(session, "run", make_id(), "tag", "x")
        read_once(opened)
        assert holds_log(opened.place.path)
        yield opened


def opened_again(path: Path) -> None:
    with Database.open(path) as other:
        read_once(other)


def opened_by_another_name(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    opened_again(link)


def in_many_threads(path: Path) -> None:
    """Each has a separate connection at the same moment."""
    inside = threading.Barrier(4)
    with Database.open(path) as other:

        def read() -> None:
            with other.read() as session:
                session.execute(text("SELECT count(*) FROM run")).all()
                inside.wait(60)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)


def stopped_query(path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with Database.open(path) as other, pytest.raises(StoppedError), source.open_reader(other) as reader:
        reader.table("annotation", stop=stop)


def failing_query(path: Path) -> None:
    with Database.open(path) as other, pytest.raises(ChessregError), source.open_reader(other) as reader:
        reader._answer("SELECT * FROM nothing")


def query(path: Path) -> None:
    with Database.open(path) as other:
        assert run_sql(other, "SELECT count(*) AS n FROM annotation").rows[0]["n"] == 1


def query_by_another_name(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    query(link)


def code_state(path: Path) -> None:
    """The registry is an untracked file of the working folder."""
    subprocess.run(["git", "init", "-q", str(path.parent)], check=True)
    (path.parent / "notes.txt").write_text("mine\n")
    state = provenance.read_repository_state(path.parent)
    assert state is not None
    listed = str(state["untracked"])
    assert "notes.txt" in listed
    assert "registry.db" not in listed


def named_as_input(path: Path) -> None:
    with pytest.raises(BadInputError, match="belongs to the open registry"):
        require_user_file(str(path))


def named_as_output(path: Path) -> None:
    with pytest.raises(BadInputError, match="belongs to the open registry"):
        write_file(path.with_name("registry.db-wal"), b"")


def copied(path: Path) -> None:
    """A copy to read from, where no lock can be taken."""
    copies = sqlite.RegistryCopies()
    with get_file_gate(path).use_with_python():
        connection = copies.connect(path)
    assert connection.execute("SELECT count(*) FROM annotation").fetchone() == (1,)
    connection.close()
    copies.remove()


def checked(path: Path) -> None:
    assert sqlite.check_integrity(path) == []


def selected(path: Path) -> None:
    """As `chessreg query --list` reads the kinds."""
    assert sqlite.read_rows(path, "SELECT count(*) FROM annotation") == [(1,)]


def backed_up(path: Path) -> None:
    with Database.open(migrations.back_up_registry(path)) as copy:
        read_once(copy)


PATHS: list[Callable[[Path], object]] = [
    opened_again, opened_by_another_name, in_many_threads, query, query_by_another_name, stopped_query, failing_query,
    code_state, named_as_input, named_as_output, copied, checked, selected, backed_up,
    migrations.read_schema_status, migrations.upgrade_registry,
]  # fmt: skip


@pytest.mark.parametrize("path", quick_first(6, PATHS), ids=lambda path: path.__name__)
def test_the_locks_of_an_open_registry_stay(
    path: Callable[[Path], object], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = database.place.path
    assert registry is not None
    with watched(registry, monkeypatch) as watch:
        path(registry)
        read_once(database)
    assert watch.checks
    assert holds_log(registry)


def test_a_connection_outside_the_gate_is_refused(database: Database) -> None:
    place = resolve_place(database.place.path)
    engine = create_reader_engine(place)
    with pytest.raises(RuntimeError, match="outside its FileGate"), engine.connect():
        pass
    with allow_connections(place), engine.connect():
        pass
    engine.dispose()


def test_a_replaced_file_has_a_gate_of_its_own(database: Database) -> None:
    """A registry put back from a backup while it is open is another file at the same path."""
    path = database.place.path
    assert path is not None
    copy = migrations.back_up_registry(path)
    before = get_file_gate(path)
    os.replace(copy, path)
    assert get_file_gate(path) is not before


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3", b"SQLite format 3\0", b"x" * 100, b"\0" * 5000])
def test_sqlite_itself_refuses_what_is_no_database(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(content)
    for opened in (
        Database.open,
        migrations.upgrade_registry,
        migrations.read_schema_status,
        migrations.back_up_registry,
    ):
        with pytest.raises(ChessregError, match=r"registry\.db is (not a SQLite database|damaged)"):
            opened(path)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["registry.db"]


def test_a_forked_child_takes_locks_of_its_own(database: Database) -> None:
    path = database.place.path
    assert path is not None
    child = os.fork()
    if child == 0:
        gc.disable()  # leftovers of other tests are not this child's to end
        try:
            read_once(database)
            os._exit(0 if holds_log(path) else 3)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    read_once(database)
    assert holds_log(path)


def test_a_child_forked_inside_a_transaction_cannot_open_the_registry(database: Database) -> None:
    with database.read():
        child = os.fork()
        if child == 0:
            gc.disable()
            try:
                Database.open(database.place.path)
            except RuntimeError as error:
                os._exit(0 if "was in use when this process was forked" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    read_once(database)


# -- the purpose of the locks ------------------------------------------------------------------------------------------

OUTSIDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM run").fetchone()
connection.close()
"""
NOTES = """
import sys
from chessreg.registry import names
from chessreg.registry.database import Database
from chessreg.registry.identity import make_id
for n in range(3):
    with Database.open(sys.argv[1]) as database, database.write() as session:
        names.add_annotation(session, "run", make_id(), "note", f"note {n}")
"""


def test_another_program_cannot_delete_the_log_that_is_written_here(database: Database) -> None:
    """Every path above is walked, then another program opens and closes the registry, as its last user would."""
    path = database.place.path
    assert path is not None
    log = path.with_name(path.name + "-wal")
    for walk in PATHS:
        if walk not in (opened_by_another_name, query_by_another_name):
            walk(path)
    with database.write() as session:
        names.add_annotation(session, "run", make_id(), "note", "mine")
    read_once(database)
    inode = log.stat().st_ino
    subprocess.run([sys.executable, "-c", OUTSIDER, str(path)], check=True)
    assert log.stat().st_ino == inode
    assert descriptors(log)
    subprocess.run([sys.executable, "-c", NOTES, str(path)], check=True)
    with database.write() as session:
        names.add_annotation(session, "run", make_id(), "note", "mine again")
    database.close()
    with Database.open(path) as after, after.read() as session:
        notes = session.execute(text("SELECT value FROM annotation WHERE word = 'note' ORDER BY at")).scalars().all()
    assert notes == ["mine", "note 0", "note 1", "note 2", "mine again"]
