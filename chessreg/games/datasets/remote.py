"""Files behind an address, read over the network as if they were on disk: `s3://`, `gs://`, `https://` and `hf:`.

obstore reads buckets and web servers, huggingface_hub reads the Hugging Face hub, both with their usual credentials.
fsspec joins the two, but over obstore it asks web servers for listings, and its thread aborts the interpreter's end.
"""

from __future__ import annotations

import fnmatch
import functools
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, NoReturn, Protocol
from urllib.parse import unquote, urlsplit

from chessreg.errors import BadInputError, NotFoundError, get_first_line
from store.places import call_interruptibly

_ADDRESS = re.compile(r"(s3|gs|https?|hf)://|hf:(?=[^/])")
_WILDCARD = re.compile(r"[*?[]")
_FIRST_RANGE_BYTES = 1 << 14  # enough for the head of a file, by which its format is recognized
_RANGE_BYTES = 8 << 20


class _Place(Protocol):
    """A storage of files. Keys are paths inside it."""

    def measure(self, key: str) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError."""

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file."""

    def list_keys(self, folder: str) -> Iterable[str]:
        """Return the keys of the files below a folder, in any order."""


class _Bucket:
    """A bucket or a web server, through obstore."""

    def __init__(self, root: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise BadInputError(f"{root} needs the package obstore", "pip install 'chessreg[s3]'") from None
        self._obstore = obstore
        options: Any = {"allow_http": True} if root.startswith("http:") else None
        self._store: Any = from_url(root, client_options=options)

    def measure(self, key: str) -> int:
        return int(call_interruptibly(lambda: self._obstore.head(self._store, key))["size"])

    def read(self, key: str, start: int, stop: int) -> bytes:
        return bytes(call_interruptibly(lambda: self._obstore.get_range(self._store, key, start=start, end=stop)))

    def list_keys(self, folder: str) -> Iterable[str]:
        parts = call_interruptibly(lambda: list(self._obstore.list(self._store, prefix=folder or None)))
        return (entry["path"] for part in parts for entry in part)


class _Hub:
    """The Hugging Face hub. A key begins with the repository: `datasets/USER/NAME[@REVISION]/PATH`."""

    def __init__(self) -> None:
        from huggingface_hub import HfFileSystem

        self._files = HfFileSystem(endpoint=os.environ.get("HF_ENDPOINT") or None)

    def measure(self, key: str) -> int:
        info = self._files.info(key)
        if info["type"] != "file":
            raise FileNotFoundError(key)
        return int(info["size"])

    def read(self, key: str, start: int, stop: int) -> bytes:
        return bytes(self._files.cat_file(key, start=start, end=stop))

    def list_keys(self, folder: str) -> Iterable[str]:
        return map(str, self._files.find(folder))


@functools.cache
def _open_place(scheme: str, host: str) -> _Place:
    return _Hub() if scheme == "hf" else _Bucket(f"{scheme}://{host}")


class RemoteFile:
    """A file behind an address, with the methods of `Path` that readers of datasets use."""

    def __init__(self, address: str) -> None:
        """Raises BadInputError for an address of another kind, or with credentials or a query."""
        if not is_address(address):
            raise BadInputError(f"{address} is not an address of a file", "such as s3://BUCKET/FILE or hf:datasets/…")
        parts = urlsplit(re.sub(r"^hf:(?!//)", "hf://", address))
        if parts.username is not None or parts.query or parts.fragment:  # the address is recorded and shared
            raise BadInputError(
                f"the address of {PurePosixPath(parts.path).name} must not hold credentials or a query",
                "put credentials into the environment, as obstore and huggingface_hub read them",
            )
        self._scheme, self._host = parts.scheme, "" if parts.scheme == "hf" else parts.netloc
        self._key = f"{parts.netloc}{parts.path}" if parts.scheme == "hf" else unquote(parts.path).lstrip("/")

    @property
    def _place(self) -> _Place:
        return _open_place(self._scheme, self._host)

    def __str__(self) -> str:
        return f"hf:{self._key}" if self._scheme == "hf" else f"{self._scheme}://{self._host}/{self._key}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def name(self) -> str:
        return PurePosixPath(self._key).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self._key).suffix

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self._key).suffixes

    def with_name(self, name: str) -> RemoteFile:
        """Return the file with another name in the same folder."""
        return self._with_key(str(PurePosixPath(self._key).with_name(name)))

    def _with_key(self, key: str) -> RemoteFile:
        keyed_file = RemoteFile.__new__(RemoteFile)
        keyed_file._scheme, keyed_file._host, keyed_file._key = self._scheme, self._host, key
        return keyed_file

    def expand(self) -> list[RemoteFile]:
        """Return the files that match the address as a shell pattern, sorted; this file if it has no `*`, `?` or `[`.

        A `*` does not match `/`. Raises NotFoundError if none matches, BadInputError if the place does not list files.
        """
        if not _WILDCARD.search(self._key):
            return [self]
        if self._scheme.startswith("http"):
            raise BadInputError(f"{self}: a web server does not list its files", "give the address of each file")
        try:
            folder = _WILDCARD.split(self._key, maxsplit=1)[0].rpartition("/")[0]
            keys = sorted(filter(self._matches, self._place.list_keys(folder)))
        except Exception as error:
            self._raise_read_error(error)
        if not keys:
            raise NotFoundError(f"no file matches {self}")
        return [self._with_key(key) for key in keys]

    def _matches(self, key: str) -> bool:
        return key.count("/") == self._key.count("/") and fnmatch.fnmatchcase(key, self._key)

    def exists(self) -> bool:
        """Return whether the file exists. Raises BadInputError if the place does not answer."""
        try:
            self._size  # noqa: B018
        except NotFoundError:
            return False
        return True

    is_file = exists

    def stat(self) -> SimpleNamespace:
        """Return the size, as `st_size`. Raises NotFoundError."""
        return SimpleNamespace(st_size=self._size)

    @functools.cached_property
    def _size(self) -> int:
        try:
            return self._place.measure(self._key)
        except Exception as error:
            self._raise_read_error(error)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Return a seekable stream of the bytes, which are read in ranges.

        If the place stops answering, reading raises BadInputError, not OSError, because the file is not damaged.
        """
        return io.BufferedReader(_RangeReader(self._read_range, self._size), _RANGE_BYTES)

    def _read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`. Raises BadInputError if the file has become shorter."""
        try:
            data = self._place.read(self._key, start, stop)
        except Exception as error:
            self._raise_read_error(error)
        if len(data) != stop - start:
            raise BadInputError(f"{self} was changed while it was read", "add it again")
        return data

    def _raise_read_error(self, error: Exception) -> NoReturn:
        """Raise an error of a place as one of chessreg."""
        if isinstance(error, BadInputError):
            raise error
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"the file {self} does not exist") from error
        raise BadInputError(f"{self} cannot be read: {get_first_line(error)[:200]}") from error


