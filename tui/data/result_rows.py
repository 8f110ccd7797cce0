"""Rows and columns of the result tables, in pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    and_,
    false,
    func,
    or_,
    select,
    true,
)  # fmt: skip

from chessreg.registry import names, tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.measures import MASKED_POLICIES, build_game_points_sql
from tui.columns import TableColumn, is_numeric_field
from tui.data.pages import JoinedPages, Pages, Row
from tui.data.sql_pages import KeysetPages, SortedPages, iter_stretches
from tui.data.table_filter import (
    ComputedField,
    Term,
    View,
    is_cell_match,
    make_condition,
    make_conditions,
    make_json_field,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


RESULT_TABLES: dict[str, Any] = {
    "game": tables.Game,
    "trial": tables.Trial,
    "score": tables.Score,
    "illegal_attempt": tables.IllegalAttempt,
    "rating": tables.RatingRecord,
    "prediction": tables.Prediction,
    "metric_point": tables.MetricPoint,
    "statistic": tables.Statistic,
}
TABLES_WITH_BOARDS = ("game", "trial", "score", "prediction")


def get_primary_key(result_table: str) -> tuple[Any, ...]:
    """Return the primary key's columns of a result table, the run first."""
    table = RESULT_TABLES[result_table]
    return tuple(getattr(table, column.key) for column in table.__table__.primary_key)


def flatten_record(record: Any) -> dict[str, Any]:
    """Return a result row as kinds see it: its columns, then the extra columns of its kind."""
    row = {column.key: getattr(record, column.key) for column in record.__table__.columns}
    detail = row.pop("detail", None) or {}
    return row | {(f"detail_{name}" if name in row else name): value for name, value in detail.items()}


