"""What the terminal UI keeps in the user's folder: where one was in each registry, and the text copied last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from chessreg.folders import state_folder
from store.files import read_json


def get_state_folder() -> Path:
    """Where it is kept: XDG_STATE_HOME, or ~/.local/state."""
    return state_folder() / "tui"


class RememberedState:
    """Values by name, in a file of this registry's own. A file that cannot be read or written harms nobody: it is only
    comfort. `frozen`: nothing is written."""

    def __init__(self, registry: str, frozen: bool = False) -> None:
        # By its hash: the URL may hold a password, and is no file name.
        self.path = get_state_folder() / f"{hashlib.sha256(registry.encode()).hexdigest()[:16]}.json"
        self.frozen = frozen
        self._values: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            values = read_json(self.path)
            self._values = values if isinstance(values, dict) else {}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Keep a value that JSON can hold; None forgets it."""
        if self._values.get(name) == value:
            return
        self._values[name] = value
        if value is None:
            del self._values[name]
        if not self.frozen:
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text(json.dumps(self._values, indent=1), encoding="utf-8")
        aside.replace(self.path)


def save_copied_text(text: str) -> Path | None:
    """Write the text where it can be fetched from when the terminal takes no OSC 52; None where nothing can be written.

    Inside tmux the text also becomes its newest buffer, which tmux hands on to the terminal outside if that allows it
    (tmux itself drops OSC 52 of programs unless `set-clipboard on`). May wait for tmux: not for the event loop.
    """
    path = get_state_folder() / "copied.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    if os.environ.get("TMUX") and (tmux := shutil.which("tmux")):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([tmux, "load-buffer", "-w", str(path)], capture_output=True, timeout=2, check=False)
    return path
