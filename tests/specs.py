"""Build specs of kinds that are discriminated unions from the settings of a command."""

from __future__ import annotations

from functools import partial
from typing import Any

from chessreg.runs.kind import find_kind
from chessreg.runs.spec import parse_settings


def spec_of(name: str, **settings: Any) -> Any:
    """Return the spec of a kind with these settings."""
    return parse_settings(find_kind(name).spec, settings)


train_spec = partial(spec_of, "train")
vector_spec = partial(spec_of, "vector")
