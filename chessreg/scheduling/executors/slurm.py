"""Runs submissions in Slurm with sbatch, squeue, scontrol and scancel, and sacct if the cluster keeps accounts.

`slurm.json` in a submission's folder is written before sbatch is called. If a supervisor dies in between, the next one
finds the job instead of submitting it twice.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.registry.identity import make_id
from chessreg.registry.tables import Cause
from chessreg.scheduling.executors import Placement, Submission, SubmissionStatus
from chessreg.scheduling.executors.slurm_script import SlurmProfile, find_profile, make_script
from chessreg.scheduling.worker import write_record
from store.files import parse_json, read_json

NOTE_FILE = "slurm.json"
CANCEL_AGAIN_S = 90.0  # after which a job that has not ended is cancelled again
NEVER_S = -1e9
DEFAULT_ARRAY_SIZE = 1000  # if the cluster reports no maximum
# Temporary errors of sbatch, which are retried, unlike a wrong partition.
RETRY_PATTERN = re.compile(
    r"unable to contact|timed out|connection (refused|failure|reset)|temporarily|zero bytes|submit.?job.?limit"
    r"|submitjob|maxsubmit|transport endpoint|communication",
    re.IGNORECASE,
)


class SlurmExecutor:
    """Runs submissions as jobs of a Slurm cluster, with the options of a profile."""

    def __init__(self, argument: str = "") -> None:
        for tool in ("sbatch", "squeue", "scontrol", "scancel"):
            if shutil.which(tool) is None:
                raise NotFoundError(
                    f"{tool} was not found", "launch from a login node of the cluster, or with --on local"
                )
        self.name = argument
        self._every = SlurmProfile().poll
        self._polled_at = NEVER_S  # when Slurm was last polled for job states
        self._silent = False  # whether the last poll failed
        self._statuses: dict[str, SubmissionStatus] = {}
        self._end_statuses: dict[str, SubmissionStatus] = {}
        self._cancel_times: dict[str, float] = {}  # handle → when scancel was called
        self._largest = 0
        # A supervisor's folder is its store. It reads profiles from the launch's folder (`submit`).
        if not Path("store.json").is_file():
            self._require_partitions(self._read_profile(Path.cwd()))

    # -- interface ------------------------------------------------------------------------------------------------

    def submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """Pass the submissions to `sbatch`, shards of one launch as an array, and return job id → handle.

        A submission that Slurm already has keeps its handle. If Slurm does not respond, the others are left out.
        """
        handles: dict[UUID, str] = {}
        try:
            fresh_handles = []
            for work in works:
                earlier_handle = self._find_earlier_handle(work)
                if earlier_handle is None:
                    fresh_handles.append(work)
                else:
                    handles[work.job_id] = str(earlier_handle)
            for batch in self._group_by_array(fresh_handles):
                handles |= self._submit(batch)
        except SlurmUnansweredError:
            pass  # they are submitted again later
        self._polled_at = NEVER_S
        return handles

    def poll(self, handles: Collection[str]) -> dict[str, SubmissionStatus]:
        """Return handle → status. Statuses are at most as old as the profile's polling interval. Empty if Slurm does
        not respond."""
        now = time.monotonic()
        new = not self._silent and any(
            handle not in self._statuses and handle not in self._end_statuses for handle in handles
        )
        if new or now - self._polled_at >= self._every:
            try:
                self._query_states([handle for handle in dict.fromkeys(handles) if handle not in self._end_statuses])
                self._silent = False
            except SlurmUnansweredError:
                self._statuses, self._silent = {}, True
            self._polled_at = time.monotonic()
        statuses = self._statuses | self._end_statuses
        return {handle: statuses[handle] for handle in handles if handle in statuses}

    def cancel(self, handle: str) -> None:
        """Call `scancel` once, and again with SIGKILL after CANCEL_AGAIN_S. Does nothing for another user's job."""
        slurm_handle, now = SlurmHandle.parse(handle), time.monotonic()
        if slurm_handle is None or handle in self._end_statuses:
            return
        first_cancel_s = self._cancel_times.get(handle)
        is_repeated = first_cancel_s is not None and now - first_cancel_s > CANCEL_AGAIN_S
        if first_cancel_s is None or is_repeated:
            self._cancel_times[handle] = now
            try:
                record = query_record(slurm_handle)
                if record is not None and record.get("Command") == slurm_handle.script:
                    run_command("scancel", *(["--signal=KILL", "--full"] if is_repeated else []), slurm_handle.job)
            except SlurmUnansweredError:
                self._cancel_times.pop(handle)
            self._polled_at = NEVER_S

    @staticmethod
    def logs(handle: str) -> Path | None:
        slurm_handle = SlurmHandle.parse(handle)
        path = Path(slurm_handle.log) if slurm_handle else None
        return path if path and path.exists() else None

    def preview(self, works: Sequence[Submission]) -> Iterator[str]:
        """Yield the scripts that `submit` would pass to sbatch."""
        for batch in self._group_by_array(works):
            place = batch[0].log if len(batch) == 1 else batch[0].folder / "slurm-…" / "%a.txt"
            yield make_script(batch, self._read_profile(batch[0].cwd), place)

    # -- submitting -----------------------------------------------------------------------------------------------

    def _read_profile(self, folder: Path) -> SlurmProfile:
        profile = find_profile(self.name, folder)
        self._every = profile.poll
        return profile

    def _require_partitions(self, profile: SlurmProfile) -> None:
        """Raise BadInputError for a partition that Slurm does not have. Passes if the controller does not respond."""
        for name in filter(None, map(str.strip, (profile.partition or "").split(","))):
            try:
                output = run_command("scontrol", "show", "partition", name)
            except SlurmUnansweredError:
                return
            if output.returncode and "not found" in output.stdout + output.stderr:
                raise BadInputError(
                    f"Slurm has no partition {name!r}, which profile {self.name or 'default'} asks for",
                    "list partitions with sinfo",
                )

    def _group_by_array(self, works: Sequence[Submission]) -> Iterator[list[Submission]]:
        """Yield submissions that can form one job array: same launch, folder, environment and needs."""
        alike: dict[Any, list[Submission]] = {}
        for work in works:
            alike.setdefault((work.group_id, work.cwd, tuple(sorted(work.env.items())), work.needs), []).append(work)
        for group in alike.values():
            size = 1 if len(group) == 1 else self._read_array_size()
            yield from (group[start : start + size] for start in range(0, len(group), size))

    def _read_array_size(self) -> int:
        """Return the largest number of tasks in a job array, as configured in Slurm."""
        if not self._largest:
            match = re.search(
                r"^MaxArraySize\s*=\s*(\d+)", run_command("scontrol", "show", "config").stdout, re.MULTILINE
            )
            self._largest = max(int(match[1]) - 1, 1) if match else DEFAULT_ARRAY_SIZE
        return self._largest

    def _submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """Call sbatch once. Raises BadInputError with sbatch's message if Slurm will never accept the job."""
        first_work, token = works[0], make_id().hex[-12:]
        profile = self._read_profile(first_work.cwd)
        if not first_work.cwd.is_dir():
            raise ChessregError(f"cannot start in {first_work.cwd}: the folder does not exist", "create the folder")
        path = first_work.folder / f"slurm-{token}.sh"
        for work in works:
            work.folder.mkdir(parents=True, exist_ok=True)
        output = first_work.log
        if len(works) > 1:  # Slurm names an array's files by number, so link them to the logs
            output = first_work.folder / f"slurm-{token}" / "%a.txt"
            output.parent.mkdir()
            for number, work in enumerate(works):
                output.with_name(f"{number}.txt").symlink_to(os.path.relpath(work.log, output.parent))
        path.write_text(make_script(works, profile, output), encoding="utf-8", errors="surrogateescape")
        log_sizes = {work.job_id: get_file_size(work.log) for work in works}
        for number, work in enumerate(works):
            task = number if len(works) > 1 else ""
            write_record(work.folder / NOTE_FILE, {"script": str(path), "task": task, "before": log_sizes[work.job_id]})
        env = build_submission_environment(profile) | dict(first_work.env)
        if profile.registry:
            env["CHESSREG_REGISTRY"] = profile.registry
        sbatch_output = run_command("sbatch", "--parsable", "--export=ALL", str(path), env=env)
        number_of = sbatch_output.stdout.strip().partition(";")[0]
        if sbatch_output.returncode or not number_of.isdigit():
            reason = (
                " ".join(sbatch_output.stderr.split()).removeprefix("sbatch: error: ")
                or f"exit status {sbatch_output.returncode}"
            )
            if RETRY_PATTERN.search(reason):
                raise SlurmUnansweredError(f"sbatch: {reason}")
            raise BadInputError(f"Slurm rejected the job: {reason}", f"see profile {self.name or 'default'} and {path}")
        handles = {}
        for number, work in enumerate(works):
            job = number_of if len(works) == 1 else f"{number_of}_{number}"
            handles[work.job_id] = save_handle(work, make_job_handle(work, job, str(path), log_sizes[work.job_id]))
        return handles

    def _find_earlier_handle(self, work: Submission) -> SlurmHandle | None:
        """Return the handle of this submission if Slurm has it already, because a supervisor died before recording
        it."""
        try:
            note = read_json(work.folder / NOTE_FILE)
        except (OSError, ValueError):
            return None
        handle = SlurmHandle(**note["handle"]) if note.get("handle") else self._find_accepted_handle(work, note)
        if handle is None:
            return None
        self._query_states([str(handle)])
        if str(handle) in self._end_statuses:
            return None
        save_handle(work, handle)
        return handle

    def _find_accepted_handle(self, work: Submission, note: dict[str, Any]) -> SlurmHandle | None:
        """Return the handle of a script that sbatch accepted before its supervisor could record it."""
        listing = run_command("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%o")
        if listing.returncode:
            raise SlurmUnansweredError(f"squeue: {listing.stderr.strip()}")
        for line in listing.stdout.splitlines():
            job, _, command = line.partition("|")
            if command.strip() == note["script"] and job.partition("_")[2] == str(note["task"]):
                return make_job_handle(work, job, note["script"], note.get("before", 0))
        return None

    # -- polling --------------------------------------------------------------------------------------------------

    def _query_states(self, handles: Sequence[str]) -> None:
        """Query Slurm for all handles at once, and for the end of each job that has ended. Raises
        SlurmUnansweredError."""
        slurm_handles = {handle: SlurmHandle.parse(handle) for handle in handles}
        for handle, handle_parts in slurm_handles.items():
            if handle_parts is None:
                self._end_statuses[handle] = SubmissionStatus("ended", None, Cause.LOST, "its handle cannot be read")
        valid_handles = {handle: handle_parts for handle, handle_parts in slurm_handles.items() if handle_parts}
        states = query_states({handle_parts.job.partition("_")[0] for handle_parts in valid_handles.values()})
        arrays = {job.partition("_")[0] for job in states}
        for handle, handle_parts in valid_handles.items():
            state, placement = states.get(handle_parts.job, ("", Placement(handle_parts.job)))
            status: SubmissionStatus | None = SubmissionStatus("running", placement=placement)
            if state in WAITING_STATES:
                status = SubmissionStatus("waiting", placement=placement)
            elif not state or state in CAUSE_OF_END:
                status = query_end(handle_parts, handle_parts.job.partition("_")[0] in arrays)
            self._statuses.pop(handle, None)
            if status is not None and status.state == "ended":
                self._end_statuses[handle] = status
                self._cancel_times.pop(handle, None)
            elif status is not None:
                self._statuses[handle] = status


