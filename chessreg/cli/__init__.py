"""The `chessreg` command. Each noun's commands are one file beside this one, imported when they are used."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from contextlib import suppress

from chessreg.cli.root import COMPLETION, run_command_line
from chessreg.cli.root import root as chessreg
from store.files import keep_private

__all__ = ["chessreg", "main"]


def say_where_it_crashed() -> None:
    """At a crash below Python (SIGSEGV, SIGABRT, SIGFPE) write the Python lines that led to it to stderr."""
    with suppress(RuntimeError, OSError, ValueError):  # there is no stderr
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)


def main() -> None:
    """The console script: exits with 0 done, 1 failed, 2 usage, 3 not found, 4 bad input, 130 interrupted."""
    keep_private()
    say_where_it_crashed()
    if os.environ.get(COMPLETION):
        from chessreg.cli.completion import complete

        sys.exit(complete())
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    status = run_command_line(sys.argv[1:])
    if "duckdb" not in sys.modules:  # its binding reports uncollected objects as leaks
        gc.freeze()  # saves the last collection, a quarter of a second: nothing is left to collect
    sys.exit(status)
