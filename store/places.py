"""Places that hold bytes for other machines: a folder (another store) or a bucket (`s3://…`).

A place holds artifacts by digest and groups of activations by name. Downloads are verified before they become visible,
and uploads are complete or absent.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from store import artifacts
from store.errors import CorruptError, NotInStoreError, StoreError
from store.files import check_safe_name, convert_os_errors, discard_path, make_staging_path, sync_path, sync_tree
from store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

T = TypeVar("T")
GROUP_METADATA = "zarr.json"  # of a group; uploaded last, so a group with it is complete
PIECE_BYTES = 16 << 20  # read at a time
MAX_METADATA_BYTES = 64 << 20  # of a metadata file


def make_array_key(name: str) -> str:
    return f"arrays/{check_safe_name('the name of an array', name)}"


class ObjectSource(ABC):
    """A source that is read object by object. Keys are the paths of a store's files, relative to its root.

    The source is not trusted: names are checked before they become paths, sizes are limited, only files covered by a
    digest are read, and unlisted files and links are refused. Raises NotInStoreError for missing objects and
    CorruptError for wrong digests.
    """

    url: str  # for messages

    @abstractmethod
    def _has_object(self, key: str) -> bool: ...

    @abstractmethod
    def _list_keys(self, prefix: str) -> Iterable[str]:
        """Yield the keys that begin with `prefix/`."""

    @abstractmethod
    def _read(self, key: str) -> Iterator[bytes]:
        """Yield the bytes of an object in pieces. Raises NotInStoreError."""

    def has_artifact(self, digest: str) -> bool:
        return self._has_object(f"{artifacts.format_artifact_key(digest)}/{artifacts.MANIFEST}")

    def has_array(self, name: str) -> bool:
        return self._has_object(f"{make_array_key(name)}/{GROUP_METADATA}")

    def get_artifact(self, store: Store, digest: str) -> None:
        """Copy an artifact into the store. Raises StoreError if its content does not match the digest."""
        key = artifacts.format_artifact_key(digest)
        manifest = artifacts.parse_manifest(self._read_metadata(f"{key}/{artifacts.MANIFEST}"), digest)
        self._check_unlisted_files(key, {artifacts.MANIFEST, *(name for name, _, _ in manifest.files)})
        with store.stage(manifest.kind) as folder:
            for name, size, _ in manifest.files:
                self._get(f"{key}/{name}", folder / name, size)
            store.publish(folder, expect=digest)

    def get_array(self, store: Store, name: str, digest: str | None = None) -> None:
        """Copy a group of activations and verify every chunk before it becomes visible. `digest` is its expected
        digest, if known."""
        from store.array_format import list_group_files
        from store.arrays import ActivationArray

        store.require_writable()
        target, key = store.get_array_path(name), make_array_key(name)
        if (target / GROUP_METADATA).is_file():
            sync_path(store.arrays)  # the copying process may have ended before this sync
            return
        listed_files = list_group_files(self._read_metadata(f"{key}/{GROUP_METADATA}"), digest)
        self._check_unlisted_files(key, listed_files)
        part_path = make_staging_path(store.tmp, "array")
        with convert_os_errors(f"copy array {name}", store.root):
            try:
                for file, size in listed_files.items():
                    self._get(f"{key}/{file}", part_path / file, size, exactly=False)
                sync_tree(part_path)
                (is_damaged,) = ActivationArray.open(part_path).verify()
                if digest is not None and is_damaged != digest:
                    raise CorruptError(f"array {name} has digest {is_damaged[:12]}, not {digest[:12]} as expected")
                try:
                    part_path.rename(target)
                except OSError:
                    if not (target / GROUP_METADATA).is_file():  # otherwise another process has just copied it
                        raise
                sync_path(store.arrays)
            finally:
                discard_path(part_path)

    def _check_unlisted_files(self, key: str, listed_keys: Collection[str]) -> None:
        """Raise CorruptError if a file exists that is not listed."""
        for full_name in self._list_keys(key):
            if (name := full_name.removeprefix(f"{key}/")) not in listed_keys:
                raise CorruptError(f"{key} at {self.url} has a file that is not listed: {name!a}")

    def _read_metadata(self, key: str) -> bytes:
        """Return the content of a metadata file. Raises CorruptError if it is too large."""
        content = b""
        for piece in self._read(key):
            content += piece
            if len(content) > MAX_METADATA_BYTES:
                raise CorruptError(f"{key} at {self.url} is larger than metadata can be")
        return content

    def _get(self, key: str, target: Path, size: int, exactly: bool = True) -> None:
        """Write an object of exactly `size` bytes, or at most that if not `exactly`. Raises CorruptError for other
        sizes."""
        target.parent.mkdir(parents=True, exist_ok=True)
        remaining_bytes = size
        with convert_os_errors(f"write {target}"), target.open("xb") as file:
            for piece in self._read(key):
                remaining_bytes -= len(piece)
                if remaining_bytes < 0:
                    break
                file.write(piece)
        if remaining_bytes < 0 or (exactly and remaining_bytes):
            raise CorruptError(f"{key} at {self.url} is not {size} bytes long")


class FolderPlace(ObjectSource):
    """A store in a folder, such as a network share or a removable disk."""

    def __init__(self, store: Store) -> None:
        self.store, self.url = store, str(store.root)

    def make_artifact_uri(self, digest: str) -> str:
        return str(self.store.root / artifacts.format_artifact_key(digest))

    def make_array_uri(self, name: str) -> str:
        return str(self.store.get_array_path(name))

    def put_artifact(self, store: Store, digest: str) -> None:
        FolderPlace(store).get_artifact(self.store, digest)

    def put_array(self, store: Store, name: str) -> None:
        FolderPlace(store).get_array(self.store, name)

    def _has_object(self, key: str) -> bool:
        return (self.store.root / key).is_file()

    def _list_keys(self, prefix: str) -> Iterator[str]:
        root = self.store.root
        for parent, folders, files in os.walk(root / prefix):
            for name in (*folders, *files):
                path = Path(parent) / name
                if not self._is_plain_path(path, stat.S_ISREG if name in files else stat.S_ISDIR):
                    raise CorruptError(f"{path} is a link or a special file: a store holds plain files only")
                if name in files:
                    yield path.relative_to(root).as_posix()

    def _read(self, key: str) -> Iterator[bytes]:
        path = self.store.root / key
        try:
            if path.resolve() != self.store.root.resolve() / key or not self._is_plain_path(path, stat.S_ISREG):
                raise CorruptError(f"{path} is a link or a special file: a store holds plain files only")
            with path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except FileNotFoundError:
            raise NotInStoreError(f"{key} does not exist in {self.url}") from None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error

    @staticmethod
    def _is_plain_path(path: Path, is_such: Callable[[int], bool]) -> bool:
        return is_such(path.lstat().st_mode)


def call_interruptibly(call: Callable[[], T]) -> T:
    """Return what `call` returns, or raise what it raises, from another thread. Ctrl-C ends the wait.

    obstore waits for a server outside Python, up to three minutes with its retries, and does not notice signals. An
    executor of the standard library would wait for the call at the end of the interpreter.
    """
    future: Future[T] = Future()

    def set_result() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    Thread(target=set_result, daemon=True).start()
    return future.result()


class BucketPlace(ObjectSource):
    """An object store, through obstore: `s3://bucket/prefix`, `gs://…` or `az://…`, with its usual credentials."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise StoreError(f"{url} needs the package obstore", "pip install 'chessreg[s3]'") from None
        self.url, self.obstore = url.rstrip("/"), obstore
        try:
            self.bucket: Any = from_url(self.url)
        except Exception as error:
            reason = str(error).partition(" Debug source")[0].partition("\n")[0]  # obstore appends its Rust objects
            raise StoreError(f"cannot open {url}: {reason}", "write a bucket as s3://bucket/prefix", 4) from error

    def make_artifact_uri(self, digest: str) -> str:
        return f"{self.url}/{artifacts.format_artifact_key(digest)}"

    def make_array_uri(self, name: str) -> str:
        return f"{self.url}/{make_array_key(name)}"

    def put_artifact(self, store: Store, digest: str) -> None:
        self._upload_folder(store.path(digest), artifacts.format_artifact_key(digest), last_file=artifacts.MANIFEST)

    def put_array(self, store: Store, name: str) -> None:
        self._upload_folder(store.get_array_path(name), make_array_key(name), last_file=GROUP_METADATA)

    # -- objects --------------------------------------------------------------------------------------------------

    def _has_object(self, key: str) -> bool:
        """Return whether the bucket has an object `key`. Raises StoreError if it is unreachable."""
        try:
            call_interruptibly(lambda: self.obstore.head(self.bucket, key))
        except FileNotFoundError:
            return False
        except Exception as error:
            raise StoreError(f"cannot reach {self.url}: {error}") from error
        return True

    def _read(self, key: str) -> Iterator[bytes]:
        try:
            yield bytes(call_interruptibly(lambda: self.obstore.get(self.bucket, key).bytes()))
        except FileNotFoundError:
            raise NotInStoreError(f"{self.url}/{key} does not exist") from None
        except Exception as error:
            raise StoreError(f"cannot read {self.url}/{key}: {error}") from error

    def _list_keys(self, prefix: str) -> Iterator[str]:
        for part in call_interruptibly(lambda: list(self.obstore.list(self.bucket, prefix=prefix + "/"))):
            yield from (entry["path"] for entry in part)

    def _upload_folder(self, folder: Path, key: str, last_file: str) -> None:
        """Upload the files of a folder under `key`, the file `last_file` at the end. Raises StoreError."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        files.sort(key=lambda path: path.relative_to(folder).as_posix() == last_file)
        for path in files:
            try:
                name = f"{key}/{path.relative_to(folder).as_posix()}"
                call_interruptibly(partial(self.obstore.put, self.bucket, name, path))
            except Exception as error:
                raise StoreError(f"cannot write to {self.url}: {error}") from error


TransferPlace = FolderPlace | BucketPlace
"""A place to push to and pull from."""


def open_place(where: str, *, create: bool = False) -> TransferPlace:
    """Return the place at a folder or URL. Raises StoreError if it does not exist or needs a missing package."""
    if "://" in where:
        parts = urlsplit(where)
        web = parts.scheme in ("http", "https")
        if parts.password is not None or parts.query or (web and parts.username):  # the URL is recorded and shared
            raise StoreError("a bucket's URL must not hold credentials", "put them into the environment of its tools")
        return BucketPlace(where)
    try:
        root = Path(where).expanduser()
    except RuntimeError:
        raise StoreError(f"{where}: the home folder of that user is unknown", "write the path in full") from None
    return FolderPlace(Store.create(root) if create else Store(root))
