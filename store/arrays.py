"""Reads activations: `ActivationArray` presents several immutable groups as one array."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from store import array_format as fmt
from store.array_format import decode_float32, group_path, list_groups, to_bfloat16
from store.batches import Batch, Columns, cut_into_batches, make_batch_generator, mix_rows, read_ahead
from store.errors import CorruptError, NotInStoreError, StoreError

if TYPE_CHECKING:
    from store.store import Store

__all__ = ["ActivationArray", "Batch", "decode_float32", "group_path", "list_groups", "to_bfloat16"]


FIX_COMMAND = "chessreg doctor --digests --fix"


@dataclass(frozen=True)
class PlainArray:
    """The layout of one array of a group, from its zarr.json: uncompressed memory in chunks of whole rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int

    @classmethod
    def load(cls, file: Path) -> PlainArray:
        """Read a zarr.json. Raises ValueError unless the chunks are uncompressed memory, one file each."""
        metadata = json.loads(file.read_bytes())
        shape = tuple(metadata["shape"])
        chunk_rows, *tail = metadata["chunk_grid"]["configuration"]["chunk_shape"]
        codecs = [(codec["name"], codec.get("configuration", {})) for codec in metadata["codecs"]]
        separator = metadata["chunk_key_encoding"]["configuration"]["separator"]
        if codecs != [("bytes", {"endian": "little"})] or separator != "." or tuple(tail) != shape[1:]:
            raise ValueError(f"{file.parent.name} is not plain memory")
        return cls(shape, np.dtype(metadata["data_type"]).newbyteorder("<"), int(chunk_rows))

    @cached_property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * int(np.prod(self.shape[1:], dtype=int)) * self.dtype.itemsize


