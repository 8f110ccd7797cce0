"""Games of datasets as rows with boards, read from the datasets' files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from chessreg.errors import ChessregError
from tui.data.pages import PAGE, Row

if TYPE_CHECKING:
    from chessreg.games.dataset import Games
    from chessreg.session import Session

FAMILY = "dataset_game"
COLUMNS = ("result", "plies", "white_elo", "black_elo", "text")
SHOWN = 80  # characters of a game's text


class DatasetPages:
    """The games of all datasets whose files are here, dataset by dataset, in the order of their rows."""

    def __init__(self, parts: Sequence[tuple[UUID, str, Games]]) -> None:
        self.parts = parts
        self.count = sum(games.total for _, _, games in parts)

    def page(self, number: int) -> Sequence[Row]:
        rows: list[Row] = []
        first, wanted = number * PAGE, PAGE
        for id, name, games in self.parts:
            here = range(min(first, games.total), min(first + wanted, games.total))
            if here:
                found = games.take(list(here), COLUMNS).to_pylist()
                rows += [
                    {
                        **row,
                        "text": row["text"].lstrip(";")[:SHOWN],
                        "family": FAMILY,
                        "dataset_id": id,
                        "run": name,
                        "unit": place,
                    }
                    for place, row in zip(here, found, strict=True)
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

    from chessreg.entities.datasets import folder_of
    from chessreg.games.dataset import Games
    from chessreg.registry import names, tables

    with session.database.read() as sql:
        called = names.names(sql, "dataset")
        ids = sql.scalars(select(tables.Dataset.id).order_by(tables.Dataset.created_at, tables.Dataset.id)).all()
    parts = []
    for id in ids:
        try:
            _, folder = folder_of(session.database, session.store, id.hex)
            parts.append((id, called.get(id) or id.hex[-6:], Games(folder)))
        except (ChessregError, OSError):
            continue
    return DatasetPages(parts)
