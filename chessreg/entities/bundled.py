"""Files that come with chessreg: sample games and results, small models."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from store.files import sha256_file

SAMPLE_GAMES = "sample-games.pgn.zst"


@cache
def bundled_digests() -> frozenset[str]:
    """Return the SHA-256 of each file that comes with chessreg."""
    folder = Path(str(files("chessreg") / "data"))
    return frozenset(sha256_file(path) for path in folder.rglob("*") if path.is_file())