InputFile = Path | RemoteFile


class _RangeReader(io.RawIOBase):
    """A file's bytes in ranges, which grow while it is read in order."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size = read_range, size
        self._offset, self._range_bytes = 0, _FIRST_RANGE_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = max(offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence], 0)
        return self._offset

    def readinto(self, buffer: Any) -> int:
        stop = min(self._offset + min(len(buffer), self._range_bytes), self._size)
        if stop <= self._offset:
            return 0
        buffer[: stop - self._offset] = self._read_range(self._offset, stop)
        bytes_read, self._offset = stop - self._offset, stop
        self._range_bytes = min(4 * self._range_bytes, _RANGE_BYTES)
        return bytes_read


def is_address(text: str) -> bool:
    """Return whether a text is the address of a file on another machine.

    >>> is_address("s3://bucket/games.parquet"), is_address("hf:datasets/USER/NAME/*.parquet"), is_address("games.pgn")
    (True, True, False)
    """
    return _ADDRESS.match(text) is not None


def list_input_files(place: str | Path) -> list[InputFile]:
    """Return the files that a path or an address denotes; an address may be a pattern. Raises the errors of
    `RemoteFile`.
    """
    return [*RemoteFile(str(place)).expand()] if is_address(str(place)) else [Path(place)]


@contextmanager
def fetch_copy(file: InputFile) -> Iterator[Path]:
    """Yield a file on disk with the bytes of `file`: itself, or a copy that is deleted afterwards.

    The copy is in the folder for temporary files (TMPDIR). Raises the errors of `RemoteFile.open`, and OSError for a
    full disk.
    """
    if isinstance(file, Path):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="chessreg-") as folder:
        path = Path(folder) / file.name
        with file.open() as source, path.open("wb") as target_file:
            shutil.copyfileobj(source, target_file, 1 << 20)
        yield path
