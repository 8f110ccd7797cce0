"""Arrow arrays to and from numpy by their buffers. `pyarrow.array` would import pandas first, 0.3 s of every start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def bits(array: pa.Array) -> np.ndarray:
    """Which values are there, bool [n]."""
    buffer = array.buffers()[0]
    if buffer is None or not array.null_count:
        return np.ones(len(array), bool)
    unpacked = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return unpacked[array.offset : array.offset + len(array)].astype(bool)


def validity(valid: np.ndarray) -> pa.Buffer | None:
    """The buffer that says which values are there; None when all are."""
    import pyarrow as pa

    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def bytes_of(array: pa.Array, length: int) -> np.ndarray:
    """The characters of texts that all have this length, uint8 [n without nulls, length]."""
    n = len(array) - array.null_count
    if not n:
        return np.zeros((0, length), np.uint8)
    wide = "large" in str(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    begin, end = int(offsets[array.offset]), int(offsets[array.offset + len(array)])
    if end - begin != n * length:
        raise ValueError(f"texts of other lengths than {length} among {n}")
    return np.frombuffer(array.buffers()[2], np.uint8, n * length, begin).reshape(n, length)


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers as float64 [n]; NULL is NaN."""
    kinds = {"int64": np.int64, "int32": np.int32, "uint64": np.uint64, "double": np.float64, "float": np.float32}
    parts = [np.zeros(0)]
    for chunk in column.chunks:
        kind = kinds.get(str(chunk.type))
        if kind is None:
            parts.append(np.array(chunk.to_pylist(), np.float64))
            continue
        data = np.frombuffer(chunk.buffers()[1], kind)[chunk.offset : chunk.offset + len(chunk)].astype(np.float64)
        parts.append(np.where(bits(chunk), data, np.nan))
    return np.concatenate(parts)


def lists(column: pa.ChunkedArray) -> np.ndarray:
    """A column of lists of numbers as float64 [n, length of the longest]; NULL, and what is beyond a list, is NaN."""
    import pyarrow as pa

    parts = []
    for chunk in column.chunks:
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        values = numbers(pa.chunked_array([chunk.values]))
        lengths = np.where(bits(chunk), np.diff(offsets), 0)
        place = np.arange(lengths.max(initial=0))
        wanted = np.minimum(offsets[:-1, None] + place, max(len(values) - 1, 0))
        parts.append(np.where(place < lengths[:, None], values[wanted] if len(values) else np.nan, np.nan))
    wide = max((part.shape[1] for part in parts), default=0)
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=np.nan) for part in parts]
    return np.concatenate([np.zeros((0, wide)), *padded])


def doubles(values: Sequence[float | None]) -> pa.Array:
    """float64 [n]; None is NULL."""
    import pyarrow as pa

    valid = np.array([value is not None for value in values], bool)
    data = np.array([0.0 if value is None else value for value in values], np.float64)
    return pa.Array.from_buffers(pa.float64(), len(data), [validity(valid), pa.py_buffer(data)])


def without_dashes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """UUIDs in text, 36 characters each, as their 32 hex digits."""
    import pyarrow as pa

    digits = [place for place in range(36) if place not in (8, 13, 18, 23)]
    chunks = []
    for chunk in column.chunks:
        valid = bits(chunk)
        offsets = np.zeros(len(chunk) + 1, np.int32)
        np.cumsum(32 * valid, out=offsets[1:])
        data = np.ascontiguousarray(bytes_of(chunk, 36)[:, digits])
        buffers = [validity(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
        chunks.append(pa.Array.from_buffers(pa.string(), len(chunk), buffers))
    return pa.chunked_array(chunks, pa.string())