def list_results(session: Session, result_table: str, run_id: UUID | None = None) -> Pages:
    """Return the rows of a result table for one run or all runs: oldest run first, each in key order.

    Each row includes the names of its run and its table.
    """
    table = RESULT_TABLES[result_table]

    def make_rows(sql: SqlSession, records: Sequence[Any]) -> list[Row]:
        ids = {record.run_id for record in records}
        run_names, matches = name_runs(sql, ids), find_matches(sql, ids) if result_table == "game" else {}
        listed_rows = list[Row]()
        for record in records:
            row = {**flatten_record(record), "run": run_names[record.run_id], "result_table": result_table}
            if (match := matches.get((record.run_id, row.get("match", -1)))) is not None:
                row |= {**match, "points": format_points(row, match["color"])}
            listed_rows.append(row)
        return listed_rows

    def make_field(name: str) -> Any:
        return make_sql_field(session, table, name)

    def make_pages(fits: Sequence[ColumnElement[bool]] = ()) -> JoinedPages:
        return JoinedPages(iterate_parts(fits), narrow_pages)

    def iterate_parts(fits: Sequence[ColumnElement[bool]]) -> Iterator[Pages | None]:
        if run_id is not None:
            yield from iter_stretches(session, table, key, where=[table.run_id == run_id], fits=fits, rows=make_rows)
            return
        ids, some, looked_rows = find_runs_with_rows(session, table), 1, 0
        while ids:  # more and more runs are counted at once, as the first rows are waited for
            counts = count_fitting_rows(session, table, ids[:some], fits)
            if counts is None and some > 1:
                some = max(1, some // 4)
                continue
            if counts is None:
                yield from iter_stretches(
                    session, table, key, where=[table.run_id == ids[0]], fits=fits, rows=make_rows
                )
                looked_rows = JoinedPages.STRETCH
            else:
                for id in (id for id in ids[:some] if id in counts):
                    conditions = [table.run_id == id, *fits]
                    yield KeysetPages(session, table, key, where=conditions, rows=make_rows, count=counts[id].fitting)
                    looked_rows += counts[id].rows
            ids, some = ids[some:], min(2 * some, MAX_COUNTED_RUNS)
            if looked_rows >= JoinedPages.STRETCH:
                yield None
                looked_rows = 0

    def narrow_pages(view: View) -> Pages:
        filter_conditions = make_conditions(view, make_field, session.database.dialect)
        if view.sort:
            conditions = [*([] if run_id is None else [table.run_id == run_id]), *filter_conditions]
            return SortedPages(
                session, table, get_primary_key(result_table), conditions, make_field, view, make_rows, narrow_pages
            )
        return make_pages(filter_conditions)

    key = get_primary_key(result_table)[1:]  # of one run
    return make_pages()


MAX_COUNTED_RUNS = 64  # runs at once


class RowCounts(NamedTuple):
    """The number of rows of a run, and how many match."""

    rows: int
    fitting: int


def count_fitting_rows(
    session: Session, table: Any, ids: Sequence[UUID], fits: Sequence[ColumnElement[bool]]
) -> dict[UUID, RowCounts] | None:
    """Return the counts of the rows of each run in `ids` and of those that meet `fits`, or None if they have more than
    STRETCH rows together.
    """
    each = and_(true(), *fits).label("fits")
    stretch = select(table.run_id, each).where(table.run_id.in_(ids)).limit(JoinedPages.STRETCH + 1).subquery()
    query = select(stretch.c.run_id, func.count(), func.count().filter(stretch.c.fits)).group_by(stretch.c.run_id)
    with session.database.read() as sql:
        counts_by_run = {id: RowCounts(rows, fitting_rows) for id, rows, fitting_rows in sql.execute(query)}
    return counts_by_run if sum(counts.rows for counts in counts_by_run.values()) <= JoinedPages.STRETCH else None


def find_runs_with_rows(session: Session, table: Any) -> list[UUID]:
    """Return the runs with rows in a result table, oldest first. The query skips from run to run in the index."""
    run = tables.Run
    with session.database.read() as sql:
        lowest = select(table.run_id).order_by(table.run_id).limit(1)
        each = select(lowest.scalar_subquery().label("id")).cte("each", recursive=True)
        next_run = lowest.where(table.run_id > each.c.id).correlate(each).scalar_subquery()
        each = each.union_all(select(next_run).where(each.c.id.is_not(None)))
        run_ids = sql.scalars(select(each.c.id).where(each.c.id.is_not(None))).all()
        run_keys = [tuple(row) for row in select_by_keys(sql, select(run.created_at, run.id), run.id, run_ids)]
    return [id for _, id in sorted(run_keys)]


def make_sql_field(session: Session, table: Any, name: str) -> Any:
    """Return a column of a result table in SQL: a stored, a computed or a kind's extra column; None if it
    is unknown."""
    if name == "run":
        return ComputedField(lambda term: table.run_id.in_(find_runs_by_term(session, table, term)))
    if table is tables.Game and name in ("color", "opponent"):
        return make_match_field(session, name)
    if table is tables.Game and name == "points":
        return build_game_points_sql(make_match_field(session, "color").value == "white")
    if name == "accuracy" and hasattr(table, "correct"):
        return 100.0 * table.correct / func.nullif(table.n, 0)
    column = getattr(table, name, None)
    if table is tables.Trial and name == "sample":
        return make_sample_field(session)
    if column is not None and name in table.__table__.columns and not isinstance(column.type, LargeBinary):
        return column
    if "detail" not in table.__table__.columns or not re.fullmatch(r"[\w.]+", name):
        return None
    return make_json_field(table.detail, name.removeprefix("detail_"), session.database.dialect)


def make_sample_field(session: Session) -> ComputedField:
    """Return the field of a trial's sample. The greedy text is stored as -1."""
    column = tables.Trial.sample

    def make_term_condition(term: Term) -> ColumnElement[bool] | None:
        if term.sign in ":=" and term.value.lower() == "greedy":
            return column < 0
        return make_condition(column, term, session.database.dialect)

    return ComputedField(make_term_condition, column)


def make_match_field(session: Session, name: str) -> ComputedField:
    """Return a field of the match that a game belongs to. Matching matches are looked up before the games."""
    game, match = tables.Game, tables.Match
    column = getattr(match, name)

    def make_term_condition(term: Term) -> ColumnElement[bool] | None:
        condition = make_condition(column, term, session.database.dialect)
        if condition is None:
            return None
        with session.database.read() as sql:
            pairs = sql.execute(select(match.number, match.run_id).where(condition)).all()
        by_number: dict[int, list[UUID]] = {}
        for number, run_id in pairs:
            by_number.setdefault(number, []).append(run_id)
        return or_(false(), *(and_(game.match == number, game.run_id.in_(ids)) for number, ids in by_number.items()))

    statement = select(column).where(match.run_id == game.run_id, match.number == game.match).correlate(game)
    return ComputedField(make_term_condition, statement.scalar_subquery())


def find_runs_by_term(session: Session, table: Any, term: Term) -> list[UUID]:
    """Return the runs of a result table whose displayed name contains a word."""
    ids = find_runs_with_rows(session, table)
    with session.database.read() as sql:
        run_names = name_runs(sql, set(ids))
    return [id for id in ids if is_cell_match(RUN_COLUMN, {"run": run_names[id]}, term)]


def find_matches(sql: SqlSession, ids: set[UUID]) -> dict[tuple[UUID, int], dict[str, str]]:
    """Return (run, number) → the model's color, opponent, opening and policy in each match of these runs."""
    match = tables.Match
    columns = (match.color, match.opponent, match.opening, match.policy)
    rows = sql.execute(select(match.run_id, match.number, *columns).where(match.run_id.in_(ids)))
    return {
        (run_id, number): dict(zip(("color", "opponent", "opening", "policy"), values, strict=True))
        for run_id, number, *values in rows
    }


def format_points(row: Row, color: str) -> str:
    """Return the model's score, at the move limit by evaluation; empty if neither is known.

    >>> format_points({"result": "0-1", "adjudication_cp": None}, "black")
    '1'
    >>> format_points({"result": "*", "adjudication_cp": 9}, "white")
    '½'
    """
    from chessreg.games.boards.adjudication import score_game

    score = score_game("paper", color == "white", row["result"], row["adjudication_cp"])
    return "" if score is None else "½" if score == 0.5 else f"{score:g}"


def name_runs(sql: SqlSession, ids: set[UUID]) -> dict[UUID, str]:
    """Return the name of each run, or its kind and id."""
    kinds = dict(select_by_keys(sql, select(tables.Run.id, tables.Run.kind), tables.Run.id, ids))
    run_names = names.read_names_of(sql, "run", ids)
    return {id: run_names.get(id) or f"{kinds.get(id, 'run')} {id.hex[-6:]}" for id in ids}


def count_result_rows(session: Session, run_id: UUID, result_tables: Sequence[str]) -> dict[str, int]:
    """Return the number of rows that a run has in each result table, without empty tables."""
    with session.database.read() as sql:
        known_tables = [name for name in result_tables if name in RESULT_TABLES]
        counts = {
            name: sql.scalar(select(func.count()).where(RESULT_TABLES[name].run_id == run_id)) for name in known_tables
        }
    return {name: count for name, count in counts.items() if count}


def find_tables_with_boards(session: Session) -> list[str]:
    """Return the result tables with rows that can be drawn as boards."""
    with session.database.read() as sql:
        return [f for f in TABLES_WITH_BOARDS if sql.scalar(select(RESULT_TABLES[f].unit).limit(1)) is not None]


def find_row(session: Session, row: Row, result_tables: Sequence[str]) -> dict[str, Any] | None:
    """Return the complete stored row for a row with part of its key, such as a row of a query's answer.

    The first match in key order is used.
    """
    run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
    aliases = {"item": "game"}  # its name in queries
    with session.database.read() as sql:
        for name in result_tables:
            table = RESULT_TABLES[name]
            query = select(table).where(table.run_id == run_id)
            for column in get_primary_key(name)[1:]:
                field = column.key if column.key in row else aliases.get(column.key, "")
                if field in row and row[field] is not None:
                    query = query.where(getattr(table, column.key) == row[field])
            if (record := sql.scalars(query.order_by(*get_primary_key(name)).limit(1)).first()) is not None:
                return {**flatten_record(record), "result_table": name}
    return None


TABLE_TITLES = {
    "game": "games",
    "trial": "trials",
    "score": "scores",
    "illegal_attempt": "illegal attempts",
    "rating": "ratings",
    "prediction": "predictions",
    "metric_point": "metrics",
    "statistic": "statistics",
    "dataset_game": "dataset games",
}
RUN_COLUMN = TableColumn("run", "run", widest=20)


def format_accuracy(row: Row) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else ""


def format_first_tries(row: Row) -> str:
    """Return the legal first tries out of the turns; a dash for a policy that chooses among the legal moves."""
    if row.get("policy") in MASKED_POLICIES:
        return "–"
    return "" if row["first_try_legal"] is None else f"{row['first_try_legal']}/{row['turns']}"


def format_opening(row: Row) -> str:
    """Return the opening of a game, with its number unless all games start from the standard position.

    >>> format_opening({"opening": "random:6", "opening_number": 3}), format_opening({"opening_number": 3})
    ('random:6 no. 3', '3')
    """
    opening, number = row.get("opening"), row["opening_number"]
    return str(number) if opening is None else opening if opening == "standard" else f"{opening} no. {number}"


def make_mass_column(field: str) -> TableColumn:
    """Return the table column of a probability mass, with three decimals."""

    def format_mass(row: Row) -> str:
        return "" if row[field] is None else f"{row[field]:.3f}"

    return TableColumn(field, field.replace("_", " "), right=True, text=format_mass)


def format_estimate(field: str, row: Row) -> str:
    """Return a value and, if it has one, its interval.

    >>> format_estimate("value", {"value": 0.5, "low": 0.25, "high": 1}), format_estimate("value", {"value": None})
    ('0.5 [0.25, 1]', '')
    """
    if row[field] is None:
        return ""
    low, high = (None if row.get(end) is None else f"{row[end]:,.3g}" for end in ("low", "high"))
    ends = [low, high] if low and high else [f"≥ {low}"] if low else [f"≤ {high}"] if high else []
    return f"{row[field]:,.4g}" + (f" [{', '.join(ends)}]" if ends else "")


def format_sample(row: Row) -> str:
    return "greedy" if row["sample"] < 0 else str(row["sample"])


def format_final_evaluation(row: Row) -> str:
    """Return the final evaluation of a game from White's side as boards show it: in pawns, or as moves to mate.

    >>> [format_final_evaluation({"adjudication_cp": value}) for value in (35, -9_997, 9_999, None)]
    ['+0.35', '#-3', '#1', '']
    """
    from chessreg.games.boards.picture import format_evaluation

    value = row["adjudication_cp"]
    return "" if value is None else format_evaluation(value).removesuffix(" for White")


TABLE_COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "game": (
        TableColumn("unit", "game", right=True),
        TableColumn("color", "color"),
        TableColumn("opponent", "opponent", widest=28, least=12),
        TableColumn("points", "score", right=True, role="value"),
        TableColumn("adjudication_cp", "evaluation", right=True, text=format_final_evaluation),
        TableColumn("result", "result"),
        TableColumn("termination", "ended by", text=lambda row: row["termination"].replace("_", " "), least=16),
        TableColumn("plies", "plies", right=True),
        TableColumn("first_try_legal", "legal first tries", right=True, text=format_first_tries),
        TableColumn("opening_number", "opening", text=format_opening),
    ),
    "trial": (
        TableColumn("unit", "state", right=True),
        TableColumn("condition", "condition"),
        TableColumn("sample", "sample", right=True, text=format_sample),
        TableColumn("text", "wrote"),
        TableColumn("legal_original", "legal on original"),
        TableColumn("legal_modified", "legal on modified"),
        make_mass_column("mass_original"),
        make_mass_column("mass_modified"),
        TableColumn("item", "game", right=True),
        TableColumn("ply", "ply", right=True),
    ),
    "score": (
        TableColumn("unit", "unit", right=True),
        TableColumn("split", "split"),
        TableColumn("item", "game", right=True),
        TableColumn("layer", "layer", right=True),
        TableColumn("n", "predictions", right=True),
        TableColumn("correct", "right", right=True),
        TableColumn("accuracy", "accuracy", right=True, text=format_accuracy, role="value"),
        TableColumn("majority", "right by majority class", right=True),
        TableColumn("positions", "positions", right=True),
        TableColumn("exact", "all squares right", right=True),
        TableColumn("unseen", "positions not fitted", right=True),
        TableColumn("unseen_correct", "right in these", right=True),
    ),
    "rating": (
        TableColumn("player", "player", widest=40, least=20, role="key"),
        TableColumn("rating", "rating", right=True, text=partial(format_estimate, "rating"), role="value"),
        TableColumn("games", "games", right=True, role="detail"),
        TableColumn("estimator", "estimator"),
    ),
    "metric_point": (
        TableColumn("name", "metric", widest=40, least=20, role="key"),
        TableColumn("unit", "unit", right=True),
        TableColumn("step", "step", right=True),
        TableColumn("value", "value", right=True, role="value"),
    ),
    "statistic": (
        TableColumn("unit", "unit", right=True),
        TableColumn("name", "statistic", widest=40, least=20, role="key"),
        TableColumn("value", "value", right=True, text=partial(format_estimate, "value"), role="value"),
        TableColumn("n", "n", right=True, role="detail"),
        TableColumn("p", "p", right=True),
    ),
}
TABLE_LEGENDS = {  # shown in the table's frame
    "game": "score: the model's · evaluation: pawns for White at the move limit, beyond ±1 wins",
}
TABLES_WITH_INTERVALS = ("rating", "statistic")  # whose values show `low` and `high`
HIDDEN_FIELDS = {"run_id", "attempt_id", "intervention_id", "run", "result_table", "counts", "match", "fen",
             "opening", "opening_plies", "turns", "tries", "moves", "move_hash", "seconds"}  # fmt: skip


def make_result_columns(result_table: str, rows: Sequence[Row], with_run: bool = False) -> list[TableColumn]:
    """Return the columns of a result table, followed by the extra columns found in the first rows."""
    columns = list(TABLE_COLUMNS.get(result_table, ()))
    field_names = {column.field for column in columns} | HIDDEN_FIELDS
    field_names |= {"low", "high"} if result_table in TABLES_WITH_INTERVALS else set()
    fields = dict.fromkeys(name for row in rows[:20] for name in row if name not in field_names)
    more = [
        TableColumn(name, name.replace("_", " "), right=is_numeric_field(name, rows[:20]), widest=32)
        for name in fields
        if any(row.get(name) is not None and not isinstance(row.get(name), bytes) for row in rows[:20])
    ]
    return [*([RUN_COLUMN] if with_run else []), *columns, *more]


DATASET_GAME = "dataset_game"


def has_datasets(session: Session) -> bool:
    """Return whether the registry has a dataset. No file is read."""
    with session.database.read() as sql:
        return sql.scalar(select(tables.Dataset.id).limit(1)) is not None
