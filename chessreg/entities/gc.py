"""Removing bytes that nothing needs: first into a bin inside the store, where they can be taken back, then for good.

Rows are never removed. What counts as a reference is everything registered that is not archived: a run's outputs and
caches, checkpoints and datasets, and all that these were made from.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from chessreg.registry import lineage, names, tables
from chessreg.registry.database import Database
from chessreg.runs import transfer

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from store import Store

BIN = "bin"
LOGS = "jobs"  # of a run's folder: the logs of its jobs stay
DAY = 86_400.0
YOUNG = 3600.0  # seconds: what was written so lately may be about to be registered


@dataclass(frozen=True)
class Rubbish:
    """Bytes that nothing needs. `path` is below the store's root."""

    path: str
    what: str
    why: str
    bytes: int


def find(database: Database, store: Store, *, now: float | None = None) -> list[Rubbish]:
    """Artefacts and arrays in the store that nothing registered needs, or only archived things; scratch of complete
    runs. Nothing younger than an hour, so that what is being written is left alone."""
    now = time.time() if now is None else now
    with database.read() as session:
        needed, archived = references(session)
        complete = set(session.scalars(select(tables.Run.id).where(tables.Run.completed_at.is_not(None))))
        waiting = {id.hex for id in session.scalars(select(tables.Run.id)) if id not in complete}
    rubbish = []
    places = [(folder, folder.name) for folder in sorted(store.artefacts.glob("??/*"))]
    places += [(folder, folder.name) for folder in sorted(store.arrays.iterdir())]
    for folder, key in places:
        if key in needed or not old(folder, now) or key.partition("-")[0] in waiting:
            continue
        why = f"only archived: {archived[key]}" if key in archived else "nothing registered refers to it"
        kind = "array" if folder.parent == store.arrays else "artefact"
        rubbish.append(Rubbish(str(folder.relative_to(store.root)), f"{kind} {key[:12]}", why, size(folder)))
    for folder in sorted(path for run in complete for path in (store.runs / run.hex).glob("*")):
        if folder.name != LOGS and old(folder, now):
            path, run = str(folder.relative_to(store.root)), folder.parent.name[-6:]
            rubbish.append(Rubbish(path, f"scratch of run {run}", "the run is complete", size(folder)))
    return rubbish


def old(folder: Path, now: float) -> bool:
    """Whether it was last written so long ago that whoever wrote it has had time to register it."""
    try:
        return folder.stat().st_mtime <= now - YOUNG
    except FileNotFoundError:
        return False


def references(session: Session) -> tuple[set[str], dict[str, str]]:
    """Keys of bytes (digests, names of arrays) that are needed; and of those that only archived things need, which."""
    now = names.NOW.c
    shelved = {
        lineage.node_of_target(noun, target)
        for noun, target in session.execute(select(now.noun, now.target).where(now.word == tables.Word.ARCHIVE.value))
    }
    nodes = [lineage.Node("run", id.hex) for id in session.scalars(select(tables.Run.id).order_by(tables.Run.id))]
    for table in lineage.things(session).values():
        nodes += [node for node in map(lineage.node_of, session.scalars(select(table))) if node.noun != "run"]
    live = {node for node in nodes if node not in shelved}
    frontier = set(live)
    while frontier:  # an archived thing that a live one was made from is needed too
        edges = lineage.parents(session, frontier)
        frontier = {edge.node for at in frontier for edge in edges[at]} - live
        live |= frontier
    needed = {item.array or item.digest for item in transfer.items(session, live)}
    needed |= set(session.scalars(select(tables.OpeningBook.digest)))
    needed |= set(session.scalars(select(tables.RunInput.digest).where(tables.RunInput.source_run_id.is_(None))))
    archived = {
        item.array or item.digest: f"{node.noun} {node.id[-6:]}"
        for node in nodes
        if node not in live
        for item in transfer.items_of(session, node)
    }
    return needed, {key: who for key, who in archived.items() if key not in needed}


def remove(store: Store, rubbish: list[Rubbish]) -> int:
    """Move these into the bin; returns the bytes. `restore` takes them back until `empty` removes them for good.

    What is gone already, by hand or by another's `gc`, is passed over.
    """
    store.require_writable()
    moved = 0
    folder = store.root / BIN / time.strftime("%Y%m%dT%H%M%S")
    for item in rubbish:
        target = folder / item.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (store.root / item.path).rename(target)
            moved += item.bytes
    return moved


def binned(store: Store) -> list[Rubbish]:
    """What is in the bin."""
    return [
        Rubbish(str(path.relative_to(store.root)), path.name[:12], f"removed {time_of(path, store)}", size(path))
        for path in in_bin(store)
    ]


def restore(store: Store, only: str | None = None) -> list[Rubbish]:
    """Put what is in the bin (`only`: this path below the store's root) back where it was; what is there again
    meanwhile stays as it is."""
    back = []
    for path, item in zip(in_bin(store), binned(store), strict=True):
        target = store.root / was_at(path, store)
        if not target.exists() and only in (None, was_at(path, store)):
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            back.append(item)
    return back


def empty(store: Store, older_than: float) -> int:
    """Remove for good what has been in the bin for so many seconds; returns the bytes."""
    store.require_writable()
    gone = 0
    for folder in sorted((store.root / BIN).glob("*")):
        if time.time() - time.mktime(time.strptime(folder.name, "%Y%m%dT%H%M%S")) >= older_than:
            gone += size(folder)
            shutil.rmtree(folder)
    return gone


def was_at(path: Path, store: Store) -> str:
    """Where something in the bin was, below the store's root."""
    return Path(*path.relative_to(store.root / BIN).parts[1:]).as_posix()


def time_of(path: Path, store: Store) -> str:
    stamp = path.relative_to(store.root / BIN).parts[0]
    return time.strftime("%Y-%m-%d %H:%M", time.strptime(stamp, "%Y%m%dT%H%M%S"))


def in_bin(store: Store) -> list[Path]:
    """The folders in the bin."""
    patterns = ("*/artefacts/??/*", "*/arrays/*", "*/runs/*/*")
    return sorted(path for pattern in patterns for path in (store.root / BIN).glob(pattern))


def size(folder: Path) -> int:
    """Bytes of a file, or of all files below a folder; those that vanish meanwhile do not count."""
    size_bytes = 0
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            size_bytes += path.stat().st_size if path.is_file() else 0
    return size_bytes
