"""Work to be done: jobs, as they wait, run and end."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.tables.types import Base, Json, UtcDateTime, check, choice


class JobState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class Job(Base):
    """One launch of a run, or of a shard of it, on an executor."""

    __tablename__ = "job"
    __table_args__ = (check("range", "start >= 0 AND stop >= start"),)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    executor: Mapped[str] = mapped_column(String(32))
    start: Mapped[int]
    stop: Mapped[int]
    priority: Mapped[int] = mapped_column(default=0)
    handle: Mapped[str | None] = mapped_column(Text)  # the executor's own id
    state: Mapped[JobState] = mapped_column(choice(JobState, "state"))
    detail: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
