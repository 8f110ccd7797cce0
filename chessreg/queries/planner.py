"""Which columns of which tables a SELECT needs: DuckDB's own planner says so, over empty tables of the declared types.

A table or view is defined once a statement names it: all of them take longer than most answers.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from chessreg.queries import duck, extras, gate, source, views
from chessreg.queries.duck import DEFAULT_MEMORY
from chessreg.queries.source import TABLES
from chessreg.queries.views import ONCE

if TYPE_CHECKING:
    import duckdb

# Off while planning: they would drop a scan of an empty table, or hide a filter's column in the scan; the last four
# take half of the time and change no column.
NOT_WHEN_PLANNING = (
    "statistics_propagation", "filter_pushdown", "empty_result_pullup", "compressed_materialization",
    "join_order", "common_subplan", "outer_join_simplification", "build_side_probe_side",
)  # fmt: skip
KEPT_PLANS = 500
T = TypeVar("T")


class Plan(NamedTuple):
    """What statements need: columns by table or view in ONCE, and every table, view and macro that they name."""

    columns: dict[str, frozenset[str]]
    names: frozenset[str]


class Planner:
    """Plans SELECTs over the tables, the handy views, and the views of kinds that the caller has. Holds no rows.

    Safe to use from several threads, and by several engines: plans are kept.
    """

    def __init__(self) -> None:
        self.handy = views.handy()
        self.columns = {t: {n: source.duckdb_type(c) for n, c in source.columns(t).items()} for t in TABLES}
        self.relations: dict[str, str] = {}  # with extra columns, and the result table of each
        self._lock = threading.RLock()
        self._plans: dict[Any, Plan] = {}
        self._connect()

    def _connect(self) -> None:
        self._connection = duck.connect(DEFAULT_MEMORY, 1, NOT_WHEN_PLANNING)
        weakref.finalize(self, duck.close, [self._connection])
        self._there: set[str] = set()  # what is defined
        self._kinds: dict[str, str] = {}  # of it, the views of kinds

    def learn(self, extra: Mapping[str, frozenset[str]]) -> None:
        """Know these extra columns of result tables, beside those that other engines have: each means one thing."""
        with self._lock:
            for table, names in extra.items():
                relation = extras.relation(table)
                self.relations[relation] = table
                known = self.columns.setdefault(relation, dict(self.columns[table]))
                for name in sorted(names - known.keys()):
                    known[name] = extras.type_of(name)
                    if relation in self._there:
                        self._connection.execute(f'ALTER TABLE "{relation}" ADD COLUMN "{name}" {known[name]}')

    def parser(self) -> duckdb.DuckDBPyConnection:
        """A connection for looking at SQL; it holds no data."""
        return self._connection.cursor()

    def plan(
        self,
        statements: Mapping[str, str],
        parameters: Mapping[str, Any] | None,
        kinds: Mapping[str, str],
        until: float,
    ) -> Plan:
        """What these statements need, also by way of the views in ONCE. `kinds`: the SELECT of each kind's view.

        Raises duckdb.Error for what does not bind, ChessregError when it is `until`, by the monotonic clock.
        """
        with self._lock:
            names = self.names(statements, kinds)
            values = sorted((parameters or {}).items())
            key = (*statements.values(), *values, frozenset((n, kinds[n]) for n in names & kinds.keys()))
            if key not in self._plans:
                if len(self._plans) == KEPT_PLANS:
                    self._plans.clear()
                with self._stoppable() as connection:
                    needed = partial(self._needed, statements, parameters)
                    self._plans[key] = Plan(*duck.within(connection, until, lambda: self._bound(names, kinds, needed)))
            return self._plans[key]

    def binds(self, sql: str, parameters: Mapping[str, Any] | None, kinds: Mapping[str, str]) -> str:
        """Empty if a SELECT binds, else the reason why not."""
        import duckdb

        with self._lock:
            try:
                self._bound(self.names({"": sql}, kinds), kinds, lambda: self._explained(sql, parameters))
            except duckdb.Error as error:
                return gate.first_line(error)
            return ""

    def described(self, kinds: Mapping[str, str]) -> dict[str, list[str]]:
        """The columns of every table and view."""
        with self._lock:
            self._define(self._all(kinds), kinds)
            columns_of: dict[str, list[str]] = {name: list(columns) for name, columns in self.columns.items()}
            for name in self.relations:
                del columns_of[name]
            for name in {*self.handy, *self._kinds} - columns_of.keys():
                rows = self._connection.execute(f'DESCRIBE "{name}"').fetchall()
                columns_of[name] = [str(row[0]) for row in rows]
            return dict(sorted(columns_of.items()))

    def names(self, statements: Mapping[str, str], kinds: Mapping[str, str]) -> frozenset[str]:
        """Every table, view and macro that these statements name, also by way of views."""
        if any(views.lists(sql) for sql in statements.values()):
            return self._all(kinds)
        tables = dict.fromkeys([*TABLES, *self.relations], "")
        return views.named_in(statements.values(), {**tables, **self.handy, **views.AFTER, **kinds})

    def some_of(self, name: str, columns: frozenset[str]) -> str:
        """SELECT of some columns of a handy view, from what it is made of."""
        listed = ", ".join(f'"{column}"' for column in sorted(columns))
        return f"SELECT {listed} FROM ({self.handy[name]})"

    # -- inside -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _stoppable(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """When what is inside is stopped, a connection that DuckDB does not give back at once is left to it."""
        connection = self._connection
        try:
            yield connection
        except BaseException:
            if duck.is_busy(connection):
                self._connect()
            raise

    def _all(self, kinds: Mapping[str, str]) -> frozenset[str]:
        return frozenset([*TABLES, *self.relations, *self.handy, *views.AFTER, *kinds])

    def _bound(
        self, names: frozenset[str], kinds: Mapping[str, str], bind: Callable[[], T]
    ) -> tuple[T, frozenset[str]]:
        """What `bind` gives, and the names that it took.

        What does not bind is tried with everything: SQL may compute a name, and DuckDB says what was perhaps meant.
        """
        import duckdb

        self._define(names, kinds)
        try:
            return bind(), names
        except (duckdb.CatalogException, duckdb.BinderException):
            names = self._all(kinds)
            self._define(names, kinds)
            return bind(), names

    def _define(self, names: frozenset[str], kinds: Mapping[str, str]) -> None:
        """Have these, and of the views of kinds only those that the caller has."""
        for name in [name for name, select in self._kinds.items() if kinds.get(name) != select]:
            self._connection.execute(f'DROP VIEW IF EXISTS "{name}"')
            self._there.discard(name)
            del self._kinds[name]
        define(self._connection, self._tables(), kinds, names, self._there)
        self._kinds = {name: select for name, select in kinds.items() if name in self._there}
        for name in ONCE & self._there - self.columns.keys():
            described = self._connection.execute(f'DESCRIBE "{name}"').fetchall()
            self.columns[name] = {str(row[0]): str(row[1]) for row in described}

    def _tables(self) -> Iterator[tuple[str, str]]:
        """The statements that define the empty tables, and the handy views."""
        for name in (*TABLES, *self.relations):
            types = ", ".join(f'"{column}" {type_}' for column, type_ in self.columns[name].items())
            yield name, f'CREATE TABLE "{name}" ({types})'
        for name, select in self.handy.items():
            yield name, f'CREATE {"TABLE" if name in ONCE else "VIEW"} "{name}" AS {select}'

    def _needed(self, statements: Mapping[str, str], parameters: Mapping[str, Any] | None) -> dict[str, frozenset[str]]:
        needed: dict[str, frozenset[str]] = {}
        for sql in statements.values():
            merge(needed, self._scanned(sql, parameters))
        for name in reversed([*self.handy]):
            if name in ONCE and name in needed:
                merge(needed, self._scanned(self.some_of(name, needed[name]), None))
        return needed

    def _explained(self, sql: str, parameters: Mapping[str, Any] | None) -> None:
        self._connection.execute("EXPLAIN " + sql, duck.used(sql, parameters))

    def _scanned(self, sql: str, parameters: Mapping[str, Any] | None) -> dict[str, frozenset[str]]:
        """table, or view in ONCE → columns that a statement scans. Where only rows are counted, that is the first."""
        row = self._connection.execute("EXPLAIN (FORMAT json) " + sql, duck.used(sql, parameters)).fetchone()
        assert row
        needed: dict[str, frozenset[str]] = {}
        pending = list(json.loads(row[1]))
        while pending:
            node = pending.pop()
            pending += node.get("children", [])
            extra = node.get("extra_info", {})
            table = str(extra.get("Table", "")).rpartition(".")[2].strip('"')
            if table in self.columns:
                listed = extra.get("Projections") or [next(iter(self.columns[table]))]
                names = frozenset([listed] if isinstance(listed, str) else listed)
                if not names <= self.columns[table].keys():  # a plan that reads otherwise: take it all
                    names = frozenset(self.columns[table])
                merge(needed, {self.relations.get(table, table): names})
        return needed


@cache
def planner() -> Planner:
    """The one of this process."""
    return Planner()


def define(
    connection: duckdb.DuckDBPyConnection,
    tables: Iterable[tuple[str, str]],
    kinds: Mapping[str, str],
    names: frozenset[str],
    there: set[str],
) -> None:
    """Define what is named and not `there`: tables and handy views by these statements, then views of kinds.

    A kind's view whose recorded columns are no names of columns is left out.
    """
    import duckdb

    if names <= there:
        return
    for name, statement in (*tables, *views.AFTER.items()):
        if name in names and name not in there:
            connection.execute(statement)
            there.add(name)
    for name, select in kinds.items():
        if name in names and name not in there:
            with suppress(duckdb.Error):
                connection.execute(f'CREATE VIEW "{name}" AS {select}')
                there.add(name)


def merge(into: dict[str, frozenset[str]], more: Mapping[str, frozenset[str]]) -> None:
    """Add columns by table."""
    for table, names in more.items():
        into[table] = into.get(table, frozenset()) | names
