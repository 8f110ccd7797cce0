"""SQLAlchemy engines for SQLite and PostgreSQL, one that writes and one that only reads, and explanations of their
errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.pool import NullPool, Pool

from chessreg.errors import BadInputError, ChessregError, NotFoundError, RegistryError
from chessreg.registry import sqlite
from chessreg.registry.file_gate import create_file, get_file_gate
from chessreg.registry.place import PROJECT_FOLDER, REGISTRY_FILE, RegistryPlace


class ServerUnreachableError(RegistryError):
    """Raised when the registry's server does not respond. A later attempt may succeed."""


class SchemaError(ChessregError):
    """Raised when the registry's schema is not the one of this version of chessreg."""


# Pattern in the driver's message, class to raise, message (after the registry's location), hint.
DRIVER_ERRORS: tuple[tuple[str, type[ChessregError], str, str], ...] = (
    ("file is not a database", BadInputError, "is not a SQLite database", "give the path of a registry"),
    (
        "malformed",
        RegistryError,
        "is damaged",
        "put back a copy from backups/ next to it, where `chessreg db backup` writes them",
    ),
    ("database or disk is full", RegistryError, "cannot grow: the disk is full", "free some space and try again"),
    ("readonly database", RegistryError, "is read-only", "check the owner and mode of it and its folder"),
    ("unable to open database", RegistryError, "cannot be opened", "check the owner and mode of it and its folder"),
    ("database is locked", RegistryError, "stayed locked for 30 s by another writer", "wait for it, then try again"),
    (
        "disk I/O error",
        RegistryError,
        "cannot be read or written: disk I/O error",
        "a quota that is full, or a disk that fails; to find damaged files: chessreg doctor",
    ),
    ("password authentication failed", RegistryError, "refused the user or password", "check the URL, or ~/.pgpass"),
    ("no password supplied", RegistryError, "requires a password", "put it in the URL or ~/.pgpass"),
    (r"role .* does not exist", RegistryError, "has no such user", "check the user in the URL"),
    (r"database .* does not exist", NotFoundError, "is not a database of that server", "create it with createdb"),
    (
        r"connection refused|could not connect|connection failed|timeout expired|timed out|no route to host"
        r"|no such file",
        ServerUnreachableError,
        "does not answer: no PostgreSQL server is there",
        "check host and port, and that the server runs",
    ),
    (
        r"resolve host|translate host name|name or service|failed to resolve",
        RegistryError,
        "has an unknown host",
        "check the host in the URL",
    ),
    ("read-only transaction", RegistryError, "was opened for reading only", "write through Database.write()"),
    ("permission denied", RegistryError, "does not permit this to the user", "ask its owner to grant it"),
    ("no space left|could not extend file", RegistryError, "cannot grow: the server's disk is full", "free some space"),
    (
        r"server closed the connection|terminating connection|connection is closed|consuming input failed",
        ServerUnreachableError,
        "closed the connection",
        "try again when the server is up",
    ),
)


SQLSTATES = {  # PostgreSQL's error codes, whose messages may be translated
    "25006": "read-only transaction",
    "42501": "permission denied",
    "53100": "no space left",
    "57P01": "terminating connection",
}
FOREIGN_KEY = "23503"  # SQLSTATE of a violated foreign key
FULL_DISK_PATTERN = "disk I/O error|unable to open database"  # SQLite's messages when its log does not fit
LOG_SPACE_BYTES = 64 * 1024


def has_log_space(folder: Path) -> bool:
    """Return whether the disk of `folder` has space for a write-ahead log and its index. True if this is unknown."""
    try:
        return shutil.disk_usage(folder).free >= LOG_SPACE_BYTES
    except OSError:
        return True


