"""Rows, columns and counts of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, func, select

from chessreg.registry import identity, lineage, measures, read, run_filter, tables
from tui import show
from tui.columns import TableColumn, choose_state_tone, format_state
from tui.data.pages import PAGE_ROWS, JoinedPages, Pages, Row, refuse_narrowing
from tui.data.sql_pages import ChosenPages, KeysetPages, iter_stretches

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session
    from tui.data.run_summary import Summary


def list_run_pages(
    session: Session, text: str = "", sort: str = run_filter.NEWEST_FIRST, metrics: Sequence[str] = ()
) -> Pages:
    """Return the runs that match a filter (see registry.run_filter), sorted, with the last values of `metrics`.

    Raises BadInputError for an unknown field or order.
    """
    run = tables.Run
    with session.database.read() as sql:
        stale_runs = lineage.find_stale_runs(sql)

        def make_rows(sql: SqlSession, records: Sequence[tables.Run]) -> list[Row]:
            return make_run_rows(sql, records, stale_runs, metrics)

        conditions = run_filter.filter_conditions(sql, text)
        if sort != run_filter.NEWEST_FIRST:
            run_filter.make_sort_columns(sql, sort)  # raises
            return ChosenPages(session, run, SortedIds(session, conditions, sort), make_rows)
    key = (run.created_at, run.id)
    if not text.split():
        return KeysetPages(session, run, key, where=conditions, descending=True, rows=make_rows)
    parts = iter_stretches(session, run, key, fits=conditions, rows=make_rows, descending=True, cut=key[:1])
    return JoinedPages(parts, refuse_narrowing)


def filter_run_ids(session: Session, text: str, ids: Collection[UUID]) -> set[UUID]:
    """Return the ids of the runs that match the words."""
    if not ids:
        return set()
    with session.database.read() as sql:
        conditions = run_filter.filter_conditions(sql, text)
        return set(sql.scalars(select(tables.Run.id).where(tables.Run.id.in_(ids), *conditions)))


class SortedIds(Sequence[str]):
    """The hexadecimal ids of matching runs in a given order, read in chunks of CHUNK from the nearer end.
    Thread-safe."""

    CHUNK = 50 * PAGE_ROWS

    def __init__(self, session: Session, fits: Sequence[ColumnElement[bool]], sort: str) -> None:
        self._database, self._fits, self._sort = session.database, tuple(fits), sort
        self._chunks: dict[int, Sequence[str]] = {}
        with self._database.read() as sql:
            self._count = sql.scalar(select(func.count()).select_from(tables.Run).where(*self._fits)) or 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            return self[place : place + 1][0]
        start, stop, _ = place.indices(self._count)
        first_chunk = start // self.CHUNK
        ids = [id for number in range(first_chunk, -(-stop // self.CHUNK)) for id in self._read_chunk(number)]
        return ids[start - first_chunk * self.CHUNK : stop - first_chunk * self.CHUNK]

    def _read_chunk(self, number: int) -> Sequence[str]:
        """Return the ids of a chunk in sort order, read from the nearer end of the table."""
        if number not in self._chunks:
            before = number * self.CHUNK
            size = min(self.CHUNK, self._count - before)
            after_count = self._count - before - size
            with self._database.read() as sql:
                order = run_filter.make_sort_columns(sql, self._sort, after_count < before)
                query = select(run_filter.build_run_id_hex(sql)).where(*self._fits).order_by(*order)
                ids = sql.scalars(query.limit(size).offset(min(before, after_count))).all()
            self._chunks[number] = ids[::-1] if after_count < before else ids
        return self._chunks[number]


def list_metric_names(session: Session, ids: Sequence[UUID]) -> list[str]:
    """Return the metrics recorded by any of these runs."""
    point = tables.MetricPoint
    with session.database.read() as sql:
        return sorted(sql.scalars(select(point.name).where(point.run_id.in_(ids)).distinct()))


def make_run_rows(
    sql: SqlSession, records: Sequence[tables.Run], stale_runs: Collection[UUID], metrics: Sequence[str] = ()
) -> list[Row]:
    """Return the rows that `chessreg runs list` shows for these runs; no other run is read.

    `stale_runs` are the ids of stale runs, and `metrics` the metrics whose last values are added.
    """
    ids = [record.id for record in records]
    shorts, last_metrics = identity.shorten_ids(ids), run_filter.read_last_metrics(sql, ids, metrics) if metrics else {}
    return [
        {**row, "short": shorts[row["id"].hex], "metrics": last_metrics.get(row["id"], {})}
        for row in read.read_run_rows(sql, ids, stale_runs=stale_runs)
    ]


SPEC_PREFIX, METRIC_PREFIX = "spec.", "metric."


def format_run_state(row: Row) -> str:
    return f"{row['state']}{read.format_marks(row)}"


def format_signed_state(row: Row) -> str:
    return format_state(format_run_state(row))


def format_units(row: Row) -> str:
    return f"{row['done']:,}/{row['units']:,}"


def format_run_name(row: Row) -> str:
    """Return a run's name, or else its short id, with marks of a star and a pin."""
    return (
        ("★ " if row["starred"] else "")
        + ("⚑ " if row["pinned"] else "")
        + (row["name"] or show.abbreviate_id(row["short"]))
    )


