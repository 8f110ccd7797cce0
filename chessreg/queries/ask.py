"""Answer a catalogue query by name, list the rows behind one of its cells, or run a user's SELECT."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.queries import gate
from chessreg.queries.catalogue import Entry, Plot, find_answerable_titles, find_entry, find_kind_file
from chessreg.queries.engine import QueryAnswer, QueryEngine, hash_sql, open_shared_engine
from chessreg.queries.parts import answer_from_parts
from chessreg.queries.question import SCORINGS as SCORINGS
from chessreg.queries.question import CatalogueQuestion
from chessreg.queries.result import QueryResult
from chessreg.queries.scope import Scope, resolve_scope
from chessreg.queries.views import SHOW_TABLES, list_described_tables

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    import pyarrow as pa

    from chessreg.registry.database import Database


def run_query(
    database: Database,
    name: str | Entry,
    scope: Scope | None = None,
    *,
    scoring: str = "paper",
    sort: str | None = None,
    timeout: float | None = None,
    memory: str | None = None,
    **options: Any,
) -> QueryResult:
    """Return the answer to a catalogue query, named by title, alias or file.

    `sort` has columns separated by commas, such as `-accuracy`: `-` sorts the largest first. `options` are the fields
    of Scope. Raises NotFoundError for an unknown query or an unknown name in `options`,
    BadInputError for a condition that does not bind and for an unknown column of `sort`.
    """
    from chessreg.queries.summary import FEW, FEW_CLUSTERS_NOTE  # NumPy is not loaded for a list of queries

    question = build_question(database, name, scope or Scope.from_options(options), scoring, memory)
    engine, entry, scope = question.engine, question.entry, question.scope
    left_out = {"left out": build_excluded_runs_sql(entry, scope, list_stale_runs(database))}
    answer = answer_from_parts(question, left_out, timeout) or answer_from_rows(question, left_out, timeout)
    table = answer["table"]
    if question.result_where:
        table = engine.query_arrow_table(
            table, f"SELECT * FROM result WHERE {question.result_where} ORDER BY cell", timeout
        )
    if sort:
        order = build_order_sql(sort, [name for name in table.column_names if name not in ("cell", FEW)])
        table = engine.query_arrow_table(table, f"SELECT * FROM result ORDER BY {order}, cell", timeout)
    meta = answer_metadata(engine, answer, table.num_rows, entry.digest, question.meta)
    reasons = "" if table.num_rows else explain_no_rows(question, timeout)
    few = [FEW_CLUSTERS_NOTE] if any(table[FEW].to_pylist()) else []
    notes = [*list_warnings(table), *few, *list_remarks(entry, table.num_rows, answer["left out"], scope, reasons)]
    cells = table["cell"].to_pylist()
    return QueryResult(table.drop_columns(["cell", FEW]), meta, notes, entry, cells, entry.columns)


def answer_from_rows(question: CatalogueQuestion, more: Mapping[str, str], timeout: float | None) -> QueryAnswer:
    """Return the answer to a catalogue query with the tables `table` and those of the statements `more`."""
    entry = question.entry
    names = ["table", *(n for n in ("clusters", "numbered") if n in entry.statements)]

    def summarize(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        from chessreg.queries import summary  # NumPy is not loaded for a list of queries

        if entry.stored_names:
            numbers = summary.match_cells(summary.estimate_by_part(entry, tables["clusters"]), tables["numbered"])
            table = summary.attach_statistics(entry, tables["table"], numbers)
        else:
            table = summary.add_statistics(entry, tables["table"], tables.get("clusters"))
        return {"table": table, **{name: tables[name] for name in more}}

    statements = {name: question.build_statement(name) for name in names} | dict(more)
    return question.engine.answer(statements, question.parameters, timeout, entry.title, summarize)


def build_order_sql(sort: str, columns: Sequence[str]) -> str:
    """Return the ORDER BY terms of columns such as `-accuracy,layer`, without a value last.

    Raises BadInputError for an unknown column.

    >>> build_order_sql("-accuracy, layer", ["layer", "accuracy"])
    '"accuracy" DESC NULLS LAST, "layer" ASC NULLS LAST'
    """
    terms = []
    for word in sort.split(","):
        name = word.strip().removeprefix("-").replace(" ", "_").lower()
        if name not in columns:
            suggestions = difflib.get_close_matches(name, columns, n=1) or [
                column for column in columns if name in column
            ]
            hint = (
                f"did you mean {suggestions[0]}?" if name and suggestions else f"the columns are {', '.join(columns)}"
            )
            raise BadInputError(f"--sort {sort}: column {name!r} does not exist", hint)
        terms.append(f'"{name}" {"DESC" if word.strip().startswith("-") else "ASC"} NULLS LAST')
    return ", ".join(terms)


def build_question(
    database: Database, name: str | Entry, scope: Scope, scoring: str, memory: str | None
) -> CatalogueQuestion:
    """Return the catalogue query `name` with its resolved scope.

    `scoring` decides how draws and unfinished games count, and `memory` limits DuckDB, such as `2GB`. Raises the errors
    of `run_query`.
    """
    entry, engine = find_recorded_entry(database, name), open_shared_engine(database, memory)
    load_kind_views(database, engine, entry)
    question = CatalogueQuestion(engine, entry, scope, resolve_scope(database, scope), scoring)
    if scope.where:
        question.apply_where(scope.where)
    return question


def find_recorded_entry(database: Database, name: str | Entry) -> Entry:
    """Return the query of this name, including queries next to the files of kinds that this registry has used."""
    if isinstance(name, Entry):
        return name
    complete = list_complete_kinds(database)
    try:
        return find_entry(name, complete_kinds=complete)
    except NotFoundError:
        return find_entry(name, list_trusted_kind_files(database), complete)


def list_complete_kinds(database: Database) -> frozenset[str]:
    """Return the kinds with complete runs."""
    from sqlalchemy import text

    with database.read() as session:
        return frozenset(session.scalars(text("SELECT DISTINCT kind FROM run WHERE completed_at IS NOT NULL")))


def list_answerable_titles(database: Database, entries: Sequence[Entry]) -> frozenset[str]:
    """Return the titles of the queries for which the registry has complete runs (`find_answerable_titles`)."""

    from sqlalchemy import text

    def read_rows(sql: str) -> Sequence[Any]:
        with database.read() as session:
            return session.execute(text(sql.replace(":", "\\:"))).all()

    return find_answerable_titles(entries, read_rows)


def load_kind_views(database: Database, engine: QueryEngine, entry: Entry) -> None:
    """Add the views of a user's kind file to the engine, if the query is next to one.

    The recorded schema of earlier runs is enough to query their rows. Raises NotTrustedError if the file is not trusted
    and has no recorded runs.
    """
    from chessreg.runs.trust import can_load, read_trusted_file

    file = find_kind_file(entry.path)
    if file is not None and can_load(file):
        engine.add_kind_views(file)
    elif file is not None and file not in list_recorded_kind_files(database):
        read_trusted_file(file)


def list_trusted_kind_files(database: Database) -> tuple[Path, ...]:
    """Return the files of user kinds that this registry has used and that are trusted."""
    from chessreg.runs.trust import can_load

    return tuple(sorted(filter(can_load, list_recorded_kind_files(database))))


def list_recorded_kind_files(database: Database) -> set[Path]:
    """Return the files of user kinds that the registry names."""
    from sqlalchemy import select

    from chessreg.registry.tables import KindRecord

    with database.read() as session:
        sources = session.scalars(select(KindRecord.source).where(KindRecord.source.like("%.py:%")).distinct())
        return {Path(source.rpartition(":")[0]) for source in sources}


def query_plot_rows(
    database: Database, entry: Entry, plot: Plot, scope: Scope | None = None, *, scoring: str = "paper"
) -> QueryResult:
    """Return the rows of the query `entry` that `plot` shows, restricted to `scope`. `scoring` is that of `run_query`.

    The notes name rows by the plot's labels, and count the rows that are not drawn.
    """
    result = run_query(database, entry, scope, scoring=scoring)
    table = open_shared_engine(database).query_arrow_table(result.table, f"SELECT * FROM result WHERE {plot.where}")
    about_rows = set(list_warnings(result.table))
    notes = [note for note in result.notes if note not in about_rows]
    if len(result) and not table.num_rows:
        rows = "its row is not" if len(result) == 1 else f"none of its {len(result):,} rows is"
        notes = [f"it shows rows with {plot.where}; {rows} one, as chessreg query {entry.title!r} prints them"]
    elif table.num_rows:
        notes = [*list_plot_warnings(table, plot), *notes]
        if omitted_count := len(result) - table.num_rows:
            notes.append(
                f"{omitted_count:,} of {len(result):,} rows are not drawn, because they do not have {plot.where}; "
                f"all rows: chessreg query {entry.title!r}"
            )
        has_values = [any(row[name] is not None for name in (plot.y, *plot.beside)) for row in table.to_pylist()]
        if empty := has_values.count(False):
            notes.append(f"{empty:,} of {len(result):,} rows are not drawn, because they have no {plot.y}")
    return replace(result, table=table, cells=None, notes=notes, meta=result.meta | {"rows": table.num_rows})


MOST_NAMED_ROWS = 3  # rows of a plot that a note names


def list_plot_warnings(table: pa.Table, plot: Plot) -> list[str]:
    """Return the texts of the column `warning`, each once, after the labels of its points unless all points have it."""
    from chessreg.queries.plot import group_rows, list_differing_columns

    rows = table.to_pylist()
    names = list_differing_columns(rows, (*plot.panels, plot.x, *plot.series))
    points: dict[str, list[str]] = {}
    for row in rows:
        for text in (row.get("warning") or "").split("; "):
            points.setdefault(text, []).extend(group_rows([row], names) if text else ())
    notes = []
    for text, labels in points.items():
        label_names = list(dict.fromkeys(filter(None, labels)))
        more = f" and {len(label_names) - MOST_NAMED_ROWS} more" if len(label_names) > MOST_NAMED_ROWS else ""
        if labels:
            are_all_labelled = len(labels) == len(rows) or not label_names
            notes.append(text if are_all_labelled else f"{'; '.join(label_names[:MOST_NAMED_ROWS])}{more}: {text}")
    return notes


def query_rows_behind(
    database: Database,
    name: str | Entry,
    number: int,
    scope: Scope | None = None,
    *,
    scoring: str = "paper",
    sort: str | None = None,
    timeout: float | None = None,
    memory: str | None = None,
    **options: Any,
) -> QueryResult:
    """Return the games or trials behind row `number` (from 1) of a catalogue query.

    The other arguments are those of `run_query`, which determine scope and order. Raises its errors.
    """
    result = run_query(database, name, scope, scoring=scoring, sort=sort, timeout=timeout, memory=memory, **options)
    question = build_question(database, name, scope or Scope.from_options(options), scoring, memory)
    engine, entry = question.engine, question.entry
    question.base_where.append(f"cell = {result.get_cell(number)}")
    answer = engine.answer({"rows": question.build_statement("rows")}, question.parameters, timeout)
    table = answer["rows"]
    meta = answer_metadata(engine, answer, table.num_rows, entry.digest, question.meta | {"behind_row": number})
    return QueryResult(table, meta)


def run_sql(database: Database, sql: str, *, timeout: float | None = None, memory: str | None = None) -> QueryResult:
    """Return the rows of one SELECT over tables and views, sorted by value unless it has an ORDER BY.

    `timeout` is in seconds, and `memory` limits DuckDB, such as `2GB`. `SHOW TABLES` lists the tables and views with
    their use: views for readers first, internal tables last. Raises BadInputError for anything but a single SELECT.
    """
    import pyarrow as pa

    engine = open_shared_engine(database, memory)
    text = gate.add_order(engine.parser(), gate.check_select(sql))
    answer = engine.answer({"rows": text}, None, timeout)
    table = answer["rows"]
    if SHOW_TABLES.fullmatch(sql):
        table = pa.Table.from_pylist(list_described_tables(table["name"].to_pylist(), engine.kind_views))
    notes = [] if table.num_rows else ["no rows"]
    return QueryResult(table, answer_metadata(engine, answer, table.num_rows, hash_sql(sql), {"query": sql}), notes)


def stream_sql(
    database: Database, sql: str, *, timeout: float | None = None, memory: str | None = None
) -> Generator[QueryResult, None, None]:
    """Yield the rows of one SELECT in parts, in constant memory apart from the registry's columns that it names.

    Without an ORDER BY, answers of up to `duck.MOST_SORTED_BYTES` are sorted by value. Longer answers keep the order in
    which DuckDB finds the rows, because sorting would hold all of them in memory.
    """
    engine = open_shared_engine(database, memory)
    select = gate.check_select(sql)
    unordered_select = gate.select_without_order(engine.parser(), select)
    total = 0
    for part in engine.stream(unordered_select or select, timeout, sort=unordered_select is not None):
        total += part.table.num_rows
        answer = QueryAnswer({}, part.rows_read, part.version)
        yield QueryResult(part.table, answer_metadata(engine, answer, total, hash_sql(sql), {"query": sql}))


MOST_COUNTED_ROWS = 100_000  # rows of a table, at most


def format_row_count(rows: int, more: bool) -> str:
    return f"{rows:,}{'+' if more else ''}"


def count_rows_read(database: Database, sql: str) -> dict[str, tuple[int, bool]]:
    """Return the tables that a SELECT reads, each with its row count (at most MOST_COUNTED_ROWS) and whether there are
    more.

    Raises the errors of `run_sql`.
    """
    return count_table_rows(database, open_shared_engine(database).tables_of(gate.check_select(sql)))


def count_table_rows(database: Database, names: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Return the row count of each table (at most MOST_COUNTED_ROWS) and whether there are more. Names of views are
    ignored."""
    from sqlalchemy import func, literal_column, select

    from chessreg.registry.tables import Base

    counts = {}
    with database.read() as session:
        for name in names:
            if (table := Base.metadata.tables.get(name)) is not None:
                counted_rows = select(literal_column("1")).select_from(table).limit(MOST_COUNTED_ROWS + 1).subquery()
                number = session.scalar(select(func.count()).select_from(counted_rows)) or 0
                counts[name] = (min(number, MOST_COUNTED_ROWS), number > MOST_COUNTED_ROWS)
    return counts


