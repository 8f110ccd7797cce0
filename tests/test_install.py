"""Each way to install chessreg from its source leaves a command that works in any folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINES = ("--version", "init", "query --list", "completion bash", "db status", "demo --help", "tui --help", "doctor")


@pytest.mark.slow
@pytest.mark.parametrize("way", [[], ["-e"]], ids=["wheel", "editable"])
def test_an_installed_command_works_outside_the_source(way: list[str], tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds need hatchling")
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    # The libraries of this environment, after the new environment's own packages: its chessreg is not used.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "zz_libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *way, ROOT], check=True)
    for line in LINES:
        done = subprocess.run(
            [venv / "bin" / "chessreg", *line.split()],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin:/usr/games", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"chessreg {line}: {done.stderr}"
        assert done.stdout, line
    where = subprocess.run(
        [venv / "bin" / "python", "-c", "import chessreg; print(chessreg.__file__)"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(ROOT if way else venv))
