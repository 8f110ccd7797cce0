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


def frames_of_dataset_row(inputs: Inputs, dataset: str, number: int) -> list[BoardFrame]:
    """A game of a dataset by its row: the start, and the board after every ply; or a position, with its best move.

    Raises NotFoundError when the dataset or its files are not here, or when it has no such row.
    """
    from chessreg.entities.dataset import folder_of, opened
    from chessreg.games.boardframe import game_frames
    from chessreg.games.moves import unpack
    from chessreg.registry import names

    record, folder = folder_of(inputs.database, inputs.store, dataset)
    rows = opened(record, folder)
    thing = rows.content.removesuffix("s")
    if not 0 <= number < rows.total:
        raise NotFoundError(
            f"dataset {dataset} has no {thing} {number}", f"its {rows.content} are 0 to {rows.total - 1}"
        )
    with inputs.database.read() as session:
        called = names.name_of(session, "dataset", record.id) or short(record.id)
    if thing == "position":
        columns = ["fen", "best", "played", "eval_before", "rating", "game", "ply"]
        (row,) = rows.take([number], columns).to_pylist()
        return [position_frame(row, f"{called} position {number}")]
    (row,) = rows.take([number], ["moves", "result", "white_elo", "black_elo"]).to_pylist()
    players = " – ".join("?" if row[side] is None else str(row[side]) for side in ("white_elo", "black_elo"))
    title = f"{called} game {number}: {players}, {row['result']}"
    return game_frames([move.uci() for move in unpack(row["moves"])], title)


def position_frame(row: dict[str, Any], title: str) -> BoardFrame:
    """A position of a dataset, its best move as an arrow, the move that was played as a thinner one."""
    import chess

    from chessreg.games.boardframe import Arrow, BoardFrame

    weights = {"best": 1.0, "played": 0.3}
    arrows = tuple(
        Arrow.of((row[name], weight, f"{name} {row[name]}")) for name, weight in weights.items() if row[name]
    )
    if row["game"]:
        title += f": game {row['game']}, ply {row['ply']}"
    elif row["rating"] is not None:
        title += f": rating {row['rating']}"
    evaluation = () if row["eval_before"] is None else (f"{row['eval_before']:+.0f} centipawns before the move",)
    return BoardFrame.from_board(chess.Board(row["fen"]), title, arrows=arrows, caption=evaluation)