@contextmanager
def convert_database_errors(place: RegistryPlace) -> Iterator[None]:
    """Convert database errors raised in the block to ChessregErrors. IntegrityError passes unchanged.

    Values rejected before they reach the database (NaN, a naive datetime) raise BadInputError.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise to_chessreg_error(place, error.orig or error) from error
    except UnicodeEncodeError as error:  # a lone surrogate: not UTF-8
        around = error.object[max(error.start - 30, 0) : error.end + 30]
        raise BadInputError(f"{around!a} is not UTF-8", "type it as UTF-8, or rename that file or folder") from error
    except OverflowError as error:  # SQLite integers have 64 bits
        raise BadInputError("a number is too large for the registry", "give one below 2^63") from error
    except StatementError as error:
        if isinstance(error.orig, ChessregError):
            raise error.orig from error
        if isinstance(error.orig, (ValueError, TypeError, LookupError)):
            raise BadInputError(str(error.orig)) from error
        raise


def to_chessreg_error(place: RegistryPlace, error: BaseException) -> ChessregError:
    """Return the ChessregError that explains an error of a database driver."""
    from chessreg.masking import mask

    text = str(error).strip() or type(error).__name__
    text = SQLSTATES.get(getattr(error, "sqlstate", None) or "", text)
    if place.path is not None and re.search(FULL_DISK_PATTERN, text) and not has_log_space(place.path.parent):
        text = "database or disk is full"
    for pattern, kind, reason, hint in DRIVER_ERRORS:
        if re.search(pattern, text, re.IGNORECASE):
            return kind(f"the registry {place.masked_location} {reason}", hint)
    return RegistryError(f"the registry {place.masked_location}: {mask(text.splitlines()[0])}")


SMALLEST_PAGE_BYTES = 512  # of SQLite; a non-empty database has at least one page
CLIENT_TIMEOUTS = {  # libpq options in seconds; tcp_user_timeout in milliseconds
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
SERVER_TIMEOUTS = (  # without these the server keeps the locks of a lost session for hours
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=15000"
)
READ_ONLY_OPTIONS = "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"


@contextmanager
def allow_connections(place: RegistryPlace, *, create: bool = False) -> Iterator[None]:
    """Let this thread connect to the registry inside the block; its engines must be disposed there (see file_gate).

    If `create` is true, a missing SQLite file is created first.
    """
    if place.path is None:
        yield
        return
    if create:
        with suppress(OSError):  # SQLite reports the reason later
            create_file(place.path)  # SQLite's other files inherit its mode
    with get_file_gate(place.path).use_with_python():
        yield


def timeout_options(url: URL) -> dict[str, str]:
    """Return libpq options that make a connection fail within 30 s if the network drops packets.

    Options already set in `url` are left out. Only Linux supports all of them; other systems ignore the rest.
    """
    return {name: value for name, value in CLIENT_TIMEOUTS.items() if name not in url.query}


def create_writer_engine(place: RegistryPlace) -> Engine:
    """Return the engine that writes. In SQLite each of its transactions takes the write lock at the start (BEGIN
    IMMEDIATE)."""
    if place.path is None:
        return _create_postgresql_engine(place, "")
    path, network = place.path, place.is_on_network
    return _create_sqlite_engine(place, lambda: sqlite.open_writable(path, network), "IMMEDIATE")


def create_reader_engine(place: RegistryPlace, *, copies: sqlite.RegistryCopies | None = None) -> Engine:
    """Return the engine that cannot write. Each of its transactions sees a single state of the registry.

    If the SQLite file cannot be locked, the engine reads a private copy, which `copies` records.
    """
    if place.path is None:
        return _create_postgresql_engine(place, READ_ONLY_OPTIONS)
    path, copies = place.path, copies or sqlite.RegistryCopies()
    # With a rollback journal, an idle connection would prevent writers from changing the journal mode.
    pool = None if sqlite.is_write_ahead_log_used(place.is_on_network) else NullPool
    engine = _create_sqlite_engine(place, lambda: _open_existing(path, copies), "DEFERRED", pool)
    weakref.finalize(engine, copies.remove)
    return engine


def encode_json(value: Any) -> str:
    """Return `value` as JSON text. Raises BadInputError for NaN and infinities, which SQLite would accept."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise BadInputError("a JSON column cannot store NaN or infinity") from error


def require_registry_file(path: Path) -> None:
    """Raise NotFoundError, BadInputError or RegistryError unless `path` is a file that this user may read.

    The file is not opened, because closing it would drop this process's locks (file_gate). SQLite checks its header.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise NotFoundError(f"registry {path} does not exist", init_command(path)) from None
    except OSError as error:
        message, hint = f"the registry {path} cannot be read: {error.strerror}", "check its owner and mode"
        raise RegistryError(message, hint) from error
    if not stat.S_ISREG(status.st_mode):  # SQLite would wait for a pipe
        raise BadInputError(f"the registry {path} is not a file", "give the path of a registry")
    if 0 < status.st_size < SMALLEST_PAGE_BYTES:  # SQLite would open it as an empty database
        raise BadInputError(f"the registry {path} is not a SQLite database", "give the path of a registry")
    if not os.access(path, os.R_OK):
        raise RegistryError(f"the registry {path} cannot be read: Permission denied", "check its owner and mode")


def init_command(path: Path) -> str:
    """Return the command that creates a registry at `path`."""
    is_project = path == Path(PROJECT_FOLDER, REGISTRY_FILE).absolute()
    return "chessreg init" if is_project else f"chessreg init --registry {shlex.quote(str(path))}"


def make_sqlalchemy_url(place: RegistryPlace) -> URL:
    """Return the SQLAlchemy URL of a registry. Raises BadInputError for a malformed PostgreSQL URL."""
    if place.path is not None:
        return URL.create("sqlite", database=str(place.path))
    try:
        return make_url(place.reference)
    except (ArgumentError, ValueError) as error:
        message, hint = f"{place.masked_location} is not a URL", "for example postgresql://user@host:5432/database"
        raise BadInputError(message, hint) from error


def _create_sqlite_engine(
    place: RegistryPlace, connect: Callable[[], sqlite.Connection], begin: str, pool: type[Pool] | None = None
) -> Engine:
    """Return a SQLAlchemy engine with connections from `connect`, whose transactions start with `BEGIN begin`."""
    engine = create_engine(
        make_sqlalchemy_url(place), module=sqlite.dbapi, creator=connect, json_serializer=encode_json, poolclass=pool
    )

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {begin}")

    return engine


def _open_existing(path: Path, copies: sqlite.RegistryCopies) -> sqlite.Connection:
    require_registry_file(path)
    return sqlite.open_readable(path, copies)


def _create_postgresql_engine(place: RegistryPlace, options: str) -> Engine:
    """Return an engine whose connection options are those of the URL plus `options`."""
    url = make_sqlalchemy_url(place)
    url_options = url.query.get("options", "")
    parts = [SERVER_TIMEOUTS, url_options if isinstance(url_options, str) else " ".join(url_options), options]
    settings = {"options": " ".join(filter(None, parts))}
    return create_engine(
        url.difference_update_query(["options"]),
        connect_args={"application_name": "chessreg", **settings, **timeout_options(url)},
        json_serializer=encode_json,
        pool_pre_ping=True,
    )
