"""DuckDB over a snapshot of the registry: in memory, locked down, holding only what was asked for.

DuckDB's own planner says which columns of which tables a statement needs: it plans over empty tables of the declared
types. Only these are read, and kept for as long as the registry's data version stands; so are the answers of the views
that most statements name several times (views.ONCE). Nothing can reach files, the network, or the registry itself from
inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import ChessregError
from chessreg.queries import duck, gate, source, views
from chessreg.queries.duck import DEFAULT_MEMORY
from chessreg.queries.source import TABLES
from chessreg.queries.views import ONCE

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from chessreg.registry.database import Database

# Off while planning: they would drop a scan of an empty table, or hide a filter's column in the scan.
NOT_WHEN_PLANNING = "statistics_propagation, filter_pushdown, empty_result_pullup, compressed_materialization"
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
        self._answers: dict[Any, Answer] = {}  # to what was asked before, while the data version stands
        self._read: dict[str, frozenset[str]] = {}
        self._made: dict[str, frozenset[str]] = {}  # of the views in ONCE, the columns that were computed
        self._lock = threading.RLock()
        self._handy = views.handy()
        self._columns = {t: {n: source.duckdb_type(c) for n, c in source.columns(t).items()} for t in TABLES}
        self._planner = self._new_planner()
        self._kinds: list[views.KindRow] = []  # as the registry's runs recorded them
        self._registered: list[views.KindRow] = []  # as this installation has them: read when a query needs them
        self._files: tuple[Path, ...] | None = None  # of users' kinds among them; None: not read yet
        self._views: dict[str, str] = {}  # of kinds
        self._data: duckdb.DuckDBPyConnection | None = None

    @property
    def database(self) -> Database:
        found = self._database()
        if found is None:
            raise ChessregError("the registry of this query engine is closed")
        return found

    def _new_planner(self) -> duckdb.DuckDBPyConnection:
        """A connection with empty tables of the declared types, and of those of the views in ONCE."""
        planner = duck.connect(DEFAULT_MEMORY, self.threads, NOT_WHEN_PLANNING)
        weakref.finalize(self, duck.close, [planner])
        for table in TABLES:
            types = ", ".join(f'"{name}" {type_}' for name, type_ in self._columns[table].items())
            planner.execute(f'CREATE TABLE "{table}" ({types})')
        for name, select in self._handy.items():
            planner.execute(f'CREATE {"TABLE" if name in ONCE else "VIEW"} "{name}" AS {select}')
            if name in ONCE:
                described = planner.execute(f'DESCRIBE "{name}"').fetchall()
                self._columns[name] = {str(row[0]): str(row[1]) for row in described}
        planner.execute(views.RUN_PLACE)
        return planner

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """When what is inside is stopped, connections that DuckDB does not give back at once are left to it."""
        try:
            yield
        except BaseException:
            if self._data is not None and duck.is_busy(self._data):
                self._data = None
                self._forget()
            if duck.is_busy(self._planner):
                self._planner, self._views = self._new_planner(), {}
                self._set_views()
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
            needed = duck.within(self._planner, until, lambda: self._needed(statements, parameters))
            connection = self._load(needed, until)
            left = until - time.monotonic()
            tables = {name: duck.run(connection, sql, parameters, left) for name, sql in statements.items()}
            answer = Answer(tables, self._rows_of(needed), self.version)
            if sum(table.num_rows for table in tables.values()) <= KEPT_ROWS:
                self._answers[key] = answer
            return answer

    def stream(self, sql: str, timeout: float | None = None) -> Iterator[Streamed]:
        """The answer to one SELECT, some rows at a time: it is never whole in memory, and not kept.

        Raises as `answer` does. The engine is held until the last rows are taken, or the iterator is closed.
        """
        until = duck.deadline(timeout)
        with self._lock, self._stoppable():
            self.refresh()
            needed = duck.within(self._planner, until, lambda: self._needed({"rows": sql}, None))
            connection = self._load(needed, until)
            read = self._rows_of(needed)
            for table in duck.batches(connection, sql, until):
                yield Streamed(table, read, self.version)

    def _needed(self, statements: Mapping[str, str], parameters: Mapping[str, Any] | None) -> dict[str, frozenset[str]]:
        """table → columns that these statements need, also by way of the views in ONCE, which are named too.

        What does not bind is tried again with the views of kinds that never ran here, and with the columns that kinds
        got since they ran.
        """
        import duckdb

        needed: dict[str, frozenset[str]] = {}
        with duck.explained():
            try:
                plans = [self.plan(sql, parameters) for sql in statements.values()]
            except (duckdb.CatalogException, duckdb.BinderException):
                if not self._learn():
                    raise
                plans = [self.plan(sql, parameters) for sql in statements.values()]
        for plan in plans:
            _merge(needed, plan)
        for name in reversed(self._handy):
            if name in ONCE and name in needed:
                _merge(needed, self.plan(self._some_of(name, needed[name])))
        return needed

    def _some_of(self, name: str, columns: frozenset[str]) -> str:
        """SELECT of some columns of a handy view, from what it is made of."""
        listed = ", ".join(f'"{column}"' for column in sorted(columns))
        return f"SELECT {listed} FROM ({self._handy[name]})"

    def _rows_of(self, needed: Mapping[str, frozenset[str]]) -> dict[str, int]:
        return {table: self._rows[table] for table in needed if table in TABLES}

    def plan(self, sql: str, parameters: Mapping[str, Any] | None = None) -> dict[str, frozenset[str]]:
        """table, or view in ONCE → columns that a statement needs. Where only rows are counted, that is the first.

        >>> engine.plan("SELECT kind, count(*) FROM run GROUP BY kind")  # doctest: +SKIP
        {'run': frozenset({'kind'})}
        """
        row = self._planner.execute("EXPLAIN (FORMAT json) " + sql, duck.used(sql, parameters)).fetchone()
        assert row
        needed: dict[str, frozenset[str]] = {}
        pending = list(json.loads(row[1]))
        while pending:
            node = pending.pop()
            pending += node.get("children", [])
            extra = node.get("extra_info", {})
            table = str(extra.get("Table", "")).rpartition(".")[2].strip('"')
            if table in self._columns:
                listed = extra.get("Projections") or [next(iter(self._columns[table]))]
                names = frozenset([listed] if isinstance(listed, str) else listed)
                if not names <= self._columns[table].keys():  # a plan that reads otherwise: take it all
                    names = frozenset(self._columns[table])
                _merge(needed, {table: names})
        return needed

    def binds(self, sql: str, parameters: Mapping[str, Any] | None = None) -> str:
        """Empty if a SELECT binds, else the reason why not."""
        import duckdb

        with self._lock:
            self.refresh()
            for last in (False, True):
                try:
                    self._planner.execute("EXPLAIN " + sql, duck.used(sql, parameters))
                except duckdb.Error as error:
                    if last or not self._learn():
                        return gate.first_line(error)
                else:
                    return ""
            return ""

    def over(self, table: pa.Table, sql: str, timeout: float | None = None) -> pa.Table:
        """A SELECT over one Arrow table, there called `result`."""
        with self._lock:
            connection = self._data or self._planner
            duck.register(connection, "result", table)
            try:
                return duck.run(connection, sql, None, timeout)
            finally:
                connection.unregister("result")

    def parser(self) -> duckdb.DuckDBPyConnection:
        """A connection for looking at SQL; it holds no data."""
        return self._planner

    def names(self) -> list[str]:
        """Every table and view that a query may name."""
        with self._lock:
            self.refresh()
            self._learn()
            return sorted({*TABLES, *self._handy, *self._views})

    def described(self) -> dict[str, list[str]]:
        """The columns of every table and view that a query may name."""
        with self._lock:
            self.refresh()
            self._learn()
            found: dict[str, list[str]] = {name: list(columns) for name, columns in self._columns.items()}
            for name in {*self._handy, *self._views} - found.keys():
                rows = self._planner.execute(f'DESCRIBE "{name}"').fetchall()
                found[name] = [str(row[0]) for row in rows]
            return dict(sorted(found.items()))

    def keep(self) -> None:
        """Write what large complete runs gave to files beside the registry, so that the next process reads it fast.

        To be called once the answer is shown: it takes longer than reading it took, and does not fail. Where nothing
        can be read any more or written, nothing is.
        """
        with suppress(OSError, ChessregError):
            source.keep(self.database, tuple(self._read))

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
        if self._data is not None:
            self._data.close()
        self._data, self._read, self._rows, self._made, self._answers = None, {}, {}, {}, {}

    def _kind_rows(self) -> list[views.KindRow]:
        from sqlalchemy import select

        from chessreg.registry.tables import KindRecord as Kind

        with self.database.read() as session:
            found = session.execute(select(Kind.name, Kind.version, Kind.families, Kind.detail_schema))
            return sorted((views.recorded(*row) for row in found), key=lambda row: row[:2])

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
        before = self._views
        self._views = views.of_kinds([*self._kinds, *self._registered], {*TABLES, *self._handy})
        same = {name for name, select in before.items() if self._views.get(name) == select}
        for name in before.keys() - same:
            self._planner.execute(f'DROP VIEW IF EXISTS "{name}"')
        self._create_views(self._planner, same)
        self._forget()

    def _create_views(self, connection: duckdb.DuckDBPyConnection, there: Collection[str] = ()) -> None:
        """Those of kinds that are not there; one whose recorded columns are no names of columns is left out."""
        import duckdb

        for name, select in [(name, select) for name, select in self._views.items() if name not in there]:
            try:
                connection.execute(f'CREATE VIEW "{name}" AS {select}')
            except duckdb.Error:
                del self._views[name]

    def _load(self, needed: Mapping[str, frozenset[str]], until: float) -> duckdb.DuckDBPyConnection:
        """Have these columns in the snapshot. If the registry has moved on, what was read before is read anew too."""
        missing = self._missing(needed)
        with ThreadPoolExecutor(1) as aside:  # the driver reads without the GIL, while DuckDB is set up
            stop = threading.Event()
            reading = aside.submit(source.read, self.database, missing, stop) if missing else None
            try:
                if self._data is None:
                    self._data = self._open()
                tables, version = reading.result(max(0.0, until - time.monotonic())) if reading else ({}, self.version)
            except TimeoutError:
                stop.set()
                raise gate.took_too_long() from None
            except BaseException:
                stop.set()
                raise
        if version != self.version and self._read:
            self._forget()
            missing = self._missing(needed)
            tables, version = source.read(self.database, missing)
        if self._data is None:
            self._data = self._open()
        self.version = version
        for table, arrow in tables.items():
            self._read[table] = missing[table]
            self._rows[table] = arrow.num_rows
            duck.register(self._data, f"_{table}", arrow)
            select = source.view(self.database, table, missing[table], f'"_{table}"')
            self._data.execute(f'CREATE OR REPLACE VIEW "{table}" AS {select}')
        self._compute(self._data, needed, until)
        return self._data

    def _compute(
        self, connection: duckdb.DuckDBPyConnection, needed: Mapping[str, frozenset[str]], until: float
    ) -> None:
        """Have these columns of views in ONCE as tables."""
        made = {}
        for name in self._handy:
            have = self._made.get(name, frozenset())
            if name in ONCE and not needed.get(name, frozenset()) <= have:
                made[name] = needed[name] | have
        statements = []
        for name, names in made.items():
            statements.append(f'CREATE OR REPLACE TABLE "_{name}" AS {self._some_of(name, names)}')
            statements.append(f'CREATE OR REPLACE VIEW "{name}" AS {self._unread(name, names)} FROM "_{name}"')
        if statements:
            with duck.explained():
                duck.within(connection, until, lambda: connection.execute(";".join(statements)))
        self._made |= made

    def _unread(self, name: str, have: frozenset[str] = frozenset()) -> str:
        """SELECT list of a table's or view's columns. One that is not there fails when it is looked at."""
        parts = []
        for column, type_ in self._columns[name].items():
            value = f'"{column}"' if column in have else f"CAST(error('{name}.{column} was not read') AS {type_})"
            parts.append(f'{value} AS "{column}"')
        return f"SELECT {', '.join(parts)}"

    def _missing(self, needed: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """What must be read: a table of which a column is missing is read again with all that are wanted of it."""
        wanted = {t: names | self._read.get(t, frozenset()) for t, names in needed.items() if t in TABLES}
        return {table: names for table, names in wanted.items() if names != self._read.get(table)}

    def _open(self) -> duckdb.DuckDBPyConnection:
        connection = duck.connect(self.memory, self.threads)
        weakref.finalize(self, duck.close, [connection])
        for table, columns in self._columns.items():
            types = ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in columns.items())
            connection.execute(f"CREATE VIEW \"{table}\" AS SELECT {types} WHERE error('{table} was not read')")
        for name, select in self._handy.items():
            if name not in ONCE:
                connection.execute(f'CREATE VIEW "{name}" AS {select}')
        connection.execute(views.RUN_PLACE)
        self._create_views(connection)
        return connection


def _merge(into: dict[str, frozenset[str]], more: Mapping[str, frozenset[str]]) -> None:
    """Add columns by table."""
    for table, names in more.items():
        into[table] = into.get(table, frozenset()) | names


def engine_of(database: Database, memory: str | None = None) -> Engine:
    """The engine of this open registry: one per Database, so that its snapshot is read once in a process.

    Another memory limit than the default takes an engine of its own.
    """
    if memory and memory != DEFAULT_MEMORY:
        return Engine(database, memory=memory)
    found = _ENGINES.get(database)
    if found is None:
        with _ENGINES_LOCK:
            found = _ENGINES.setdefault(database, Engine(database))
    return found


_ENGINES: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()
_ENGINES_LOCK = threading.Lock()


def digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()
