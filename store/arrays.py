"""Activations on disk: `ActivationWriter` makes immutable groups, `ActivationArray` reads several as one array."""

from __future__ import annotations

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
    """One array of a group, as its own zarr.json describes it: plain memory, cut into chunks of whole rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int

    @classmethod
    def load(cls, file: Path) -> PlainArray:
        """Raises ValueError for an array whose chunks are not plain memory, one file each."""
        described = json.loads(file.read_bytes())
        shape = tuple(described["shape"])
        chunk_rows, *tail = described["chunk_grid"]["configuration"]["chunk_shape"]
        codecs = [(codec["name"], codec.get("configuration", {})) for codec in described["codecs"]]
        separator = described["chunk_key_encoding"]["configuration"]["separator"]
        if codecs != [("bytes", {"endian": "little"})] or separator != "." or tuple(tail) != shape[1:]:
            raise ValueError(f"{file.parent.name} is not plain memory")
        return cls(shape, np.dtype(described["data_type"]).newbyteorder("<"), int(chunk_rows))

    @cached_property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * int(np.prod(self.shape[1:], dtype=int)) * self.dtype.itemsize


class ArrayGroup:
    """One published group, checked when opened: attributes, array metadata, number and size of all chunk files.

    Chunks are bare memory in files of their own, so they are read without zarr: at three times its speed, and zarr 3.1
    would read a chunk that is missing as zeros and say nothing. The bytes of a chunk are compared with their digest
    when they are read for the first time in this process.
    """

    _sound: ClassVar[set[tuple[str, str]]] = set()  # (digest of a group here, chunk): compared in this process

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "zarr.json").is_file():
            raise NotInStoreError(f"there is no activation array at {path}")
        try:
            self.attributes: dict[str, Any] = json.loads((path / "zarr.json").read_bytes())["attributes"]
            if self.attributes["format"] != fmt.ARRAY_FORMAT:
                raise StoreError(f"array {path.name} has format {self.attributes['format']}, not {fmt.ARRAY_FORMAT}")
            self.rows: int = self.attributes["rows"]
            self.units: tuple[int, int] = tuple(self.attributes["units"])
            self.digest: str = self.attributes["digest"]
            self.kind = fmt.find_logical_type(self.attributes["logical_dtype"])
            names = [
                *map(fmt.hook_point_array, fmt.check_hook_points(self.attributes["hook_points"])),
                *fmt.INDEX_ARRAYS,
            ]
            self._arrays = {name: PlainArray.load(path / name / "zarr.json") for name in names}
            self._check()
        except (OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise CorruptError(f"the metadata of array {path.name} is damaged: {error}") from error

    def _check(self) -> None:
        width = self.attributes["d_model"]
        for name, array in self._arrays.items():
            layer = name.startswith("layers/")
            kind = self.kind if layer else fmt.INDEX_TYPE
            if array.shape != ((self.rows, width) if layer else (self.rows,)) or array.dtype != kind.storage:
                raise CorruptError(f"the metadata of array {self.path.name} is damaged: {name} is not as described")
            sizes = {entry.name: entry.stat().st_size for entry in os.scandir(self.path / name)}
            for chunk in range(self.chunks(name)):
                key = fmt.chunk_file(name, chunk)
                if Path(key).name not in sizes:
                    raise CorruptError(f"chunk {key} of array {self.path.name} is missing", FIX_COMMAND)
                if sizes[Path(key).name] != array.chunk_bytes:
                    raise CorruptError(
                        f"chunk {key} of array {self.path.name} is not {array.chunk_bytes} bytes long", FIX_COMMAND
                    )
            if self.chunks(name) != len(self.attributes["chunks"][name]):
                raise CorruptError(f"the metadata of array {self.path.name} is damaged: chunks of {name}")
        if fmt.group_digest(self.attributes) != self.digest:
            raise CorruptError(f"the metadata of array {self.path.name} has changed since publication")

    def chunk_rows(self, name: str) -> int:
        """Rows in a full chunk of this array."""
        return self._arrays[name].chunk_rows

    def chunks(self, name: str) -> int:
        """Number of chunks of this array."""
        return -(-self.rows // self.chunk_rows(name))

    def read_chunk(self, name: str, chunk: int) -> np.ndarray:
        """The rows of one chunk, without padding. Raises CorruptError naming it when it is lost or cut short."""
        size = self.chunk_rows(name)
        return self.slice(name, chunk * size, min((chunk + 1) * size, self.rows))

    def slice(self, name: str, low: int, high: int) -> np.ndarray:
        """Rows low..high of one array."""
        array = self._arrays[name]
        out = np.empty((max(high - low, 0), *array.shape[1:]), array.dtype)
        self.read_into(name, low, out)
        return out

    def read_into(self, name: str, low: int, out: np.ndarray) -> None:
        """Fill `out` (C-contiguous) with the rows from `low` on.

        Raises CorruptError naming the chunk that is lost, cut short or not what was published.
        """
        size, done = self.chunk_rows(name), 0
        while done < len(out):
            chunk, skip = divmod(low + done, size)
            piece = out[done : done + size - skip]
            key = fmt.chunk_file(name, chunk)
            at, wanted = skip * (piece.nbytes // len(piece)), piece.data.cast("B")
            sound = (f"{self.path}:{self.digest}", key) in self._sound
            whole = piece.nbytes == self._arrays[name].chunk_bytes
            try:
                with open(f"{self.path}/{key}", "rb", buffering=0) as file:  # a Path takes as long to join as to open
                    if sound or whole:
                        file.seek(at)
                        complete = file.readinto(wanted) == piece.nbytes
                        if complete and not sound:
                            self._compare(name, chunk, wanted)
                    else:
                        content = file.readall()
                        self._compare(name, chunk, content)
                        wanted[:] = content[at : at + piece.nbytes]
                        complete = True
            except FileNotFoundError:
                raise CorruptError(f"chunk {key} of array {self.path.name} is missing", FIX_COMMAND) from None
            except OSError as error:
                raise StoreError(f"chunk {key} of array {self.path.name} cannot be read: {error.strerror}") from error
            if not complete:
                raise CorruptError(f"chunk {key} of array {self.path.name} is cut short", FIX_COMMAND)
            done += len(piece)

    def _compare(self, name: str, chunk: int, content: bytes | memoryview) -> None:
        """Raises CorruptError where this, the whole content of a chunk, is not what was published."""
        import xxhash

        key = fmt.chunk_file(name, chunk)
        if len(content) != self._arrays[name].chunk_bytes:
            raise CorruptError(f"chunk {key} of array {self.path.name} is cut short", FIX_COMMAND)
        if xxhash.xxh3_128_hexdigest(content) != self.attributes["chunks"][name][chunk]:
            raise CorruptError(f"chunk {key} of array {self.path.name} has changed since publication", FIX_COMMAND)
        self._sound.add((f"{self.path}:{self.digest}", key))

    def verify(self) -> None:
        """Read every chunk again and compare with its digest. Raises CorruptError naming the first that differs."""
        for name in self._arrays:
            for chunk in range(self.chunks(name)):
                key = fmt.chunk_file(name, chunk)
                try:
                    self._compare(name, chunk, (self.path / key).read_bytes())
                except OSError as error:
                    raise CorruptError(f"chunk {key} of array {self.path.name} is missing", FIX_COMMAND) from error


class ActivationArray:
    """Several groups of one spec as one logical array, ordered by their units. Rows are numbered from 0 through all.

    >>> array = ActivationArray.open(*groups(store, spec))   # doctest: +SKIP
    >>> array.read("blocks.3.hook_resid_post", [0, 5, 9]).shape  # doctest: +SKIP
    (3, 512)
    """

    def __init__(self, parts: Sequence[ArrayGroup]) -> None:
        if not parts:
            raise NotInStoreError("no activation array was named, or none of this spec is published")
        self.parts = sorted(parts, key=lambda part: part.units)
        first = self.parts[0].attributes
        for part in self.parts[1:]:
            for key in ("spec_hash", "d_model", "logical_dtype", "hook_points"):
                if part.attributes[key] != first[key]:
                    raise StoreError(f"arrays {self.parts[0].path.name} and {part.path.name} differ in {key}")
        for before, after in zip(self.parts, self.parts[1:], strict=False):
            if after.units[0] < before.units[1] or after.units == before.units:
                raise StoreError(f"arrays {before.path.name} and {after.path.name} hold the same units")
        self.spec: dict[str, Any] = first["spec"]
        self.spec_hash: str = first["spec_hash"]
        self.hook_points: tuple[str, ...] = tuple(first["hook_points"])
        self.d_model: int = first["d_model"]
        self.dtype: str = first["logical_dtype"]
        self.units = [part.units for part in self.parts]
        self.digests = [part.digest for part in self.parts]
        self.starts = np.cumsum([0, *(part.rows for part in self.parts)])
        self.rows = int(self.starts[-1])

    @classmethod
    def open(cls, *paths: Path | str) -> ActivationArray:
        """Open the groups at these paths. Raises NotInStoreError, CorruptError (a chunk is missing), StoreError."""
        return cls([ArrayGroup(Path(path)) for path in paths])

    @classmethod
    def of(cls, store: Store, spec: Mapping[str, Any]) -> ActivationArray:
        """All published groups of a spec as one array. Raises NotInStoreError when there are none."""
        return cls([ArrayGroup(path) for path in list_groups(store, spec)])

    @property
    def nbytes(self) -> int:
        """Bytes of all activations, without index arrays and padding."""
        return self.rows * self.d_model * len(self.hook_points) * self.parts[0].kind.storage.itemsize

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def game(self) -> np.ndarray:
        """int32 [rows]: the game of each row, as its row number in the dataset."""
        return self._index("game")

    @cached_property
    def token(self) -> np.ndarray:
        """int32 [rows]: the token (index in the game's text) of each row."""
        return self._index("token")

    @cached_property
    def ply(self) -> np.ndarray:
        """int32 [rows]: the ply of each row."""
        return self._index("ply")

    def _index(self, name: str) -> np.ndarray:
        return np.concatenate([part.slice(name, 0, part.rows) for part in self.parts])

    def read(self, hook_point: str, rows: slice | Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Activations [n, d_model] of these rows in their order (None: all; a boolean mask selects).

        In the stored type: bfloat16 comes as uint16 bits, for `as_float32` or `torch.from_numpy(…).view(bfloat16)`.
        Raises NotInStoreError for another hook point, StoreError for a row out of range, CorruptError for a lost chunk.
        """
        name = self.array_name(hook_point)
        if rows is None or (isinstance(rows, slice) and rows.step in (None, 1)):
            low, high, _ = (rows or slice(None)).indices(self.rows)
            out = np.empty((max(high - low, 0), self.d_model), self.parts[0].kind.storage)
            for part, start in zip(self.parts, map(int, self.starts), strict=False):
                first, last = max(low, start), min(high, start + part.rows)
                if first < last:
                    part.read_into(name, first - start, out[first - low : last - low])
            return out
        wanted = self.row_numbers(rows)
        out = np.empty((len(wanted), self.d_model), self.parts[0].kind.storage)
        order = np.argsort(wanted, kind="stable")
        for group, chunk, first, last in self.chunk_table(hook_point):
            here = order[slice(*np.searchsorted(wanted, (first, last), sorter=order))]
            if len(here):
                out[here] = self.parts[group].read_chunk(name, chunk)[wanted[here] - first]
        return out

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
        """Shuffled batches of `batch_rows` rows (the last may be smaller, or is dropped), every kept row exactly once.

        `keep` is a boolean mask [rows] or row numbers; the mixing buffer holds `mix_chunks` chunks of each layer, and
        `prefetch` chunks are read ahead. Bad arguments raise StoreError here, before the first batch.
        """
        hook_points = (hook_points,) if isinstance(hook_points, str) else tuple(hook_points)
        if not hook_points or batch_rows < 1 or mix_chunks < 1 or prefetch < 1:
            raise StoreError("batches need a hook point, and at least one row, one chunk to mix and one to read ahead")
        table = self.chunk_table(hook_points[0])
        names = [self.array_name(name) for name in hook_points]
        rows = np.arange(self.rows) if keep is None else np.unique(self.row_numbers(keep))
        spans = np.searchsorted(rows, [(first, last) for *_, first, last in table]).reshape(-1, 2)
        plan = [(group, chunk, first, rows[a:b]) for (group, chunk, first, _), (a, b) in zip(table, spans, strict=True)]
        plan = [entry for entry in plan if len(entry[3])]
        largest = max((len(entry[3]) for entry in plan), default=1)
        generator = make_batch_generator(seed, epoch)
        order = [plan[i] for i in generator.permutation(len(plan))]

        def load(group: int, chunk: int, first: int, wanted: np.ndarray) -> Columns:
            part, local = self.parts[group], wanted - first
            chunks = (part.read_chunk(name, chunk) for name in names)
            return [wanted, *(values if len(local) == len(values) else values[local] for values in chunks)]

        def batches() -> Iterator[Batch]:
            pieces = mix_rows(read_ahead(load, order, prefetch), largest * mix_chunks, generator)
            for columns in cut_into_batches(pieces, batch_rows, drop_last):
                yield Batch(columns[0], dict(zip(hook_points, columns[1:], strict=True)), self.dtype)

        return batches()

    def verify(self) -> list[str]:
        """Read every byte again; returns the digests of the groups. Raises CorruptError naming the damaged chunk."""
        for part in self.parts:
            part.verify()
        return self.digests

    def array_name(self, hook_point: str) -> str:
        """The name in a group of this hook point's array. Raises NotInStoreError."""
        if hook_point not in self.hook_points:
            raise NotInStoreError(f"array {self.spec_hash[:12]} has no {hook_point!r}", f"has {list(self.hook_points)}")
        return fmt.hook_point_array(hook_point)

    def chunk_table(self, hook_point: str) -> list[tuple[int, int, int, int]]:
        """Every chunk as (group, chunk in it, first row, last row + 1); the same for all hook points."""
        name = self.array_name(hook_point)
        table = []
        for number, (part, start) in enumerate(zip(self.parts, map(int, self.starts), strict=False)):
            size = part.chunk_rows(name)
            for chunk in range(part.chunks(name)):
                table.append((number, chunk, start + chunk * size, start + min((chunk + 1) * size, part.rows)))
        return table

    def row_numbers(self, rows: slice | Iterable[int] | np.ndarray) -> np.ndarray:
        """Row numbers int64 [n] of a slice, a boolean mask [rows] or indices. Raises StoreError out of range."""
        if isinstance(rows, slice):
            return np.arange(self.rows, dtype=np.int64)[rows]
        wanted = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows))
        if wanted.dtype == bool:
            if wanted.shape != (self.rows,):
                raise StoreError(f"a mask over {self.rows} rows cannot have the shape {list(wanted.shape)}")
            return np.flatnonzero(wanted)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise StoreError(f"row numbers are integers, not {wanted.dtype.name}")
        wanted = wanted.astype(np.int64).reshape(-1)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.rows):
            raise StoreError(f"row {wanted.min() if wanted.min() < 0 else wanted.max()} is not among {self.rows} rows")
        return wanted
