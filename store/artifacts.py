"""Content-addressed artifacts: checkpoints, probes, vectors, opening books, and other immutable files or folders.

The digest of an artifact is the sha256 of its files' relative paths, sizes and sha256s, so equal content has the same
digest on every machine. Publication has two phases: files are written into a staging folder, then synced, read back and
renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.errors import CorruptError, NotInStoreError, StoreError
from store.files import (
    check_safe_name,
    convert_os_errors,
    discard_path,
    format_safe_path,
    get_staged_kind,
    hash_file,
    make_staging_path,
    sync_path,
    sync_tree,
    write_synced,
)

DIGEST_TAG = b"chessreg-artefact-1\n"  # first line of the digested text; must never change
MANIFEST = ".artifact.json"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_TARGET_EXISTS = {errno.ENOTEMPTY, errno.EEXIST}


@dataclass(frozen=True)
class StoredArtifact:
    """A published artifact. `bytes` is the total size of its files, and `path` is the folder that holds them."""

    digest: str
    kind: str
    bytes: int
    path: Path

    @property
    def file(self) -> Path:
        """The file of a single-file artifact. Raises StoreError if the artifact has several."""
        files = [name for name in _list_files(self.path) if name != MANIFEST]
        if len(files) != 1:
            raise StoreError(f"artifact {self.digest[:12]} has {len(files)} files, not one")
        return self.path / files[0]


@dataclass(frozen=True)
class Manifest:
    """The manifest of an artifact: its kind, and (path, bytes, sha256) of each file."""

    kind: str
    files: tuple[tuple[str, int, str], ...]


def parse_manifest(content: bytes, digest: str) -> Manifest:
    """Parse a manifest from another store.

    Raises CorruptError unless it is valid and its files have the digest `digest`, and StoreError for an unsafe file
    name.
    """
    try:
        record = json.loads(content)
        kind = check_safe_name("kind", str(record["kind"]))
        files = tuple((str(name), int(size), str(sha)) for name, size, sha in record["files"])
        actual_digest = _digest_entries(list(files))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptError(f"the manifest of artifact {digest[:12]} is damaged") from error
    if actual_digest != digest:
        raise CorruptError(f"artifact {digest[:12]}: its manifest does not belong to it")
    for name, size, sha in files:
        format_safe_path(name)
        if name == MANIFEST or size < 0 or not _DIGEST.match(sha):
            raise CorruptError(f"the manifest of artifact {digest[:12]} is damaged")
    return Manifest(kind, files)


class ArtifactStore:
    """The artifacts of a store: published ones in `artifacts`, staged and lent ones in `tmp`."""

    root: Path
    artifacts: Path
    tmp: Path
    read_only: bool
    lent_artifacts: dict[str, StoredArtifact]
    """Copies of the user's files that are not published, by digest."""

    def require_writable(self) -> None:
        """Raise StoreError if this store was opened read-only."""
        if self.read_only:
            raise StoreError(
                f"the store {self.root} is open for reading only", "check the owner and the permissions of its folders"
            )

    @contextlib.contextmanager
    def stage(self, kind: str) -> Iterator[Path]:
        """Yield a new staging folder. Write files into it, then call `publish` inside or after the block.

        If the block raises, the folder is removed. An OSError (such as a full disk) becomes a StoreError.
        """
        self.require_writable()
        folder = make_staging_path(self.tmp, kind)
        try:
            with convert_os_errors(f"write an artifact of kind {kind}", self.root):
                folder.mkdir()  # inside, because Ctrl-C may follow immediately
                yield folder
        except BaseException:
            discard_path(folder)
            raise

    def publish(self, folder: Path, expect: str | None = None) -> StoredArtifact:
        """Publish a staged folder and return the artifact. The staging folder no longer exists afterwards.

        If the content is published already, the existing artifact is returned and its age reset. `expect` is the digest
        that the content must have, for a copy from another machine. Raises StoreError (no files, links, full disk) and
        CorruptError (unexpected digest, or the disk returns other bytes than were written); nothing is visible then.
        """
        self.require_writable()
        kind = get_staged_kind(folder)
        if folder.parent != self.tmp or not folder.is_dir():
            raise StoreError(f"{folder} is not a staging folder of the store {self.root}")
        with convert_os_errors(f"publish an artifact of kind {kind}", self.root):
            if (folder / MANIFEST).exists():
                raise StoreError(f"{MANIFEST} is reserved for the store and cannot be part of an artifact")
            files = _list_entries(folder)
            for name, _, _ in files:
                format_safe_path(name)
            digest = _digest_entries(files)
            if expect is not None and digest != expect:
                raise CorruptError(
                    f"the content of this {kind} has digest {digest[:12]}, not {expect[:12]} as expected"
                )
            target = self._make_target_path(digest)
            if (path := self._find_undamaged(digest)) is not None:
                discard_path(folder)
                sync_path(target.parent)  # the publishing process may have ended before this sync
                sync_path(self.artifacts)
                return path
            sync_tree(folder)
            if _list_entries(folder, from_disk=True) != files:
                raise CorruptError(f"the disk returned other bytes than were written to {folder}", "check the disk")
            total = sum(size for _, size, _ in files)
            record = {"chessreg_artifact": 1, "digest": digest, "kind": kind, "bytes": total, "files": files}
            write_synced(folder / MANIFEST, json.dumps(record, indent=1).encode() + b"\n")
            sync_path(folder)
            target.parent.mkdir(exist_ok=True)
            if target.exists():  # damaged: replace it
                target.rename(make_staging_path(self.tmp, "damaged"))
            try:
                folder.rename(target)
            except OSError as error:
                if error.errno not in _TARGET_EXISTS:
                    raise
                discard_path(folder)  # another process has just published the same content
            sync_path(target.parent)
            sync_path(self.artifacts)
        return self.artifact(digest)

    def add(self, source: Path, kind: str, expect: str | None = None) -> StoredArtifact:
        """Copy a file, or the content of a folder, into the store as an artifact of this kind, and return it.

        `expect` is the digest that it must have. Raises StoreError if `source` does not exist, and the errors of
        `publish`.
        """
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

    def lend(self, sources: Mapping[str, Path], kind: str) -> str:
        """Copy files to the staging area under these names, and return the digest of an artifact of them.

        Only this process finds the artifact by that digest. `keep` publishes it.
        """
        import shutil

        with self.stage(kind) as folder:
            for name, source in sources.items():
                shutil.copyfile(source, folder / format_safe_path(name))
            files = _list_entries(folder)
            digest = _digest_entries(files)
            if digest in self.lent_artifacts or self._find_undamaged(digest) is not None:
                discard_path(folder)
            else:
                self.lent_artifacts[digest] = StoredArtifact(digest, kind, sum(size for _, size, _ in files), folder)
        return digest

    def path(self, digest: str) -> Path:
        """Return the folder of an artifact. Raises NotInStoreError."""
        if digest in self.lent_artifacts:
            return self.lent_artifacts[digest].path
        target = self._make_target_path(digest)
        if not (target / MANIFEST).is_file():
            raise NotInStoreError(f"artifact {digest[:12]} is not in the store {self.root}")
        return target

    def exists(self, digest: str) -> bool:
        """Return whether the artifact is in the store. Its bytes are not read."""
        return digest in self.lent_artifacts or (self._make_target_path(digest) / MANIFEST).is_file()

    def artifact(self, digest: str) -> StoredArtifact:
        """Return the artifact with this digest. Raises NotInStoreError, CorruptError."""
        if digest in self.lent_artifacts:
            return self.lent_artifacts[digest]
        record = _read_manifest(self.path(digest))
        return StoredArtifact(digest, record["kind"], record["bytes"], self._make_target_path(digest))

    def verify(self, digest: str) -> StoredArtifact:
        """Compare every byte of an artifact with its digests. Raises NotInStoreError, and CorruptError naming a
        differing file."""
        folder = self.path(digest)
        if digest in self.lent_artifacts:
            return self.lent_artifacts[digest]
        record = _read_manifest(folder)
        with convert_os_errors(f"read artifact {digest[:12]}"):
            expected_files = {name: (size, sha) for name, size, sha in record["files"]}
            actual_files = {name: (size, sha) for name, size, sha in _list_entries(folder)}
        for name in sorted(expected_files.keys() | actual_files.keys()):
            if name not in actual_files:
                raise CorruptError(f"artifact {digest[:12]}: {name} is missing")
            if name not in expected_files:
                raise CorruptError(f"artifact {digest[:12]}: {name} was added after publication")
            if actual_files[name] != expected_files[name]:
                raise CorruptError(f"artifact {digest[:12]}: {name} has changed since publication")
        if _digest_entries([(name, *expected_files[name]) for name in expected_files]) != digest:
            raise CorruptError(f"artifact {digest[:12]}: its manifest does not belong to it")
        return self.artifact(digest)

    def list(self, kind: str | None = None) -> Sequence[StoredArtifact]:
        """Return all artifacts with a readable manifest, ordered by digest. Use `verify` to check one."""
        artifacts = []
        for folder in sorted(self.artifacts.glob("??/*")):
            with contextlib.suppress(CorruptError, NotInStoreError):
                artifact = self.artifact(folder.name)
                if kind is None or artifact.kind == kind:
                    artifacts.append(artifact)
        return artifacts

    def _make_target_path(self, digest: str) -> Path:
        return self.root / format_artifact_key(digest)

    def _find_undamaged(self, digest: str) -> StoredArtifact | None:
        """Return the artifact if it is in the store and undamaged, else None, and reset its age.

        Only old artifacts are garbage collected. Returns None too if it was collected just now.
        """
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
        except PermissionError:  # owned by another user, so only that user can collect it
            pass
        return artifact

    def keep(self, digest: str) -> None:
        """Publish a lent file. Other digests are ignored."""
        if (lent_artifact := self.lent_artifacts.pop(digest, None)) is not None:
            self.publish(lent_artifact.path, digest)

    def release(self) -> None:
        """Remove the lent files that were not kept."""
        discard_lent(self.lent_artifacts)


