"""Third-party registries and stores: their contents stay inside, or are refused as a whole."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from chessreg.entities.merge import merge_source
from chessreg.errors import BadInputError, ChessregError
from chessreg.registry import tables
from chessreg.runs import transfer, trust
from chessreg.session import Session, open_session
from store import Store
from store.errors import StoreError
from store.files import format_safe_path
from store.places import BucketPlace, FolderPlace

BAD_PARTS = ["..", ".", "", "a:b", "a\\b", "a\nb", "a\x1b[31m", "a\0b", "-rf", "e\u0301", "\u202etxt", "x" * 300]
BAD_NAMES = ["../x", "/etc/passwd", "a/b", "-rf", "a b", "a;reboot", "$(reboot)", "раst", "a\x1b[2J", "a\0", "x" * 300]


@pytest.fixture
def theirs(world: Path, tmp_path: Path) -> Path:
    """A copy of a registry and a store that somebody else may have changed."""
    return Path(shutil.copytree(world, tmp_path / "theirs"))


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "ours").mkdir()
    with open_session(str(tmp_path / "ours" / "registry.db"), tmp_path / "ours" / "store") as session:
        yield session


def change(home: Path, *statements: str) -> None:
    with sqlite3.connect(home / "registry.db") as connection:
        for statement in statements:
            connection.execute(statement)


def snapshot(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def rows_of(session: Session) -> int:
    with session.database.read() as sql:
        return sum(len(sql.execute(table.select()).all()) for table in tables.Base.metadata.sorted_tables)


PATHS = ["arrays/../../x", "/etc", "arrays//etc", "arrays/a/../../../x", "../x", "arrays/-rf", "arrays/a:b"]
STATEMENTS = [f"update activation_cache set path = '{path}'" for path in PATHS]
for bad in ["../x", "-rf", "a b", "a\x1b[2J", "раst", "x" * 300, "$(reboot)"]:
    STATEMENTS += [
        f"update split set name = '{bad}' where name = 'fit'",
        f"update output set name = '{bad}' where name = 'layer-0'",
        f"update annotation set value = '{bad}' where word = 'name'",
    ]
STATEMENTS += [
    "update output set digest = '../../etc'",
    "update dataset set artifact = upper(artifact)",
    "update kind set name = '../evil.py' where name = 'probe'",
    "update run set kind = './evil.py'",
    "update run set units = 1000000000000000000",
    "update unit_range set stop = 1000000000000000000",
    "update unit_range set stop = stop + 1",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_row_that_cannot_be_is_refused_before_any_is_taken_in(theirs, ours, statement):
    change(theirs, "pragma foreign_keys = off", statement)
    before = rows_of(ours)
    with pytest.raises(BadInputError, match="is refused: ") as refused:
        merge_source(ours.database, ours.store, str(theirs / "registry.db"))
    assert refused.value.message.isprintable()
    assert rows_of(ours) == before


def test_a_poisoned_row_that_is_here_already_reaches_nothing(theirs, tmp_path):
    """A registry that took it in before it was refused: nothing outside the store is read or written."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_text("{}")
    change(theirs, "update activation_cache set path = 'arrays/../../../x'")
    before = snapshot(tmp_path)
    with open_session(str(theirs / "registry.db"), theirs / "store") as session:
        place = FolderPlace(Store.create(tmp_path / "place"))
        wanted = transfer.find_items(session.database, ["reference-fit"], inputs=False)
        for go in (
            lambda: transfer.pull_items(session.database, session.store, wanted, place),
            lambda: transfer.push_items(session.database, session.store, place, wanted),
            lambda: session.cache("reference-fit"),
        ):
            with pytest.raises((StoreError, ChessregError)):
                go()
    assert {path for path in snapshot(tmp_path) - before if not path.startswith(("place", "theirs"))} == set()


