"""A TUI that is kept open loses nothing that other programs write to its registry meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chessreg.registry import read
from chessreg.registry.sqlite import check_integrity
from chessreg.session import open_session

from ..file_locks import HAS_PROC_LOCKS, holds_log, watched

OTHER_PROGRAM = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
assert connection.execute("SELECT count(*) FROM run").fetchone()[0]
connection.close()
"""

NOTES = """
import sys
from chessreg.cli.root import run_command_line
for n in range(3):
    assert run_command_line(["--registry", sys.argv[1], "runs", "note", "toy", f"note {n}"]) == 0
"""


@pytest.mark.skipif(not HAS_PROC_LOCKS, reason="reads /proc/locks")
async def test_notes_survive_a_tui_that_is_open_while_they_are_made(
    drive: Any, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(world, tmp_path / "own"))
    registry = folder / "registry.db"

    def other_process(code: str) -> None:
        subprocess.run([sys.executable, "-c", code, str(registry)], check=True, capture_output=True)

    with watched(registry, monkeypatch) as watch:
        async with drive(folder) as driver:
            await driver.press("7", "enter", "escape", "4")  # a query is read through ADBC
            await driver.burst("1", "8", "2", "5", "4")  # several connections at once
            await driver.stand_on("sure")
            await driver.press("asterisk")
            assert holds_log(registry), "the TUI has an idle connection"
            for code in (OTHER_PROGRAM, NOTES, OTHER_PROGRAM):
                other_process(code)
            await driver.stand_on("plain")
            await driver.press("asterisk")
            assert holds_log(registry)
    assert watch.checks > 20
    assert check_integrity(registry) == []
    with open_session(str(registry), folder / "store") as session, session.database.read() as sql:
        assert read.read_run(sql, "toy")["notes"] == ["note 0", "note 1", "note 2"]
        assert read.read_run(sql, "plain")["starred"]
        assert read.read_run(sql, "sure")["starred"]