def discard_lent(lent_artifacts: dict[str, StoredArtifact]) -> None:
    """Remove lent files that were not published."""
    while lent_artifacts:
        discard_path(lent_artifacts.popitem()[1].path)


def format_artifact_key(digest: str) -> str:
    """Return the path of an artifact relative to a store's root. Raises NotInStoreError for an invalid digest."""
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
    """Return whether a JSON value is an entry of a manifest: path, bytes and sha256."""
    return isinstance(value, list) and [*map(type, value)] == [str, int, str]


def _list_files(folder: Path) -> list[str]:
    """Return the relative POSIX paths of all files in `folder`, sorted by their UTF-8 bytes."""
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
    """Return (relative path, bytes, sha256) of every file except the manifest."""
    names = [name for name in _list_files(folder) if name != MANIFEST]
    if not names:
        raise StoreError(f"{folder} contains no files to publish")
    return [(name, (folder / name).stat().st_size, hash_file(folder / name, from_disk=from_disk)) for name in names]


def _digest_entries(files: list[tuple[str, int, str]]) -> str:
    import hashlib

    lines = [json.dumps([name, size, sha]) + "\n" for name, size, sha in sorted(files, key=lambda f: f[0].encode())]
    return hashlib.sha256(DIGEST_TAG + "".join(lines).encode()).hexdigest()
