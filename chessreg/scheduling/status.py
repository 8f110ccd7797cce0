"""Status of jobs as plain rows for lists and `--json`: active and recently ended jobs and foreground runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import case, exists, select
from sqlalchemy.orm import Session

from chessreg.registry import names, tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.run_state import FAILURES, count_done
from chessreg.registry.states import get_attempt_state, get_state_word
from chessreg.registry.tables import Attempt, AttemptState, Cause, Job, JobState, Machine, Run
from chessreg.scheduling import queue
from chessreg.scheduling.executors import load_executor_class
from chessreg.scheduling.worker import select_shard_units
from store.process import is_this_machine

if TYPE_CHECKING:
    from store import Store


Row = dict[str, Any]
FINAL_STATES = frozenset(
    {*map(get_state_word, tables.Cause), "cancelled", "blocked"}
)  # states that do not change by themselves


def read_job_rows(session: Session, jobs: Iterable[Job]) -> list[Row]:
    """Return one row for each job, in the given order."""
    jobs = list(jobs)
    run_names = names.read_names_of(session, "run", {job.run_id for job in jobs})
    runs = {run.id: run for run in _read_by_ids(session, tables.Run, tables.Run.id, {job.run_id for job in jobs})}
    last_attempts: dict[UUID, tables.Attempt] = {}
    for attempt in _read_by_ids(session, tables.Attempt, tables.Attempt.job_id, {job.id for job in jobs}):
        if attempt.job_id and (attempt.job_id not in last_attempts or last_attempts[attempt.job_id].id < attempt.id):
            last_attempts[attempt.job_id] = attempt
    return [
        _make_row(session, job, runs.get(job.run_id), last_attempts.get(job.id), run_names.get(job.run_id))
        for job in jobs
    ]


def _read_by_ids(session: Session, table: Any, column: Any, ids: set[UUID]) -> list[Any]:
    return [row for (row,) in select_by_keys(session, select(table), column, ids)]


def _make_row(
    session: Session, job: Job, run: tables.Run | None, attempt: tables.Attempt | None, name: str | None
) -> Row:
    """Return a job as a row: its place, state, progress, remaining time and executor."""
    reduces = job.detail.get("reduces", False)
    every = run.units if run else job.detail.get("units")
    job_units = select_shard_units(every - reduces, every, job.shard, job.shards) if every else range(0)
    done_units = count_done(session, job.run_id, job_units)
    state, wait_reason = find_state(session, job)
    rate, seconds_left = measure_pace(attempt, done_units, len(job_units)) if state == "running" else (None, None)
    placement = queue.read_placement(job)
    row = {
        "id": job.id,
        "group_id": job.group_id,
        "run_id": job.run_id,
        "name": name,
        "kind": job.kind,
        "title": queue.format_job_title(job),
        "differs": job.detail.get("differs", ""),
        "state": state,
        "waits_for": wait_reason,
        "shard": job.shard,
        "shards": job.shards,
        "units": len(job_units) if every else None,
        "done": done_units,
        "progress": measure_progress(attempt, done_units, len(job_units)),
        "rate": rate,
        "seconds_left": seconds_left,
        "doing": attempt.doing if attempt and state == "running" else None,
        "executor": job.executor,
        "host": job.host,
        "machine": queue.find_machine(job),
        "scheduler_job": placement.get("job"),
        "partition": placement.get("partition"),
        "reason": placement.get("reason"),
        "starts_at": placement.get("starts_at"),
        "here": is_this_machine(job.host, job.system_id),
        "priority": job.priority,
        "tries": job.tries,
        "cause": job.cause,
        "message": job.message,
        "attempt_id": attempt.id if attempt else None,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }
    return row | {"why": explain_job(row)}


def explain_job(row: Row) -> str:
    """Return the activity, the dependency or the error of a job in words. Empty if there is nothing to report."""
    if row["waits_for"]:
        return f"waits for {', '.join(row['waits_for'])}"
    if row["state"] == "waiting":
        reason = f": {row['reason']}" if row["reason"] else ""
        start = row["starts_at"] and datetime.fromisoformat(row["starts_at"])
        start_note = f", expected to start {start:%Y-%m-%d %H:%M} UTC" if start else ""
        return f"waits in {get_scheduler_name(row)}{reason}{start_note}"
    return (row["reason"] or row["doing"] if row["state"] == "running" else row["message"]) or ""


def get_scheduler_name(row: Row) -> str:
    """Return the name of the job's scheduler: Slurm or Ray."""
    return str(row["executor"]).partition(":")[0].capitalize()


def find_state(session: Session, job: Job) -> tuple[str, list[str]]:
    """Return the state of a job, and descriptions of the jobs that it waits for.

    The state is queued, waiting (for other jobs, or in a cluster's queue), blocked (they will not finish), running,
    cancelling, or how the job ended.
    """
    if job.state is JobState.ENDED:
        return get_end_word(job, job.cause), []
    if job.state is JobState.RUNNING:
        return ("cancelling" if job.cancel else "waiting" if queue.is_waiting_in_cluster(job) else "running"), []
    unmet_dependencies = queue.find_unmet_dependencies(session, job)
    if not unmet_dependencies:
        return "queued", []
    return ("waiting" if all(can for _, can in unmet_dependencies) else "blocked"), [
        dependency for dependency, _ in unmet_dependencies
    ]


