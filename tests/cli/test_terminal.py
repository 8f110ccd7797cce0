"""Third-party texts cannot control a terminal: on a screen, in a pipe, in errors, in JSON, in the terminal UI."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from chessreg.cli.root import run_command_line
from chessreg.terminal import make_json_visible, make_visible
from tests.quick import quick_first

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
EVIL = "a\x1b]0;owned\x07\x1b[2J\r\nrm -rf /\x9b31m\u202egnp.exe\u2066\x00z"
OBEYED = set("\x1b\x07\x9b\u202e\u2066\x00")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A `.chessreg` folder with a run whose hosts, tags, notes, messages and file names no terminal should get."""
    folder = tmp_path_factory.mktemp("evil") / ".chessreg"
    place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
    assert run_command_line([*place, "run", str(TOY), "--positions", "2", "--name", "toy"]) == 0
    for word in ("tag", "note"):
        assert run_command_line([*place, "runs", word, "toy", "text"]) == 0
    with sqlite3.connect(folder / "registry.db") as connection:
        connection.execute("update annotation set value = ? where word in ('tag', 'note')", (EVIL,))
        connection.execute("update annotation set host = ?", (EVIL,))
        connection.execute("update machine set host = ?, platform = ?, cpu = ?", (EVIL[:-2],) * 3)
        connection.execute("update attempt set message = ?, executor = ?, doing = ?", (EVIL,) * 3)
        connection.execute("update score set split = ?", (EVIL,))
    connection.close()
    return folder


@pytest.fixture
def evil(here, written):
    """`here` with a copy of that folder."""
    shutil.rmtree(here.folder / ".chessreg")
    shutil.copytree(written, here.folder / ".chessreg")
    return here


LINES = [
    ["runs", "list"],
    ["runs", "show", "toy"],
    ["machines"],
    ["status"],
    ["lineage", "toy"],
    ["reproduce", "toy"],
    ["query", "--sql", "select split, unit from score"],
    ["query", "--sql", "select split from score", "--format", "markdown"],
    ["doctor"],
    ["runs", "show", EVIL.replace("\0", "")],
    ["run", "--resume", EVIL.replace("\0", "")],
    ["dataset", "add", EVIL.replace("\0", "")],
    ["board", EVIL.replace("\0", "")],
    [EVIL.replace("\0", "")],
]


@pytest.mark.parametrize("words", quick_first(5, LINES), ids=lambda words: ascii(" ".join(words))[:40])
def test_no_line_of_a_command_is_obeyed(evil, words):
    evil(*words)
    if "markdown" not in words:
        assert not OBEYED & set(evil.out)
        assert "\nrm -rf" not in evil.out.replace("\r", "\n")
    assert not OBEYED & set(evil.err)
    assert "fault in chessreg" not in evil.err
    if words[0] != "doctor":
        evil(*words, "--json")
        assert not OBEYED & set(evil.out + evil.err)


def test_json_means_what_it_meant(evil):
    rows = evil.json("query", "--sql", "select split from score")["rows"]
    assert rows[0]["split"] == EVIL
    assert json.loads(make_json_visible(json.dumps([EVIL, "\U000e0041é"], ensure_ascii=False))) == [EVIL, "\U000e0041é"]


def test_a_file_gets_the_data_as_they_are(evil):
    assert evil("query", "--sql", "select split from score", "--format", "csv") == 0
    assert "\x1b]0;owned" in evil.out


def test_a_screen_gets_no_data_that_it_would_obey(evil):
    """Typed in a terminal: also formats for files are shown, not sent; our own colors come through."""
    for words in (
        ["query", "--sql", "select split from score", "--format", "csv"],
        ["runs", "list"],
        ["lineage", "toy"],
    ):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "chessreg.cli", *words])
        said = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:
                break
            if not piece:
                break
            said += piece
        os.waitpid(pid, 0)
        os.close(terminal)
        text = said.decode()
        assert "owned" in text or words[0] != "query", text
        assert "\x1b]0;" not in text
        assert "\x1b[2J" not in text
        assert not {"\x07", "\x9b", "\u202e", "\x00"} & set(text)


def test_what_is_shown_is_told_apart():
    assert make_visible("a\x1b[2J\n\u202e\u00ad\ud800b") == "a\\x1b[2J\\n\\u202e\\xad\\ud800b"
    assert make_visible("Übung ♟ 1\u2009000\u00a0", "") == "Übung ♟ 1\u2009000\u00a0"


async def test_the_terminal_ui_leaves_it_out(tmp_path):
    from rich.segment import Segment
    from textual.color import Color
    from textual.widgets import Static

    from chessreg.session import open_session
    from tui.app import PRINTABLE_FILTER, ChessregApp

    line = PRINTABLE_FILTER.apply([Segment(f"x{EVIL}y"), Segment("plain")], Color(0, 0, 0))
    assert not OBEYED & set("".join(segment.text for segment in line))
    app = ChessregApp(lambda: open_session(str(tmp_path / "registry.db"), tmp_path / "store"))
    async with app.run_test() as pilot:
        await app.screen.mount(shown := Static(f"seen {EVIL}", markup=False))
        await pilot.pause()
        drawn = "".join(segment.text for y in range(shown.size.height) for segment in shown.render_line(y))
        frame = "".join(s.text for strip in app.screen._compositor.render_strips() for s in strip if not s.control)
        assert "seen a" in frame or "seen a" in drawn
        assert not OBEYED & set(frame)


@pytest.mark.parametrize("encoding", ["latin-1", "cp437"])
@pytest.mark.parametrize("words", ["cancel --help", "doctor"])
def test_a_terminal_that_is_not_utf8_gets_escapes(words, encoding, tmp_path):
    command = [sys.executable, "-m", "chessreg.cli", *words.split()]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment)
    assert b"fault in chessreg" not in done.stderr
    assert done.stdout.decode(encoding)


def test_brackets_in_a_progress_line_are_text(monkeypatch):
    from chessreg.cli import base

    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", screen := Screen())
    with base.show_progress_line("probe layers=[3,5] [/x]") as report:
        report(1.0, "[/dim]")
    assert "layers=[3,5] [/x]" in screen.getvalue()
