"""The `chessreg` command. Each noun's commands are one file beside this one, imported when they are used."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress

from chessreg.cli.root import root as chessreg
from chessreg.cli.root import run_command_line

__all__ = ["chessreg", "main"]


def main() -> None:
    """The console script: exits with 0 done, 1 failed, 2 usage, 3 not found, 4 bad input, 130 interrupted."""
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    status = run_command_line(sys.argv[1:])
    if "duckdb" in sys.modules:
        leave(status)
    sys.exit(status)


def leave(status: int) -> None:
    """End the process as the interpreter does, but for taking it apart: that takes 0.25 s after a query."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
