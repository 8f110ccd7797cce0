"""Provenance of results: machine, kind, run, inputs, attempts and jobs; and the state of the registry itself."""

import enum
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.causes import Cause
from chessreg.registry.tables.types import (
    Base,
    Digest,
    FiniteFloat,
    Json,
    NameType,
    Noun,
    UnitNumber,
    UtcDateTime,
    check_constraint,
    make_word_column,
)


class AttemptState(enum.StrEnum):
    """The state of an attempt at a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"


class Machine(Base):
    """A host with its software at the time of a run. The id derives from all columns except `last_seen`."""

    __tablename__ = "machine"
    __noun__ = Noun("machine", listed="chessreg machines")
    id: Mapped[UUID] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(String(255))
    system_id: Mapped[str | None] = mapped_column(
        String(32)
    )  # of the installation, since machines may share a host name
    platform: Mapped[str] = mapped_column(String(255))
    cpu: Mapped[str] = mapped_column(String(255))
    cores: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    gpus: Mapped[list[str]] = mapped_column(Json)
    driver: Mapped[str | None] = mapped_column(String(64))
    cuda: Mapped[str | None] = mapped_column(String(64))
    torch: Mapped[str | None] = mapped_column(String(64))
    python: Mapped[str] = mapped_column(String(64))
    last_seen: Mapped[datetime] = mapped_column(UtcDateTime)


class KindRecord(Base):
    """A kind of experiment as a run used it: enough to show, query and reload it later."""

    __tablename__ = "kind"
    __table_args__ = (check_constraint("determinism", "determinism IN ('exact', 'statistical')"),)
    name: Mapped[str] = mapped_column(NameType(64), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(Text)  # "package.module:NAME" or "/path/file.py:NAME"
    result_tables: Mapped[list[str]] = mapped_column(Json)
    extra_columns: Mapped[dict[str, Any]] = mapped_column(Json)  # result table → their JSON schema
    determinism: Mapped[str] = mapped_column(String(16))


LONG_RUN_UNITS = 10_000
"""A run with at least this many units is long: after its completion the numbers of queries about it are stored."""


class Run(Base):
    """A run of one spec. The id derives from the spec's hash, so the same spec on two machines is the same run."""

    __tablename__ = "run"
    __noun__ = Noun("run", ("spec_hash",), "chessreg runs list")
    __table_args__ = (check_constraint("units", "units >= 0"),)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(NameType(64), index=True)
    version: Mapped[int]
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    spec_hash: Mapped[str] = mapped_column(Digest, unique=True)
    explicit: Mapped[list[str]] = mapped_column(Json)  # settings given by the user
    units: Mapped[int] = mapped_column(UnitNumber)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class RunInput(Base):
    """An input of a run: the reference in its spec, and the digest of the bytes that were read.

    Two parts of one dataset are two references with one digest.
    """

    __tablename__ = "run_input"
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)  # the spec's field
    reference: Mapped[str] = mapped_column(Text, primary_key=True)
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    source_run_id: Mapped[UUID | None] = mapped_column(index=True)  # the run that made it, if one did


class Attempt(Base):
    """One attempt at a run, or at part of it."""

    __tablename__ = "attempt"
    __noun__ = Noun("attempt", listed="")
    id: Mapped[UUID] = mapped_column(primary_key=True)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    machine_id: Mapped[UUID] = mapped_column(ForeignKey("machine.id"))
    job_id: Mapped[UUID | None] = mapped_column(index=True)  # None: a run in the foreground
    executor: Mapped[str] = mapped_column(String(255))
    execution_options: Mapped[dict[str, Any]] = mapped_column(Json)
    argv: Mapped[list[str]] = mapped_column(Json)
    pid: Mapped[int]
    pid_started: Mapped[float] = mapped_column(FiniteFloat)
    boot_id: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    checked_in_at: Mapped[datetime] = mapped_column(UtcDateTime)
    next_check_in_seconds: Mapped[float] = mapped_column(FiniteFloat)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    state: Mapped[AttemptState] = mapped_column(make_word_column(AttemptState, "state"))
    cause: Mapped[Cause | None] = mapped_column(make_word_column(Cause, "cause"))
    message: Mapped[str | None] = mapped_column(Text)
    exit_code: Mapped[int | None]
    units_done: Mapped[int] = mapped_column(default=0)
    progress: Mapped[float | None] = mapped_column(FiniteFloat)  # share of its work that is done, 0 to 1
    progress_before: Mapped[float | None] = mapped_column(FiniteFloat)  # share done by earlier attempts
    doing: Mapped[str | None] = mapped_column(Text)  # its last progress message
    load: Mapped[dict[str, Any] | None] = mapped_column(Json)  # of the machine at the last check-in (registry.machine)
    log: Mapped[str | None] = mapped_column(Text)
    chessreg_version: Mapped[str] = mapped_column(String(64))
    code: Mapped[dict[str, Any]] = mapped_column(Json)  # commit and changes: chessreg, working folder
    environment: Mapped[dict[str, str]] = mapped_column(Json)  # package → version


