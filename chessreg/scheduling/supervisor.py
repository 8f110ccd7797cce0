"""The supervisor of one machine: a loop that reads the queue, starts jobs, detects their ends and ingests results.

It outlives the terminal that started it, and exits after a period without work. It is stateless: the next supervisor
reads handles from the registry and outcomes from the store. Workers outlive their supervisor.
"""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from chessreg import child
from chessreg.errors import ChessregError
from chessreg.masking import mask
from chessreg.registry.database import Database
from chessreg.registry.states import get_state_word
from chessreg.registry.tables import Attempt, Cause, Job, JobState, Run
from chessreg.registry.tables.provenance import LONG_RUN_UNITS
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.attempt import to_fragment_row
from chessreg.runs.ingest import ingest_fragments
from chessreg.runs.unfinished import list_states
from chessreg.runs.watch import Watcher, count_units_done
from chessreg.scheduling import queue, worker
from chessreg.scheduling.executors import Executor, SubmissionStatus, open_executor
from chessreg.scheduling.presence import Presence
from chessreg.terminal import make_visible
from store.errors import StoreError
from store.files import DISK_FULL, is_disk_full

if TYPE_CHECKING:
    from store import Store


LOOP_INTERVAL_S = 0.25
WATCH_INTERVAL_S = 10.0
RETRY_PAUSE_S = 1.0  # after an error of the registry or the disk
OFFER_INTERVAL_S = 2.0  # for jobs that did not fit
FREED_SPACE_BYTES = 16 << 20  # freed space after which a job with a full disk is retried
FULL_DISK_TIMEOUT_S = 600.0  # retried after this time too, since quotas and remote disks are not visible here
IDLE_TIMEOUT_S = 300.0


