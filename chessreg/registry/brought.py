"""Tables of entities that installed packages add through entry points of the group `chessreg.entities`.

The entry points are imported when first needed. Only operations that write create missing tables: ingest, merge,
`chessreg init` and `chessreg db upgrade`. Reads skip tables that do not exist yet.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from chessreg import plugins
from chessreg.errors import ChessregError, RegistryError, get_first_line
from chessreg.registry.tables import OWN_TABLES, Base

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.orm import Session

ENTRY_POINT_GROUP = "chessreg.entities"
SEEN_TABLES_KEY = "tables of packages"  # key in `Session.info`: table name → whether it exists


@functools.cache
def load_package_nouns() -> tuple[str, ...]:
    """Import every entity that a package declares. Return one error message for each that cannot be loaded."""
    failures = []
    for point in plugins.list_entry_points(ENTRY_POINT_GROUP):
        try:
            plugins.load_entry_point(point, "noun")
        except ChessregError as error:
            failures.append(error.message)
    return tuple(failures)


def has_table(session: Session, table: Table) -> bool:
    """Return whether this registry contains `table`. A table of a package may not have been created yet."""
    if table.name in OWN_TABLES:
        return True
    known_tables: dict[str, bool] = session.info.setdefault(SEEN_TABLES_KEY, {})
    if table.name not in known_tables:
        known_tables[table.name] = inspect(session.connection()).has_table(table.name)
    return known_tables[table.name]


def find_missing_tables(session: Session) -> list[Table]:
    """Return the declared tables that this registry lacks, parents before children."""
    return [table for table in Base.metadata.sorted_tables if not has_table(session, table)]


def create_missing_tables(session: Session) -> None:
    """Create the missing tables of entities from installed packages, inside a writing transaction.

    Raises RegistryError if the database user may not create tables.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg ingest'))"))
    tables = find_missing_tables(session)
    try:
        Base.metadata.create_all(session.connection(), tables)  # skips tables created by another process meanwhile
    except DBAPIError as error:
        names = ", ".join(table.name for table in tables)
        raise RegistryError(
            f"the tables {names} cannot be created: {get_first_line(error.orig or error)}",
            "run `chessreg db upgrade` as a database user that may create tables",
        ) from error
    session.info.pop(SEEN_TABLES_KEY, None)
