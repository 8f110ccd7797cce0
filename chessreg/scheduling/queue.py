"""The job queue in the registry, as the supervisor and the commands read and change it."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from chessreg import child
from chessreg.errors import BadInputError, NotFoundError
from chessreg.masking import mask
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import SHORT_ID_DIGITS, find_by_suffix, make_uuid
from chessreg.registry.tables import Cause, Job, JobState
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs import trust
from chessreg.scheduling import worker
from chessreg.scheduling.executors import ResourceNeeds, Submission, SubmissionStatus
from chessreg.terminal import make_visible
from store.process import is_this_machine

if TYPE_CHECKING:
    from store import Store


ACTIVE_STATES = (JobState.QUEUED, JobState.RUNNING)
RETRY_KEY = "retry"  # in a job's detail: it is being cancelled, and is queued again when it has ended


def read_own_jobs(session: Session, store: Store, *states: JobState) -> list[Job]:
    """Return the jobs of this machine's supervisor and store in these states, by priority, then oldest first."""
    jobs = session.scalars(
        select(Job)
        .where(Job.state.in_(states), Job.host == socket.gethostname())
        .order_by(Job.priority.desc(), Job.created_at, Job.shard, Job.id)
    )
    return [job for job in jobs if is_own_job(job, store)]


def is_own_job(job: Job, store: Store) -> bool:
    """Return whether a job belongs to the supervisor of this machine and store."""
    return is_this_machine(job.host, job.system_id) and job.detail["store"] == str(store.root)


def get_job_folder(store: Store, job: Job) -> Path:
    """Return the folder of a job's order, log and outcome."""
    return store.runs / job.run_id.hex / "jobs" / job.id.hex


def format_job_title(job: Job) -> str:
    """Return a short title of a job: `probe 3f2a1c 2/4`, or in a sweep with its settings: `probe epochs=2 2/4`."""
    title = make_visible(f"{job.kind} {job.detail.get('differs') or job.run_id.hex[-6:]}")[:200]
    if job.shard == job.shards:
        return f"{title} reduce"
    return f"{title} {job.shard + 1}/{job.shards}" if job.shards > 1 else title


def prepare_submission(database: Database, store: Store, job: Job) -> Submission:
    """Return the next attempt at a job, and write its order into its folder.

    The registry's URL may contain a password, so it is passed in the environment rather than written.
    """
    work = make_submission(database, store, job)
    work.folder.mkdir(parents=True, exist_ok=True)
    (work.folder / "outcome.json").unlink(missing_ok=True)
    detail = job.detail
    order = {
        "job": job.id.hex,
        "run": job.run_id.hex,
        "try": job.tries + 1,
        "title": format_job_title(job),
        "executor": job.executor,
        "source": detail["source"],
        "spec": detail["spec"],
        "execution_options": get_job_options(job),
        "explicit": detail["explicit"],
        "store": detail["store"],
        "shard": job.shard,
        "shards": job.shards,
    }
    worker.write_record(work.folder / "work.json", order)
    return work


def launch_folder(job: Job) -> Path:
    """Return the folder that a job was launched in. Raises BadInputError unless it is an absolute path."""
    folder = job.detail.get("folder")
    if not isinstance(folder, str) or not os.path.isabs(folder) or "\0" in folder:
        raise BadInputError(
            f"{format_job_title(job)}: its folder {folder!a} is not an absolute path", "launch the run again"
        )
    return Path(folder)


def get_job_options(job: Job) -> dict[str, Any]:
    """Return the execution options of a job, with batch sizes halved after a lack of memory."""
    return {**job.detail["execution_options"], **job.detail.get("halved", {})}


def make_submission(database: Database, store: Store, job: Job) -> Submission:
    """Return the next attempt at a job without writing anything."""
    folder, detail, options = get_job_folder(store, job), job.detail, get_job_options(job)
    needs = ResourceNeeds(
        str(options.get("device", "auto")),
        int(options.get("threads", 0)),
        job.shards if job.shard < job.shards else 1,
        bool(detail.get("share_gpu")),
        float(detail.get("gpu_memory") or 0),
        int(options.get("devices", 1)),
        int(options.get("nodes", 1)),
    )
    cwd = launch_folder(job)
    if (
        store.root.resolve() in cwd.resolve().parents
    ):  # its content may come from another machine, so no profile is read from it
        raise BadInputError(
            f"{format_job_title(job)} was launched in {cwd}, inside the store", "launch it from another folder"
        )
    # This machine's interpreter and packages; nothing is imported from the folder that the row names.
    argv = tuple(child.build_python_command("chessreg.scheduling.worker", str(folder / "work.json")))
    return Submission(
        job.id,
        job.group_id,
        argv,
        folder,
        cwd,
        {"CHESSREG_REGISTRY": database.reference, **trust.build_worker_environment(detail["source"])},
        needs,
        format_job_title(job),
    )


