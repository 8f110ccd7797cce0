"""What Slurm's own commands say of jobs: how they stand, and how they ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from chessreg.errors import ChessregError
from chessreg.registry.tables import Cause
from chessreg.scheduling.executors import Seen

PATIENCE_SECONDS = 60.0  # of one command; slurmctld is given ten seconds by its own tools
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
ENDED = {
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
WORDS = {
    "CANCELLED": "cancelled in Slurm",
    "TIMEOUT": "its walltime was over",
    "DEADLINE": "its deadline had come",
    "PREEMPTED": "preempted by Slurm",
    "OUT_OF_MEMORY": "Slurm killed it: out of memory",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
}


class Handle(NamedTuple):
    """A submitted work. Its script proves that the number is still this job's."""

    job: str  # "12", or "12_3" of an array
    script: str
    log: str
    before: int  # bytes of the log before it: whether it has begun

    def __str__(self) -> str:
        return json.dumps(self._asdict())

    def has_begun(self) -> bool:
        return size(Path(self.log)) > self.before

    @classmethod
    def parsed(cls, text: str) -> Handle | None:
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


class Unanswered(ChessregError):
    """Slurm does not answer."""


def states(jobs: set[str]) -> dict[str, tuple[str, str]]:
    """State and reason of every job and element of an array that Slurm still knows."""
    if not jobs:
        return {}
    options = ("--noheader", "--array", "--states=all", f"--jobs={','.join(sorted(jobs))}", "--format=%i|%T|%r")
    listed = run("squeue", *options)
    if listed.returncode and not unknown(listed):
        raise Unanswered(f"squeue: {listed.stderr.strip()}")
    rows = [line.split("|", 2) for line in listed.stdout.splitlines() if line.count("|") >= 2]
    return {job.strip(): (state.strip(), reason.strip()) for job, state, reason in rows}


def how_it_ended(handle: Handle, array_known: bool) -> Seen | None:
    """The end of a job by scontrol, which forgets after some minutes, else by sacct. None: it has not ended."""
    record = record_of(handle)
    if record is None:
        record = accounted(handle.job)
        if record is None or record["JobState"] not in ENDED:
            if array_known and not handle.has_begun():  # Slurm drops elements that never began, and keeps the rest
                return Seen("ended", None, Cause.KILLED, "cancelled in Slurm before it began")
            return Seen("ended", None, Cause.LOST, "Slurm does not know it any more")
    elif record.get("Command") != handle.script:
        return Seen("ended", None, Cause.LOST, "its number in Slurm is another job's now")
    if record["JobState"] not in ENDED:
        return None
    return seen_of(record["JobState"], record.get("ExitCode", "0:0"), record.get("Reason", ""))


def record_of(handle: Handle) -> dict[str, str] | None:
    done = run("scontrol", "show", "job", "--oneliner", handle.job)
    if done.returncode:
        if unknown(done):
            return None
        raise Unanswered(f"scontrol: {done.stderr.strip()}")
    return dict(re.findall(r"(?:^|\s)(JobState|ExitCode|Reason|Command)=(\S*)", done.stdout))


def unknown(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether Slurm has answered that there is no such job. Of an element of an array it says so on stdout."""
    message = (done.stderr + done.stdout).lower()
    return "invalid job id" in message or bool(re.search(r"^job \S+ not found", message, re.MULTILINE))


def seen_of(state: str, code: str, reason: str) -> Seen:
    """The end of a job in words. `code` is `exit:signal`; what a shell says of a signal, 128 + N, is the signal N."""
    status, _, number = code.partition(":")
    left, by = int(status or 0), int(number or 0)
    exit_code = 128 + by if by else left
    cause = ENDED[state]
    if state == "COMPLETED":
        return Seen("ended", exit_code, cause)
    message = WORDS.get(state)
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
    return Seen("ended", exit_code, cause, message)


def accounted(job: str) -> dict[str, str] | None:
    """What the cluster's accounts say of a job; None where there are none, or none of it."""
    if shutil.which("sacct") is None:
        return None
    done = run("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=State,ExitCode,Reason")
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 2]
    if done.returncode or not rows:
        return None
    state, code, reason = rows[-1]
    return {"JobState": state.split()[0], "ExitCode": code, "Reason": reason}  # "CANCELLED by 1000"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def run(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command of Slurm's. Raises Unanswered when it does not come back."""
    env = {**(os.environ if env is None else env), "LC_ALL": "C"}
    try:
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{argv[0]} has not answered in {PATIENCE_SECONDS:.0f} s") from None
    except OSError as error:
        raise Unanswered(f"{argv[0]}: {error.strerror}") from error
