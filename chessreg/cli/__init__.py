"""The `chessreg` command. Each noun's commands are one file beside this one, imported when they are used."""

from __future__ import annotations

import gc
import sys

from chessreg.cli.root import root as chessreg
from chessreg.cli.root import run_command_line
from store.files import keep_private

__all__ = ["chessreg", "main"]


def main() -> None:
    """The console script: exits with 0 done, 1 failed, 2 usage, 3 not found, 4 bad input, 130 interrupted."""
    keep_private()
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    status = run_command_line(sys.argv[1:])
    if "duckdb" not in sys.modules:  # its binding reports what is not collected as leaked
        gc.disable()
        gc.freeze()  # nothing is left to collect
    sys.exit(status)