# -- placement in a cluster --------------------------------------------------------------------------------------------


PLACEMENT_KEY = "placement"  # key in `Job.detail` of the placement record


def make_placement_record(status: SubmissionStatus) -> dict[str, str]:
    """Return the part of a scheduler's answer that the registry records: `state` and the known parts of the placement.

    Empty if no scheduler places the submission.
    """
    if status.placement is None:
        return {}
    return {"state": status.state} | {key: value for key, value in status.placement._asdict().items() if value}


def read_placement(job: Job) -> dict[str, str]:
    """Return the placement record of the job's last attempt. Empty before submission and for local jobs."""
    record: dict[str, str] = job.detail.get(PLACEMENT_KEY, {}) if job.state is not JobState.QUEUED else {}
    return record


def is_waiting_in_cluster(job: Job) -> bool:
    """Return whether a cluster's scheduler has the job and has not started it (see `run_state.WAITS_IN_CLUSTER`)."""
    return job.state is JobState.RUNNING and read_placement(job).get("state") == "waiting"


def record_placement(job: Job, record: dict[str, str]) -> None:
    """Store the placement record of a job if it has changed."""
    if record != job.detail.get(PLACEMENT_KEY, {}):
        other_details = {key: value for key, value in job.detail.items() if key != PLACEMENT_KEY}
        job.detail = {**other_details, PLACEMENT_KEY: record} if record else other_details


def find_machine(job: Job) -> str | None:
    """Return the host that runs the job: on a cluster its node, or None until the scheduler has chosen one."""
    return job.host if job.executor == "local" else read_placement(job).get("node")


# -- dependencies ------------------------------------------------------------------------------------------------------


def find_unmet_dependencies(session: Session, job: Job) -> list[tuple[str, bool]]:
    """Return (description, whether it can still finish) of everything that a queued job waits for."""
    unmet_dependencies = []
    for spec_hash in job.detail.get("after", []):
        run_id = make_uuid(spec_hash)
        run = session.get(tables.Run, run_id)
        if run is None or run.completed_at is None:
            run_jobs = session.scalars(select(Job).where(Job.run_id == run_id)).all()
            kind = run.kind if run else run_jobs[0].kind if run_jobs else "run"
            unmet_dependencies.append(
                (f"{kind} {run_id.hex[-6:]}", any(can_progress(session, other) for other in run_jobs))
            )
    if job.shard == job.shards:
        shards = session.scalars(
            select(Job).where(Job.group_id == job.group_id, Job.run_id == job.run_id, Job.shard < job.shards)
        ).all()
        unfinished_shards = [other for other in shards if other.cause is not Cause.FINISHED]
        if unfinished_shards:
            unmet_dependencies.append(
                (
                    f"{len(unfinished_shards)} of {job.shards} shards",
                    all(can_progress(session, other) for other in unfinished_shards),
                )
            )
    return unmet_dependencies


def can_progress(session: Session, job: Job) -> bool:
    """Return whether a job is running or may still start."""
    if job.state is JobState.QUEUED:
        return all(can for _, can in find_unmet_dependencies(session, job))
    return job.state is JobState.RUNNING


# -- commands of users -------------------------------------------------------------------------------------------------


def find_jobs_at_work(session: Session, runs: Collection[UUID]) -> list[UUID]:
    """Return the ids of all jobs of the launches that are still active for these runs, including ended jobs."""
    groups = select(Job.group_id).where(Job.run_id.in_(runs), Job.state.in_(ACTIVE_STATES))
    return list(session.scalars(select(Job.id).where(Job.run_id.in_(runs), Job.group_id.in_(groups))))


def find_jobs(session: Session, reference: str) -> list[Job]:
    """Return the jobs that a reference names: by a run's name, or by the end of a job, launch or run id.

    Names take precedence, since e4 is a valid name. An id needs at least 6 digits. Raises NotFoundError, and
    BadInputError if several entities match.
    """
    digits = reference.lower().replace("-", "")
    if set(digits) <= set("0123456789abcdef") and not names.find_by_name(session, "run", reference):
        if len(digits) < SHORT_ID_DIGITS:
            return _raise_no_job(reference)
        for column in (Job.id, Job.group_id, Job.run_id):
            ids = find_by_suffix(session, column, digits)
            if len(ids) > 1:
                raise BadInputError(f"job {reference!r} is ambiguous: {', '.join(id.hex[-8:] for id in ids)}")
            if ids:
                return _select_jobs(session, column == ids[0])
    try:
        return _select_jobs(session, Job.run_id == names.resolve_id(session, "run", reference)) or _raise_no_job(
            reference
        )
    except NotFoundError:
        return _raise_no_job(reference)


