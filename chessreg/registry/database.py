"""An open registry: writing transactions, read-only transactions, and a version number that grows with every write."""

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
    require_registry_file,
)
from chessreg.registry.file_gate import get_file_gate, register_user
from chessreg.registry.place import RegistryPlace, resolve_place
from chessreg.registry.sqlite import RegistryCopies
from chessreg.registry.tables import RegistryState

if TYPE_CHECKING:
    from chessreg.registry.lease import Lease

RECONNECT_PAUSE_S = 1.0  # between attempts to reach a server that does not respond
KEYS_PER_STATEMENT = 500  # in one IN (…), well below SQLite's limit
INCREMENT_DATA_VERSION = (
    update(RegistryState).values(data_version=RegistryState.data_version + 1).returning(RegistryState.id)
)


def select_by_keys(
    session: Session, query: Select[*tuple[Any, ...]], column: Any, keys: Collection[Any]
) -> Iterator[Any]:
    """Yield the rows of `query` whose `column` is in `keys`, with one statement per batch of keys."""
    every = list(keys)
    for start in range(0, len(every), KEYS_PER_STATEMENT):
        yield from session.execute(query.where(column.in_(every[start : start + KEYS_PER_STATEMENT])))


class Database:
    """An open registry. Thread-safe. Close it after use, or use it in a `with` statement.

    On a network file system, the first write takes a lease that is held until `close`; reading needs no lease. After a
    fork, the child opens its own connections. If `read_only` is true, `write` raises RegistryError.
    """

    read_only = False

    def __init__(self, place: RegistryPlace, on_wait: Callable[[str], None] | None = None) -> None:
        self.place, self._on_wait = place, on_wait
        self._on_failure: Callable[[], None] = lambda: None
        self.is_new = False  # whether `open` created the registry
        self._lease: Lease | None = None
        if place.path is not None and place.is_on_network:
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
        """Open a registry by URL or path (default: CHESSREG_REGISTRY, else ./.chessreg/registry.db).

        If `create` is true and nothing exists there, an empty registry is created; several processes may do this
        concurrently. If `on_wait` is given, opening and reading wait for an unreachable server, and `on_wait` is called
        with a one-line message when the wait begins and when it ends. Otherwise ServerUnreachableError is raised.

        Raises NotFoundError if there is no registry, BadInputError for a file that is not a database, SchemaError if
        its schema is older or newer than this version of chessreg, and RegistryError if it does not respond.
        """
        place = resolve_place(url)
        if place.path is not None and not (create and not place.path.exists()):
            require_registry_file(place.path)
        is_new = place.path is not None and not place.path.exists()
        if is_new:
            migrations.upgrade_registry(place)
        database = cls(place, on_wait)
        try:
            database.is_new = is_new
            database._await_server()
            with allow_connections(place):
                status = migrations.read_engine_schema_status(database._reader, place)
            if status.state == "empty" and create:
                status = migrations.upgrade_registry(place)
                database.is_new = True
            migrations.require_schema(status, place)
        except BaseException:
            database.close()
            raise
        return database

    @property
    def reference(self) -> str:
        """The location to pass to another process (`RegistryPlace.reference`). It may contain a password: mask it
        before display."""
        return self.place.reference

    @property
    def readable_file(self) -> Path | None:
        """The file that another SQLite library can read: the registry, or the private copy that this process reads."""
        return self.place.path and self._copies.get_copy(self.place.path)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.place.dialect

    @property
    def reader(self) -> Engine:
        """The SQLAlchemy engine of the read-only connection."""
        self._after_fork()
        return self._reader

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Run the block in a writing transaction. Commit when it ends, roll back when it raises.

        SQLite takes the write lock at the start and waits up to 30 s for it. Raises RegistryError if the registry
        cannot be written, SQLAlchemy's IntegrityError for a violated constraint, and BadInputError for a value such as
        NaN.
        """
        if (rehearsal := self._get_rehearsed_session()) is not None:
            with rehearsal.begin_nested():  # an error rolls back only this block
                yield rehearsal
            return
        with self._open_writing_session() as session:
            before = _read_change_marker(session)
            yield session
            session.flush()
            if _read_change_marker(session) != before:
                _increment_data_version(session)
            session.commit()

    @contextmanager
    def _open_writing_session(self) -> Iterator[Session]:
        """Yield a session of the writing engine. Its transaction is rolled back unless the block commits it."""
        if self.read_only:
            raise RegistryError(f"the registry {self.place.masked_location} was opened for reading only")
        self._after_fork()
        if getattr(self._thread, "writing", False):
            raise RuntimeError("write() inside write() would wait for itself forever")
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
        """Run the block in a read-only transaction that sees a single state of the registry."""
        if (rehearsal := self._get_rehearsed_session()) is not None:
            yield rehearsal
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
        """Make this thread's writes inside the block visible to its own reads only, and roll all of them back at the
        end.

        The block is one transaction of the writing engine and holds SQLite's write lock. Raises the same errors as
        `write`.
        """
        with self._open_writing_session() as session:
            self._thread.rehearsed = session
            try:
                yield
            finally:
                self._thread.rehearsed = None

    def _get_rehearsed_session(self) -> Session | None:
        session: Session | None = getattr(self._thread, "rehearsed", None)
        return session

    @contextmanager
    def wait_for_server(self, on_wait: Callable[[str], None], on_failure: Callable[[], None]) -> Iterator[None]:
        """Let reads inside the block wait for an unreachable server instead of raising ServerUnreachableError.

        `on_wait` receives the messages described in `open` and is ignored if `open` was given one. `on_failure` is
        called after each failed attempt to reach the server; an exception that it raises ends the wait.
        """
        before = self._on_wait, self._on_failure
        self._on_wait, self._on_failure = self._on_wait or on_wait, on_failure
        try:
            yield
        finally:
            self._on_wait, self._on_failure = before

    def data_version(self) -> str:
        """Return `<registry>.<n>`, which changes with every transaction that changed rows and only then."""
        with self.read() as session:
            row = session.execute(select(RegistryState.registry_id, RegistryState.data_version)).first()
        return f"{row.registry_id.hex[-6:]}.{row.data_version}" if row else "0.0"

    def close(self) -> None:
        """Close all connections and release the lease."""
        self._after_fork()
        self._dispose()
        if self._lease is not None:
            self._lease.release()

    def foreign_reader(self) -> AbstractContextManager[None]:
        """Return a context manager to hold while ADBC's SQLite library has the file open in this process (see
        file_gate)."""
        return get_file_gate(self.place.path).use_with_adbc() if self.place.path is not None else nullcontext()

    def _await_server(self) -> None:
        """Return once the server responds. Return immediately for SQLite, and if no `on_wait` callback is set."""
        has_waited = False
        while self._on_wait is not None and self.place.path is None:
            try:
                with convert_database_errors(self.place), self._reader.connect():
                    if has_waited:
                        self._on_wait("the registry answers again")
                    return
            except ServerUnreachableError as error:
                if not has_waited:
                    self._on_wait(f"waiting: {error.message}")
                has_waited = True
                self._on_failure()
                time.sleep(RECONNECT_PAUSE_S)

    def _dispose(self) -> None:
        self._reader.dispose()
        self._writer.dispose()  # closed last, so that it can remove the write-ahead log

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.place.masked_location})"

    def _after_fork(self) -> None:
        """Discard connections inherited from the parent process: a child must not use them."""
        if self._pid != os.getpid():
            self._writer.dispose(close=False)
            self._reader.dispose(close=False)
            self._thread = threading.local()
            self._pid = os.getpid()


def _read_change_marker(session: Session) -> object:
    """Begin the transaction and return a value that changes once the transaction has modified a row."""
    if session.get_bind().dialect.name == "sqlite":
        return session.connection().connection.total_changes
    return session.scalar(select(func.pg_current_xact_id_if_assigned().is_not(None)))


def _increment_data_version(session: Session) -> None:
    """Increment the data version. Run as the last statement, so that PostgreSQL locks this row only briefly."""
    if session.scalar(INCREMENT_DATA_VERSION) is None:
        raise RegistryError("the table registry_state has no row", "restore a backup")
