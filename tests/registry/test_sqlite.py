"""The copy of SQLite that writes, its journal, and the guarantee of a commit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.queries.source import get_adbc_sqlite_version
from chessreg.registry import sqlite, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_id

OLD = (3, 51, 2)


def journal(path: Path) -> str:
    connection = sqlite.dbapi.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False), ((3, 44, 5), False), ((3, 44, 6), True), ((3, 45, 0), False), ((3, 50, 6), False),
        ((3, 50, 7), True), ((3, 51, 0), False), ((3, 51, 2), False), ((3, 51, 3), True), ((3, 53, 4), True),
    ],
)  # fmt: skip
def test_which_versions_keep_every_commit_of_a_log(version: tuple[int, ...], safe: bool) -> None:
    assert sqlite.is_log_safe(version) is safe


def test_a_safe_library_writes_a_log_and_flushes_every_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "is_log_safe", lambda version: True)
    path = tmp_path / "registry.db"
    with Database.open(path) as database, database.write() as session:
        assert session.connection().exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
    assert journal(path) == "wal"
    assert capsys.readouterr().err == ""


def test_an_old_library_writes_a_rollback_journal_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "registry.db"
    monkeypatch.setattr(sqlite, "is_log_safe", lambda version: True)
    Database.open(path).close()
    monkeypatch.setattr(sqlite, "is_log_safe", lambda version: False)
    for said in (1, 0):
        with Database.open(path) as database, database.write() as session:
            assert session.connection().exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert capsys.readouterr().err.count("rollback journal") == said
        assert journal(path) == "delete"
    new = tmp_path / "new.db"
    Database.open(new).close()
    assert "pip install pysqlite3" in capsys.readouterr().err
    assert journal(new) == "delete"


@pytest.mark.parametrize("word", ["NORMAL", "extra"])
def test_what_a_commit_promises_is_a_setting(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESSREG_SYNCHRONOUS", word)
    with Database.open(tmp_path / "registry.db") as database, database.write() as session:
        level = session.connection().exec_driver_sql("PRAGMA synchronous").scalar()
    assert level == {"NORMAL": 1, "extra": 3}[word]


def test_another_word_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESSREG_SYNCHRONOUS", "off")
    with pytest.raises(BadInputError, match="CHESSREG_SYNCHRONOUS is 'OFF'"):
        Database.open(tmp_path / "registry.db")


def test_without_the_wheel_pythons_own_copy_serves(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pysqlite3'] = None\n"
        "from chessreg.registry import sqlite; import sqlite3; assert sqlite.dbapi is sqlite3\n"
        "from chessreg.registry.database import Database; Database.open(sys.argv[1]).close()"
    )
    path = tmp_path / "registry.db"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True)
    with Database.open(path, create=False) as database, database.write() as session:
        session.add(tables.Tokenizer(name=make_id().hex, size=2, vocabulary=["a", "b"]))


def test_doctor_names_both_copies_and_finds_a_damaged_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "registry.db"
    Database.open(path).close()
    run_command_line(["--registry", str(path), "doctor"])
    out = capsys.readouterr().out
    assert f"{sqlite.dbapi.sqlite_version} writes" in out
    assert f"{get_adbc_sqlite_version()} reads (ADBC)" in out
    assert sqlite.check_integrity(path) == []
    with path.open("r+b") as file:
        file.seek(4096 * 5)
        file.write(b"\x55" * 4096)
    assert run_command_line(["--registry", str(path), "doctor"]) == 1
    assert "put back a copy" in " ".join(capsys.readouterr().out.split())


def test_a_file_that_an_old_library_cannot_change_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has the log open: better no write than one that may be lost."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(sqlite, "is_log_safe", lambda version: True)
    path = tmp_path / "registry.db"
    Database.open(path).close()
    other = sqlite.dbapi.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM sqlite_master").fetchone()
    monkeypatch.setattr(sqlite, "is_log_safe", lambda version: False)
    with Database.open(path, create=False) as database, pytest.raises(Exception, match="locked"), database.write():
        pass
    other.close()
    shutil.rmtree(tmp_path)