class Supervisor:
    """Manages the jobs of this host and store."""

    def __init__(self, database: Database, store: Store, *, idle: float = IDLE_TIMEOUT_S) -> None:
        self.database, self.store, self.idle = database, store, idle
        self.watcher = Watcher(store)
        self.executors: dict[str, Executor] = {}
        self.started_jobs: dict[UUID, tuple[str, int]] = {}  # job → handle and attempt number, until recorded
        self.stopping = False
        self.running_jobs: list[Job] = []
        self.ready: list[Job] = []
        self.hope = False  # whether a queued job can still start
        self._full: dict[UUID, FullDisk] = {}  # jobs that wait for space
        self._version = ""  # data version at the last read
        self._refused_jobs: set[UUID] = set()  # jobs that did not fit when last offered
        self._watched_at = self._offered_at = -1e9
        self._busy = time.monotonic()
        self._long_runs = 0  # complete runs with many units when their numbers were last stored

    def run(self) -> None:
        """Work until there is nothing to do, or until a signal."""
        down = ""
        was_active = False
        while not self.stopping:
            try:
                active = self.run_once()
                if was_active and not active:
                    self.store_numbers()
                was_active = active
                if down:
                    log_line("the registry responds again")
                down = ""
            except (ChessregError, StoreError, DBAPIError, OSError) as error:
                # Workers continue and their fragments wait. Promises made meanwhile are not judged.
                active, message = True, str(error).split("\n", 1)[0]
                self.watcher.forget()
                if message != down:
                    log_line(f"waiting: {message}")
                down = message
                self.pause(RETRY_PAUSE_S)
            if active:
                self._busy = time.monotonic()
            elif time.monotonic() - self._busy > self.idle:
                log_line(f"nothing to do for {self.idle:.0f} s")
                return
            self.pause(LOOP_INTERVAL_S)
        self.requeue_running_jobs()

    def store_numbers(self) -> None:
        """Start a process that stores the numbers of complete runs for later queries, if long runs have completed."""
        long_runs = select(func.count()).where(Run.completed_at.is_not(None), Run.units >= LONG_RUN_UNITS)
        with self.database.read() as session:
            number = session.scalar(long_runs) or 0
        if number != self._long_runs:
            self._long_runs = number
            command, quiet = child.build_python_command("chessreg.queries.numbers"), subprocess.DEVNULL
            environment = {**child.build_child_environment(), "CHESSREG_REGISTRY": self.database.reference}
            subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a signal."""
        deadline = time.monotonic() + seconds
        while not self.stopping and (seconds_left := deadline - time.monotonic()) > 0:
            time.sleep(min(seconds_left, 0.1))

    def run_once(self) -> bool:
        """Run the loop once. Return whether any job is running or may still start."""
        start = time.monotonic()
        self.ingest_results()
        self.note_started()
        self.read_queue()
        if self.poll_jobs(self.running_jobs):
            self._refused_jobs.clear()
            self.read_queue()
        self.submit_ready_jobs()
        if time.monotonic() - self._watched_at > WATCH_INTERVAL_S:
            self._watched_at = time.monotonic()
            if lost_count := self.watcher.mark_lost_attempts(self.database, start):
                log_line(f"{lost_count} attempts are lost")
        return bool(self.running_jobs or self.hope or self.started_jobs)

    def read_queue(self) -> None:
        """Read the jobs again if the registry has changed."""
        version = self.database.data_version()
        if version == self._version:
            return
        with self.database.read() as session:
            self.running_jobs = queue.read_own_jobs(session, self.store, JobState.RUNNING)
            queued_jobs = queue.read_own_jobs(session, self.store, JobState.QUEUED)
            self.ready = [job for job in queued_jobs if not queue.find_unmet_dependencies(session, job)]
            self.hope = bool(self.ready) or any(queue.can_progress(session, job) for job in queued_jobs)
            session.expunge_all()
        self._version = version

    def ingest_results(self) -> None:
        """Ingest waiting fragments."""
        if any(self.store.incoming.iterdir()):
            ingest_fragments(self.database, self.store)

    def get_executor(self, on: str) -> Executor:
        """Return the executor that `on` names, created once."""
        if on not in self.executors:
            self.executors[on] = open_executor(on)
        return self.executors[on]

    # -- starting -------------------------------------------------------------------------------------------------

    def submit_ready_jobs(self) -> None:
        """Submit ready jobs to their executors, by priority. Jobs that do not fit are offered again later.

        A less urgent job does not take GPUs or cores that a more urgent one waits for.
        """
        ready_jobs = [job for job in self.ready if job.id not in self.started_jobs and self.has_space(job)]
        is_offer_due = time.monotonic() - self._offered_at > OFFER_INTERVAL_S
        if not ready_jobs or not (is_offer_due or any(job.id not in self._refused_jobs for job in ready_jobs)):
            return
        self._offered_at, self._refused_jobs = time.monotonic(), {job.id for job in ready_jobs}
        groups: dict[tuple[int, UUID, UUID, str], list[Job]] = {}
        for job in ready_jobs:  # in order of priority, then age
            groups.setdefault((-job.priority, job.group_id, job.run_id, job.executor), []).append(job)
        full_executors: set[tuple[str, bool]] = set()
        for (_, _, _, executor_name), jobs in groups.items():
            room = executor_name, jobs[0].detail["execution_options"].get("device") == "cpu"
            if room in full_executors:
                continue
            try:
                handles = self.get_executor(executor_name).submit(
                    [queue.prepare_submission(self.database, self.store, job) for job in jobs]
                )
            except ChessregError as error:
                if is_disk_full(error):  # not the job's fault
                    raise
                self.refuse(jobs, error)
                continue
            for job in jobs:
                if job.id in handles:
                    self.started_jobs[job.id] = handles[job.id], job.tries + 1
                    log_line(
                        f"started {queue.format_job_title(job)} ({job.id.hex[-6:]}), try {job.tries + 1}, "
                        f"on {executor_name}"
                    )
            self.note_started()
            if len(handles) < len(jobs):
                full_executors.add(room)

    def refuse(self, jobs: list[Job], error: ChessregError) -> None:
        """End jobs that can never start, with the executor's message."""
        hint = f" ({error.hint})" if error.hint else ""
        log_line(f"cannot start {queue.format_job_title(jobs[0])}: {error.message}{hint}")
        with self.database.write() as session:
            for job in jobs:
                queue.end_job(session.get_one(Job, job.id), Cause.FAILED, error.message + hint)

    def has_space(self, job: Job) -> bool:
        """Return whether the disk that was full for this job has space again. True if this machine cannot see it."""
        full_record = self._full.get(job.id)
        if full_record is not None and not full_record.has_space():
            return False
        self._full.pop(job.id, None)
        return True

    def note_started(self) -> None:
        """Record the handles of started jobs in the registry."""
        if not self.started_jobs:
            return
        with self.database.write() as session:
            queue.lock_queue(session)
            for job_id, (handle, number) in self.started_jobs.items():
                job = session.get_one(Job, job_id)
                job.state, job.handle, job.tries, job.started_at = JobState.RUNNING, handle, number, get_utc_now()
                job.cause, job.ended_at = None, None
                queue.record_placement(job, {})
        self.started_jobs.clear()

    # -- polling and settling -------------------------------------------------------------------------------------

    def poll_jobs(self, running_jobs: list[Job]) -> bool:
        """Poll running jobs, record their placements, cancel and settle them. Return whether any has ended."""
        by_executor: dict[str, list[Job]] = {}
        for job in running_jobs:
            by_executor.setdefault(job.executor, []).append(job)
        ended_jobs: list[tuple[Job, SubmissionStatus]] = []
        placements: dict[UUID, dict[str, str]] = {}
        for executor_name, jobs in by_executor.items():
            try:
                at = self.get_executor(executor_name)
                statuses = at.poll([job.handle or "" for job in jobs])
                for job in jobs:
                    seen_job = statuses.get(job.handle or "")
                    if seen_job is not None and seen_job.state == "ended":
                        ended_jobs.append((job, seen_job))
                        continue
                    if seen_job is not None and (
                        record := queue.make_placement_record(seen_job)
                    ) != queue.read_placement(job):
                        placements[job.id] = record
                    if job.cancel and job.handle:
                        at.cancel(job.handle)
            except ChessregError as error:
                log_line(f"{executor_name} does not respond: {error.message}")
        if placements:
            with self.database.write() as session:
                queue.lock_queue(session)
                for job_id, record in placements.items():
                    queue.record_placement(session.get_one(Job, job_id), record)
        if ended_jobs:
            self.ingest_results()  # ingest results before the end is recorded
            for job, seen_job in ended_jobs:
                self.record_end(job, seen_job)
        return bool(ended_jobs)

    def record_end(self, job: Job, status: SubmissionStatus) -> None:
        """Record the end of an attempt, from the worker's report and the executor's status, and requeue it if
        appropriate."""
        folder = queue.get_job_folder(self.store, job)
        if status.exit_code == worker.BUSY_STATUS and (process := worker.read_json_or_none(folder / "process.json")):
            self.adopt(job, process)
            return
        outcome = worker.read_json_or_none(folder / "outcome.json")
        if outcome is not None and outcome.get("try") != job.tries:
            outcome = None
        cause, message, code = judge_end(status, outcome)
        full_record = (outcome or {}).get("full")
        if outcome is None and code == worker.NO_SPACE_STATUS:
            full_record = str(self.store.root)
        process = worker.read_json_or_none(folder / "process.json")
        attempt = process and process.get("try") == job.tries and process.get("attempt")
        if attempt and (outcome is None or (cause in EXECUTOR_CAUSES and outcome["cause"] == "killed")):
            self.end_attempt(job, attempt, cause, message, code)
        smaller_batches = halve_batches(job) if cause is Cause.OOM else None
        has_progressed = bool(attempt) and cause is Cause.WALLTIME and self.has_progressed(job, UUID(str(attempt)))
        with self.database.write() as session:
            queue.lock_queue(session)
            now = session.get_one(Job, job.id)
            if now.cancel:
                queue.settle_cancelled_job(session, now, cause, message)
            elif smaller_batches:
                now.detail = {**now.detail, "halved": smaller_batches}
                changes = ", ".join(f"{key} {value}" for key, value in smaller_batches.items())
                queue.requeue_job(now, f"out of memory: again with {changes}")
            elif cause is Cause.PREEMPTED:
                queue.requeue_job(now, message or "preempted, queued again")
            elif cause is Cause.WALLTIME and has_progressed:
                queue.requeue_job(now, f"{message}: resumes")
            elif full_record:
                self._full[job.id] = FullDisk(Path(full_record))
                queue.requeue_job(now, f"waits for space: {DISK_FULL} at {full_record}")
            elif cause is Cause.KILLED and self.stopping:
                queue.requeue_job(now, "the supervisor was stopped")
            else:
                queue.end_job(now, cause, message)
            reason = f": {now.message}" if now.message else ""
        log_line(f"{queue.format_job_title(job)} ({job.id.hex[-6:]}), try {job.tries}: {get_state_word(cause)}{reason}")

    def has_progressed(self, job: Job, attempt: UUID) -> bool:
        """Return whether an attempt stored a unit or the state of an incomplete unit."""
        start = (queue.get_job_folder(self.store, job) / "process.json").stat().st_mtime
        with self.database.read() as session:
            done_units = count_units_done(session, attempt)
        states = list_states(self.database, self.store, job.run_id)
        return done_units > 0 or any(state.stat().st_mtime > start for state in states)

    def adopt(self, job: Job, process: dict[str, Any]) -> None:
        """Manage a worker that an earlier supervisor started without recording it."""
        from chessreg.scheduling.executors.local import adopt_worker

        handle = adopt_worker(process, queue.get_job_folder(self.store, job) / "log.txt")
        with self.database.write() as session:
            session.get_one(Job, job.id).handle = handle
        log_line(
            f"{queue.format_job_title(job)} ({job.id.hex[-6:]}) is already being executed by process {process['pid']}"
        )

    def end_attempt(self, job: Job, attempt: str, cause: Cause, message: str | None, code: int | None) -> None:
        """Write the end of `attempt` (its id), which could not record it itself or did not know the cause.

        `code` is the exit status of the worker.
        """
        from store.fragments import FragmentWriter

        with self.database.read() as session:
            if session.get(Attempt, UUID(attempt)) is None:  # it died before recording its start
                return
            done_units = count_units_done(session, UUID(attempt))
        states = {Cause.FAILED: "failed", Cause.OOM: "failed", Cause.LOST: "lost"}
        row = {
            "id": UUID(attempt),
            "ended_at": get_utc_now(),
            "state": states.get(cause, "killed"),
            "cause": cause.value,
            "message": message and mask(message),
            "exit_code": code,
            "units_done": done_units,
        }
        with FragmentWriter(self.store, job.run_id.hex, attempt) as writer:
            writer.add("attempt_end", to_fragment_row(row))
        self.ingest_results()

    # -- ending ---------------------------------------------------------------------------------------------------

    def requeue_running_jobs(self) -> None:
        """Stop the running jobs of this machine, keep their results, and return them to the queue."""
        log_line("stopping: running jobs return to the queue")
        while True:
            try:
                self.ingest_results()
                self.note_started()
                with self.database.read() as session:
                    running_jobs = [
                        j for j in queue.read_own_jobs(session, self.store, JobState.RUNNING) if j.executor == "local"
                    ]
                    session.expunge_all()
                if not running_jobs:
                    return
                for job in running_jobs:
                    self.get_executor("local").cancel(job.handle or "")
                self.poll_jobs(running_jobs)
            except (ChessregError, StoreError, DBAPIError, OSError) as error:
                log_line(f"not recorded: {str(error).splitlines()[0]}; the next supervisor will record the ends")
                return
            time.sleep(0.05)


