"""The words for the states of runs, jobs, attempts and steps of a paper, which docs/jobs.md lists with their meanings.

The registry stores other words for two of them: an attempt or a job that did all its units has the stored state and
cause `finished`, and is `complete` everywhere else.
"""

from __future__ import annotations

from chessreg.registry.tables import Attempt, AttemptState, Cause, Job


def get_state_word(cause: Cause) -> str:
    """Return the state that an attempt or job ends in.

    >>> get_state_word(Cause.FINISHED), get_state_word(Cause.OOM)
    ('complete', 'oom')
    """
    return "complete" if cause is Cause.FINISHED else str(cause)


def get_attempt_state(attempt: Attempt, job: Job | None) -> str:
    """Return the state of an attempt of `job` (None: in the foreground): running, or how it ended.

    In the foreground, Ctrl-C interrupts it. An attempt of a job is cancelled by `chessreg cancel`, or killed from
    outside. The registry stores `killed` for all three.
    """
    if attempt.cause is None:
        return str(attempt.state)
    if attempt.state == AttemptState.KILLED and attempt.cause == Cause.KILLED:
        return "interrupted" if attempt.job_id is None else "cancelled" if job is not None and job.cancel else "killed"
    return get_state_word(attempt.cause)
