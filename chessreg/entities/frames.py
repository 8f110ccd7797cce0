"""The boards behind a unit of any run: whatever its kind of experiment draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session as SqlSession

from chessreg.errors import NotFoundError
from chessreg.registry import tables
from chessreg.registry.identity import short
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import kind

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame


def unit_row(
    session: SqlSession, record: tables.KindRecord, run_id: UUID, unit: int, item: int | None
) -> dict[str, Any]:
    """The first row of a unit, with the kind's own columns beside the table's; a total stands behind its items.

    Raises NotFoundError when the unit has no row, or none of this item.
    """
    for family in record.families:
        table = tables.Base.metadata.tables[family]
        found = select(table).where(table.c.run_id == run_id, table.c.unit == unit)
        if "item" in table.c:
            found = found.where(table.c.item == item) if item is not None else found.order_by(table.c.item < 0)
        elif item is not None:
            continue
        row = session.execute(found.order_by(*table.primary_key).limit(1)).mappings().first()
        if row is not None:
            values = dict(row)
            return {**values, **(values.pop("detail", None) or {})}
    what = f"unit {unit}" if item is None else f"item {item} in unit {unit}"
    raise NotFoundError(f"run {short(run_id)} has no row of {what}", "chessreg runs show RUN")


def frames_of(inputs: Inputs, run_id: UUID, unit: int, item: int | None = None) -> list[BoardFrame]:
    """The frames behind a unit. Raises NotFoundError when there is no such row, or its kind draws no boards."""
    with inputs.database.read() as session:
        run = session.get_one(tables.Run, run_id)
        record = session.get_one(tables.KindRecord, (run.kind, run.version))
        row = unit_row(session, record, run_id, unit, item)
        source = record.source
    frames = kind(source).board_views(row, inputs)
    if not frames:
        raise NotFoundError(f"runs of kind {run.kind} draw no boards")
    return frames


def frames_of_dataset_game(inputs: Inputs, dataset: str, number: int) -> list[BoardFrame]:
    """A game of a dataset by its row: the start, and the board after every ply.

    Raises NotFoundError when the dataset or its files are not here, or when it has no such row.
    """
    from chessreg.entities.datasets import folder_of
    from chessreg.games.boardframe import game_frames
    from chessreg.games.dataset import Games
    from chessreg.games.moves import unpack
    from chessreg.registry import names

    record, folder = folder_of(inputs.database, inputs.store, dataset)
    games = Games(folder)
    if not 0 <= number < games.total:
        raise NotFoundError(f"dataset {dataset} has no game {number}", f"its games are 0 to {games.total - 1}")
    (row,) = games.take([number], ["moves", "result", "white_elo", "black_elo"]).to_pylist()
    with inputs.database.read() as session:
        called = names.name_of(session, "dataset", record.id) or short(record.id)
    players = " – ".join("?" if row[side] is None else str(row[side]) for side in ("white_elo", "black_elo"))
    title = f"{called} game {number}: {players}, {row['result']}"
    return game_frames([move.uci() for move in unpack(row["moves"])], title)
