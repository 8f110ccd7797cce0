"""Asking: a catalogue query by name, the rows behind one of its cells, or a SELECT of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.queries import gate
from chessreg.queries.catalogue import Entry, Plot, find, kind_file
from chessreg.queries.engine import Answer, Engine, digest, engine_of
from chessreg.queries.result import QueryResult
from chessreg.queries.scope import Filters, Scope, filters
from chessreg.queries.summary import added, with_statistics

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    import pyarrow as pa

    from chessreg.registry.database import Database

SCORINGS = ("paper", "author-2024")


def run_query(
    database: Database,
    name: str | Entry,
    scope: Scope | None = None,
    *,
    scoring: str = "paper",
    timeout: float | None = None,
    memory: str | None = None,
    **options: Any,
) -> QueryResult:
    """A catalogue query by title, alias or file.

    `options` are those of Scope: checkpoint, run, tag, machine, since, where, partial. Raises NotFoundError for a name
    that no query or thing has, BadInputError for a condition that does not fit.
    """
    question = question_of(database, name, scope or Scope.of(options), scoring, memory)
    engine, entry, scope = question.engine, question.entry, question.scope
    names = [n for n in ("table", "clusters") if n in entry.statements]
    statements = {n: question.statement(n) for n in names} | {"left out": left_out(entry, scope, stale_runs(database))}
    answer = engine.answer(statements, question.parameters, timeout)
    if entry.title not in answer.made:
        answer.made[entry.title] = with_statistics(entry, answer["table"], answer.tables.get("clusters"))
    table = answer.made[entry.title]
    if question.result_where:
        table = engine.over(table, f"SELECT * FROM result WHERE {question.result_where} ORDER BY cell", timeout)
    meta = metadata(engine, answer, table.num_rows, entry.digest, question.meta)
    skipped = "" if table.num_rows else all_skipped(question, timeout)
    notes = [*warnings(table), *remarks(entry, table.num_rows, answer["left out"], scope, skipped)]
    cells = table["cell"].to_pylist()
    return QueryResult(table.drop_columns(["cell"]), meta, notes, entry, cells, entry.columns)


def question_of(database: Database, name: str | Entry, scope: Scope, scoring: str, memory: str | None) -> Question:
    """A catalogue query with its scope, ready to be answered. Raises as run_query does."""
    entry, engine = entry_of(database, name), engine_of(database, memory)
    have_kind(database, engine, entry)
    question = Question(engine, entry, scope, filters(database, scope), scoring)
    if scope.where:
        question.place_where(scope.where)
    return question


def entry_of(database: Database, name: str | Entry) -> Entry:
    """The query of this name, also where it stands beside the file of a kind that was run here."""
    if isinstance(name, Entry):
        return name
    try:
        return find(name)
    except NotFoundError:
        return find(name, kind_files(database))


def have_kind(database: Database, engine: Engine, entry: Entry) -> None:
    """Let the engine know the kind that a query stands beside, if that is a file of a user's own.

    What its runs have recorded is enough to ask for their rows. Raises NotTrustedError where there are none yet and
    the file is not trusted.
    """
    from chessreg.runs.trust import can_load, read_trusted_file

    file = kind_file(entry.path)
    if file is not None and can_load(file):
        engine.beside(file)
    elif file is not None and file not in recorded_files(database):
        read_trusted_file(file)


def kind_files(database: Database) -> tuple[Path, ...]:
    """The files of users' kinds that were run here and are trusted."""
    from chessreg.runs.trust import can_load

    return tuple(sorted(filter(can_load, recorded_files(database))))


def recorded_files(database: Database) -> set[Path]:
    """The files of users' kinds that a registry names."""
    from sqlalchemy import select

    from chessreg.registry.tables import KindRecord

    with database.read() as session:
        sources = session.scalars(select(KindRecord.source).where(KindRecord.source.like("%.py:%")).distinct())
        return {Path(source.rpartition(":")[0]) for source in sources}


def plotted(
    database: Database, entry: Entry, plot: Plot, scope: Scope | None = None, *, scoring: str = "paper"
) -> QueryResult:
    """The rows of a catalogue query that a plot of it shows."""
    result = run_query(database, entry, scope, scoring=scoring)
    table = engine_of(database).over(result.table, f"SELECT * FROM result WHERE {plot.where}")
    notes = result.notes
    if len(result) and not table.num_rows:
        rows = "its row is not" if len(result) == 1 else f"none of its {len(result):,} rows is"
        notes = [f"it shows rows with {plot.where}; {rows} one, as chessreg query {entry.title!r} prints them"]
    return replace(result, table=table, cells=None, notes=notes, meta=result.meta | {"rows": table.num_rows})


def rows_behind(
    database: Database,
    name: str | Entry,
    number: int,
    scope: Scope | None = None,
    *,
    scoring: str = "paper",
    timeout: float | None = None,
    memory: str | None = None,
    **options: Any,
) -> QueryResult:
    """The games or trials behind row `number` (from 1) of a catalogue query in the same scope."""
    result = run_query(database, name, scope, scoring=scoring, timeout=timeout, memory=memory, **options)
    question = question_of(database, name, scope or Scope.of(options), scoring, memory)
    engine, entry = question.engine, question.entry
    question.base_where.append(f"cell = {result.cell(number)}")
    answer = engine.answer({"rows": question.statement("rows")}, question.parameters, timeout)
    table = answer["rows"]
    return QueryResult(
        table, metadata(engine, answer, table.num_rows, entry.digest, question.meta | {"behind_row": number})
    )


