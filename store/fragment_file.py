"""The file of a fragment: written whole or not at all, read whole or not at all.

`<uuid7>.<run id>.jsonl.zst` holds a header line, one line a row `{"t": family, "row": {…}}`, and a footer with the
number of rows and the CRC of all that came before.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.errors import CorruptError, NotInStoreError, StoreError
from store.files import explained, fsync_path, write_synced
from store.fragment_rows import HAS_BYTES, decode_bytes
from store.staging import discard, hostname, staging_path

if TYPE_CHECKING:
    from store.store import Store

FORMAT = 1
SUFFIX = ".jsonl.zst"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Fragment:
    """One fragment file. Names sort by creation time (the writer's clock); `run_id` is the run of all its rows."""

    path: Path
    name: str
    run_id: str

    @classmethod
    def at(cls, path: Path) -> Fragment:
        """The fragment in this file. Raises StoreError for a name that no fragment has."""
        parts = path.name.removesuffix(SUFFIX).split(".")
        if not path.name.endswith(SUFFIX) or len(parts) != 2:
            raise StoreError(f"{path.name} is not the name of a fragment")
        return cls(path, path.name, parts[1])

    def read(self) -> Iterator[tuple[str, Rows]]:
        """(family, rows) in the order written, neighbours of one family together. Everything is checked first.

        Raises CorruptError (torn, cut short, bits flipped: no row is given out), NotInStoreError (moved away).
        """
        _, lines = self._checked()
        return iter([(family, [line["row"] for line in same]) for family, same in groupby(lines, itemgetter("t"))])

    def header(self) -> dict[str, Any]:
        """`run`, `attempt`, `host`, `created` (seconds since 1970) of the whole, checked fragment."""
        return self._checked()[0]

    def _checked(self) -> tuple[dict[str, Any], Rows]:
        import zstandard

        try:
            packed = self.path.read_bytes()
        except FileNotFoundError:
            raise NotInStoreError(f"fragment {self.name} is not at {self.path.parent}") from None
        except OSError as error:
            raise StoreError(f"cannot read fragment {self.name}: {error.strerror}") from error
        try:
            text = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
            body, _, last = text[:-1].rpartition(b"\n")
            footer = json.loads(last)
            if text[-1:] != b"\n" or footer["crc32"] != zlib.crc32(body + b"\n"):
                raise ValueError("its checksum differs")
            head, _, body = body.partition(b"\n")
            header = json.loads(head)
            if header["chessreg_fragment"] != FORMAT:
                raise StoreError(
                    f"fragment {self.name} has format {header['chessreg_fragment']}, not {FORMAT}",
                    "read it with the chessreg version that wrote it",
                )
            # no raw newline stands inside JSON, so the lines make one list: half the time of line by line
            lines = json.loads(
                b"[" + body.replace(b"\n", b",") + b"]", object_hook=decode_bytes if HAS_BYTES in body else None
            )
            if len(lines) != footer["end"] or header["run"] != self.run_id:
                raise ValueError("it is not what its name and footer say")
        except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"fragment {self.name} is damaged: {error}") from error
        return header, lines


def pack(run_id: str, attempt_id: str, created_ns: int, lines: list[bytes]) -> bytes:
    """The bytes of a fragment file with these encoded rows."""
    import zstandard

    header = {"chessreg_fragment": FORMAT, "run": run_id, "attempt": attempt_id}
    head = json.dumps({**header, "host": hostname(), "created": created_ns / 1e9}).encode()
    body = b"\n".join([head, *lines]) + b"\n"
    footer = json.dumps({"end": len(lines), "crc32": zlib.crc32(body)}).encode() + b"\n"
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(body + footer)


def place(store: Store, data: bytes, target: Path) -> None:
    """Write `data` aside, sync, rename: the file is there whole or not at all."""
    aside = staging_path(store.tmp, "fragment")
    with explained(f"write fragment {target.name}"):
        try:
            write_synced(aside, data)
            aside.rename(target)
            fsync_path(target.parent)
        except BaseException:
            discard(aside)
            raise


def uuid7(nanoseconds: int) -> uuid.UUID:
    """RFC 9562 version 7 with the fraction of the millisecond in `rand_a`: sorts to a quarter of a microsecond."""
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    return uuid.UUID(int=milliseconds << 80 | 7 << 76 | (rest * 4096 // 1_000_000) << 64 | 2 << 62 | random)
