"""Tables of nouns that installed packages bring, behind entry points of the group `chessreg.entities`.

They are imported when first needed. A registry gets their tables from what writes: ingest, merge, `chessreg init` and
`chessreg db upgrade`. What reads does without those that are not there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from chessreg import plugins
from chessreg.errors import ChessregError, RegistryError, first_line
from chessreg.registry.tables import OWN_TABLES, Base

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.orm import Session

ENTRY_POINT_GROUP = "chessreg.entities"
SEEN_TABLES_KEY = "tables of packages"  # in a session: name → whether it is here


@functools.cache
def load_package_nouns() -> tuple[str, ...]:
    """Import every noun that a package brings. Returns why those cannot be loaded that cannot."""
    failed = []
    for point in plugins.points(ENTRY_POINT_GROUP):
        try:
            plugins.load(point, "noun")
        except ChessregError as error:
            failed.append(error.message)
    return tuple(failed)


def has_table(session: Session, table: Table) -> bool:
    """Whether this registry has a table: one of a package may not be made yet."""
    if table.name in OWN_TABLES:
        return True
    seen: dict[str, bool] = session.info.setdefault(SEEN_TABLES_KEY, {})
    if table.name not in seen:
        seen[table.name] = inspect(session.connection()).has_table(table.name)
    return seen[table.name]


def find_missing_tables(session: Session) -> list[Table]:
    """The tables of packages' nouns that this registry lacks, parents first."""
    return [table for table in Base.metadata.sorted_tables if not has_table(session, table)]


def create_missing_tables(session: Session) -> None:
    """Make those tables, in a transaction that writes. Raises RegistryError when the database does not permit it."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("select pg_advisory_xact_lock(hashtext('chessreg ingest'))"))
    wanted = find_missing_tables(session)
    try:
        Base.metadata.create_all(session.connection(), wanted)  # but those that another process has made since
    except DBAPIError as error:
        names = ", ".join(table.name for table in wanted)
        raise RegistryError(
            f"the registry cannot have a table {names}: {first_line(error.orig or error)}",
            "as a user who may create tables: chessreg db upgrade",
        ) from error
    session.info.pop(SEEN_TABLES_KEY, None)