# By the names that they are sorted by (chessreg.registry.run_filter.SORT_KEYS).
RUN_COLUMNS = {
    "id": TableColumn("short", "id", text=lambda row: show.abbreviate_id(row["short"]), role="detail"),
    "name": TableColumn("name", "name", text=format_run_name, widest=28, least=12, role="key"),
    "kind": TableColumn("kind", "kind", widest=16, least=12),
    "state": TableColumn(
        "state",
        "state",
        text=format_signed_state,
        whole=True,
        role="key",
        tone=lambda row: choose_state_tone(format_run_state(row)),
    ),
    "result": TableColumn("result", "result", widest=40, least=14, role="value", split=" · "),
    "units": TableColumn("done", "units", right=True, text=format_units, role="detail"),
    "created": TableColumn("created_at", "created", least=16, role="detail"),
    "machine": TableColumn("host", "machine", text=lambda row: show.format_host(row["host"]), widest=20, role="detail"),
    "tries": TableColumn("attempts", "tries", right=True, role="detail"),
    "tags": TableColumn("tags", "tags", text=lambda row: " ".join(row["tags"])),
    "completed": TableColumn("completed_at", "completed", least=16, role="detail"),
    "starred": TableColumn("starred", "starred", text=lambda row: "★" if row["starred"] else ""),
    "notes": TableColumn(
        "notes", "last note", text=lambda row: show.format_cell_value((row["notes"] or [""])[-1]), widest=40
    ),
}
COLUMN_MEANINGS = {
    "id": "the end of the id",
    "name": "name; ★ starred, ⚑ pinned",
    "kind": "kind of experiment",
    "state": "complete, partial or running; why a partial run ended; invalid or stale",
    "result": "main result",
    "units": "completed and total units",
    "created": "creation time",
    "machine": "machine of the last attempt",
    "tries": "number of attempts",
    "tags": "tags",
    "completed": "completion time",
    "starred": "★ if starred",
    "notes": "latest note",
}
DEFAULT_COLUMNS = ("name", "kind", "state", "result", "tags", "units", "created", "machine", "tries", "id")


def make_run_column(key: str) -> TableColumn:
    """Return the column with this key: a field of runs, a setting (`spec.…`), or a metric."""
    if key.startswith(SPEC_PREFIX):
        path = key.removeprefix(SPEC_PREFIX).split(".")
        return TableColumn(
            key,
            key.removeprefix(SPEC_PREFIX),
            text=lambda row: show.format_cell_value(get_nested(row["spec"], path)),
            widest=24,
        )
    if key.startswith(METRIC_PREFIX):
        metric = key.removeprefix(METRIC_PREFIX)
        return TableColumn(key, metric, right=True, text=lambda row: show.format_cell_value(row["metrics"].get(metric)))
    return RUN_COLUMNS[key]


def is_run_column(key: str) -> bool:
    return key in RUN_COLUMNS or (key.startswith((SPEC_PREFIX, METRIC_PREFIX)) and not key.endswith("."))


