"""chessreg: a registry for experiments on chess-playing language models.

>>> import chessreg
>>> reg = chessreg.open()                              # doctest: +SKIP
>>> reg.query("elo by intervention").to_pandas()       # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chessreg.session import Session


def open(registry: str | None = None, store: str | Path | None = None) -> Session:
    """Open a registry (path, folder or URL; default ./.chessreg/registry.db) and its store (default: beside it)."""
    from chessreg.session import open_session

    return open_session(registry, store)
