"""Corpora: arrays that are made once, in a stream, and then mapped from files by every run with the same data.

    corpora/<key>/corpus.json     the description whose digest is the key
    corpora/<key>/<column>.npy    one array for each column
    corpora/<key>/runs/<run id>   empty files: the runs that read it

A corpus is a cache: it can be removed at any time and is then made again. It is written in `tmp/` and renamed, so it is
complete or absent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from store.errors import LockHeldError
from store.files import (
    WriterLock,
    check_safe_name,
    convert_os_errors,
    discard_path,
    make_staging_path,
    sync_path,
    sync_tree,
    write_synced,
)
from store.store import Store

DESCRIPTION_FILE, RUNS_FOLDER = "corpus.json", "runs"
LOCK_POLL_S = 0.5
Columns = Mapping[str, tuple[type[np.generic], tuple[int, ...]]]
"""Column → (dtype, shape of one row)."""


class CorpusWriter:
    """Appends rows to the columns of a new corpus in `folder`."""

    def __init__(self, folder: Path, columns: Columns) -> None:
        self.folder, self._columns = folder, columns
        self.rows = dict.fromkeys(columns, 0)
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Self:
        for name in self._columns:
            self._files[name] = (self.folder / f"{name}.npy").open("wb")
            self._write_header(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            for name, file in self._files.items():
                stack.callback(file.close)
                if error is None:
                    file.seek(0)
                    self._write_header(name)

    def _write_header(self, name: str) -> None:
        """Write the header of a .npy file, whose length does not depend on the number of rows."""
        dtype, shape = self._columns[name]
        layout = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (self.rows[name], *shape)}
        np.lib.format.write_array_header_1_0(self._files[name], layout)

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows [n, *shape] to a column. Raises OSError."""
        dtype, shape = self._columns[name]
        assert rows.shape[1:] == shape
        self._files[name].write(np.ascontiguousarray(rows, dtype).tobytes())
        self.rows[name] += len(rows)


def open_corpus(
    store: Store,
    description: Mapping[str, Any],
    columns: Columns,
    write: Callable[[CorpusWriter], None],
    run_id: str | None = None,
    wait: Callable[[], None] = lambda: None,
) -> dict[str, np.ndarray]:
    """Return the columns of the corpus with this description, mapped from its files; `write` makes it if it is missing.

    One process makes a corpus at a time; others wait for it and call `wait` every half second. `run_id` is recorded as
    a user. Raises DiskFullError, StoreError, and the errors of `write` and `wait`; nothing is left behind then.
    """
    content = json.dumps(description, sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    folder = store.corpora / key
    while True:
        arrays = _map_columns(folder, columns, run_id)
        if arrays is not None:
            return arrays
        store.require_writable()
        try:
            lock = WriterLock(store.tmp, f"corpus-{key}", "training data")
        except LockHeldError:
            wait()
            time.sleep(LOCK_POLL_S)
            continue
        try:
            if _map_columns(folder, columns, run_id) is None:
                _make_corpus(store, folder, content, columns, write)
        finally:
            lock.release()


def _map_columns(folder: Path, columns: Columns, run_id: str | None) -> dict[str, np.ndarray] | None:
    """Return the columns of a corpus mapped into memory, or None if it is missing or damaged.

    Marks the corpus as used now, and by `run_id` if given.
    """
    try:
        with contextlib.suppress(PermissionError):  # a store that is open for reading only
            os.utime(folder)  # gc leaves new folders alone
            if run_id is not None:
                (folder / RUNS_FOLDER / check_safe_name("run id", run_id)).touch()
        arrays = {name: map_array(folder / f"{name}.npy") for name in columns}
    except (FileNotFoundError, EOFError, ValueError):
        return None
    layouts = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
    return arrays if layouts == {name: (np.dtype(dtype), shape) for name, (dtype, shape) in columns.items()} else None


def map_array(path: Path) -> np.ndarray:
    """Return the array of a .npy file, mapped for reading in random order, without reading ahead.

    Raises FileNotFoundError, and EOFError or ValueError for a damaged file.
    """
    return disable_read_ahead(np.load(path, mmap_mode="r"))


def disable_read_ahead(array: np.ndarray) -> np.ndarray:
    """Return a mapped array whose file is no longer read beyond the pages in use, which may be 8 MB per game."""
    if hasattr(mmap, "MADV_RANDOM"):
        array._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return array


def _make_corpus(
    store: Store, folder: Path, content: str, columns: Columns, write: Callable[[CorpusWriter], None]
) -> None:
    """Write a corpus to a temporary folder, and move it to `folder`. A damaged folder there is replaced.

    `content` is its description as JSON, and `write` writes the rows.
    """
    with store.open_scratch("corpus") as scratch, convert_os_errors("write training data", store.root):
        with CorpusWriter(scratch, columns) as writer:
            write(writer)
        (scratch / RUNS_FOLDER).mkdir()
        write_synced(scratch / DESCRIPTION_FILE, content.encode() + b"\n")
        sync_tree(scratch)
        if folder.exists():  # damaged
            damaged_path = make_staging_path(store.tmp, "damaged")
            folder.rename(damaged_path)
            discard_path(damaged_path)
        try:
            scratch.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process made it without locks
                raise
        sync_path(store.corpora)
