"""What the terminal UI keeps from one time to the next, for each registry: where one was, when one last looked."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def folder() -> Path:
    """Where it is kept: XDG_STATE_HOME, or ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "chessreg" / "tui"


class Remembered:
    """Values by name, in a file of this registry's own. A file that cannot be read or written harms nobody: it is only
    comfort. `frozen`: nothing is written."""

    def __init__(self, registry: str, frozen: bool = False) -> None:
        # By its hash: the URL may hold a password, and is no file name.
        self.path = folder() / f"{hashlib.sha256(registry.encode()).hexdigest()[:16]}.json"
        self.frozen = frozen
        self._values: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text())
            self._values = found if isinstance(found, dict) else {}

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
        aside.write_text(json.dumps(self._values, indent=1))
        aside.replace(self.path)