def measure_progress(attempt: tables.Attempt | None, done_units: int, units: int) -> float | None:
    """Return the share of the job that is done, 0 to 1: by units, and within a long unit by the attempt's progress."""
    if not units:
        return None
    by_units = done_units / units
    if attempt is None or attempt.progress is None or attempt.state is not tables.AttemptState.RUNNING:
        return by_units
    before = max(done_units - attempt.units_done, 0) / units  # of earlier attempts
    return max(by_units, min(before + (1 - before) * attempt.progress, 1.0))


def measure_pace(attempt: tables.Attempt | None, done_units: int, units: int) -> tuple[float | None, float | None]:
    """Return the units per second of the running attempt, and the seconds left, by the attempt's own clock.

    The done part of a long unit counts. `units` is the number of units of the job.
    """
    if attempt is None:
        return None, None
    seconds = (attempt.checked_in_at - attempt.started_at).total_seconds()
    if seconds <= 0:
        return None, None
    progress = attempt.progress or 0.0
    own_progress = progress - (attempt.progress_before or 0.0)  # without the loaded state
    own_units = units - max(done_units - attempt.units_done, 0)  # units left by earlier attempts
    rate = max(attempt.units_done, own_progress * own_units) / seconds or None
    seconds_left = (
        seconds * (1 - progress) / own_progress if own_progress > 0 else (units - done_units) / rate if rate else None
    )
    return rate, seconds_left


def get_end_word(job: Job | None, cause: tables.Cause | None) -> str:
    """Return how a job or an attempt ended, in one word: cancelled if a user cancelled it, else the cause."""
    if job is not None and job.cancel and cause is tables.Cause.KILLED:
        return "cancelled"
    return get_state_word(cause or tables.Cause.LOST)


def read_full_row(session: Session, job: Job) -> Row:
    """Return one job with its settings, all attempts, and its dependencies."""
    (row,) = read_job_rows(session, [job])
    attempts = session.execute(
        select(tables.Attempt, tables.Machine.host)
        .join(tables.Machine, tables.Machine.id == tables.Attempt.machine_id, isouter=True)
        .where(tables.Attempt.job_id == job.id)
        .order_by(tables.Attempt.started_at, tables.Attempt.id)
    ).all()
    field_names = ("id", "state", "cause", "exit_code", "message", "started_at", "ended_at", "units_done", "log")
    return {
        **row,
        "spec": job.detail["spec"],
        "execution_options": queue.get_job_options(job),
        "explicit": job.detail["explicit"],
        "folder": job.detail["folder"],
        "handle": job.handle,
        "attempts": [
            {
                **{key: getattr(a, key) for key in field_names},
                "execution_options": a.execution_options,
                "host": host,
                "end": get_attempt_state(a, job),
            }
            for a, host in attempts
        ],
    }


# - active and ended ---------------------------------------------------------------------------------------------------


MAX_ROWS = 200  # per list


def list_active(session: Session) -> list[Row]:
    """Return foreground runs and running jobs, then waiting jobs in the order in which they start.

    The keys are as in `read_job_rows`. `id` is empty for a foreground run.
    """
    order = case((Job.state == JobState.RUNNING, 0), else_=1), Job.priority.desc(), Job.created_at, Job.shard, Job.id
    jobs = session.scalars(select(Job).where(Job.ended_at.is_(None)).order_by(*order).limit(MAX_ROWS)).all()
    job_rows = read_job_rows(session, jobs)
    running_rows = [row for row in job_rows if row["state"] in ("running", "cancelling")]
    return [*list_foreground(session), *running_rows, *(row for row in job_rows if row not in running_rows)]


def list_foreground(session: Session) -> list[Row]:
    """Return the runs in the foreground, which were not queued and end with their terminal."""
    query = (
        select(Attempt, Run, Machine.host)
        .join(Run, Run.id == Attempt.run_id)
        .join(Machine, Machine.id == Attempt.machine_id)
        .where(Attempt.state == AttemptState.RUNNING, Attempt.job_id.is_(None))
        .order_by(Attempt.started_at.desc(), Attempt.id)
        .limit(MAX_ROWS)
    )
    attempts = session.execute(query).all()
    run_names = names.read_names_of(session, "run", {run.id for _, run, _ in attempts})
    rows: list[Row] = []
    for attempt, run, host in attempts:
        done_units = count_done(session, run.id)
        rate, seconds_left = measure_pace(attempt, done_units, run.units)
        rows.append(
            {
                "id": None,
                "group_id": None,
                "run_id": run.id,
                "name": run_names.get(run.id),
                "kind": run.kind,
                "title": f"{run.kind} {run.id.hex[-6:]}",
                "state": "running",
                "waits_for": [],
                "shard": 0,
                "shards": 1,
                "units": run.units,
                "done": done_units,
                "progress": measure_progress(attempt, done_units, run.units),
                "rate": rate,
                "seconds_left": seconds_left,
                "doing": attempt.doing,
                "executor": attempt.executor,
                "host": host,
                "machine": host,
                "message": attempt.message,
                "why": attempt.doing or "",
                "started_at": attempt.started_at,
            }
        )
    return rows