def build_submission_environment(profile: SlurmProfile) -> dict[str, str]:
    """Return the environment for sbatch and the job.

    sbatch's variables override options in the script, so only those for options that the profile leaves open are kept.
    Variables of the Slurm job in which a supervisor may run are removed.
    """
    settings = {
        "PARTITION": profile.partition,
        "ACCOUNT": profile.account,
        "QOS": profile.qos,
        "TIMELIMIT": profile.time,
    }
    kept_variables = {
        "SLURM_CONF",
        "SLURM_CLUSTERS",
        *(f"SBATCH_{name}" for name, value in settings.items() if value is None),
    }
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SBATCH_", "SLURM_")) or key in kept_variables
    }


def make_job_handle(work: Submission, job: str, script: str, before: int) -> SlurmHandle:
    """Return a handle. `before` is the size of the log in bytes when the script was written."""
    return SlurmHandle(job, script, str(work.log), before)


def save_handle(work: Submission, handle: SlurmHandle) -> str:
    """Record a handle in the submission's folder, and return it as text."""
    write_record(work.folder / NOTE_FILE, {"handle": handle._asdict()})
    return str(handle)


COMMAND_TIMEOUT_S = 60.0  # for one command; Slurm's tools wait 10 s for slurmctld
WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
CAUSE_OF_END = {
    "COMPLETED": Cause.FINISHED,
    "FAILED": Cause.FAILED,
    "CANCELLED": Cause.KILLED,
    "TIMEOUT": Cause.WALLTIME,
    "DEADLINE": Cause.WALLTIME,
    "PREEMPTED": Cause.PREEMPTED,
    "OUT_OF_MEMORY": Cause.OOM,
    "NODE_FAIL": Cause.LOST,
    "BOOT_FAIL": Cause.LOST,
    "LAUNCH_FAILED": Cause.FAILED,
    "RECONFIG_FAIL": Cause.FAILED,
    "REVOKED": Cause.LOST,
}
MESSAGE_OF_END = {
    "CANCELLED": "cancelled in Slurm",
    "TIMEOUT": "it reached its walltime",
    "DEADLINE": "it reached its deadline",
    "PREEMPTED": "preempted by Slurm",
    "OUT_OF_MEMORY": "Slurm killed it: out of memory",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
}


