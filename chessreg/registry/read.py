"""Contents of a registry as plain rows, for lists and `--json`. Keys are the columns of the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chessreg.errors import NotFoundError
from chessreg.registry import lineage, names, tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.run_state import END, STATE, UNITS_DONE
from chessreg.registry.states import get_attempt_state

Row = dict[str, Any]


def get_row_values(record: Any) -> Row:
    """Return a table row as a dict of its columns, in order."""
    return {column.key: getattr(record, column.key) for column in record.__table__.columns}


def read_annotations(session: Session, noun: str, ids: Sequence[UUID] | None = None) -> dict[UUID, Row]:
    """Return id → current annotations of a noun's entities, or of `ids` only.

    Keys: name (name@host if several entities share it), tags, notes, starred, pinned, archived, and invalid (the
    reason, or None).
    """
    if ids is None:
        now: Any = names.CURRENT_ANNOTATIONS.c
        rows: Iterable[Any] = session.execute(
            select(now.target, now.word, now.value).where(now.noun == noun).order_by(now.at, now.value)
        )
    else:  # faster than the view, which numbers every annotation of the noun
        now = tables.Annotation
        query = select(now.target, now.word, now.value).where(now.noun == noun, *names.is_current())
        rows = select_by_keys(session, query.order_by(now.at, now.value), now.target, [id.hex for id in ids])
    annotations: dict[UUID, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for target, word, value in rows:
        annotations[UUID(hex=target)][word].append(value)
    names_by_id = names.read_noun_names(session, noun) if ids is None else names.read_names_of(session, noun, ids)
    return {
        target: {
            "name": names_by_id.get(target),
            "tags": sorted(texts["tag"]),
            "notes": texts["note"],
            "starred": bool(texts["star"]),
            "pinned": bool(texts["pin"]),
            "archived": bool(texts["archive"]),
            "invalid": "; ".join(texts["invalid"]) or "no reason" if texts["invalid"] else None,
        }
        for target, texts in annotations.items()
    }


NO_ANNOTATIONS: Row = {
    "name": None, "tags": [], "notes": [], "starred": False, "pinned": False, "archived": False, "invalid": None,
}  # fmt: skip


# -- runs -------------------------------------------------------------------------------------------------------------


def list_runs(session: Session, *, kind: str | None = None, archived: bool = False) -> list[Row]:
    """Return all runs, newest last. Archived runs are included only with `archived`."""
    rows = read_run_rows(session, order=(tables.Run.created_at, tables.Run.id))
    return [row for row in rows if (archived or not row["archived"]) and kind in (None, row["kind"])]


def read_run_rows(
    session: Session,
    ids: Sequence[UUID] | None = None,
    order: Sequence[Any] = (),
    stale_runs: Collection[UUID] | None = None,
) -> list[Row]:
    """Return the row of each run in `ids`, in that order. Without `ids`, return all runs in the given `order`.

    Keys: those of `read_annotations`, the columns of `run`, state and done (registry.run_state), end (how the last
    attempt of a partial run ended), stale, attempts, and host (of the last attempt). Pass `stale_runs` if the stale
    runs are known already.
    """
    query, tries = select(tables.Run, STATE, UNITS_DONE, END).order_by(*order), _read_hosts_of_runs(session, ids)
    annotations = read_annotations(session, "run", ids)
    stale_runs = lineage.find_stale_runs(session) if stale_runs is None else stale_runs
    if ids is not None:
        query = query.where(tables.Run.id.in_(ids))
    rows = {
        record.id: {
            **annotations.get(record.id, NO_ANNOTATIONS),
            **get_row_values(record),
            "state": state,
            "done": done_units,
            "end": end,
            "attempts": len(tries[record.id]),
            "host": tries[record.id][-1] if tries[record.id] else None,
            "stale": record.id in stale_runs,
        }
        for record, state, done_units, end in session.execute(query)
    }
    return list(rows.values()) if ids is None else [rows[id] for id in ids if id in rows]


def format_marks(row: Mapping[str, Any]) -> str:
    """Return the suffix to a run's state in brackets: how its last attempt failed, and `invalid` or `stale`. Otherwise
    empty.
    """
    end = None if row["end"] in ("interrupted", "cancelled") else row["end"]
    mark = "invalid" if row["invalid"] else "stale" if row["stale"] else None
    marks_text = ", ".join(filter(None, [end, mark]))
    return f" ({marks_text})" if marks_text else ""


def _read_hosts_of_runs(session: Session, ids: Sequence[UUID] | None) -> dict[UUID, list[str | None]]:
    """Return run id → the host of each attempt, oldest first."""
    attempt, machine = tables.Attempt, tables.Machine
    query = select(attempt.run_id, machine.host).join(machine, machine.id == attempt.machine_id, isouter=True)
    if ids is not None:
        query = query.where(attempt.run_id.in_(ids))
    hosts: dict[UUID, list[str | None]] = defaultdict(list)
    for run_id, host in session.execute(query.order_by(attempt.started_at, attempt.id)):
        hosts[run_id].append(host)
    return hosts


def list_attempts(session: Session, run_id: UUID) -> list[Row]:
    """Return the attempts of a run, oldest first, each with the host of its machine and how it ended (`end`)."""
    attempt, machine = tables.Attempt, tables.Machine
    query = select(attempt, machine.host, tables.Job).join(machine, machine.id == attempt.machine_id, isouter=True)
    query = query.join(tables.Job, tables.Job.id == attempt.job_id, isouter=True)
    query = query.where(attempt.run_id == run_id).order_by(attempt.started_at, attempt.id)
    return [
        {**get_row_values(record), "host": host, "end": get_attempt_state(record, job)}
        for record, host, job in session.execute(query)
    ]


def read_run(session: Session, reference: str) -> Row:
    """Return one run with its spec, inputs, outputs and attempts. Raises NotFoundError."""
    stale_runs = lineage.find_stale_runs(session)
    rows = read_run_rows(session, [names.resolve_id(session, "run", reference)], stale_runs=stale_runs)
    if not rows:
        raise NotFoundError(f"run {reference!r} was not found", "chessreg runs list")
    record = session.get_one(tables.Run, rows[0]["id"])
    run_input = tables.RunInput
    inputs = session.scalars(
        select(run_input)
        .where(run_input.run_id == record.id)
        .order_by(run_input.name, run_input.reference, run_input.digest)
    )
    outputs = session.scalars(
        select(tables.Output).where(tables.Output.run_id == record.id).order_by(tables.Output.unit, tables.Output.name)
    )
    return {
        **rows[0],
        "rests_on_invalid": [f"{node.noun} {node.id[-6:]}" for node in stale_runs.get(record.id, [])],
        "defaulted": sorted(record.spec.keys() - {name.partition(".")[0] for name in record.explicit}),
        "explicit": record.explicit,
        "inputs": [get_row_values(row) for row in inputs],
        "outputs": [get_row_values(row) for row in outputs],
        "conflicts": session.scalar(
            select(func.count()).select_from(tables.Conflict).where(tables.Conflict.run_id == record.id)
        ),
        "tries": list_attempts(session, record.id),
        "engines": list_run_engines(session, record.id),
    }


def list_conflicts(session: Session, reference: str | None = None) -> list[Row]:
    """Return repeated results that differ from the stored ones, of one run or of all, oldest first."""
    table = tables.Conflict
    query = select(table, tables.Run.kind).join(tables.Run, tables.Run.id == table.run_id, isouter=True)
    if reference is not None:
        query = query.where(table.run_id == names.resolve_id(session, "run", reference))
    records = session.execute(query.order_by(table.found_at, table.id)).all()
    names_by_id, hosts = (
        names.read_names_of(session, "run", {record.run_id for record, _ in records}),
        read_attempt_hosts(session),
    )
    return [
        {
            "run": names_by_id.get(record.run_id),
            "kind": kind,
            "host": hosts.get(record.attempt_id),
            **get_row_values(record),
        }
        for record, kind in records
    ]


def read_attempt_hosts(session: Session) -> dict[UUID, str]:
    """Return attempt id → host of its machine."""
    pairs = select(tables.Attempt.id, tables.Machine.host).join(
        tables.Machine, tables.Machine.id == tables.Attempt.machine_id
    )
    return dict(session.execute(pairs).all())


def describe_engine(name: str, version: str, sha256: str | None) -> str:
    """Return an engine's name, version and the start of its digest.

    >>> describe_engine("Stockfish", "15.1", "0123456789abcdef"), describe_engine("random", "1", None)
    ('Stockfish 15.1 (sha256 0123456789ab)', 'random 1')
    """
    return f"{name} {version}" + (f" (sha256 {sha256[:12]})" if sha256 else "")


EVALUATORS = "evaluator_engine_ids"
"""Key in the detail of a match: the engines that evaluated positions of stopped games, of draws, or before moves that
they then played for the model. Several only if several machines played one run."""


def get_engine_ids(match: tables.Match) -> dict[str, list[UUID]]:
    """Return the ids of a match's engines by role: `opponent`, `player` (if it is an engine) and `evaluator`."""
    detail = match.detail or {}
    ids = {
        "opponent": [match.engine_id],
        "player": [detail.get("player_engine_id")],
        "evaluator": detail.get(EVALUATORS),
    }
    return {role: parse_ids(values) for role, values in ids.items()}


