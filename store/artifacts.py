"""Content-addressed artifacts: checkpoints, probes, vectors, opening books, any file or folder that must never change.

An artifact's digest is the sha256 of its files' relative paths, sizes and sha256s, so the same content has the same
name on every machine. Publication is in two phases: write into a staging folder, then sync, read back, rename.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.errors import CorruptError, NotInStoreError, StoreError
from store.files import (
    convert_os_errors,
    discard_path,
    fsync_path,
    fsync_tree,
    make_staging_path,
    safe_name,
    safe_path,
    sha256_file,
    staged_kind,
    write_synced,
)

DIGEST_TAG = b"chessreg-artefact-1\n"  # first line of what an artifact's digest covers: data, never to be changed
MANIFEST = ".artifact.json"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_TARGET_EXISTS = {errno.ENOTEMPTY, errno.EEXIST}


@dataclass(frozen=True)
class StoredArtifact:
    """A published artifact. `bytes` counts its files; `path` is the folder that holds them."""

    digest: str
    kind: str
    bytes: int
    path: Path

    @property
    def file(self) -> Path:
        """The one file of a single-file artifact; StoreError if it has several."""
        files = [name for name in _list_files(self.path) if name != MANIFEST]
        if len(files) != 1:
            raise StoreError(f"artifact {self.digest[:12]} has {len(files)} files, not one")
        return self.path / files[0]


@dataclass(frozen=True)
class Manifest:
    """What a manifest says: the kind, and of each file its path, bytes and sha256."""

    kind: str
    files: tuple[tuple[str, int, str], ...]


def parse_manifest(content: bytes, digest: str) -> Manifest:
    """A manifest from another store. Raises CorruptError unless it is one and all that it lists belongs to `digest`,
    StoreError when it lists what cannot be a file here."""
    try:
        record = json.loads(content)
        kind = safe_name("kind", str(record["kind"]))
        files = tuple((str(name), int(size), str(sha)) for name, size, sha in record["files"])
        actual = _digest_entries(list(files))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptError(f"the manifest of artifact {digest[:12]} is damaged") from error
    if actual != digest:
        raise CorruptError(f"artifact {digest[:12]}: its manifest does not belong to it")
    for name, size, sha in files:
        safe_path(name)
        if name == MANIFEST or size < 0 or not _DIGEST.match(sha):
            raise CorruptError(f"the manifest of artifact {digest[:12]} is damaged")
    return Manifest(kind, files)


class ArtifactStore:
    """The artifacts of a store: published ones below `artifacts`, staged and lent ones in `tmp`."""

    root: Path
    artifacts: Path
    tmp: Path
    read_only: bool
    lent: dict[str, StoredArtifact]
    """Copies of the user's files that are not published, by digest."""

    def require_writable(self) -> None:
        """StoreError if this store was opened for reading only."""
        if self.read_only:
            raise StoreError(
                f"the store {self.root} is open for reading only", "check the owner and the permissions of its folders"
            )

    @contextlib.contextmanager
    def stage(self, kind: str) -> Iterator[Path]:
        """A fresh staging folder. Write files into it, then `publish` it, inside the block or after it.

        When the block raises, the folder is removed; an OSError (a full disk) becomes one StoreError.
        """
        self.require_writable()
        folder = make_staging_path(self.tmp, kind)
        try:
            with convert_os_errors(f"write an artifact of kind {kind}", self.root):
                folder.mkdir()  # in here: Ctrl-C may come as soon as it is there
                yield folder
        except BaseException:
            discard_path(folder)
            raise

    def publish(self, folder: Path, expect: str | None = None) -> StoredArtifact:
        """Publish a staged folder and return the artifact; the staging folder is gone afterwards.

        Content that is here already is recognised: the existing artifact is returned, as young as a new one. `expect`
        is the digest that the content must have (a copy from another machine). Raises StoreError (nothing to publish,
        links, full disk) and CorruptError (not the expected digest, or the disk returned other bytes than were
        written); then nothing is visible.
        """
        self.require_writable()
        kind = staged_kind(folder)
        if folder.parent != self.tmp or not folder.is_dir():
            raise StoreError(f"{folder} is not a staging folder of the store {self.root}")
        with convert_os_errors(f"publish an artifact of kind {kind}", self.root):
            if (folder / MANIFEST).exists():
                raise StoreError(f"{MANIFEST} is the store's own file: an artifact cannot bring one")
            files = _list_entries(folder)
            for name, _, _ in files:
                safe_path(name)
            digest = _digest_entries(files)
            if expect is not None and digest != expect:
                raise CorruptError(
                    f"the content of this {kind} has digest {digest[:12]}, not {expect[:12]} as expected"
                )
            target = self._target(digest)
            if (known := self._known(digest)) is not None:
                discard_path(folder)
                fsync_path(target.parent)  # the process that renamed it may have ended before this
                fsync_path(self.artifacts)
                return known
            fsync_tree(folder)
            if _list_entries(folder, from_disk=True) != files:
                raise CorruptError(f"the disk returned other bytes than were written to {folder}", "check the disk")
            total = sum(size for _, size, _ in files)
            record = {"chessreg_artifact": 1, "digest": digest, "kind": kind, "bytes": total, "files": files}
            write_synced(folder / MANIFEST, json.dumps(record, indent=1).encode() + b"\n")
            fsync_path(folder)
            target.parent.mkdir(exist_ok=True)
            if target.exists():  # there, but damaged: the new copy heals it
                target.rename(make_staging_path(self.tmp, "damaged"))
            try:
                folder.rename(target)
            except OSError as error:
                if error.errno not in _TARGET_EXISTS:
                    raise
                discard_path(folder)  # somebody published the same content a moment ago
            fsync_path(target.parent)
            fsync_path(self.artifacts)
        return self.artifact(digest)

    def add(self, source: Path, kind: str, expect: str | None = None) -> StoredArtifact:
        """Copy a file, or a folder's content, into the store as an artifact."""
        import shutil

        source = Path(source)
        if not source.exists():
            raise StoreError(f"{source} does not exist", exit_code=3)
        with self.stage(kind) as folder:
            if source.is_dir():
                shutil.copytree(source, folder, dirs_exist_ok=True, symlinks=False)
                (folder / MANIFEST).unlink(missing_ok=True)  # the source may be another store's artifact
            else:
                shutil.copyfile(source, folder / source.name)
            return self.publish(folder, expect)

    def lend(self, source: Path, kind: str, name: str = "") -> str:
        """Copy one file (`name`: what to call it) aside and return the digest that its artifact has, or would have.

        This process finds it by that digest as if it were published; other processes do not.
        """
        import shutil

        name = safe_path(name or source.name)
        with self.stage(kind) as folder:
            shutil.copyfile(source, folder / name)
            files = _list_entries(folder)
            digest = _digest_entries(files)
            if digest in self.lent or self._known(digest) is not None:
                discard_path(folder)
            else:
                self.lent[digest] = StoredArtifact(digest, kind, sum(size for _, size, _ in files), folder)
        return digest

    def path(self, digest: str) -> Path:
        """The folder of an artifact's files. Raises NotInStoreError."""
        if digest in self.lent:
            return self.lent[digest].path
        target = self._target(digest)
        if not (target / MANIFEST).is_file():
            raise NotInStoreError(f"artifact {digest[:12]} is not in the store {self.root}")
        return target

    def exists(self, digest: str) -> bool:
        """Whether the artifact is here; its bytes are not read."""
        return digest in self.lent or (self._target(digest) / MANIFEST).is_file()

    def artifact(self, digest: str) -> StoredArtifact:
        """What is recorded of an artifact. Raises NotInStoreError, CorruptError."""
        if digest in self.lent:
            return self.lent[digest]
        record = _read_manifest(self.path(digest))
        return StoredArtifact(digest, record["kind"], record["bytes"], self._target(digest))

    def verify(self, digest: str) -> StoredArtifact:
        """Read every byte again. Raises CorruptError naming the first file that differs, NotInStoreError."""
        folder = self.path(digest)
        if digest in self.lent:
            return self.lent[digest]
        record = _read_manifest(folder)
        with convert_os_errors(f"read artifact {digest[:12]}"):
            expected = {name: (size, sha) for name, size, sha in record["files"]}
            actual = {name: (size, sha) for name, size, sha in _list_entries(folder)}
        for name in sorted(expected.keys() | actual.keys()):
            if name not in actual:
                raise CorruptError(f"artifact {digest[:12]}: {name} is missing")
            if name not in expected:
                raise CorruptError(f"artifact {digest[:12]}: {name} was added after publication")
            if actual[name] != expected[name]:
                raise CorruptError(f"artifact {digest[:12]}: {name} has changed since publication")
        if _digest_entries([(name, *expected[name]) for name in expected]) != digest:
            raise CorruptError(f"artifact {digest[:12]}: its manifest does not belong to it")
        return self.artifact(digest)

    def list(self, kind: str | None = None) -> Sequence[StoredArtifact]:
        """All artifacts with a readable manifest, ordered by digest; `verify` tells what is wrong with one."""
        artifacts = []
        for folder in sorted(self.artifacts.glob("??/*")):
            with contextlib.suppress(CorruptError, NotInStoreError):
                artifact = self.artifact(folder.name)
                if kind is None or artifact.kind == kind:
                    artifacts.append(artifact)
        return artifacts

    def _target(self, digest: str) -> Path:
        return self.root / artifact_key(digest)

    def _known(self, digest: str) -> StoredArtifact | None:
        """The artifact if it is here, every byte as it was published. From now on it is young: only old ones are
        garbage. None also if it has just been taken away as such."""
        if not self.exists(digest):
            return None
        try:
            artifact = self.verify(digest)
        except (StoreError, FileNotFoundError):
            return None
        try:
            os.utime(artifact.path)
        except FileNotFoundError:
            return None
        except PermissionError:  # another user's, who alone may take it away
            pass
        return artifact

    def keep(self, digest: str) -> None:
        """Publish what was lent; anything else stays as it is."""
        if (lent := self.lent.pop(digest, None)) is not None:
            self.publish(lent.path, digest)

    def release(self) -> None:
        """Remove what was lent and not kept."""
        discard_lent(self.lent)


