"""Bytes on their way to a machine without the store, and home."""

from __future__ import annotations

import pytest

from chessreg.experiments.probe import ProbeSpec
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.urls import place_of
from chessreg.runs.kind import kind
from chessreg.runs.resolve import identified
from chessreg.scheduling import parcels
from store import Store
from store.errors import CorruptError


@pytest.fixture
def order(world_session):
    """Of a probe on the world's cache."""
    inputs = world_session.inputs
    spec, _ = identified(kind("probe"), ProbeSpec(cache="reference-fit"), inputs)
    return {"source": "probe", "spec": spec.model_dump(mode="json")}


@pytest.fixture
def node(tmp_path):
    return parcels.StoreShelf(Store.create(tmp_path / "node"))


def files(store: Store) -> dict[str, bytes]:
    kept = [path for part in (store.artefacts, store.arrays) for path in part.rglob("*") if path.is_file()]
    return {path.relative_to(store.root).as_posix(): path.read_bytes() for path in kept}


def test_what_a_work_needs_goes_over_in_pieces_and_is_the_same_there(world_session, order, node, monkeypatch):
    monkeypatch.setattr(parcels, "CHUNK", 1000)
    home = parcels.StoreShelf(world_session.store)
    items = parcels.needed(world_session.database, world_session.store, order)
    kinds = {item.what.split()[0] for item in items}
    assert {"activations", "dataset", "checkpoint"} <= kinds, "the cache, and what it was made from"
    for item in items:
        parcels.carry(home, node, item)
    there, here = files(node.store), files(world_session.store)
    assert there.items() <= here.items()
    assert all(node.has(item) for item in items)
    assert not list(node.store.tmp.iterdir())
    before = dict(there)
    for item in items:
        parcels.carry(home, node, item)
    assert files(node.store) == before


def test_a_piece_that_arrives_twice_or_damaged(world_session, order, node):
    home = parcels.StoreShelf(world_session.store)

    class Twice(parcels.StoreShelf):
        def receive(self, box, name, offset, data):
            super().receive(box, name, offset, data)
            super().receive(box, name, offset, data)

    class Damaged(parcels.StoreShelf):
        def receive(self, box, name, offset, data):
            super().receive(box, name, offset, bytes(len(data)) if name.endswith(".safetensors") else data)

    item = next(i for i in parcels.needed(world_session.database, world_session.store, order) if "checkpoint" in i.what)
    with pytest.raises(CorruptError):
        parcels.carry(home, Damaged(node.store), item)
    assert not node.has(item)
    parcels.carry(home, Twice(node.store), item)
    assert node.has(item)


def test_a_snapshot_is_whole_while_others_write(world_session, tmp_path):
    path = place_of(world_session.database.url).path
    assert path
    with world_session.database.write() as session:
        before = session.query(tables.Run).count()
        parcels.unpack_registry(parcels.snapshot(path, tmp_path / "aside"), tmp_path / "copy.db")
    with Database.open(str(tmp_path / "copy.db"), create=False) as copy, copy.read() as session:
        assert session.query(tables.Run).count() == before > 0
    assert not (tmp_path / "aside").exists()
