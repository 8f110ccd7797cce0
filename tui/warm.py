"""The code of the rooms, read aside: who enters one for the first time does not wait for Python to import it."""

from __future__ import annotations

import gc
import sys
import threading
from importlib import import_module
from pkgutil import iter_modules

OLD = 100  # rounds through the young garbage, after which the old is worth a look
LATER = ("chessreg.lab.answer", "chessreg.queries.ask")  # what rooms import when they first draw


def warm_up() -> threading.Thread:
    """Import every screen on a thread of its own, once the registry is open: a cold start reads one room only."""
    thread = threading.Thread(target=read, name="warm", daemon=True)
    thread.start()
    return thread


def read() -> None:
    """A module that cannot be imported is told by the room that needs it."""
    import tui.screens

    for name in (*(f"tui.screens.{module.name}" for module in iter_modules(tui.screens.__path__)), *LATER):
        if name not in sys.modules:
            try:
                import_module(name)
            except ImportError:
                continue
    if not gc.isenabled():
        settle()


def settle() -> None:
    """From here on collect young garbage as it comes, and never look again at what is there now: code, mostly. What has
    grown old is looked through by `sweep` alone: that takes up to 0.1 s, in which no key is answered."""
    gc.freeze()
    gc.set_threshold(2000, 20, 1_000_000)
    gc.enable()


def sweep() -> None:
    """Collect what has grown old, if much has."""
    if gc.get_threshold()[2] == 1_000_000 and gc.get_count()[2] > OLD:
        gc.collect()
