"""Faults of our own making, which the rounds must find: a suite that cannot fail proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from homes import Home

from chessreg.registry import engines
from store import artefacts
from store.errors import CorruptError
from store.files import fsync_path, write_synced


def no_unique_key(home: Home) -> None:
    """The table of metric points has no key."""
    with home.open() as session, session.database.write() as sql:
        connection = sql.connection()
        if home.backend == "postgresql":
            connection.exec_driver_sql("ALTER TABLE metric_point DROP CONSTRAINT pk_metric_point")
            return
        connection.exec_driver_sql("CREATE TABLE without_key AS SELECT * FROM metric_point")
        connection.exec_driver_sql("DROP TABLE metric_point")
        connection.exec_driver_sql("ALTER TABLE without_key RENAME TO metric_point")


def deferred_begin(home: Home) -> None:
    """Transactions that write begin without the write lock."""
    if not hasattr(engines._sqlite, "deferred"):
        real = engines._sqlite

        def sqlite(place: Any, connect: Any, begin: str, pool: Any = None) -> Any:
            return real(place, connect, "DEFERRED", pool)

        sqlite.deferred = True  # type: ignore[attr-defined]
        engines._sqlite = sqlite


def rename_before_verify(home: Home) -> None:
    """An artefact is to be seen before its bytes were read back."""
    artefacts.publish = publish


def publish(store: Any, folder: Path, expect: str | None = None) -> artefacts.Artefact:
    files = artefacts._manifest(folder)
    digest = artefacts._digest(files)
    target = artefacts._target(store, digest)
    if artefacts._intact(store, digest):
        artefacts.discard(folder)
        return artefacts.describe(store, digest)
    kind, total = artefacts.staged_kind(folder), sum(size for _, size, _ in files)
    record = {"chessreg_artefact": 1, "digest": digest, "kind": kind, "bytes": total, "files": files}
    write_synced(folder / artefacts.MANIFEST, json.dumps(record).encode())
    artefacts.fsync_tree(folder)
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        target.rename(artefacts.staging_path(store.tmp, "damaged"))
    folder.rename(target)
    fsync_path(target.parent)
    if artefacts._manifest(target, from_disk=True) != files:
        raise CorruptError("the disk returned other bytes than were written")
    return artefacts.describe(store, digest)


PLANTS: dict[str, Callable[[Home], None]] = {
    "no unique key": no_unique_key,
    "deferred BEGIN": deferred_begin,
    "rename before verify": rename_before_verify,
}
