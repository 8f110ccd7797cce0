"""The words for the states of runs, jobs, attempts and steps of a paper: every list, table and JSON document uses them.

The registry stores other words for two of them: an attempt or a job that did all its units has the stored state and
cause `finished`, and is `complete` everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from chessreg.registry.tables import Cause

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "planned": "a run that has neither an attempt nor a job",
        "queued": "in the queue of its machine; starts when there is a free place",
        "waiting": "queued, and waits for other runs or for the scheduler of a cluster",
        "blocked": "queued, but a run that it waits for did not complete",
        "running": "units are being computed",
        "cancelling": "running, and `chessreg cancel` was given",
        "complete": "every unit is stored",
        "partial": "some units are stored, and nothing computes the others; the last end is in parentheses",
        "failed": "ended by an error",
        "diverged": "a training whose loss became infinite or NaN",
        "cancelled": "ended by `chessreg cancel`",
        "interrupted": "a run in the foreground, ended by Ctrl-C",
        "killed": "ended by a signal from outside chessreg",
        "preempted": "ended by the scheduler of a cluster, for another job",
        "walltime": "ended by the time limit of a cluster",
        "oom": "ended because memory ran out",
        "engine_died": "ended because a chess engine died",
        "lost": "its machine or process disappeared",
        "ready": "a step of a paper whose inputs are complete",
        "unneeded": "a step of a paper whose result no remaining step reads",
        "refused": "an optional step of a paper that the data do not allow",
        "invalid": "a mark: a user invalidated the run, and queries leave it out",
        "stale": "a mark: an input of the run is invalid",
    }
)


def get_state_word(cause: Cause) -> str:
    """Return the state that an attempt or job ends in.

    >>> get_state_word(Cause.FINISHED), get_state_word(Cause.OOM)
    ('complete', 'oom')
    """
    return "complete" if cause is Cause.FINISHED else str(cause)
