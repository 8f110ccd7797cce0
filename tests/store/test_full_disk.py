"""A full disk is one error with the path, for every library that meets it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store import Store
from store.errors import CorruptError, DiskFullError, StoreError
from store.files import allocate_space, convert_os_errors, is_disk_full, replace_file, write_whole

from ..full_disk import no_space_beyond, small_disk

VALUES = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
SMALL = 50_000  # bytes; VALUES has 1.2 MB


def with_safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"values": VALUES}, path)


def with_safetensors_of_torch(path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"values": torch.from_numpy(VALUES)}, path)


def with_torch_by_name(path: Path) -> None:
    import torch

    torch.save({"values": torch.from_numpy(VALUES)}, path)


def with_torch(path: Path) -> None:
    import torch

    with path.open("wb") as file:
        torch.save({"values": torch.from_numpy(VALUES)}, file)


def with_numpy_by_name(path: Path) -> None:
    np.save(path, VALUES)


def with_numpy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, VALUES)


def with_numpy_packed(path: Path) -> None:
    np.savez(path, values=VALUES)


def with_zarr(path: Path) -> None:
    import zarr
    from zarr.storage import LocalStore

    group = zarr.create_group(LocalStore(path), zarr_format=3)
    # One chunk: of several, zarr's threads would go on with the others and make the removed folder again.
    group.create_array("values", shape=VALUES.shape, chunks=VALUES.shape, dtype="f4", compressors=None)[...] = VALUES


def with_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"values": VALUES.ravel()}), path, compression=None)


def with_zstandard(path: Path) -> None:
    import zstandard

    with zstandard.open(path, "wb") as file:
        file.write(VALUES.tobytes())


def with_duckdb(path: Path) -> None:
    import duckdb

    duckdb.sql(f"COPY (SELECT random() FROM range(1000000)) TO '{path}' (FORMAT parquet)")


def by_copying(path: Path) -> None:
    shutil.copyfile(path.parents[2] / "source", path)


def mapped(path: Path) -> None:
    with path.open("w+b") as file:
        allocate_space(file, VALUES.nbytes)
        np.memmap(file, np.float32, "r+", shape=VALUES.shape)[...] = VALUES


WRITERS: list[Callable[[Path], None]] = [
    with_safetensors,
    with_safetensors_of_torch,
    with_torch,
    with_torch_by_name,
    with_numpy,
    with_numpy_by_name,
    with_numpy_packed,
    with_zarr,
    with_parquet,
    with_zstandard,
    with_duckdb,
    by_copying,
    mapped,
]


@pytest.mark.parametrize("write", WRITERS)
def test_every_writer_of_arrays_says_that_the_disk_is_full_and_where(
    store: Store, write: Callable[[Path], None]
) -> None:
    (store.root / "source").write_bytes(VALUES.tobytes())
    with (
        pytest.raises(DiskFullError, match="cannot write an artifact of kind probe: the disk is full at /") as caught,
        no_space_beyond(SMALL),
        store.stage("probe") as folder,
    ):
        write(folder / "values")
    assert caught.value.path.is_absolute()
    assert "free some space" in caught.value.hint
    assert not list(store.tmp.iterdir()), "what was written is removed, and its space is free"


def test_every_writer_meets_a_real_file_system_without_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 400_000) as disk:
        store = Store.create(disk / "store")
        (store.root / "source").symlink_to(tmp_path / "source")
        (tmp_path / "source").write_bytes(VALUES.tobytes())
        for write in WRITERS:
            with pytest.raises(DiskFullError, match=f"the disk is full at {disk}"), store.stage("probe") as folder:
                write(folder / "values")
            assert not list(store.tmp.iterdir()), write.__name__


def test_a_short_write_with_space_left_is_another_fault(tmp_path: Path) -> None:
    error = OSError("300000 requested and 12500 written")  # numpy names no reason: the disk may have failed
    assert not is_disk_full(error, tmp_path)
    with no_space_beyond(SMALL):
        assert is_disk_full(error, tmp_path)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), True),
        (OSError(errno.EIO, os.strerror(errno.EIO)), False),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("I/O error: Input/output error (os error 5)"), False),
        (RuntimeError("database or disk is full"), True),
        (ValueError("28 is too much"), False),
        (None, False),
    ],
)
def test_only_a_full_disk_is_one(error: BaseException | None, wanted: bool) -> None:
    assert is_disk_full(error) is wanted


def raised_while_handling(error: BaseException, *, dealt_with: bool) -> BaseException:
    """An error that code raises when it has met `error`."""
    later = RuntimeError("the file has another length")
    later.__context__, later.__suppress_context__ = error, dealt_with
    return later


def test_what_an_error_came_from_counts_unless_it_was_dealt_with() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert is_disk_full(raised_while_handling(full, dealt_with=False))
    assert not is_disk_full(raised_while_handling(full, dealt_with=True))


def test_errors_with_words_of_their_own_keep_them(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="another digest"), convert_os_errors("read", tmp_path):
        raise CorruptError("another digest") from OSError(errno.ENOSPC, "full")
    with pytest.raises(ValueError, match="no number"), convert_os_errors("read", tmp_path):
        raise ValueError("no number")
    with (
        pytest.raises(StoreError, match="cannot read: Permission denied") as denied,
        convert_os_errors("read", tmp_path),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert not isinstance(denied.value, DiskFullError)


@pytest.mark.parametrize("write", [with_torch, with_numpy])
def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_next_to_it(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"the last one")
    with (
        pytest.raises(DiskFullError, match=f"cannot write state.pt: the disk is full at {path}"),
        no_space_beyond(SMALL),
        replace_file(path, tmp_path / "state.tmp") as file,
    ):
        np.save(file, VALUES)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("state.pt", b"the last one")]


def test_a_file_of_the_user_s_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_whole(path, b"1,2\n")
    with pytest.raises(OSError, match="File too large"), no_space_beyond(SMALL):
        write_whole(path, VALUES.tobytes())
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("table.csv", b"1,2\n")]


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"a table")
        assert os.read(handle, 100) == b"a table"
    finally:
        os.close(handle)
    assert pipe.is_fifo()
