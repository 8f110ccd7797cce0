"""Games and positions of datasets as rows with boards, read from the datasets' files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from chessreg.errors import ChessregError
from tui.data.pages import PAGE, Row

if TYPE_CHECKING:
    from chessreg.games.dataset import DatasetFile
    from chessreg.session import Session

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
