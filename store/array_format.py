"""The on-disk format of activations: names, data types, chunk sizes, attributes and digests. Shared by writer and
reader.

One group holds the activations of one (spec, range of units): arrays `layers/<hook point>` [rows, d_model] and, for
each row, `game` (row in the dataset), `token` (index in the game's text) and `ply`, int32. Chunks are 4 MiB, row-major,
uncompressed, one file each (`c.<i>.0`); the last one is padded with the fill value. The attributes of the group hold an
xxh3-128 digest of every chunk and the sha256 of all of these (sha256 alone would be slower than the disk: 1.8 GB/s
against 32 GB/s).
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
MAX_METADATA_BYTES = 64 << 20  # of a metadata file, which has one digest per chunk
INDEX_ARRAYS = ("game", "token", "ply")
_HOOK_POINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True)
class LogicalType:
    """A data type of activations: its name, its representation in numpy and zarr, and the fill value for unwritten
    elements."""

    name: str
    storage: np.dtype[Any]
    fill: float | int


# numpy lacks bfloat16, so its bits are stored as uint16; 0xFFFF is a NaN
LOGICAL_TYPES = {
    "float16": LogicalType("float16", np.dtype("<f2"), float("nan")),
    "bfloat16": LogicalType("bfloat16", np.dtype("<u2"), 0xFFFF),
    "float32": LogicalType("float32", np.dtype("<f4"), float("nan")),
}
INDEX_TYPE = LogicalType("int32", np.dtype("<i4"), -1)


def find_logical_type(name: str) -> LogicalType:
    """Return the type named `name`: float16, bfloat16 or float32. Raises StoreError for any other name."""
    if name not in LOGICAL_TYPES:
        raise StoreError(f"activations cannot be stored as {name!r}", f"choose one of {', '.join(LOGICAL_TYPES)}")
    return LOGICAL_TYPES[name]


def check_hook_points(hook_points: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple. Raises StoreError for an empty sequence, for duplicates, and for invalid
    folder names."""
    names = tuple(hook_points)
    if not names or len(set(names)) != len(names):
        raise StoreError(f"hook points must be named once each, not {list(names)}")
    for name in names:
        if not _HOOK_POINT.match(name) or name in INDEX_ARRAYS:
            raise StoreError(f"hook point {name!r} cannot be a folder's name", "for example blocks.3.hook_resid_post")
    return names


def get_hook_point_array(hook_point: str) -> str:
    """Return the path of a hook point's array within a group."""
    return f"layers/{hook_point}"


def compute_chunk_rows(d_model: int, itemsize: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the number of rows in a full chunk."""
    return max(1, chunk_bytes // (d_model * itemsize))


def format_chunk_file(array: str, chunk: int) -> str:
    """Return the path of a chunk in a group: `layers/<hook point>/c.<i>.0`, or `game/c.<i>` for an index array."""
    return f"{array}/c.{chunk}" + (".0" if array.startswith("layers/") else "")


def encode_canonical_json(value: object) -> bytes:
    """Return JSON that is identical for equal values: sorted keys, no spaces. Raises StoreError for other values and
    NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise StoreError(f"the attributes of an array must be plain JSON: {error}") from None


def hash_spec(spec: Mapping[str, Any]) -> str:
    """Return the spec's `spec_hash` entry, else the sha256 of its canonical JSON."""
    stored_hash = spec.get("spec_hash")
    if isinstance(stored_hash, str) and re.fullmatch(r"[0-9a-f]{16,128}", stored_hash):
        return stored_hash
    return hashlib.sha256(encode_canonical_json(dict(spec))).hexdigest()


def group_id(spec: Mapping[str, Any], units: tuple[int, int]) -> str:
    """Return the folder name of the group that holds units [first, last) of this spec."""
    return f"{hash_spec(spec)[:32]}-{units[0]}-{units[1]}"


def group_path(store: Store, spec: Mapping[str, Any], units: tuple[int, int]) -> Path:
    """Return the folder of the group that holds these units of this spec. It need not exist."""
    return store.arrays / group_id(spec, units)


def list_groups(store: Store, spec: Mapping[str, Any]) -> list[Path]:
    """Return the folders of a spec's published groups, ordered by their first unit."""
    paths = [path for path in store.arrays.glob(f"{hash_spec(spec)[:32]}-*-*") if (path / "zarr.json").is_file()]
    return sorted(paths, key=lambda path: tuple(map(int, path.name.rsplit("-", 2)[1:])))


def group_digest(attributes: Mapping[str, Any]) -> str:
    """Return the sha256 of a group: the digest of its attributes, which contain the digest of every chunk."""
    return hashlib.sha256(encode_canonical_json({k: v for k, v in attributes.items() if k != "digest"})).hexdigest()


def list_group_files(metadata: bytes, digest: str | None) -> dict[str, int]:
    """Return file name → maximum bytes for a group, from the `zarr.json` of another store.

    Raises CorruptError unless the metadata is valid and matches `digest` (None: the digest that it contains).
    """
    try:
        attributes = json.loads(metadata)["attributes"]
        names = [*map(get_hook_point_array, check_hook_points(attributes["hook_points"])), *INDEX_ARRAYS]
        rows, width, size = (
            int(attributes["rows"]),
            int(attributes["d_model"]),
            LOGICAL_TYPES[attributes["logical_dtype"]],
        )
        chunks = {name: len(attributes["chunks"][name]) for name in names}
        actual_digest = group_digest(attributes)
        if actual_digest != (attributes["digest"] if digest is None else digest):
            raise CorruptError(f"the metadata of this array is of digest {actual_digest[:12]}, not as expected")
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise CorruptError(f"the metadata of this array is damaged: {error}") from error
    files = dict.fromkeys(
        ["zarr.json", "layers/zarr.json", *(f"{name}/zarr.json" for name in names)], MAX_METADATA_BYTES
    )
    for name in names:
        bytes_of_row = width * size.storage.itemsize if name.startswith("layers/") else INDEX_TYPE.storage.itemsize
        for chunk in range(chunks[name]):
            files[format_chunk_file(name, chunk)] = max(rows, 1) * bytes_of_row
    return files


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Convert float32 to bfloat16 bits as uint16, rounding to nearest even as torch does. NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded_bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype("<u2"), rounded_bits)


def decode_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert stored values of logical type `dtype` to float32, exactly."""
    if dtype == "bfloat16":
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)