def run_sql(database: Database, sql: str, *, timeout: float | None = None, memory: str | None = None) -> QueryResult:
    """One SELECT over tables and views. Rows without an ORDER BY come in the order of their values.

    Raises BadInputError for anything that is not one statement that only selects.
    """
    engine = engine_of(database, memory)
    text = gate.ordered(engine.parser(), gate.selects(sql))
    answer = engine.answer({"rows": text}, None, timeout)
    table = answer["rows"]
    notes = [] if table.num_rows else ["no rows"]
    return QueryResult(table, metadata(engine, answer, table.num_rows, digest(sql), {"query": sql}), notes)


def stream_sql(
    database: Database, sql: str, *, timeout: float | None = None, memory: str | None = None
) -> Generator[QueryResult, None, None]:
    """The same SELECT, its rows some at a time: however many there are, in constant memory beside the columns of the
    registry that it names. Rows without an ORDER BY come in the order of their values up to `duck.SORTED_BYTES`, those
    of a longer answer as they are found: to sort them all of them would have to be held.
    """
    engine = engine_of(database, memory)
    select = gate.selects(sql)
    unordered = gate.unordered(engine.parser(), select)
    total = 0
    for part in engine.stream(unordered or select, timeout, sort=unordered is not None):
        total += part.table.num_rows
        answer = Answer({}, part.read, part.version)
        yield QueryResult(part.table, metadata(engine, answer, total, digest(sql), {"query": sql}))


COUNTED = 100_000  # rows of a table, at most


def counted(rows: int, more: bool) -> str:
    return f"{rows:,}{'+' if more else ''}"


def tables_read(database: Database, sql: str) -> dict[str, tuple[int, bool]]:
    """The tables that one SELECT reads, with their rows as far as COUNTED, and whether there are more. Raises as
    run_sql does."""
    return row_counts(database, engine_of(database).tables_of(gate.selects(sql)))


def row_counts(database: Database, names: Iterable[str]) -> dict[str, tuple[int, bool]]:
    """Rows of each table, as far as COUNTED, and whether there are more. Views and what is no table are left out."""
    from sqlalchemy import func, literal_column, select

    from chessreg.registry.tables import Base

    counts = {}
    with database.read() as session:
        for name in names:
            if (table := Base.metadata.tables.get(name)) is not None:
                some = select(literal_column("1")).select_from(table).limit(COUNTED + 1).subquery()
                number = session.scalar(select(func.count()).select_from(some)) or 0
                counts[name] = (min(number, COUNTED), number > COUNTED)
    return counts


class Question:
    """A catalogue entry with its scope: composes the statements that DuckDB gets."""

    def __init__(self, engine: Engine, entry: Entry, scope: Scope, where: Filters, scoring: str) -> None:
        if scoring not in SCORINGS:
            raise BadInputError(f"there is no scoring {scoring!r}", f"one of {', '.join(SCORINGS)}")
        self.engine, self.entry, self.scope, self.filters = engine, entry, scope, where
        self.base_where = [where.base]
        self.result_where = ""
        self.parameters: Mapping[str, Any] = {"scoring": scoring}
        self.meta: dict[str, Any] = {"query": entry.title, "paper": entry.paper, "scope": scope.options_set()}
        if any("$scoring" in sql for sql in entry.statements.values()):
            self.meta["scoring"] = scoring

    def statement(self, name: str) -> str:
        """One of the entry's statements, over its relations narrowed to the scope."""
        lines = self.entry.statements[name].splitlines()
        sql = "\n".join(line for line in lines if not line.startswith("--")).strip()
        return f"{self.relations()},\n{sql[5:]}" if sql.upper().startswith("WITH ") else f"{self.relations()}\n{sql}"

    def relations(self) -> str:
        """WITH the entry's relations, each narrowed to the scope."""
        parts = [f"scoped AS (SELECT * FROM runs WHERE {self.filters.runs})"]
        conditions = {"cells": [self.filters.cells], "base": list(self.base_where)}
        if "cells" not in self.entry.relations:
            conditions["base"].append(self.filters.cells)
        for relation, sql in self.entry.relations.items():
            condition = " AND ".join(conditions.get(relation, ["true"]))
            parts.append(f"{relation} AS (SELECT * FROM (\n{sql}\n) WHERE {condition})")
        return f"WITH {', '.join(parts)}"

    def place_where(self, text: str) -> None:
        """Put --where where its columns are: on the finished table, or else on the rows behind it."""
        condition = gate.expression(self.engine.parser(), text)
        made = "".join(f', NULL::DOUBLE AS "{column}"' for s in self.entry.statistics for column in added(s))
        table = f"SELECT *{made} FROM (\n{self.statement('table')}\n)"
        wrong = self.engine.binds(f"SELECT * FROM ({table}) WHERE {condition}", self.parameters)
        if not wrong:
            self.result_where = condition
            return
        if self.engine.binds(f"{self.relations()}\nSELECT 1 FROM base WHERE {condition}", self.parameters):
            names = ", ".join(column.name for column in self.entry.columns)
            raise BadInputError(f"--where {text!r}: {wrong}", f"the columns are {names}")
        self.base_where.append(condition)


