"""Boards of a unit of a run or of a row of a dataset, by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.entities import dataset as datasets
from chessreg.entities import run as runs
from chessreg.entities.game import parse_unit_reference
from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.orm import Session as SqlSession

    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs


def resolve_unit(sql: SqlSession, inputs: Inputs, reference: str) -> tuple[UUID, int]:
    """Return the run and the unit of RUN:UNIT or RUN/UNIT. RUN alone means its first unit that was not skipped.

    Raises BadInputError for another format, and NotFoundError if the run does not exist or has no rows.
    """
    if ":" in reference or "/" in reference:
        return parse_unit_reference(sql, reference)
    run_id = names.resolve_id(sql, "run", reference)
    return run_id, runs.find_first_unit(sql, runs.load_kind_of_run(sql, inputs, run_id), run_id)


def read_board_views(
    inputs: Inputs, reference: str, item: int | None = None, condition: str | None = None
) -> list[BoardFrame]:
    """Return the boards of RUN:UNIT, or of DATASET:NUMBER if no run has that name.

    RUN alone means its first unit that was not skipped, and DATASET alone its first row.

    `item` and `condition` select a row of the unit, such as a game of a probe; by default the first. Raises
    NotFoundError if the run, unit or row does not exist, and BadInputError for another format.
    """
    with inputs.database.read() as sql:
        try:
            run_id, unit = resolve_unit(sql, inputs, reference)
        except NotFoundError as no_run:
            dataset, colon, number = reference.replace("/", ":").rpartition(":")
            if not colon:
                dataset, number = number, "0"
            try:
                names.resolve_id(sql, "dataset", dataset)
            except NotFoundError:
                raise no_run from None
            if not (number.isascii() and number.isdigit() and len(number) < 19):
                raise BadInputError(f"{number[:40]!a} is not a row of {dataset}", "rows are counted from 0") from None
            return datasets.build_dataset_frames(inputs, dataset, int(number))
    return runs.build_unit_frames(inputs, run_id, unit, item, condition)
