"""Parameters of tests of which `make test` runs a few and `make slow` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values with all but the first `count` marked as slow. A tuple has one value for each argument."""
    values = list(values)
    slow = [value if isinstance(value, tuple) else (value,) for value in values[count:]]
    return [*values[:count], *(pytest.param(*value, marks=pytest.mark.slow) for value in slow)]


def quick_only(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return the values, marking those that are not in `quick` as slow."""
    quick = [*quick]
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]
