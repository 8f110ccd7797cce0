"""Stored numbers of the parts of a query's answer, so that the results of complete runs are counted once.

A query with `stored` relations divides its cells into parts that share no results, such as the matches of one protocol
or the trials of one run (see chessreg.queries.catalogue). A part's numbers follow from its rows of the relation
`parts`, from the results of its runs, and from this code. The name of its file is a digest of all of these. A change
gives another name, so that no file is ever outdated. Results are identified by the run's completion time and by its
ingested fragments, because rows of a complete run do not change otherwise.

Files are in the folder of the mirror (mirror.py), or for PostgreSQL in the user's cache folder. Names, tags and all
other columns of the table are read from the registry at every query. Deleting files loses no data.
"""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from chessreg.folders import get_cache_folder
from chessreg.queries import duck, mirror
from chessreg.queries.engine import OtherVersionError, QueryAnswer, QueryEngine
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.registry.tables.provenance import LONG_RUN_UNITS
from store.files import sync_path

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.queries.question import CatalogueQuestion
    from chessreg.registry.database import Database

BATCH_UNITS = 300_000  # units whose numbers are computed at once, to bound the memory
MOST_FILES = 10_000  # three per long edit run, each of about 10 kB
MOST_ATTEMPTS = 8  # at an answer while other processes change the registry; then all rows are counted
SUFFIX = ".numbers.zip"
PARTIAL_SUFFIX = ".numbers.partial"  # of files that are still being written
STATISTICS = "statistics"
ROWS = "rows.json"
TABLE_SUFFIX = ".arrow"


@dataclass
class PartNumbers:
    """The numbers of one part: its stored relations and statistics, and how many rows of each result table it has."""

    tables: dict[str, pa.Table]
    rows: dict[str, int]


def answer_from_parts(
    question: CatalogueQuestion, more: Mapping[str, str], timeout: float | None
) -> QueryAnswer | None:
    """Return the answer to a catalogue query with the tables `table` and those of the statements `more`.

    None if the query has no parts, if its rows are filtered, or if all parts are small: then it is answered from the
    rows. Raises the errors of `QueryEngine.answer`.
    """
    engine, entry = question.engine, question.entry
    if not entry.stored_names or not question.has_all_rows:
        return None
    from chessreg.queries.summary import attach_statistics, match_cells

    stored_relations = {name: f"SELECT * FROM stored_{name}" for name in entry.stored_names}
    statements = {name: question.build_statement(name, stored_relations) for name in ("table", "numbered")} | dict(more)
    statements["parts"] = compose_parts_statement(question)
    summary = f"{entry.title} from parts"
    cached_answer = engine.recall(statements, question.parameters, summary)
    if cached_answer is not None:
        return cached_answer
    until = duck.compute_deadline(timeout)
    for _ in range(MOST_ATTEMPTS):
        try:
            listing = list_query_parts(question, until)
            if max(listing.units.values(), default=0) < LONG_RUN_UNITS:
                return None
            parts = read_part_numbers(question, listing, until)

            def summarize(
                tables: dict[str, pa.Table], listing: PartListing = listing, parts: Mapping[str, PartNumbers] = parts
            ) -> dict[str, pa.Table]:
                if not tables["parts"].equals(listing.table):
                    raise OtherVersionError("the parts have changed since they were listed")
                listing.runs.require_unchanged(engine.database)
                numbers = join_part_rows({label: part.tables[STATISTICS] for label, part in parts.items()})
                table = attach_statistics(entry, tables["table"], match_cells(numbers, tables["numbered"]))
                return {"table": table, **{name: tables[name] for name in more}}

            answer = engine.answer(
                statements,
                question.parameters,
                until - time.monotonic(),
                summary,
                summarize,
                registered_tables={
                    f"stored_{name}": join_part_rows({label: part.tables[name] for label, part in parts.items()})
                    for name in entry.stored_names
                },
                version=listing.get_required_version(listing.rows),
            )
        except OtherVersionError:
            continue
        for name in {name for part in parts.values() for name in part.rows}:
            answer.rows_read[name] = sum(part.rows.get(name, 0) for part in parts.values())
        return answer
    return None


