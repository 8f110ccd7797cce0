"""Runs the revisions in migrations/ on one registry. chessreg calls this through chessreg.registry.migrations."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, TypeDecorator, text

from chessreg.registry.engines import allow_connections, create_writer_engine
from chessreg.registry.migrations import UPGRADE_LOCK_SQL, VERSION_TABLE
from chessreg.registry.tables import Base
from chessreg.registry.tables.types import Json


def render_item(kind: str, item: Any, autogen_context: Any) -> str | bool:
    """Render chessreg's column types as SQLAlchemy's own, so that a revision does not depend on chessreg's code."""
    if kind != "type":
        return False
    if isinstance(item, Json):
        autogen_context.imports.add("from sqlalchemy.dialects import postgresql")
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    if not type(item).__module__.startswith("chessreg."):
        return False
    if isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    base = next(each for each in type(item).__mro__ if each.__module__.startswith("sqlalchemy."))
    return f"sa.{base.__name__}{repr(item).removeprefix(type(item).__name__)}"


def run(connection: Connection) -> None:
    """All missing revisions in one transaction, by one process at a time: the others wait, and find nothing to do."""
    sqlite = connection.dialect.name == "sqlite"
    # A batch migration drops and rebuilds tables: with foreign keys on, ON DELETE CASCADE would empty their children.
    # The pragma does nothing inside a transaction, so it goes to the raw connection before one begins.
    raw: Any = connection.connection.dbapi_connection
    if sqlite:
        raw.execute("PRAGMA foreign_keys=OFF")
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        render_as_batch=sqlite,
        compare_type=True,
        compare_server_default=True,
        transactional_ddl=True,
        render_item=render_item,
        autogenerate_plugins=["alembic.autogenerate.*", "alembic.ext.checkconstraint_byname"],
    )
    try:
        with context.begin_transaction():
            if not sqlite:
                connection.execute(text(UPGRADE_LOCK_SQL))
            context.run_migrations()
            if sqlite and (violations := connection.execute(text("PRAGMA foreign_key_check")).fetchall()):
                raise RuntimeError(
                    f"rows of {violations[0][0]} would refer to rows of {violations[0][2]} that are not there"
                )
    finally:
        if sqlite:
            raw.execute("PRAGMA foreign_keys=ON")


place, engine = context.config.attributes["place"], context.config.attributes.get("engine")
with allow_connections(place, create=True):
    engine = engine or create_writer_engine(place)
    with engine.connect() as connection:
        run(connection)
    engine.dispose()
