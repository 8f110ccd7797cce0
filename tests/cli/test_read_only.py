"""A home that this user may only read: reading works, and writing reports the reason in one line."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

import pytest

from chessreg.cli.root import run_command_line

from ..lines import Answer, type_lines

SET_BOUND, OVERRIDE = 24, 1  # prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE): modes hold for root as well
LINES = [
    ("runs list", 0, "v"),
    ("vector show v", 0, "norm"),
    ("status", 0, "imported-vector"),
    ("query --sql SELECT*FROM(runs)", 0, "imported-vector"),
    ("dataset verify one", 0, "match their report"),
    ("doctor", 1, "chmod u+w"),
    ("run imported-vector --files sample --replicate 1", 1, "cannot write to the store"),
    ("gc --remove", 1, "is open for reading only"),
    ("db backup", 1, "cannot write a backup to"),
]


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    """The answers to all lines at a home of files 0444 in folders 0555, typed by a user for whom modes hold."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        game = Path(folder) / "one.pgn"
        game.write_text('[Event "?"]\n[Result "1-0"]\n\n1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0\n')
        for line in (f"dataset add {game} --name one", "run imported-vector --files sample --name v"):
            assert run_command_line([*line.split(), "--registry", str(home)]) == 0
        modes = [(path, path.stat().st_mode & 0o777) for path in (Path(folder), *Path(folder).rglob("*"))]
        for path, _ in modes:
            path.chmod(0o555 if path.is_dir() else 0o444)
        env = {**os.environ, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}
        bound = (lambda: ctypes.CDLL(None).prctl(SET_BOUND, OVERRIDE)) if os.geteuid() == 0 else None
        lines = [line for line, _, _ in LINES]
        try:
            words = [[*line.split(), "--registry", str(home)] for line in lines]
            return dict(zip(lines, type_lines(words, env=env, cwd="/", preexec_fn=bound), strict=True))
        finally:
            for path, mode in modes:
                path.chmod(mode)


@pytest.mark.parametrize(("line", "status", "says"), LINES)
def test_what_can_be_done_is_done(answers: dict[str, Answer], line: str, status: int, says: str) -> None:
    told = answers[line].out + answers[line].err
    assert answers[line].status == status, told
    assert says in told
    assert "Traceback" not in told
    if status and line != "doctor":
        said = [line for line in told.splitlines() if "reading a copy of it" not in line]
        assert said[0].startswith("error: ")
        assert len(said) <= 2
