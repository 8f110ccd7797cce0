"""Python processes that run this one's code, in whatever folder they start: no file that lies there is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module. -P keeps the folder that it starts in off the path of imports."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """This process's environment. PYTHONPATH is absolute in it, and names a checkout that is not installed."""
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if ROOT.name not in ("site-packages", "dist-packages"):
        folders.insert(0, str(ROOT))
    return {**os.environ, **({"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))} if folders else {})}
