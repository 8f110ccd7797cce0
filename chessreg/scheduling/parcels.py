"""What a machine without this store needs to do a work, and how what it made comes home.

There: the order, a copy of the registry (SQLite; PostgreSQL is reached from there), the bytes of the inputs. Home: the
bytes that a fragment speaks of, then the fragment, which goes in as any other does.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chessreg.registry.identity import uuid_of
from chessreg.runs.transfer import Item

if TYPE_CHECKING:
    from chessreg.registry.database import Database
    from store import Store
    from store.fragments import Fragment

CHUNK = 16 << 20  # bytes in one message


class Shelf(Protocol):
    """The bytes of a store, as another machine asks for them."""

    def has(self, item: Item) -> bool: ...
    def files(self, item: Item) -> list[tuple[str, int]]: ...
    def read(self, item: Item, name: str, offset: int) -> bytes: ...
    def receive(self, box: str, name: str, offset: int, data: bytes) -> None: ...
    def keep(self, box: str, item: Item) -> None: ...


class StoreShelf:
    """The shelf of a store on this machine. What it receives lies in a box in `tmp/` until it is whole and verified."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def has(self, item: Item) -> bool:
        return item.here(self.store)

    def files(self, item: Item) -> list[tuple[str, int]]:
        """Every file of an item: its path in the store, and its bytes."""
        root = self.store.root
        found = (path for path in (root / place_of(item)).rglob("*") if path.is_file())
        return sorted((path.relative_to(root).as_posix(), path.stat().st_size) for path in found)

    def read(self, item: Item, name: str, offset: int) -> bytes:
        with (self.store.root / name).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK)

    def receive(self, box: str, name: str, offset: int, data: bytes) -> None:
        path = self._box(box) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.seek(offset)
            file.write(data)

    def keep(self, box: str, item: Item) -> None:
        """Take a whole item out of its box. Raises CorruptError when it is not what its digest says."""
        from store import Store
        from store.places import Folder
        from store.staging import discard

        folder = self._box(box)
        if not self.has(item):
            source = Folder(Store.create(folder))
            if item.array is not None:
                source.get_array(self.store, item.array, item.digest)
            else:
                source.get_artefact(self.store, item.digest)
        discard(folder)

    def _box(self, box: str) -> Path:
        from store.staging import hostname

        return self.store.tmp / f"parcel~{hostname()}~{os.getpid()}~{box}"


def place_of(item: Item) -> str:
    return f"arrays/{item.array}" if item.array is not None else f"artefacts/{item.digest[:2]}/{item.digest}"


def carry(source: Shelf, target: Shelf, item: Item) -> None:
    """Copy an item from shelf to shelf in pieces, unless it is there. Whatever is lost on the way can be sent again."""
    if target.has(item):
        return
    box = os.urandom(8).hex()
    for name, size in source.files(item):
        offset = 0
        while True:
            data = source.read(item, name, offset)
            target.receive(box, name, offset, data)
            offset += len(data)
            if offset >= size or not data:
                break
    target.keep(box, item)


def needed(database: Database, store: Store, order: dict[str, Any]) -> list[Item]:
    """The bytes that an order's work may read: of its inputs, and (without activations) of what these come from."""
    from chessreg.registry import lineage, tables
    from chessreg.runs import transfer
    from chessreg.runs.kind import kind
    from chessreg.runs.resolve import references
    from chessreg.runs.transfer import items_of

    found: dict[str, Item] = {}
    for reference in references(kind(order["source"]).spec(**order["spec"])).values():
        found |= {item.digest: item for item in transfer.items_behind(database, reference)}
        with database.read() as session:
            if reference.startswith("run:"):
                runs = [lineage.Node("run", uuid_of(reference.removeprefix("run:").partition("/")[0]).hex)]
            else:
                rows = session.query(tables.Checkpoint).filter_by(artefact=reference.removeprefix("sha256:"))
                runs = [lineage.node_of(row) for row in rows]
            for node in (above for run in runs for above in lineage.nodes(lineage.tree(session, run, up=True))):
                found |= {item.digest: item for item in items_of(session, node) if item.array is None}
    return [item for item in found.values() if item.here(store)]


def made(fragment: Fragment) -> list[Item]:
    """The bytes that a fragment's rows speak of."""
    found = []
    for family, rows in fragment.read():
        for row in rows:
            if family == "artefact":
                found.append(Item(row["digest"], str(row["kind"]), row["bytes"]))
            elif family == "activation_cache":
                name = row["path"].removeprefix("arrays/")
                found.append(Item(row["digest"], "activations", row["bytes"], array=name))
    return found


def snapshot(path: Path, aside: Path) -> bytes:
    """A SQLite registry as it is now, whole, while others write to it; packed. `aside` is a path to write to."""
    import zstandard

    source, copy = sqlite3.connect(f"file:{path}?mode=ro", uri=True), sqlite3.connect(aside)
    try:
        source.backup(copy)
        copy.close()
        return zstandard.ZstdCompressor(level=1, threads=-1).compress(aside.read_bytes())
    finally:
        source.close()
        copy.close()
        aside.unlink(missing_ok=True)


def unpack_registry(packed: bytes, path: Path) -> None:
    import zstandard

    path.write_bytes(zstandard.ZstdDecompressor().decompress(packed))
