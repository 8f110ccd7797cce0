"""Python child processes that import this installation's code, independent of files in their working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build_python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module. -P keeps the working folder off the import path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def build_child_environment() -> dict[str, str]:
    """Return this process's environment, with an absolute PYTHONPATH that includes a checkout that is not installed."""
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if ROOT.name not in ("site-packages", "dist-packages"):
        folders.insert(0, str(ROOT))
    return {**os.environ, **({"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))} if folders else {})}
