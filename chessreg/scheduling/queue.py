"""The queue in the registry: jobs as the supervisor and the commands read and change them."""

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
from chessreg.registry.identity import SHORT_ID_DIGITS, find_by_suffix, uuid_from_digest
from chessreg.registry.tables import Cause, Job, JobState
from chessreg.registry.tables.types import utc_now
from chessreg.runs import trust
from chessreg.scheduling import worker
from chessreg.scheduling.executors import ResourceNeeds, Submission, SubmissionStatus
from chessreg.terminal import visible
from store.process import is_this_machine

if TYPE_CHECKING:
    from store import Store


ACTIVE_STATES = (JobState.QUEUED, JobState.RUNNING)


def read_own_jobs(session: Session, store: Store, *states: JobState) -> list[Job]:
    """Jobs in these states that the supervisor of this machine and store looks after: urgent first, then oldest."""
    jobs = session.scalars(
        select(Job)
        .where(Job.state.in_(states), Job.host == socket.gethostname())
        .order_by(Job.priority.desc(), Job.created_at, Job.shard, Job.id)
    )
    return [job for job in jobs if is_own_job(job, store)]


def is_own_job(job: Job, store: Store) -> bool:
    """Whether the supervisor of this machine and store looks after a job."""
    return is_this_machine(job.host, job.system_id) and job.detail["store"] == str(store.root)


def job_folder(store: Store, job: Job) -> Path:
    """Where the job's order, log and outcome lie."""
    return store.runs / job.run_id.hex / "jobs" / job.id.hex


def job_title(job: Job) -> str:
    """A job in one line of words: `probe 3f2a1c 2/4`; one of a sweep by its own settings: `probe epochs=2 2/4`."""
    what = visible(f"{job.kind} {job.detail.get('differs') or job.run_id.hex[-6:]}")[:200]
    if job.shard == job.shards:
        return f"{what} reduce"
    return f"{what} {job.shard + 1}/{job.shards}" if job.shards > 1 else what


