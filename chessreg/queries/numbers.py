"""Write and check the files of stored numbers (chessreg.queries.parts) of a whole registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from chessreg.errors import ChessregError
from chessreg.queries import duck, parts
from chessreg.queries.ask import build_question, run_query
from chessreg.queries.catalogue import list_entries
from chessreg.queries.question import SCORINGS
from chessreg.queries.scope import Scope

if TYPE_CHECKING:
    from chessreg.registry.database import Database


def find_differing_number_files(database: Database) -> Iterator[Path]:
    """Yield the files of current parts that cannot be read, or whose numbers differ from those of the results."""
    if not any(parts.find_numbers_folder(database).glob(f"*{parts.SUFFIX}")):
        return
    for entry in list_entries():
        for scoring in SCORINGS if entry.stored_names else ():
            question = build_question(database, entry, Scope(), scoring, None)
            until = duck.compute_deadline(None)
            listing = parts.list_query_parts(question, until)
            for part, path in parts.list_number_files(question, listing).items():
                if path.exists():
                    computed_parts = parts.compute_parts(question, listing, [part], until, use_mirror=False)
                    if parts.read_numbers(path) != computed_parts[part]:
                        yield path


def store_numbers(database: Database, run_id: UUID | None = None, timeout: float | None = None) -> None:
    """Write the missing files of the parts of all queries, or of those that show a run if it has many units.

    `timeout`: seconds per query. Does nothing if the registry or the folder cannot be written, or if a query fails.
    """
    import duckdb
    from sqlalchemy import select

    from chessreg.registry.tables import Run

    with suppress(ChessregError, OSError, duckdb.Error):
        if database.read_only:
            return
        many = select(Run.kind).distinct().where(Run.completed_at.is_not(None), Run.units >= parts.LONG_RUN_UNITS)
        with database.read() as session:
            kinds = set(session.scalars(many if run_id is None else many.where(Run.id == run_id)))
        for entry in list_entries():
            if entry.stored_names and not kinds.isdisjoint(entry.kinds):
                run_query(database, entry, timeout=timeout)


if __name__ == "__main__":  # started by the supervisor, for the registry in CHESSREG_REGISTRY
    from chessreg.registry.database import Database

    with Database.open(None, create=False) as database:
        store_numbers(database, timeout=3600)
