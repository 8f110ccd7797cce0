"""Which edits a run tries: sets of layers times values of the scale rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.experiments.edit.kind import EditSpec
    from chessreg.runs.inputs import Inputs

EACH = "each"


@dataclass(frozen=True)
class Setting:
    """One edit: number in its run, layers (0-based, rising), and the scale rule's value."""

    number: int
    layers: tuple[int, ...]
    value: float


def parse_layers(text: str) -> tuple[int, ...]:
    """A set of layers: `5`, `3-6` (both included), `5+7+9`. Raises BadInputError for anything else.

    >>> parse_layers("3-5+7")
    (3, 4, 5, 7)
    """
    found: set[int] = set()
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise BadInputError(f"{text!r} is no set of layers", "write 5, 3-6 or 5+7+9")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def settings_of(spec: EditSpec, inputs: Inputs) -> list[Setting]:
    """Every edit of the run, layer sets first. Raises BadInputError when the spec names layers or values twice."""
    sets: Sequence[tuple[int, ...]]
    if spec.layer_sets == (EACH,):
        sets = [(layer,) for layer in probed_layers(spec.probe, inputs)]
    elif spec.layer_sets:
        sets = list(map(parse_layers, spec.layer_sets))
    else:
        sets = [tuple(sorted(set(spec.layers))) or (chosen_layer(spec.probe, inputs),)]
    values = spec.scales or (spec.scale,)
    for name, given in (("--layer-sets", sets), ("--scales", values)):
        if len(set(given)) < len(given):
            raise BadInputError(f"{name} names one of its values twice")
    return [Setting(n, *pair) for n, pair in enumerate((s, v) for s in sets for v in values)]


def probed_layers(recipe: str, inputs: Inputs) -> list[int]:
    """The layers that a probe run has probes of."""
    from chessreg.registry import tables

    return sorted({row.layer for row in inputs.rows(tables.Probe, inputs.run(recipe, "probe"))})


def chosen_layer(recipe: str, inputs: Inputs) -> int:
    """The only layer there is, or the one that the probe's validation games choose."""
    from chessreg.entities.probe import best_layer

    layers = probed_layers(recipe, inputs)
    return layers[0] if len(layers) == 1 else best_layer(inputs, recipe)
