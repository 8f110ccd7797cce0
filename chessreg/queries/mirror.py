"""Results of complete runs as typed Parquet files next to a SQLite registry: a complete run's rows never change.

`registry.db` gets a folder `registry.results`. A file holds the rows of one run in one table and is called
`<table>-<schema>-<run>-<completed>.parquet`: `schema` is 8 hex digits of a digest of the registry's schema and the
columns' conversions, `completed` is the time of completion (UTC, the digits of year to microsecond). A query reads a
file only if the run was complete at that time in the registry state that the query reads. A run without a file is read
from SQL, which is also faster for a run with few rows. Deleting files loses no data.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from chessreg.queries import duck, views
from chessreg.queries.source import CompleteRun, RegistryReader, open_reader
from chessreg.registry.result_tables import RESULT_TABLES
from store.files import sync_path

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from chessreg.registry.database import Database

PART_SUFFIX = ".part"  # suffix of a folder with files that are still being written
STALE_SECONDS = 86_400.0
LEAST_ROWS = 256  # per file: opening a file takes about as long as reading 100 rows from SQL
LONG_ROWS = 10_000  # a run with as many is written before it is read: all columns of its rows could exceed memory
MOST_FILES = 10_000  # read per table: SQLite accepts this number of ids in one SELECT
DUCKDB_PATTERN = re.compile(r"[*?\[\ud800-\udfff]")
FILE_NAME = re.compile(r"([a-z_]+)-[0-9a-f]{8}-([0-9a-f]{32})-[0-9]{20}\.parquet")
Extras = Mapping[tuple[str, str], Mapping[str, views.ExtraType]]  # name → type of extra columns, by kind and table


class Mirror:
    """The mirror files of one state of a registry. `files` has the existing ones by table and run id, `runs` the
    complete runs by id."""

    def __init__(self, folder: Path, schema: str, runs: Iterable[CompleteRun], extras: Extras) -> None:
        self.folder, self.runs = folder, {run.id: run for run in runs}
        self.files: dict[str, dict[str, Path]] = {table: {} for table in RESULT_TABLES}
        self._schema, self._extras = schema, extras
        self._digests: dict[tuple[str, str], str] = {}  # digests of the schema and the SELECT, by table and kind

    def select(self, table: str, kind: str) -> str:
        """Return the SELECT of typed rows of this kind's runs from the Arrow table `_<table>`."""
        return views.build_typed_rows_sql(table, "sqlite", self._extras.get((kind, table), {}))

    def path(self, table: str, id: str) -> Path:
        """Return the path of the file with a complete run's rows of a table."""
        kind, completed_at = self.runs[id].kind, self.runs[id].completed_at or ""
        if (table, kind) not in self._digests:
            text = f"{self._schema}\n{self.select(table, kind)}"
            self._digests[table, kind] = hashlib.sha256(text.encode()).hexdigest()[:8]
        moment = "".join(sign for sign in completed_at if sign.isdigit())
        return self.folder / f"{table}-{self._digests[table, kind]}-{id}-{moment}.parquet"

    def is_current(self, name: str) -> bool:
        """Return whether a file of this name belongs to the current state of a run."""
        parts = FILE_NAME.fullmatch(name)
        return parts is not None and parts[2] in self.runs and self.path(parts[1], parts[2]).name == name

    def group_by_kind(self, table: str) -> dict[str, list[Path]]:
        """Return the files of a table by the kind of their runs."""
        paths_by_kind: dict[str, list[Path]] = {}
        for run, path in self.files.get(table, {}).items():
            paths_by_kind.setdefault(self.runs[run].kind, []).append(path)
        return paths_by_kind


def read_mirror(
    database: Database, reader: RegistryReader, extras: Extras, without: Collection[str] = ()
) -> Mirror | None:
    """Return the mirror of the state that `reader` sees, without the files of these names.

    None for PostgreSQL, and if DuckDB would treat the folder's path as a pattern.
    """
    folder = database.place.results
    if folder is None or DUCKDB_PATTERN.search(str(folder)):
        return None
    mirror = Mirror(folder, reader.schema(), reader.complete_runs(), extras)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            parts = FILE_NAME.fullmatch(entry.name)
            if parts is None or entry.name in without or not entry.is_file(follow_symlinks=False):
                continue
            files = mirror.files.get(parts[1], {})
            if len(files) < MOST_FILES and mirror.is_current(entry.name):
                files[parts[2]] = folder / entry.name
    return mirror


