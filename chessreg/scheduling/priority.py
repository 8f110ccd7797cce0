"""Which queued job starts first."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.orm import Session

from chessreg.registry.tables import Job, JobState


def prioritise(session: Session, jobs: Iterable[Job], priority: int | None = None, by: int = 0) -> list[Job]:
    """Give queued jobs this priority, or theirs more `by`; higher ones start first. Returns those that were queued:
    one that runs is not stopped for another."""
    changed = [job for job in jobs if job.state is JobState.QUEUED]
    for job in changed:
        job.priority = (job.priority if priority is None else priority) + by
    return changed
