"""DuckDB over a snapshot of the registry: in memory, locked down, with the tables that the queries name.

Results of complete runs are Parquet files (mirror.py), of which DuckDB reads the columns that a statement needs;
everything else is read from SQL (source.py). A snapshot is kept until the registry's data version changes. Statements
can reach the mirror's files of this snapshot, but no other file, no network and not the registry itself.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from chessreg.errors import DAMAGE_ERRORS, BadInputError, ChessregError
from chessreg.queries import duck, gate, mirror, source, views
from chessreg.queries.duck import DEFAULT_MEMORY
from chessreg.queries.macros import MACROS
from chessreg.queries.source import TABLES
from chessreg.queries.stop import wait_for_result
from chessreg.queries.views import COMPUTED_ONCE
from chessreg.registry.result_tables import RESULT_TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from chessreg.registry.database import Database

MOST_CONVERTED_BYTES = 16 << 20  # smaller tables are converted once per snapshot, larger ones at every scan
FILE_BYTES_FACTOR = 4  # size of rows in memory, relative to their compressed file
MOST_KEPT_ROWS = 100_000  # larger answers are not cached
T = TypeVar("T")


@dataclass(frozen=True)
class QueryAnswer:
    """Arrow tables by statement, the number of rows read by table, and the data version of the registry."""

    tables: dict[str, pa.Table]
    rows_read: dict[str, int]
    version: str

    def __getitem__(self, name: str) -> pa.Table:
        return self.tables[name]


@dataclass(frozen=True)
class AnswerPart:
    """A part of an answer's rows, the number of rows read by table, and the data version of the registry."""

    table: pa.Table
    rows_read: dict[str, int]
    version: str


