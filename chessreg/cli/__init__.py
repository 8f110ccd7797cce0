"""The `chessreg` command. Each noun has its commands in one file here, which is imported when a command is used."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
from contextlib import suppress

from chessreg.cli.root import COMPLETION_VARIABLE, run_command_line
from chessreg.cli.root import root as chessreg
from store.files import keep_private

__all__ = ["chessreg", "main"]


def print_crash_location() -> None:
    """Write the Python stack to stderr if the process crashes below Python (SIGSEGV, SIGABRT, SIGFPE)."""
    with suppress(RuntimeError, OSError, ValueError):  # stderr is closed
        faulthandler.enable(sys.__stderr__ or sys.stderr, all_threads=False)


def limit_waiting_threads() -> None:
    """Let PyTorch's threads sleep soon when they wait for each other, unless the user chose how they wait.

    By default they spin, which makes a busy machine several times slower. Set before PyTorch is imported; jobs inherit
    it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main() -> None:
    """Run the console script. Exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 bad input, 130 interrupted."""
    keep_private()
    limit_waiting_threads()
    print_crash_location()
    if os.environ.get(COMPLETION_VARIABLE):
        from chessreg.cli.completion import answer_completion

        sys.exit(answer_completion())
    gc.disable()  # imports make many objects and no garbage; the root command enables it
    gc.set_threshold(100_000, 20, 20)
    status = run_command_line(sys.argv[1:])
    if "duckdb" not in sys.modules:  # its binding reports uncollected objects as leaks
        gc.freeze()  # saves the last collection, a quarter of a second: nothing is left to collect
    sys.exit(status)
