"""Activation caches as files: whether their bytes are still what was published."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.registry import names, tables
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from chessreg.registry.database import Database
    from store import Store


def verify_cache(database: Database, store: Store, reference: str) -> dict[str, Any]:
    """Read every byte of a cache again: run_id, groups, rows, bytes (of chunk files), seconds.

    Raises NotFoundError when it is no cache or its bytes are elsewhere, CorruptError naming the chunk that changed.
    """
    from store.arrays import Group
    from store.errors import CorruptError

    with database.read() as session:
        run_id: UUID = names.resolve(session, "cache", reference)
        rows = session.scalars(
            select(tables.ActivationCache)
            .where(tables.ActivationCache.run_id == run_id)
            .order_by(tables.ActivationCache.start)
        ).all()
        session.expunge_all()
    inputs, began = Inputs(database, store), time.monotonic()
    for row in rows:
        place = store.root / row.path
        if not place.exists():
            inputs.located(
                "cache", f"run:{run_id.hex}", row.digest, run_id, array=row.path.removeprefix("arrays/")
            )  # pulls, or says what is missing, and where to look
        group = Group(place)
        group.verify()
        if group.digest != row.digest:
            raise CorruptError(f"{row.path} is not the group that the registry knows", "chessreg doctor")
    if not rows:
        raise NotFoundError(f"run {reference} has made no cache", "chessreg cache list")
    return {
        "run_id": run_id,
        "groups": len(rows),
        "rows": sum(row.rows for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "seconds": time.monotonic() - began,
    }
