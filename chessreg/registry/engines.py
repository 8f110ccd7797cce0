"""SQLAlchemy engines: one that writes and one that can only read, for SQLite and PostgreSQL; what their errors mean."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.pool import NullPool, Pool

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.registry.urls import Place, mask


class RegistryError(ChessregError):
    """The registry's database does not answer, or refuses to be read or written."""


class SchemaError(ChessregError):
    """The registry's schema is not the one that this chessreg knows."""


# What the driver says → the class to raise, what to say (after the registry's place), the hint.
SAYINGS: tuple[tuple[str, type[ChessregError], str, str], ...] = (
    ("file is not a database", BadInputError, "is not a SQLite database", "give the path of a registry"),
    ("malformed", RegistryError, "is damaged", "put back a copy: chessreg db backup made them in backups/ beside it"),
    ("database or disk is full", RegistryError, "cannot grow: the disk is full", "free some space and try again"),
    ("readonly database", RegistryError, "is read-only here", "check the owner and mode of it and its folder"),
    ("unable to open database", RegistryError, "cannot be opened", "check the owner and mode of it and its folder"),
    ("database is locked", RegistryError, "stayed locked for 30 s by another writer", "wait for it, then try again"),
    ("disk I/O error", RegistryError, "cannot be read or written: disk I/O error", "chessreg doctor"),
    ("password authentication failed", RegistryError, "refused the user or password", "check the URL, or ~/.pgpass"),
    ("no password supplied", RegistryError, "wants a password", "put it into the URL or ~/.pgpass"),
    (r"role .* does not exist", RegistryError, "knows no such user", "check the user in the URL"),
    (r"database .* does not exist", NotFoundError, "is no database of that server", "createdb makes it"),
    (
        r"connection refused|could not connect|connection failed|timeout expired|no route to host|no such file",
        RegistryError,
        "does not answer: no PostgreSQL server is there",
        "check host and port, and that the server runs",
    ),
    (
        r"resolve host|translate host name|name or service|failed to resolve",
        RegistryError,
        "names a host that cannot be found",
        "check the host in the URL",
    ),
    ("read-only transaction", RegistryError, "was opened for reading only", "write through Database.write()"),
    ("permission denied", RegistryError, "does not permit that to this user", "ask its owner to grant it"),
    ("no space left|could not extend file", RegistryError, "cannot grow: the server's disk is full", "free some space"),
    (
        r"server closed the connection|terminating connection|connection is closed|consuming input failed",
        RegistryError,
        "closed the connection",
        "try again when the server is up",
    ),
)


@contextmanager
def explained(place: Place) -> Iterator[None]:
    """Turn a database's errors inside the block into ChessregErrors. A broken constraint stays an IntegrityError.

    Values refused before they reach the database (NaN, a naive datetime) become BadInputError.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise explain(place, error.orig or error) from error
    except StatementError as error:
        if isinstance(error.orig, ChessregError):
            raise error.orig from error
        if isinstance(error.orig, (ValueError, TypeError, LookupError)):
            raise BadInputError(str(error.orig)) from error
        raise


def explain(place: Place, error: BaseException) -> ChessregError:
    """The ChessregError for one error of a database driver."""
    said = str(error).strip() or type(error).__name__
    for pattern, kind, reason, hint in SAYINGS:
        if re.search(pattern, said, re.IGNORECASE):
            return kind(f"the registry {place.shown} {reason}", hint)
    return RegistryError(f"the registry {place.shown}: {mask(said.splitlines()[0])}")


BUSY_SECONDS = 30.0
MAGIC = b"SQLite format 3\0"
READ_ONLY = "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"


def writer_engine(place: Place, *, network: bool = False, create: bool = False) -> Engine:
    """The engine that writes. Every transaction of SQLite takes the write lock at its start (BEGIN IMMEDIATE)."""
    if place.path is None:
        return _postgresql(place, "")
    path = place.path
    return _sqlite(place, lambda: _open_writable(path, network, create), "IMMEDIATE")


def reader_engine(place: Place, *, network: bool = False) -> Engine:
    """The engine that cannot write. One transaction sees one state of the registry."""
    if place.path is None:
        return _postgresql(place, READ_ONLY)
    path, copies = place.path, Copies()
    # On a network file system no connection is kept: an idle one would keep writers from changing the journal.
    pool = NullPool if network else None
    engine = _sqlite(place, lambda: _open_readable(path, copies), "DEFERRED", pool)
    weakref.finalize(engine, copies.remove)
    return engine


def to_json(value: Any) -> str:
    """JSON for a column; NaN and infinities are refused (PostgreSQL would, SQLite would not)."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise BadInputError("a JSON column would hold a number that is not finite") from error


