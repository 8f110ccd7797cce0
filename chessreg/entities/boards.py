"""Boards of a unit of a run or of a row of a dataset, by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.entities import dataset as datasets
from chessreg.entities import run as runs
from chessreg.entities.game import parse_unit_reference
from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names

if TYPE_CHECKING:
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs


def read_board_views(
    inputs: Inputs, reference: str, item: int | None = None, condition: str | None = None
) -> list[BoardFrame]:
    """Return the boards of RUN:UNIT, or of DATASET:NUMBER if no run has that name.

    `item` and `condition` select a row of the unit, such as a game of a probe; by default the first. Raises
    NotFoundError if the run, unit or row does not exist, and BadInputError for another format.
    """
    with inputs.database.read() as sql:
        try:
            run_id, unit = parse_unit_reference(sql, reference)
        except NotFoundError as no_run:
            dataset, _, number = reference.replace("/", ":").rpartition(":")
            try:
                names.resolve_id(sql, "dataset", dataset)
            except NotFoundError:
                raise no_run from None
            if not (number.isascii() and number.isdigit() and len(number) < 19):
                raise BadInputError(f"{number[:40]!a} is not a row of {dataset}", "rows are counted from 0") from None
            return datasets.build_dataset_frames(inputs, dataset, int(number))
    return runs.build_unit_frames(inputs, run_id, unit, item, condition)
