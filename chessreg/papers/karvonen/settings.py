"""The paper's edits: layers and scales of Tables 6 and 7, as printed and as 0-based layers.

The paper counts layers in two ways, and does not state which one applies to the skill edits. Both
readings are run: from 1 including both ends, and from 0 without the last layer, like Python's range. The board edit of
8 layers counts from 1, according to the code of that date.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FROM_1, FROM_0 = "from-1", "from-0"
TARGET_LOGIT = -10.0  # Appendix D
ONE_SIDED = ("high", "low")  # Appendix C: add the high class of the skill probe, or subtract the low class


@dataclass(frozen=True)
class PrintedEdit:
    """A row of Table 6 or 7. `readings` are its 0-based layers by the way of counting, the more likely first."""

    table: int
    goal: str  # board, positive, negative
    label: str
    scale: float
    readings: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class EditReading:
    """One reading of a row. `label` is empty if the layers are not the paper's."""

    goal: str
    layer_counting: str
    layers: tuple[int, ...]
    scale: float
    label: str


def list_layer_readings(first: int, last: int) -> dict[str, tuple[int, ...]]:
    """Return both readings of layers printed as `first-last`."""
    return {FROM_1: tuple(range(first - 1, last)), FROM_0: tuple(range(first, last))}


PRINTED_EDITS: dict[int, tuple[PrintedEdit, ...]] = {
    8: (
        PrintedEdit(6, "board", "4-7", 1.5, {FROM_1: (3, 4, 5, 6)}),
        PrintedEdit(6, "positive", "4-7", 0.1, list_layer_readings(4, 7)),
        PrintedEdit(6, "negative", "3-7", -0.2, list_layer_readings(3, 7)),
        PrintedEdit(7, "positive", "5-7", 0.6, list_layer_readings(5, 7)),
        PrintedEdit(7, "negative", "5-7", -1.2, list_layer_readings(5, 7)),
    ),
    16: (
        PrintedEdit(6, "board", "range(5,15,2)", 2.0, {FROM_0: (5, 7, 9, 11, 13), FROM_1: (4, 6, 8, 10, 12)}),
        PrintedEdit(6, "positive", "11-15", 0.1, list_layer_readings(11, 15)),
        PrintedEdit(6, "negative", "1-15", -0.1, list_layer_readings(1, 15)),
        PrintedEdit(7, "positive", "13-15", 2.5, list_layer_readings(13, 15)),
        PrintedEdit(7, "negative", "7-15", -1.1, list_layer_readings(7, 15)),
    ),
}


def list_published_edits(table: int, goals: tuple[str, ...], layers: int, *, every: bool) -> Iterator[EditReading]:
    """Yield the edits of a table for a model of this depth: each reading with `every`, else the more likely one.

    A model of another depth gets the edits for 8 or 16 layers, whichever is nearer, at the same share of its depth.
    """
    depth = 8 if layers < 12 else 16
    for row in PRINTED_EDITS[depth]:
        if row.table == table and row.goal in goals:
            seen_edits = set()
            for layer_counting, paper_layers in list(row.readings.items())[: None if every else 1]:
                model_layers = tuple(sorted({layer * layers // depth for layer in paper_layers}))
                if model_layers not in seen_edits:
                    seen_edits.add(model_layers)
                    yield EditReading(
                        row.goal, layer_counting, model_layers, row.scale, row.label if layers == depth else ""
                    )