class SlurmHandle(NamedTuple):
    """A submitted job. The path of its script proves that the job id has not been reused."""

    job: str  # "12", or "12_3" of an array
    script: str
    log: str
    before: int  # size of the log in bytes before the job

    def __str__(self) -> str:
        return json.dumps(self._asdict())

    def has_begun(self) -> bool:
        """Return whether the job has written to its log."""
        return get_file_size(Path(self.log)) > self.before

    @classmethod
    def parse(cls, text: str) -> SlurmHandle | None:
        """Parse a handle. None if it is invalid."""
        try:
            handle = cls(**parse_json(text))
        except (ValueError, TypeError):
            return None
        texts = (handle.job, handle.script, handle.log)
        if not all(isinstance(each, str) for each in texts) or not isinstance(handle.before, int):
            return None
        return handle if re.fullmatch(r"\d+(_\d+)?", handle.job) else None  # otherwise Slurm might read it as an option


class SlurmUnansweredError(ChessregError):
    """Raised when Slurm does not respond."""


QUEUE_FORMAT = "%i|%T|%P|%N|%S|%r"  # job, state, partition, nodes, (expected) start, reason


def query_states(jobs: set[str]) -> dict[str, tuple[str, Placement]]:
    """Return job id → (state, placement) of every job and array element that Slurm still knows."""
    if not jobs:
        return {}
    options = ("--noheader", "--array", "--states=all", f"--jobs={','.join(sorted(jobs))}", f"--format={QUEUE_FORMAT}")
    listing = run_command("squeue", *options, env={**os.environ, "SLURM_TIME_FORMAT": "standard"})
    if listing.returncode and not is_unknown_job(listing):
        raise SlurmUnansweredError(f"squeue: {listing.stderr.strip()}")
    rows = [[cell.strip() for cell in line.split("|", 5)] for line in listing.stdout.splitlines()]
    return {row[0]: (row[1], parse_placement(*row)) for row in rows if len(row) == 6}


