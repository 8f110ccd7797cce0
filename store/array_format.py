"""How activations lie on disk: names, data types, chunk sizes, attributes, digests. Shared by writer and reader.

One group holds the activations of one (spec, range of units): arrays `layers/<hook point>` [rows, d_model] and, for
each row, `game` (row in the dataset), `token` (index in the game's text) and `ply`, int32. Chunks are 4 MiB, row-major,
uncompressed, one file each (`c.<i>.0`); the last one is padded with the fill value. The group's attributes hold an
xxh3-128 digest of every chunk (sha256 is slower than the disk: 1.8 GB/s here against 32) and, over all of these, the
group's sha256.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from store.errors import CorruptError, StoreError

if TYPE_CHECKING:
    from store.store import Store

ARRAY_FORMAT = 1
CHUNK_BYTES = 4 << 20
MAX_METADATA_BYTES = 64 << 20  # a file of metadata has at most; one digest a chunk is in it
INDEX_ARRAYS = ("game", "token", "ply")
_HOOK_POINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True)
class LogicalType:
    """A logical dtype: how numpy and zarr hold it, and the bit pattern (a NaN) of what was never written."""

    name: str
    storage: np.dtype[Any]
    fill: float | int


# numpy has no bfloat16: its bits travel as uint16, and 0xFFFF is one of its NaNs
LOGICAL_TYPES = {
    "float16": LogicalType("float16", np.dtype("<f2"), float("nan")),
    "bfloat16": LogicalType("bfloat16", np.dtype("<u2"), 0xFFFF),
    "float32": LogicalType("float32", np.dtype("<f4"), float("nan")),
}
INDEX_TYPE = LogicalType("int32", np.dtype("<i4"), -1)


def find_logical_type(name: str) -> LogicalType:
    """The type of this name; StoreError for any other than float16, bfloat16, float32."""
    if name not in LOGICAL_TYPES:
        raise StoreError(f"activations cannot be stored as {name!r}", f"choose one of {', '.join(LOGICAL_TYPES)}")
    return LOGICAL_TYPES[name]


def check_hook_points(hook_points: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; StoreError for none, a doubled one, or one that cannot be a folder."""
    names = tuple(hook_points)
    if not names or len(set(names)) != len(names):
        raise StoreError(f"hook points must be named once each, not {list(names)}")
    for name in names:
        if not _HOOK_POINT.match(name) or name in INDEX_ARRAYS:
            raise StoreError(f"hook point {name!r} cannot be a folder's name", "for example blocks.3.hook_resid_post")
    return names


def hook_point_array(hook_point: str) -> str:
    """Where in a group a hook point's activations lie."""
    return f"layers/{hook_point}"


def chunk_rows(d_model: int, itemsize: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Rows in one full chunk."""
    return max(1, chunk_bytes // (d_model * itemsize))


def chunk_file(array: str, chunk: int) -> str:
    """Relative path of a chunk: `layers/<hook point>/c.<i>.0`, or `game/c.<i>` for an index array."""
    return f"{array}/c.{chunk}" + (".0" if array.startswith("layers/") else "")


def canonical_bytes(value: object) -> bytes:
    """One JSON text for equal values: keys sorted, no spaces. StoreError for what JSON cannot hold, NaN included."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise StoreError(f"the attributes of an array must be plain JSON: {error}") from None


def spec_hash(spec: Mapping[str, Any]) -> str:
    """The spec's own `spec_hash` where it has one, else the sha256 of its canonical JSON."""
    stored = spec.get("spec_hash")
    if isinstance(stored, str) and re.fullmatch(r"[0-9a-f]{16,128}", stored):
        return stored
    return hashlib.sha256(canonical_bytes(dict(spec))).hexdigest()


def group_id(spec: Mapping[str, Any], units: tuple[int, int]) -> str:
    """Folder name of the group of units [first, last) of this spec."""
    return f"{spec_hash(spec)[:32]}-{units[0]}-{units[1]}"


def group_path(store: Store, spec: Mapping[str, Any], units: tuple[int, int]) -> Path:
    """Where that group is, or would be."""
    return store.arrays / group_id(spec, units)


def list_groups(store: Store, spec: Mapping[str, Any]) -> list[Path]:
    """The published groups of a spec, ordered by their first unit."""
    paths = [path for path in store.arrays.glob(f"{spec_hash(spec)[:32]}-*-*") if (path / "zarr.json").is_file()]
    return sorted(paths, key=lambda path: tuple(map(int, path.name.rsplit("-", 2)[1:])))


def group_digest(attributes: Mapping[str, Any]) -> str:
    """The sha256 that stands for a whole group: over its attributes, which hold the digest of every chunk."""
    return hashlib.sha256(canonical_bytes({k: v for k, v in attributes.items() if k != "digest"})).hexdigest()


def list_group_files(metadata: bytes, digest: str | None) -> dict[str, int]:
    """The files of a group with this `zarr.json` from another store → bytes that each has at most.

    Raises CorruptError unless the metadata is a group's and belongs to `digest` (None: to the one that it names).
    """
    try:
        attributes = json.loads(metadata)["attributes"]
        names = [*map(hook_point_array, check_hook_points(attributes["hook_points"])), *INDEX_ARRAYS]
        rows, width, size = (
            int(attributes["rows"]),
            int(attributes["d_model"]),
            LOGICAL_TYPES[attributes["logical_dtype"]],
        )
        chunks = {name: len(attributes["chunks"][name]) for name in names}
        actual = group_digest(attributes)
        if actual != (attributes["digest"] if digest is None else digest):
            raise CorruptError(f"the metadata of this array is of digest {actual[:12]}, not as expected")
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise CorruptError(f"the metadata of this array is damaged: {error}") from error
    files = dict.fromkeys(
        ["zarr.json", "layers/zarr.json", *(f"{name}/zarr.json" for name in names)], MAX_METADATA_BYTES
    )
    for name in names:
        bytes_of_row = width * size.storage.itemsize if name.startswith("layers/") else INDEX_TYPE.storage.itemsize
        for chunk in range(chunks[name]):
            files[chunk_file(name, chunk)] = max(rows, 1) * bytes_of_row
    return files


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 → bfloat16 bits as uint16, rounded to nearest even as torch does; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype("<u2"), rounded)


def decode_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Stored values of logical type `dtype` → float32, exactly (bfloat16 by a shift of its bits)."""
    if dtype == "bfloat16":
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)
