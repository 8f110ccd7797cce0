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
