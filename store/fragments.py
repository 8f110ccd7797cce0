"""Fragments: the one write path. A worker's rows go to files of their own; one ingest per registry reads them later.

Killing a worker at any moment leaves each fragment whole or absent, and a damaged fragment is refused as a whole. Rows
of a unit that must not be torn apart are added inside `with writer.together()`. After a crash of the ingest a fragment
may be read again: ingest is idempotent by result key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from store.errors import CorruptError, NotInStoreError
from store.files import explained, fsync_path, safe_name, write_synced
from store.fragment_file import SUFFIX, Fragment, Rows, place
from store.fragment_writer import FragmentWriter, Together

if TYPE_CHECKING:
    from store.store import Store

__all__ = [
    "Fragment",
    "FragmentWriter",
    "Rows",
    "Together",
    "adopt",
    "ingested",
    "mark_ingested",
    "pending",
    "quarantine",
    "read_or_quarantine",
]


def pending(store: Store) -> list[Fragment]:
    """Fragments that wait to be ingested, ordered by creation."""
    return _fragments(store.incoming)


def ingested(store: Store, run_id: str | None = None) -> list[Fragment]:
    """Fragments that were ingested and kept, of one run or of all, ordered by creation."""
    folders = store.ingested.iterdir() if run_id is None else [store.ingested / safe_name("run id", run_id)]
    found = [fragment for folder in folders if folder.is_dir() for fragment in _fragments(folder)]
    return sorted(found, key=lambda fragment: fragment.name)


def mark_ingested(store: Store, fragment: Fragment, *, keep: bool = True) -> None:
    """Take a fragment out of the queue: to `ingested/<run id>/`, or away for good. A second time is no error."""
    store.require_writable()
    with explained(f"mark fragment {fragment.name} as ingested"):
        try:
            if not keep:
                fragment.path.unlink()
                return
            folder = store.ingested / fragment.run_id
            folder.mkdir(exist_ok=True)
            fragment.path.rename(folder / fragment.name)
            fsync_path(folder)
        except FileNotFoundError:
            pass


def quarantine(store: Store, fragment: Fragment, reason: str) -> Path:
    """Set a fragment aside as it is, with its reason in `<name>.reason.txt`; returns where it lies now."""
    store.require_writable()
    target = store.quarantine / fragment.name
    with explained(f"quarantine fragment {fragment.name}"):
        write_synced(target.with_name(target.name + ".reason.txt"), reason.encode() + b"\n")
        if fragment.path.exists():
            fragment.path.rename(target)
        fsync_path(store.quarantine)
    return target


def read_or_quarantine(store: Store, fragment: Fragment) -> list[tuple[str, Rows]] | None:
    """The rows of a fragment; None if it is damaged, which sets it aside, or if another ingest took it meanwhile."""
    try:
        return list(fragment.read())
    except CorruptError as error:
        quarantine(store, fragment, error.message)
    except NotInStoreError:
        pass
    return None


def adopt(store: Store, path: Path) -> Fragment | None:
    """Copy a fragment of another store into `incoming/`; None if this store has or had it. Raises CorruptError."""
    store.require_writable()
    fragment = Fragment.at(path)
    if (store.incoming / fragment.name).exists() or (store.ingested / fragment.run_id / fragment.name).exists():
        return None
    fragment.header()
    with explained(f"copy fragment {fragment.name}"):
        place(store, path.read_bytes(), store.incoming / fragment.name)
    return Fragment.at(store.incoming / fragment.name)


def _fragments(folder: Path) -> list[Fragment]:
    return [Fragment.at(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
