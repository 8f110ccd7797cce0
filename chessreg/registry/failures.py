"""What a database's own error means for the user: one line, and what helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

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
