"""Files of the terminal UI in the user's state folder: the last position in each registry, and the last copied text."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from chessreg.folders import get_state_folder
from store.files import read_json, write_whole


def get_tui_state_folder() -> Path:
    """Return the folder: XDG_STATE_HOME or ~/.local/state."""
    return get_state_folder() / "tui"


class RememberedState:
    """Named values in a file per registry. Read and write errors are ignored. `frozen`: nothing is written."""

    def __init__(self, registry: str, frozen: bool = False) -> None:
        # A hash, because the URL may contain a password and is not a file name.
        self.path = get_tui_state_folder() / f"{hashlib.sha256(registry.encode()).hexdigest()[:16]}.json"
        self.frozen = frozen
        self._values: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            values = read_json(self.path)
            self._values = values if isinstance(values, dict) else {}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Store a JSON value; None removes it."""
        if self._values.get(name) == value:
            return
        self._values[name] = value
        if value is None:
            del self._values[name]
        if not self.frozen:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, json.dumps(self._values, indent=1).encode())


def save_copied_text(text: str) -> Path | None:
    """Write the text to a file, for terminals without OSC 52, and return its path; None if it cannot be written.

    Inside tmux the text also becomes the newest buffer, which tmux passes on to the outer terminal if configured (tmux
    drops OSC 52 of programs unless `set-clipboard on`). May block, so do not call it on the event loop.
    """
    path = get_tui_state_folder() / "copied.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    if os.environ.get("TMUX") and (tmux := shutil.which("tmux")):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([tmux, "load-buffer", "-w", str(path)], capture_output=True, timeout=2, check=False)
    return path
