"""An open registry: transactions that write, transactions that cannot, and a number that rises with every write."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, Select, func, select, update
from sqlalchemy.orm import Session

from chessreg.errors import RegistryError
from chessreg.registry import migrations
from chessreg.registry.engines import (
    ServerUnreachableError,
    allow_connections,
    convert_database_errors,
    create_reader_engine,
    create_writer_engine,
    require_file,
)
from chessreg.registry.file_gate import gate_at, register_user
from chessreg.registry.place import RegistryPlace, resolve_place
from chessreg.registry.sqlite import RegistryCopies
from chessreg.registry.tables import RegistryState

if TYPE_CHECKING:
    from chessreg.registry.lease import Lease

RECONNECT_PAUSE_S = 1.0  # between two looks at a server that does not answer
KEYS_PER_STATEMENT = 500  # keys in one IN (…): SQLite takes so many with ease


def select_by_keys(
    session: Session, query: Select[*tuple[Any, ...]], column: Any, keys: Collection[Any]
) -> Iterator[Any]:
    """The rows of a query in which a column holds one of many keys: a statement for every few hundred of them."""
    every = list(keys)
    for start in range(0, len(every), KEYS_PER_STATEMENT):
        yield from session.execute(query.where(column.in_(every[start : start + KEYS_PER_STATEMENT])))


class Database:
    """A registry. Safe to use from several threads; close it, or use it in a `with`.

    On a network file system the first write takes a lease that is held until `close`; without it everything but
    writing works. After a fork the child opens connections of its own. Once `read_only` is set, `write` is refused.
    """

    read_only = False

    def __init__(self, place: RegistryPlace, on_wait: Callable[[str], None] | None = None) -> None:
        self.place, self._on_wait = place, on_wait
        self._on_failure: Callable[[], None] = lambda: None
        self.made = False  # by `open`, just now
        self._lease: Lease | None = None
        if place.path is not None and place.on_network:
            from chessreg.registry.lease import Lease

            self._lease = Lease(place.path)
        self._writer = create_writer_engine(place)
        self._copies = RegistryCopies()
        self._reader = create_reader_engine(place, copies=self._copies)
        self._pid = os.getpid()
        self._thread = threading.local()
        if place.path is not None:
            register_user(place.path, self._dispose)

    @classmethod
    def open(
        cls,
        url: str | Path | RegistryPlace | None = None,
        *,
        create: bool = True,
        on_wait: Callable[[str], None] | None = None,
    ) -> Database:
        """Open a registry by URL or path (default CHESSREG_REGISTRY, else ./.chessreg/registry.db).

        With `create`, a place that holds nothing gets an empty registry; two processes may do so at once.
        With `on_wait`, opening and reading wait for a server that does not answer: it is called with one line when the
        wait begins, and with one when it is over. Else that is an AwayError.
        Raises NotFoundError when there is none, BadInputError for a file that is something else, SchemaError when
        its schema is older or newer than this chessreg, RegistryError when it does not answer.
        """
        place = resolve_place(url)
        if place.path is not None and not (create and not place.path.exists()):
            require_file(place.path)
        made = place.path is not None and not place.path.exists()
        if made:
            migrations.upgrade_registry(place)
        database = cls(place, on_wait)
        try:
            database.made = made
            database._await_server()
            with allow_connections(place):
                status = migrations.schema_status_of(database._reader, place)
            if status.state == "empty" and create:
                status = migrations.upgrade_registry(place)
                database.made = True
            migrations.require_schema(status, place)
        except BaseException:
            database.close()
            raise
        return database

    @property
    def reference(self) -> str:
        """Its place for another process (`Place.reference`), password and all: mask it before showing it."""
        return self.place.reference

    @property
    def readable(self) -> Path | None:
        """The file that another copy of SQLite can read: the registry's, or the copy of it that is read here."""
        return self.place.path and self._copies.of(self.place.path)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.place.dialect

    @property
    def reader(self) -> Engine:
        """The engine that cannot write."""
        self._after_fork()
        return self._reader

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that writes: commits at the end of the block, rolls back when it raises.

        SQLite takes the write lock at once and waits up to 30 s for it. Raises RegistryError when the registry cannot
        be written, sqlalchemy's IntegrityError for a broken constraint, BadInputError for a value such as NaN.
        """
        if (rehearsed := self._rehearsed()) is not None:
            with rehearsed.begin_nested():  # a block that raises takes back its own rows alone, as elsewhere
                yield rehearsed
            return
        with self._writing() as session:
            before = _change_marker(session)
            yield session
            session.flush()
            if _change_marker(session) != before:
                _increment_data_version(session)
            session.commit()

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """A session of the writer, whose transaction is rolled back unless the block commits it."""
        if self.read_only:
            raise RegistryError(f"the registry {self.place.masked} was opened for reading only")
        self._after_fork()
        if getattr(self._thread, "writing", False):
            raise RuntimeError("write() inside write(): the inner one would wait for the outer one for ever")
        if self._lease is not None:
            self._lease.hold()
        self._thread.writing = True
        try:
            with (
                allow_connections(self.place),
                convert_database_errors(self.place),
                Session(self._writer, expire_on_commit=False) as session,
            ):
                yield session
        finally:
            self._thread.writing = False

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that sees one state of the registry and can change nothing."""
        if (rehearsed := self._rehearsed()) is not None:
            yield rehearsed
            return
        self._after_fork()
        self._await_server()
        with (
            allow_connections(self.place),
            convert_database_errors(self.place),
            Session(self._reader, expire_on_commit=False) as session,
        ):
            yield session

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Inside the block this thread's writes are seen by its reads and nobody else, and none of them is kept.

        It is one transaction of the writer, which holds SQLite's write lock meanwhile. Raises what `write` raises.
        """
        with self._writing() as session:
            self._thread.rehearsed = session
            try:
                yield
            finally:
                self._thread.rehearsed = None

    def _rehearsed(self) -> Session | None:
        session: Session | None = getattr(self._thread, "rehearsed", None)
        return session

    @contextmanager
    def waiting(self, on_wait: Callable[[str], None], on_failure: Callable[[], None]) -> Iterator[None]:
        """Let reads inside the block wait for a server that does not answer. `on_wait` is that of `open`, which is kept
        if it was given there.

        `on_failure` is called after each try to reach the server that fails. An exception that it raises ends the wait.
        """
        before = self._on_wait, self._on_failure
        self._on_wait, self._on_failure = self._on_wait or on_wait, on_failure
        try:
            yield
        finally:
            self._on_wait, self._on_failure = before

    def data_version(self) -> str:
        """`<registry>.<n>`: another text after every transaction that changed rows, the same until then."""
        with self.read() as session:
            row = session.execute(select(RegistryState.registry_id, RegistryState.data_version)).first()
        return f"{row.registry_id.hex[-6:]}.{row.data_version}" if row else "0.0"

    def close(self) -> None:
        """Close all connections and give the lease back."""
        self._after_fork()
        self._dispose()
        if self._lease is not None:
            self._lease.release()

    def foreign_reader(self) -> AbstractContextManager[None]:
        """Hold this while ADBC's copy of SQLite has the file open in this process; see file_gate."""
        return gate_at(self.place.path).foreign() if self.place.path is not None else nullcontext()

    def _await_server(self) -> None:
        """Return when the server answers; at once for a registry that is a file, and for who does not wait."""
        waits = False
        while self._on_wait is not None and self.place.path is None:
            try:
                with convert_database_errors(self.place), self._reader.connect():
                    if waits:
                        self._on_wait("the registry answers again")
                    return
            except ServerUnreachableError as error:
                if not waits:
                    self._on_wait(f"waiting: {error.message}")
                waits = True
                self._on_failure()
                time.sleep(RECONNECT_PAUSE_S)

    def _dispose(self) -> None:
        self._reader.dispose()
        self._writer.dispose()  # the last to go: it can tidy the log away

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.place.masked})"

    def _after_fork(self) -> None:
        """A forked child must not talk through its parent's connections."""
        if self._pid != os.getpid():
            self._writer.dispose(close=False)
            self._reader.dispose(close=False)
            self._thread = threading.local()
            self._pid = os.getpid()


def _change_marker(session: Session) -> object:
    """Something that differs once this transaction has changed a row. Begins the transaction."""
    if session.get_bind().dialect.name == "sqlite":
        return session.connection().connection.total_changes
    return session.scalar(select(func.pg_current_xact_id_if_assigned().is_not(None)))


def _increment_data_version(session: Session) -> None:
    """The last statement of a transaction that wrote, so that PostgreSQL holds this row's lock for a moment only."""
    raised = update(RegistryState).values(data_version=RegistryState.data_version + 1).returning(RegistryState.id)
    if session.scalar(raised) is None:
        raise RegistryError("the registry has lost the row of registry_state", "put back a backup")
