"""What a terminal answers when it is asked whether it draws images, in time or late, is taken for no key."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

pytest.importorskip("textual_image")
CODE = """
import os, termios, tty
from tui.widgets.images import image_widget

widget = image_widget()
tty.setcbreak(0, termios.TCSANOW)
print(f"draws {widget and widget.__module__ + '.' + widget.__name__},", flush=True)
keys = b""
while not keys.endswith(b"#"):
    keys += os.read(0, 100)
print(f"keys {keys.decode()!r}", flush=True)
"""
ASKED = re.compile(
    rb"(?P<attributes>\x1b\[c)|\x1b_G[^\x1b]*i=(?P<kitty>\d+)[^\x1b]*\x1b\\|(?P<status>\x1b\[5n)|(?P<end>draws)"
)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "over a slow line"])
@pytest.mark.parametrize(
    ("attributes", "kitty", "columns", "drawn"),
    [
        (b"62;4;22", False, 80, "widget.sixel.Image"),
        (b"62;22", True, 80, "widget.TGPImage"),
        (b"62;22", False, 80, "draws None"),
        (b"62;4;22", False, 0, "draws None"),
    ],
    ids=["sixel", "kitty", "text", "of no size"],
)
def test_a_late_answer_of_the_terminal_is_no_key(
    attributes: bytes, kitty: bool, columns: int, drawn: str, late: bool
) -> None:
    """Over a slow line nothing is answered before the last question: what a test can say without a clock."""
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", columns * 24 // 80, columns, 10 * columns, 6 * columns))
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        said, answers, done = b"", b"", 0
        while not re.search(rb"keys .*\n", said):
            said += os.read(terminal, 1000)
            questions = [*ASKED.finditer(said)]
            for question in questions[done:]:
                if question["attributes"]:
                    answers += b"\x1b[?" + attributes + b"c"
                elif question["status"]:
                    answers += b"\x1b[0n"
                elif question["end"]:
                    answers += b"#"
                elif kitty:
                    answers += b"\x1b_Gi=" + question["kitty"] + b";OK\x1b\\"
                if not late or question["status"] or question["end"]:
                    os.write(terminal, answers)
                    answers = b""
            done = len(questions)
        process.wait(300)
    os.close(terminal)
    assert f"{drawn}," in said.decode()
    assert "keys '#'" in said.decode()