def discard_lent(lent: dict[str, StoredArtifact]) -> None:
    """Remove what was lent and not published."""
    while lent:
        discard_path(lent.popitem()[1].path)


def artifact_key(digest: str) -> str:
    """Where an artifact lies below the root of any store. Raises NotInStoreError for what is no digest."""
    if not _DIGEST.match(digest):
        raise NotInStoreError(f"{digest!a} is not a digest: 64 hexadecimal digits")
    return f"artifacts/{digest[:2]}/{digest}"


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / MANIFEST).read_bytes())
        files, size, kind = record["files"], record["bytes"], record["kind"]
        if [*map(type, (files, size, kind))] == [list, int, str] and all(map(_is_entry, files)):
            return record
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise CorruptError(f"artifact {folder.name[:12]}: its manifest is damaged")


def _is_entry(value: Any) -> bool:
    """Whether a value of JSON is an entry of a manifest: path, bytes and sha256."""
    return isinstance(value, list) and [*map(type, value)] == [str, int, str]


def _list_files(folder: Path) -> list[str]:
    """Relative POSIX paths of all files below `folder`, in the order of their UTF-8 bytes."""
    names = []
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = Path(parent) / name
            mode = entry.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise StoreError(f"{entry} is a link or a special file: an artifact holds plain files only")
            if stat.S_ISREG(mode):
                names.append(entry.relative_to(folder).as_posix())
    return sorted(names, key=str.encode)


def _list_entries(folder: Path, *, from_disk: bool = False) -> list[tuple[str, int, str]]:
    """(relative path, bytes, sha256) of every file but our own manifest."""
    names = [name for name in _list_files(folder) if name != MANIFEST]
    if not names:
        raise StoreError(f"{folder} holds no file: there is nothing to publish")
    return [(name, (folder / name).stat().st_size, sha256_file(folder / name, from_disk=from_disk)) for name in names]


def _digest_entries(files: list[tuple[str, int, str]]) -> str:
    import hashlib

    lines = [json.dumps([name, size, sha]) + "\n" for name, size, sha in sorted(files, key=lambda f: f[0].encode())]
    return hashlib.sha256(DIGEST_TAG + "".join(lines).encode()).hexdigest()