def prepare_submission(database: Database, store: Store, job: Job) -> Submission:
    """The next try at a job, its order written into its folder. The registry's URL, which may hold a password, is not
    written there: it goes in the environment."""
    work = make_submission(database, store, job)
    work.folder.mkdir(parents=True, exist_ok=True)
    (work.folder / "outcome.json").unlink(missing_ok=True)
    detail = job.detail
    order = {
        "job": job.id.hex,
        "run": job.run_id.hex,
        "try": job.tries + 1,
        "title": job_title(job),
        "executor": job.executor,
        "source": detail["source"],
        "spec": detail["spec"],
        "execution_options": job_options(job),
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
        raise BadInputError(f"{job_title(job)}: its folder {folder!a} is not an absolute path", "launch the run again")
    return Path(folder)


def job_options(job: Job) -> dict[str, Any]:
    return {**job.detail["execution_options"], **job.detail.get("halved", {})}


def make_submission(database: Database, store: Store, job: Job) -> Submission:
    """The next try at a job, of which nothing is written yet."""
    folder, detail, options = job_folder(store, job), job.detail, job_options(job)
    needs = ResourceNeeds(
        str(options.get("device", "auto")),
        int(options.get("threads", 0)),
        job.shards if job.shard < job.shards else 1,
        bool(detail.get("share_gpu")),
        float(detail.get("gpu_memory") or 0),
    )
    cwd = launch_folder(job)
    if store.root.resolve() in cwd.resolve().parents:  # what lies there may be another machine's: no profile of it
        raise BadInputError(
            f"{job_title(job)} was launched in {cwd}, inside the store", "launch it from another folder"
        )
    # The interpreter is this machine's, and so is all that it imports; nothing of the folder that the row names.
    argv = tuple(child.command("chessreg.scheduling.worker", str(folder / "work.json")))
    return Submission(
        job.id,
        job.group_id,
        argv,
        folder,
        cwd,
        {"CHESSREG_REGISTRY": database.reference, **trust.worker_environment(detail["source"])},
        needs,
        job_title(job),
    )


# -- where a cluster has put a job ------------------------------------------------------------------------------------


PLACEMENT_KEY = "placement"  # in `Job.detail`: what `placement_record` made of the last answer of the job's scheduler


def make_placement_record(seen: SubmissionStatus) -> dict[str, str]:
    """Return what the registry keeps of a scheduler's answer: `state` (waiting or running) and what is known of the
    placement. Empty for a work that no scheduler places."""
    if seen.placement is None:
        return {}
    return {"state": seen.state} | {key: value for key, value in seen.placement._asdict().items() if value}


def read_placement(job: Job) -> dict[str, str]:
    """Return the record of the job's last try, empty before it was submitted and for a job of this machine."""
    record: dict[str, str] = job.detail.get(PLACEMENT_KEY, {}) if job.state is not JobState.QUEUED else {}
    return record


def is_waiting_in_cluster(job: Job) -> bool:
    """Return whether the job was handed to a cluster's scheduler that has not started it, as `WAITS_IN_CLUSTER` of
    `registry.run_state` asks in SQL."""
    return job.state is JobState.RUNNING and read_placement(job).get("state") == "waiting"


def record_placement(job: Job, record: dict[str, str]) -> None:
    if record != job.detail.get(PLACEMENT_KEY, {}):
        others = {key: value for key, value in job.detail.items() if key != PLACEMENT_KEY}
        job.detail = {**others, PLACEMENT_KEY: record} if record else others


def find_machine(job: Job) -> str | None:
    """Return the host that runs the job: on a cluster the node, or None before the scheduler has chosen one."""
    return job.host if job.executor == "local" else read_placement(job).get("node")


# -- what a job waits for ---------------------------------------------------------------------------------------------


def find_unmet_dependencies(session: Session, job: Job) -> list[tuple[str, bool]]:
    """What a queued job still waits for: (in words, whether it can still come), empty when it may start."""
    waiting = []
    for spec_hash in job.detail.get("after", []):
        run_id = uuid_from_digest(spec_hash)
        run = session.get(tables.Run, run_id)
        if run is None or run.completed_at is None:
            at_it = session.scalars(select(Job).where(Job.run_id == run_id)).all()
            kind = run.kind if run else at_it[0].kind if at_it else "run"
            waiting.append((f"{kind} {run_id.hex[-6:]}", any(can_progress(session, other) for other in at_it)))
    if job.shard == job.shards:
        shards = session.scalars(
            select(Job).where(Job.group_id == job.group_id, Job.run_id == job.run_id, Job.shard < job.shards)
        ).all()
        left = [other for other in shards if other.cause is not Cause.FINISHED]
        if left:
            waiting.append((f"{len(left)} of {job.shards} shards", all(can_progress(session, other) for other in left)))
    return waiting


def can_progress(session: Session, job: Job) -> bool:
    """Whether a job will still do something."""
    if job.state is JobState.QUEUED:
        return all(can for _, can in find_unmet_dependencies(session, job))
    return job.state is JobState.RUNNING


# -- what people ask for ----------------------------------------------------------------------------------------------


def find_jobs_at_work(session: Session, runs: Collection[UUID]) -> list[UUID]:
    """The jobs of launches that are still at work at these runs, also those that have ended."""
    groups = select(Job.group_id).where(Job.run_id.in_(runs), Job.state.in_(ACTIVE_STATES))
    return list(session.scalars(select(Job.id).where(Job.run_id.in_(runs), Job.group_id.in_(groups))))


def find_jobs(session: Session, reference: str) -> list[Job]:
    """The jobs that a user means: all of a run by its name, or those of a job, launch or run by the end of its id.

    A name goes first: e4 is one. Of an id at least 6 digits are asked for, which is what lists show.
    Raises NotFoundError, or BadInputError when an id's end fits several things.
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
    raise NotFoundError(f"there is no job {reference!r}", "chessreg jobs --all")


def cancel_jobs(session: Session, jobs: Iterable[Job]) -> list[Job]:
    """Take queued jobs out of the queue, and have the supervisor end running ones; returns those that were active."""
    cancelled = []
    for job in jobs:
        if job.state is JobState.QUEUED:
            end_job(job, Cause.KILLED, "cancelled before it started")
        elif job.state is not JobState.RUNNING:
            continue
        job.cancel = True
        cancelled.append(job)
    return cancelled


def retry_jobs(session: Session, jobs: Iterable[Job]) -> list[Job]:
    """Put jobs that ended without finishing back into the queue, of a run's launches the newest; returns them.

    What is complete stays, and so does what a job of another launch stands for.
    """
    lock_queue(session)
    again = []
    for job in sorted(jobs, key=lambda job: job.group_id, reverse=True):
        if (
            job.state is JobState.ENDED
            and job.cause is not Cause.FINISHED
            and not has_active_job(session, job.run_id, job)
        ):
            requeue_job(job, f"again after: {job.message or job.cause}")
            job.cancel = False
            job.detail = {key: value for key, value in job.detail.items() if key != "halved"}
            again.append(job)
    return again


def requeue_job(job: Job, message: str) -> None:
    job.state, job.cause, job.message, job.handle, job.ended_at = JobState.QUEUED, None, mask(message), None, None


def end_job(job: Job, cause: Cause, message: str | None) -> None:
    job.state, job.cause, job.ended_at = JobState.ENDED, cause, utc_now()
    job.message = message and mask(message)


def has_active_job(session: Session, run_id: UUID, beside: Job | None = None) -> bool:
    """Whether a job that has not ended is queued for this run: any, or one of another launch than `beside`."""
    jobs = session.scalars(select(Job).where(Job.run_id == run_id)).all()
    return any(can_progress(session, job) for job in jobs if beside is None or job.group_id != beside.group_id)


def lock_queue(session: Session) -> None:
    """Keep other transactions from queueing until this one ends. Those of SQLite are alone already."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE job IN SHARE ROW EXCLUSIVE MODE"))


def set_priority(session: Session, jobs: Iterable[Job], priority: int | None = None, by: int = 0) -> list[Job]:
    """Give queued jobs this priority, or theirs more `by`; higher ones start first. Returns those that were queued:
    one that runs is not stopped for another."""
    changed = [job for job in jobs if job.state is JobState.QUEUED]
    for job in changed:
        job.priority = (job.priority if priority is None else priority) + by
    return changed
