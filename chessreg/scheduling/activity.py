"""What goes on now, here and elsewhere, and what has ended since a moment: jobs, and runs in the foreground."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from chessreg.registry import names
from chessreg.registry.tables import Attempt, AttemptState, Cause, Job, JobState, Machine, Run
from chessreg.scheduling import queue, standing

Row = dict[str, Any]
MOST = 200  # rows of each list


def going(session: Session) -> list[Row]:
    """What runs: foreground runs and jobs; then the jobs that wait, the ones that start first before the others.

    The keys are those of `standing.rows`; `id` is None for a run in the foreground.
    """
    order = case((Job.state == JobState.RUNNING, 0), else_=1), Job.priority.desc(), Job.created_at, Job.shard, Job.id
    jobs = session.scalars(select(Job).where(Job.ended_at.is_(None)).order_by(*order).limit(MOST)).all()
    rows = standing.rows(session, jobs)
    running = [row for row in rows if row["state"] in ("running", "cancelling")]
    return [*foreground(session), *running, *(row for row in rows if row not in running)]


def foreground(session: Session) -> list[Row]:
    """Runs in the foreground: nobody queued them, and they end with their terminal."""
    query = (
        select(Attempt, Run, Machine.host)
        .join(Run, Run.id == Attempt.run_id)
        .join(Machine, Machine.id == Attempt.machine_id)
        .where(Attempt.state == AttemptState.RUNNING, Attempt.job_id.is_(None))
        .order_by(Attempt.started_at.desc(), Attempt.id)
        .limit(MOST)
    )
    found = session.execute(query).tuples().all()
    called = names.names_of(session, "run", {run.id for _, run, _ in found})
    rows: list[Row] = []
    for attempt, run, host in found:
        done = standing.done_of(session, run.id, range(run.units))
        rate, left = standing.pace_of(attempt, done, run.units)
        rows.append(
            {
                "id": None,
                "group_id": None,
                "run_id": run.id,
                "name": called.get(run.id),
                "kind": run.kind,
                "title": f"{run.kind} {run.id.hex[-6:]}",
                "state": "running",
                "waits_for": [],
                "shard": 0,
                "shards": 1,
                "units": run.units,
                "done": done,
                "progress": standing.progress_of(attempt, done, run.units),
                "rate": rate,
                "seconds_left": left,
                "doing": attempt.doing,
                "executor": attempt.executor,
                "host": host,
                "message": attempt.message,
                "started_at": attempt.started_at,
            }
        )
    return rows


def ended(session: Session, since: datetime) -> list[Row]:
    """What finished or broke after `since`, newest first: the last attempt of each job that has ended and of each run
    in the foreground, and jobs that ended before they were tried.

    Rows: id (of the job; None: foreground), run_id, kind, name, title, cause (a Cause), message, done and units of the
    run, seconds that the attempt took, host, ended_at.
    """
    query = (
        select(Attempt, Run, Machine.host, Job)
        .join(Run, Run.id == Attempt.run_id)
        .join(Machine, Machine.id == Attempt.machine_id, isouter=True)
        .join(Job, Job.id == Attempt.job_id, isouter=True)
        .where(Attempt.ended_at > since)
        .order_by(Attempt.ended_at.desc(), Attempt.id)
        .limit(2 * MOST)
    )
    untried = select(Job).where(Job.ended_at > since, Job.tries == 0).order_by(Job.ended_at.desc()).limit(MOST)
    found: dict[UUID, Row] = {}
    again = {row["run_id"] for row in foreground(session)}
    tried, left = session.execute(query).tuples().all(), session.scalars(untried).all()
    called = names.names_of(session, "run", {*(run.id for _, run, _, _ in tried), *(job.run_id for job in left)})
    for attempt, run, host, job in tried:
        key = attempt.job_id or attempt.run_id
        if key in found or (job is not None and job.ended_at is None) or (job is None and run.id in again):
            continue  # it was tried again since
        found[key] = {
            "id": attempt.job_id,
            "run_id": run.id,
            "kind": run.kind,
            "name": called.get(run.id),
            "title": queue.title(job) if job is not None else f"{run.kind} {run.id.hex[-6:]}",
            "cause": attempt.cause or Cause.LOST,
            "message": attempt.message,
            "done": run.units if run.completed_at else standing.done_of(session, run.id, range(run.units)),
            "units": run.units,
            "seconds": (attempt.ended_at - attempt.started_at).total_seconds() if attempt.ended_at else None,
            "host": host,
            "ended_at": attempt.ended_at,
        }
    for job in left:
        begun = session.get(Run, job.run_id)
        found.setdefault(
            job.id,
            {
                "id": job.id,
                "run_id": job.run_id,
                "kind": job.kind,
                "name": called.get(job.run_id),
                "title": queue.title(job),
                "cause": job.cause or Cause.KILLED,
                "message": job.message,
                "done": standing.done_of(session, begun.id, range(begun.units)) if begun else 0,
                "units": begun.units if begun else None,
                "seconds": None,
                "host": job.host,
                "ended_at": job.ended_at,
            },
        )
    return sorted(found.values(), key=lambda row: row["ended_at"], reverse=True)[:MOST]
