"""Places where bytes can be left for other machines: a folder (itself a store), or a bucket by URL (`s3://…`).

A place holds artefacts by digest and groups of activations by name. What it gives back is verified before it is
visible here; what it is given is complete there, or not there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from store import artefacts
from store.errors import CorruptError, NotInStoreError, StoreError
from store.files import explained, fsync_path, fsync_tree
from store.staging import discard, staging_path
from store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

ZARR = "zarr.json"  # of a group: written last, so that a group with one is whole


class Place(Protocol):
    """Somewhere to push to and pull from."""

    def artefact_uri(self, digest: str) -> str: ...
    def array_uri(self, name: str) -> str: ...
    def has_artefact(self, digest: str) -> bool: ...
    def has_array(self, name: str) -> bool: ...
    def put_artefact(self, store: Store, digest: str) -> None: ...
    def put_array(self, store: Store, name: str) -> None: ...
    def get_artefact(self, store: Store, digest: str) -> None: ...
    def get_array(self, store: Store, name: str, digest: str) -> None: ...


def place(where: str, *, create: bool = False) -> Place:
    """The place at a folder or URL. Raises StoreError when it is not there, or its scheme needs a package."""
    if "://" in where:
        return Bucket(where)
    root = Path(where).expanduser()
    return Folder(Store.create(root) if create else Store(root))


class Folder:
    """A store in a folder that several machines mount, or a stick that is carried."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def artefact_uri(self, digest: str) -> str:
        return str(self.store.artefacts / digest[:2] / digest)

    def array_uri(self, name: str) -> str:
        return str(self.store.arrays / name)

    def has_artefact(self, digest: str) -> bool:
        return self.store.exists(digest)

    def has_array(self, name: str) -> bool:
        return (self.store.arrays / name / ZARR).is_file()

    def put_artefact(self, store: Store, digest: str) -> None:
        self.store.add(store.path(digest), store.artefact(digest).kind, expect=digest)

    def put_array(self, store: Store, name: str) -> None:
        copy_array(store.arrays / name, self.store, name)

    def get_artefact(self, store: Store, digest: str) -> None:
        store.add(self.store.path(digest), self.store.artefact(digest).kind, expect=digest)

    def get_array(self, store: Store, name: str, digest: str) -> None:
        copy_array(self.store.arrays / name, store, name, digest)


class Bucket:
    """An object store by URL, through obstore: `s3://bucket/prefix`, `gs://…`, `az://…`, credentials as usual there."""

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
            raise StoreError(f"cannot open {url}: {error}") from error

    def artefact_uri(self, digest: str) -> str:
        return f"{self.url}/artefacts/{digest[:2]}/{digest}"

    def array_uri(self, name: str) -> str:
        return f"{self.url}/arrays/{name}"

    def has_artefact(self, digest: str) -> bool:
        return self._exists(f"artefacts/{digest[:2]}/{digest}/{artefacts.MANIFEST}")

    def has_array(self, name: str) -> bool:
        return self._exists(f"arrays/{name}/{ZARR}")

    def put_artefact(self, store: Store, digest: str) -> None:
        self._put(store.path(digest), f"artefacts/{digest[:2]}/{digest}", last=artefacts.MANIFEST)

    def put_array(self, store: Store, name: str) -> None:
        self._put(store.arrays / name, f"arrays/{name}", last=ZARR)

    def get_artefact(self, store: Store, digest: str) -> None:
        key = f"artefacts/{digest[:2]}/{digest}"
        try:
            kind = str(json.loads(self._bytes(f"{key}/{artefacts.MANIFEST}"))["kind"])
        except (ValueError, KeyError) as error:
            raise CorruptError(f"the manifest of {digest[:12]} at {self.url} is damaged") from error
        with store.stage(kind) as folder:
            self._get(key, folder)
            (folder / artefacts.MANIFEST).unlink(missing_ok=True)
            store.publish(folder, expect=digest)

    def get_array(self, store: Store, name: str, digest: str) -> None:
        store.require_writable()
        aside = staging_path(store.tmp, "array")
        try:
            self._get(f"arrays/{name}", aside)
            copy_array(aside, store, name, digest)
        finally:
            discard(aside)

    # -- objects --------------------------------------------------------------------------------------------------

    def _exists(self, key: str) -> bool:
        try:
            self.obstore.head(self.bucket, key)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise StoreError(f"cannot reach {self.url}: {error}") from error
        return True

    def _bytes(self, key: str) -> bytes:
        try:
            return bytes(self.obstore.get(self.bucket, key).bytes())
        except FileNotFoundError:
            raise NotInStoreError(f"{self.url}/{key} does not exist") from None
        except Exception as error:
            raise StoreError(f"cannot read {self.url}/{key}: {error}") from error

    def _keys(self, prefix: str) -> Iterator[str]:
        for part in self.obstore.list(self.bucket, prefix=prefix + "/"):
            yield from (entry["path"] for entry in part)

    def _put(self, folder: Path, key: str, last: str) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        files.sort(key=lambda path: path.relative_to(folder).as_posix() == last)
        for path in files:
            try:
                self.obstore.put(self.bucket, f"{key}/{path.relative_to(folder).as_posix()}", path)
            except Exception as error:
                raise StoreError(f"cannot write to {self.url}: {error}") from error

    def _get(self, key: str, folder: Path) -> None:
        for found in self._keys(key):
            target = folder / found.removeprefix(key + "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            with explained(f"write {target}"):
                target.write_bytes(self._bytes(found))


def copy_array(source: Path, store: Store, name: str, digest: str | None = None) -> None:
    """Copy a published group of activations into a store, read every chunk of the copy again, then rename it.

    Raises NotInStoreError when the source is not there, CorruptError when the copy is not what was published.
    """
    from store.arrays import ActivationArray

    store.require_writable()
    if (store.arrays / name / ZARR).is_file():
        return
    if not (source / ZARR).is_file():
        raise NotInStoreError(f"there is no activation array at {source}")
    aside = staging_path(store.tmp, "array")
    with explained(f"copy array {name}"):
        try:
            shutil.copytree(source, aside)
            fsync_tree(aside)
            (found,) = ActivationArray.open(aside).verify()
            if digest is not None and found != digest:
                raise CorruptError(f"array {name} has digest {found[:12]}, not {digest[:12]} as expected")
            aside.rename(store.arrays / name)
            fsync_path(store.arrays)
        finally:
            discard(aside)
