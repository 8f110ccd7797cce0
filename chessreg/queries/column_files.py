"""Rows of complete runs as Arrow files beside a SQLite registry: they never change, so SQLite is read once.

`registry.db` gets a folder `registry.columns`, a file for each table and large run; deleting it loses nothing. A
file's name says which run and when that was complete: one that was put back and done again has another. Of a row's
JSON it has the extra columns that views of kinds name (extras.py); where one is missing it is made anew.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX, PART = ".arrow", ".part"  # a file, and one that is being written


class ColumnFiles:
    """The files of one registry of this schema. `complete`: ids of runs with when they were complete, as in SQLite.
    `read_only`: none is written or removed."""

    def __init__(self, registry: Path, schema: str, complete: Mapping[str, str], read_only: bool = False) -> None:
        self.folder, self.schema, self.complete = registry.with_suffix(".columns"), schema, complete
        self.read_only = read_only

    def path(self, table: str, run: str) -> Path:
        moment = "".join(c for c in self.complete[run] if c.isdigit())
        return self.folder / f"{table}-{self.schema}-{run}-{moment}{SUFFIX}"

    def has(self, table: str, run: str) -> bool:
        return run in self.complete and self.path(table, run).exists()

    def read(self, table: str, run: str, names: Collection[str]) -> pa.Table | None:
        """These columns, mapped into memory; None for a run without a file, or with a damaged one."""
        import pyarrow as pa

        if not self.has(table, run):
            return None
        path = self.path(table, run)
        try:
            return pa.ipc.open_file(pa.memory_map(str(path))).read_all().select(sorted(names))
        except (pa.ArrowException, KeyError, OSError):
            if not self.read_only:
                with suppress(OSError):
                    path.unlink()
            return None

    def write(self, table: str, run: str, rows: pa.Table) -> None:
        """Whole or not at all. Raises OSError where nothing can be written."""
        import pyarrow as pa

        self.folder.mkdir(exist_ok=True)
        part = self.folder / f"{uuid4().hex}{PART}"
        try:
            with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
            os.replace(part, self.path(table, run))
        finally:
            part.unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove files of runs that are not there as they were, of other revisions, and what is half-written."""
        for path in (*self.folder.glob(f"*{SUFFIX}"), *self.folder.glob(f"*{PART}")):
            table, _, rest = path.stem.partition("-")
            run = rest.split("-")[1:2]
            if not (run and run[0] in self.complete and path == self.path(table, run[0])):
                path.unlink(missing_ok=True)
