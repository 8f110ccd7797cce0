"""Garbage collection: move unused bytes to a bin in the store, restore them from it, or delete them permanently.

Rows are never removed. Everything registered and not archived is in use, with all its inputs: outputs and
caches of runs, checkpoints and datasets.
"""

from __future__ import annotations

import calendar
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from chessreg.games.datasets.dataset import REPORT_FILE
from chessreg.registry import lineage, names, tables
from chessreg.registry.database import Database
from chessreg.runs import transfer
from store.corpora import RUNS_FOLDER
from store.errors import StoreError
from store.files import read_json, remove_staging

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from store import Store

BIN_FOLDER = "bin"
LOGS_FOLDER = "jobs"  # subfolder of a run's folder; job logs are kept
SECONDS_PER_DAY = 86_400.0
BIN_TIME_FORMAT = "%Y%m%dT%H%M%SZ"  # UTC time in the names of the bin's folders
FRAGMENT_DAYS = 30  # a registry restored from a younger backup can be completed from the fragments
REHEARSAL_DAYS = 1
MIN_AGE_S = 3600.0  # younger bytes may be about to be registered


@dataclass(frozen=True)
class UnusedBytes:
    """Unused bytes. `path` is relative to the store's root."""

    path: str
    what: str
    why: str
    bytes: int


def find_unused(database: Database, store: Store, *, now: float | None = None) -> list[UnusedBytes]:
    """Return the unused bytes of a store, those in `tmp/` last.

    Unused are artifacts and arrays that no fragment and no registered entity needs, or that only archived entities
    need; scratch of complete runs; fragments of complete runs that were ingested more than FRAGMENT_DAYS ago; training
    data that no unfinished run reads; and rehearsals that were not continued for REHEARSAL_DAYS. Bytes written within
    the last hour are skipped, because they may be about to be registered. Files in `tmp/` of ended processes are unused
    at any age. `now` is a Unix time in seconds.
    """
    now = time.time() if now is None else now
    waiting_keys = read_fragment_keys(
        store
    )  # read before the registry, so that a fragment ingested meanwhile is not missed
    with database.read() as session:
        needed_keys, archived_owners = find_used_keys(session)
        complete = set(session.scalars(select(tables.Run.id).where(tables.Run.completed_at.is_not(None))))
        incomplete_ids = {id.hex for id in session.scalars(select(tables.Run.id)) if id not in complete}
        archived_runs = {node.id for node in find_archived_nodes(session) if node.noun == "run"}
        ingested_names = set(session.scalars(select(tables.FragmentRecord.name)))
        datasets = session.execute(select(tables.Dataset.identity, tables.Dataset.artifact)).all()
    lost_ids = {identity for identity, digest in datasets if digest in needed_keys and not store.exists(digest)}
    unused_bytes = []
    places = [(folder, folder.name) for folder in sorted(store.artifacts.glob("??/*"))]
    places += [(folder, folder.name) for folder in sorted(store.arrays.iterdir())]
    for folder, key in places:
        if (
            key in needed_keys
            or key in waiting_keys
            or not is_old(folder, now)
            or key.partition("-")[0] in incomplete_ids
        ):
            continue
        if (
            lost_ids and read_dataset_identity(folder) in lost_ids
        ):  # a copy of a registered dataset whose own bytes are missing here
            continue
        reason = (
            f"only archived: {archived_owners[key]}" if key in archived_owners else "nothing registered refers to it"
        )
        kind = "array" if folder.parent == store.arrays else "artifact"
        unused_bytes.append(
            UnusedBytes(str(folder.relative_to(store.root)), f"{kind} {key[:12]}", reason, measure_size_bytes(folder))
        )
    for folder in sorted(path for run in complete for path in (store.runs / run.hex).glob("*")):
        if folder.name != LOGS_FOLDER and is_old(folder, now):
            path, run = str(folder.relative_to(store.root)), folder.parent.name[-6:]
            unused_bytes.append(
                UnusedBytes(path, f"scratch of run {run}", "the run is complete", measure_size_bytes(folder))
            )
    for folder in sorted(store.ingested / run.hex for run in complete):
        files = list(folder.glob("*"))
        if (
            files
            and is_old(folder, now - FRAGMENT_DAYS * SECONDS_PER_DAY)
            and ingested_names.issuperset(p.name for p in files)
        ):
            place, description = str(folder.relative_to(store.root)), f"imported fragments of run {folder.name[-6:]}"
            reason = f"the registry has their rows; only a backup of more than {FRAGMENT_DAYS} days ago lacks them"
            unused_bytes.append(UnusedBytes(place, description, reason, measure_size_bytes(folder)))
    for folder in sorted(store.corpora.glob("*")):
        readers = {path.name for path in (folder / RUNS_FOLDER).glob("*")}
        if is_old(folder, now) and not readers & (incomplete_ids - archived_runs):
            reason = "no unfinished run reads it, and it can be made again"
            path = str(folder.relative_to(store.root))
            unused_bytes.append(
                UnusedBytes(path, f"training data {folder.name[:12]}", reason, measure_size_bytes(folder))
            )
    for folder in sorted(store.rehearsals.glob("*")):
        if is_old(folder, now - REHEARSAL_DAYS * SECONDS_PER_DAY):
            path, reason = str(folder.relative_to(store.root)), f"it was not continued for {REHEARSAL_DAYS} day"
            unused_bytes.append(UnusedBytes(path, f"rehearsal {folder.name}", reason, measure_size_bytes(folder)))
    return unused_bytes + list_stale_staging(store)


