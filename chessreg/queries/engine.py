"""DuckDB over a snapshot of the registry: in memory, locked down, holding only the columns that the query reads.

DuckDB's own planner says which columns of which tables a statement needs (planner.py). Only these are read, and kept
for as long as the registry's data version stands; so are the answers of the views that most statements name several
times (views.ONCE). Nothing can reach files, the network, or the registry itself from inside.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import DAMAGE, ChessregError
from chessreg.queries import duck, extras, gate, source, views
from chessreg.queries.duck import DEFAULT_MEMORY
from chessreg.queries.planner import Plan, define, planner
from chessreg.queries.source import TABLES
from chessreg.queries.stop import awaited
from chessreg.queries.views import ONCE

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from chessreg.registry.database import Database

KEPT_ROWS = 100_000  # an answer with more is not kept


@dataclass(frozen=True)
class Answer:
    """Arrow tables by statement, the rows read by table, and the data version that they are of."""

    tables: dict[str, pa.Table]
    read: dict[str, int]
    version: str
    made: dict[str, pa.Table] = field(default_factory=dict)  # what was computed from it, for the next who asks

    def __getitem__(self, name: str) -> pa.Table:
        return self.tables[name]


@dataclass(frozen=True)
class Streamed:
    """Some rows of an answer, the rows read for it by table, and the data version that they are of."""

    table: pa.Table
    read: dict[str, int]
    version: str


class Engine:
    """One registry's snapshot. Safe to use from several threads: statements run one after the other."""

    def __init__(self, database: Database, *, threads: int | None = None, memory: str = DEFAULT_MEMORY) -> None:
        self._database = weakref.ref(database)  # engine_of keeps engines by database: they must not keep it alive
        self.memory = memory
        self.threads = threads or max(2, os.cpu_count() or 1)
        self.version = ""
        self._rows: dict[str, int] = {}
        self._answers: dict[Any, Answer] = {}  # by question; dropped when the data version changes
        self._read: dict[str, frozenset[str]] = {}
        self._made: dict[str, frozenset[str]] = {}  # of the views in ONCE, the columns that were computed
        self._lock = threading.RLock()
        self._handy = views.handy()
        self._planner = planner()
        self._kinds: list[views.KindRow] = []  # as the registry's runs recorded them
        self._registered: list[views.KindRow] = []  # as this installation has them: read when a query needs them
        self._files: tuple[Path, ...] | None = None  # of users' kinds among them; None: not read yet
        self._views: Mapping[str, str] = {}  # of kinds
        self._extras: Mapping[str, frozenset[str]] = {}  # columns that these name, by result table
        self._data: duckdb.DuckDBPyConnection | None = None
        self._defined: set[str] = set()  # the tables and views in it

    @property
    def database(self) -> Database:
        database = self._database()
        if database is None:
            raise ChessregError("the registry of this query engine is closed")
        return database

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """When what is inside is stopped, a connection that DuckDB does not give back at once is left to it."""
        try:
            yield
        except BaseException:
            if self._data is not None and duck.is_busy(self._data):
                self._data = None
                self._forget()
            raise

    # -- asking ---------------------------------------------------------------------------------------------------

    def answer(
        self, statements: Mapping[str, str], parameters: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> Answer:
        """The answers to several SELECTs, all from one state of the registry.

        Raises BadInputError for SQL that does not bind, ChessregError when `timeout` seconds have passed.
        """
        until = duck.deadline(timeout)
        with self._lock, self._stoppable():
            self.refresh()
            key = (*statements.items(), *sorted((parameters or {}).items()))
            if key in self._answers:
                return self._answers[key]
            plan = self._plan(statements, parameters, until)
            connection = self._load(plan, until)
            left = until - time.monotonic()
            tables = {name: duck.run(connection, sql, parameters, left) for name, sql in statements.items()}
            answer = Answer(tables, self._rows_of(plan), self.version)
            if sum(table.num_rows for table in tables.values()) <= KEPT_ROWS:
                self._answers[key] = answer
            return answer

    def stream(self, sql: str, timeout: float | None = None, *, sort: bool = False) -> Iterator[Streamed]:
        """The answer to one SELECT, some rows at a time: it is never whole in memory, and not kept. With `sort` a
        short one (`duck.SORTED_BYTES`) comes in the order of its values.

        Raises as `answer` does. The engine is held until the last rows are taken, or the iterator is closed.
        """
        until = duck.deadline(timeout)
        with self._lock, self._stoppable():
            self.refresh()
            plan = self._plan({"rows": sql}, None, until)
            connection = self._load(plan, until)
            read = self._rows_of(plan)
            for table in duck.batches(connection, sql, until, sort=sort):
                yield Streamed(table, read, self.version)

    def _plan(self, statements: Mapping[str, str], parameters: Mapping[str, Any] | None, until: float) -> Plan:
        """What these statements need.

        What does not bind is tried again with the views of kinds that never ran here, and with the columns that kinds
        got since they ran.
        """
        import duckdb

        with duck.explained():
            try:
                return self._planner.plan(statements, parameters, self._views, until)
            except (duckdb.CatalogException, duckdb.BinderException):
                if not self._learn():
                    raise
                return self._planner.plan(statements, parameters, self._views, until)

    def _rows_of(self, plan: Plan) -> dict[str, int]:
        return {table: self._rows[table] for table in plan.columns if table in TABLES}

    def binds(self, sql: str, parameters: Mapping[str, Any] | None = None) -> str:
        """Empty if a SELECT binds, else the reason why not."""
        with self._lock:
            self.refresh()
            wrong = self._planner.binds(sql, parameters, self._views)
            return self._planner.binds(sql, parameters, self._views) if wrong and self._learn() else wrong

    def over(self, table: pa.Table, sql: str, timeout: float | None = None) -> pa.Table:
        """A SELECT over one Arrow table, there called `result`."""
        with self._lock:
            connection = self._data = self._data or self._open()
            self._define(self._planner.names({"": sql}, self._views))
            connection.register("result", table)
            try:
                return duck.run(connection, sql, None, timeout)
            finally:
                connection.unregister("result")

    def parser(self) -> duckdb.DuckDBPyConnection:
        """A connection for looking at SQL; it holds no data."""
        return self._planner.parser()

    def described(self) -> dict[str, list[str]]:
        """The columns of every table and view that a query may name."""
        with self._lock:
            self.refresh()
            self._learn()
            return self._planner.described(self._views)

    def reads(self, sql: str) -> dict[str, frozenset[str]]:
        """The columns that a SELECT reads, by table or computed view. Nothing is read. Raises BadInputError for what
        does not bind."""
        with self._lock:
            self.refresh()
            plan = self._plan({"rows": sql}, None, duck.deadline(None))
            return {
                table: frozenset(extras.DETAIL if name in extras.among(names) else name for name in names)
                for table, names in plan.columns.items()
            }

    def keep(self) -> None:
        """Write what large complete runs gave to files beside the registry, so that the next process reads it fast.

        To be called once the answer is shown: it takes longer than reading it took, and does not fail. Where nothing
        can be read any more or written, nothing is.
        """
        with suppress(OSError, ChessregError):
            source.keep(self.database, {table: self._extras.get(table, ()) for table in self._read})

    # -- the snapshot ---------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Forget the snapshot if the registry has changed since."""
        version = self.database.data_version()
        if version == self.version:
            return
        self._forget()
        kinds = self._kind_rows()
        if kinds != self._kinds:
            self._kinds = kinds
            self._set_views()
        self.version = version

    def _forget(self) -> None:
        """Forget what was read. What is defined stays: to define it anew takes longer than to read a small registry."""
        if self._data is not None:
            relations = [extras.relation(table) for table in self._read if table in self._extras]
            for name in (*self._read, *relations, *self._made):
                self._data.execute(self._unread_view(name))
            for name in self._read:
                self._data.unregister(f"_{name}")
            for name in self._made:
                self._data.execute(f'DROP TABLE IF EXISTS "_{name}"')
        self._read, self._rows, self._made, self._answers = {}, {}, {}, {}

    def _kind_rows(self) -> list[views.KindRow]:
        from sqlalchemy import select

        from chessreg.registry.tables import KindRecord as Kind

        recorded = select(Kind.name, Kind.version, Kind.result_tables, Kind.extra_columns)
        with self.database.read() as session:
            try:
                rows = session.execute(recorded).all()
            except DAMAGE:  # a row that cannot be read is that of a kind without views
                keys = session.execute(select(Kind.name, Kind.version)).all()
                rows = []
                for name, version in keys:
                    with suppress(*DAMAGE):
                        rows += session.execute(recorded.where(Kind.name == name, Kind.version == version)).all()
        return sorted((views.recorded(*row) for row in rows), key=lambda row: row[:2])

    def beside(self, file: Path) -> None:
        """Have the views of the kind in this file, which may never have run here."""
        with self._lock:
            if file not in (self._files or ()):
                self._files = (*(self._files or ()), file)
                self._registered = views.registered(self._files)
                self._set_views()

    def _learn(self) -> bool:
        """Have the views of every kind that is installed; whether they were not there yet."""
        if self._files is not None:
            return False
        self._files, self._registered = (), views.registered()
        self._set_views()
        return True

    def _set_views(self) -> None:
        taken = {*TABLES, *map(extras.relation, TABLES), *self._handy}
        self._views, self._extras = views.of_kinds([*self._kinds, *self._registered], taken)
        self._planner.learn(self._extras)
        if self._data is not None:
            self._data.close()
            self._data = None
        self._forget()

    def _load(self, plan: Plan, until: float) -> duckdb.DuckDBPyConnection:
        """Have these columns in the snapshot. If the registry has moved on, what was read before is read anew too."""
        missing = self._missing(plan)
        with ThreadPoolExecutor(1) as aside:  # the driver reads without the GIL, while DuckDB is set up
            stop = threading.Event()
            reading = aside.submit(source.read, self.database, missing, stop) if missing else None
            try:
                self._data = self._data or self._open()
                self._define(plan.names)
                tables, version = awaited(reading, until) if reading else ({}, self.version)
            except TimeoutError:
                stop.set()
                raise gate.took_too_long() from None
            except BaseException:
                stop.set()
                raise
        if version != self.version and self._read:
            self._forget()
            missing = self._missing(plan)
            tables, version = source.read(self.database, missing)
        self.version = version
        for table, arrow in tables.items():
            self._read[table] = missing[table]
            self._rows[table] = arrow.num_rows
            self._data.register(f"_{table}", arrow)
            names = {table: (), extras.relation(table): self._extras[table]} if table in self._extras else {table: ()}
            for name, extra in names.items():
                select = source.view(self.database, table, missing[table], f'"_{table}"', extra)
                self._data.execute(f'CREATE OR REPLACE VIEW "{name}" AS {select}')
                self._defined.add(name)
        self._compute(self._data, plan, until)
        return self._data

    def _compute(self, connection: duckdb.DuckDBPyConnection, plan: Plan, until: float) -> None:
        """Have these columns of views in ONCE as tables."""
        made = {}
        for name in self._handy:
            have = self._made.get(name, frozenset())
            if name in ONCE and not plan.columns.get(name, frozenset()) <= have:
                made[name] = plan.columns[name] | have
        statements = []
        for name, names in made.items():
            statements.append(f'CREATE OR REPLACE TABLE "_{name}" AS {self._planner.some_of(name, names)}')
            statements.append(f'CREATE OR REPLACE VIEW "{name}" AS {self._unread(name, names)} FROM "_{name}"')
        if statements:
            try:
                with duck.explained():
                    duck.within(connection, until, lambda: connection.execute(";".join(statements)))
            except BaseException:
                self._data = None  # some were made: nobody takes them for those of another time
                self._forget()
                raise
        self._made |= made

    def _unread(self, name: str, have: frozenset[str] = frozenset()) -> str:
        """SELECT list of a table's or view's columns. One that is not there fails when it is looked at."""
        parts = []
        for column, type_ in self._planner.columns[name].items():
            value = f'"{column}"' if column in have else f"CAST(error('{name}.{column} was not read') AS {type_})"
            parts.append(f'{value} AS "{column}"')
        return f"SELECT {', '.join(parts)}"

    def _missing(self, plan: Plan) -> dict[str, frozenset[str]]:
        """What must be read: a table of which a column is missing is read again with all that are wanted of it."""
        wanted = {t: names | self._read.get(t, frozenset()) for t, names in plan.columns.items() if t in TABLES}
        return {table: names for table, names in wanted.items() if names != self._read.get(table)}

    def _open(self) -> duckdb.DuckDBPyConnection:
        connection, self._defined = duck.connect(self.memory, self.threads), set()
        weakref.finalize(self, duck.close, [connection])
        return connection

    def _define(self, names: frozenset[str]) -> None:
        """Have these tables and views in the snapshot. A table that is not read yet fails when it is looked at."""
        assert self._data
        define(self._data, self._statements(names), self._views, names, self._defined)

    def _statements(self, names: frozenset[str]) -> Iterator[tuple[str, str]]:
        """The statements that define these tables and handy views, each after those that it names."""
        for name in [*TABLES, *self._planner.relations, *self._handy]:
            if name in names:
                read = name not in self._handy or name in ONCE
                yield name, self._unread_view(name) if read else f'CREATE VIEW "{name}" AS {self._handy[name]}'

    def _unread_view(self, name: str) -> str:
        columns = ", ".join(f'NULL::{type_} AS "{c}"' for c, type_ in self._planner.columns[name].items())
        return f"CREATE OR REPLACE VIEW \"{name}\" AS SELECT {columns} WHERE error('{name} was not read')"


def engine_of(database: Database, memory: str | None = None) -> Engine:
    """The engine of this open registry: one per Database, so that its snapshot is read once in a process.

    Another memory limit than the default takes an engine of its own.
    """
    if memory and memory != DEFAULT_MEMORY:
        return Engine(database, memory=memory)
    engine = _ENGINES.get(database)
    if engine is None:
        with _ENGINES_LOCK:
            engine = _ENGINES.setdefault(database, Engine(database))
    return engine


_ENGINES: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()
_ENGINES_LOCK = threading.Lock()


def digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()