def list_ended(session: Session, since: datetime) -> list[Row]:
    """Return the jobs and foreground runs that ended after `since`, newest first.

    Each is represented by its last attempt; jobs that ended without one were cancelled or refused by their worker.
    Keys: id (of the job; None for a foreground run), run_id, kind, name, title, cause (in one word), message, done,
    units (of the run), seconds (of the attempt), machine (None if it never reached one), ended_at, failed (it neither
    finished nor was ended by a user).
    """
    newest_first = (Attempt.ended_at.desc(), Attempt.id)
    newest_ids = select(Attempt.id).where(Attempt.ended_at > since).order_by(*newest_first).limit(2 * MAX_ROWS)
    query = (  # sorts ids, not whole rows
        select(Attempt, Run, Machine.host, Job)
        .join(Run, Run.id == Attempt.run_id)
        .join(Machine, Machine.id == Attempt.machine_id, isouter=True)
        .join(Job, Job.id == Attempt.job_id, isouter=True)
        .where(Attempt.id.in_(newest_ids))
        .order_by(*newest_first)
    )
    has_ended_attempt = exists().where(Attempt.job_id == Job.id, Attempt.ended_at > since)
    jobs_without_attempt = (
        select(Job).where(Job.ended_at > since, ~has_ended_attempt).order_by(Job.ended_at.desc()).limit(MAX_ROWS)
    )
    rows: dict[UUID, Row] = {}
    foreground_runs = {row["run_id"] for row in list_foreground(session)}
    attempts, other_jobs = session.execute(query).all(), session.scalars(jobs_without_attempt).all()
    run_names = names.read_names_of(
        session, "run", {*(run.id for _, run, _, _ in attempts), *(job.run_id for job in other_jobs)}
    )
    for attempt, run, host, job in attempts:
        key = attempt.job_id or attempt.run_id
        if key in rows or (job is not None and job.ended_at is None) or (job is None and run.id in foreground_runs):
            continue  # tried again since
        is_interrupted = (
            attempt.job_id is None and attempt.state is AttemptState.KILLED and attempt.cause is Cause.KILLED
        )
        # a job may be cancelled after a failed attempt
        last_record = job if job is not None and job.cause is not attempt.cause else attempt
        rows[key] = {
            "id": attempt.job_id,
            "run_id": run.id,
            "kind": run.kind,
            "name": run_names.get(run.id),
            "title": queue.format_job_title(job) if job is not None else f"{run.kind} {run.id.hex[-6:]}",
            "cause": "interrupted" if is_interrupted else get_end_word(job, last_record.cause or Cause.LOST),
            "message": last_record.message,
            "done": count_done(session, run.id),
            "units": run.units,
            "seconds": (attempt.ended_at - attempt.started_at).total_seconds() if attempt.ended_at else None,
            "machine": host,
            "ended_at": attempt.ended_at,
        }
    for job in other_jobs:
        started_run = session.get(Run, job.run_id)
        rows.setdefault(
            job.id,
            {
                "id": job.id,
                "run_id": job.run_id,
                "kind": job.kind,
                "name": run_names.get(job.run_id),
                "title": queue.format_job_title(job),
                "cause": get_end_word(job, job.cause or Cause.KILLED),
                "message": job.message,
                "done": count_done(session, job.run_id),
                "units": started_run.units if started_run else None,
                "seconds": None,
                "machine": queue.find_machine(job),
                "ended_at": job.ended_at,
            },
        )
    ended_rows = sorted(rows.values(), key=lambda row: row["ended_at"], reverse=True)[:MAX_ROWS]
    return [{**row, "failed": row["cause"] in FAILURES} for row in ended_rows]


def explain_missing_log(row: Row) -> str:
    """Return why a job has no log on this machine."""
    if row["tries"] and row["state"] != "waiting":
        return f"the log is on {row['machine'] or row['host']}: chessreg logs {row['id'].hex[-6:]} there"
    return f"it has not started: it {row['why']}" if row["state"] in ("waiting", "blocked") else "it has not started"


def find_log(store: Store, job: Job) -> Path | None:
    """Return the log file of a job over all its attempts, or None if it has not begun or its log is elsewhere.

    A path from the job's row is read only if it has the name of this job's log.
    """
    log_path = queue.get_job_folder(store, job) / "log.txt"
    if log_path.exists():
        return log_path
    path = load_executor_class(job.executor).logs(job.handle) if job.handle else None
    parts = log_path.relative_to(store.root).parts
    return path if path is not None and path.parts[-len(parts) :] == parts and path.exists() else None
