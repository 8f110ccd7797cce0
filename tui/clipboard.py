"""Copying to where one sits: over ssh and inside tmux too, and always into a file as well."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from tui.remembered import folder


def kept(text: str) -> Path | None:
    """Write the text where it can be fetched from when the terminal takes no OSC 52; None where nothing can be written.

    Inside tmux the text also becomes its newest buffer, which tmux hands on to the terminal outside if that allows it
    (tmux itself drops OSC 52 of programs unless `set-clipboard on`). May wait for tmux: not for the event loop.
    """
    path = folder() / "copied.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    if os.environ.get("TMUX") and (tmux := shutil.which("tmux")):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([tmux, "load-buffer", "-w", str(path)], capture_output=True, timeout=2, check=False)
    return path