class QueryEngine:
    """The snapshot of one registry. Safe for several threads: statements run one after the other."""

    def __init__(
        self,
        database: Database,
        *,
        threads: int | None = None,
        memory: str = DEFAULT_MEMORY,
        runs: Collection[str] | None = None,
        use_mirror: bool = True,
    ) -> None:
        """With `runs` (ids as 32 hex digits), tables of results have only the rows of these runs. Unless `use_mirror`,
        all rows come from SQL."""
        self._database = weakref.ref(database)  # weak, because open_shared_engine caches engines by database
        self.memory = memory
        self.threads = threads or max(2, os.cpu_count() or 1)
        self.version = ""
        self._use_mirror = use_mirror
        self._runs = None if runs is None else frozenset(runs)
        self._lock = threading.RLock()
        self._kinds: list[views.KindRow] = []  # recorded by the registry's runs
        self._installed_rows: list[views.KindRow] = []  # of this installation, read when a query needs them
        self._files: tuple[Path, ...] | None = None  # files of users' kinds; None: not read yet
        self._views = views.KindViews()
        self._damaged_files: set[str] = set()  # names of unreadable mirror files
        self._empty()

    def _empty(self) -> None:
        self._empty_connection()
        self._mirror: mirror.Mirror | None = None
        self._read_tables: dict[
            str, pa.Table
        ] = {}  # tables read from SQL; for results, only rows missing from the mirror
        self._answers: dict[Any, QueryAnswer] = {}  # by question

    def _empty_connection(self) -> None:
        self._data: duckdb.DuckDBPyConnection | None = None
        self._close: Callable[[], object] = lambda: None
        self._allowed_files: frozenset[Path] = frozenset()  # files that the connection can read
        self._defined_names: set[str] = set()  # tables, views and macros
        self._all_listed = False  # whether tables that were not read are also defined

    @property
    def database(self) -> Database:
        """The registry's database. Raises ChessregError after it was closed."""
        database = self._database()
        if database is None:
            raise ChessregError("the registry of this query engine is closed")
        return database

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Abandon the connection if the block is interrupted and DuckDB does not release the connection in time."""
        try:
            yield
        except BaseException:
            if self._data is not None and duck.is_busy(self._data):
                self._empty()
            raise

    # -- asking ---------------------------------------------------------------------------------------------------

    def answer(
        self,
        statements: Mapping[str, str],
        parameters: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        summary: str = "",
        summarize: Callable[[dict[str, pa.Table]], dict[str, pa.Table]] | None = None,
        registered_tables: Mapping[str, pa.Table] = MappingProxyType({}),
        version: str = "",
    ) -> QueryAnswer:
        """Return the answers to several SELECTs, all from one state of the registry.

        With `summarize`, return its tables instead, which are computed once for the name `summary`. The SELECTs may
        name the tables `registered_tables`, which depend on the registry's state alone.
        Raises BadInputError for SQL that does not bind, ChessregError after `timeout` seconds, and OtherVersionError
        if `version` is given and is not the registry's data version.
        """
        until = duck.compute_deadline(timeout)
        with self._lock, self._stoppable():
            self.refresh()
            key = _identify_question(statements, parameters, summary)
            if key in self._answers:
                return self._answers[key]

            def ask(connection: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
                if version and version != self.version:
                    raise OtherVersionError(f"the registry has changed since its version {version}")
                remaining_s = until - time.monotonic()
                with duck.registered_answers(connection, registered_tables):
                    return {
                        name: duck.run_select_in_batches(connection, sql, parameters, remaining_s)
                        for name, sql in statements.items()
                    }

            tables = self._with_snapshot(statements.values(), until, ask)
            if summarize:
                tables = summarize(tables)
            answer = QueryAnswer(tables, self._rows_read(statements.values()), self.version)
            if sum(table.num_rows for table in tables.values()) <= MOST_KEPT_ROWS:
                self._answers[key] = answer
            return answer

    def recall(self, statements: Mapping[str, str], parameters: Mapping[str, Any], summary: str) -> QueryAnswer | None:
        """Return the answer that `answer` keeps for these arguments, or None."""
        with self._lock:
            self.refresh()
            return self._answers.get(_identify_question(statements, parameters, summary))

    def stream(self, sql: str, timeout: float | None = None, *, sort: bool = False) -> Iterator[AnswerPart]:
        """Yield the answer to one SELECT in parts, never all in memory. With `sort`, short answers are sorted by value.

        Raises the errors of `answer`. Holds the engine until the iterator is exhausted or closed.
        """
        until = duck.compute_deadline(timeout)
        with self._lock, self._stoppable():
            self.refresh()
            self._with_snapshot([sql], until, lambda connection: duck.check_binds(connection, sql, None))
            assert self._data
            rows_read = self._rows_read([sql])
            for table in duck.stream_batches(self._data, sql, until, sort=sort):
                yield AnswerPart(table, rows_read, self.version)

    def binds(self, sql: str, parameters: Mapping[str, Any] | None = None) -> str:
        """Return the reason why a SELECT does not bind, or an empty text."""
        with self._lock:
            self.refresh()
            bind = partial(duck.check_binds, sql=sql, parameters=parameters)
            try:
                self._with_snapshot([sql], duck.compute_deadline(None), bind)
            except BadInputError as error:
                return error.message
            return ""

    def query_arrow_table(self, table: pa.Table, sql: str, timeout: float | None = None) -> pa.Table:
        """Return the rows of a SELECT over one Arrow table, named `result` in the statement."""
        with self._lock:
            self.refresh()
            connection = self._load(self._names([sql]) & MACROS.keys(), duck.compute_deadline(timeout))
            connection.register("result", table)
            try:
                return duck.run_select_in_batches(connection, sql, None, timeout)
            finally:
                connection.unregister("result")

    def parser(self) -> duckdb.DuckDBPyConnection:
        """Return a connection for parsing SQL."""
        with self._lock:
            self.refresh()
            return self._load(frozenset(), duck.compute_deadline(None)).cursor()

    def list_columns(self) -> dict[str, list[str]]:
        """Return the columns of every table and view that a query may name."""
        with self._lock:
            self.refresh()
            self._learn()
            connection = self._load(frozenset(), duck.compute_deadline(None), list_all=True)
            select = (
                "SELECT table_name, column_name FROM information_schema.columns ORDER BY table_name, ordinal_position"
            )
            columns_by_table: dict[str, list[str]] = {}
            for table, column in connection.execute(select).fetchall():
                if table in self._defined_names:
                    columns_by_table.setdefault(table, []).append(column)
            return columns_by_table

    def tables_of(self, sql: str) -> list[str]:
        """Return the sorted names of the tables that a SELECT reads, without reading them.

        Raises BadInputError for SQL that does not bind.
        """
        with self._lock:
            self.refresh()
            self._learn()
            duck.check_binds(self._load(frozenset(), duck.compute_deadline(None), list_all=True), sql)
            return sorted(self._names([sql]) & TABLES.keys())

    def list_names(self, statements: Iterable[str]) -> frozenset[str]:
        """Return all tables, views and macros that these statements name, directly or through views."""
        with self._lock:
            self.refresh()
            return self._names([*statements])

    def describe_names(self, statements: Iterable[str]) -> list[str]:
        """Return the definitions of the tables, views and macros that these statements name, in order."""
        with self._lock:
            self.refresh()
            kinds = self._views.views
            texts = {
                **MACROS,
                **views.MACROS_OF_VIEWS,
                **views.read_handy_views(),
                **{n: repr(v) for n, v in kinds.items()},
            }
            types = {table: sorted(source.list_column_types(table).items()) for table in TABLES}
            names = sorted(self._names([*statements]))
            extras = [repr(item) for item in sorted(self._views.extras.items()) if item[0][1] in names]
            return [f"{name}: {texts.get(name, types.get(name))}" for name in names] + extras

    def close(self) -> None:
        """Close the connection and free its memory."""
        with self._lock:
            self._forget()

    @property
    def kind_views(self) -> Mapping[str, views.KindView]:
        """The views of kinds by name, as of the last statement."""
        return self._views.views

    def extras(self) -> mirror.Extras:
        """Return the extra columns of results, as the registry's runs recorded them."""
        with self._lock:
            self.refresh()
            return self._views.extras

    def keep(self) -> None:
        """Write the missing mirror files of the tables that were read. Call it after the answer is shown.

        Does nothing if the folder cannot be written.
        """
        import duckdb

        with self._lock, suppress(OSError, duckdb.Error):
            if self._mirror is None or self._data is None or self.database.read_only:
                return
            runs = {}
            for table in RESULT_TABLES:
                if len(self._read_tables.get(table, ())) >= mirror.LEAST_ROWS:
                    runs[table] = mirror.list_runs_without_file(self._mirror, self._data, table)
            if any(runs.values()):
                mirror.write_files(self._mirror, self._read_tables, runs)

    # -- the snapshot ---------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Drop the snapshot if the registry has changed."""
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
        self._close()
        self._empty()

    def _kind_rows(self) -> list[views.KindRow]:
        """Return the recorded kinds, sorted by name and version. Kinds with an unreadable row are left out."""
        from sqlalchemy import select

        from chessreg.registry.tables import KindRecord as Kind

        selected_kinds = select(Kind.name, Kind.version, Kind.result_tables, Kind.extra_columns)
        with self.database.read() as session:
            try:
                rows = session.execute(selected_kinds).all()
            except DAMAGE_ERRORS:  # a kind whose row cannot be read has no views
                keys = session.execute(select(Kind.name, Kind.version)).all()
                rows = []
                for name, version in keys:
                    with suppress(*DAMAGE_ERRORS):
                        rows += session.execute(selected_kinds.where(Kind.name == name, Kind.version == version)).all()
        return sorted((views.parse_kind_record(*row) for row in rows), key=lambda row: row[:2])

    def add_kind_views(self, file: Path) -> None:
        """Add the views of a kind's file, even if the kind never ran here."""
        with self._lock:
            if file not in (self._files or ()):
                self._files = (*(self._files or ()), file)
                self._installed_rows = views.list_installed_kind_rows(self._files)
                self._set_views()

    def _learn(self) -> bool:
        """Add the views of all installed kinds. Return whether they were missing."""
        if self._files is not None:
            return False
        self._files, self._installed_rows = (), views.list_installed_kind_rows()
        self._set_views()
        return True

    def _set_views(self) -> None:
        """Define the views of these kinds. The snapshot is kept; views that changed are defined again."""
        if self._all_listed:
            self._forget()
        before = self._views.views
        self._views = views.build_kind_views(self._kinds, self._installed_rows, {*TABLES, *views.read_handy_views()})
        self._defined_names -= {name for name, view in before.items() if self._views.views.get(name) != view}
        self._answers.clear()

    def _with_snapshot(
        self, statements: Collection[str], until: float, ask: Callable[[duckdb.DuckDBPyConnection], T]
    ) -> T:
        """Return the result of `ask` on a snapshot with everything that the statements name.

        If a statement does not bind, it is retried with the views of all installed kinds, then with every known name
        that occurs in it, then with all names defined, so that DuckDB can suggest similar ones. Mirror files that
        cannot be read are removed, and their rows come from SQL.
        """
        import duckdb

        loosely, list_all = False, any(views.can_list_tables(sql) for sql in statements)
        while True:
            try:
                return ask(self._load(self._names(statements, loosely), until, list_all))
            except BadInputError as error:
                if isinstance(error.__cause__, duckdb.CatalogException | duckdb.BinderException):
                    if self._learn():
                        continue
                    if loosely and list_all:
                        raise
                    loosely, list_all = True, list_all or loosely
                    continue
                damaged_files = mirror.remove_damaged_files(self._mirror, self._read_tables) if self._mirror else set()
                if damaged_files <= self._damaged_files:
                    raise
                self._damaged_files |= damaged_files
                self._forget()

    def _names(self, statements: Collection[str], loosely: bool = False) -> frozenset[str]:
        """Return all tables, views and macros that these statements name, directly or through views; everything if a
        statement computes a name."""
        kinds = {name: f"{view.select} FROM run, {view.table or 'run'}" for name, view in self._views.views.items()}
        texts = {**MACROS, **dict.fromkeys(TABLES, ""), **views.read_handy_views(), **views.MACROS_OF_VIEWS, **kinds}
        if any(views.is_name_computed(sql) for sql in statements):
            return frozenset(texts)
        return views.find_named(statements, texts, loosely=loosely)

    def _load(self, names: frozenset[str], until: float, list_all: bool = False) -> duckdb.DuckDBPyConnection:
        """Load these tables and views into the snapshot and return its connection.

        With `list_all`, the names and columns of all others are defined too. If the registry has changed since the
        snapshot was taken, a new one is taken.
        """
        wanted_tables = names & TABLES.keys()
        if self._all_listed and not wanted_tables <= self._read_tables.keys():
            self._forget()
        missing_tables = wanted_tables - self._read_tables.keys()
        if missing_tables or self._data is None:
            tables, version, new_mirror = self._fetch_tables(missing_tables, until)
            if version != self.version and self._data is not None:
                self._forget()
                tables, version, new_mirror = self._fetch_tables(wanted_tables, until)
            self._read_tables |= tables
            self.version, self._mirror = version, new_mirror
            of_tables = new_mirror.files.values() if new_mirror else ()
            files = frozenset(path for files in of_tables for path in files.values())
            if self._data is None or not files <= self._allowed_files:  # a locked connection admits no further files
                self._close()
                self._empty_connection()
                self._data = duck.connect_locked(self.memory, self.threads, files)
                self._allowed_files = files
                self._close = weakref.finalize(self, duck.close_connections, [self._data])
        with duck.translate_errors():
            duck.run_until(self._data, until, partial(self._define, names))
            if list_all and not self._all_listed:
                self._define(self._names(["query_table()"]))
                self._all_listed = True
        return self._data

    def _fetch_tables(self, names: Set[str], until: float) -> tuple[dict[str, pa.Table], str, mirror.Mirror | None]:
        """Return these tables without the mirrored rows, the data version, and the mirror."""
        import duckdb

        stop = threading.Event()

        def fetch() -> tuple[dict[str, pa.Table], str, mirror.Mirror | None]:
            with source.open_reader(self.database) as reader:
                new_mirror = self._mirror
                if self._use_mirror and (self._data is None or reader.version() != self.version):
                    new_mirror = mirror.read_mirror(self.database, reader, self._views.extras, self._damaged_files)
                if new_mirror and not self.database.read_only:
                    with suppress(OSError, duckdb.Error):  # the rows are then read from SQL
                        mirror.write_long_runs(new_mirror, reader, names & new_mirror.files.keys(), stop, self._runs)
                files = new_mirror.files if new_mirror else {}
                if new_mirror and self._runs is not None:
                    for table, paths in files.items():
                        new_mirror.files[table] = {run: path for run, path in paths.items() if run in self._runs}
                tables = {
                    name: reader.table(
                        name, [*files.get(name, ())], self._runs if name in RESULT_TABLES else None, stop=stop
                    )
                    for name in names
                }
                return tables, reader.version(), new_mirror

        with ThreadPoolExecutor(1) as aside:  # a separate thread, so that Python receives Ctrl-C
            try:
                return wait_for_result(aside.submit(fetch), until)
            except TimeoutError:
                stop.set()
                raise gate.make_timeout_error() from None
            except BaseException:
                stop.set()
                raise

    def _define(self, names: frozenset[str]) -> None:
        """Define these tables, views and macros in order of dependency.

        Skips a kind's view whose recorded columns are not valid names.
        """
        import duckdb

        assert self._data
        for name in (*MACROS, *TABLES, *views.read_handy_views(), *views.MACROS_OF_VIEWS, *self._views.views):
            if name in names and name not in self._defined_names:
                if name in self._read_tables:
                    self._data.register(f"_{name}", self._read_tables[name])
                with suppress(duckdb.Error) if name in self._views.views else nullcontext():
                    self._data.execute(self._definition(name))
                    self._defined_names.add(name)

    def _definition(self, name: str) -> str:
        """Return the statement that defines a table, view or macro."""
        if name in TABLES:
            return f'CREATE {self._form(name)} "{name}" AS {self._rows(name)}'
        if macro := MACROS.get(name) or views.MACROS_OF_VIEWS.get(name):
            return f"CREATE MACRO {name}{macro}"
        if name in views.read_handy_views():
            bases = self._names([views.read_handy_views()[name]]) & TABLES.keys()
            form = "TABLE" if name in COMPUTED_ONCE and bases <= self._read_tables.keys() else "VIEW"
            return f'CREATE {form} "{name}" AS {views.read_handy_views()[name]}'
        view = self._views.views[name]
        if view.table is None:
            return f'CREATE OR REPLACE VIEW "{name}" AS {view.select}'
        rows = f'"_{name}"'
        return f"""CREATE OR REPLACE {self._form(view.table)} {rows} AS {self._rows(view.table, view.kind)};
            CREATE OR REPLACE VIEW "{name}" AS WITH result_rows AS (SELECT * FROM {rows}) {view.select}"""

    def _form(self, table: str) -> str:
        """Return TABLE if the table is small enough to be converted once, or else VIEW."""
        if table not in self._read_tables:
            return "VIEW"
        files = self._mirror.files.get(table, {}).values() if self._mirror else ()
        try:
            size = self._read_tables[table].nbytes + sum(FILE_BYTES_FACTOR * path.stat().st_size for path in files)
        except OSError:  # DuckDB will report the file
            return "VIEW"
        return "TABLE" if size <= MOST_CONVERTED_BYTES else "VIEW"

    def _rows(self, table: str, kind: str | None = None) -> str:
        """Return the SELECT of a table's rows, from SQL and from the mirror.

        With `kind`, only the rows of its runs, with their extra columns. A table that was not read fails when its rows
        are read.
        """
        extras = self._views.extras.get((kind, table), {}) if kind else {}
        types = {**source.list_column_types(table), **{name: extra.duckdb for name, extra in extras.items()}}
        if table not in self._read_tables:
            columns = ", ".join(f'NULL::{type_} AS "{name}"' for name, type_ in types.items())
            return f"SELECT {columns} WHERE error('{table} was not read')"
        columns = ", ".join(f'"{name}"' for name in types)
        of_kind = f" WHERE run_id IN (SELECT id FROM run WHERE kind = {duck.quote_text(kind)})" if kind else ""
        parts = [f"SELECT {columns} FROM ({views.build_typed_rows_sql(table, self.database.dialect, extras)}){of_kind}"]
        for each, paths in sorted(self._mirror.group_by_kind(table).items()) if self._mirror else ():
            if kind in (None, each):
                parts.append(mirror.build_parquet_select(f"SELECT {columns}", paths))
        return " UNION ALL ".join(parts)

    def _rows_read(self, statements: Collection[str]) -> dict[str, int]:
        """Return the number of rows in each table that these statements name."""
        assert self._data
        counts = {}
        for name in self._names(statements) & self._read_tables.keys():
            counts[name] = self._read_tables[name].num_rows
            if self._mirror and self._mirror.files.get(name):
                [(counts[name],)] = self._data.execute(f'SELECT count(*) FROM "{name}"').fetchall()
        return counts


class OtherVersionError(ChessregError):
    """Raised when an answer requires another state of the registry than the current one."""


def _identify_question(statements: Mapping[str, str], parameters: Mapping[str, Any] | None, summary: str) -> Any:
    return (summary, *statements.items(), *sorted((parameters or {}).items()))


def open_shared_engine(database: Database, memory: str | None = None) -> QueryEngine:
    """Return the engine of an open registry: one per Database, so that a process reads its snapshot once.

    A memory limit other than the default creates a separate engine.
    """
    if memory and memory != DEFAULT_MEMORY:
        return QueryEngine(database, memory=memory)
    engine = _ENGINES.get(database)
    if engine is None:
        with _ENGINES_LOCK:
            engine = _ENGINES.setdefault(database, QueryEngine(database))
    return engine


_ENGINES: weakref.WeakKeyDictionary[Any, QueryEngine] = weakref.WeakKeyDictionary()
_ENGINES_LOCK = threading.Lock()


def hash_sql(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()