def parse_placement(job: str, state: str, partition: str, node: str, start: str, reason: str) -> Placement:
    """Return the placement in a line of squeue, whose fields are the arguments.

    Only a job whose `state` is pending has a `reason` and an expected `start`.
    """
    if state not in WAITING_STATES:
        return Placement(job, partition, node)
    return Placement(job, partition, "", "" if reason in NO_REASON_WORDS else reason, parse_start_time(start))


NO_REASON_WORDS = ("None", "(null)", "")


def parse_start_time(start: str) -> str:
    """Convert a time of squeue, in this machine's time zone, to ISO 8601 in UTC. Empty for N/A."""
    try:
        return datetime.fromisoformat(start).astimezone(UTC).isoformat()
    except ValueError:
        return ""


def query_end(handle: SlurmHandle, array_known: bool) -> SubmissionStatus | None:
    """Return the final status of a job, from scontrol, which forgets jobs after minutes, or sacct. None if it runs."""
    record = query_record(handle)
    if record is None:
        record = query_accounts(handle.job)
        if record is None or record["JobState"] not in CAUSE_OF_END:
            if array_known and not handle.has_begun():  # Slurm forgets elements that never began
                return SubmissionStatus("ended", None, Cause.KILLED, "cancelled in Slurm before it began")
            return SubmissionStatus("ended", None, Cause.LOST, "Slurm does not know it anymore")
    elif record.get("Command") != handle.script:
        return SubmissionStatus("ended", None, Cause.LOST, "its number in Slurm belongs to another job now")
    if record["JobState"] not in CAUSE_OF_END:
        return None
    return get_end_status(record["JobState"], record.get("ExitCode", "0:0"), record.get("Reason", ""))