class FullDisk:
    """A disk that was full for a job, and its free space right afterwards."""

    def __init__(self, path: Path) -> None:
        self.path, self.free, self.since = path, read_free_bytes(path), time.monotonic()

    def has_space(self) -> bool:
        """Return whether space was freed, or enough time has passed to try again."""
        return (
            time.monotonic() - self.since > FULL_DISK_TIMEOUT_S
            or read_free_bytes(self.path) >= self.free + FREED_SPACE_BYTES
        )


def read_free_bytes(path: Path) -> int:
    """Return the free space of the disk that holds `path` or its nearest existing parent. 0 if unknown."""
    for place in (path, *path.parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


def log_line(text: str) -> None:
    """Print a line with the time, secrets masked."""
    with suppress(OSError):  # a full disk must not stop the supervisor
        print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {make_visible(mask(text))}", flush=True)


def main(root: Path, idle: float = IDLE_TIMEOUT_S) -> int:
    """Run as the supervisor of this host and store, unless another process is. Return the exit status."""
    from store import Store
    from store.files import keep_private

    keep_private(shared_by=root)
    store = Store(root)
    presence = Presence(store)
    with Database.open(None) as database:
        while presence.hold():
            supervisor = Supervisor(database, store, idle=idle)

            def request_stop(number: int, frame: Any, stopped_supervisor: Supervisor = supervisor) -> None:
                stopped_supervisor.stopping = True

            signal.signal(signal.SIGTERM, request_stop)
            signal.signal(signal.SIGINT, request_stop)
            log_line("supervisor begins")
            try:
                supervisor.run()
            finally:
                presence.release()
            if supervisor.stopping:
                break
            supervisor.read_queue()  # a launch may have relied on this supervisor just now
            if not (supervisor.ready or supervisor.running_jobs):
                break
        log_line("supervisor ends")
    return 0


EXECUTOR_CAUSES = (Cause.PREEMPTED, Cause.WALLTIME, Cause.OOM)  # causes that the executor knows better than the worker


def judge_end(status: SubmissionStatus, outcome: dict[str, Any] | None) -> tuple[Cause, str | None, int | None]:
    """Return cause, message and exit code of an attempt, from the executor's status and the worker's report."""
    if outcome is None:
        cause = status.cause or (Cause.FINISHED if status.exit_code == 0 else Cause.FAILED)
        if cause is Cause.FINISHED:  # a finished worker writes a report
            return Cause.LOST, "it ended without a report", status.exit_code
        return cause, status.message or f"it ended with exit status {status.exit_code}", status.exit_code
    cause = Cause(outcome["cause"])
    if outcome.get("limit") and cause is Cause.KILLED:
        return Cause.WALLTIME, "stopped before its time limit", outcome["exit_code"]
    if status.cause in EXECUTOR_CAUSES and cause is Cause.KILLED:
        return status.cause, status.message, status.exit_code or outcome["exit_code"]
    return cause, outcome["message"], outcome["exit_code"]


def halve_batches(job: Job) -> dict[str, int] | None:
    """Return the job's batch options halved. None if it has none, or if they were halved before."""
    if "halved" in job.detail:
        return None
    return {name: value // 2 for name, value in job.detail.get("batches", {}).items() if value > 1} or None


if __name__ == "__main__":
    gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage
    sys.exit(main(Path(sys.argv[1]), *map(float, sys.argv[2:])))