@dataclass(frozen=True)
class PartListing:
    """The parts of a query: their rows of the relation `parts` as one table and by part, the states of their runs, the
    number of units of each part, and the registry's data version.

    Numbers of complete runs fit every state of the registry with the same rows and states, whatever else is written.
    """

    table: pa.Table
    rows: Mapping[str, list[dict[str, Any]]]
    runs: RunStates
    units: Mapping[str, int]
    version: str

    def get_required_version(self, parts: Iterable[str]) -> str:
        """Return the data version in which the numbers of these parts must be computed and shown; empty for any, if all
        of their runs are complete."""
        return "" if all(self.runs.identify(self.rows[part]) is not None for part in parts) else self.version


def compose_parts_statement(question: CatalogueQuestion) -> str:
    """Return the statement that lists the rows of all parts."""
    return question.compose_statement("SELECT * FROM parts ORDER BY ALL", {})


def list_query_parts(question: CatalogueQuestion, until: float) -> PartListing:
    """Return the parts of a query in one state of the registry, and the states of their runs in this or a later one."""
    statements = {"parts": compose_parts_statement(question)}
    answer = question.engine.answer(statements, question.parameters, until - time.monotonic())
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in answer["parts"].to_pylist():
        rows.setdefault(row["part"], []).append(row)
    runs = RunStates.read(question.engine.database, {row["run_id"] for part in rows.values() for row in part})
    units = {part: runs.count_units(part_runs) for part, part_runs in rows.items()}
    return PartListing(answer["parts"], rows, runs, units, answer.version)


