"""Transfer of inputs to a machine without the store, and of outputs back: properties that need no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from chessreg.experiments.probe import ProbeSpec
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.runs.kind import find_kind
from chessreg.runs.resolve import resolve_and_hash
from chessreg.runs.transfer import fetch_item
from chessreg.scheduling.executors import ray_staging
from chessreg.scheduling.executors.ray_staging import ActorStore, HomeActor, StoreActor, list_input_items
from store import Store
from store.errors import CorruptError, NotInStoreError, StoreError


class Here(ActorStore):
    """A store that is read as from an actor, in this process."""

    damaged = ""
    pieces = 0

    def _ask(self, verb, *arguments):
        answer = getattr(self.actor, verb)(self.root, *arguments)
        if verb != "read":
            return answer
        self.pieces += 1
        return bytes(len(answer)) if self.damaged and arguments[0].endswith(self.damaged) else answer


@pytest.fixture
def order(world_session):
    """Of a probe on the world's cache."""
    inputs = world_session.inputs
    spec, _ = resolve_and_hash(find_kind("probe"), ProbeSpec(cache="reference-fit"), inputs)
    return {"source": find_kind("probe").source, "spec": spec.model_dump(mode="json")}


@pytest.fixture
def node(tmp_path):
    return Store.create(tmp_path / "node")


@pytest.fixture
def home(world_session):
    return Here(StoreActor(), str(world_session.store.root))


def files(store: Store) -> dict[str, bytes]:
    kept = [path for part in (store.artifacts, store.arrays) for path in part.rglob("*") if path.is_file()]
    return {path.relative_to(store.root).as_posix(): path.read_bytes() for path in kept}


def test_the_inputs_of_a_work_go_over_in_pieces_and_are_the_same_there(world_session, order, node, home, monkeypatch):
    monkeypatch.setattr(ray_staging, "PIECE_BYTES", 1000)
    items = list_input_items(world_session.database, world_session.store, order)
    kinds = {item.what.split()[0] for item in items}
    assert {"activations", "dataset", "checkpoint"} <= kinds, "the cache, and what it was made from"
    for item in items:
        fetch_item(node, item, home)
    there, here = files(node), files(world_session.store)
    assert there.items() <= here.items()
    assert home.pieces >= sum(item.bytes for item in items) / 1000
    assert all(item.is_in(node) for item in items)
    assert not list(node.tmp.iterdir())
    home.pieces = 0
    for item in items:
        fetch_item(node, item, home)
    assert home.pieces == 0, "what is there is not sent again"


def test_what_arrives_damaged_or_is_not_there_is_refused(world_session, order, node, home):
    items = list_input_items(world_session.database, world_session.store, order)
    for word, file in (("checkpoint", ".safetensors"), ("activations", "0")):
        item = next(item for item in items if word in item.what)
        home.damaged = file
        with pytest.raises(CorruptError):
            fetch_item(node, item, home)
        with pytest.raises(NotInStoreError):
            fetch_item(node, item, Here(StoreActor(), str(node.root)))
        assert not item.is_in(node)
        home.damaged = ""
        fetch_item(node, item, home)
        assert item.is_in(node)
    assert not list(node.tmp.iterdir())


def test_the_copy_of_a_registry_is_whole_while_others_write(world_session, order, tmp_path):
    with world_session.database.write() as session:
        before = session.query(tables.Run).count()
        items, copy = HomeActor().inputs(world_session.database.reference, str(world_session.store.root), order)
    (tmp_path / "copy.db").write_bytes(zstandard.ZstdDecompressor().decompress(copy))
    with Database.open(str(tmp_path / "copy.db"), create=False) as copied, copied.read() as session:
        assert session.query(tables.Run).count() == before > 0
    assert items
    assert not list(world_session.store.tmp.iterdir())


@pytest.mark.parametrize(
    "key", ["../registry.db", "store.json", "/etc/passwd", "arrays/../../x", "artifacts/link/passwd", ""]
)
def test_an_actor_reads_nothing_but_artifacts_and_arrays_of_a_store(tmp_path: Path, key: str) -> None:
    store = Store.create(tmp_path / "store")
    (tmp_path / "registry.db").write_text("mine")
    (store.artifacts / "link").symlink_to("/etc")
    actor = StoreActor()
    for ask in (lambda: actor.read(str(store.root), key, 0), lambda: actor.exists(str(store.root), key),
                lambda: actor.list_keys(str(store.root), key), lambda: actor.read("/", "etc/passwd", 0)):  # fmt: skip
        with pytest.raises(StoreError):
            ask()
