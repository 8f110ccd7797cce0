"""Reports a user's kind that ends the process: one line that names the call, and a non-zero exit status.

`sys.exit` raises an exception and needs no handling. `os._exit` ends the process immediately, before an end can be
recorded. Once a user's kind is loaded, `os._exit` is replaced by a function that raises when the kind's code calls it
and passes other calls on.

A crash or `abort` below Python has a non-zero status already. `exit(0)` in C code would look like success, so the C
library raises SIGABRT when it exits; Python's own exit ignores that signal.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from chessreg.errors import ChessregError

FILE_MODULE_PREFIX = "chessreg_kind_"  # of modules loaded from users' files
_exit = os._exit


class ProcessEndError(ChessregError):
    """Raised when the code of a user's kind tries to end the process."""

    def __init__(self, name: str, call: str, file: str, line: int) -> None:
        place = f"{file}, line {line}: raise an error instead"
        super().__init__(f"{name} called {call}, which ends the process", place)


class GuardedExit:
    """Replaces `os._exit` in the process that created it. In forked processes it behaves like the original."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __call__(self, status: int = 0) -> NoReturn:
        kind_call = find_kind_call(sys._getframe(1)) if os.getpid() == self.pid else None
        if kind_call is None:
            _exit(status)
        error, raised_error = kind_call
        if raised_error:
            raise error
        print(f"error: {error}", file=sys.__stderr__, flush=True)  # an exception in the kind's own thread would be lost
        _exit(status or 1)


def guard_process_exit() -> None:
    """Replace `os._exit` in this process, and make the C library's `exit` abort. Repeated calls do nothing."""
    if not (isinstance(os._exit, GuardedExit) and os._exit.pid == os.getpid()):
        os._exit = GuardedExit()
        abort_at_exit()


def abort_at_exit() -> None:
    """Make the C library raise SIGABRT when it exits, unless Python has ended normally.

    If `faulthandler` is enabled, it then prints the Python stack.
    """
    library = ctypes.CDLL(None)
    register, abort = getattr(library, "__cxa_atexit", None), getattr(library, "raise", None)
    if register is None or abort is None or threading.current_thread() is not threading.main_thread():
        return  # only the main thread can set signal handlers
    if register(abort, ctypes.c_void_p(signal.SIGABRT), None) == 0:
        atexit.register(ignore_abort)


def ignore_abort() -> None:
    """Ignore the SIGABRT of `abort_at_exit`. Disables `faulthandler` first, which handles that signal too."""
    faulthandler.disable()
    signal.signal(signal.SIGABRT, signal.SIG_IGN)


def find_kind_call(frame: FrameType | None) -> tuple[ProcessEndError, bool] | None:
    """Return the error for a call of `os._exit` from a user's kind, and whether raising it reaches chessreg.

    Returns None if `frame` was not called by a kind's file. The second value is true if chessreg called the kind in
    this thread.
    """
    call: FrameType | None = None
    name = ""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(FILE_MODULE_PREFIX):
            call = call or frame
            kind: Any = frame.f_locals.get("self")
            name = name or (f"your kind {kind.name}" if hasattr(kind, "board_views") else "")
        elif call is not None and module.startswith("chessreg."):
            return make_process_end_error(call, name), True
        frame = frame.f_back
    return (make_process_end_error(call, name), False) if call is not None else None


def make_process_end_error(call: FrameType, name: str) -> ProcessEndError:
    """Return the error that names the kind, the file and the line of a call."""
    file = call.f_code.co_filename
    return ProcessEndError(name or "your kind's file", "os._exit", file, call.f_lineno)
