"""The chunk files of one array while it is written: rows go straight into them, digests are taken on the way."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from store import array_format as fmt

_OPEN_FILES = 16  # waiting to be closed


class Closer:
    """Closes full chunks in a thread: their write-back starts while the next rows come, so the last sync is short."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="activations")
        self._waiting: deque[Future[None]] = deque()

    def close(self, file: BinaryIO) -> None:
        """Take over a file. An OSError met with an earlier one is raised here or by `finish`."""
        self._waiting.append(self._pool.submit(_close, file))
        if len(self._waiting) > _OPEN_FILES:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until all are closed."""
        while self._waiting:
            self._waiting.popleft().result()

    def stop(self) -> None:
        """End the thread."""
        self._pool.shutdown()


def _close(file: BinaryIO) -> None:
    with file:
        file.flush()
        if hasattr(os, "posix_fadvise"):  # on Linux this starts writing back what is dirty
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Column:
    """One array being filled, chunk after chunk: [rows, width], or an index array [rows] where `width` is None."""

    def __init__(
        self, folder: Path, closer: Closer, name: str, kind: fmt.LogicalType, width: int | None, chunk_rows: int
    ) -> None:
        self.name, self.kind, self.chunk_rows = name, kind, chunk_rows
        self.tail = () if width is None else (width,)
        self.digests: list[str] = []
        self._folder, self._closer, self._filled = folder, closer, 0
        self._file: BinaryIO | None = None
        (folder / name).mkdir(parents=True)

    def write(self, values: np.ndarray) -> None:
        """Append rows of the stored dtype; the caller may reuse their memory when this returns."""
        done = 0
        while done < len(values):
            if self._file is None:
                self._file = self._begin()
            take = min(self.chunk_rows - self._filled, len(values) - done)
            self._put(self._file, values[done : done + take])
            done += take
            if self._filled == self.chunk_rows:
                self._end(self._file)

    def finish(self) -> None:
        """End the last chunk. zarr's chunks are of one size: it is padded, unless it is the only one."""
        if self._file is not None:
            if self.digests:
                padding = (self.chunk_rows - self._filled, *self.tail)
                self._put(self._file, np.full(padding, self.kind.fill, self.kind.storage))
            self._end(self._file)

    def close(self) -> None:
        """Give up the chunk that is open."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _begin(self) -> BinaryIO:
        import xxhash

        path = self._folder / fmt.chunk_file(self.name, len(self.digests))
        file = open(path, "xb", buffering=1 << 18)  # noqa: SIM115  open until the chunk is full
        self._hash = xxhash.xxh3_128()
        size = self.chunk_rows * int(np.prod(self.tail, dtype=int)) * self.kind.storage.itemsize
        if hasattr(os, "posix_fallocate"):  # many files then cost little more than one; a full disk is told early
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
        self._filled += len(values)

    def _end(self, file: BinaryIO) -> None:
        if self._filled < self.chunk_rows:
            file.truncate()  # what was reserved and is not used
        self._file, self._filled = None, 0
        self.digests.append(self._hash.hexdigest())
        self._closer.close(file)