class UnitRange(Base):
    """Complete units [start, stop) of a run, and the attempt that completed them."""

    __tablename__ = "unit_range"
    __table_args__ = (check_constraint("range", "start >= 0 AND stop > start"),)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(UnitNumber, primary_key=True)
    stop: Mapped[int] = mapped_column(UnitNumber, primary_key=True)
    attempt_id: Mapped[UUID]


class FragmentRecord(Base):
    """An ingested fragment, recorded so that it is skipped if it arrives again."""

    __tablename__ = "fragment"
    name: Mapped[str] = mapped_column(String(255), primary_key=True)  # unique file name
    run_id: Mapped[UUID] = mapped_column(index=True)
    rows: Mapped[int]
    ingested_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Conflict(Base):
    """A later row with the key of a stored row and different content. It is listed, not discarded."""

    __tablename__ = "conflict"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    table_name: Mapped[str] = mapped_column(String(32))
    run_id: Mapped[UUID] = mapped_column(index=True)
    attempt_id: Mapped[UUID]
    key: Mapped[dict[str, Any]] = mapped_column(Json)
    row: Mapped[dict[str, Any]] = mapped_column(Json)
    found_at: Mapped[datetime] = mapped_column(UtcDateTime)


Index("ix_attempt_state", Attempt.state)


class JobState(enum.StrEnum):
    """The state of a job in the queue."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class Job(Base):
    """One shard of a launched run: its options, its placement and its end.

    Shard k of n does units [units·k/n, units·(k+1)/n). With k = n it does the kind's reduce after all others have
    finished. The row of the run is created by its first attempt, so a job may refer to a run that does not exist yet
    and whose number of units is unknown.
    """

    __tablename__ = "job"
    __noun__ = Noun("job", listed="chessreg jobs")
    __table_args__ = (check_constraint("shard", "shard >= 0 AND shards >= 1 AND shard <= shards"),)
    id: Mapped[UUID] = mapped_column(primary_key=True)
    group_id: Mapped[UUID] = mapped_column(index=True)  # all jobs of one launch
    run_id: Mapped[UUID] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(String(64))
    spec_hash: Mapped[str] = mapped_column(Digest)
    executor: Mapped[str] = mapped_column(String(255))  # "local", "slurm:PROFILE", "ray:ADDRESS"
    host: Mapped[str] = mapped_column(String(255))  # of its supervisor
    system_id: Mapped[str | None] = mapped_column(String(32))  # of that machine, as in `machine`
    shard: Mapped[int]
    shards: Mapped[int]
    priority: Mapped[int] = mapped_column(default=0)
    state: Mapped[JobState] = mapped_column(make_word_column(JobState, "state"))
    cancel: Mapped[bool] = mapped_column(default=False)  # whether it was cancelled
    cause: Mapped[Cause | None] = mapped_column(make_word_column(Cause, "cause"))
    message: Mapped[str | None] = mapped_column(Text)
    tries: Mapped[int] = mapped_column(default=0)
    handle: Mapped[str | None] = mapped_column(Text)  # the executor's id of the last attempt
    detail: Mapped[dict[str, Any]] = mapped_column(Json)  # source, spec, explicit, store, after, …: scheduling.launch
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)  # of the last attempt
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


Index("ix_job_state", Job.state)


class RegistryState(Base):
    """A single row. `data_version` increases with every writing transaction, so a snapshot can detect that it is
    outdated."""

    __tablename__ = "registry_state"
    __table_args__ = (check_constraint("one_row", "id = 1"),)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    registry_id: Mapped[UUID]
    data_version: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
