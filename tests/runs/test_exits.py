"""A user's kind that ends the process: the run exits with a status other than 0, and the attempt keeps its cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.runs.exits import ProcessEndError
from chessreg.runs.ingest import ingest_fragments
from chessreg.runs.kind import find_kind
from chessreg.runs.watch import GONE_MESSAGE, mark_dead_attempts
from chessreg.session import open_session

LEAVING = """
import os
import sys
import threading

from chessreg.kinds import Kind, Spec

class Leaving(Kind):
    name, tables, spec = "leaving", ("score",), Spec

    def units(self, spec, inputs):
        return 2

    def run(self, task):
        for unit in task.units:
            if unit == 1:
                WAY
            task.emit("score", unit, split="all", item=unit, n=1, correct=1)
            task.done(unit)
            task.flush()
"""
FORKED = "child = os.fork() or os._exit(7); assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"


@pytest.fixture
def leaving(tmp_path: Any) -> Any:
    def written(way: str) -> str:
        (tmp_path / "leaving.py").write_text(LEAVING.replace("WAY", way))
        return str(tmp_path / "leaving.py")

    return written


def attempts(session: Any) -> list[tuple[str, str, str | None, int]]:
    tried = tables.Attempt
    with session.database.read() as sql:
        found = sql.scalars(select(tried).order_by(tried.started_at)).all()
        return [(row.state.value, row.cause.value, row.message, row.units_done) for row in found]


def test_an_exit_below_python_is_an_error_that_names_the_kind_and_its_line(session, leaving):
    path = leaving("os._exit(0)")
    line = LEAVING.splitlines().index("                WAY") + 1
    said = f"your kind leaving called os._exit, which ends the process ({path}, line {line}: raise an error instead)"
    with pytest.raises(ProcessEndError) as caught:
        session.run(find_kind(path).spec(), kind=path)
    assert str(caught.value) == said
    assert attempts(session) == [("failed", "failed", f"ProcessEndError: {said}", 1)]
    path = leaving("pass")
    assert session.run(find_kind(path).spec(), kind=path).missing_before == 1


def test_a_file_that_ends_the_process_when_it_is_imported_is_refused(leaving):
    for way in ("os._exit(0)", "from os import _exit; _exit(0)"):
        path = leaving("pass")
        with open(path, "a") as file:
            file.write(f"\n{way}\n")
        with pytest.raises(ProcessEndError, match=r"your kind's file called os\._exit"):
            find_kind(path)
    with open(leaving("pass"), "a") as file:
        file.write("\nsys.exit(0)\n")
    with pytest.raises(BadInputError, match=r"fails to import: SystemExit\(0\)"):
        find_kind(path)


def test_processes_that_a_kind_forks_and_code_that_is_no_kind_end_as_they_did(session, leaving):
    path = leaving(FORKED)
    assert session.run(find_kind(path).spec(), kind=path).state == "complete"
    child = os.fork() or os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("sys.exit(0)", "error: your kind leaving raised SystemExit: 0"),
        ("threading.Thread(target=lambda: os._exit(0)).start(); threading.Event().wait()", "called os._exit"),
    ],
)
def test_a_command_whose_kind_ends_it_has_not_succeeded(leaving, spawn, tmp_path, way, said):
    words = ["run", leaving(way), "--registry", str(tmp_path / "registry.db")]
    process = spawn(words, tmp_path / "said")
    process.join(60)
    assert process.exitcode == 1
    assert said in (tmp_path / "said").read_text()


def test_the_exit_of_the_c_library_is_no_success_and_the_same_command_goes_on(leaving, spawn, tmp_path, capsys):
    place = ["--registry", str(tmp_path / "registry.db")]
    process = spawn(["run", leaving("__import__('ctypes').CDLL(None).exit(0)"), *place])
    process.join(60)
    assert process.exitcode == -signal.SIGABRT
    with open_session(str(tmp_path / "registry.db")) as session:
        ingest_fragments(session.database, session.store)
        mark_dead_attempts(session.database)
        assert attempts(session) == [("lost", "killed", GONE_MESSAGE, 1)]
    assert run_command_line(["run", leaving("pass"), *place]) == 0
    assert "complete: 2 units" in capsys.readouterr().err


@pytest.mark.parametrize(("end", "status"), [("pass", 0), ("sys.exit(3)", 3), ("C.exit(0)", -signal.SIGABRT)])
def test_python_ends_as_it_did_and_what_ends_it_from_below_is_shown(end, status):
    lines = "import ctypes, sys\nfrom chessreg.runs import exits\nexits.guard_process_exit()\n"
    lines += f"C = ctypes.CDLL(None)\n{end}"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", lines], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert ("line 5 in <module>" in done.stderr) == (status < 0), done.stderr
