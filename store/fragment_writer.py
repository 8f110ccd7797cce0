"""Collect the rows of one attempt and write them as fragments."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from store.errors import StoreError
from store.files import safe_name
from store.fragment_file import SUFFIX, Fragment, pack, place, uuid7
from store.fragment_rows import encode_row

if TYPE_CHECKING:
    from store.store import Store


class Together:
    """Rows that must stand in one fragment: all of them are ingested, or none."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def add(self, family: str, row: Mapping[str, Any]) -> None:
        """Add one row; see FragmentWriter.add."""
        self.lines.append(encode_row(family, row))

    def rows(self, family: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add many rows of one family."""
        self.lines.extend(encode_row(family, row) for row in rows)


class FragmentWriter:
    """Collects rows of one attempt and writes them as fragments, after so many rows, bytes or seconds, or at `flush`.

    Threads may share one writer. As a context manager it flushes at the end, also when the block raised: rows that
    were added are facts. Seconds are looked at when a row is added; there is no timer.
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
        self.store, self.run_id, self.attempt_id = store, safe_name("run id", run_id), attempt_id
        self._limits = (flush_rows, flush_bytes, flush_seconds)
        self._lock = threading.RLock()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._since = 0.0
        self._last_ns = 0
        self._open = True

    def add(self, family: str, row: Mapping[str, Any]) -> None:
        """Add one row: None, bool, int, float, str, bytes, lists and dicts of these; numpy scalars become Python's.

        Raises StoreError naming the field for NaN, infinity or another type; the row is then not added.
        """
        self._extend([encode_row(family, row)])

    def rows(self, family: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add many rows of one family; they may be spread over several fragments."""
        for row in rows:
            self._extend([encode_row(family, row)])

    def together(self) -> _TogetherBlock:
        """`with writer.together() as unit: unit.add(…)`: these rows land in one fragment, or in none if it raises."""
        return _TogetherBlock(self)

    def flush(self) -> Fragment | None:
        """Write what is held as one fragment and return it; None if nothing is held. May be retried after an error."""
        with self._lock:
            if not self._lines:
                return None
            fragment = self._write()
            self._lines, self._bytes = [], 0
            return fragment

    def close(self) -> None:
        """Flush, and accept no more."""
        with self._lock:
            self.flush()
            self._open = False

    def __enter__(self) -> FragmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _extend(self, lines: list[bytes]) -> None:
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
        self._last_ns = max(time.time_ns(), self._last_ns + 1000)  # names of one writer never sort backwards
        path = self.store.incoming / f"{uuid7(self._last_ns)}.{self.run_id}{SUFFIX}"
        place(self.store, pack(self.run_id, self.attempt_id, self._last_ns, self._lines), path)
        return Fragment.at(path)


class _TogetherBlock:
    def __init__(self, writer: FragmentWriter) -> None:
        self._writer, self._rows = writer, Together()

    def __enter__(self) -> Together:
        return self._rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._writer._extend(self._rows.lines)
