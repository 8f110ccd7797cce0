"""The games and positions of datasets, in pages. Screens import this module only to read, because it imports NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.errors import ChessregError
from chessreg.games.datasets.dataset import make_arrow_indices
from chessreg.registry import names, tables
from tui.data.pages import PAGE_ROWS, JoinedPages, Pages, Row
from tui.data.result_rows import DATASET_GAME
from tui.data.table_filter import View, make_mask, sort_indices

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import DatasetFile
    from chessreg.session import Session


DATASET_COLUMNS = {
    "games": ("white", "black", "result", "plies", "white_elo", "black_elo", "eco", "text"),
    "positions": ("ply", "best", "action", "fen", "mover_elo", "opponent_elo"),
}
GAME_TEXT_CHARS = 80  # characters of a game's text


def make_game_row(row: Row) -> Row:
    """Return a position in the columns of games, with the best or evaluated move as its result."""
    white, black = ("mover_elo", "opponent_elo") if " w " in row["fen"] else ("opponent_elo", "mover_elo")
    return {
        "white": None, "black": None, "eco": None,
        "result": row["best"] or row.get("action"), "plies": row["ply"], "text": row["fen"],
        "white_elo": row[white], "black_elo": row[black],
    }  # fmt: skip


GAME_ROW_MAKERS: dict[str, Callable[[Row], Row]] = {"games": dict, "positions": make_game_row}


class DatasetPages:
    """The rows of all datasets with local files, in dataset order.

    With `places`, only these rows of each dataset; with `merged_orders` (dataset, place), in this order.
    """

    def __init__(
        self,
        parts: Sequence[tuple[UUID, str, DatasetFile]],
        places: Sequence[np.ndarray] | None = None,
        merged_orders: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.parts, self.places, self.merged_orders = parts, places, merged_orders
        sizes = [games.total for _, _, games in parts] if places is None else [len(each) for each in places]
        self.count = sum(sizes) if merged_orders is None else len(merged_orders[0])
        self._starts = list(accumulate(sizes, initial=0))

    def read_page(self, number: int) -> Sequence[Row]:
        first, last = number * PAGE_ROWS, min((number + 1) * PAGE_ROWS, self.count)
        if self.merged_orders is not None:
            part_numbers, at = (part[first:last] for part in self.merged_orders)
            rows: list[Row] = [{}] * len(part_numbers)
            for part in np.unique(part_numbers).tolist():
                own_places = np.flatnonzero(part_numbers == part)
                for place, row in zip(own_places.tolist(), self._read(part, at[own_places].tolist()), strict=True):
                    rows[place] = row
            return rows
        rows = []
        for part, begin in enumerate(self._starts[:-1]):
            low, high = max(first, begin), min(last, self._starts[part + 1])
            if low < high:
                here = range(low - begin, high - begin)
                places = here if self.places is None else self.places[part][here.start : here.stop].tolist()
                rows += self._read(part, list(places))
        return rows

    def _read(self, part: int, places: Sequence[int]) -> list[Row]:
        id, name, games = self.parts[part]
        rows = games.take(list(places), DATASET_COLUMNS[games.content]).to_pylist()
        return [
            {
                **row,
                "text": row["text"].lstrip(";")[:GAME_TEXT_CHARS],
                "result_table": DATASET_GAME,
                "dataset_id": id,
                "run": name,
                "unit": place,
            }
            for place, row in zip(places, map(GAME_ROW_MAKERS[games.content], rows), strict=True)
        ]

    def narrow(self, view: View) -> Pages:
        """Return the rows that match `view`, in its order. Only the needed columns are read.

        A word without a column skips the move texts, which are slow to search; `moves:` searches them. Raises an error
        for an unknown column.
        """
        for term in view.terms:
            if term.field:
                view.find_fields(term.field)  # an unknown one is refused before anything is read
        if not view.sort:
            return JoinedPages(self._iter_matches(view), self.narrow)
        places, keys = [], []
        for _, name, games in self.parts:
            column = ColumnReader(games, name)
            places.append(find_fitting_places(column, view))
            values = column(view.sort)
            are_all_rows = values is None or len(places[-1]) == len(values)
            keys.append(values if are_all_rows else values.take(make_arrow_indices(places[-1])))
        return DatasetPages(self.parts, merged_orders=merge_orders(places, keys, view))

    def _iter_matches(self, view: View) -> Iterator[Pages | None]:
        """Yield the matching rows of some row groups at a time, with a pause after each."""
        for part in self.parts:
            _, name, games = part
            for rows in games.stretches(JoinedPages.STRETCH):
                yield DatasetPages([part], [rows.start + find_fitting_places(ColumnReader(games, name, rows), view)])
                yield None


def find_fitting_places(column: ColumnReader, view: View) -> np.ndarray:
    """Return the places of the matching rows: int64, ascending."""
    view_without_text = replace(view, columns=tuple(c for c in view.columns if c.field != "text"))
    mask = np.ones(len(column.rows), bool)
    for term in view.terms:
        mask &= make_mask(view if term.field else view_without_text, column, len(mask), [term])
    return np.flatnonzero(mask)


class ColumnReader:
    """The columns of some rows of a dataset as the list of games calls them, read lazily."""

    def __init__(self, games: DatasetFile, name: str, row_range: range | None = None) -> None:
        """`row_range`: one of the file's `stretches`; without it all rows."""
        self.games, self.name, self.row_range = games, name, row_range
        self.rows = range(games.total) if row_range is None else row_range
        self._read: dict[str, Any] = {}

    def __call__(self, field: str) -> Any:
        """Return a column as an Arrow array, or None if the dataset has no such column."""
        import pyarrow as pa

        if field not in self._read:
            self._read[field] = self._read_column(field, pa)
        return self._read[field]

    def _read_column(self, field: str, pa: Any) -> Any:
        """Return a column as an Arrow array, or None if it is not in the dataset. `pa` is the module pyarrow."""
        games = self.games
        if field == "unit":
            return pa.array(np.arange(self.rows.start, self.rows.stop))
        if field == "run":
            return pa.repeat(self.name, len(self.rows))
        if games.content == "positions":
            if field in ("white_elo", "black_elo"):
                return self._read_rating(field, pa)
            if field == "result":
                return self._read_move(pa)
            field = {"plies": "ply", "text": "fen"}.get(field, "")
        return games.table([field], self.row_range).column(field).combine_chunks() if field else None

    def _read_move(self, pa: Any) -> Any:
        """Return the best or the evaluated move of each position."""
        import pyarrow.compute as pc

        table = self.games.table(["best", "action"], self.row_range).combine_chunks()
        return pc.coalesce(*table.columns).combine_chunks()

    def _read_rating(self, field: str, pa: Any) -> Any:
        """Return White's or Black's rating, derived from the side to move."""
        import pyarrow.compute as pc

        table = self.games.table(["fen", "mover_elo", "opponent_elo"], self.row_range).combine_chunks()
        white = pc.match_substring(table.column("fen"), " w ")
        is_own_side = white if field == "white_elo" else pc.invert(white)
        return pc.if_else(is_own_side, table.column("mover_elo"), table.column("opponent_elo")).combine_chunks()