def _select_jobs(session: Session, where: Any) -> list[Job]:
    return list(session.scalars(select(Job).where(where).order_by(Job.created_at, Job.shard, Job.id)))


def _raise_no_job(reference: str) -> list[Job]:
    raise NotFoundError(f"job {reference!r} was not found", "chessreg jobs --all")


def cancel_jobs(session: Session, jobs: Iterable[Job]) -> list[Job]:
    """Remove queued jobs from the queue and mark running ones for cancellation. Return the affected jobs."""
    cancelled_jobs = []
    for job in lock_and_reread(session, jobs):
        if job.state is JobState.QUEUED:
            end_job(job, Cause.KILLED, "cancelled before it started")
        elif job.state is not JobState.RUNNING:
            continue
        job.cancel = True
        job.detail = {key: value for key, value in job.detail.items() if key != RETRY_KEY}
        cancelled_jobs.append(job)
    return cancelled_jobs


def retry_jobs(session: Session, jobs: Iterable[Job]) -> list[Job]:
    """Requeue jobs that ended without finishing, of each run's newest launch, and return them.

    A job that is being cancelled is requeued when it ends (`settle_cancelled_job`). Complete jobs, and runs with an
    active job of another launch, are left unchanged.
    """
    retried_jobs = []
    for job in sorted(lock_and_reread(session, jobs), key=lambda job: job.group_id, reverse=True):
        if (
            job.state is JobState.ENDED
            and job.cause is not Cause.FINISHED
            and not has_active_job(session, job.run_id, job)
        ):
            requeue_job(job, f"again after: {job.message or job.cause}")
            job.cancel = False
            job.detail = {key: value for key, value in job.detail.items() if key not in ("halved", RETRY_KEY)}
            retried_jobs.append(job)
        elif job.state is JobState.RUNNING and job.cancel:
            job.detail = {**job.detail, RETRY_KEY: True}
            retried_jobs.append(job)
    return retried_jobs


def settle_cancelled_job(session: Session, job: Job, cause: Cause, message: str | None) -> None:
    """Mark a cancelled job as ended with `cause` and `message`, and requeue it if a retry was requested meanwhile."""
    end_job(job, cause, "cancelled" if cause is Cause.KILLED else message)
    if job.detail.get(RETRY_KEY):
        retry_jobs(session, [job])


def requeue_job(job: Job, message: str) -> None:
    """Put a job back into the queue, with a message."""
    job.state, job.cause, job.message, job.handle, job.ended_at = JobState.QUEUED, None, mask(message), None, None


def end_job(job: Job, cause: Cause, message: str | None) -> None:
    """Mark a job as ended."""
    job.state, job.cause, job.ended_at = JobState.ENDED, cause, get_utc_now()
    job.message = message and mask(message)


def has_active_job(session: Session, run_id: UUID, excluded_job: Job | None = None) -> bool:
    """Return whether a run has a job that can still progress. The jobs of `excluded_job`'s launch are ignored."""
    jobs = session.scalars(select(Job).where(Job.run_id == run_id)).all()
    return any(
        can_progress(session, job) for job in jobs if excluded_job is None or job.group_id != excluded_job.group_id
    )


def lock_queue(session: Session) -> None:
    """Prevent other transactions from queueing and changing jobs until this one ends. SQLite's writing transactions are
    exclusive already.

    Call it before any change of a job in the transaction, because two transactions that first change jobs would wait
    for each other.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE job IN SHARE ROW EXCLUSIVE MODE"))


def lock_and_reread(session: Session, jobs: Iterable[Job]) -> list[Job]:
    """Lock the queue and return these jobs with the changes of other transactions since they were read."""
    lock_queue(session)
    session.flush()  # `refresh` discards changes
    read_jobs = list(jobs)
    for job in read_jobs:
        session.refresh(job)
    return read_jobs


def set_priority(session: Session, jobs: Iterable[Job], priority: int | None = None, by: int = 0) -> list[Job]:
    """Set the priority of queued jobs, or change it by `by`, and return these jobs. Higher priorities start first.

    Running jobs are not interrupted.
    """
    changed_jobs = [job for job in jobs if job.state is JobState.QUEUED]
    for job in changed_jobs:
        job.priority = (job.priority if priority is None else priority) + by
    return changed_jobs
