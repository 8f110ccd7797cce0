"""Where a job's log is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chessreg.registry.tables import Job
from chessreg.scheduling import queue
from chessreg.scheduling.executors import executor

if TYPE_CHECKING:
    from store import Store


def log_of(store: Store, job: Job) -> Path | None:
    """The file with what a job has said, over all its tries; None where it has not begun, or its log is not here.

    Raises what its executor raises when that cannot be asked for it.
    """
    path: Path | None = queue.folder_of(store, job) / "log.txt"
    if path is not None and not path.exists():
        path = executor(job.executor).logs(job.handle) if job.handle else None
    return path if path is not None and path.exists() else None
