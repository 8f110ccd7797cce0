"""The message when a registry cannot be opened, read or written: one line, and a hint."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from chessreg.errors import BadInputError, ChessregError, NotFoundError, RegistryError
from chessreg.masking import mask
from chessreg.registry import migrations, names, tables
from chessreg.registry.database import Database
from chessreg.registry.engines import ServerUnreachableError, convert_database_errors, to_chessreg_error
from chessreg.registry.identity import make_id
from chessreg.registry.place import resolve_place
from chessreg.registry.sqlite import dbapi as sqlite3

from ..full_disk import no_space_beyond
from ..postgres import Door

NOBODY = 65534


def as_an_ordinary_user(job: Callable[[], object]) -> str:
    """The result of `job`, or its error, as text; run in a child to which file modes apply (they do not apply to
    root)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()  # leftovers of other tests, with threads that do not exist here, are not this child's to end
        try:
            if os.geteuid() == 0:
                os.seteuid(NOBODY)
            said = str(job())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        sys.stderr.flush()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, said
    return said


@pytest.fixture
def read_only(sqlite_path: Path, rows: Any) -> Iterator[Path]:
    """A registry with one run, in a folder and file that an ordinary user can only read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.db"
        path.write_bytes(sqlite_path.read_bytes())
        with Database.open(path) as database, database.write() as session:
            rows.run(session)
        assert sorted(p.name for p in path.parent.iterdir()) == ["registry.db"]
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        yield path
        Path(folder).chmod(0o755)


def count_runs(path: Path) -> object:
    with Database.open(path) as database, database.read() as session:
        return session.scalar(select(func.count()).select_from(tables.Run))


def write_a_word(path: Path) -> None:
    with Database.open(path) as database, database.write() as session:
        names.add_annotation(session, "run", make_id(), "tag", "x")


def test_a_read_only_registry_can_be_read_and_says_that_it_cannot_be_written(
    read_only: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert as_an_ordinary_user(lambda: count_runs(read_only)) == "1"
    assert f"{read_only} cannot be locked: reading a copy" in capfd.readouterr().err
    said = as_an_ordinary_user(lambda: write_a_word(read_only))
    assert said.startswith(f"RegistryError: the registry {read_only} is read-only (check the owner and mode")


def test_a_temporary_folder_without_space_for_that_copy_is_named(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited() -> None:
        with no_space_beyond(20_000):
            Database.open(read_only, create=False)

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        said = as_an_ordinary_user(limited)
        assert said.startswith(f"RegistryError: the registry {read_only} cannot be locked, and the disk is full at ")
        assert folder in said
        assert "set TMPDIR" in said
        assert not list(Path(folder).iterdir())


def test_a_copy_that_is_read_has_what_is_only_in_the_log(read_only: Path, rows: Any) -> None:
    with Database.open(read_only) as database:  # root, or the owner after a chmod: held open, so that the log stays
        read_only.parent.chmod(0o755)
        read_only.chmod(0o644)
        with database.write() as session:
            rows.run(session, 1)
        assert read_only.with_name("registry.db-wal").stat().st_size > 0
        for path in read_only.parent.iterdir():
            path.chmod(0o444)
        read_only.parent.chmod(0o555)
        assert as_an_ordinary_user(lambda: count_runs(read_only)) == "2"


def test_a_folder_that_cannot_be_written_gets_no_registry(read_only: Path) -> None:
    said = as_an_ordinary_user(lambda: Database.open(read_only.parent / "other.db"))
    assert said.startswith("RegistryError: the registry ")
    assert "check the owner and mode" in said
    said = as_an_ordinary_user(lambda: Database.open(read_only.parent / "folder" / "registry.db"))
    assert said.startswith(
        f"RegistryError: the folder {read_only.parent / 'folder'} cannot be created: Permission denied"
    )


def test_a_place_that_cannot_hold_a_registry_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"registry .* does not exist.*chessreg init"):
        Database.open(tmp_path / "registry.db", create=False)
    with pytest.raises(NotFoundError, match=r"folder .*/a/b does not exist .*mkdir -p"):
        Database.open(tmp_path / "a" / "b" / "registry.db")
    with pytest.raises(NotFoundError, match=r"/registry\.db"):
        Database.open(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["mysql://me:hunter2@box/x", "sqlite://", "sqlite:///:memory:", "postgresql://a:b:c:d"])
def test_a_url_of_something_else_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadInputError) as caught:
        Database.open(url)
    assert "hunter2" not in str(caught.value)


def test_a_full_disk_is_told_and_leaves_what_was_there(sqlite_path: Path, rows: Any) -> None:
    with Database.open(sqlite_path) as database:
        with database.write() as session:
            rows.run(session)
            pages = session.execute(text("PRAGMA page_count")).scalar()
        with database.write() as session:
            session.execute(text(f"PRAGMA max_page_count = {pages}"))  # of the one connection that writes
        with pytest.raises(RegistryError, match=r"disk is full \(free some space"), database.write() as session:
            session.add(rows.game(rows.run(session, 1).id, detail={"long": "x" * 10**6}))
        assert count_runs(sqlite_path) == 1


def test_a_disk_without_room_for_the_log_is_full(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    assert "disk I/O error" in to_chessreg_error(resolve_place(sqlite_path), error).message
    monkeypatch.setattr("chessreg.registry.engines.LOG_SPACE_BYTES", 2**70)
    assert "the disk is full" in to_chessreg_error(resolve_place(sqlite_path), error).message


def test_what_a_server_refuses_is_told_in_whatever_language(sqlite_path: Path) -> None:
    class Refusal(Exception):
        sqlstate = "42501"

    assert (
        "does not permit this" in to_chessreg_error(resolve_place(sqlite_path), Refusal("keine Berechtigung")).message
    )


def test_a_full_disk_of_a_server_is_told_in_whatever_language(postgres: Any) -> None:
    full = text("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'disque plein'; END $$")
    with Database.open(postgres.migrated()) as database, database.read() as session:
        with pytest.raises(RegistryError, match="the server's disk is full"), convert_database_errors(database.place):
            session.execute(full)
        session.rollback()


def test_a_number_beyond_64_bits_is_told(sqlite_path: Path) -> None:
    with Database.open(sqlite_path) as database, pytest.raises(BadInputError, match="too large"):  # noqa: SIM117
        with database.read() as session:
            session.scalar(text("SELECT :number"), {"number": 10**30})


def test_half_a_surrogate_is_no_text(sqlite_path: Path) -> None:
    with Database.open(sqlite_path) as database, pytest.raises(BadInputError, match="is not UTF-8"):  # noqa: SIM117
        with database.read() as session:
            session.scalar(text("SELECT :word"), {"word": "a" * 5000 + "\ud800"})


def test_a_damaged_file_is_told(sqlite_path: Path) -> None:
    content = bytearray(sqlite_path.read_bytes())
    content[100:] = bytes(len(content) - 100)
    sqlite_path.write_bytes(content)
    with pytest.raises(RegistryError, match=r"is damaged \(put back a copy"):
        Database.open(sqlite_path)


def test_a_writer_that_waits_in_vain_says_so(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chessreg.registry.sqlite.BUSY_TIMEOUT_S", 0.1)
    holder = sqlite3.connect(sqlite_path, isolation_level=None)
    with Database.open(sqlite_path) as database:
        with database.write():
            pass
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryError, match="stayed locked"), database.write():
            pass
        assert count_runs(sqlite_path) == 0  # a reader does not wait
    holder.close()


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    with pytest.raises(RegistryError, match=r"me:\*\*\*@localhost:1/x does not answer") as caught:
        Database.open("postgresql://me:hunter2@localhost:1/x")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(RegistryError, match=r"has an unknown host|does not answer"):
        Database.open("postgresql://nowhere.invalid/x")


def test_reads_wait_for_a_server_that_is_away_only_where_they_are_told_to(postgres: Any, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def leave() -> None:
        raise StopError

    door = Door(str(postgres.migrated()), tmp_path)
    door.open()
    lines: list[str] = []
    with Database.open(door.url) as database:
        door.close()
        database._dispose()
        with pytest.raises(ServerUnreachableError):
            database.data_version()
        with database.wait_for_server(lines.append, door.open):
            assert database.data_version().endswith(".0")
        assert [line.partition("the registry")[0] for line in lines] == ["waiting: ", ""]
        assert lines[1] == "the registry answers again"
        door.close()
        database._dispose()
        with pytest.raises(StopError), database.wait_for_server(lines.append, leave):
            database.data_version()
        with pytest.raises(ServerUnreachableError):
            database.data_version()


def test_a_database_that_the_server_lacks_is_told(postgres: Any) -> None:
    with pytest.raises(NotFoundError, match="is not a database of that server"):
        Database.open(postgres.url("nowhere"))


def test_a_wrong_password_is_told_without_it(postgres: Any) -> None:
    url = postgres.migrated()
    with postgres.administer() as connection:
        connection.execute(text("CREATE ROLE ann LOGIN PASSWORD 'right'"))
        (file,) = connection.execute(text("SHOW hba_file")).one()
        before = Path(file).read_text()
        Path(file).write_text("local all ann scram-sha-256\n" + before)
        connection.execute(text("SELECT pg_reload_conf()"))
    wrong = url.replace("postgres:@", "ann:hunter2@")
    assert wrong != url
    with pytest.raises(RegistryError, match="refused the user or password") as caught:
        Database.open(wrong)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(RegistryError, match="does not permit"), Database.open(wrong.replace("hunter2", "right")):
        pass


def test_a_url_is_shown_without_its_password(tmp_path: Path) -> None:
    assert repr(resolve_place("postgres://ann:hunter2@box/x")) == "Place(postgresql+psycopg://ann:***@box/x)"
    assert (
        mask("postgresql://box/x?password=hunter2&sslmode=require") == "postgresql://box/x?password=***&sslmode=require"
    )
    with Database.open(tmp_path / "registry.db") as database:
        assert repr(database) == f"Database({tmp_path / 'registry.db'})"


def test_a_place_is_given_by_path_url_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHESSREG_REGISTRY", raising=False)
    assert resolve_place().path == tmp_path / ".chessreg" / "registry.db"
    assert resolve_place("new").path == tmp_path / "new" / "registry.db", "a folder that is not there yet"
    assert resolve_place("new.db").path == tmp_path / "new.db"
    assert (
        resolve_place("a.db").path
        == resolve_place("sqlite:///a.db").path
        == resolve_place(f"sqlite:///{tmp_path}/a.db").path
    )
    monkeypatch.setenv("CHESSREG_REGISTRY", "postgres://box/x")
    assert resolve_place().reference == "postgresql+psycopg://box/x"


def test_status_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ChessregError):
        migrations.read_schema_status(tmp_path / "registry.db")
    assert list(tmp_path.iterdir()) == []
