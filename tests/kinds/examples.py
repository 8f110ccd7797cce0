"""The example of each kind, as the tests run it."""

from __future__ import annotations

import shlex
from pathlib import Path

from chessreg.runs.kind import find_kind

FITTING = {"imported-sae": f"--checkpoint reference --folders {Path(__file__).parents[1]}/fixtures/saes/saelens-topk"}
"""Examples whose bundled file fits the bundled model, in the form that fits this world's."""


def get_example(name: str) -> list[str]:
    """The settings of a kind's example, as words."""
    return shlex.split(FITTING.get(name, find_kind(name).example))
