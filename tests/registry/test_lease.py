"""A registry on a network file system: one process writes, and the others read and report the writer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from chessreg.errors import RegistryError
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.lease import Lease
from chessreg.registry.sqlite import dbapi as sqlite3
from chessreg.registry.sqlite import find_network_file_system
from store.process import get_process_start, read_boot_id

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from chessreg.registry.database import Database
from chessreg.registry import names
from chessreg.registry.identity import make_id
with Database.open(sys.argv[1]) as database:
    with database.write() as session:
        names.add_annotation(session, "run", make_id(), "tag", "x")
    print("holds", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder counts as one on a network file system."""
    monkeypatch.setenv("CHESSREG_NETWORK_FILESYSTEM", "1")


@pytest.fixture
def holder(network: None, sqlite_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has written the registry and keeps it open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(sqlite_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "holds\n"
    yield process
    if process.poll() is None:
        process.communicate("\n", timeout=300)


def write_run(path: Path, rows: Any, seed: int = 0) -> None:
    with Database.open(path) as database, database.write() as session:
        rows.run(session, seed)


def count(path: Path, table: Any) -> int | None:
    with Database.open(path) as database, database.read() as session:
        return session.scalar(select(func.count()).select_from(table))


def test_who_does_not_hold_it_reads_and_is_told_who_does(
    sqlite_path: Path, rows: Any, holder: subprocess.Popen[str]
) -> None:
    assert count(sqlite_path, tables.Annotation) == 1
    who = rf"network file system and is being written by process {holder.pid} on {socket.gethostname()} since 20"
    with pytest.raises(RegistryError, match=who):
        write_run(sqlite_path, rows)
    holder.communicate("\n", timeout=300)
    write_run(sqlite_path, rows)
    assert count(sqlite_path, tables.Run) == 1
    assert [path.name for path in sqlite_path.parent.iterdir() if "lease" in path.name] == []


def test_a_killed_holder_of_this_host_is_noticed_at_once(
    sqlite_path: Path, rows: Any, holder: subprocess.Popen[str]
) -> None:
    holder.kill()
    holder.wait()
    assert Lease(sqlite_path).file.exists()
    write_run(sqlite_path, rows)
    assert count(sqlite_path, tables.Run) == 1


AGAIN = """
    for line in sys.stdin:
        try:
            with database.write() as session:
                names.add_annotation(session, "run", make_id(), "tag", "y")
            print("written", flush=True)
        except Exception as error:
            print(error, flush=True)
"""


def test_a_holder_that_was_suspended_while_its_lease_went_to_another_writes_no_more(
    network: None, sqlite_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.replace("    sys.stdin.readline()\n", AGAIN.lstrip("\n")), str(sqlite_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "holds\n"
    os.kill(process.pid, signal.SIGSTOP)
    lease = Lease(sqlite_path)
    with pytest.raises(RegistryError, match=f"remove {lease.file}"):
        lease.hold()  # a suspended process has not ended
    lease.file.unlink()  # as the message says
    lease.hold()
    os.kill(process.pid, signal.SIGCONT)
    process.stdin.write("write\n")
    process.stdin.flush()
    assert f"is being written by process {os.getpid()}" in process.stdout.readline()
    lease.release()
    out, _ = process.communicate("write\n", timeout=300)
    assert out == "written\n", "with the lease free it takes it again"
    assert count(sqlite_path, tables.Annotation) == 2
    assert not lease.file.exists()


@pytest.mark.parametrize(
    ("changed", "gone"),
    [
        ({}, False),
        ({"boot_id": "another"}, True),
        ({"boot_id": "another", "system_id": "another"}, False),  # a machine of the same name
        ({"boot_id": "another", "system_id": None}, False),  # of a machine that has no id, as this one has
        ({"boot_id": f"{read_boot_id().partition('.')[0]}.1"}, False),  # another container of this machine
        ({"started": 1.0}, True),  # the process id was given out again
        ({"pid": 2**22 + 1}, True),
        ({"host": "box2", "boot_id": "another"}, False),  # it cannot be determined here
    ],
)
def test_a_lease_falls_when_its_process_is_surely_gone(
    network: None,
    sqlite_path: Path,
    rows: Any,
    changed: dict[str, Any],
    gone: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.process.read_system_id", lambda: "own")  # not every machine has one
    lease = Lease(sqlite_path)
    parent = os.getppid()
    written = {"host": socket.gethostname(), "system_id": "own", "boot_id": read_boot_id()}
    written |= {"pid": parent, "started": get_process_start(parent)}
    lease.file.write_text(json.dumps(written | {"since": "then"} | changed))
    if gone:
        write_run(sqlite_path, rows)
        assert not lease.file.exists()
    else:
        with pytest.raises(RegistryError, match=f"remove {lease.file}"):
            write_run(sqlite_path, rows)
        assert lease.file.exists()


def test_one_process_holds_it_through_several_objects_until_the_last_is_closed(
    network: None, sqlite_path: Path, rows: Any
) -> None:
    lease = Lease(sqlite_path)
    one, two = Database.open(sqlite_path), Database.open(sqlite_path)
    assert not lease.file.exists()  # reading takes none
    for seed, database in enumerate((one, two)):
        with database.write() as session:
            rows.run(session, seed)
    one.close()
    assert lease.file.exists()
    two.close()
    assert not lease.file.exists()


def test_there_the_journal_is_one_that_a_network_file_system_can_carry(
    sqlite_path: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def journal() -> str:
        with closing(sqlite3.connect(sqlite_path)) as connection:  # left open it would hold the file
            return str(connection.execute("PRAGMA journal_mode").fetchone()[0])

    write_run(sqlite_path, rows, 0)
    assert journal() == "wal"
    monkeypatch.setenv("CHESSREG_NETWORK_FILESYSTEM", "1")
    write_run(sqlite_path, rows, 1)
    assert journal() == "delete"
    monkeypatch.setenv("CHESSREG_NETWORK_FILESYSTEM", "0")
    write_run(sqlite_path, rows, 2)
    assert journal() == "wal"
    assert count(sqlite_path, tables.Run) == 3


def test_four_processes_that_want_it_at_once_never_hold_it_together(
    network: None, sqlite_path: Path, processes: Any
) -> None:
    script = """
import sys, time
from pathlib import Path
from chessreg.errors import RegistryError
from chessreg.registry.lease import Lease
path = Path(sys.argv[1])
inside = path.with_name("inside")
held = 0
while held < 6:
    lease = Lease(path)
    try:
        lease.hold()
    except RegistryError:
        time.sleep(0.001)
        continue
    inside.touch(exist_ok=False)
    held += 1
    inside.unlink()
    lease.release()
print(held)
"""
    done = processes(script, 4, str(sqlite_path))
    assert [p.stderr for p in done] == [""] * 4
    assert [int(p.stdout) for p in done] == [6] * 4


def test_network_file_systems_are_known_by_their_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHESSREG_NETWORK_FILESYSTEM", raising=False)
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "box:/home /home nfs4 rw 0 0\n"
        "box:/my /mnt/my\\040data fuse.sshfs rw 0 0\n"
        "/dev/sdb1 /home/local xfs rw 0 0\n"
        "box:/old /srv nfs rw 0 0\n"
        "/dev/sdc1 /srv btrfs rw 0 0\n"
    )
    found = {
        path: find_network_file_system(Path(path), mounts)
        for path in ("/home/ann/r.db", "/homework/r.db", "/mnt/my data/r.db", "/home/local/r.db", "/srv/r.db")
    }
    assert found == {
        "/home/ann/r.db": "nfs4",
        "/homework/r.db": None,
        "/mnt/my data/r.db": "fuse.sshfs",
        "/home/local/r.db": None,
        "/srv/r.db": None,
    }
    assert find_network_file_system(tmp_path / "r.db") is None or os.path.ismount(tmp_path)
