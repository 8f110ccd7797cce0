"""The `chessreg` command. Each noun's commands are one file beside this one, imported when they are used."""

from __future__ import annotations

import sys

from chessreg.cli.root import root as chessreg
from chessreg.cli.root import run_command_line

__all__ = ["chessreg", "main"]


def main() -> None:
    """The console script: exits with 0 done, 1 failed, 2 usage, 3 not found, 4 bad input, 130 interrupted."""
    sys.exit(run_command_line(sys.argv[1:]))
