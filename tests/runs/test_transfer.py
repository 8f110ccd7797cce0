"""Bytes pushed from one home and pulled into another, through a folder and through an object store."""

from __future__ import annotations

import shutil

import pytest

from chessreg.entities.merge import export_rows, merge_source
from chessreg.errors import NotFoundError
from chessreg.experiments.probe import ProbeSpec
from chessreg.registry import names, tables
from chessreg.runs import transfer
from chessreg.session import open_session
from store.errors import CorruptError, StoreError
from store.places import BucketPlace, FolderPlace, open_place
from store.store import Store


@pytest.fixture
def full(world, tmp_path):
    """The home that has everything."""
    shutil.copytree(world, tmp_path / "full")
    with open_session(str(tmp_path / "full" / "registry.db"), tmp_path / "full" / "store") as session:
        yield session


@pytest.fixture
def bare(full, tmp_path):
    """A second home that knows of everything, and has no bytes."""
    (tmp_path / "bare").mkdir()
    with open_session(str(tmp_path / "bare" / "registry.db"), tmp_path / "bare" / "store") as session:
        merge_source(session.database, session.store, full.database.reference)
        yield session


@pytest.fixture(params=["folder", "bucket"])
def somewhere(request, tmp_path):
    """A place to leave bytes at: the bucket is obstore's own, over local files."""
    if request.param == "folder":
        return open_place(str(tmp_path / "share"), create=True)
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    (tmp_path / "bucket").mkdir()
    return BucketPlace(f"file://{tmp_path / 'bucket'}")


def test_a_probe_and_its_cache_go_over_and_are_verified(full, bare, somewhere):
    wanted = transfer.find_items(full.database, ["reference-board"], inputs=True)
    sent = transfer.push_items(full.database, full.store, somewhere, wanted)
    assert len(sent.moved) == len(wanted)
    assert any(item.array for item in wanted)
    got = transfer.pull_items(bare.database, bare.store, wanted, somewhere)
    assert len(got.moved) == len(wanted)
    with bare.database.read() as session:
        assert names.resolve_id(session, "run", "reference-board")
    assert (bare.probe("reference-board", 1).weight == full.probe("reference-board", 1).weight).all()
    assert (bare.cache("reference-fit").values(layer=1) == full.cache("reference-fit").values(layer=1)).all()
    assert transfer.push_items(full.database, full.store, somewhere, wanted).moved == []
    assert transfer.pull_items(bare.database, bare.store, wanted, somewhere).moved == []


def test_bytes_are_found_where_the_registry_knows_them(full, bare, somewhere):
    wanted = transfer.find_items(full.database, ["skill"], inputs=False)
    transfer.push_items(full.database, full.store, somewhere, wanted)
    merge_source(bare.database, bare.store, full.database.reference)  # now it knows the place
    assert len(transfer.pull_items(bare.database, bare.store, wanted).moved) == len(wanted)


def test_damaged_bytes_are_not_taken(full, bare, tmp_path):
    wanted = transfer.find_items(full.database, ["skill"], inputs=False)
    share = open_place(str(tmp_path / "share"), create=True)
    transfer.push_items(full.database, full.store, share, wanted)
    assert isinstance(share, FolderPlace)
    for path in share.store.path(wanted[0].digest).iterdir():
        if path.name != ".artifact.json":
            path.write_bytes(b"other" + path.read_bytes())
    with pytest.raises(CorruptError):
        share.get_artifact(bare.store, wanted[0].digest)
    assert not bare.store.exists(wanted[0].digest)


def test_bytes_out_of_reach_are_refused_with_who_has_them(full, bare):
    wanted = transfer.find_items(bare.database, ["skill"], inputs=False)
    with bare.database.write() as session:
        session.query(tables.ArtifactLocation).update({"uri": "/not/mounted/here"})
        session.query(tables.Machine).update({"host": "box1"})
    with pytest.raises(NotFoundError, match="is only on box1"):
        transfer.pull_items(bare.database, bare.store, wanted)


def test_a_folder_with_rows_is_a_home_that_merges(full, tmp_path):
    export_rows(full.database, tmp_path / "bundle.db", ["skill"])
    (tmp_path / "third").mkdir()
    with open_session(str(tmp_path / "third" / "registry.db"), tmp_path / "third" / "store") as third:
        report = merge_source(third.database, third.store, str(tmp_path / "bundle.db"))
        assert report.facts["run"] == 2  # the vector and the cache that it was made from, not the probe
        with third.database.read() as session:
            assert set(names.read_noun_names(session, "run").values()) == {"skill", "reference-fit"}


def test_a_place_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        open_place(str(tmp_path / "nowhere"))
    assert isinstance(open_place(str(tmp_path / "made"), create=True), FolderPlace)
    assert Store(tmp_path / "made")


def test_an_experiment_pulls_its_inputs_from_where_they_are_known_to_be(full, bare, somewhere):
    wanted = transfer.find_items(full.database, ["reference-board", "reference-fit"], inputs=True)
    transfer.push_items(full.database, full.store, somewhere, wanted)
    shutil.rmtree(full.store.root)
    merge_source(bare.database, bare.store, full.database.reference)
    with bare.database.write() as session:  # where the world was made is out of reach
        location = tables.ArtifactLocation
        session.query(location).filter(location.uri.contains("/world")).delete(synchronize_session=False)
    report = bare.run(ProbeSpec(cache="reference-fit", epochs=2))
    assert report.state == "complete"
    assert bare.cache("reference-fit").values(layer=0).shape[0] > 0
