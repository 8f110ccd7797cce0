"""`move-counts`: numbers of legal moves of positions, which determine how long a list of moves in a prompt can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import format_dataset
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import DatasetRef, ExecutionOptions, Spec

if TYPE_CHECKING:
    from chessreg.games.datasets.positions import Positions
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

BLOCK_POSITIONS = 10_000
POSITIONS_PER_SECOND = 20_000  # whose legal moves one thread counts


class MoveCountsSpec(Spec):
    dataset: DatasetRef = Field(description="positions: a dataset, or one part of it (NAME:PART)")
    positions: int = Field(10_000_000, ge=1, description="at most this many positions, the first in file order")
    keep_duplicates: bool = Field(False, description="also use positions that occurred before in the file")


class MoveCounts(Kind):
    """Histogram of the number of legal moves (Junkin's repository; its prompts list up to 60 moves).

    One unit is a block of 10,000 positions. A point `positions` is the number of positions (value) with `step` legal
    moves; 0 if the game is over.
    """

    name = "move-counts"
    example = "--dataset puzzles"
    tables = ("metric_point",)
    spec = MoveCountsSpec
    queries = ("legal moves per position",)

    def units(self, spec: MoveCountsSpec, inputs: Inputs) -> int:
        return -(-len(select_counted_positions(spec, inputs)[1]) // BLOCK_POSITIONS)

    def estimate(self, spec: MoveCountsSpec, inputs: Inputs) -> RunEstimate:
        seconds = len(select_counted_positions(spec, inputs)[1]) / POSITIONS_PER_SECOND
        return RunEstimate({"metric_point": 60 * self.units(spec, inputs)}, cpu_seconds=seconds)

    def run(self, task: Task[MoveCountsSpec, ExecutionOptions]) -> None:
        positions, places = select_counted_positions(task.spec, task.inputs)
        for unit in task.units:
            counts = positions.legal_counts(places[unit * BLOCK_POSITIONS : (unit + 1) * BLOCK_POSITIONS])
            for moves, number in zip(*np.unique(counts, return_counts=True), strict=True):
                task.emit("metric_point", unit, name="positions", step=int(moves), value=float(number))
            task.done(unit)
            task.progress(task.units_done / len(task.units), f"{(unit + 1) * BLOCK_POSITIONS:,} positions")


def select_counted_positions(spec: MoveCountsSpec, inputs: Inputs) -> tuple[Positions, np.ndarray]:
    """Return the dataset, and the rows of the positions in it, int64 [n]. Raises BadInputError for an empty part."""
    positions, part = inputs.positions(spec.dataset)
    places = positions.rows(part) if spec.keep_duplicates else positions.new_rows(part)[0]
    if not len(places):
        raise BadInputError(
            f"{format_dataset(inputs, spec.dataset)} contains no positions", "chessreg dataset show NAME"
        )
    inputs.note_shortage(spec, "positions", len(places))
    return positions, places[: spec.positions]