UNREADABLE = [
    "update run set spec = 'not json'",
    f"update run set spec = '{'[' * 5000}'",
    "update run set spec = '1e999'",
    "update run set created_at = 'yesterday'",
    "update run set created_at = 5",
    "update run set id = 'zz' where id = (select min(id) from run)",
    "update attempt set state = 'dancing'",
    "update dataset set plies = -1",
    "update dataset set plies = 'forty-two'",
    "update attempt set pid = x'ff'",
]


@pytest.mark.parametrize("statement", UNREADABLE)
def test_a_row_that_cannot_be_read_or_be_here_is_refused_in_one_line(theirs, ours, statement):
    change(theirs, "pragma foreign_keys = off", "pragma ignore_check_constraints = on", statement)
    before = rows_of(ours)
    with pytest.raises(BadInputError):
        merge_source(ours.database, ours.store, str(theirs / "registry.db"))
    assert rows_of(ours) == before


@pytest.mark.parametrize("value", ["'forty-two'", "x'ff'", "1.5"])
def test_a_result_that_is_no_whole_number_is_refused_in_one_line(theirs, ours, value):
    change(theirs, "pragma ignore_check_constraints = on", f"update score set n = {value}")
    with pytest.raises(BadInputError, match="a row of score is refused: its n cannot be "):
        merge_source(ours.database, ours.store, str(theirs / "registry.db"))
    with ours.database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Score)) == 0


@pytest.mark.parametrize("part", BAD_PARTS)
@pytest.mark.parametrize("form", ["{}", "a/{}", "{}/a", "/{}"])
def test_paths_in_a_store_have_one_grammar(form, part):
    with pytest.raises(StoreError):
        format_safe_path(form.format(part) if form.format(part) != "a" else "")
    assert format_safe_path("model.safetensors") == "model.safetensors"
    assert format_safe_path("sub folder/Übung (1).bin") == "sub folder/Übung (1).bin"


# -- stores -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(theirs: Path) -> tuple[FolderPlace, Path, str]:
    """Their store as a place, and the folder and digest of an artifact in it."""
    place = FolderPlace(Store(theirs / "store"))
    digest = place.store.list("vector")[0].digest
    return place, place.store.path(digest), digest


def relisted(folder: Path, listed: str) -> str:
    """Have the manifest list a file by another path, with the digest that this gives."""
    from store import artifacts

    path = folder / artifacts.MANIFEST
    record = json.loads(path.read_text())
    record["files"][0][0] = listed
    record["digest"] = digest = artifacts._digest_entries([tuple(file) for file in record["files"]])
    path.write_text(json.dumps(record))
    folder.parents[1].joinpath(digest[:2]).mkdir(exist_ok=True)
    folder.rename(folder.parents[1] / digest[:2] / digest)
    return digest


@pytest.mark.parametrize("listed", ["../../../x", "/tmp/x", "a/../../x", "C:x", "a\\..\\x", "\x1b[2J", "-rf", "a\0b"])
def test_a_manifest_that_lists_what_lies_outside_is_refused(shared, ours, tmp_path, listed):
    place, folder, _ = shared
    digest = relisted(folder, listed)
    before = snapshot(tmp_path)
    with pytest.raises(StoreError):
        place.get_artifact(ours.store, digest)
    assert snapshot(tmp_path) == before


def test_files_that_nothing_lists_are_refused(shared, ours):
    place, folder, digest = shared
    (folder / "my_kind.py").write_text("import antigravity")
    with pytest.raises(StoreError, match="not listed: 'my_kind"):
        place.get_artifact(ours.store, digest)
    (folder / "my_kind.py").unlink()
    place.get_artifact(ours.store, digest)
    name = next(place.store.arrays.iterdir()).name
    (place.store.arrays / name / "layers" / "extra").write_text("x")
    with pytest.raises(StoreError, match="not listed"):
        place.get_array(ours.store, name)
    assert not list(ours.store.arrays.iterdir())
    assert not list(ours.store.tmp.iterdir())