def list_stale_runs(database: Database) -> list[UUID]:
    """Return the runs whose inputs, direct or indirect, are invalid."""
    from chessreg.registry.lineage import find_stale_runs

    with database.read() as session:
        return sorted(find_stale_runs(session))


def build_excluded_runs_sql(entry: Entry, scope: Scope, stale: list[UUID]) -> str:
    """Return the SELECT that counts the runs excluded from the default scope, and the stale runs that are included."""
    kinds = ", ".join(f"'{kind}'" for kind in entry.kinds)
    in_scope = "NOT archived AND NOT invalid"
    unfinished_sql = "false" if scope.partial else f"state <> 'complete' AND {in_scope}"
    ids = ", ".join(f"UUID '{id}'" for id in stale)
    stale_sql = f"{in_scope} AND run_id IN ({ids})" if stale else "false"
    return f"""SELECT count(*) FILTER ({unfinished_sql}) AS unfinished, count(*) FILTER (archived) AS archived,
        count(*) FILTER (invalid) AS invalid, count(*) FILTER ({stale_sql}) AS stale, count(*) AS runs
        FROM runs WHERE kind IN ({kinds})"""


def format_numbers(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, three or more consecutive ones as a range.

    >>> format_numbers([1, 2, 4, 5, 6, 9])
    '1, 2, 4-6, 9'
    """
    parts: list[str] = []
    for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0]):
        members = [number for _, number in run]
        parts += [f"{members[0]}-{members[-1]}"] if len(members) > 2 else map(str, members)
    return ", ".join(parts)


def list_warnings(table: pa.Table, row: str = "row", row_numbers: Container[int] | None = None) -> list[str]:
    """Return the texts of the column `warning` (separated by `; `), each once, after the numbers of its rows.

    `row` is the word for a row. `row_numbers` selects rows by number, counted from 1. None selects all rows.
    """
    rows: dict[str, list[int]] = {}
    for number, text in enumerate(table["warning"].to_pylist() if "warning" in table.column_names else [], 1):
        for each in text.split("; ") if text is not None and (row_numbers is None or number in row_numbers) else ():
            rows.setdefault(each, []).append(number)
    return [f"{row}{'s' * (len(numbers) > 1)} {format_numbers(numbers)}: {text}" for text, numbers in rows.items()]


def explain_no_rows(question: CatalogueQuestion, timeout: float | None) -> str:
    """Return why the runs in scope give no row: for each reason the number of skipped states, and hints.

    Returns an empty text if no reason is known. The text comes from the entry's statement `none`, or else from
    `skipped`.
    """
    if "none" in question.entry.statements:
        reason_table = question.engine.answer({"": question.build_statement("none")}, question.parameters, timeout)[""]
        return "; ".join(reason_table["why"].to_pylist())
    if "skipped" not in question.entry.statements:
        return ""
    rows = question.engine.answer({"": question.build_statement("skipped")}, question.parameters, timeout)[
        ""
    ].to_pylist()
    if not rows:
        return ""
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons[row["reason"]] += row["states"]
    summary = ", ".join(f"{states:,} because {reason}" for reason, states in reasons.most_common())
    runs = list(dict.fromkeys(row["run"] for row in rows))
    scope_text = (
        f"run {runs[0]}" if len(runs) == 1 else f"{len(runs)} runs ({', '.join(runs[:3])}{', …' * (len(runs) > 3)})"
    )
    hints = " or ".join(dict.fromkeys(row["hint"] for row in rows if row["hint"]))
    return f"every state of {scope_text} was skipped: {summary}{'; try ' * bool(hints)}{hints}"


def list_remarks(entry: Entry, rows: int, counts: pa.Table, scope: Scope, empty_reason: str = "") -> list[str]:
    """Return the notes below a table: the runs left out, stale runs, and for an empty table the reason.

    `rows` is the table's number of rows. `counts` has one row with the numbers of runs in scope, by reason for leaving
    them out. `empty_reason` is the reason for an empty table, if `explain_no_rows` gave one.
    """
    run_counts = counts.to_pylist()[0]
    reasons = {"unfinished": "not complete (--partial shows them)", "archived": "archived", "invalid": "invalid"}
    count_texts = [f"{run_counts[name]} {way}" for name, way in reasons.items() if run_counts[name]]
    notes = [f"left out of the runs: {', '.join(count_texts)}"] if count_texts else []
    if run_counts["stale"]:
        notes.append(f"{run_counts['stale']} of these runs are stale: made from something invalid (chessreg runs list)")
    if not rows:
        note = "nothing fits this scope" if scope.list_set_options() else "nothing to show yet"
        note = note if run_counts["runs"] else "no runs yet"
        notes.insert(0, empty_reason or f"{note}; {entry.made_by} produces the rows of this table")
        if not run_counts["runs"]:
            notes.insert(1, f"columns: {', '.join(column.name for column in entry.columns if not column.hidden)}")
    for column in entry.columns:
        share = re.search(rf"\b{column.name}\s*(?:[<>]=?|!?=)\s*(0?\.\d+)\b", scope.where or "")
        if share is not None and column.unit == "%":
            notes.append(f"{column.name} is in %: {100 * float(share[1]):g}, not {share[1]}")
    return notes


def answer_metadata(
    engine: QueryEngine, answer: QueryAnswer, rows: int, query_hash: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an answer's provenance: the query's hash, the registry's schema and data version, and the rows read.

    `rows` is the number of rows in the answer. `more` are further items.
    """
    return {
        **more,
        "query_hash": query_hash[:16],
        "registry_schema": describe_registry_schema(engine.database),
        "data_version": answer.version,
        "rows": rows,
        "rows_read": dict(sorted(answer.rows_read.items())),
    }


def describe_registry_schema(database: Database) -> str:
    """Return the revision of the registry's schema."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with database.read() as session:
            return str(session.execute(text("SELECT version_num FROM chessreg_version")).scalar() or "")
    except (SQLAlchemyError, ChessregError):
        return "none"
