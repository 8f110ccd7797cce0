"""Runs as rows: a list of them in pages, narrowed and sorted; the columns that it can have; how many there are."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select

from chessreg.registry import identity, lineage, measures, names, read, run_filter, tables
from chessreg.registry.states import word_of
from tui import show
from tui.columns import Column, signed, state_tone
from tui.data.pages import PAGE, JoinedPages, Pages, Row, by_words_above
from tui.data.sql_pages import ChosenPages, KeysetPages, stretches

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


def runs(session: Session, text: str = "", sort: str = run_filter.NEWEST_FIRST, metrics: Sequence[str] = ()) -> Pages:
    """The runs that fit the words (registry.run_filter says which), in this order; of `metrics` the last values.

    Raises BadInputError for a field or an order that there is not.
    """
    run = tables.Run
    with session.database.read() as sql:
        stale = lineage.find_stale_runs(sql)

        def rows(sql: SqlSession, records: Sequence[tables.Run]) -> list[Row]:
            return summaries(sql, records, stale, metrics)

        fits = run_filter.filter_conditions(sql, text)
        if sort != run_filter.NEWEST_FIRST:
            run_filter.order_columns(sql, sort)  # raises
            return ChosenPages(session, run, SortedIds(session, fits, sort), rows)
    key = (run.created_at, run.id)
    if not text.split():
        return KeysetPages(session, run, key, where=fits, descending=True, rows=rows)
    parts = stretches(session, run, key, fits=fits, rows=rows, descending=True, cut=key[:1])
    return JoinedPages(parts, by_words_above)


def fitting(session: Session, text: str, ids: Collection[UUID]) -> set[UUID]:
    """Those of these runs that fit the words."""
    if not ids:
        return set()
    with session.database.read() as sql:
        fits = run_filter.filter_conditions(sql, text)
        return set(sql.scalars(select(tables.Run.id).where(tables.Run.id.in_(ids), *fits)))


class SortedIds(Sequence[str]):
    """The ids of the runs that fit, in an order, as 32 hex digits: read CHUNK by CHUNK, each from the nearer end, of
    which SQL keeps only as many rows as it skips. May be asked by several threads."""

    CHUNK = 50 * PAGE

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
        first = start // self.CHUNK
        read = [id for number in range(first, -(-stop // self.CHUNK)) for id in self._chunk(number)]
        return read[start - first * self.CHUNK : stop - first * self.CHUNK]

    def _chunk(self, number: int) -> Sequence[str]:
        if number not in self._chunks:
            before = number * self.CHUNK
            size = min(self.CHUNK, self._count - before)
            after = self._count - before - size
            with self._database.read() as sql:
                order = run_filter.order_columns(sql, self._sort, after < before)
                query = select(run_filter.run_id_hex(sql)).where(*self._fits).order_by(*order)
                ids = sql.scalars(query.limit(size).offset(min(before, after))).all()
            self._chunks[number] = ids[::-1] if after < before else ids
        return self._chunks[number]


def metric_names(session: Session, ids: Sequence[UUID]) -> list[str]:
    """The metrics that any of these runs has."""
    point = tables.MetricPoint
    with session.database.read() as sql:
        return sorted(sql.scalars(select(point.name).where(point.run_id.in_(ids)).distinct()))


def summaries(
    sql: SqlSession, records: Sequence[tables.Run], stale: Collection[UUID], metrics: Sequence[str] = ()
) -> list[Row]:
    """What `chessreg runs list` says of these runs, and no other run is looked at."""
    ids = [record.id for record in records]
    shorts, last = identity.shorten_ids(ids), run_filter.read_last_metrics(sql, ids, metrics) if metrics else {}
    return [
        {**row, "short": shorts[row["id"].hex], "metrics": last.get(row["id"], {})}
        for row in read.read_run_rows(sql, ids, stale=stale)
    ]


SPEC, METRIC = "spec.", "metric."


def state(row: Row) -> str:
    return f"{row['state']}{read.format_marks(row)}"


def signed_state(row: Row) -> str:
    return signed(state(row))


def units(row: Row) -> str:
    return f"{row['done']:,}/{row['units']:,}"


def name(row: Row) -> str:
    return ("★ " if row["starred"] else "") + ("⚑ " if row["pinned"] else "") + (row["name"] or "")


def completed(row: Row) -> str:
    return show.when(row["completed_at"])


# By the names that they are sorted by (chessreg.registry.run_filter.SORT_KEYS).
KNOWN = {
    "id": Column("short", "id", text=lambda row: show.short(row["short"]), role="detail"),
    "name": Column("name", "name", text=name, widest=28, least=12, role="key"),
    "kind": Column("kind", "kind", widest=16),
    "state": Column(
        "state", "state", text=signed_state, whole=True, role="key", tone=lambda row: state_tone(state(row))
    ),
    "result": Column("result", "result", widest=40, least=14, role="value", split=" · "),
    "units": Column("done", "units", right=True, text=units, role="detail"),
    "created": Column("created_at", "created", text=lambda row: show.when(row["created_at"]), least=16, role="detail"),
    "machine": Column("host", "machine", text=lambda row: show.host(row["host"]), widest=20),
    "tries": Column("attempts", "tries", right=True),
    "tags": Column("tags", "tags", text=lambda row: " ".join(row["tags"])),
    "completed": Column("completed_at", "completed", text=completed, least=16, role="detail"),
    "starred": Column("starred", "starred", text=lambda row: "★" if row["starred"] else ""),
    "notes": Column("notes", "last note", text=lambda row: show.value((row["notes"] or [""])[-1]), widest=40),
}
MEANING = {
    "id": "the end of the id",
    "name": "its name; ★ starred, ⚑ pinned",
    "kind": "kind of experiment",
    "state": "complete, partial or running; how a partial one ended; invalid or stale",
    "result": "the first number that it came to",
    "units": "units done of all",
    "created": "when it was made",
    "machine": "where it was tried last",
    "tries": "attempts",
    "tags": "tags",
    "completed": "when its last unit was done",
    "starred": "starred or not",
    "notes": "what was noted last",
}
SHOWN = ("name", "kind", "state", "result", "units", "created", "machine", "tries", "tags", "id")


def column(key: str) -> Column:
    """The column of this name."""
    if key.startswith(SPEC):
        path = key.removeprefix(SPEC).split(".")
        return Column(key, key.removeprefix(SPEC), text=lambda row: show.value(within(row["spec"], path)), widest=24)
    if key.startswith(METRIC):
        metric = key.removeprefix(METRIC)
        return Column(key, metric, right=True, text=lambda row: show.value(row["metrics"].get(metric)))
    return KNOWN[key]


def known(key: str) -> bool:
    return key in KNOWN or (key.startswith((SPEC, METRIC)) and not key.endswith("."))


def within(values: Any, path: Sequence[str]) -> Any:
    for step in path:
        values = values.get(step) if isinstance(values, Mapping) else None
    return values


SETTINGS = (
    Column("setting", "setting", role="detail"),
    Column("value", "value", widest=90, tone=lambda row: "key" if row["source"] == "given" else "detail"),
    Column("source", "given or default", role="detail"),
)


def attempt_state(row: Mapping[str, Any]) -> str:
    """Return the state of an attempt: running, or the state that its cause names."""
    return word_of(row["cause"]) if row["cause"] else str(row["state"])


ATTEMPTS = (
    Column("started_at", "started", text=lambda row: show.when(row["started_at"]), least=16),
    Column(
        "state",
        "state",
        text=lambda row: signed(attempt_state(row)),
        tone=lambda row: state_tone(attempt_state(row)),
        role="key",
    ),
    Column("units_done", "units", right=True),
    Column("took", "took", right=True, text=lambda row: took(row)),
    Column("host", "machine", text=lambda row: show.host(row["host"])),
    Column("executor", "executor"),
    Column("message", "message", widest=60),
)


def took(row: Mapping[str, Any]) -> str:
    return show.duration((row["ended_at"] - row["started_at"]).total_seconds()) if row["ended_at"] else ""


COUNTED = {
    "run": tables.Run,
    "dataset": tables.Dataset,
    "checkpoint": tables.Checkpoint,
}


def overview(session: Session) -> dict[str, int]:
    """Rows by noun, and how many runs are not complete."""
    with session.database.read() as sql:
        counts = {noun: sql.scalar(select(func.count()).select_from(table)) or 0 for noun, table in COUNTED.items()}
        unfinished = select(func.count()).select_from(tables.Run).where(tables.Run.completed_at.is_(None))
        return counts | {"unfinished": sql.scalar(unfinished) or 0}


def first_results(session: Session, run_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The first measure of each of these runs in words; empty where it has none."""
    found = {}
    with session.database.read() as sql:
        for run_id in run_ids:
            first = next(iter(measures.read_measures(sql, run_id)), None)
            words = "" if first is None else show.measured({"measure": first.name, "value": first.value})
            found[run_id] = words if first is None else f"{words} · {first.name.removesuffix(' %')}"
    return found


