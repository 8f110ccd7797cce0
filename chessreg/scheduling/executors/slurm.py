"""Slurm, by its own commands: sbatch, squeue, scontrol and scancel; sacct where the cluster keeps accounts.

A work's folder holds what was submitted: `slurm.json` is written before sbatch is called, so that a supervisor that
follows one which died in between finds the job instead of submitting it twice.
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
from chessreg.registry.identity import new_id
from chessreg.registry.tables import Cause
from chessreg.scheduling.executors import Placement, Submission, SubmissionStatus
from chessreg.scheduling.executors.slurm_script import SlurmProfile, find_profile, make_script
from chessreg.scheduling.worker import write_record
from store.files import parse_json, read_json

NOTE_FILE = "slurm.json"
CANCEL_AGAIN_S = 90.0  # Slurm kills a job that does not end; this long after, it is cancelled again
NEVER_S = -1e9
DEFAULT_ARRAY_SIZE = 1000  # the largest array where the cluster does not say
# No room now, or nobody there to ask: to be tried again, unlike what sbatch says of a wrong partition.
RETRY_PATTERN = re.compile(
    r"unable to contact|timed out|connection (refused|failure|reset)|temporarily|zero bytes|submit.?job.?limit"
    r"|submitjob|maxsubmit|transport endpoint|communication",
    re.IGNORECASE,
)


class SlurmExecutor:
    """Jobs of a Slurm cluster, requested with a profile's options."""

    def __init__(self, argument: str = "") -> None:
        for tool in ("sbatch", "squeue", "scontrol", "scancel"):
            if shutil.which(tool) is None:
                raise NotFoundError(
                    f"there is no {tool} here", "launch from a login node of the cluster, or --on local"
                )
        self.name = argument
        self._every = SlurmProfile().poll
        self._polled = NEVER_S  # when Slurm was last polled for job states
        self._silent = False  # it did not answer the last poll
        self._seen: dict[str, SubmissionStatus] = {}
        self._ended: dict[str, SubmissionStatus] = {}
        self._cancelled: dict[str, float] = {}  # handle → when scancel was called
        self._largest = 0
        # A supervisor stands in its store; there, profiles are looked for where the launch was typed (`submit`).
        if not Path("store.json").is_file():
            self._require_partitions(self._profile(Path.cwd()))

    # -- the four verbs -------------------------------------------------------------------------------------------

    def submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        handles: dict[UUID, str] = {}
        try:
            fresh = []
            for work in works:
                earlier = self._earlier(work)
                if earlier is None:
                    fresh.append(work)
                else:
                    handles[work.job_id] = str(earlier)
            for batch in self._batches(fresh):
                handles |= self._submit(batch)
        except SlurmUnansweredError:
            pass  # their turn comes again
        self._polled = NEVER_S
        return handles

    def poll(self, handles: Collection[str]) -> dict[str, SubmissionStatus]:
        now = time.monotonic()
        new = not self._silent and any(handle not in self._seen and handle not in self._ended for handle in handles)
        if new or now - self._polled >= self._every:
            try:
                self._look([handle for handle in dict.fromkeys(handles) if handle not in self._ended])
                self._silent = False
            except SlurmUnansweredError:
                self._seen, self._silent = {}, True
            self._polled = time.monotonic()
        known = self._seen | self._ended
        return {handle: known[handle] for handle in handles if handle in known}

    def cancel(self, handle: str) -> None:
        parsed, now = SlurmHandle.parsed(handle), time.monotonic()
        if parsed is None or handle in self._ended:
            return
        first = self._cancelled.get(handle)
        insist = first is not None and now - first > CANCEL_AGAIN_S
        if first is None or insist:
            self._cancelled[handle] = now
            try:
                record = query_record(parsed)
                if record is not None and record.get("Command") == parsed.script:
                    run_command("scancel", *(["--signal=KILL", "--full"] if insist else []), parsed.job)
            except SlurmUnansweredError:
                self._cancelled.pop(handle)
            self._polled = NEVER_S

    @staticmethod
    def logs(handle: str) -> Path | None:
        parsed = SlurmHandle.parsed(handle)
        path = Path(parsed.log) if parsed else None
        return path if path and path.exists() else None

    def preview(self, works: Sequence[Submission]) -> Iterator[str]:
        """The scripts that `submit` would give to sbatch, for people."""
        for batch in self._batches(works):
            place = batch[0].log if len(batch) == 1 else batch[0].folder / "slurm-…" / "%a.txt"
            yield make_script(batch, self._profile(batch[0].cwd), place)

    # -- submitting -----------------------------------------------------------------------------------------------

    def _profile(self, folder: Path) -> SlurmProfile:
        chosen = find_profile(self.name, folder)
        self._every = chosen.poll
        return chosen

    def _require_partitions(self, chosen: SlurmProfile) -> None:
        """Raise BadInputError for a partition that Slurm does not know. A controller that does not answer proves
        nothing: sbatch will say it."""
        for name in filter(None, map(str.strip, (chosen.partition or "").split(","))):
            try:
                shown = run_command("scontrol", "show", "partition", name)
            except SlurmUnansweredError:
                return
            if shown.returncode and "not found" in shown.stdout + shown.stderr:
                raise BadInputError(
                    f"Slurm has no partition {name!r}, which profile {self.name or 'default'} asks for",
                    "sinfo lists those that there are",
                )

    def _batches(self, works: Sequence[Submission]) -> Iterator[list[Submission]]:
        """Works that can be one array: of one folder, environment and need, and not too many."""
        alike: dict[Any, list[Submission]] = {}
        for work in works:
            alike.setdefault((work.group_id, work.cwd, tuple(sorted(work.env.items())), work.needs), []).append(work)
        for group in alike.values():
            size = 1 if len(group) == 1 else self._array_size()
            yield from (group[start : start + size] for start in range(0, len(group), size))

    def _array_size(self) -> int:
        if not self._largest:
            match = re.search(
                r"^MaxArraySize\s*=\s*(\d+)", run_command("scontrol", "show", "config").stdout, re.MULTILINE
            )
            self._largest = max(int(match[1]) - 1, 1) if match else DEFAULT_ARRAY_SIZE
        return self._largest

    def _submit(self, works: Sequence[Submission]) -> dict[UUID, str]:
        """One call of sbatch. Raises BadInputError with sbatch's own words when Slurm will never take it."""
        first, token = works[0], new_id().hex[-12:]
        profile = self._profile(first.cwd)
        if not first.cwd.is_dir():
            raise ChessregError(f"cannot start in {first.cwd}: there is no such folder", "check that folder")
        path = first.folder / f"slurm-{token}.sh"
        for work in works:
            work.folder.mkdir(parents=True, exist_ok=True)
        output = first.log
        if len(works) > 1:  # Slurm names the files of an array by number: each is another name of that work's log
            output = first.folder / f"slurm-{token}" / "%a.txt"
            output.parent.mkdir()
            for number, work in enumerate(works):
                output.with_name(f"{number}.txt").symlink_to(os.path.relpath(work.log, output.parent))
        path.write_text(make_script(works, profile, output), encoding="utf-8", errors="surrogateescape")
        begun = {work.job_id: file_size(work.log) for work in works}
        for number, work in enumerate(works):
            task = number if len(works) > 1 else ""
            write_record(work.folder / NOTE_FILE, {"script": str(path), "task": task, "before": begun[work.job_id]})
        env = submission_environment(profile) | dict(first.env)
        if profile.registry:
            env["CHESSREG_REGISTRY"] = profile.registry
        done = run_command("sbatch", "--parsable", "--export=ALL", str(path), env=env)
        number_of = done.stdout.strip().partition(";")[0]
        if done.returncode or not number_of.isdigit():
            reason = " ".join(done.stderr.split()).removeprefix("sbatch: error: ") or f"exit status {done.returncode}"
            if RETRY_PATTERN.search(reason):
                raise SlurmUnansweredError(f"sbatch: {reason}")
            raise BadInputError(f"Slurm does not take it: {reason}", f"see profile {self.name or 'default'} and {path}")
        handles = {}
        for number, work in enumerate(works):
            job = number_of if len(works) == 1 else f"{number_of}_{number}"
            handles[work.job_id] = save_handle(work, make_job_handle(work, job, str(path), begun[work.job_id]))
        return handles

    def _earlier(self, work: Submission) -> SlurmHandle | None:
        """The job of this very work that is in Slurm already: its supervisor died before it could note that."""
        try:
            noted = read_json(work.folder / NOTE_FILE)
        except (OSError, ValueError):
            return None
        handle = SlurmHandle(**noted["handle"]) if noted.get("handle") else self._submitted(work, noted)
        if handle is None:
            return None
        self._look([str(handle)])
        if str(handle) in self._ended:
            return None
        save_handle(work, handle)
        return handle

    def _submitted(self, work: Submission, noted: dict[str, Any]) -> SlurmHandle | None:
        """Whether sbatch had taken a script before somebody died who knew."""
        listed = run_command("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%o")
        if listed.returncode:
            raise SlurmUnansweredError(f"squeue: {listed.stderr.strip()}")
        for line in listed.stdout.splitlines():
            job, _, command = line.partition("|")
            if command.strip() == noted["script"] and job.partition("_")[2] == str(noted["task"]):
                return make_job_handle(work, job, noted["script"], noted.get("before", 0))
        return None

    # -- looking --------------------------------------------------------------------------------------------------

    def _look(self, handles: Sequence[str]) -> None:
        """Ask Slurm about all of them at once, and about the end of each that has ended. Raises Unanswered."""
        parsed = {handle: SlurmHandle.parsed(handle) for handle in handles}
        for handle, handle_parts in parsed.items():
            if handle_parts is None:
                self._ended[handle] = SubmissionStatus("ended", None, Cause.LOST, "its handle cannot be read")
        known = {handle: handle_parts for handle, handle_parts in parsed.items() if handle_parts}
        listed = query_states({handle_parts.job.partition("_")[0] for handle_parts in known.values()})
        arrays = {job.partition("_")[0] for job in listed}
        for handle, handle_parts in known.items():
            state, placement = listed.get(handle_parts.job, ("", Placement(handle_parts.job)))
            seen: SubmissionStatus | None = SubmissionStatus("running", placement=placement)
            if state in WAITING_STATES:
                seen = SubmissionStatus("waiting", placement=placement)
            elif not state or state in CAUSE_OF_END:
                seen = query_end(handle_parts, handle_parts.job.partition("_")[0] in arrays)
            self._seen.pop(handle, None)
            if seen is not None and seen.state == "ended":
                self._ended[handle] = seen
                self._cancelled.pop(handle, None)
            elif seen is not None:
                self._seen[handle] = seen


