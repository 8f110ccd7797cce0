"""How a try at a job ended: what the worker said of itself, and what the executor saw."""

from __future__ import annotations

from typing import Any

from chessreg.registry.tables import Cause, Job
from chessreg.scheduling.executors import Seen

REFINED = (Cause.PREEMPTED, Cause.WALLTIME, Cause.OOM)  # what an executor knows better than the worker itself


def verdict(seen: Seen, outcome: dict[str, Any] | None) -> tuple[Cause, str | None, int | None]:
    """Cause, message and exit code of a try, from what the executor saw and what the worker said."""
    if outcome is None:
        cause = seen.cause or (Cause.FINISHED if seen.exit_code == 0 else Cause.FAILED)
        if cause is Cause.FINISHED:  # a worker that finishes says so
            return Cause.LOST, "it ended without a word", seen.exit_code
        return cause, seen.message or f"it ended with exit status {seen.exit_code}", seen.exit_code
    cause = Cause(outcome["cause"])
    if seen.cause in REFINED and cause is Cause.KILLED:
        return seen.cause, seen.message, seen.exit_code or outcome["exit_code"]
    return cause, outcome["message"], outcome["exit_code"]


def halved(job: Job) -> dict[str, int] | None:
    """The job's batch settings cut in half; None when that was done before, or there is none to halve."""
    if "halved" in job.detail:
        return None
    return {name: value // 2 for name, value in job.detail.get("batches", {}).items() if value > 1} or None
