"""The words for the states of runs, jobs, attempts and steps of a paper, which docs/jobs.md lists with their meanings.

The registry stores other words for two of them: an attempt or a job that did all its units has the stored state and
cause `finished`, and is `complete` everywhere else.
"""

from __future__ import annotations

from chessreg.registry.tables import Cause


def get_state_word(cause: Cause) -> str:
    """Return the state that an attempt or job ends in.

    >>> get_state_word(Cause.FINISHED), get_state_word(Cause.OOM)
    ('complete', 'oom')
    """
    return "complete" if cause is Cause.FINISHED else str(cause)