def get_nested(values: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of keys in nested mappings, or None if a key is missing."""
    for step in path:
        values = values.get(step) if isinstance(values, Mapping) else None
    return values


SETTING_COLUMNS = (
    TableColumn("setting", "setting", role="detail"),
    TableColumn("value", "value", widest=90, tone=lambda row: "key" if row["source"] == "given" else "detail"),
    TableColumn("source", "given or default", role="detail"),
)


ATTEMPT_COLUMNS = (
    TableColumn("started_at", "started", least=16),
    TableColumn(
        "state",
        "state",
        text=lambda row: format_state(row["end"]),
        tone=lambda row: choose_state_tone(row["end"]),
        role="key",
    ),
    TableColumn("units_done", "units", right=True),
    TableColumn("took", "took", right=True, text=lambda row: format_attempt_duration(row)),
    TableColumn("host", "machine", text=lambda row: show.format_host(row["host"])),
    TableColumn("executor", "executor"),
    TableColumn("message", "message", widest=60),
)


def format_attempt_duration(row: Mapping[str, Any]) -> str:
    return show.format_seconds((row["ended_at"] - row["started_at"]).total_seconds()) if row["ended_at"] else ""


COUNTED_TABLES = {
    "run": tables.Run,
    "dataset": tables.Dataset,
    "checkpoint": tables.Checkpoint,
}


def count_nouns(session: Session) -> dict[str, int]:
    """Return the number of rows per noun, and the number of incomplete runs."""
    with session.database.read() as sql:
        counts = {
            noun: sql.scalar(select(func.count()).select_from(table)) or 0 for noun, table in COUNTED_TABLES.items()
        }
        incomplete_runs = select(func.count()).select_from(tables.Run).where(tables.Run.completed_at.is_(None))
        return counts | {"unfinished": sql.scalar(incomplete_runs) or 0}


def describe_first_results(session: Session, run_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the first measure of each run as text; empty without a measure."""
    results = {}
    with session.database.read() as sql:
        for run_id in run_ids:
            first_measure = next(iter(measures.read_measures(sql, run_id)), None)
            words = (
                ""
                if first_measure is None
                else show.format_measured_value({"measure": first_measure.name, "value": first_measure.value})
            )
            results[run_id] = words if first_measure is None else f"{words} · {first_measure.name.removesuffix(' %')}"
    return results


class RunFacts(NamedTuple):
    """A run, the settings given to it with named inputs by dotted path, its result as text, its results in small
    tables, and the curve of its first metric: the metric's name, and (step, value) pairs."""

    run: dict[str, Any]
    given_settings: dict[str, Any]
    answer: str
    summaries: list[Summary]
    curve: tuple[str, list[tuple[int, float]]] | None


def load_run_facts(session: Session, run_id: UUID) -> RunFacts:
    """Read the facts that a preview shows, without the run's kind, whose import takes longer than all the rest."""
    from chessreg.runs.spec import describe_source, flatten_settings
    from tui.data.run_summary import summarize_run

    with session.database.read() as sql:
        run = read.read_run(sql, run_id.hex)
        settings = flatten_settings(run["spec"])
        given_values = {
            path: value for path, value in settings.items() if describe_source(path, run["explicit"]) == "given"
        }
        summaries, curve = summarize_run(sql, run_id), measures.read_curve(sql, run_id)
        return RunFacts(run, name_inputs(sql, given_values), format_headline(sql, run_id), summaries, curve)


def format_headline(sql: Any, run_id: UUID) -> str:
    """Return a run's result with its intervals as text; empty without a result."""
    from chessreg.queries.intervals import add_intervals

    answer = measures.compare_with_earlier(sql, [run_id]).get(run_id)
    return "" if answer is None else show.format_result_words(add_intervals(sql, run_id, answer))


def name_inputs(sql: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with its input references as a user types them."""
    from chessreg.entities.run import format_typed_reference

    return {key: format_typed_reference(sql, value) if isinstance(value, str) else value for key, value in spec.items()}


def suggest_next_steps(counts: dict[str, int]) -> tuple[str, list[str]]:
    """Return the first missing kind of object, and the commands that create it."""
    if not counts["dataset"]:
        return "There are no games yet.", [
            "chessreg demo",
            "chessreg dataset add FILE.pgn --name games",
            "chessreg dataset add --sample --name sample",
        ]
    if not counts["checkpoint"]:
        return "There are games, but no model yet.", [
            "chessreg import checkpoint FILE --name model",
            "chessreg import checkpoint --reference --name reference",
        ]
    return "There are games and a model, but nothing was run yet.", [
        "chessreg run --help",
        "chessreg run cache --checkpoint MODEL --dataset GAMES --name cache",
        "chessreg run play --checkpoint MODEL --opponent random --games 20 --name games",
    ]
