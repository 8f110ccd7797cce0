"""The state of a run and its number of complete units, as SQL expressions.

`runs list`, the run filter, job status, lineage, the terminal UI and the query engine (table `run_now`) all use these
expressions. Archived and invalid are annotations, not states: an invalid run may be complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, String, and_, case, cast, exists, func, literal, or_, select
from sqlalchemy.orm import Session

from chessreg.registry.tables import Attempt, AttemptState, Cause, Job, JobState, Run, UnitRange

# Ends that count as failures, in every list. A user ended a cancelled or interrupted run, so neither is among them.
FAILURES = ("failed", "diverged", "killed", "preempted", "walltime", "oom", "engine_died", "lost")

# The states of a run (docs/jobs.md). If no unit is complete, the end of the last attempt is the state.
STATES = (
    *("complete", "running", "queued", "partial", "failed", "diverged", "cancelled", "interrupted", "killed"),
    *("preempted", "walltime", "oom", "engine_died", "lost", "planned"),
)
ENDS = ("complete", "cancelled", "interrupted", *FAILURES)  # for a partial run, of its last attempt


def count_units_sql(low: int = 0, high: int | None = None) -> ColumnElement[int]:
    """Return the SQL expression for the number of complete units of `Run` in [low, high). Ranges may overlap.

    Tasks write ranges of one unit, which are unique by their key and can be counted. Overlaps are subtracted only if
    the run has longer ranges.
    """
    end: Any = Run.units if high is None else high
    is_inside = and_(UnitRange.run_id == Run.id, UnitRange.start < end, UnitRange.stop > low)
    has_longer_range = exists().where(is_inside, UnitRange.stop > UnitRange.start + 1).correlate(Run)
    start = case((UnitRange.start < low, low), else_=UnitRange.start)
    stop = case((UnitRange.stop > end, end), else_=UnitRange.stop)
    clipped_ranges = (
        select(start.label("start"), stop.label("stop")).where(is_inside).correlate(Run).subquery("clipped")
    )
    earlier_stop: Any = func.max(clipped_ranges.c.stop).over(
        order_by=(clipped_ranges.c.start, clipped_ranges.c.stop), rows=(None, -1)
    )
    spans = select(
        clipped_ranges.c.start, clipped_ranges.c.stop, func.coalesce(earlier_stop, low).label("covered")
    ).subquery("spans")
    fresh_units = case(
        (spans.c.stop <= spans.c.covered, 0),
        (spans.c.start >= spans.c.covered, spans.c.stop - spans.c.start),
        else_=spans.c.stop - spans.c.covered,
    )
    covered_units = select(func.coalesce(func.sum(fresh_units), 0)).scalar_subquery()
    counted_units = select(func.count()).where(is_inside).correlate(Run).scalar_subquery()
    return case((has_longer_range, covered_units), else_=counted_units)


CAUSES_AS_STATES = (Cause.PREEMPTED, Cause.WALLTIME, Cause.DIVERGED, Cause.OOM, Cause.ENGINE_DIED, Cause.LOST)


def _build_last_end() -> Any:
    """Return the SQL expression of how the last attempt of `Run` ended."""
    killed_state = Attempt.state == AttemptState.KILLED
    word = case(
        (Attempt.state == AttemptState.FINISHED, "partial"),
        (Attempt.cause.in_(CAUSES_AS_STATES), cast(Attempt.cause, String)),
        (and_(killed_state, Attempt.job_id.is_(None)), "interrupted"),
        (and_(killed_state, exists().where(Job.id == Attempt.job_id, Job.cancel)), "cancelled"),
        (Attempt.cause == Cause.KILLED, "killed"),
        else_=cast(Attempt.state, String),
    )
    last_end = select(word).where(Attempt.run_id == Run.id).order_by(Attempt.started_at.desc(), Attempt.id.desc())
    return last_end.limit(1).correlate(Run).scalar_subquery()


# Submitted to a cluster's scheduler and not started yet: `scheduling.queue.make_placement_record`.
WAITS_IN_CLUSTER = and_(
    Job.state == JobState.RUNNING,
    func.coalesce(Job.detail[("placement", "state")].as_string(), "") == literal("waiting"),
)
COMPLETE = Run.completed_at.is_not(None)
RUNNING = exists().where(Attempt.run_id == Run.id, Attempt.state == AttemptState.RUNNING).correlate(Run)
# Except the reduce job, which waits forever if a shard failed.
WAITING_JOB = or_(Job.state == JobState.QUEUED, WAITS_IN_CLUSTER)
QUEUED = exists().where(Job.run_id == Run.id, WAITING_JOB, Job.shard < Job.shards).correlate(Run)
HAS_UNITS = exists().where(UnitRange.run_id == Run.id).correlate(Run)
UNITS_DONE = case((COMPLETE, Run.units), else_=count_units_sql())
STATE = case(
    (COMPLETE, "complete"),
    (RUNNING, "running"),
    (QUEUED, "queued"),
    (HAS_UNITS, "partial"),
    else_=func.coalesce(_build_last_end(), "planned"),
)

END = case((and_(STATE == "partial", _build_last_end() != "partial"), _build_last_end()))  # why it is partial


def select_run_states() -> Select[Any]:
    """Return the statement that selects run_id, state and done of every run."""
    return select(Run.id.label("run_id"), STATE.label("state"), UNITS_DONE.label("done"))


def count_done(session: Session, run_id: UUID, units: range | None = None) -> int:
    """Return the number of complete units of a run, or of those in `units`. 0 for an unknown run."""
    expression = UNITS_DONE if units is None else count_units_sql(units.start, units.stop)
    return session.scalar(select(expression).where(Run.id == run_id)) or 0


def read_complete_units(session: Session, run_id: UUID, low: int = 0, high: int | None = None) -> set[int]:
    """Return the complete units of a run in [`low`, `high`), by default all."""
    ranges = select(UnitRange.start, UnitRange.stop).where(UnitRange.run_id == run_id, UnitRange.stop > low)
    if high is not None:
        ranges = ranges.where(UnitRange.start < high)
    return {
        unit
        for start, stop in session.execute(ranges)
        for unit in range(max(start, low), stop if high is None else min(stop, high))
    }


def list_unit_ranges(units: Iterable[int]) -> list[tuple[int, int]]:
    """Return the units as sorted ranges [start, stop).

    >>> list_unit_ranges([3, 0, 1, 4, 9])
    [(0, 2), (3, 5), (9, 10)]
    """
    ranges: list[tuple[int, int]] = []
    for unit in sorted(units):
        if ranges and unit == ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], unit + 1)
        else:
            ranges.append((unit, unit + 1))
    return ranges
