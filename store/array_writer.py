"""Writes activations: appended rows become one immutable zarr group, published by a rename."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from store import array_format as fmt
from store.arrays import ActivationArray
from store.errors import AlreadyPublishedError, StoreError
from store.files import WriterLock, convert_os_errors, discard_path, make_staging_path, sync_path, sync_tree

if TYPE_CHECKING:
    from store.store import Store


_MAX_OPEN_FILES = 16  # that wait to be closed


class FileCloser:
    """Closes full chunks in a thread, so that they are written back while more rows arrive and the final sync is
    short."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="activations")
        self._futures: deque[Future[None]] = deque()

    def close(self, file: BinaryIO) -> None:
        """Close `file` in the thread. Raises the OSError of an earlier file, if one failed."""
        self._futures.append(self._pool.submit(_close_file, file))
        if len(self._futures) > _MAX_OPEN_FILES:
            self._futures.popleft().result()

    def finish(self) -> None:
        """Wait until all files are closed."""
        while self._futures:
            self._futures.popleft().result()

    def stop(self) -> None:
        """End the thread."""
        self._pool.shutdown()


def _close_file(file: BinaryIO) -> None:
    with file:
        file.flush()
        if hasattr(os, "posix_fadvise"):  # on Linux this starts the write-back
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class ArrayColumn:
    """One array that is being written in chunks: [rows, width], or an index array [rows] if `width` is None."""

    def __init__(
        self, folder: Path, closer: FileCloser, name: str, kind: fmt.LogicalType, width: int | None, chunk_rows: int
    ) -> None:
        self.name, self.kind, self.chunk_rows = name, kind, chunk_rows
        self.tail = () if width is None else (width,)
        self.digests: list[str] = []
        self._folder, self._closer, self._rows_filled = folder, closer, 0
        self._file: BinaryIO | None = None
        (folder / name).mkdir(parents=True)

    def write(self, values: np.ndarray) -> None:
        """Append rows of the stored dtype. The caller may reuse their memory afterwards."""
        written_rows = 0
        while written_rows < len(values):
            if self._file is None:
                self._file = self._open_chunk()
            take = min(self.chunk_rows - self._rows_filled, len(values) - written_rows)
            self._put(self._file, values[written_rows : written_rows + take])
            written_rows += take
            if self._rows_filled == self.chunk_rows:
                self._end(self._file)

    def finish(self) -> None:
        """Write the last chunk, padded to the full size unless it is the only one, since zarr's chunks have one
        size."""
        if self._file is not None:
            if self.digests:
                padding = (self.chunk_rows - self._rows_filled, *self.tail)
                self._put(self._file, np.full(padding, self.kind.fill, self.kind.storage))
            self._end(self._file)

    def close(self) -> None:
        """Discard the open chunk."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open_chunk(self) -> BinaryIO:
        """Return the file of the next chunk, opened for writing, with its disk space reserved where the system can."""
        import xxhash

        path = self._folder / fmt.format_chunk_file(self.name, len(self.digests))
        file = open(path, "xb", buffering=1 << 18)  # noqa: SIM115  open until the chunk is full
        self._hash = xxhash.xxh3_128()
        size = self.chunk_rows * int(np.prod(self.tail, dtype=int)) * self.kind.storage.itemsize
        if hasattr(os, "posix_fallocate"):  # faster, and a full disk is detected early
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    file.close()
                    raise
        return file

    def _put(self, file: BinaryIO, values: np.ndarray) -> None:
        bare = np.ascontiguousarray(values).data.cast("B")  # as zarr writes it: row-major, little-endian
        file.write(bare)
        self._hash.update(bare)
        self._rows_filled += len(values)

    def _end(self, file: BinaryIO) -> None:
        if self._rows_filled < self.chunk_rows:
            file.truncate()  # release unused space
        self._file, self._rows_filled = None, 0
        self.digests.append(self._hash.hexdigest())
        self._closer.close(file)


class ActivationWriter:
    """Writes the group of one (spec, range of units). Used in a `with` block, it discards everything unless published.

    `spec` is any JSON mapping; it is stored as attributes, and its hash and `units` name the group. `rows` is the exact
    number of rows, or None if it is unknown. A second writer of the same group is refused: immediately on the same
    machine, else at `publish`. Raises AlreadyPublishedError, StoreError.
    """

    def __init__(
        self,
        store: Store,
        spec: Mapping[str, Any],
        hook_points: Sequence[str],
        d_model: int,
        dtype: str,
        rows: int | None = None,
        *,
        units: tuple[int, int] = (0, 0),
        chunk_bytes: int = fmt.CHUNK_BYTES,
    ) -> None:
        import xxhash  # noqa: F401  a missing package raises before the model runs, not after

        store.require_writable()
        self.store, self.spec, self.units, self.expected_rows = store, dict(spec), units, rows
        self.hook_points = fmt.check_hook_points(hook_points)
        self.kind = fmt.find_logical_type(dtype)
        self.d_model, self.rows = d_model, 0
        if d_model < 1 or units[0] < 0 or units[1] < units[0]:
            raise StoreError(f"no array has d_model {d_model} and units {units[0]}..{units[1]}")
        fmt.encode_canonical_json(self.spec)
        self.path = fmt.group_path(store, self.spec, units)
        self._lock = WriterLock(store.tmp, f"array-{self.path.name}")
        if self.path.exists():  # checked under the lock, whose last holder may have published it
            self._lock.release()
            raise AlreadyPublishedError(f"array {self.path.name} is published and never overwritten", self.path)
        self._folder = make_staging_path(store.tmp, "array")
        per_chunk = fmt.compute_chunk_rows(d_model, self.kind.storage.itemsize, chunk_bytes)
        index_chunk = fmt.compute_chunk_rows(1, fmt.INDEX_TYPE.storage.itemsize, chunk_bytes)
        self._columns: dict[str, ArrayColumn] = {}
        self._closer = FileCloser()
        self._open = True
        try:
            with convert_os_errors(f"write array {self.path.name}", self.path.parent):
                attributes = {
                    name: (fmt.get_hook_point_array(name), self.kind, d_model, per_chunk) for name in self.hook_points
                }
                indices = {name: (name, fmt.INDEX_TYPE, None, index_chunk) for name in fmt.INDEX_ARRAYS}
                for name, shape in (attributes | indices).items():
                    self._columns[name] = ArrayColumn(self._folder, self._closer, *shape)
        except BaseException:
            self.abort()
            raise

    def append(self, rows: Mapping[str, np.ndarray], game: np.ndarray, token: np.ndarray, ply: np.ndarray) -> None:
        """Append n rows. `rows` has an array [n, d_model] in the stored dtype for each hook point.

        `game`, `token` and `ply` are index arrays [n]. bfloat16 values are passed as bits (uint16, see `to_bfloat16`).
        Arrays are copied. Raises StoreError for a wrong shape or dtype, too many rows and a full disk; the group can
        then no longer be published.
        """
        if not self._open:
            raise StoreError(f"the writer of array {self.path.name} is closed")
        try:
            arrays, count = self._check_rows_to_append(rows, game, token, ply)
            with convert_os_errors(f"write array {self.path.name}", self.path.parent):
                for name, values in arrays.items():
                    self._columns[name].write(values)
        except BaseException:
            self.abort()
            raise
        self.rows += count

    def publish(self) -> Path:
        """Write the remaining rows, sync everything, and rename the group into place. Return its folder.

        If another process has published the group meanwhile, equal content is accepted and other content raises
        AlreadyPublishedError.
        """
        if not self._open:
            raise StoreError(f"the writer of array {self.path.name} is closed")
        try:
            if self.expected_rows is not None and self.rows != self.expected_rows:
                raise StoreError(f"array {self.path.name} got {self.rows} rows where {self.expected_rows} were planned")
            with convert_os_errors(f"publish array {self.path.name}", self.path.parent):
                attributes = self._finish()
                self._move_into_place(attributes["digest"])
            return self.path
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the group unless it is published, and remove the staging folder."""
        if self._open:
            self._open = False
            for column in self._columns.values():
                column.close()
            self._closer.stop()
            discard_path(self._folder)
            self._lock.release()

    def __enter__(self) -> ActivationWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _check_rows_to_append(
        self, rows: Mapping[str, np.ndarray], game: np.ndarray, token: np.ndarray, ply: np.ndarray
    ) -> tuple[dict[str, np.ndarray], int]:
        if set(rows) != set(self.hook_points):
            raise StoreError(f"rows of {sorted(rows)} were given, not of {sorted(self.hook_points)}")
        count = len(game)
        arrays = dict(rows)
        for name, values in rows.items():
            if values.shape != (count, self.d_model) or values.dtype != self.kind.storage:
                raise StoreError(
                    f"{name}: rows must be {self.kind.storage.name} [{count}, {self.d_model}] for dtype "
                    f"{self.kind.name}, not {values.dtype.name} {list(values.shape)}"
                )
        for name, index in zip(fmt.INDEX_ARRAYS, (game, token, ply), strict=True):
            index = np.asarray(index)
            if index.shape != (count,) or index.dtype.kind not in "iu":
                raise StoreError(f"{name}: must be integers [{count}], not {index.dtype.name} {list(index.shape)}")
            if count and not (int(index.min()) >= -(2**31) and int(index.max()) < 2**31):
                raise StoreError(f"{name}: {index.max()} does not fit int32")
            arrays[name] = index.astype(fmt.INDEX_TYPE.storage)
        if self.expected_rows is not None and self.rows + count > self.expected_rows:
            raise StoreError(
                f"array {self.path.name} got {self.rows + count} rows where {self.expected_rows} were planned"
            )
        return arrays, count

    def _finish(self) -> dict[str, Any]:
        """Write the last chunks and the metadata. Return the attributes of the group."""
        for column in self._columns.values():
            column.finish()
        self._closer.finish()
        attributes: dict[str, Any] = {
            "format": fmt.ARRAY_FORMAT,
            "spec": self.spec,
            "spec_hash": fmt.hash_spec(self.spec),
            "units": list(self.units),
            "rows": self.rows,
            "d_model": self.d_model,
            "logical_dtype": self.kind.name,
            "hook_points": list(self.hook_points),
            "chunks": {column.name: column.digests for column in self._columns.values()},
        }
        attributes["digest"] = fmt.group_digest(attributes)
        self._write_metadata(attributes)
        sync_tree(self._folder)
        return attributes

    def _write_metadata(self, attributes: dict[str, Any]) -> None:
        """Write the Zarr metadata of the group and its arrays."""
        import zarr
        from zarr.storage import LocalStore

        group = zarr.create_group(LocalStore(self._folder), zarr_format=3, attributes=attributes)
        for column in self._columns.values():
            chunk_rows = min(column.chunk_rows, max(self.rows, 1))
            group.create_array(
                column.name,
                shape=(self.rows, *column.tail),
                chunks=(chunk_rows, *column.tail),
                dtype=column.kind.storage,
                compressors=None,
                filters=None,
                fill_value=column.kind.fill,
                chunk_key_encoding={"name": "default", "separator": "."},  # all chunks in one folder
                attributes={"logical_dtype": column.kind.name},
                config={"write_empty_chunks": True},
            )

    def _move_into_place(self, digest: str) -> None:
        """Move the finished folder to its place. If another process has published the same content, keep that.

        Raises AlreadyPublishedError if the published content differs.
        """
        try:
            os.rename(self._folder, self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if ActivationArray.open(self.path).digests != [digest]:
                raise AlreadyPublishedError(
                    f"array {self.path.name} was published meanwhile with other content", self.path
                ) from None
        sync_path(self.store.arrays)
