"""The code of the rooms, read aside: who enters one for the first time does not wait for Python to import it."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from pkgutil import iter_modules

LATER = ("chessreg.experiments.lab.text", "chessreg.queries.ask")  # what rooms import when they first draw


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
