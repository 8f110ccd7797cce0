"""Deliberate faults, which the rounds must find: a suite that cannot fail proves nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from earlier import emit_group
from homes import Home

from chessreg.experiments import cache
from chessreg.registry import engines, sqlite
from chessreg.runs import ingest, trust
from chessreg.runs.task import Task
from chessreg.scheduling import launch
from store import artifacts, places
from store.errors import CorruptError
from store.files import sync_path, write_synced


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
    if not hasattr(engines._create_sqlite_engine, "deferred"):
        real = engines._create_sqlite_engine

        def sqlite(place: Any, connect: Any, begin: str, pool: Any = None) -> Any:
            return real(place, connect, "DEFERRED", pool)

        sqlite.deferred = True  # type: ignore[attr-defined]
        engines._create_sqlite_engine = sqlite


def rename_before_verify(home: Home) -> None:
    """An artifact is to be seen before its bytes were read back."""
    artifacts.ArtifactStore.publish = publish  # type: ignore[method-assign]


def publish(store: Any, folder: Path, expect: str | None = None) -> artifacts.StoredArtifact:
    files = artifacts._list_entries(folder)
    digest = artifacts._digest_entries(files)
    target = store._make_target_path(digest)
    if (known := store._find_undamaged(digest)) is not None:
        artifacts.discard_path(folder)
        return known
    kind, total = artifacts.get_staged_kind(folder), sum(size for _, size, _ in files)
    record = {"chessreg_artifact": 1, "digest": digest, "kind": kind, "bytes": total, "files": files}
    write_synced(folder / artifacts.MANIFEST, json.dumps(record).encode())
    artifacts.sync_tree(folder)
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        target.rename(artifacts.make_staging_path(store.tmp, "damaged"))
    folder.rename(target)
    sync_path(target.parent)
    if artifacts._list_entries(target, from_disk=True) != files:
        raise CorruptError("the disk returned other bytes than were written")
    return store.artifact(digest)


def no_fsync(home: Home) -> None:
    """Nothing is forced to the disk."""

    class Unsynced:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fsync(self, handle: int) -> None:
            pass

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("store", "chessreg") and getattr(module, "os", None) is os:
            module.os = Unsynced()  # type: ignore[attr-defined]


def synchronous_off(home: Home) -> None:
    """SQLite does not flush its commits."""
    sqlite.read_synchronous_mode = lambda: "OFF"


def false_digest(home: Home) -> None:
    """The registry records another digest of a group of activations than its own."""
    real = Task.record
    if real.__module__ == __name__:
        return

    def record(self: Any, table: str, *, of_unit: int | None = None, **columns: Any) -> None:
        if table == "activation_cache":
            columns["digest"] = columns["digest"][::-1]
        real(self, table, of_unit=of_unit, **columns)

    Task.record = record  # type: ignore[method-assign]


def conflicts_swallowed(home: Home) -> None:
    """Rows that differ from existing ones are dropped silently."""
    ingest.compare_rows = lambda *_: None


def group_before_units(home: Home) -> None:
    """The row of a group goes out at once, and its units one by one."""

    def record_group(task: Any, path: Path, points: list[str], checkpoint: Any, low: int, high: int) -> None:
        emit_group(task, path, points, checkpoint, low, high)
        for unit in range(low, high):
            task.flush()
            task.done(unit)

    cache.record_activation_group = record_group
    cache.resume_groups = lambda *_: set()


def no_path_check(home: Home) -> None:
    """A manifest of another store is believed."""

    def read(self: Any, key: str) -> Any:
        yield (self.store.root / key).read_bytes()

    artifacts.format_safe_path = str
    places.FolderPlace._read = read  # type: ignore[method-assign]


def kind_from_store(home: Home) -> None:
    """The file of a kind is loaded from any path that a registry names."""
    trust.read_trusted_file = lambda path: (path, path.read_bytes())


def queue_check_before(home: Home) -> None:
    """Whether a spec is queued is asked before the transaction that queues it."""
    launch.get_current_status = lambda session, planned: planned.status


def log_of_old_library(home: Home) -> None:
    """An old library writes a write-ahead log too."""
    sqlite.is_write_ahead_log_used = lambda network: not network


PLANTS: dict[str, Callable[[Home], None]] = {
    "no unique key": no_unique_key,
    "deferred BEGIN": deferred_begin,
    "rename before verify": rename_before_verify,
    "no fsync": no_fsync,
    "synchronous=OFF": synchronous_off,
    "false digest of a group": false_digest,
    "conflicts swallowed": conflicts_swallowed,
    "group before its units": group_before_units,
    "no path check": no_path_check,
    "kind loaded from a store": kind_from_store,
    "queue check before its transaction": queue_check_before,
    "log of an old library": log_of_old_library,
}
