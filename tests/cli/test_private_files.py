"""Files written by chessreg are private to the user under any umask, and shared if the folder belongs to a group."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chessreg.registry.sqlite import dbapi
from chessreg.scheduling.presence import Presence
from store import Store

TYPED = """
import sys, json
from chessreg.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Any]:
    """Commands in the folder `tmp_path / "here"`, one after the other in a separate process, under a umask; processes
    that they leave running end with the test."""
    here = tmp_path / "here"
    here.mkdir()

    def typed(umask: int, *lines: str) -> None:
        state = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        env = {name: value for name, value in os.environ.items() if not name.startswith("CHESSREG")} | state
        command = [sys.executable, "-c", TYPED, json.dumps([line.split() for line in lines])]
        done = subprocess.run(command, cwd=here, env=env, umask=umask, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

    yield typed
    for store in here.glob("**/store.json"):
        if who := Presence(Store(store.parent, read_only=True)).read_holder():
            os.kill(who["pid"], signal.SIGKILL)


def modes(folder: Path) -> dict[str, int]:
    """Every path below, with its mode; locks and sockets included."""
    found = {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    assert len(found) > 20
    return found


def wrong(folder: Path, of_file: int, of_folder: int) -> dict[str, str]:
    return {
        name: oct(mode)
        for name, mode in modes(folder).items()
        if mode not in (of_file & ~0o200, of_file, of_folder) or (folder / name).is_dir() != (mode == of_folder)
    }


@pytest.mark.parametrize(
    "umask", [0o000, *(pytest.param(umask, marks=pytest.mark.slow) for umask in (0o022, 0o277))], ids=oct
)
def test_what_commands_write_is_for_its_user_alone(typed: Any, tmp_path: Path, umask: int) -> None:
    here = tmp_path / "here"
    typed(umask, "init")
    connection = dbapi.connect(here / ".chessreg" / "registry.db")
    connection.execute("SELECT count(*) FROM run").fetchone()  # the log and its index exist while a process reads
    launch = f"launch {TOY}:Toy --positions 3 --name first --device cpu"
    typed(umask, launch, "wait first", "db backup", "query --sql SELECT*FROM(toy) --format csv --output out.csv")
    connection.close()
    assert list(here.glob(".chessreg/backups/*.db"))
    assert list(here.glob(".chessreg/store/**/*log*"))
    assert not wrong(here, 0o600, 0o700)


@pytest.mark.slow
def test_a_folder_that_is_given_to_a_group_stays_the_groups(typed: Any, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.chmod(0o2770)
    typed(0o022, "init", f"run {TOY}:Toy --positions 3", "db backup")
    assert not wrong(here, 0o660, 0o2770)


def test_the_library_too_makes_a_private_registry_and_store(tmp_path: Path) -> None:
    code = "import chessreg; chessreg.init('new/registry.db').close()"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, umask=0, check=True, timeout=300)
    found = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert found["new"] == found["new/store"] == found["new/store/fragments"] == found["new/store/arrays"] == 0o700
    assert found["new/registry.db"] == 0o600


@pytest.mark.slow
def test_what_is_there_already_keeps_its_mode(typed: Any, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.chmod(0o755)
    typed(0o022, "init")
    (here / ".chessreg" / "registry.db").chmod(0o640)
    (here / ".chessreg").chmod(0o750)
    typed(0o022, f"run {TOY}:Toy --positions 3")
    assert stat.S_IMODE((here / ".chessreg").stat().st_mode) == 0o750
    assert stat.S_IMODE((here / ".chessreg" / "registry.db").stat().st_mode) == 0o640