def submission_environment(profile: SlurmProfile) -> dict[str, str]:
    """What sbatch and the job get of this process's environment.

    Variables for sbatch stand over the options in a script: only those stay that say what the profile leaves open.
    Those that Slurm gave the job in which a supervisor may run are not for the jobs that it submits.
    """
    settings = {
        "PARTITION": profile.partition,
        "ACCOUNT": profile.account,
        "QOS": profile.qos,
        "TIMELIMIT": profile.time,
    }
    kept = {"SLURM_CONF", "SLURM_CLUSTERS", *(f"SBATCH_{name}" for name, value in settings.items() if value is None)}
    return {key: value for key, value in os.environ.items() if not key.startswith(("SBATCH_", "SLURM_")) or key in kept}


def make_job_handle(work: Submission, job: str, script: str, before: int) -> SlurmHandle:
    """`before`: bytes of the log when the script was written; the job may have written more since."""
    return SlurmHandle(job, script, str(work.log), before)


def save_handle(work: Submission, handle: SlurmHandle) -> str:
    write_record(work.folder / NOTE_FILE, {"handle": handle._asdict()})
    return str(handle)


COMMAND_TIMEOUT_S = 60.0  # of one command; slurmctld is given ten seconds by its own tools
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
    "TIMEOUT": "its walltime was over",
    "DEADLINE": "its deadline had come",
    "PREEMPTED": "preempted by Slurm",
    "OUT_OF_MEMORY": "Slurm killed it: out of memory",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
}


