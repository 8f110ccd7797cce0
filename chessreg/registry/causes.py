"""The reasons why attempts end. Separate from the tables, so that nodes of a cluster need not import SQLAlchemy."""

from __future__ import annotations

import enum


class Cause(enum.StrEnum):
    """Why an attempt ended."""

    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    PREEMPTED = "preempted"
    WALLTIME = "walltime"
    OOM = "oom"
    DIVERGED = "diverged"
    ENGINE_DIED = "engine_died"
    LOST = "lost"
