"""Fragments: files with result rows, the only way that workers write results. Ingest later copies them to the registry.

If a worker is killed, each of its fragments is complete or absent. A damaged fragment is refused as a whole. Rows that
must not be separated are added inside `with writer.write_together()`. After a crash during ingest a fragment may be
read again; ingest is idempotent.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import stat
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from store.errors import CorruptError, NotInStoreError, StoreError
from store.files import check_safe_name, convert_os_errors, discard_path, make_staging_path, sync_path, write_synced
from store.process import get_machine_name

if TYPE_CHECKING:
    from store.store import Store


FRAGMENT_FORMAT = 1
FRAGMENT_SUFFIX = ".jsonl.zst"
MAX_MEMORY_BYTES = 4 << 30  # for parsing a fragment; writers start a new one after 16 MiB or a unit
MAX_FRAGMENT_BYTES = MAX_MEMORY_BYTES // 8  # packed or unpacked
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Fragment:
    """A fragment file. Names sort by creation time (the writer's clock). All rows belong to the run `run_id`."""

    path: Path
    name: str
    run_id: str

    @classmethod
    def from_path(cls, path: Path) -> Fragment:
        """Return the fragment at `path`. Raises StoreError if the name is not that of a fragment."""
        if not path.name.endswith(FRAGMENT_SUFFIX) or not _has_fragment_name(path):
            raise StoreError(f"{path.name} is not the name of a fragment")
        return cls(path, path.name, path.name.removesuffix(FRAGMENT_SUFFIX).partition(".")[2])

    def read(self) -> Iterator[tuple[str, Rows]]:
        """Return (table, rows) pairs in the order written. The whole fragment is checked first.

        Raises CorruptError if it is damaged, and NotInStoreError if it was moved away.
        """
        _, lines = self._read_checked()
        return iter(
            [(table, [line["row"] for line in table_lines]) for table, table_lines in groupby(lines, itemgetter("t"))]
        )

    def read_header(self) -> dict[str, Any]:
        """Return `run`, `attempt`, `machine` and `created` (seconds since 1970) after checking the fragment."""
        return self._read_checked()[0]

    def _read_checked(self) -> tuple[dict[str, Any], Rows]:
        return self._unpack_content(self._read_packed())

    def _read_packed(self) -> bytes:
        """Return the bytes of the file. Raises CorruptError unless it is a regular file of at most
        MAX_FRAGMENT_BYTES."""
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # opening a pipe would block
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FRAGMENT_BYTES:
                    problem = (
                        "it is not a file" if status.st_size <= MAX_FRAGMENT_BYTES else f"it has {status.st_size} bytes"
                    )
                    raise CorruptError(f"fragment {self.name} is damaged: {problem}")
                return file.read(status.st_size)
        except FileNotFoundError:
            raise NotInStoreError(f"fragment {self.name} is not at {self.path.parent}") from None
        except OSError as error:
            raise StoreError(f"cannot read fragment {self.name}: {error.strerror}") from error

    def _unpack_content(self, packed_content: bytes) -> tuple[dict[str, Any], Rows]:
        """Return the header and the rows of a fragment file.

        Raises CorruptError if it is damaged, and StoreError if it has another format.
        """
        import zstandard

        try:
            if zstandard.frame_content_size(packed_content) > MAX_FRAGMENT_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_FRAGMENT_BYTES >> 20} MiB")
            text = zstandard.ZstdDecompressor().decompress(packed_content, allow_extra_data=False)
            if estimate_memory(text) > MAX_MEMORY_BYTES:
                raise ValueError(f"its rows take more than {MAX_MEMORY_BYTES >> 30} GiB of memory")
            body, _, footer_line = text[:-1].rpartition(b"\n")
            footer = json.loads(footer_line)
            if text[-1:] != b"\n" or footer["crc32"] != zlib.crc32(body + b"\n"):
                raise ValueError("its checksum differs")
            head, _, body = body.partition(b"\n")
            header = json.loads(head)
            if header["chessreg_fragment"] != FRAGMENT_FORMAT:
                raise StoreError(
                    f"fragment {self.name} has format {header['chessreg_fragment']}, not {FRAGMENT_FORMAT}",
                    "read it with the chessreg version that wrote it",
                )
            # JSON contains no raw newlines, so parsing all lines as one list is safe and twice as fast
            lines = json.loads(
                b"[" + body.replace(b"\n", b",") + b"]", object_hook=decode_bytes if HAS_BYTES in body else None
            )
            if not all(isinstance(line["t"], str) and isinstance(line["row"], dict) for line in lines):
                raise ValueError("a line is not a row")
            if len(lines) != footer["end"] or header["run"] != self.run_id:
                raise ValueError("it does not match its name and footer")
        except (zstandard.ZstdError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CorruptError(f"fragment {self.name} is damaged: {error}") from error
        return header, lines


def estimate_memory(text: bytes) -> int:
    """Return an upper bound of the memory in bytes for parsing this JSON text.

    The text is copied four times, decoded, and cut into strings with up to 4 bytes per character. Each value and each
    key is a Python object of at most 100 bytes plus its characters.
    """
    copies = 6 if text.isascii() and b"\\u" not in text else 12
    return copies * len(text) + 100 * (len(text) - len(text.translate(None, b",:[{\n")))


def pack_fragment(run_id: str, attempt_id: str, created_ns: int, lines: list[bytes]) -> bytes:
    """Return the bytes of a fragment file of this run and attempt. `lines` are its encoded rows.

    `created_ns` is the time in nanoseconds since 1970. Raises StoreError if the rows are too large to read back.
    """
    import zstandard

    header = {"chessreg_fragment": FRAGMENT_FORMAT, "run": run_id, "attempt": attempt_id}
    head = json.dumps({**header, "machine": get_machine_name(), "created": created_ns / 1e9}).encode()
    body = b"\n".join([head, *lines]) + b"\n"
    if len(body) > MAX_FRAGMENT_BYTES - 1000 or estimate_memory(body) > MAX_MEMORY_BYTES - 10_000:
        message = f"{len(lines)} rows take more than the {MAX_MEMORY_BYTES >> 30} GiB of memory that a fragment may"
        raise StoreError(message, "emit fewer rows in one unit")
    footer = json.dumps({"end": len(lines), "crc32": zlib.crc32(body)}).encode() + b"\n"
    return zstandard.ZstdCompressor(level=6, write_checksum=True).compress(body + footer)


def place_file(store: Store, data: bytes, target: Path) -> None:
    """Write `data` to a temporary file, sync it, and rename it to `target`."""
    part_path = make_staging_path(store.tmp, "fragment")
    with convert_os_errors(f"write fragment {target.name}", store.root):
        try:
            write_synced(part_path, data)
            part_path.rename(target)
            sync_path(target.parent)
        except BaseException:
            discard_path(part_path)
            raise


def make_uuid7(nanoseconds: int) -> uuid.UUID:
    """Return a UUIDv7 (RFC 9562) with the fraction of the millisecond in `rand_a`, sortable to 0.25 µs."""
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    return uuid.UUID(int=milliseconds << 80 | 7 << 76 | (rest * 4096 // 1_000_000) << 64 | 2 << 62 | random)


_BYTES = "$bytes"
HAS_BYTES = b'"$bytes":'  # only a key: inside a JSON string its quotes would be escaped


class _Encoder(json.JSONEncoder):
    """Encodes JSON without NaN, bytes as base64, and numpy scalars and arrays as Python values."""

    def __init__(self) -> None:
        super().__init__(allow_nan=False, separators=(",", ":"))

    def default(self, o: Any) -> Any:
        if isinstance(o, (bytes, bytearray, memoryview)):
            return {_BYTES: base64.b64encode(o).decode()}
        if hasattr(o, "tolist") and hasattr(o, "dtype"):  # numpy, which is not imported here
            return o.tolist()
        raise TypeError(f"{type(o).__name__} cannot be part of a row")


_ENCODER = _Encoder()


def encode_row(table: str, row: Mapping[str, Any]) -> bytes:
    """Return one row as a line without its newline. Raises StoreError naming a field that cannot be encoded."""
    try:
        text = _ENCODER.encode(dict(row)).encode()
        if HAS_BYTES in text and text.count(HAS_BYTES) != _count_bytes(row):
            raise ValueError(f"the key {_BYTES} is reserved")
    except (TypeError, ValueError, RecursionError) as error:
        field = _find_offender(row)
        unit = f" of unit {row['unit']}" if "unit" in row else ""
        name = f"{table} row{unit}, field {field}" if field else f"{table} row{unit}"
        reason = "NaN or infinite" if str(error).startswith("Out of range float") else error
        raise StoreError(f"{name}: {reason}", "rows hold finite numbers, text, bytes, lists and dicts") from None
    return b'{"t":' + json.dumps(table).encode() + b',"row":' + text + b"}"


def decode_bytes(value: dict[str, Any]) -> Any:
    """Convert `{"$bytes": …}` back to bytes. Used as `object_hook`."""
    if len(value) == 1 and _BYTES in value:
        return binascii.a2b_base64(value[_BYTES], strict_mode=True)
    return value


def _count_bytes(value: Any) -> int:
    """Return the number of bytes values in a row's value, also in nested mappings and lists."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return 1
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    return sum(map(_count_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _find_offender(value: Any, path: str = "") -> str:
    """Return the path of the first value that JSON rejects, such as `detail.loss`. Empty if none is found."""
    if isinstance(value, Mapping):
        children = [(f"{path}.{key}" if path else str(key), child) for key, child in value.items()]
    elif isinstance(value, (list, tuple)):
        children = [(f"{path}[{number}]", child) for number, child in enumerate(value)]
    else:
        if isinstance(value, float) and not math.isfinite(value):
            return path
        try:
            _ENCODER.encode(value)
        except (TypeError, ValueError):
            return path
        return ""
    return next(filter(None, (_find_offender(child, name) for name, child in children[:10_000])), "")


def list_pending(store: Store) -> list[Fragment]:
    """Return the fragments that wait for ingest, ordered by creation."""
    return _list_fragments(store.incoming)


def list_foreign_files(store: Store) -> list[Path]:
    """Return the files in `incoming/` that are not named like fragments. Ingest ignores them."""
    return [path for path in sorted(store.incoming.glob(f"*{FRAGMENT_SUFFIX}")) if not _has_fragment_name(path)]


def list_ingested(store: Store, run_id: str | None = None) -> list[Fragment]:
    """Return the ingested fragments, of one run or of all, ordered by creation."""
    folders = store.ingested.iterdir() if run_id is None else [store.ingested / check_safe_name("run id", run_id)]
    fragments = [fragment for folder in folders if folder.is_dir() for fragment in _list_fragments(folder)]
    return sorted(fragments, key=lambda fragment: fragment.name)


def mark_ingested(store: Store, fragment: Fragment, *, keep: bool = True) -> None:
    """Move a fragment to `ingested/<run id>/`, or delete it unless `keep`. Does nothing if it was moved already."""
    store.require_writable()
    with convert_os_errors(f"mark fragment {fragment.name} as ingested"):
        try:
            if not keep:
                fragment.path.unlink()
                return
            folder = store.ingested / fragment.run_id
            folder.mkdir(exist_ok=True)
            if not any(folder.iterdir()):  # new, or created by a process that ended before this sync
                sync_path(store.ingested)
            fragment.path.rename(folder / fragment.name)
            sync_path(folder)
        except FileNotFoundError:
            pass


def quarantine_fragment(store: Store, fragment: Fragment, reason: str) -> Path:
    """Move a fragment to quarantine, with its reason in `<name>.reason.txt`. Return its new path."""
    store.require_writable()
    target = store.quarantine / fragment.name
    with convert_os_errors(f"quarantine fragment {fragment.name}"):
        write_synced(target.with_name(target.name + ".reason.txt"), reason.encode() + b"\n")
        if fragment.path.exists():
            fragment.path.rename(target)
        sync_path(store.quarantine)
    return target


def read_or_quarantine(store: Store, fragment: Fragment) -> list[tuple[str, Rows]] | None:
    """Return the rows of a fragment. None if it is damaged, which quarantines it, or was ingested by another
    process."""
    try:
        return list(fragment.read())
    except CorruptError as error:
        quarantine_fragment(store, fragment, error.message)
    except NotInStoreError:
        pass
    return None


def adopt_fragment(store: Store, path: Path) -> Fragment | None:
    """Copy a fragment of another store to `incoming/`. None if this store has or had it. Raises CorruptError."""
    store.require_writable()
    fragment = Fragment.from_path(path)
    if (store.incoming / fragment.name).exists() or (store.ingested / fragment.run_id / fragment.name).exists():
        return None
    packed_fragment = fragment._read_packed()
    fragment._unpack_content(packed_fragment)
    with convert_os_errors(f"copy fragment {fragment.name}"):
        place_file(store, packed_fragment, store.incoming / fragment.name)
    return Fragment.from_path(store.incoming / fragment.name)


def _list_fragments(folder: Path) -> list[Fragment]:
    return [Fragment.from_path(path) for path in sorted(folder.glob(f"*{FRAGMENT_SUFFIX}")) if _has_fragment_name(path)]


def _has_fragment_name(path: Path) -> bool:
    return path.name.removesuffix(FRAGMENT_SUFFIX).count(".") == 1


class Together:
    """Rows to be written to a single fragment, so that all of them are ingested or none."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Add one row (see FragmentWriter.add)."""
        self.lines.append(encode_row(table, row))


class FragmentWriter:
    """Collects rows of one attempt and writes them as fragments, when a limit of rows, bytes or seconds is reached.

    Thread-safe. In a `with` block, rows are flushed at the end even if the block raises, because they are valid
    results. The time limit is checked only when a row is added.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        attempt_id: str,
        *,
        flush_rows: int = 10_000,
        flush_bytes: int = 16 << 20,
        flush_seconds: float = 5.0,
    ) -> None:
        store.require_writable()
        self.store, self.run_id, self.attempt_id = store, check_safe_name("run id", run_id), attempt_id
        self._limits = (flush_rows, flush_bytes, flush_seconds)
        self._lock = threading.RLock()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._since = 0.0
        self._last_ns = 0
        self._open = True

    def add(self, table: str, row: Mapping[str, Any]) -> None:
        """Add one row of None, bool, int, float, str, bytes, lists and dicts. Numpy scalars are converted.

        Raises StoreError, naming the field, for NaN, infinity or another type; the row is not added then.
        """
        self._append_lines([encode_row(table, row)])

    @contextmanager
    def write_together(self) -> Iterator[Together]:
        """Yield rows that go to a single fragment after the block, or are discarded if it raises."""
        rows = Together()
        yield rows
        self._append_lines(rows.lines)

    def flush(self) -> Fragment | None:
        """Write all held rows as one fragment and return it; None without rows. May be retried after an error."""
        with self._lock:
            if not self._lines:
                return None
            fragment = self._write()
            self._lines, self._bytes = [], 0
            return fragment

    def close(self) -> None:
        """Flush, then refuse further rows."""
        with self._lock:
            self.flush()
            self._open = False

    def __enter__(self) -> FragmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append_lines(self, lines: list[bytes]) -> None:
        """Add encoded rows, and write a fragment when a limit (rows, bytes, seconds) is reached. Raises StoreError if
        closed.
        """
        if not lines:
            return
        with self._lock:
            if not self._open:
                raise StoreError(f"the fragment writer of run {self.run_id} is closed")
            if not self._lines:
                self._since = time.monotonic()
            self._lines += lines
            self._bytes += sum(map(len, lines))
            rows, size, seconds = self._limits
            if len(self._lines) >= rows or self._bytes >= size or time.monotonic() - self._since >= seconds:
                self.flush()

    def _write(self) -> Fragment:
        self._last_ns = max(time.time_ns(), self._last_ns + 1000)  # names of one writer sort by time
        path = self.store.incoming / f"{make_uuid7(self._last_ns)}.{self.run_id}{FRAGMENT_SUFFIX}"
        place_file(self.store, pack_fragment(self.run_id, self.attempt_id, self._last_ns, self._lines), path)
        return Fragment.from_path(path)
