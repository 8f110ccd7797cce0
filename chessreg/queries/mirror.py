"""Results of complete runs as typed Parquet files next to a SQLite registry: a complete run's rows never change.

`registry.db` gets a folder `registry.results`. A file holds the rows of one run in one table and is called
`<table>-<schema>-<run>-<completed>.parquet`: `schema` is 8 hex digits of a digest of the registry's schema and the
columns' conversions, `completed` is the time of completion (UTC, the digits of year to microsecond). A query reads a
file only if the state of the registry that it reads says that the run was complete at that time; a run without a file
is read from SQL. Deleting files loses nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from chessreg.queries import duck, views
from chessreg.queries.source import CompleteRun, Reader, reading
from chessreg.registry.result_tables import RESULT_TABLES
from store.files import fsync_path

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from chessreg.registry.database import Database

PART = ".part"  # a folder in which files are being written
STALE_SECONDS = 86_400.0
MOST_RUNS = 10_000  # that are read from files: SQLite accepts that many ids in one SELECT
RUN_ID, MOMENT = re.compile("[0-9a-f]{32}"), re.compile("[0-9]{20}")
PATTERN = re.compile(r"[*?\[\ud800-\udfff]")
OURS = re.compile(r"[a-z_]+-[0-9a-f]{8}-[0-9a-f]{32}-[0-9]{20}\.parquet")
Extras = Mapping[tuple[str, str], Mapping[str, str]]  # name → type of extra columns, by kind and table


class Mirror(NamedTuple):
    """Paths of the files that belong to one state of a registry, and the files that exist.

    runs: complete runs by id. selects: SELECT of typed rows by table and kind. files: by table and run id.
    """

    folder: Path
    runs: Mapping[str, CompleteRun]
    selects: Mapping[tuple[str, str], str]
    paths: Mapping[tuple[str, str], Path]
    files: Mapping[str, Mapping[str, Path]]

    def by_kind(self, table: str) -> dict[str, list[Path]]:
        """The files of a table by the kind of their runs."""
        found: dict[str, list[Path]] = {}
        for run, path in self.files.get(table, {}).items():
            found.setdefault(self.runs[run].kind, []).append(path)
        return found


def mirror_of(database: Database, reader: Reader, extras: Extras, without: Collection[str] = ()) -> Mirror | None:
    """The mirror of the state that `reader` sees, without the files of these names. None for PostgreSQL, and where
    DuckDB would take the path of a file for a pattern."""
    if database.place.path is None:
        return None
    folder = database.place.path.absolute().with_suffix(".results")
    if PATTERN.search(str(folder)):
        return None
    try:
        present = set(os.listdir(folder)) - set(without)
    except OSError:
        present = set()
    schema = reader.schema()
    runs, paths, selects, digests = {}, {}, {}, {}
    files: dict[str, dict[str, Path]] = {table: {} for table in RESULT_TABLES}
    for run in reader.complete_runs()[:MOST_RUNS]:
        moment = "".join(sign for sign in run.completed_at or "" if sign.isdigit())
        if not (RUN_ID.fullmatch(run.id or "") and MOMENT.fullmatch(moment)):
            continue
        runs[run.id] = run
        for table in RESULT_TABLES:
            key = table, run.kind
            if key not in selects:
                selects[key] = views.typed_rows(table, "sqlite", extras.get((run.kind, table), {}))
                digests[key] = hashlib.sha256(f"{schema}\n{selects[key]}".encode()).hexdigest()[:8]
            path = paths[table, run.id] = folder / f"{table}-{digests[key]}-{run.id}-{moment}.parquet"
            if path.name in present:
                files[table][run.id] = path
    return Mirror(folder, runs, selects, paths, files)


def write(mirror: Mirror, rows: Mapping[str, pa.Table]) -> None:
    """Write the files that these tables lack, from rows as SQL has them, and remove files that belong to no run as it
    is now. Raises OSError and duckdb.Error where that is not possible."""
    mirror.folder.mkdir(exist_ok=True)
    current = {path.name for path in mirror.paths.values()}
    for path in mirror.folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in current:
            path.unlink(missing_ok=True)
        elif path.suffix == PART and time.time() - path.stat().st_mtime > STALE_SECONDS:  # its writer was killed
            shutil.rmtree(path, ignore_errors=True)
    part = mirror.folder / f"{uuid4().hex}{PART}"
    try:
        with closing(duck.connect_unlocked()) as connection:
            for table, arrow in rows.items():
                connection.register(f"_{table}", arrow)
                _write_table(connection, mirror, table, part)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_table(connection: duckdb.DuckDBPyConnection, mirror: Mirror, table: str, part: Path) -> None:
    """Write one file for each complete run, aside first: to the folder `part`."""
    kinds: dict[str, list[str]] = {}
    for (id,) in connection.execute(f'SELECT DISTINCT run_id FROM "_{table}"').fetchall():
        if id in mirror.runs and id not in mirror.files[table]:
            kinds.setdefault(mirror.runs[id].kind, []).append(id)
    for kind, ids in kinds.items():
        aside = part / uuid4().hex
        aside.mkdir(parents=True)
        select, listed = mirror.selects[table, kind], ", ".join(f"'{id}'" for id in ids)
        connection.execute(
            f"COPY (SELECT *, replace(run_id::VARCHAR, '-', '') AS id FROM ({select} WHERE run_id IN ({listed}))) "
            f"TO {duck.path_literal(aside)} (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (id), OVERWRITE_OR_IGNORE)"
        )
        for id in ids:
            written = list((aside / f"id={id}").iterdir())
            if len(written) == 1:  # DuckDB may split the rows of a run: then they stay in SQL
                fsync_path(written[0])
                written[0].rename(mirror.paths[table, id])


def scan(select: str, paths: Sequence[Path]) -> str:
    """SELECT of columns of files that were written by one SELECT."""
    return f"{select} FROM read_parquet([{', '.join(map(duck.path_literal, paths))}])"


def remove_damaged(mirror: Mirror, tables: Iterable[str]) -> set[str]:
    """Remove the files of these tables that cannot be read; returns their names."""
    import duckdb

    found = set()
    with closing(duck.connect_unlocked()) as connection:
        for path in (path for table in tables for path in mirror.files.get(table, {}).values()):
            try:
                connection.execute(f"SELECT sum(hash(f)) FROM ({scan('SELECT *', [path])}) AS f").fetchall()
            except duckdb.Error:
                found.add(path.name)
                with suppress(OSError):
                    path.unlink(missing_ok=True)
    return found


def differing(database: Database, extras: Extras) -> Iterator[Path]:
    """The files that cannot be read, or whose number of rows or checksum is not that of the registry's rows."""
    import duckdb

    with reading(database) as reader, closing(duck.connect_unlocked()) as connection:
        mirror = mirror_of(database, reader, extras)
        if mirror is None:
            return
        for table, run, path in ((table, *file) for table, files in mirror.files.items() for file in files.items()):
            select = mirror.selects[table, mirror.runs[run].kind]
            connection.register(f"_{table}", reader.table(table, run=run))
            names = connection.execute(f"SELECT column_name FROM (DESCRIBE {select})").fetchall()
            listed = ", ".join(f'"{name}"' for (name,) in names)
            count = f"SELECT count(*), sum(hash(r)) FROM (SELECT {listed} FROM ({{}})) AS r"
            wanted = connection.execute(count.format(select)).fetchall()
            try:
                same = connection.execute(count.format(scan("SELECT *", [path]))).fetchall() == wanted
            except duckdb.Error:
                same = False
            if not same:
                yield path
