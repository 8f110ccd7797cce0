"""Papers: each is a module or package of this package, a list of specs that name each other's outputs and the tables
they fill.

It has one `PAPER` (chessreg.papers.plan.Paper); a new paper is a new file.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.papers.plan import Paper

__all__ = ["find_paper", "list_papers"]


def list_papers() -> NameRegistry[Paper]:
    """Return name → paper. Raises ValueError if two papers have the same name."""
    registry: NameRegistry[Paper] = NameRegistry("paper")
    for info in pkgutil.iter_modules(__path__):
        paper = getattr(importlib.import_module(f"{__name__}.{info.name}"), "PAPER", None)
        if paper is not None:
            registry[paper.name] = paper
    return registry


def find_paper(name: str) -> Paper:
    """Return the paper with this name. Raises NotFoundError with similar names, or all names."""
    return list_papers()[name]