class SlurmHandle(NamedTuple):
    """A submitted work. Its script proves that the number is still this job's."""

    job: str  # "12", or "12_3" of an array
    script: str
    log: str
    before: int  # bytes of the log before it: whether it has begun

    def __str__(self) -> str:
        return json.dumps(self._asdict())

    def has_begun(self) -> bool:
        return file_size(Path(self.log)) > self.before

    @classmethod
    def parsed(cls, text: str) -> SlurmHandle | None:
        try:
            handle = cls(**parse_json(text))
        except (ValueError, TypeError):
            return None
        texts = (handle.job, handle.script, handle.log)
        if not all(isinstance(each, str) for each in texts) or not isinstance(handle.before, int):
            return None
        return handle if re.fullmatch(r"\d+(_\d+)?", handle.job) else None  # else Slurm would read it as an option


class SlurmUnansweredError(ChessregError):
    """Slurm does not answer."""


QUEUE_FORMAT = "%i|%T|%P|%N|%S|%r"  # job, state, partition, nodes, (expected) start, reason


def query_states(jobs: set[str]) -> dict[str, tuple[str, Placement]]:
    """State and placement of every job and element of an array that Slurm still knows."""
    if not jobs:
        return {}
    options = ("--noheader", "--array", "--states=all", f"--jobs={','.join(sorted(jobs))}", f"--format={QUEUE_FORMAT}")
    listed = run_command("squeue", *options, env={**os.environ, "SLURM_TIME_FORMAT": "standard"})
    if listed.returncode and not is_unknown_job(listed):
        raise SlurmUnansweredError(f"squeue: {listed.stderr.strip()}")
    rows = [[cell.strip() for cell in line.split("|", 5)] for line in listed.stdout.splitlines()]
    return {row[0]: (row[1], parse_placement(*row)) for row in rows if len(row) == 6}


