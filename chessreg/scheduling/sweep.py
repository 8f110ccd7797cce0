"""Sweeps: a grid or a list of settings, as the cells that it means, and their names."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from chessreg.errors import BadInputError
from chessreg.runs.spec import flat

Settings = dict[str, Any]
MOST_CELLS = 10_000  # each is a run of its own, planned before any begins


def cells(grid: Mapping[str, Any], listed: Iterable[Mapping[str, Any]] = ()) -> list[Settings]:
    """Every combination of a grid's values, for each of the listed settings; dotted paths stand for nested ones.

    >>> cells({"seed": [0, 1]}, [{"epochs": 2}, {"epochs": 4}])
    [{'epochs': 2, 'seed': 0}, {'epochs': 2, 'seed': 1}, {'epochs': 4, 'seed': 0}, {'epochs': 4, 'seed': 1}]

    Raises BadInputError for a grid value that is no list, or an empty one, and for more than MOST_CELLS.
    """
    values = flat(grid)
    for path, choices in values.items():
        if not isinstance(choices, list) or not choices:
            raise BadInputError(f"grid: {path} is {choices!r}, not a list of values", f"{path} = [{choices!r}]")
    listed = list(listed) or [{}]
    count = math.prod(len(choices) for choices in values.values()) * len(listed)
    if count > MOST_CELLS:
        raise BadInputError(f"{count:,} cells are more than one sweep may have ({MOST_CELLS:,})", "make parts of it")
    combined = [dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())]
    return [{**flat(fixed), **varied} for fixed in listed for varied in combined]


def cell_name(name: str | None, cell: Mapping[str, Any], number: int) -> str | None:
    """The name of a cell: `scan-seed0-epochs4`; `scan-7` where the values make no name."""
    if name is None or not cell:
        return name
    suffix = "-".join(f"{path.rpartition('.')[2]}{written(value)}" for path, value in cell.items())
    full = f"{name}-{suffix}"
    return full if len(full) <= 100 and re.fullmatch(r"[A-Za-z0-9._+-]+", full) else f"{name}-{number + 1}"


def written(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(written, value))
    return "none" if value is None else str(value)