def query_record(handle: SlurmHandle) -> dict[str, str] | None:
    """Return the state, exit code, reason and script of a job from scontrol, or None if Slurm does not know it."""
    output = run_command("scontrol", "show", "job", handle.job)
    if output.returncode:
        if is_unknown_job(output):
            return None
        raise SlurmUnansweredError(f"scontrol: {output.stderr.strip()}")
    # The script's path is on a separate line and may contain spaces or text that looks like other fields.
    before, _, script = output.stdout.partition("\n   Command=")
    return dict(re.findall(r"\s(JobState|ExitCode|Reason)=(\S*)", before)) | {"Command": script.partition("\n")[0]}


def is_unknown_job(process: subprocess.CompletedProcess[str]) -> bool:
    """Return whether Slurm answered that the job does not exist. For array elements the answer is on stdout."""
    message = (process.stderr + process.stdout).lower()
    return "invalid job id" in message or bool(re.search(r"^job \S+ not found", message, re.MULTILINE))


def get_end_status(state: str, code: str, reason: str) -> SubmissionStatus:
    """Return the final status of a job. `code` is `exit:signal`; a shell reports signal N as exit code 128 + N."""
    status, _, number = code.partition(":")
    exit_status, by = int(status or 0), int(number or 0)
    exit_code = 128 + by if by else exit_status
    cause = CAUSE_OF_END[state]
    if state == "COMPLETED":
        return SubmissionStatus("ended", exit_code, cause)
    message = MESSAGE_OF_END.get(state)
    if state == "FAILED":
        ended_by = by or (exit_status - 128 if exit_status in (128 + 9, 128 + 15) else 0)
        if ended_by in (1, 2, 9, 15):
            cause, message = Cause.KILLED, f"killed by signal {ended_by}"
        elif ended_by:
            message = f"ended by signal {ended_by}"
        elif reason not in ("None", "", "NonZeroExitCode"):
            message = f"exit status {exit_code}, and Slurm reports {reason}"
    elif cause in (Cause.FAILED, Cause.LOST):
        message = f"{message or 'it did not run'}: Slurm reports {state}, {reason}"
    return SubmissionStatus("ended", exit_code, cause, message)


def query_accounts(job: str) -> dict[str, str] | None:
    """Return the state of a job from the cluster's accounts, or None if they are missing."""
    if shutil.which("sacct") is None:
        return None
    output = run_command(
        "sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=State,ExitCode,Reason"
    )
    rows = [line.split("|") for line in output.stdout.splitlines() if line.count("|") == 2]
    if output.returncode or not rows:
        return None
    state, code, reason = rows[-1]
    return {"JobState": state.split()[0], "ExitCode": code, "Reason": reason}  # "CANCELLED by 1000"


def get_file_size(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def run_command(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command. Raises SlurmUnansweredError if it does not finish in time or cannot start."""
    env = {**(os.environ if env is None else env), "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, env=env, capture_output=True, timeout=COMMAND_TIMEOUT_S, encoding="utf-8", errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise SlurmUnansweredError(f"{argv[0]} did not respond within {COMMAND_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SlurmUnansweredError(f"{argv[0]}: {error.strerror}") from error