def parse_ids(values: Any) -> list[UUID]:
    """Return the ids in a list of a detail. Other values, as in another user's rows, are left out."""
    ids = []
    for value in values if isinstance(values, list) else ():
        with suppress(ValueError):
            ids.append(UUID(str(value)))
    return ids


def combine_evaluators(ours: Any, other: Any) -> dict[str, Any] | None:
    """Return the detail `ours` of a match with the evaluating engines of its detail `other` added. None: unchanged.

    If one of them does not record an engine, nothing is added.

    >>> combine_evaluators({EVALUATORS: ["a" * 32]}, {EVALUATORS: ["b" * 32]})
    {'evaluator_engine_ids': ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb']}
    """
    my_ids, other_ids = (parse_ids((detail or {}).get(EVALUATORS)) for detail in (ours, other))
    if not my_ids or not other_ids or set(other_ids) <= set(my_ids):
        return None
    return {**ours, EVALUATORS: [id.hex for id in dict.fromkeys([*my_ids, *other_ids])]}


def find_judge_ids(session: Session, run_id: UUID) -> list[UUID]:
    """Return the ids of the engines that judged the moves of a run of kind `move-quality`; none for other kinds."""
    run, prediction = session.get(tables.Run, run_id), tables.Prediction
    if run is None or run.kind != "move-quality":  # the rows of other kinds may be many, and name no engine
        return []
    judge_id = prediction.detail["engine_id"].as_string()
    query = select(judge_id).where(prediction.run_id == run_id, prediction.item == -1).distinct()
    return parse_ids(sorted(filter(None, session.scalars(query))))


