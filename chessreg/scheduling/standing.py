"""How jobs stand, as plain rows for lists and for `--json`: state in words, units done, rate, time left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chessreg.registry import names, tables
from chessreg.registry.tables import Job, JobState
from chessreg.scheduling import queue
from chessreg.scheduling.worker import share

Row = dict[str, Any]
OVER = frozenset({*map(str, tables.Cause), "blocked"})  # states after which nothing more will come by itself


def rows(session: Session, jobs: Iterable[Job]) -> list[Row]:
    """One row a job, in the order given."""
    jobs = list(jobs)
    called = names.names_of(session, "run", {job.run_id for job in jobs})
    runs = {run.id: run for run in _some(session, tables.Run, tables.Run.id, {job.run_id for job in jobs})}
    last: dict[UUID, tables.Attempt] = {}
    for attempt in _some(session, tables.Attempt, tables.Attempt.job_id, {job.id for job in jobs}):
        if attempt.job_id and (attempt.job_id not in last or last[attempt.job_id].id < attempt.id):
            last[attempt.job_id] = attempt
    return [_row(session, job, runs.get(job.run_id), last.get(job.id), called.get(job.run_id)) for job in jobs]


def _some(session: Session, table: Any, column: Any, ids: set[UUID]) -> list[Any]:
    wanted = list(ids)
    found: list[Any] = []
    for start in range(0, len(wanted), 500):
        found += session.scalars(select(table).where(column.in_(wanted[start : start + 500]))).all()
    return found


def _row(session: Session, job: Job, run: tables.Run | None, attempt: tables.Attempt | None, name: str | None) -> Row:
    reduces = job.detail.get("reduces", False)
    every = run.units if run else job.detail.get("units")
    mine = share(every - reduces, every, job.shard, job.shards) if every else range(0)
    done = done_of(session, job.run_id, mine) if run else 0
    state, waits = state_of(session, job)
    rate, left = pace_of(attempt, done, len(mine)) if state == "running" else (None, None)
    return {
        "id": job.id,
        "group_id": job.group_id,
        "run_id": job.run_id,
        "name": name,
        "kind": job.kind,
        "title": queue.title(job),
        "state": state,
        "waits_for": waits,
        "shard": job.shard,
        "shards": job.shards,
        "units": len(mine) if every else None,
        "done": done,
        "progress": progress_of(attempt, done, len(mine)),
        "rate": rate,
        "seconds_left": left,
        "doing": attempt.doing if attempt and state == "running" else None,
        "executor": job.executor,
        "host": job.host,
        "priority": job.priority,
        "tries": job.tries,
        "cause": job.cause,
        "message": job.message,
        "attempt_id": attempt.id if attempt else None,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }


def state_of(session: Session, job: Job) -> tuple[str, list[str]]:
    """queued, waiting (for other jobs), blocked (they will not come), running, cancelling, or the cause of its end."""
    if job.state is JobState.ENDED:
        return str(job.cause), []
    if job.state is JobState.RUNNING:
        return ("cancelling" if job.cancel else "running"), []
    waits = queue.waits_for(session, job)
    if not waits:
        return "queued", []
    return ("waiting" if all(can for _, can in waits) else "blocked"), [what for what, _ in waits]


def done_of(session: Session, run_id: UUID, units: range) -> int:
    """How many of these units of a run are complete."""
    ranges = tables.UnitRange
    found = session.execute(
        select(ranges.start, ranges.stop).where(
            ranges.run_id == run_id,
            ranges.start < units.stop,
            ranges.stop > units.start,
            ranges.stop > ranges.start + 1,
        )
    ).all()
    single = session.scalar(
        select(func.count()).where(
            ranges.run_id == run_id,
            ranges.stop == ranges.start + 1,
            ranges.start >= units.start,
            ranges.start < units.stop,
        )
    )
    several = {unit for start, stop in found for unit in range(max(start, units.start), min(stop, units.stop))}
    return min((single or 0) + len(several), len(units))


def progress_of(attempt: tables.Attempt | None, done: int, units: int) -> float | None:
    """Share of the job that is done, 0 to 1: by units, and inside a long unit by what the attempt says."""
    if not units:
        return None
    by_units = done / units
    if attempt is None or attempt.progress is None or attempt.state is not tables.AttemptState.RUNNING:
        return by_units
    before = max(done - attempt.units_done, 0) / units  # of earlier attempts
    return max(by_units, min(before + (1 - before) * attempt.progress, 1.0))


def pace_of(attempt: tables.Attempt | None, done: int, units: int) -> tuple[float | None, float | None]:
    """Units a second of the running attempt, and seconds left; both by the attempt's own clock."""
    if attempt is None:
        return None, None
    seconds = (attempt.checked_in_at - attempt.started_at).total_seconds()
    if seconds <= 0:
        return None, None
    rate = attempt.units_done / seconds or None
    progress = attempt.progress or 0.0
    left = seconds * (1 - progress) / progress if progress > 0 else (units - done) / rate if rate else None
    return rate, left


def detail(session: Session, job: Job) -> Row:
    """One job in full: its settings, every attempt, what it waits for."""
    (row,) = rows(session, [job])
    tried = session.execute(
        select(tables.Attempt, tables.Machine.host)
        .join(tables.Machine, tables.Machine.id == tables.Attempt.machine_id, isouter=True)
        .where(tables.Attempt.job_id == job.id)
        .order_by(tables.Attempt.started_at, tables.Attempt.id)
    ).all()
    kept = ("id", "state", "cause", "exit_code", "message", "started_at", "ended_at", "units_done", "how", "log")
    return {
        **row,
        "spec": job.detail["spec"],
        "how": job.detail["how"] | job.detail.get("halved", {}),
        "given": job.detail["given"],
        "folder": job.detail["folder"],
        "handle": job.handle,
        "attempts": [{**{key: getattr(a, key) for key in kept}, "host": host} for a, host in tried],
    }