@pytest.mark.parametrize("what", ["file", "folder", "artifact", "fifo", "array"])
def test_links_and_special_files_are_refused(shared, ours, tmp_path, what):
    place, folder, digest = shared
    aside = tmp_path / "aside"
    if what == "array":
        folder = next(place.store.arrays.iterdir())
        chunk = folder / "game" / "c.0"
        chunk.rename(aside)
        chunk.symlink_to(aside)
    elif what == "artifact":
        folder.rename(aside)
        folder.symlink_to(aside)
    elif what == "folder":
        (folder / "more").symlink_to("/etc")
    else:
        file = next(path for path in folder.iterdir() if path.name != ".artifact.json")
        file.rename(aside)
        os.mkfifo(file) if what == "fifo" else file.symlink_to(aside)
    with pytest.raises(StoreError, match="link"):
        place.get_array(ours.store, folder.name) if what == "array" else place.get_artifact(ours.store, digest)
    assert not ours.store.exists(digest)
    assert not list(ours.store.tmp.iterdir())


def test_a_file_that_never_ends_is_cut_off(shared, ours):
    place, folder, digest = shared
    file = next(path for path in folder.iterdir() if path.name != ".artifact.json")
    with file.open("r+b") as long:
        long.truncate(1 << 40)
    with pytest.raises(StoreError, match="bytes long"):
        place.get_artifact(ours.store, digest)


def test_the_metadata_of_an_array_is_of_its_digest(shared, ours):
    place, _, _ = shared
    name = next(place.store.arrays.iterdir()).name
    path = place.store.arrays / name / "zarr.json"
    group = json.loads(path.read_text())
    digest = group["attributes"]["digest"]
    group["attributes"]["hook_points"][0] = "../../../x"
    path.write_text(json.dumps(group))
    with pytest.raises(StoreError):
        place.get_array(ours.store, name, digest)
    for wrong in ("../x", "-x", "a/b", "a.b", "x" * 200):
        with pytest.raises(StoreError):
            place.get_array(ours.store, wrong)
        with pytest.raises(StoreError):
            ours.store.get_array_path(wrong)


URIS = (
    "file:///etc/passwd", "file:///etc/{key}", "s3://evil.example/{key}", "../{key}", "{key}", "/a\0b/{key}",
    "http://127.0.0.1:1/{key}",
)  # fmt: skip


@pytest.mark.parametrize("uri", URIS)
def test_a_place_that_only_a_row_names_is_not_asked(theirs, ours, monkeypatch, uri):
    merge_source(ours.database, ours.store, str(theirs / "registry.db"))
    wanted = transfer.find_items(ours.database, ["skill"], inputs=False)[:1]
    with ours.database.write() as sql:
        sql.query(tables.ArtifactLocation).delete()
        sql.add(tables.ArtifactLocation(digest=wanted[0].digest, uri=uri.format(key=wanted[0].key)))
    asked: list[str] = []
    monkeypatch.setattr(BucketPlace, "__init__", lambda self, url: asked.append(url))
    with pytest.raises((StoreError, ChessregError)) as refused:
        transfer.pull_items(ours.database, ours.store, wanted)
    assert not asked
    assert ("--from" in refused.value.hint) == (uri.endswith("{key}") and "://" in uri)


def test_a_bucket_that_was_named_here_is_asked_by_itself(theirs, ours, tmp_path):
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path / 'bucket'}"
    assert not trust.is_remembered_place(url)
    with open_session(str(theirs / "registry.db"), theirs / "store") as session:
        wanted = transfer.find_items(session.database, ["skill"], inputs=False)
        transfer.push_items(session.database, session.store, BucketPlace(url), wanted)
    merge_source(ours.database, ours.store, str(theirs / "registry.db"))
    shutil.rmtree(theirs / "store")
    assert len(transfer.pull_items(ours.database, ours.store, wanted).moved) == len(wanted)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_have_one_grammar(world_session, name):
    from chessreg.entities.dataset import split_dataset
    from chessreg.registry import names

    with pytest.raises(BadInputError):
        split_dataset(world_session.database, world_session.store, "sample", f"{name}=0.1", seed=3)
    with world_session.database.write() as sql, pytest.raises(BadInputError):
        names.add_annotation(sql, "run", names.resolve_id(sql, "run", "skill"), "name", name)