def list_run_engines(session: Session, run_id: UUID) -> list[Row]:
    """Return the engine programs of a run: name, version, binary_sha256, and `roles`, those of `get_engine_ids` or
    `judge`. Engines without a known binary, such as random movers, are left out."""
    matches = session.scalars(
        select(tables.Match).where(tables.Match.run_id == run_id).order_by(tables.Match.number)
    ).all()
    roles: dict[UUID, dict[str, None]] = defaultdict(dict)
    for match in matches:
        for role, engine_ids in get_engine_ids(match).items():
            for engine_id in engine_ids:
                roles[engine_id][role] = None
    for judge_id in () if matches else find_judge_ids(session, run_id):
        roles[judge_id]["judge"] = None
    engines = [(session.get(tables.Engine, engine_id), [*own_roles]) for engine_id, own_roles in roles.items()]
    return [
        {"name": engine.name, "version": engine.version, "binary_sha256": engine.binary_sha256, "roles": engine_roles}
        for engine, engine_roles in engines
        if engine is not None and engine.binary_sha256
    ]


def describe_run_engines(session: Session, run_id: UUID) -> dict[str, str]:
    """Return role → the engine programs of a run in this role."""
    engines: dict[str, list[str]] = {}
    for engine in list_run_engines(session, run_id):
        for role in engine["roles"]:
            engine_text = describe_engine(engine["name"], engine["version"], engine["binary_sha256"])
            engines.setdefault(role, []).append(engine_text)
    return {role: ", ".join(texts) for role, texts in engines.items()}


