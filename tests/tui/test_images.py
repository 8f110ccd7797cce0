"""A terminal's answer to the question whether it draws images, in time or late, is not taken for a key; keys typed
meanwhile are delivered, and the questions are invisible."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.quick import quick_first

from .conftest import PATIENCE

pytest.importorskip("textual_image")
CODE = """
import sys, termios, time, tty
from chessreg.terminal import make_streams_visible
from tui.widgets import images

images.ANSWER_TIMEOUT_S = float(sys.argv[1])
with make_streams_visible():
    began = time.monotonic()
    widget, typed = images.ask_terminal()
    waited = time.monotonic() - began > images.ANSWER_TIMEOUT_S
print(f"draws {widget and widget.__module__ + '.' + widget.__name__}, typed {typed!r}, waited {waited},", flush=True)
tty.setcbreak(0, termios.TCSANOW)
keys = b""
while not keys.endswith(b"#"):
    keys += images.os.read(0, 100)
print(f"keys {keys.decode()!r}", flush=True)
"""
ASKED = re.compile(
    rb"(?P<attributes>\x1b\[c)|\x1b_G[^\x1b]*i=(?P<kitty>\d+)[^\x1b]*\x1b\\|(?P<size>\x1b\[16t)|(?P<status>\x1b\[5n)"
    rb"|(?P<end>draws)"
)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "over a slow line"])
@pytest.mark.parametrize(
    ("attributes", "kitty", "columns", "drawn"),
    [
        (b"62;4;22", False, 80, "widget.sixel.Image"),
        (b"62;22", True, 80, "widget.TGPImage"),
        (b"62;22", False, 80, "draws None"),
        (b"62;4;22", False, 0, "draws None"),
        (None, False, 80, "draws None"),
    ],
    ids=["sixel", "kitty", "text", "of no size", "silent"],
)
def test_an_answer_of_the_terminal_is_no_key_and_what_is_typed_meanwhile_is(
    attributes: bytes | None, kitty: bool, columns: int, drawn: str, late: bool
) -> None:
    """Over a slow line nothing is answered before the last question: the part that a test can check without a clock."""
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", columns * 24 // 80, columns, 10 * columns, 6 * columns))
    patience = "1" if attributes is None else "60"  # seconds: no wait for an answering process
    command = [sys.executable, "-c", CODE, patience]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        said, answers, done = b"", b"", 0
        while not re.search(rb"keys .*\n", said):
            said += os.read(terminal, 1000)
            questions = [*ASKED.finditer(said)]
            for question in questions[done:]:
                if question["end"]:
                    answers += b"#"
                elif question["attributes"]:
                    answers += b"4\x1b" + (b"" if attributes is None else b"\x1b[?" + attributes + b"c") + b"\x1bOB"
                elif attributes is None:
                    pass
                elif question["status"]:
                    answers += b"\x1b[0n"
                elif question["size"]:
                    answers += b"\x1b[6;20;10tj"
                elif kitty:
                    answers += b"\x1b_Gi=" + question["kitty"] + b";OK\x1b\\"
                if not late or question["status"] or question["end"]:
                    os.write(terminal, answers)
                    answers = b""
            done = len(questions)
        process.wait(300)
    os.close(terminal)
    typed = "4\x1b\x1bOB" + ("" if attributes is None else "j")
    assert f"{drawn}, typed {typed!r}, waited {attributes is None}," in said.decode()
    assert "keys '#'" in said.decode()
    assert len([question for question in questions if question["status"]]) == 1  # once, as such


@pytest.mark.parametrize("typed", quick_first(1, ["4tquick\r", "4/plain\r\r"]))
async def test_what_was_typed_before_the_app_began_is_done_in_it(
    drive: Any, tmp_path: Path, world: Path, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.typed.KEY_TIMEOUT_S", PATIENCE)  # a busy machine may take longer for a screen
    texts = []
    for way in ("before", "after"):
        own = shutil.copytree(world, tmp_path / way / "own")
        async with drive(
            own, size=(120, 36), start="home", **({"typed_text": typed} if way == "before" else {})
        ) as driver:
            if way == "after":
                await driver.press(*("enter" if key == "\r" else "slash" if key == "/" else key for key in typed))
            texts.append(driver.text.replace(way, ""))
    assert texts[0] == texts[1]
