"""Rows of the result tables, of a run or of the whole registry, and games of datasets: in pages, with their columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select

from chessreg.errors import ChessregError
from chessreg.registry import names, tables
from tui import show
from tui.columns import Column, numeric
from tui.data.pages import PAGE, JoinedPages, KeysetPages, Pages, Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.games.dataset import DatasetFile
    from chessreg.session import Session


RESULT_TABLES: dict[str, Any] = {
    "game": tables.Game,
    "trial": tables.Trial,
    "score": tables.Score,
    "illegal_attempt": tables.IllegalAttempt,
    "rating": tables.Rating,
    "prediction": tables.Prediction,
    "metric_point": tables.MetricPoint,
    "statistic": tables.Statistic,
}
WITH_BOARDS = ("game", "trial", "score")


def key_of(result_table: str) -> tuple[Any, ...]:
    """The primary key of a result table, run first."""
    table = RESULT_TABLES[result_table]
    return tuple(getattr(table, column.key) for column in table.__table__.primary_key)


def flat(record: Any) -> dict[str, Any]:
    """A result row as kinds know it: its columns, then the extra columns of its kind."""
    row = {column.key: getattr(record, column.key) for column in record.__table__.columns}
    extra = row.pop("detail", None) or {}
    return row | {(f"detail_{name}" if name in row else name): value for name, value in extra.items()}


def results(session: Session, result_table: str, run_id: UUID | None = None) -> Pages:
    """The rows of a result table, of one run or of all, the oldest run first and each in the order of its keys. Each
    row names its run and its table."""
    table = RESULT_TABLES[result_table]

    def rows(sql: SqlSession, records: Sequence[Any]) -> list[Row]:
        called = run_names(sql, {record.run_id for record in records})
        return [{**flat(record), "run": called[record.run_id], "result_table": result_table} for record in records]

    def of_run(id: UUID, count: int | None = None) -> KeysetPages:
        return KeysetPages(session, table, key_of(result_table), where=[table.run_id == id], rows=rows, count=count)

    if run_id is not None:
        return of_run(run_id)
    run = tables.Run
    with session.database.read() as sql:
        counts: dict[UUID, int] = dict(
            sql.execute(select(table.run_id, func.count()).group_by(table.run_id)).tuples().all()
        )
        oldest_first = sql.scalars(select(run.id).order_by(run.created_at, run.id)).all()
    return JoinedPages([of_run(id, counts[id]) for id in oldest_first if id in counts])


def run_names(sql: SqlSession, ids: set[UUID]) -> dict[UUID, str]:
    """The name of each run, or else its kind and id."""
    run = tables.Run
    kinds = dict(sql.execute(select(run.id, run.kind).where(run.id.in_(ids))).tuples().all())
    return {id: names.name_of(sql, "run", id) or f"{kinds.get(id, 'run')} {id.hex[-6:]}" for id in ids}


def result_tables_of(session: Session, run_id: UUID, result_tables: Sequence[str]) -> dict[str, int]:
    """Those of the result tables that have rows of this run, with their number."""
    with session.database.read() as sql:
        known = [name for name in result_tables if name in RESULT_TABLES]
        counts = {name: sql.scalar(select(func.count()).where(RESULT_TABLES[name].run_id == run_id)) for name in known}
    return {name: count for name, count in counts.items() if count}


def result_tables_with_boards(session: Session) -> list[str]:
    """The result tables that hold any row that a board may be drawn of."""
    with session.database.read() as sql:
        return [f for f in WITH_BOARDS if sql.scalar(select(RESULT_TABLES[f].unit).limit(1)) is not None]


def find_row(session: Session, row: Row, result_tables: Sequence[str]) -> dict[str, Any] | None:
    """The whole stored row that a row with (part of) its key stands for: a query's answer leaves columns out.

    The key is run_id, unit and what else of the table's key the row has; the first that fits in key order.
    """
    run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
    also = {"item": "game"}  # what queries call it
    with session.database.read() as sql:
        for name in result_tables:
            table = RESULT_TABLES[name]
            query = select(table).where(table.run_id == run_id)
            for column in key_of(name)[1:]:
                field = column.key if column.key in row else also.get(column.key, "")
                if field in row and row[field] is not None:
                    query = query.where(getattr(table, column.key) == row[field])
            if (record := sql.scalars(query.order_by(*key_of(name)).limit(1)).first()) is not None:
                return {**flat(record), "result_table": name}
    return None


TITLES = {
    "game": "games",
    "trial": "trials",
    "score": "scores",
    "illegal_attempt": "illegal tries",
    "rating": "ratings",
    "prediction": "predictions",
    "metric_point": "metrics",
    "statistic": "statistics",
    "dataset_game": "dataset games",
}
RUN = Column("run", "run", widest=20)


def accuracy(row: Row) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else ""


def first_tries(row: Row) -> str:
    return f"{row['first_try_legal']}/{row['turns']}"


def mass(field: str) -> Column:
    def text(row: Row) -> str:
        return "" if row[field] is None else f"{row[field]:.3f}"

    return Column(field, field.replace("_", " "), right=True, text=text)


def sample(row: Row) -> str:
    return "greedy" if row["sample"] < 0 else str(row["sample"])


KNOWN: dict[str, tuple[Column, ...]] = {
    "game": (
        Column("unit", "game", right=True),
        Column("result", "result"),
        Column("termination", "ended by", least=16),
        Column("plies", "plies", right=True),
        Column("first_try_legal", "legal at once", right=True, text=first_tries),
        Column("adjudication_cp", "centipawns", right=True),
        Column("opening_number", "opening", right=True),
        Column("seconds", "took", right=True, text=lambda row: show.duration(row["seconds"])),
    ),
    "trial": (
        Column("unit", "state", right=True),
        Column("condition", "condition"),
        Column("sample", "sample", right=True, text=sample),
        Column("text", "wrote"),
        Column("legal_original", "legal before"),
        Column("legal_modified", "legal after"),
        mass("mass_original"),
        mass("mass_modified"),
        Column("item", "game", right=True),
        Column("ply", "ply", right=True),
    ),
    "score": (
        Column("unit", "unit", right=True),
        Column("split", "split"),
        Column("item", "game", right=True),
        Column("layer", "layer", right=True),
        Column("n", "n", right=True),
        Column("correct", "right", right=True),
        Column("accuracy", "accuracy", right=True, text=accuracy),
    ),
}
ELSEWHERE = {"run_id", "attempt_id", "intervention_id", "run", "result_table", "counts", "match", "fen",
             "opening_plies", "turns", "tries", "moves"}  # fmt: skip


def columns_of(result_table: str, rows: Sequence[Row], with_run: bool = False) -> list[Column]:
    """The columns of a result table: its own, then the extra columns of its kind, as the first rows have them."""
    known = list(KNOWN.get(result_table, ()))
    named = {column.field for column in known} | ELSEWHERE
    fields = dict.fromkeys(name for row in rows[:20] for name in row if name not in named)
    more = [
        Column(name, name.replace("_", " "), right=numeric(name, rows[:20]), widest=32)
        for name in fields
        if any(row.get(name) is not None and not isinstance(row.get(name), bytes) for row in rows[:20])
    ]
    return [*([RUN] if with_run else []), *known, *more]


DATASET_GAME = "dataset_game"
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
                read = games.take(list(here), COLUMNS[games.content]).to_pylist()
                rows += [
                    {
                        **row,
                        "text": row["text"].lstrip(";")[:SHOWN],
                        "result_table": DATASET_GAME,
                        "dataset_id": id,
                        "run": name,
                        "unit": place,
                    }
                    for place, row in zip(here, map(AS_GAME[games.content], read), strict=True)
                ]
            first, wanted = max(0, first - games.total), wanted - len(here)
            if not wanted:
                break
        return rows


def any_dataset(session: Session) -> bool:
    """Whether there is any; nothing of its files is read."""
    with session.database.read() as sql:
        return sql.scalar(select(tables.Dataset.id).limit(1)) is not None


def dataset_games(session: Session) -> DatasetPages:
    """The datasets in the order in which they were made; those whose files are elsewhere are left out."""
    from chessreg.entities.dataset import folder_of, opened

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