def stale_runs(database: Database) -> list[UUID]:
    """Runs that rest on something invalid."""
    from chessreg.registry.lineage import find_stale_runs

    with database.read() as session:
        return sorted(find_stale_runs(session))


def left_out(entry: Entry, scope: Scope, stale: list[UUID]) -> str:
    """Counts of the runs that the default scope leaves out, and of those that it shows though they are stale."""
    kinds = ", ".join(f"'{kind}'" for kind in entry.kinds)
    in_scope = "NOT archived AND NOT invalid"
    unfinished = "false" if scope.partial else f"state <> 'complete' AND {in_scope}"
    ids = ", ".join(f"UUID '{id}'" for id in stale)
    stale_ones = f"{in_scope} AND run_id IN ({ids})" if stale else "false"
    return f"""SELECT count(*) FILTER ({unfinished}) AS unfinished, count(*) FILTER (archived) AS archived,
        count(*) FILTER (invalid) AS invalid, count(*) FILTER ({stale_ones}) AS stale, count(*) AS runs
        FROM runs WHERE kind IN ({kinds})"""


def warnings(table: pa.Table, row: str = "row", only: Container[int] | None = None) -> list[str]:
    """Return the texts of the column `warning` (separated by `; `), each once, after the numbers of its rows.

    `row` is what a row is called; `only` are the numbers of the rows to read, counted from 1, all if None.
    """
    rows: dict[str, list[str]] = {}
    for number, text in enumerate(table["warning"].to_pylist() if "warning" in table.column_names else [], 1):
        for each in text.split("; ") if text is not None and (only is None or number in only) else ():
            rows.setdefault(each, []).append(str(number))
    return [f"{row}{'s' * (len(which) > 1)} {', '.join(which)}: {text}" for text, which in rows.items()]


def all_skipped(question: Question, timeout: float | None) -> str:
    """Why the runs in scope give no row, where they skipped every state: how many for which reason, and what to try.
    Empty for other runs, and for a query without the statement `skipped`; the statement `none` tells it itself."""
    if "none" in question.entry.statements:
        reasons_told = question.engine.answer({"": question.statement("none")}, question.parameters, timeout)[""]
        return "; ".join(reasons_told["why"].to_pylist())
    if "skipped" not in question.entry.statements:
        return ""
    rows = question.engine.answer({"": question.statement("skipped")}, question.parameters, timeout)[""].to_pylist()
    if not rows:
        return ""
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons[row["reason"]] += row["states"]
    counted = ", ".join(f"{states:,} because {reason}" for reason, states in reasons.most_common())
    runs = list(dict.fromkeys(row["run"] for row in rows))
    of = f"run {runs[0]}" if len(runs) == 1 else f"{len(runs)} runs ({', '.join(runs[:3])}{', …' * (len(runs) > 3)})"
    hints = " or ".join(dict.fromkeys(row["hint"] for row in rows if row["hint"]))
    return f"every state of {of} was skipped: {counted}{'; try ' * bool(hints)}{hints}"


def remarks(entry: Entry, rows: int, counts: pa.Table, scope: Scope, skipped: str = "") -> list[str]:
    """What the reader should know beside the table. `skipped`: why it has no rows, where `all_skipped` knows."""
    left = counts.to_pylist()[0]
    reasons = {"unfinished": "not complete (--partial shows them)", "archived": "archived", "invalid": "invalid"}
    counted = [f"{left[name]} {way}" for name, way in reasons.items() if left[name]]
    notes = [f"left out of the runs: {', '.join(counted)}"] if counted else []
    if left["stale"]:
        notes.append(f"{left['stale']} of these runs are stale: made from something invalid (chessreg runs list)")
    if not rows:
        fits = "nothing fits this scope" if scope.options_set() else "nothing to show yet"
        fits = fits if left["runs"] else "no runs yet"
        notes.insert(0, skipped or f"{fits}; {entry.made_by} makes what this table shows")
        if not left["runs"]:
            notes.insert(1, f"columns: {', '.join(column.name for column in entry.columns if not column.hidden)}")
    return notes


def metadata(engine: Engine, answer: Answer, rows: int, query_hash: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """What a footer says: enough to tell later whether a table would still come out the same."""
    return {
        **more,
        "query_hash": query_hash[:16],
        "registry_schema": registry_schema(engine.database),
        "data_version": answer.version,
        "rows": rows,
        "rows_read": dict(sorted(answer.read.items())),
    }


def registry_schema(database: Database) -> str:
    """The registry's schema revision."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with database.read() as session:
            return str(session.execute(text("SELECT version_num FROM chessreg_version")).scalar() or "")
    except (SQLAlchemyError, ChessregError):
        return "none"
