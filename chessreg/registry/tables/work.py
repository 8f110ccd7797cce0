"""Work to be done: jobs, as they wait, run and end."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.tables.provenance import Cause
from chessreg.registry.tables.types import Base, Digest, Json, Noun, UtcDateTime, check, choice


class JobState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class Job(Base):
    """One shard of a run that was launched: what was asked for, where it is, how it ended.

    Shard k of n does units [units·k/n, units·(k+1)/n); with k = n it does what is left when the others have finished
    (the kind's reduce). The run's own row comes with its first attempt, so a job may stand for a run that is not there
    yet, of which the units are not known.
    """

    __tablename__ = "job"
    __noun__ = Noun("job", listed="chessreg jobs")
    __table_args__ = (check("shard", "shard >= 0 AND shards >= 1 AND shard <= shards"),)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    group_id: Mapped[UUID] = mapped_column(index=True)  # one launch: its shards, the cells of its sweep
    run_id: Mapped[UUID] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(String(64))
    spec_hash: Mapped[str] = mapped_column(Digest)
    executor: Mapped[str] = mapped_column(String(255))  # "local", "slurm:PROFILE", "ray:ADDRESS"
    host: Mapped[str] = mapped_column(String(255))  # of the supervisor that looks after it
    shard: Mapped[int]
    shards: Mapped[int]
    priority: Mapped[int] = mapped_column(default=0)
    state: Mapped[JobState] = mapped_column(choice(JobState, "state"))
    cancel: Mapped[bool] = mapped_column(default=False)  # somebody wants it to end
    cause: Mapped[Cause | None] = mapped_column(choice(Cause, "cause"))
    message: Mapped[str | None] = mapped_column(Text)
    tries: Mapped[int] = mapped_column(default=0)
    handle: Mapped[str | None] = mapped_column(Text)  # the executor's own id of the last try
    detail: Mapped[dict[str, Any]] = mapped_column(Json)  # source, spec, how, given, store, after, …: jobs.launch
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # the last try
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


Index("ix_job_state", Job.state)
