"""Files that come with chessreg: sample games and results, small models."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from store.files import hash_file

SAMPLE_GAMES = "sample-games.pgn.zst"


@cache
def list_bundled_digests() -> frozenset[str]:
    """Return the SHA-256 of each file that comes with chessreg."""
    folder = Path(str(files("chessreg") / "data"))
    return frozenset(hash_file(path) for path in folder.rglob("*") if path.is_file())
