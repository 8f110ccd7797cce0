"""What happens when the code of a user's kind ends the process: one line that names it, and an exit status that is
not 0.

`sys.exit` is an exception and needs no help. `os._exit` ends the process at once with any status, before an end can be
recorded. Once a file with a kind is loaded, a function takes its place that raises when the kind's code calls it, and
passes all other calls on.

A crash or `abort` below Python ends with a status of its own. `exit(0)` in a kind's C code would look like success, so
the C library raises SIGABRT when it exits; Python's own exit ignores that signal.
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

FILE_MODULE_PREFIX = "chessreg_kind_"  # how the name of a module begins that was loaded from a user's file
_exit = os._exit


class ProcessEndError(ChessregError):
    """The code of a user's kind was about to end the process."""

    def __init__(self, name: str, call: str, file: str, line: int) -> None:
        where = f"{file}, line {line}: raise an error instead"
        super().__init__(f"{name} called {call}, which ends the process", where)


class GuardedExit:
    """Stands for `os._exit` in the process that it was made in; in one forked from it, `os._exit` is as it was."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __call__(self, status: int = 0) -> NoReturn:
        own = find_kind_call(sys._getframe(1)) if os.getpid() == self.pid else None
        if own is None:
            _exit(status)
        error, raised = own
        if raised:
            raise error
        print(f"error: {error}", file=sys.__stderr__, flush=True)  # in a thread of the kind's own nobody would hear it
        _exit(status or 1)


def guard_process_exit() -> None:
    """Replace `os._exit` in this process, and let the C library's `exit` abort; a second time does nothing."""
    if not (isinstance(os._exit, GuardedExit) and os._exit.pid == os.getpid()):
        os._exit = GuardedExit()
        abort_at_exit()


def abort_at_exit() -> None:
    """Have the C library raise SIGABRT when it exits, unless Python has come to its own end before.

    `faulthandler`, where it is on, then prints the Python lines that led there.
    """
    library = ctypes.CDLL(None)
    register, abort = getattr(library, "__cxa_atexit", None), getattr(library, "raise", None)
    if register is None or abort is None or threading.current_thread() is not threading.main_thread():
        return  # signals are set by the main thread alone
    if register(abort, ctypes.c_void_p(signal.SIGABRT), None) == 0:
        atexit.register(ignore_abort)


def ignore_abort() -> None:
    """Ignore the SIGABRT of `abort_at_exit`. It must follow `faulthandler`, which handles that signal too."""
    faulthandler.disable()
    signal.signal(signal.SIGABRT, signal.SIG_IGN)


def find_kind_call(frame: FrameType | None) -> tuple[ProcessEndError, bool] | None:
    """The error of a call of `os._exit` from this frame, if a kind's file made it, and whether chessreg called the
    kind in this thread and so would see it raised."""
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
    file = call.f_code.co_filename
    return ProcessEndError(name or "your kind's file", "os._exit", file, call.f_lineno)