def list_runs_without_file(mirror: Mirror, connection: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    """Return the ids of complete runs that have no file but at least LEAST_ROWS rows in the Arrow table `_<table>`."""
    select = f'SELECT run_id FROM "_{table}" GROUP BY run_id HAVING count(*) >= {LEAST_ROWS}'
    ids = [id for (id,) in connection.execute(select).fetchall() if id in mirror.runs and id not in mirror.files[table]]
    return [id for id in ids if FILE_NAME.fullmatch(mirror.path(table, id).name)]


def write_long_runs(
    mirror: Mirror,
    reader: RegistryReader,
    tables: Iterable[str],
    stop: threading.Event,
    runs: Collection[str] | None = None,
) -> None:
    """Write the missing files of complete runs with at least LONG_ROWS rows in one of these tables, in constant memory.
    `runs` limits them to these runs.

    Raises OSError and duckdb.Error if that fails, StoppedError soon after `stop` is set.
    """
    missing_files = [
        (table, id) for table in tables for id in reader.long_runs(table, LONG_ROWS, [*mirror.files[table]])
    ]
    if not missing_files:
        return
    with closing(duck.connect_unlocked()) as connection:
        for table, id in missing_files:
            if id not in mirror.runs or (runs is not None and id not in runs) or len(mirror.files[table]) >= MOST_FILES:
                continue
            remove_outdated_files(mirror)
            path, part = mirror.path(table, id), mirror.folder / f"{uuid4().hex}{PART_SUFFIX}"
            part.mkdir(parents=True)
            try:
                with reader.stream(table, id, stop) as rows:
                    connection.register(f"_{table}", rows)
                    select = mirror.select(table, mirror.runs[id].kind)
                    file = part / path.name
                    connection.execute(f"COPY ({select}) TO {duck.quote_text(file)} (FORMAT parquet, COMPRESSION zstd)")
                sync_path(file)
                file.rename(path)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            mirror.files[table][id] = path


def write_files(mirror: Mirror, rows: Mapping[str, pa.Table], runs: Mapping[str, Sequence[str]]) -> None:
    """Write the files of these runs, by table, from rows read by SQL. Remove outdated files.

    Raises OSError and duckdb.Error if that fails.
    """
    remove_outdated_files(mirror)
    part = mirror.folder / f"{uuid4().hex}{PART_SUFFIX}"
    try:
        with closing(duck.connect_unlocked()) as connection:
            for table, ids in runs.items():
                connection.register(f"_{table}", rows[table])
                _write_table(connection, mirror, table, ids, part)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_outdated_files(mirror: Mirror) -> None:
    """Create the folder, or remove its files of other states of the registry and of killed writers."""
    mirror.folder.mkdir(exist_ok=True)
    for path in mirror.folder.iterdir():
        if FILE_NAME.fullmatch(path.name) and not mirror.is_current(path.name):
            path.unlink(missing_ok=True)
        elif path.suffix == PART_SUFFIX and time.time() - path.stat().st_mtime > STALE_SECONDS:  # its writer was killed
            shutil.rmtree(path, ignore_errors=True)


def _write_table(
    connection: duckdb.DuckDBPyConnection, mirror: Mirror, table: str, runs: Sequence[str], part: Path
) -> None:
    """Write one file for each of these runs, first to the folder `part`."""
    kinds: dict[str, list[str]] = {}
    for id in runs:
        kinds.setdefault(mirror.runs[id].kind, []).append(id)
    for kind, ids in kinds.items():
        aside = part / uuid4().hex
        aside.mkdir(parents=True)
        select, id_list = mirror.select(table, kind), ", ".join(f"'{id}'" for id in ids)
        connection.execute(
            f"COPY (SELECT *, replace(run_id::VARCHAR, '-', '') AS id FROM ({select} WHERE run_id IN ({id_list}))) "
            f"TO {duck.quote_text(aside)} (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (id), OVERWRITE_OR_IGNORE)"
        )
        for id in ids:
            written_files = list((aside / f"id={id}").iterdir())
            if len(written_files) == 1:  # if DuckDB split the rows of a run, they stay in SQL only
                sync_path(written_files[0])
                written_files[0].rename(mirror.path(table, id))


def build_parquet_select(select: str, paths: Sequence[Path]) -> str:
    """Return the SELECT of columns from files of one SELECT."""
    return f"{select} FROM read_parquet([{', '.join(map(duck.quote_text, paths))}])"


def remove_damaged_files(mirror: Mirror, tables: Iterable[str]) -> set[str]:
    """Remove the files of these tables that cannot be read. Return their names."""
    import duckdb

    removed_names = set()
    with closing(duck.connect_unlocked()) as connection:
        for path in (path for table in tables for path in mirror.files.get(table, {}).values()):
            try:
                connection.execute(
                    f"SELECT sum(hash(f)) FROM ({build_parquet_select('SELECT *', [path])}) AS f"
                ).fetchall()
            except duckdb.Error:
                removed_names.add(path.name)
                with suppress(OSError):
                    path.unlink(missing_ok=True)
    return removed_names


def find_differing_files(database: Database, extras: Extras) -> Iterator[Path]:
    """Yield the files that cannot be read, or whose number of rows or checksum differs from the registry's."""
    import duckdb

    with open_reader(database) as reader, closing(duck.connect_unlocked()) as connection:
        mirror = read_mirror(database, reader, extras)
        if mirror is None:
            return
        for table, run, path in ((table, *file) for table, files in mirror.files.items() for file in files.items()):
            select = mirror.select(table, mirror.runs[run].kind)
            connection.register(f"_{table}", reader.table(table, runs=[run]))
            names = connection.execute(f"SELECT column_name FROM (DESCRIBE {select})").fetchall()
            column_list = ", ".join(f'"{name}"' for (name,) in names)
            count = f"SELECT count(*), sum(hash(r)) FROM (SELECT {column_list} FROM ({{}})) AS r"
            sql_count = connection.execute(count.format(select)).fetchall()
            try:
                is_equal = (
                    connection.execute(count.format(build_parquet_select("SELECT *", [path]))).fetchall() == sql_count
                )
            except duckdb.Error:
                is_equal = False
            if not is_equal:
                yield path
