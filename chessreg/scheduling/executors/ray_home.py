"""An actor on the supervisor's machine: its store, registry and folders of works, for nodes of Ray that lack them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.scheduling import parcels
from chessreg.scheduling.worker import read

if TYPE_CHECKING:
    from store import Store


class Home:
    """The supervisor's store and registry, for shards elsewhere. Every call may come twice and does its thing once."""

    def __init__(self, store: str, registry: str) -> None:
        from store import Store

        self.registry = registry
        self.store: Store = Store(store)
        self.shelf = parcels.StoreShelf(self.store)

    def parcel(self, folder: str) -> tuple[list[Any], str | bytes]:
        """What a work needs: its items, and the registry: a URL, or the packed bytes of one in a file."""
        from chessreg.registry.database import Database
        from chessreg.registry.urls import place_of
        from store.staging import staging_path

        order = read(Path(folder) / "work.json")
        with Database.open(self.registry, create=False) as database:
            items = parcels.needed(database, self.store, order) if order else []
        path = place_of(self.registry).path
        return items, self.registry if path is None else parcels.snapshot(
            path, staging_path(self.store.tmp, "registry")
        )

    def shelve(self, verb: str, *arguments: Any) -> Any:
        return getattr(self.shelf, verb)(*arguments)

    def fragment(self, name: str, data: bytes, attempt: str | None, items: list[Any]) -> None:
        """Take in a fragment of which all bytes are here, and say that they are."""
        from store.fragments import Fragment, place

        incoming = self.store.incoming / name
        run_id = Fragment.at(incoming).run_id
        if not incoming.exists() and not (self.store.ingested / run_id / name).exists():
            place(self.store, data, incoming)
        if attempt and items:
            self._located(run_id, attempt, items)

    def _located(self, run_id: str, attempt: str, items: list[Any]) -> None:
        from chessreg.registry import provenance
        from chessreg.registry.tables.types import utc_now
        from chessreg.runs.attempt import plain
        from store.fragments import FragmentWriter

        machine = provenance.this_machine()
        with FragmentWriter(self.store, run_id, attempt) as writer:
            writer.add("machine", plain(machine))
            for item in items:
                if item.array is None:
                    uri = str(self.store.path(item.digest))
                    row = {"digest": item.digest, "uri": uri, "machine_id": machine["id"], "verified_at": utc_now()}
                    writer.add("artefact_location", plain(row))


class Folders:
    """Files in folders of works at home: part of every home, also of works that have no store."""

    def size(self, path: str) -> int:
        return Path(path).stat().st_size if Path(path).exists() else 0

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Bytes at their place in a file that grows."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.seek(offset)
            file.write(data)

    def replace(self, path: str, data: bytes) -> None:
        """A small file, whole or not at all."""
        aside = Path(f"{path}.{os.getpid()}")
        aside.write_bytes(data)
        aside.replace(path)

    def content(self, path: str) -> bytes | None:
        return Path(path).read_bytes() if Path(path).exists() else None


class HomeActor(Folders):
    """Folders, and the store and registry of each order that comes along."""

    def __init__(self) -> None:
        self.homes: dict[tuple[str, str], Home] = {}

    def at(self, store: str, registry: str, verb: str, *arguments: Any) -> Any:
        key = store, registry
        if key not in self.homes:
            self.homes[key] = Home(store, registry)
        return getattr(self.homes[key], verb)(*arguments)


class Far:
    """A home's store from a shard's side."""

    def __init__(self, actor: Any, store: str, registry: str) -> None:
        self.actor, self.store, self.registry = actor, store, registry

    def call(self, verb: str, *arguments: Any) -> Any:
        import ray

        return ray.get(self.actor.at.remote(self.store, self.registry, verb, *arguments))

    def has(self, item: Any) -> bool:
        return bool(self.call("shelve", "has", item))

    def files(self, item: Any) -> list[tuple[str, int]]:
        return list(self.call("shelve", "files", item))

    def read(self, item: Any, name: str, offset: int) -> bytes:
        return bytes(self.call("shelve", "read", item, name, offset))

    def receive(self, box: str, name: str, offset: int, data: bytes) -> None:
        self.call("shelve", "receive", box, name, offset, data)

    def keep(self, box: str, item: Any) -> None:
        self.call("shelve", "keep", box, item)