def preview(session: Session, run_id: UUID) -> tuple[dict[str, Any], str]:
    """A run in full, its inputs by their names, and its result in words; empty where it has none."""
    with session.database.read() as sql:
        run = read.read_run(sql, run_id.hex)
        run["spec"] = called(sql, run["spec"])
        return run, headline(sql, run_id)


def headline(sql: Any, run_id: UUID) -> str:
    """A run's result in words, with its intervals; empty where it has none."""
    from chessreg.queries.intervals import add_intervals

    answer = measures.compare_with_earlier(sql, [run_id]).get(run_id)
    return "" if answer is None else show.answer(add_intervals(sql, run_id, answer))


INPUT = re.compile(r"(run|sha256|dataset):([0-9a-f]{32})[0-9a-f]{32}(.*)", re.DOTALL)
NOUN_OF = {"run": "run", "sha256": "checkpoint", "dataset": "dataset"}  # by how an input reference begins


def called(sql: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with names in place of input references, where there are names."""
    found = {key: match for key, value in spec.items() if isinstance(value, str) and (match := INPUT.fullmatch(value))}
    named = dict(spec)
    for begins, noun in NOUN_OF.items():
        of_noun = {key: match for key, match in found.items() if match[1] == begins}
        known = names.read_names_of(sql, noun, [UUID(match[2]) for match in of_noun.values()])
        for key, match in of_noun.items():
            if name := known.get(UUID(match[2])):
                named[key] = f"{name} {match[3]}".rstrip()
    return named


def next_steps(counts: dict[str, int]) -> tuple[str, list[str]]:
    """What is missing first, and the commands that make it."""
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