@dataclass(frozen=True)
class RunStates:
    """The identity of the results of runs: the state of each complete run by id (32 hex digits), the number of units of
    each run, and the registry's id."""

    registry: str
    states: Mapping[str, list[str]]
    units: Mapping[str, int]

    @classmethod
    def read(cls, database: Database, ids: Iterable[str]) -> RunStates:
        """Read the states of these runs in one state of the registry."""
        from sqlalchemy import func, select

        from chessreg.registry.database import select_by_keys
        from chessreg.registry.tables import FragmentRecord, RegistryState, Run

        run_ids = sorted(map(UUID, ids))
        with database.read() as session:
            registry = session.scalar(select(RegistryState.registry_id))
            runs = list(select_by_keys(session, select(Run.id, Run.units, Run.completed_at), Run.id, run_ids))
            fragment_select = select(
                FragmentRecord.run_id, func.count(), func.sum(FragmentRecord.rows), func.max(FragmentRecord.ingested_at)
            ).group_by(FragmentRecord.run_id)
            fragments = {
                row[0]: row[1:] for row in select_by_keys(session, fragment_select, FragmentRecord.run_id, run_ids)
            }
        states = {
            run.id.hex: [run.id.hex, str(run.completed_at), *map(str, fragments.get(run.id, ()))]
            for run in runs
            if run.completed_at is not None
        }
        return cls("" if registry is None else registry.hex, states, {run.id.hex: run.units for run in runs})

    def require_unchanged(self, database: Database, ids: Iterable[str] | None = None) -> None:
        """Raise OtherVersionError if the state of a run has changed, of these runs or of all."""
        run_ids = self.units.keys() if ids is None else set(ids)
        if RunStates.read(database, run_ids).states != {id: self.states[id] for id in run_ids & self.states.keys()}:
            raise OtherVersionError("the results of a part have changed since it was listed")

    def count_units(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of units of the runs of a part."""
        return sum(self.units.get(run, 0) for run in {row["run_id"] for row in rows})

    def identify(self, rows: Sequence[Mapping[str, Any]]) -> list[list[str]] | None:
        """Return the states of a part's runs, or None if one is not complete."""
        runs = sorted({row["run_id"] for row in rows})
        return None if any(run not in self.states for run in runs) else [self.states[run] for run in runs]


def read_part_numbers(question: CatalogueQuestion, listing: PartListing, until: float) -> dict[str, PartNumbers]:
    """Return the numbers of all parts, from their files or from the results. Write missing files.

    Raises OtherVersionError if the results have changed since the parts were listed.
    """
    paths = list_number_files(question, listing)
    numbers_by_part = {part: read_numbers(path) for part, path in paths.items()}
    parts = {part: numbers for part, numbers in numbers_by_part.items() if numbers is not None}
    for batch in split_part_batches([part for part in listing.rows if part not in parts], listing.units):
        computed_parts = compute_parts(question, listing, batch, until)
        parts |= computed_parts
        for part in set(batch) & paths.keys():
            with suppress(OSError):
                if not question.engine.database.read_only:
                    write_numbers(paths[part], computed_parts[part])
    return {part: parts[part] for part in listing.rows}


def list_number_files(question: CatalogueQuestion, listing: PartListing) -> dict[str, Path]:
    """Return the path of the file of each part whose runs are complete and have many units."""
    folder, recipe, paths = find_numbers_folder(question.engine.database), describe_recipe(question), {}
    for part, rows in listing.rows.items():
        states = listing.runs.identify(rows)
        if states is not None and listing.units[part] >= LONG_RUN_UNITS:
            facts = [{name: value for name, value in row.items() if name != "part"} for row in rows]
            text = json.dumps([listing.runs.registry, recipe, states, facts], default=str)
            paths[part] = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{SUFFIX}"
    return paths


def split_part_batches(parts: Sequence[str], units: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the parts in groups of at most BATCH_UNITS units, or of one part."""
    batch: list[str] = []
    for part in parts:
        if batch and sum(units[each] for each in batch) + units[part] > BATCH_UNITS:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def compute_parts(
    question: CatalogueQuestion, listing: PartListing, batch: Sequence[str], until: float, *, use_mirror: bool = True
) -> dict[str, PartNumbers]:
    """Return the numbers of these parts from the results of their runs, unless `use_mirror` from SQL alone.

    Raises OtherVersionError if the results have changed since the parts were listed.
    """
    from chessreg.queries.summary import estimate_by_part

    entry, shared_engine = question.entry, question.engine
    runs = {row["run_id"] for part in batch for row in listing.rows[part]}
    engine = QueryEngine(
        shared_engine.database,
        threads=shared_engine.threads,
        memory=shared_engine.memory,
        runs=runs,
        use_mirror=use_mirror,
    )
    rows = join_part_rows({part: table for part, table in split_part_rows(listing.table).items() if part in batch})
    statements = list_stored_statements(question)
    counted_tables = [table for table in RESULT_TABLES if table in engine.list_names(statements.values())]
    statements |= {
        table: f'SELECT p.part, count(*) AS n FROM "{table}" AS t '
        "JOIN (SELECT DISTINCT part, run_id FROM part_rows) AS p ON p.run_id = t.run_id GROUP BY p.part"
        for table in counted_tables
    }
    try:
        answer = engine.answer(
            statements,
            question.parameters,
            until - time.monotonic(),
            registered_tables={"part_rows": rows},
            version=listing.get_required_version(batch),
        )
    finally:
        engine.close()
    listing.runs.require_unchanged(shared_engine.database, runs)
    stored_tables = {name: answer[name] for name in entry.stored_names}
    stored_tables[STATISTICS] = estimate_by_part(entry, answer["clusters"])
    by_part = {name: split_part_rows(table) for name, table in stored_tables.items()}
    empty = {name: table.slice(0, 0).drop_columns(["part"]) for name, table in stored_tables.items()}
    counts = {table: {row["part"]: row["n"] for row in answer[table].to_pylist()} for table in counted_tables}
    return {
        part: PartNumbers(
            {name: by_part[name].get(part, empty[name]) for name in stored_tables},
            {name: counts[name].get(part, 0) for name in counted_tables},
        )
        for part in batch
    }


def list_stored_statements(question: CatalogueQuestion) -> dict[str, str]:
    """Return the statements of the stored relations and of the clusters, over the registered table `part_rows`."""
    given_relations = {"parts": "SELECT * FROM part_rows", "base": question.entry.statements["measured"]}
    relations = {name: f"SELECT * FROM {name} ORDER BY ALL" for name in question.entry.stored_names}
    return {name: question.compose_statement(sql, given_relations) for name, sql in relations.items()} | {
        "clusters": question.build_statement("clusters", given_relations)
    }


def describe_recipe(question: CatalogueQuestion) -> list[Any]:
    """Return all that determines the numbers of a part except for its facts: statements, code and libraries."""
    import duckdb
    import numpy as np

    statements = list_stored_statements(question)
    parameters = duck.select_parameters(" ".join(statements.values()), question.parameters)
    return [
        [list(item) for item in statements.items()],
        sorted((name, str(value)) for name, value in parameters.items()),
        question.engine.describe_names(statements.values()),
        [[s.name, s.function, *s.arguments] for s in question.entry.statistics],
        hash_query_code(),
        duckdb.__version__,
        np.__version__,
    ]


COMPUTING_MODULES = (
    *("duck", "engine", "gate", "macros", "mirror", "parts", "significance", "source", "stats", "stop", "summary"),
    "views",
)
"""The modules of this package that compute numbers from results: this module and its imports."""


@cache
def hash_query_code(folder: Path = Path(__file__).parent) -> str:
    """Return the digest of the modules that compute numbers from results. `folder` is that of this package."""
    files = [*(folder / f"{name}.py" for name in COMPUTING_MODULES), folder.parent / "noise.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# -- tables -----------------------------------------------------------------------------------------------------------


def split_part_rows(table: pa.Table) -> dict[str, pa.Table]:
    """Return part → its rows, without the column `part`. Equal parts are in consecutive rows."""
    rest, parts, start = table.drop_columns(["part"]), {}, 0
    for part, rows in groupby(table["part"].to_pylist()):
        number = sum(1 for _ in rows)
        parts[part] = rest.slice(start, number)
        start += number
    return parts


def join_part_rows(parts: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of all parts, with the column `part`. Avoids `pyarrow.repeat`, which imports pandas (0.3 s)."""
    import numpy as np
    import pyarrow as pa

    tables = []
    for part, table in parts.items():
        text, rows = part.encode(), table.num_rows
        ends = np.arange(rows + 1, dtype=np.int32) * len(text)
        label = pa.StringArray.from_buffers(rows, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text * rows))
        tables.append(pa.Table.from_arrays([label, *table.columns], names=["part", *table.column_names]))
    return pa.concat_tables(tables)


# -- files ------------------------------------------------------------------------------------------------------------


def find_numbers_folder(database: Database) -> Path:
    """Return the folder of the files of a registry."""
    return database.place.results or get_cache_folder() / "numbers"


def read_numbers(path: Path) -> PartNumbers | None:
    """Return the numbers in a file; None if it is missing or damaged (every member has a checksum)."""
    import pyarrow as pa

    try:
        with zipfile.ZipFile(path) as archive:
            rows = json.loads(archive.read(ROWS))
            tables = {
                name.removesuffix(TABLE_SUFFIX): pa.ipc.open_stream(archive.read(name)).read_all()
                for name in archive.namelist()
                if name.endswith(TABLE_SUFFIX)
            }
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
    return PartNumbers(tables, rows)


def write_numbers(path: Path, part: PartNumbers) -> None:
    """Write the numbers of a part. Remove the oldest files above MOST_FILES, and those of killed writers. Raises
    OSError."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{uuid4().hex}{PARTIAL_SUFFIX}")
    try:
        with zipfile.ZipFile(aside, "x") as archive:
            archive.writestr(ROWS, json.dumps(part.rows))
            for name, table in part.tables.items():
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, table.schema) as stream:
                    stream.write_table(table)
                archive.writestr(f"{name}{TABLE_SUFFIX}", sink.getvalue().to_pybytes())
        sync_path(aside)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    files = list(path.parent.glob(f"*{SUFFIX}"))
    if len(files) > MOST_FILES:
        files.sort(key=lambda file: file.stat().st_mtime)
    stale_files = [
        file
        for file in path.parent.glob(f"*{PARTIAL_SUFFIX}")
        if time.time() - file.stat().st_mtime > mirror.STALE_SECONDS
    ]
    for old in (*files[:-MOST_FILES], *stale_files):
        old.unlink(missing_ok=True)
