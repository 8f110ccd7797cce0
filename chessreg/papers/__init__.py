"""Papers: each is a module or package here, a list of specs that name each other's outputs and the tables they fill.

It has one `PAPER` (chessreg.papers.plan.Paper); a new paper is a new file.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import TYPE_CHECKING

from chessreg.errors import ChessregError, NotFoundError

if TYPE_CHECKING:
    from chessreg.papers.plan import Paper

__all__ = ["find", "papers"]


def papers() -> dict[str, Paper]:
    """Every paper by name. Raises ChessregError when two have one name."""
    found: dict[str, Paper] = {}
    for info in pkgutil.iter_modules(__path__):
        paper = getattr(importlib.import_module(f"{__name__}.{info.name}"), "PAPER", None)
        if paper is not None:
            if paper.name in found:
                raise ChessregError(f"two papers are named {paper.name}")
            found[paper.name] = paper
    return found


def find(name: str) -> Paper:
    """The paper of this name. Raises NotFoundError with what there is."""
    known = papers()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise NotFoundError(f"there is no paper {name!r}", hint)
    return known[name]