def list_stale_staging(store: Store) -> list[UnusedBytes]:
    """Return the files of ended processes in the staging folder."""
    return [
        UnusedBytes(
            str(staging.path.relative_to(store.root)),
            f"unfinished {staging.kind}",
            f"process {staging.pid} on {staging.machine} has ended"
            if staging.is_gone
            else f"not written to for {staging.age / SECONDS_PER_DAY:.0f} days",
            measure_size_bytes(staging.path),
        )
        for staging in store.list_stale_staging()
    ]


def read_dataset_identity(folder: Path) -> str | None:
    """Return the identity of the dataset in an artifact, or None if the artifact is not a dataset."""
    try:
        return str(read_json(folder / REPORT_FILE)["identity"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def is_old(folder: Path, now: float) -> bool:
    """Return whether the folder was last written more than an hour before `now` (Unix time in seconds).

    Its writer then had enough time to register it.
    """
    try:
        return folder.stat().st_mtime <= now - MIN_AGE_S
    except FileNotFoundError:
        return False


def read_fragment_keys(store: Store) -> set[str]:
    """Return the texts in pending and quarantined fragments, which include their digests and array names.

    Unreadable fragments are skipped: their units run again.
    """
    from store.fragments import FRAGMENT_SUFFIX, Fragment

    keys = set[str]()
    for folder in (
        store.incoming,
        store.quarantine,
    ):  # in this order, so that a fragment quarantined meanwhile is not missed
        for path in folder.glob(f"*{FRAGMENT_SUFFIX}"):
            with suppress(StoreError):
                for _, rows in Fragment.from_path(path).read():
                    texts = (value for row in rows for value in row.values() if isinstance(value, str))
                    keys.update(text.removeprefix("arrays/") for text in texts)
    return keys


def find_archived_nodes(session: Session) -> set[lineage.Node]:
    """Return everything that is archived."""
    now = names.CURRENT_ANNOTATIONS.c
    archive_select = select(now.noun, now.target).where(now.word == tables.AnnotationWord.ARCHIVE.value)
    return {lineage.make_annotation_node(noun, target) for noun, target in session.execute(archive_select)}


def find_used_keys(session: Session) -> tuple[set[str], dict[str, str]]:
    """Return the keys (digests and array names) of bytes in use, and key → owner of bytes that only archived entities
    need.
    """
    archived_nodes = find_archived_nodes(session)
    nodes = [lineage.Node("run", id.hex) for id in session.scalars(select(tables.Run.id).order_by(tables.Run.id))]
    for table in lineage.list_tables_with_bytes(session).values():
        nodes += [node for node in map(lineage.make_node, session.scalars(select(table))) if node.noun != "run"]
    active_nodes = {node for node in nodes if node not in archived_nodes}
    frontier = set(active_nodes)
    while frontier:  # archived inputs of live entities are in use
        edges = lineage.read_parents(session, frontier)
        frontier = {edge.node for at in frontier for edge in edges[at]} - active_nodes
        active_nodes |= frontier
    needed_keys = {item.array or item.digest for item in transfer.collect_items(session, active_nodes)}
    needed_keys |= set(session.scalars(select(tables.OpeningBook.digest)))
    needed_keys |= set(session.scalars(select(tables.RunInput.digest).where(tables.RunInput.source_run_id.is_(None))))
    archived_owners = {
        item.array or item.digest: f"{node.noun} {node.id[-6:]}"
        for node in nodes
        if node not in active_nodes
        for item in transfer.list_node_items(session, node)
    }
    return needed_keys, {key: owner for key, owner in archived_owners.items() if key not in needed_keys}


def move_to_bin(store: Store, rubbish: list[UnusedBytes], now: float | None = None) -> int:
    """Move `rubbish` to the bin and return the number of bytes moved. Staging files are deleted instead.

    Bytes that were removed in the meantime are skipped. With `now`, as passed to `find_unused`, bytes that were
    published again since are skipped as well. `restore_from_bin` restores the bin, and `empty_bin` deletes it.
    """
    store.require_writable()
    moved_count = 0
    folder = store.root / BIN_FOLDER / time.strftime(BIN_TIME_FORMAT, time.gmtime())
    for item in rubbish:
        place, target = store.root / item.path, folder / item.path
        if place.parent == store.tmp:
            remove_staging(place)
            moved_count += item.bytes
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            place.rename(target)
            if now is not None and not is_old(target, now):  # checked after the move, when no process can find it
                with suppress(OSError):  # a new copy exists already
                    target.rename(place)
                continue
            moved_count += item.bytes
    return moved_count


def list_bin(store: Store) -> list[UnusedBytes]:
    """Return the contents of the bin."""
    return [
        UnusedBytes(
            str(path.relative_to(store.root)),
            path.name[:12],
            f"removed {format_bin_time(path, store)}",
            measure_size_bytes(path),
        )
        for path in list_bin_folders(store)
    ]


def restore_from_bin(store: Store, original_path: str | None = None) -> list[UnusedBytes]:
    """Move the contents of the bin back and return them.

    `original_path` restores one path, relative to the store's root. Paths that exist again in the store are
    kept as they are.
    """
    restored_bytes = []
    for path, item in zip(list_bin_folders(store), list_bin(store), strict=True):
        target = store.root / get_original_path(path, store)
        if not target.exists() and original_path in (None, get_original_path(path, store)):
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            restored_bytes.append(item)
    return restored_bytes


def empty_bin(store: Store, older_than: float) -> int:
    """Delete everything that has been in the bin for at least `older_than` seconds and return the number of bytes."""
    store.require_writable()
    removed_count = 0
    for folder in sorted((store.root / BIN_FOLDER).glob("*")):
        since = parse_bin_time(folder.name)
        if since is not None and time.time() - since >= older_than:
            removed_count += measure_size_bytes(folder)
            shutil.rmtree(folder)
    return removed_count


def parse_bin_time(name: str) -> float | None:
    """Return the Unix time at which a folder of the bin was made, or None for another name."""
    with suppress(ValueError, OverflowError):
        return float(calendar.timegm(time.strptime(name, BIN_TIME_FORMAT)))
    return None


def get_original_path(path: Path, store: Store) -> str:
    """Return the original path of something in the bin, relative to the store's root."""
    return Path(*path.relative_to(store.root / BIN_FOLDER).parts[1:]).as_posix()


def format_bin_time(path: Path, store: Store) -> str:
    """Return the local time at which something in the bin was removed."""
    since = parse_bin_time(path.relative_to(store.root / BIN_FOLDER).parts[0])
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(since))


def list_bin_folders(store: Store) -> list[Path]:
    """Return the paths inside the bin of everything that was moved there, sorted."""
    folders = [folder for folder in (store.root / BIN_FOLDER).glob("*") if parse_bin_time(folder.name) is not None]
    patterns = ("artifacts/??/*", "arrays/*", "runs/*/*", "corpora/*", "fragments/ingested/*", "rehearsals/*")
    return sorted(path for folder in folders for pattern in patterns for path in folder.glob(pattern))


def measure_size_bytes(folder: Path) -> int:
    """Return the bytes of a file or of all files below a folder. Files that disappear meanwhile are not counted."""
    size_bytes = 0
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            size_bytes += path.stat().st_size if path.is_file() else 0
    return size_bytes
