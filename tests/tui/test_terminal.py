"""The real command in a real terminal: tmux types keys and reads the screen."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: make deps installs it")


class Terminal:
    """A tmux session of a separate server."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.socket, self.folder, self.state = f"chessreg-{uuid4().hex[:8]}", folder, state

    def tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-u", "-L", self.socket, *words], capture_output=True, text=True, timeout=300)
        return done.stdout

    def start(self, *words: str, size: tuple[int, int] = (80, 24)) -> None:
        place = ["--registry", str(self.folder / "registry.db"), "--store", str(self.folder / "store")]
        self.start_as("tui", *place, *words, size=size)

    def start_as(
        self, *words: str, size: tuple[int, int] = (80, 24), cwd: Path | None = None, **variables: str
    ) -> None:
        """The command in a folder, with these variables and no others of chessreg, and without the state of the user
        running the tests."""
        variables |= {"LC_ALL": "C.UTF-8", "XDG_STATE_HOME": str(self.state)}
        own = [f"-u{name}" for name in os.environ if name.startswith("CHESSREG")]
        own += [f"{name}={value}" for name, value in variables.items()]
        command = shlex.join(["env", *own, sys.executable, "-m", "chessreg.cli", *words])
        size_words = ["-x", str(size[0]), "-y", str(size[1]), "-c", str(cwd or Path.cwd())]
        self.tmux("-f", os.devnull, "new-session", "-d", *size_words, f"{command}; echo ended with $?; exec cat")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    @property
    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, *words: str, seconds: float = 300.0) -> str:
        """The screen, once it has all these words."""
        deadline = time.monotonic() + seconds
        while not all(word in (text := self.text) for word in words):
            assert time.monotonic() < deadline, f"{words} did not come; the screen is\n{text}"
            time.sleep(0.05)
        return text

    def close(self) -> None:
        self.tmux("kill-server")


@pytest.fixture
def terminal(world: Path, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(world, tmp_path / "state")
    try:
        yield opened
    finally:
        opened.close()


def test_keys_lead_from_home_to_the_runs_to_a_board_and_out(terminal: Terminal) -> None:
    terminal.start("--ascii")
    terminal.until("chessreg  1 home  2 jobs", "8 runs in all")
    terminal.keys("4")
    screen = terminal.until("8 runs (1 not complete)", "plain")
    assert screen.splitlines()[-1].startswith(" ? help")
    terminal.keys("/")
    terminal.keys("-l", "kind:play plain")
    terminal.until("1 of 8 runs", "Enter to the list")
    terminal.keys("Enter")
    terminal.until("Enter open")
    terminal.keys("Enter")
    terminal.until("[games 3]", "forfeit")
    terminal.keys("Enter")
    terminal.until("game 0", "start", "R   N   B   Q   K   B   N   R")
    terminal.keys("l")
    terminal.until("> ", "1. ")
    terminal.keys("?")
    terminal.until("Next position", "chessreg board RUN:UNIT")
    terminal.keys("Escape")
    terminal.until("game 0")
    terminal.keys("7")
    terminal.until("elo by intervention")
    terminal.keys("q")
    terminal.until("ended with 0")


def test_the_lab_looks_in_the_store_beside_the_registry_that_a_variable_names(
    terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    terminal.start_as("tui", cwd=tmp_path / "elsewhere", size=(120, 40),
                      CHESSREG_REGISTRY=str(terminal.folder / "registry.db"))  # fmt: skip
    terminal.until("1 home", "8 runs in all")
    terminal.keys("6")
    terminal.until("6 lab", "bigram", " writes ")
    terminal.keys("q")
    terminal.until("ended with 0")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_wrong_registry_is_one_line_and_an_exit_status(terminal: Terminal, tmp_path: Path) -> None:
    terminal.folder = tmp_path
    terminal.start("--read-only")
    screen = terminal.until("ended with 3")
    assert "does not exist" in screen.replace("\n", " ")
    assert "Traceback" not in screen


def test_without_a_terminal_the_command_says_what_else_to_type(world: Path) -> None:
    command = [sys.executable, "-m", "chessreg.cli", "tui", "--registry", str(world / "registry.db")]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 4
    assert done.stderr.startswith("error: the terminal UI needs a terminal")
    assert "chessreg runs list" in done.stderr


def test_a_terminal_that_is_no_stderr_is_refused_in_one_line(terminal: Terminal, tmp_path: Path) -> None:
    """Textual draws on stderr."""
    place = [f"--registry={terminal.folder / 'registry.db'}", f"--store={terminal.folder / 'store'}"]
    command = shlex.join([sys.executable, "-m", "chessreg.cli", "tui", *place])
    log = tmp_path / "log"
    terminal.tmux("-f", os.devnull, "new-session", "-d", f"{command} 2>{log}; echo ended with $?; exec cat")
    terminal.until("ended with 4")
    said = log.read_text()
    assert said.startswith("error: the terminal UI needs a terminal: stderr is redirected")
    assert "Traceback" not in said


@pytest.mark.parametrize(("name", "printed"), [("database-0", ""), ("other", "Python ended")])
def test_a_thread_that_is_still_at_work_is_not_broken_off_at_the_end(name: str, printed: str) -> None:
    """Ctrl-C while DuckDB is asked: Python's own end would abort the process."""
    code = f"""
import atexit, threading
from tui.command import end_process

atexit.register(print, "Python ended")
threading.Thread(target=threading.Event().wait, name={name!r}, daemon=True).start()
end_process()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, printed, "")


def test_esc_and_a_key_at_once_are_both_done(terminal: Terminal) -> None:
    terminal.start("--ascii", size=(120, 40))
    terminal.until("8 runs in all")
    terminal.keys("4")
    terminal.until("8 runs (1 not complete)")
    terminal.keys("/", "plain", "Enter")
    terminal.until("1 of 8 runs", "Enter open")
    terminal.keys("Escape", "8")
    terminal.until("[datasets 1]")
    terminal.keys("4")
    terminal.until("8 runs (1 not complete)")
    terminal.keys("t")
    terminal.until("Tag ")
    terminal.keys("abc", "Escape", "q")
    terminal.until("ended with 0")


def test_nothing_that_the_terminal_is_asked_is_left_on_it(terminal: Terminal) -> None:
    terminal.start()
    terminal.until("1 home", "8 runs in all")
    terminal.keys("q")
    text = terminal.until("ended with 0")
    assert text.strip() == "ended with 0"