# Machines counted in one scan of the attempts. With GROUP BY, SQLite would sort all attempts in memory.
MACHINES_PER_SCAN = 500


def list_machines(session: Session) -> list[Row]:
    """Return the machines that ran something, the most recently seen first, with their numbers of runs.

    `last_seen` is the last check-in of any attempt on the machine.
    """
    attempt, running_state = tables.Attempt, tables.AttemptState.RUNNING
    repeated_runs = (
        select(attempt.run_id).group_by(attempt.run_id).having(func.count() > 1)
    )  # most runs have one attempt
    repeated_counts = select(attempt.machine_id, func.count() - func.count(attempt.run_id.distinct()))
    repeated_counts = repeated_counts.where(attempt.run_id.in_(repeated_runs)).group_by(attempt.machine_id)
    now = select(attempt.machine_id, func.count()).where(attempt.state == running_state).group_by(attempt.machine_id)
    repeats, running_on = (dict(session.execute(query).all()) for query in (repeated_counts, now))
    load_of, rows = read_loads(session), list[Row]()
    records = session.scalars(select(tables.Machine).order_by(tables.Machine.host, tables.Machine.id)).all()
    for part_records in (
        records[place : place + MACHINES_PER_SCAN] for place in range(0, len(records), MACHINES_PER_SCAN)
    ):
        results = session.execute(
            select(
                *(func.count().filter(attempt.machine_id == record.id) for record in part_records),
                *(func.max(attempt.checked_in_at).filter(attempt.machine_id == record.id) for record in part_records),
            )
        ).one()
        for record, attempts, last_seen_at in zip(
            part_records, results[: len(part_records)], results[len(part_records) :], strict=True
        ):
            counts = {"runs": attempts - repeats.get(record.id, 0), "running": running_on.get(record.id, 0)}
            last_seen = max(filter(None, [record.last_seen, last_seen_at]))
            load = load_of.get(record.id, {"load": None, "load_at": None})
            rows.append({**get_row_values(record), "last_seen": last_seen, **counts, **load})
    return sorted(rows, key=lambda row: row["last_seen"], reverse=True)


def read_loads(session: Session) -> dict[UUID, Row]:
    """Return machine id → `load` and `load_at`, the last load reported by an attempt that is running there."""
    attempt = tables.Attempt
    query = (
        select(attempt.machine_id, attempt.load, attempt.checked_in_at)
        .where(attempt.state == tables.AttemptState.RUNNING, attempt.load.is_not(None))
        .order_by(attempt.checked_in_at)
    )
    return {machine: {"load": load, "load_at": at} for machine, load, at in session.execute(query)}


def read_kind_file_of_run(session: Session, run_id: UUID) -> tuple[str, str] | None:
    """Return name and SHA-256 of the file with a run's custom kind, in its last attempt; None if not recorded."""
    newest_attempt = (
        select(tables.Attempt).where(tables.Attempt.run_id == run_id).order_by(tables.Attempt.started_at.desc())
    )
    attempt = session.scalars(newest_attempt).first()
    recorded_file = attempt.code.get("kind_file") if attempt else None
    if not isinstance(recorded_file, dict):
        return None
    return PurePosixPath(str(recorded_file.get("file"))).name, str(recorded_file.get("sha256"))