def merge_orders(places: Sequence[np.ndarray], keys: Sequence[Any], view: View) -> tuple[np.ndarray, np.ndarray]:
    """Return (dataset, place) of all rows sorted by value across datasets; rows without a value come last."""
    import pyarrow as pa

    kinds = [key.type for key in keys if key is not None]
    kind = pa.float64() if kinds and all(map(is_number, kinds)) else pa.string()
    if len(set(kinds)) == 1 and is_number(kinds[0]):
        kind = kinds[0]  # keep integers: Arrow sorts small ranges by counting
    part_numbers = np.repeat(np.arange(len(places), dtype=np.int16), [len(each) for each in places])
    at = np.concatenate([*places, np.zeros(0, np.int64)]).astype(np.uint32)
    values = [
        pa.nulls(len(each), kind) if key is None else key.cast(kind) for key, each in zip(keys, places, strict=True)
    ]
    order = sort_indices(pa.concat_arrays(values) if values else pa.nulls(0, kind), view.descending)
    return part_numbers[order], at[order]


def is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def open_dataset_games(session: Session, dataset_id: UUID | None = None) -> DatasetPages:
    """Open one dataset or all, in creation order. Datasets without local files are left out.

    Digests are not verified, because that takes seconds per gigabyte; `dataset verify` does it.
    """
    from chessreg.entities.dataset import open_dataset_file

    dataset = tables.Dataset
    with session.database.read() as sql:
        dataset_names = names.read_noun_names(sql, "dataset")
        rows = sql.scalars(select(dataset).order_by(dataset.created_at, dataset.id)).all()
        sql.expunge_all()
    parts = []
    for row in rows:
        if dataset_id not in (None, row.id) or not session.store.has_content(row.artifact):
            continue
        with suppress(ChessregError, OSError):
            parts.append(
                (
                    row.id,
                    dataset_names.get(row.id) or row.id.hex[-6:],
                    open_dataset_file(row, session.store.path(row.artifact)),
                )
            )
    return DatasetPages(parts)
