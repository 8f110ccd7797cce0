"""Command lines typed in one separate Python process, which starts in a second and has imported nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from chessreg.cli.root import run_command_line
answers = []
for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = run_command_line(words)
    answers.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    status: int
    out: str
    err: str


def type_lines(lines: Sequence[Sequence[str]], **options: Any) -> list[Answer]:
    """Type the lines one after the other in a new process and return their answers. `options` are of subprocess.run."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(lines)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    return [Answer(*answer) for answer in json.loads(done.stdout)]