class ArrayGroup:
    """One published group. Its attributes, metadata and the number and sizes of its chunk files are checked when
    opened.

    Chunks are uncompressed memory in separate files, so they are read without zarr. This is three times as fast, and
    zarr 3.1 silently reads a missing chunk as zeros. A chunk is compared with its digest when this process first reads
    it.
    """

    _sound: ClassVar[set[tuple[str, str]]] = set()  # (path and digest of a group, chunk) verified by this process

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "zarr.json").is_file():
            raise NotInStoreError(f"no activation array was found at {path}")
        try:
            self.attributes: dict[str, Any] = json.loads((path / "zarr.json").read_bytes())["attributes"]
            if self.attributes["format"] != fmt.ARRAY_FORMAT:
                raise StoreError(f"array {path.name} has format {self.attributes['format']}, not {fmt.ARRAY_FORMAT}")
            self.rows: int = self.attributes["rows"]
            self.units: tuple[int, int] = tuple(self.attributes["units"])
            self.digest: str = self.attributes["digest"]
            self.kind = fmt.find_logical_type(self.attributes["logical_dtype"])
            names = [
                *map(fmt.get_hook_point_array, fmt.check_hook_points(self.attributes["hook_points"])),
                *fmt.INDEX_ARRAYS,
            ]
            self._arrays = {name: PlainArray.load(path / name / "zarr.json") for name in names}
            self._check()
        except (OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            if getattr(error, "errno", None) == errno.ENOMEM:
                raise
            raise CorruptError(f"the metadata of array {path.name} is damaged: {error}") from error

    def _check(self) -> None:
        width = self.attributes["d_model"]
        for name, array in self._arrays.items():
            layer = name.startswith("layers/")
            kind = self.kind if layer else fmt.INDEX_TYPE
            if array.shape != ((self.rows, width) if layer else (self.rows,)) or array.dtype != kind.storage:
                raise CorruptError(f"the metadata of array {self.path.name} is damaged: {name} is not as described")
            sizes = {entry.name: entry.stat().st_size for entry in os.scandir(self.path / name)}
            for chunk in range(self.count_chunks(name)):
                key = fmt.format_chunk_file(name, chunk)
                if Path(key).name not in sizes:
                    raise CorruptError(f"chunk {key} of array {self.path.name} is missing", FIX_COMMAND)
                if sizes[Path(key).name] != array.chunk_bytes:
                    raise CorruptError(
                        f"chunk {key} of array {self.path.name} is not {array.chunk_bytes} bytes long", FIX_COMMAND
                    )
            if self.count_chunks(name) != len(self.attributes["chunks"][name]):
                raise CorruptError(f"the metadata of array {self.path.name} is damaged: chunks of {name}")
        if fmt.group_digest(self.attributes) != self.digest:
            raise CorruptError(f"the metadata of array {self.path.name} has changed since publication")

    def chunk_rows(self, name: str) -> int:
        """Return the number of rows in a full chunk of this array."""
        return self._arrays[name].chunk_rows

    def count_chunks(self, name: str) -> int:
        """Return the number of chunks of this array."""
        return -(-self.rows // self.chunk_rows(name))

    def read_chunk(self, name: str, chunk: int) -> np.ndarray:
        """Return the rows of one chunk, without padding. Raises CorruptError if it is missing or truncated."""
        size = self.chunk_rows(name)
        return self.slice(name, chunk * size, min((chunk + 1) * size, self.rows))

    def slice(self, name: str, low: int, high: int) -> np.ndarray:
        """Return rows [low, high) of one array."""
        array = self._arrays[name]
        values = np.empty((max(high - low, 0), *array.shape[1:]), array.dtype)
        self.read_into(name, low, values)
        return values

    def read_into(self, name: str, low: int, out: np.ndarray) -> None:
        """Fill `out` (C-contiguous) with the rows from `low` on.

        Raises CorruptError, naming the chunk, if one is missing, truncated or changed.
        """
        size, read_rows = self.chunk_rows(name), 0
        while read_rows < len(out):
            chunk, skip = divmod(low + read_rows, size)
            piece = out[read_rows : read_rows + size - skip]
            key = fmt.format_chunk_file(name, chunk)
            at, target = skip * (piece.nbytes // len(piece)), piece.data.cast("B")
            is_verified = (f"{self.path}:{self.digest}", key) in self._sound
            is_whole_chunk = piece.nbytes == self._arrays[name].chunk_bytes
            try:
                with open(
                    f"{self.path}/{key}", "rb", buffering=0
                ) as file:  # joining a Path is as slow as opening the file
                    if is_verified or is_whole_chunk:
                        file.seek(at)
                        complete = file.readinto(target) == piece.nbytes
                        if complete and not is_verified:
                            self._compare(name, chunk, target)
                    else:
                        content = file.readall()
                        self._compare(name, chunk, content)
                        target[:] = content[at : at + piece.nbytes]
                        complete = True
            except FileNotFoundError:
                raise CorruptError(f"chunk {key} of array {self.path.name} is missing", FIX_COMMAND) from None
            except OSError as error:
                raise StoreError(f"chunk {key} of array {self.path.name} cannot be read: {error.strerror}") from error
            if not complete:
                raise CorruptError(f"chunk {key} of array {self.path.name} is cut short", FIX_COMMAND)
            read_rows += len(piece)

    def _compare(self, name: str, chunk: int, content: bytes | memoryview) -> None:
        """Raise CorruptError unless `content`, a whole chunk, has the published digest."""
        import xxhash

        key = fmt.format_chunk_file(name, chunk)
        if len(content) != self._arrays[name].chunk_bytes:
            raise CorruptError(f"chunk {key} of array {self.path.name} is cut short", FIX_COMMAND)
        if xxhash.xxh3_128_hexdigest(content) != self.attributes["chunks"][name][chunk]:
            raise CorruptError(f"chunk {key} of array {self.path.name} has changed since publication", FIX_COMMAND)
        self._sound.add((f"{self.path}:{self.digest}", key))

    def verify(self) -> None:
        """Compare every chunk with its digest. Raises CorruptError, naming the first that differs."""
        for name in self._arrays:
            for chunk in range(self.count_chunks(name)):
                key = fmt.format_chunk_file(name, chunk)
                try:
                    self._compare(name, chunk, (self.path / key).read_bytes())
                except OSError as error:
                    raise CorruptError(f"chunk {key} of array {self.path.name} is missing", FIX_COMMAND) from error


class ActivationArray:
    """Several groups of one spec as one array, ordered by their units. Rows are numbered consecutively from 0.

    >>> array = ActivationArray.open(*list_groups(store, spec))   # doctest: +SKIP
    >>> array.read("blocks.3.hook_resid_post", [0, 5, 9]).shape  # doctest: +SKIP
    (3, 512)
    """

    def __init__(self, parts: Sequence[ArrayGroup]) -> None:
        if not parts:
            raise NotInStoreError("no published activation array of this spec was found")
        self.parts = sorted(parts, key=lambda part: part.units)
        first_attributes = self.parts[0].attributes
        for part in self.parts[1:]:
            for key in ("spec_hash", "d_model", "logical_dtype", "hook_points"):
                if part.attributes[key] != first_attributes[key]:
                    raise StoreError(f"arrays {self.parts[0].path.name} and {part.path.name} differ in {key}")
        for before, next_part in zip(self.parts, self.parts[1:], strict=False):
            if next_part.units[0] < before.units[1] or next_part.units == before.units:
                raise StoreError(f"arrays {before.path.name} and {next_part.path.name} hold the same units")
        self.spec: dict[str, Any] = first_attributes["spec"]
        self.spec_hash: str = first_attributes["spec_hash"]
        self.hook_points: tuple[str, ...] = tuple(first_attributes["hook_points"])
        self.d_model: int = first_attributes["d_model"]
        self.dtype: str = first_attributes["logical_dtype"]
        self.units = [part.units for part in self.parts]
        self.digests = [part.digest for part in self.parts]
        self.starts = np.cumsum([0, *(part.rows for part in self.parts)])
        self.rows = int(self.starts[-1])

    @classmethod
    def open(cls, *paths: Path | str) -> ActivationArray:
        """Open the groups at these paths. Raises NotInStoreError, StoreError, and CorruptError for a missing chunk."""
        return cls([ArrayGroup(Path(path)) for path in paths])

    @classmethod
    def from_spec(cls, store: Store, spec: Mapping[str, Any]) -> ActivationArray:
        """Return all published groups of a spec as one array. Raises NotInStoreError if none is published."""
        return cls([ArrayGroup(path) for path in list_groups(store, spec)])

    @property
    def nbytes(self) -> int:
        """The size of all activations in bytes, without index arrays and padding."""
        return self.rows * self.d_model * len(self.hook_points) * self.parts[0].kind.storage.itemsize

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def game(self) -> np.ndarray:
        """int32 [rows]: the row number in the dataset of each row's game."""
        return self._read_index("game")

    @cached_property
    def token(self) -> np.ndarray:
        """int32 [rows]: the token position of each row in the game's text."""
        return self._read_index("token")

    @cached_property
    def ply(self) -> np.ndarray:
        """int32 [rows]: the ply of each row."""
        return self._read_index("ply")

    def _read_index(self, name: str) -> np.ndarray:
        return np.concatenate([part.slice(name, 0, part.rows) for part in self.parts])

    def read(self, hook_point: str, rows: slice | Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Return activations [n, d_model] of `rows` in their order. None means all rows; a boolean mask selects.

        Values have the stored type: bfloat16 is returned as uint16 bits, for `decode_float32` or
        `torch.from_numpy(…).view(bfloat16)`. Raises NotInStoreError for an unknown hook point, StoreError for a row out
        of range, and CorruptError for a missing chunk.
        """
        name = self.find_array_name(hook_point)
        if rows is None or (isinstance(rows, slice) and rows.step in (None, 1)):
            low, high, _ = (rows or slice(None)).indices(self.rows)
            values = np.empty((max(high - low, 0), self.d_model), self.parts[0].kind.storage)
            for part, start in zip(self.parts, map(int, self.starts), strict=False):
                first, last = max(low, start), min(high, start + part.rows)
                if first < last:
                    part.read_into(name, first - start, values[first - low : last - low])
            return values
        row_numbers = self.list_row_numbers(rows)
        values = np.empty((len(row_numbers), self.d_model), self.parts[0].kind.storage)
        order = np.argsort(row_numbers, kind="stable")
        for group, chunk, first, last in self.chunk_table(hook_point):
            group_order = order[slice(*np.searchsorted(row_numbers, (first, last), sorter=order))]
            if len(group_order):
                values[group_order] = self.parts[group].read_chunk(name, chunk)[row_numbers[group_order] - first]
        return values

    def iter_batches(
        self,
        hook_points: str | Sequence[str],
        batch_rows: int,
        seed: int,
        epoch: int = 0,
        *,
        keep: np.ndarray | Sequence[int] | None = None,
        mix_chunks: int = 8,
        prefetch: int = 2,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """Yield shuffled batches of `batch_rows` rows, each kept row exactly once. The last batch may be smaller or is
        dropped.

        `keep` is a boolean mask [rows] or row numbers. The shuffle buffer holds `mix_chunks` chunks of each hook point,
        and `prefetch` chunks are read ahead. Raises StoreError for invalid arguments immediately, before the first
        batch.
        """
        hook_points = (hook_points,) if isinstance(hook_points, str) else tuple(hook_points)
        if not hook_points or batch_rows < 1 or mix_chunks < 1 or prefetch < 1:
            raise StoreError("batches need a hook point, and at least one row, one chunk to mix and one to read ahead")
        table = self.chunk_table(hook_points[0])
        names = [self.find_array_name(name) for name in hook_points]
        rows = np.arange(self.rows) if keep is None else np.unique(self.list_row_numbers(keep))
        spans = np.searchsorted(rows, [(first, last) for *_, first, last in table]).reshape(-1, 2)
        plan = [(group, chunk, first, rows[a:b]) for (group, chunk, first, _), (a, b) in zip(table, spans, strict=True)]
        plan = [entry for entry in plan if len(entry[3])]
        largest = max((len(entry[3]) for entry in plan), default=1)
        generator = make_batch_generator(seed, epoch)
        order = [plan[i] for i in generator.permutation(len(plan))]

        def load_chunk(group: int, chunk: int, first: int, wanted_rows: np.ndarray) -> Columns:
            part, local = self.parts[group], wanted_rows - first
            chunks = (part.read_chunk(name, chunk) for name in names)
            return [wanted_rows, *(values if len(local) == len(values) else values[local] for values in chunks)]

        def read_batches() -> Iterator[Batch]:
            pieces = mix_rows(read_ahead(load_chunk, order, prefetch), largest * mix_chunks, generator)
            for columns in cut_into_batches(pieces, batch_rows, drop_last):
                yield Batch(columns[0], dict(zip(hook_points, columns[1:], strict=True)), self.dtype)

        return read_batches()

    def verify(self) -> list[str]:
        """Read and verify every chunk. Return the digests of the groups. Raises CorruptError naming a damaged chunk."""
        for part in self.parts:
            part.verify()
        return self.digests

    def find_array_name(self, hook_point: str) -> str:
        """Return the array name of a hook point in a group. Raises NotInStoreError for an unknown hook point."""
        if hook_point not in self.hook_points:
            raise NotInStoreError(f"array {self.spec_hash[:12]} has no {hook_point!r}", f"has {list(self.hook_points)}")
        return fmt.get_hook_point_array(hook_point)

    def chunk_table(self, hook_point: str) -> list[tuple[int, int, int, int]]:
        """Return (group, chunk, first row, last row + 1) of every chunk. It is the same for all hook points."""
        name = self.find_array_name(hook_point)
        table = []
        for number, (part, start) in enumerate(zip(self.parts, map(int, self.starts), strict=False)):
            size = part.chunk_rows(name)
            for chunk in range(part.count_chunks(name)):
                table.append((number, chunk, start + chunk * size, start + min((chunk + 1) * size, part.rows)))
        return table

    def list_row_numbers(self, rows: slice | Iterable[int] | np.ndarray) -> np.ndarray:
        """Return row numbers int64 [n] of a slice, a boolean mask [rows] or indices. Raises StoreError if out of
        range."""
        if isinstance(rows, slice):
            return np.arange(self.rows, dtype=np.int64)[rows]
        row_numbers = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows))
        if row_numbers.dtype == bool:
            if row_numbers.shape != (self.rows,):
                raise StoreError(f"a mask over {self.rows} rows cannot have the shape {list(row_numbers.shape)}")
            return np.flatnonzero(row_numbers)
        if row_numbers.size and row_numbers.dtype.kind not in "iu":
            raise StoreError(f"row numbers are integers, not {row_numbers.dtype.name}")
        row_numbers = row_numbers.astype(np.int64).reshape(-1)
        if row_numbers.size and (row_numbers.min() < 0 or row_numbers.max() >= self.rows):
            raise StoreError(
                f"row {row_numbers.min() if row_numbers.min() < 0 else row_numbers.max()} is not among {self.rows} rows"
            )
        return row_numbers