def parse_placement(job: str, state: str, partition: str, node: str, start: str, reason: str) -> Placement:
    """Return a line of squeue as a placement: the reason and the expected start of a job that waits alone."""
    if state not in WAITING_STATES:
        return Placement(job, partition, node)
    return Placement(job, partition, "", "" if reason in NO_REASON_WORDS else reason, parse_start_time(start))


NO_REASON_WORDS = ("None", "(null)", "")


def parse_start_time(start: str) -> str:
    """Return a time of squeue, which is in this machine's time zone, in UTC; empty for N/A."""
    try:
        return datetime.fromisoformat(start).astimezone(UTC).isoformat()
    except ValueError:
        return ""


def query_end(handle: SlurmHandle, array_known: bool) -> SubmissionStatus | None:
    """The end of a job by scontrol, which forgets after some minutes, else by sacct. None: it has not ended."""
    record = query_record(handle)
    if record is None:
        record = query_accounts(handle.job)
        if record is None or record["JobState"] not in CAUSE_OF_END:
            if array_known and not handle.has_begun():  # Slurm drops elements that never began, and keeps the rest
                return SubmissionStatus("ended", None, Cause.KILLED, "cancelled in Slurm before it began")
            return SubmissionStatus("ended", None, Cause.LOST, "Slurm does not know it any more")
    elif record.get("Command") != handle.script:
        return SubmissionStatus("ended", None, Cause.LOST, "its number in Slurm is another job's now")
    if record["JobState"] not in CAUSE_OF_END:
        return None
    return status_of_end(record["JobState"], record.get("ExitCode", "0:0"), record.get("Reason", ""))


def query_record(handle: SlurmHandle) -> dict[str, str] | None:
    done = run_command("scontrol", "show", "job", handle.job)
    if done.returncode:
        if is_unknown_job(done):
            return None
        raise SlurmUnansweredError(f"scontrol: {done.stderr.strip()}")
    # The script's path has a line of its own: it may hold spaces, and text that looks like other fields.
    before, _, script = done.stdout.partition("\n   Command=")
    return dict(re.findall(r"\s(JobState|ExitCode|Reason)=(\S*)", before)) | {"Command": script.partition("\n")[0]}


def is_unknown_job(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether Slurm has answered that there is no such job. Of an element of an array it says so on stdout."""
    message = (done.stderr + done.stdout).lower()
    return "invalid job id" in message or bool(re.search(r"^job \S+ not found", message, re.MULTILINE))


def status_of_end(state: str, code: str, reason: str) -> SubmissionStatus:
    """The end of a job in words. `code` is `exit:signal`; what a shell says of a signal, 128 + N, is the signal N."""
    status, _, number = code.partition(":")
    left, by = int(status or 0), int(number or 0)
    exit_code = 128 + by if by else left
    cause = CAUSE_OF_END[state]
    if state == "COMPLETED":
        return SubmissionStatus("ended", exit_code, cause)
    message = MESSAGE_OF_END.get(state)
    if state == "FAILED":
        ended_by = by or (left - 128 if left in (128 + 9, 128 + 15) else 0)
        if ended_by in (1, 2, 9, 15):
            cause, message = Cause.KILLED, f"killed by signal {ended_by}"
        elif ended_by:
            message = f"ended by signal {ended_by}"
        elif reason not in ("None", "", "NonZeroExitCode"):
            message = f"exit status {exit_code}, and Slurm says {reason}"
    elif cause in (Cause.FAILED, Cause.LOST):
        message = f"{message or 'it did not run'}: Slurm says {state}, {reason}"
    return SubmissionStatus("ended", exit_code, cause, message)


def query_accounts(job: str) -> dict[str, str] | None:
    """What the cluster's accounts say of a job; None where there are none, or none of it."""
    if shutil.which("sacct") is None:
        return None
    done = run_command(
        "sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=State,ExitCode,Reason"
    )
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2]
    if done.returncode or not rows:
        return None
    state, code, reason = rows[-1]
    return {"JobState": state.split()[0], "ExitCode": code, "Reason": reason}  # "CANCELLED by 1000"


def file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def run_command(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command of Slurm's. Raises Unanswered when it does not come back."""
    env = {**(os.environ if env is None else env), "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv, env=env, capture_output=True, timeout=COMMAND_TIMEOUT_S, encoding="utf-8", errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise SlurmUnansweredError(f"{argv[0]} has not answered in {COMMAND_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SlurmUnansweredError(f"{argv[0]}: {error.strerror}") from error
