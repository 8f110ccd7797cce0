"""Artifacts: named by content, whole or absent, and damage is named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from store import CorruptError, NotInStoreError, Store, StoreError
from store import artifacts as module


def publish(store: Store, files: dict[str, bytes], kind: str = "probe") -> module.StoredArtifact:
    with store.stage(kind) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return store.publish(folder)


FILES = {"config.json": b"{}", "weights/layer-0.bin": b"\x00" * 5000, "weights/layer-1.bin": b""}


def test_a_published_artifact_can_be_read_and_verified(store: Store) -> None:
    artifact = publish(store, FILES)
    assert (artifact.kind, artifact.bytes) == ("probe", 5002)
    assert store.path(artifact.digest) == artifact.path
    assert {name: (artifact.path / name).read_bytes() for name in FILES} == FILES
    assert store.exists(artifact.digest)
    assert store.verify(artifact.digest) == artifact == store.artifact(artifact.digest)
    assert list(store.list()) == [artifact] == list(store.list("probe"))
    assert list(store.list("vector")) == []
    assert not list(store.tmp.iterdir())


def test_the_digest_is_fixed_for_ever_and_depends_on_content_and_names_only(store: Store, tmp_path: Path) -> None:
    # printf of the tag and one line a file, through sha256sum
    golden = "27652b03152cde2fe5a1b668ea34131fc2fc218ed6180a316bac30266fcfdf3b"
    other = Store.create(tmp_path / "other")
    artifact = publish(store, {"b": b"2", "a/c": b"1"})
    assert artifact.digest == publish(other, {"a/c": b"1", "b": b"2"}, kind="vector").digest == golden
    digests = {publish(store, files).digest for files in ({"b": b"2"}, {"b": b"1"}, {"c": b"2"}, {"b": b"2", "c": b""})}
    assert len(digests) == 4


def test_the_same_content_twice_is_one_artifact(store: Store) -> None:
    first, again = publish(store, FILES), publish(store, FILES, kind="vector")
    assert again == first
    assert len(store.list()) == 1
    assert not list(store.tmp.iterdir())


def test_content_that_is_published_again_is_as_young_as_new(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = publish(store, FILES)
    os.utime(first.path, (1.0, 1.0))
    assert publish(store, FILES) == first
    assert first.path.stat().st_mtime > 1.0
    plain = os.utime

    def taken_away_first(path: Path) -> None:
        path.rename(store.tmp / "taken")
        plain(path)

    monkeypatch.setattr(module.os, "utime", taken_away_first)
    assert publish(store, FILES) == first == store.verify(first.digest)


def test_ctrl_c_while_a_staging_folder_is_made_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.mkdir

    def interrupted(self: Path, *arguments: object, **settings: object) -> None:
        plain(self, *arguments, **settings)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), store.stage("probe"):
        raise AssertionError("it was interrupted before")
    assert not list(store.tmp.iterdir())


def test_a_file_or_folder_from_elsewhere_is_copied_in(store: Store, tmp_path: Path) -> None:
    (tmp_path / "book.pgn").write_bytes(b"1. e4")
    artifact = store.add(tmp_path / "book.pgn", "opening_book")
    assert artifact.file.read_bytes() == b"1. e4"
    with pytest.raises(StoreError, match="does not exist"):
        store.add(tmp_path / "nothing", "opening_book")
    other = Store.create(tmp_path / "other")
    assert other.add(artifact.path, artifact.kind, expect=artifact.digest).digest == artifact.digest
    (tmp_path / "book.pgn").write_bytes(b"1. d4")
    with pytest.raises(CorruptError, match="as expected"):
        other.add(tmp_path / "book.pgn", "opening_book", expect=artifact.digest)
    assert len(other.list()) == 1
    assert not list(other.tmp.iterdir())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "config.json").write_bytes(b"[]"), "config.json has changed"),
        (lambda f: os.truncate(f / "weights/layer-0.bin", 4999), "layer-0.bin has changed"),
        (lambda f: (f / "extra").write_bytes(b""), "extra was added"),
        (lambda f: (f / ".artifact.json").write_bytes(b"{"), "manifest is damaged"),
    ],
)
def test_damage_is_named_and_publishing_again_heals_it(store: Store, damage: object, message: str) -> None:
    artifact = publish(store, FILES)
    assert callable(damage)
    damage(artifact.path)
    with pytest.raises(CorruptError, match=message):
        store.verify(artifact.digest)
    assert publish(store, FILES) == artifact
    assert store.verify(artifact.digest) == artifact


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [[None, 2, "0" * 64]]},
        {"files": [["a", 2, "0" * 64], [3, 2, "0" * 64]]},
        {"files": [["a", 2]]},
        {"files": ["abc"]},
        {"files": [["a", "2", "0" * 64]]},
        {"files": {"a": 2}},
        {"bytes": True},
        {"bytes": 2.5},
        {"kind": None},
    ],
)
def test_a_manifest_of_other_types_is_damaged(store: Store, changes: dict[str, object]) -> None:
    artifact = publish(store, {"a": b"ab", "b": b""})
    record = json.loads((artifact.path / module.MANIFEST).read_bytes()) | changes
    (artifact.path / module.MANIFEST).write_text(json.dumps(record))
    for read in (store.verify, store.artifact):
        with pytest.raises(CorruptError, match="its manifest is damaged"):
            read(artifact.digest)
    assert list(store.list()) == []


def test_a_manifest_that_was_changed_with_its_files_is_found(store: Store) -> None:
    ours, other = publish(store, {"a": b"1"}), publish(store, {"a": b"2"})
    for name in ("a", ".artifact.json"):
        (ours.path / name).write_bytes((other.path / name).read_bytes())
    with pytest.raises(CorruptError, match="manifest does not belong"):
        store.verify(ours.digest)


def test_an_unknown_digest_is_not_found(store: Store) -> None:
    with pytest.raises(NotInStoreError, match="is not in the store") as caught:
        store.path("0" * 64)
    assert caught.value.exit_code == 3
    assert not store.exists("0" * 64)
    for digest in ("../../etc", "abc", "G" * 64):
        with pytest.raises(NotInStoreError, match="is not a digest"):
            store.path(digest)


def test_links_and_nothing_cannot_be_published(store: Store, tmp_path: Path) -> None:
    with store.stage("probe") as folder:
        with pytest.raises(StoreError, match="contains no files"):
            store.publish(folder)
        (folder / "link").symlink_to("/etc/hostname")
        with pytest.raises(StoreError, match="is a link"):
            store.publish(folder)
        (folder / "link").unlink()
        (folder / ".artifact.json").write_text("{}")
        with pytest.raises(StoreError, match="reserved for the store"):
            store.publish(folder)
    with pytest.raises(StoreError, match="is not a staging folder"):
        store.publish(tmp_path)
    assert list(store.list()) == []


def manifest(path: str) -> tuple[bytes, str]:
    """A manifest of one file, and the digest that belongs to it."""
    files = [(path, 1, "0" * 64)]
    digest = module._digest_entries(files)
    return json.dumps({"digest": digest, "kind": "probe", "files": files}).encode(), digest


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/x", "", ".", "a//b", "-rf", "C:x", "a\\b", "a\0b", "\x1b[2J", "a" * 300, "e\u0301"],
)
def test_a_manifest_cannot_list_a_path_that_leaves_its_folder_or_misleads(path: str) -> None:
    with pytest.raises(StoreError, match="cannot be the path of a file in a store"):
        module.parse_manifest(*manifest(path))
    assert module.parse_manifest(*manifest("weights/layer-0.bin")).files[0][0] == "weights/layer-0.bin"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([(module.MANIFEST, 1, "0" * 64)], "its own name"),
        ([("a", -1, "0" * 64)], "a negative size"),
        ([("a", 1, "0" * 63)], "a digest that is none"),
    ],
)
def test_a_manifest_that_lists_what_no_file_is_is_damaged(files: list[tuple[str, int, str]], why: str) -> None:
    content = json.dumps({"kind": "probe", "files": files}).encode()
    with pytest.raises(CorruptError, match="is damaged"):
        module.parse_manifest(content, module._digest_entries(files))


def test_a_full_disk_while_writing_is_one_error_and_leaves_nothing(store: Store) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(StoreError, match="the disk is full") as caught, store.stage("probe"):
        Path("/dev/full").write_bytes(b"x")
    assert "free some space" in caught.value.hint
    assert not list(store.tmp.iterdir())


def test_a_full_disk_while_copying_names_where_to(store: Store, tmp_path: Path) -> None:
    error = OSError(errno.EDQUOT, "Disk quota exceeded", str(tmp_path / "from"), None, str(tmp_path / "to"))
    with pytest.raises(StoreError, match=r"the disk is full at /.*/to \("), store.stage("probe"):
        raise error


@pytest.mark.parametrize("call", ["sync_tree", "write_synced"])
def test_a_full_disk_while_publishing_is_one_error_and_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, call, full)
    with pytest.raises(StoreError, match=r"cannot publish an artifact of kind probe: the disk is full at /.*/store"):
        publish(store, FILES)
    assert list(store.list()) == []
    assert not list(store.tmp.iterdir())
    monkeypatch.undo()
    assert publish(store, FILES).bytes == 5002


def test_a_disk_that_returns_other_bytes_is_found_before_publication(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flip(folder: Path) -> None:
        (folder / "config.json").write_bytes(b"[]")

    monkeypatch.setattr(module, "sync_tree", flip)
    with pytest.raises(CorruptError, match="other bytes than were written"):
        publish(store, FILES)
    assert list(store.list()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from store import Store, artifacts
root, when = sys.argv[1:]
if when == "rename":
    Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
else:
    setattr(artifacts, when, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
with Store(root).stage("probe") as folder:
    (folder / "weights").write_bytes(bytes(1000))
    Store(root).publish(folder)
"""


@pytest.mark.parametrize("when", ["sync_tree", "write_synced", "rename"])
def test_a_crash_before_the_rename_leaves_nothing_visible(store: Store, when: str) -> None:
    command = [sys.executable, "-c", KILLED, str(store.root), when]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -9
    assert list(store.list()) == []
    assert [path for path in store.artifacts.rglob("*") if path.is_file()] == []
    assert len(store.clean_staging(0)) == 1
    assert publish(store, {"weights": bytes(1000)}).bytes == 1000
