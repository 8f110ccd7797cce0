"""The boards behind a row: whatever its kind of experiment draws of it; games of datasets as rows with boards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import ChessregError, NotFoundError
from chessreg.registry import tables
from tui.data.pages import PAGE, Row
from tui.data.results import FAMILIES, find_row, run_names

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.games.dataset import DatasetFile
    from chessreg.session import Session


OWN_SCREEN = ("edit",)  # kinds whose boards need a model: their screen asks the process that holds it


class Boards(NamedTuple):
    """The frames of one row, the row in full, and what the run is called."""

    row: dict[str, Any]
    frames: list[BoardFrame]
    run: str
    kind: str
    limit: int | None = None  # of a game: the frame at its move limit


def boards(session: Session, row: Mapping[str, Any]) -> Boards:
    """The boards behind a row that names its run and unit, or behind a game of a dataset; no frames for kinds with a
    screen of their own.

    Raises NotFoundError when the row, its run or its kind is not here, or when its kind draws no boards.
    """
    from chessreg.runs.kind import kind

    if row.get("family") == FAMILY:
        from chessreg.entities.dataset import board_views

        frames = board_views(session.inputs, row["dataset_id"].hex, row["unit"])
        return Boards(dict(row), frames, row["run"], "dataset")
    run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
    with session.database.read() as sql:
        run = sql.get(tables.Run, run_id)
        if run is None:
            raise NotFoundError(f"run {run_id.hex[-6:]} is not in this registry", "chessreg runs list")
        record = sql.scalars(
            select(tables.KindRecord).where(
                tables.KindRecord.name == run.kind, tables.KindRecord.version == run.version
            )
        ).first()
        called = run_names(sql, {run_id})[run_id]
    if record is None:
        raise NotFoundError(f"kind {run.kind} of run {called} is not recorded here")
    families = [row["family"]] if row.get("family") else [f for f in record.families if f in FAMILIES]
    whole = find_row(session, row, families)
    if whole is None:
        raise NotFoundError(f"unit {row.get('unit')} of run {called} has no stored row")
    if run.kind in OWN_SCREEN:
        return Boards(whole, [], called, run.kind)
    frames = kind(record.source).board_views({k: v for k, v in whole.items() if k != "family"}, session.inputs)
    if not frames:
        raise NotFoundError(f"{run.kind} runs draw no boards", "i shows all fields of the row")
    return Boards(whole, frames, called, run.kind, limit_of(session, whole))


def limit_of(session: Session, row: Mapping[str, Any]) -> int | None:
    """The ply of a game at which its move limit stops it, where the row is a game and a limit was recorded."""
    if row["family"] != "game":
        return None
    from chessreg.entities.game import stored_games

    return next(stored_games(session.database, [(row["run_id"], row["unit"])])).limit_ply


FAMILY = "dataset_game"
COLUMNS = {
    "games": ("result", "plies", "white_elo", "black_elo", "text"),
    "positions": ("ply", "best", "fen", "mover_elo", "opponent_elo"),
}
SHOWN = 80  # characters of a game's text


def position_as_game(row: Row) -> Row:
    """A position in the columns of games: its ply, its players, and the best move where a game has its result."""
    white, black = ("mover_elo", "opponent_elo") if " w " in row["fen"] else ("opponent_elo", "mover_elo")
    return {
        "result": row["best"], "plies": row["ply"], "white_elo": row[white], "black_elo": row[black],
        "text": row["fen"],
    }  # fmt: skip


AS_GAME: dict[str, Callable[[Row], Row]] = {"games": dict, "positions": position_as_game}


class DatasetPages:
    """The rows of all datasets whose files are here, dataset by dataset, in their order."""

    def __init__(self, parts: Sequence[tuple[UUID, str, DatasetFile]]) -> None:
        self.parts = parts
        self.count = sum(games.total for _, _, games in parts)

    def page(self, number: int) -> Sequence[Row]:
        rows: list[Row] = []
        first, wanted = number * PAGE, PAGE
        for id, name, games in self.parts:
            here = range(min(first, games.total), min(first + wanted, games.total))
            if here:
                found = games.take(list(here), COLUMNS[games.content]).to_pylist()
                rows += [
                    {
                        **row,
                        "text": row["text"].lstrip(";")[:SHOWN],
                        "family": FAMILY,
                        "dataset_id": id,
                        "run": name,
                        "unit": place,
                    }
                    for place, row in zip(here, map(AS_GAME[games.content], found), strict=True)
                ]
            first, wanted = max(0, first - games.total), wanted - len(here)
            if not wanted:
                break
        return rows


def any_dataset(session: Session) -> bool:
    """Whether there is any; nothing of its files is read."""
    from sqlalchemy import select

    from chessreg.registry import tables

    with session.database.read() as sql:
        return sql.scalar(select(tables.Dataset.id).limit(1)) is not None


def dataset_games(session: Session) -> DatasetPages:
    """The datasets in the order in which they were made; those whose files are elsewhere are left out."""
    from sqlalchemy import select

    from chessreg.entities.dataset import folder_of, opened
    from chessreg.registry import names, tables

    with session.database.read() as sql:
        called = names.names(sql, "dataset")
        ids = sql.scalars(select(tables.Dataset.id).order_by(tables.Dataset.created_at, tables.Dataset.id)).all()
    parts = []
    for id in ids:
        try:
            row, folder = folder_of(session.database, session.store, id.hex)
            parts.append((id, called.get(id) or id.hex[-6:], opened(row, folder)))
        except (ChessregError, OSError):
            continue
    return DatasetPages(parts)