def require_sqlite(path: Path) -> None:
    """Raises NotFoundError or BadInputError unless the file could be a SQLite database (an empty one counts)."""
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except FileNotFoundError:
        raise NotFoundError(f"there is no registry {path}", "chessreg init makes one") from None
    except OSError as error:
        message, hint = f"the registry {path} cannot be read: {error.strerror}", "check its owner and mode"
        raise RegistryError(message, hint) from error
    if head and head != MAGIC:
        raise BadInputError(f"the registry {path} is not a SQLite database", "give the path of a registry")


def _sqlite(
    place: Place, connect: Callable[[], sqlite3.Connection], begin: str, pool: type[Pool] | None = None
) -> Engine:
    engine = create_engine(place.url, creator=connect, json_serializer=to_json, poolclass=pool)

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {begin}")

    return engine


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    # isolation_level=None: Python must not begin transactions of its own; SQLAlchemy hands a connection to one thread.
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys=ON")
    return connection


def _open_writable(path: Path, network: bool, create: bool) -> sqlite3.Connection:
    connection = _connect(path, "rwc" if create else "rw")
    try:
        _set_journal(connection, network)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_journal(connection: sqlite3.Connection, network: bool) -> None:
    """A write-ahead log on a local disk, a rollback journal on a network file system.

    Changing it wants the file alone, and SQLite does not wait for that by itself.
    """
    wanted = "delete" if network else "wal"
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if network:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # a log left here is read without shared memory
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
                connection.execute(f"PRAGMA journal_mode={wanted}")
            if network:
                connection.execute("PRAGMA locking_mode=NORMAL")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # gives the exclusive lock back
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute(f"PRAGMA synchronous={'FULL' if network else 'NORMAL'}")


def _open_readable(path: Path, copies: Copies) -> sqlite3.Connection:
    require_sqlite(path)
    connection = _connect(path, "ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        # A write-ahead log cannot be read without a file beside it that shares its index, and here none can be made.
        # immutable=1 would leave the log out in silence; a copy of both files has all that was committed.
        connection.close()
        if "locked" in str(error):
            raise
        try:
            return copies.connect(path)
        except OSError:
            raise error from None


class Copies:
    """Private copies of registries that cannot be read where they lie."""

    def __init__(self) -> None:
        self.folder: str | None = None

    def connect(self, path: Path) -> sqlite3.Connection:
        """Open a fresh copy of the database and its log, and say so once on stderr."""
        said = self.folder is not None
        self.remove()
        self.folder = tempfile.mkdtemp(prefix="chessreg-")
        copy = Path(self.folder) / path.name
        for suffix in ("", "-wal", "-journal"):
            if (source := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        if not said:
            print(f"chessreg: {path} cannot be locked here: reading a copy of it as it is now", file=sys.stderr)
        connection = _connect(copy, "rw")
        connection.execute("PRAGMA query_only=ON")
        return connection

    def remove(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def _postgresql(place: Place, options: str) -> Engine:
    """`options` join those of the URL."""
    try:
        url = make_url(place.url)
    except (ArgumentError, ValueError) as error:
        message, hint = f"{place.shown} is not a URL", "for example postgresql://user@host:5432/database"
        raise BadInputError(message, hint) from error
    own = url.query.get("options", "")
    settings = {"options": " ".join(filter(None, [own if isinstance(own, str) else " ".join(own), options]))}
    if "connect_timeout" not in url.query:
        settings["connect_timeout"] = "10"
    return create_engine(
        url.difference_update_query(["options"]),
        connect_args={"application_name": "chessreg", **settings},
        json_serializer=to_json,
        pool_pre_ping=True,
    )
