"""chessreg: a registry for experiments on chess-playing language models.

>>> import chessreg
>>> reg = chessreg.open()                              # doctest: +SKIP
>>> reg.query("elo by intervention").to_pandas()       # doctest: +SKIP
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chessreg.api import Registry


def open(
    registry: str | Path | None = None,
    store: str | Path | None = None,
    *,
    create: bool = False,
    read_only: bool = False,
) -> Registry:
    """Open a registry (path, folder or URL; default: CHESSREG_REGISTRY, else ./.chessreg) and its store.

    `store`: the folder of arrays and files; by default CHESSREG_STORE, else next to the registry. Raises NotFoundError
    if the folder has no registry, unless `create` is set. With `read_only` every attempt to write to either raises.
    """
    from chessreg.api import open_registry

    return open_registry(registry, store, create, read_only)


def init(registry: str | Path | None = None, store: str | Path | None = None) -> Registry:
    """Create a registry and its store if they do not exist, and open them, as `chessreg init` does."""
    return open(registry, store, create=True)
